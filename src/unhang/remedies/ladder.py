"""The ladder: rung by rung until one works, then the smallest part of it that still does, proven once more.

Everything is bounded: each stage of a trial, each trial, and the whole climb.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from unhang.knowledge.text import Text
from unhang.model import Outcome, Trial, Tried
from unhang.remedies import trial
from unhang.remedies.bisect import smallest
from unhang.remedies.ladder_steps import AS_IS, PRESCRIBED, TRANSPORTS, Rung
from unhang.remedies.trial import Bench
from unhang.settings.setting import Choice, Value, typed

LIMIT_S = 600.0
# What of it is kept for finding out what of a change is needed, and for its last proof.
_RESERVE = 1 / 3
# Less than this is not worth a start: importing torch alone takes as long.
_LEAST_S = 5.0
# A failure that only comes under load, or after hours, is not seen in seconds: that the probes pass acquits no setting.
_AS_IS = Text(
    "the probes pass as it is: what failed does not show in them, so they cannot tell whether a setting is to blame (unhang run --trial-command "
    "adds steps of your own)",
    "保持原样时探测全部通过：故障没有在探测中出现，因此无法判断是否与设置有关（unhang run --trial-command 可加入自己的训练步）",
)
_AS_IS_TOO = Text(
    "the probes and the command of --trial-command pass as it is: what failed does not show in them, so nothing is said of settings",
    "保持原样时探测和 --trial-command 的命令都通过：故障没有在其中出现，因此无法判断是否与设置有关",
)
_UNSEEN_HERE = Text(
    "what failed does not show in the probes, so they cannot tell whether this helps; try it in a run (--set)",
    "故障没有在探测中出现，无法判断这样是否有用；可在训练中用 --set 尝试",
)
_ON_LOOPBACK = Text("; lo reaches this host alone: a job on several hosts would not start with it", "；lo 只能到达本机，多主机作业用它无法启动")
_INTERRUPTED = Text("interrupted: what was tried until then is all there is", "被中断：只有到那时为止的测试结果")
_MORE_WORK = Text("it works with more processes", "进程更多时也可行")
_NO_NCCL = Text("there is no NCCL here", "此处没有 NCCL")
_PASSED_ONCE = Text(
    "{what} passed once, and the time of {time} was over before it could pass again: nothing is proven",
    "{what} 通过一次，但时间（{time}）已用完，未能再次通过：尚未证明",
)
_OWN_FAILS = Text(
    "your command (--trial-command) fails whatever is set, while the probes pass: it seems to fail for a reason of its own: {why}",
    "无论怎样设置，您的命令（--trial-command）都失败，而探测全部通过：看来是命令自身的问题：{why}",
)
_OWN_IS_WRONG = Text(
    "no setting mends your command (--trial-command), so nothing more was tried: {why}",
    "任何设置都无法修正您的命令（--trial-command），因此不再继续测试：{why}",
)
_SECONDS = Text("{s} s", "{s} 秒")
_SHARE = Text("{s} s (the rest of {whole} s is for your answer)", "{s} 秒（{whole} 秒中其余的留给您回答）")
_RAN_OUT = Text(" (the time of {time} was over)", "（{time}的时间已用完）")


@dataclass(frozen=True, kw_only=True)
class Told:
    """What is told while it goes on: a rung that begins (`tried` is None), or that has been tried; or a trial of what can be left out, or of what has
    passed already (`again`).
    """

    rung: Rung | None
    tried: Tried | None = None
    dropping: Trial | None = None
    again: bool = False


def climb(
    bench: Bench,
    rungs: Iterable[Rung],
    *,
    why: str = "",
    limit_s: float = LIMIT_S,
    whole_s: float | None = None,
    several: bool = False,
    tell: Callable[[Told], None] = lambda told: None,
) -> Outcome:
    """Climb. The smallest change that works is `chosen`; whoever cancels gets what was tried so far, and nothing chosen.

    With `several` the rungs above are tried as well, each by itself, for somebody to choose among those that work; `limit_s` is then a
    share of `whole_s`, and the rest is for the answer.
    """
    return _Climb(bench, why=why, limit_s=limit_s, whole_s=whole_s, several=several, tell=tell).climb(tuple(rungs))


class _Climb:
    def __init__(self, bench: Bench, *, why: str, limit_s: float, whole_s: float | None, several: bool, tell: Callable[[Told], None]) -> None:
        self._bench = bench
        self._why = why
        self._began = time.monotonic()
        self._until = self._began + limit_s
        # Rungs end before it.
        self._rungs_until = self._until - limit_s * _RESERVE
        # What the trial took that has to be repeated as the last proof; whether that was done, or time was over for it.
        self._proof_s = 0.0
        self._proven = self._unproven = False
        self._ran_out = False
        self._time = _SECONDS.fill(s=f"{limit_s:g}") if whole_s is None else _SHARE.fill(s=f"{limit_s:g}", whole=f"{whole_s:g}")
        self._several = several
        self._tell = tell
        self._tried: list[Tried] = []
        self._dropping: list[Trial] = []

    def climb(self, rungs: Sequence[Rung]) -> Outcome:
        below: Choice = {}
        below_fails = True
        seen: list[Choice] = []
        for position, rung in enumerate(rungs):
            choice = rung.above(below)
            if self._bench.cancelled():
                return self._end(None, _INTERRUPTED)
            if rung.id != AS_IS.id and (why := self._why_not(rung, choice, seen)) is not None:
                self._skip(rung, why)
                continue
            # Of a preset only what can be set here.
            choice = self._accepted(choice)
            result = self._try(rung, choice)
            if self._bench.cancelled():
                return self._end(None, _INTERRUPTED)
            if result.wrong_command:
                return self._end(None, _OWN_IS_WRONG.fill(why=Text(result.says, result.says_zh)))
            if result.outcome == "inconclusive" and (rung.id == AS_IS.id or any(s.state == "failed" for s in result.stages)):
                return self._end(
                    None, Text("not even this can be tried here: {why}", "此处无法测试：{why}").fill(why=Text(result.says, result.says_zh))
                )
            if result.outcome == "passed":
                if rung.id == AS_IS.id:
                    for other in rungs[position + 1 :]:
                        if other.id.startswith(PRESCRIBED):
                            self._skip(other, _UNSEEN_HERE)
                    return self._end({}, _AS_IS if self._bench.own is None else _AS_IS_TOO)
                self._proof_s = max(_LEAST_S, result.seconds)
                least, is_smallest = self._least(rung, choice)
                if least is not None:
                    says = self._conclusion(least, is_smallest=is_smallest and below_fails)
                    if self._several:
                        self._try_others(rungs[position + 1 :], [*seen, choice, least])
                    if self._bench.cancelled():
                        return self._end(None, _INTERRUPTED)
                    return self._end(least, says, confirmed=True)
                if self._bench.cancelled():
                    return self._end(None, _INTERRUPTED)
                if self._unproven:
                    return self._end(None, _PASSED_ONCE.fill(what=named(choice), time=self._time))
            # Also what could not be decided: it would be no clearer the second time.
            seen.append(choice)
            if rung.kept:
                below = choice
                below_fails = result.outcome != "inconclusive"
        if (why := self._own_fails()) is not None:
            return self._end(None, _OWN_FAILS.fill(why=why))
        says = Text("nothing that was tried works here", "测试过的都不行")
        if undecided := sum(t.trial is not None and t.trial.outcome == "inconclusive" for t in self._tried):
            says = Text("nothing was seen to work here, and {n} of what was tried could not be decided", "没有发现可行的，其中 {n} 项未能得出结论")
            says = says.fill(n=undecided)
        if self._ran_out:
            says = says + Text("; the time of {time} is over, and not all was tried", "；时间（{time}）已用完，未能全部测试").fill(time=self._time)
        return self._end(None, says)

    def _own_fails(self) -> Text | None:
        """How the user's own command failed, as it is and in one process, too, where nothing but it did; None otherwise."""
        tried = [t.trial for t in self._tried if t.trial is not None]
        ends = any(not t.choice for t in tried) and any(t.world_size == 1 for t in tried)
        if not ends or any(t.outcome != "failed" or t.steps is None for t in tried):
            return None
        return Text(tried[0].says, tried[0].says_zh)

    def _try_others(self, rungs: Sequence[Rung], tried: list[Choice]) -> None:
        """Each by itself, with what time is left. Never fewer processes: what keeps more of them works already."""
        self._rungs_until, self._proven = self._until, True
        for rung in rungs:
            if "processes" in rung.adds:
                self._skip(rung, _MORE_WORK)
                continue
            choice = self._accepted(rung.adds)
            if self._bench.cancelled():
                return
            if (why := self._why_not(rung, choice, tried)) is not None:
                self._skip(rung, why)
            else:
                self._try(rung, choice)
                tried.append(choice)

    def _why_not(self, rung: Rung, choice: Choice, seen: Sequence[Choice]) -> Text | None:
        """Why a rung is not tried."""
        if self._is_over(self._rungs_until):
            self._ran_out = True
            return Text("no time is left of {time} for it", "{time}中已无时间用于它").fill(time=self._time)
        if self._lacks_nccl(choice):
            return _NO_NCCL
        if choice.get("backend", self._bench.backend) != "nccl" and rung.adds and set(rung.adds) <= set(TRANSPORTS):
            return Text("only NCCL has it, and the ranks talk over Gloo", "只有 NCCL 有，而这里使用 Gloo")
        refused = self._bench.refused(rung.adds)
        if refused and len(refused) == len(rung.adds):
            return trial.refusal(refused)
        if choice.get("backend") == self._bench.backend and "backend" in rung.adds:
            return Text("{backend} is what was tried already", "已经在用 {backend}").fill(backend=self._bench.backend)
        kept = self._accepted(choice)
        same = [earlier for earlier in ({}, *seen) if self._effect(earlier) == self._effect(kept)]
        if same:
            return Text("it changes nothing of what was tried already", "与已经测试过的没有区别")
        return None

    def _lacks_nccl(self, choice: Choice) -> bool:
        return choice.get("backend", self._bench.backend) == "nccl" and self._bench.installed.nccl is None

    def _effect(self, choice: Choice) -> tuple[dict[str, str], Value, Value]:
        """What a trial could tell apart."""
        environ = {**self._bench.environ, **self._bench.applied(choice).env}
        if self._bench.own is None:
            unseen = trial.UNSEEN if self._bench.loaders else (*trial.UNSEEN, trial.LOADER_WORKERS)
            environ = {k: v for k, v in environ.items() if trial.OF_COMMUNICATION.match(k) and k not in unseen}
        # An empty one is as good as none to all who read these.
        return {k: v for k, v in environ.items() if v}, choice.get("backend", self._bench.backend), choice.get("processes", self._bench.world_size)

    def _accepted(self, choice: Choice) -> Choice:
        refused = {r.key for r in self._bench.refused(choice)}
        return {key: value for key, value in choice.items() if key not in refused}

    def _least(self, rung: Rung, choice: Choice) -> tuple[Choice | None, bool]:
        """The smallest part that works, run once more; the whole where that fails; None where neither passes again.

        And whether each part that was left in has been seen to be needed: it has not where time was over, or a trial decided nothing.
        """
        untried: list[Choice] = []

        until = self._until - self._proof_s

        def passes(part: Choice) -> bool:
            if self._lacks_nccl(part):
                return False
            outcome = "" if self._is_over(until) else self._drop(part, until=until).outcome
            if outcome not in ("passed", "failed"):
                untried.append(part)
                self._ran_out = self._ran_out or self._is_over(until)
            return outcome == "passed"

        found = smallest(choice, added=[key for key in choice if key in rung.adds], passes=passes)
        if self._proves(found):
            return found, not untried
        if found != choice and not self._bench.cancelled() and self._proves(choice):
            return choice, False
        return None, False

    def _proves(self, choice: Choice) -> bool:
        """The last proof, for which time was kept."""
        if not self._is_over(self._until):
            outcome = self._drop(choice, until=self._until).outcome
            self._unproven = outcome == "inconclusive" and self._is_over(self._until)
            return outcome == "passed"
        self._unproven = True
        return False

    def _try(self, rung: Rung, choice: Choice) -> Trial:
        self._tell(Told(rung=rung))
        # One that passes has to pass once more: as long as it has taken has to be left.
        now = time.monotonic()
        until = self._rungs_until if self._proven else min(self._rungs_until, (now + self._until) / 2)
        # Of one climb the logs of what failed first are enough: the verdicts on the others stay.
        result = trial.run(self._bench, choice, limit_s=max(_LEAST_S, until - now), keeps_logs=rung.id == AS_IS.id)
        self._add(rung, trial_=result)
        return result

    def _drop(self, choice: Choice, *, until: float) -> Trial:
        result = trial.run(self._bench, choice, limit_s=max(_LEAST_S, until - time.monotonic()))
        passed = [t.trial for t in self._tried if t.trial is not None] + self._dropping
        again = any(t.choice == dict(choice) for t in passed)
        self._dropping.append(result)
        self._tell(Told(rung=None, dropping=result, again=again))
        return result

    def _skip(self, rung: Rung, why: Text) -> None:
        self._add(rung, skipped=why)

    def _add(self, rung: Rung, *, trial_: Trial | None = None, skipped: Text = Text("", "")) -> None:  # noqa: B008
        tried = Tried(
            id=rung.id,
            title=rung.title.en,
            title_zh=rung.title.zh,
            cost=rung.cost.en,
            cost_zh=rung.cost.zh,
            trial=trial_,
            skipped=skipped.en,
            skipped_zh=skipped.zh,
        )
        self._tried.append(tried)
        self._tell(Told(rung=rung, tried=tried))

    @staticmethod
    def _is_over(until: float) -> bool:
        return until - time.monotonic() < _LEAST_S

    def _conclusion(self, choice: Choice, *, is_smallest: bool) -> Text:
        concluded = Text("{what} is the smallest change that works here; it passed twice", "{what} 是此处可行的最小改动，已通过两次")
        if not is_smallest:
            concluded = Text(
                "{what} works here, and passed twice; whether all of it is needed could not be found out",
                "{what} 在此可行，已通过两次；其中是否每一项都必需，未能测完",
            )
            if self._ran_out:
                concluded = concluded + _RAN_OUT.fill(time=self._time)
        return concluded.fill(what=named(choice)) + (_ON_LOOPBACK if choice.get("interface") == "lo" else Text("", ""))

    def _end(self, chosen: Choice | None, says: Text, *, confirmed: bool = False) -> Outcome:
        done = self._bench.applied(chosen or {})
        return Outcome(
            chosen=None if chosen is None else dict(chosen),
            rungs=tuple(self._tried),
            dropping=tuple(self._dropping),
            confirmed=confirmed,
            says=says.en,
            says_zh=says.zh,
            why=self._why,
            environment=dict(done.env),
            arguments=(*(word for option in done.options for word in option), *done.arguments),
            seconds=round(time.monotonic() - self._began, 3),
        )


def named(choice: Choice) -> str:
    """ "shm=off, interface=lo"."""
    return ", ".join(f"{key}={typed(value)}" for key, value in choice.items())
