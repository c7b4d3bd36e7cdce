"""The ladder: rung by rung until one works, then the smallest part of it that still does, proven once more.

Everything is bounded: each stage of a trial, each trial, and the whole climb.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from unhang.knowledge.settings.setting import Choice, Value
from unhang.knowledge.text import Text
from unhang.model import Outcome, Trial, Tried
from unhang.remedies import trial
from unhang.remedies.rungs import AS_IS, TRANSPORTS, Rung
from unhang.remedies.smallest import smallest
from unhang.remedies.trial import Bench

LIMIT_S = 600.0
# Less than this is not worth a start: importing torch alone takes as long.
_LEAST_S = 5.0


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
    several: bool = False,
    tell: Callable[[Told], None] = lambda told: None,
) -> Outcome:
    """Climb. The smallest change that works is `chosen`; whoever cancels gets what was tried so far, and nothing chosen.

    With `several` the rungs above are tried as well, each by itself, for somebody to choose among those that work.
    """
    return _Climb(bench, why=why, limit_s=limit_s, several=several, tell=tell).climb(tuple(rungs))


class _Climb:
    def __init__(self, bench: Bench, *, why: str, limit_s: float, several: bool, tell: Callable[[Told], None]) -> None:
        self._bench = bench
        self._why = why
        self._began = time.monotonic()
        self._until = self._began + limit_s
        self._limit_s = limit_s
        self._several = several
        self._tell = tell
        self._tried: list[Tried] = []
        self._dropping: list[Trial] = []

    def climb(self, rungs: Sequence[Rung]) -> Outcome:
        below: Choice = {}
        failed: list[Choice] = []
        for position, rung in enumerate(rungs):
            choice = rung.above(below)
            if self._bench.cancelled():
                return self._end(None, Text("interrupted", "被中断"))
            if rung.id != AS_IS.id and (why := self._why_not(rung, choice, failed)) is not None:
                self._skip(rung, why)
                continue
            # Of a preset only what can be set here.
            choice = self._accepted(choice)
            result = self._try(rung, choice)
            if result.outcome == "inconclusive":
                return self._end(
                    None, Text("not even this can be tried here: {why}", "此处无法测试：{why}").fill(why=Text(result.says, result.says_zh))
                )
            if result.outcome == "passed":
                if rung.id == AS_IS.id:
                    return self._end({}, Text("it works as it is: no setting is to blame", "保持原样即可工作：与设置无关"))
                if (least := self._least(rung, choice, below)) is not None:
                    if self._several:
                        self._try_others(rungs[position + 1 :], [*failed, choice, least])
                    return self._end(least, self._conclusion(least), confirmed=True)
                if self._bench.cancelled():
                    return self._end(None, Text("interrupted", "被中断"))
            failed.append(choice)
            if rung.kept:
                below = choice
        if self._is_over():
            return self._end(
                None,
                Text("nothing that was tried works, and the time of {s} s is over", "测试过的都不行，时间（{s} 秒）已用完").fill(
                    s=f"{self._limit_s:g}"
                ),
            )
        return self._end(None, Text("nothing that was tried works here", "测试过的都不行"))

    def _try_others(self, rungs: Sequence[Rung], tried: list[Choice]) -> None:
        """Each by itself."""
        for rung in rungs:
            choice = self._accepted(rung.adds)
            if self._bench.cancelled():
                return
            if (why := self._why_not(rung, choice, tried)) is not None:
                self._skip(rung, why)
            else:
                self._try(rung, choice)
                tried.append(choice)

    def _why_not(self, rung: Rung, choice: Choice, failed: Sequence[Choice]) -> Text | None:
        """Why a rung is not tried."""
        if self._is_over():
            return Text("no time is left of {s} s", "{s} 秒的时间已用完").fill(s=f"{self._limit_s:g}")
        if choice.get("backend", self._bench.backend) != "nccl" and rung.adds and set(rung.adds) <= set(TRANSPORTS):
            return Text("only NCCL has it, and the ranks talk over Gloo", "只有 NCCL 有，而这里使用 Gloo")
        refused = self._bench.refused(rung.adds)
        if refused and len(refused) == len(rung.adds):
            return trial.refusal(refused)
        if choice.get("backend") == self._bench.backend and "backend" in rung.adds:
            return Text("{backend} is what was tried already", "已经在用 {backend}").fill(backend=self._bench.backend)
        kept = self._accepted(choice)
        same = [earlier for earlier in ({}, *failed) if self._effect(earlier) == self._effect(kept)]
        if same:
            return Text("it changes nothing of what was tried already", "与已经测试过的没有区别")
        return None

    def _effect(self, choice: Choice) -> tuple[dict[str, str], Value, Value]:
        """What a trial could tell apart."""
        environ = {**self._bench.environ, **self._bench.applied(choice).env}
        if self._bench.own is None:
            unseen = trial.UNSEEN if self._bench.loaders else (*trial.UNSEEN, trial.LOADER_WORKERS)
            environ = {k: v for k, v in environ.items() if trial.OF_COMMUNICATION.match(k) and k not in unseen}
        return environ, choice.get("backend", self._bench.backend), choice.get("processes", self._bench.world_size)

    def _accepted(self, choice: Choice) -> Choice:
        refused = {r.key for r in self._bench.refused(choice)}
        return {key: value for key, value in choice.items() if key not in refused}

    def _least(self, rung: Rung, choice: Choice, below: Choice) -> Choice | None:
        """The smallest part that works, run once more; the whole where that fails; None where neither passes again."""
        added = [key for key in choice if key in rung.adds]
        found = smallest(choice, added=added, passes=lambda part: not self._is_over() and self._drop(part).outcome == "passed")
        if self._drop(found).outcome == "passed":
            return found
        if found != choice and not self._bench.cancelled() and self._drop(choice).outcome == "passed":
            return choice
        return None

    def _try(self, rung: Rung, choice: Choice) -> Trial:
        self._tell(Told(rung=rung))
        result = trial.run(self._bench, choice, limit_s=self._left_s())
        self._add(rung, trial_=result)
        return result

    def _drop(self, choice: Choice) -> Trial:
        # The last proof is owed, even when time is over.
        result = trial.run(self._bench, choice, limit_s=max(self._left_s(), 60.0))
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

    def _left_s(self) -> float:
        return max(_LEAST_S, self._until - time.monotonic())

    def _is_over(self) -> bool:
        return self._until - time.monotonic() < _LEAST_S

    def _conclusion(self, choice: Choice) -> Text:
        said = ", ".join(f"{key}={spelled(value)}" for key, value in choice.items())
        return Text("{what} is the smallest change that works here; it passed twice", "{what} 是此处可行的最小改动，已通过两次").fill(what=said)

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


def spelled(value: object) -> str:
    """As `--set KEY=VALUE` takes it."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
