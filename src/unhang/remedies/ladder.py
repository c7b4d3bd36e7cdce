"""The ladder: rung by rung until one works, then the smallest part of it that still does (QuickXplain, Junker 2004), proven once more.

Everything is bounded: each stage of a trial, each trial, and the whole climb.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from unhang.i18n import NOTHING, same
from unhang.knowledge.words import Text, msg
from unhang.model import Outcome, Trial, Tried, frozen
from unhang.remedies import trial
from unhang.remedies.ladder_steps import AS_IS, PRESCRIBED, TRANSPORTS, Rung
from unhang.remedies.trial import Bench
from unhang.settings.setting import Choice, Value, typed

LIMIT_S = 600.0
# What of it is kept for finding out what of a change is needed, and for its last proof.
_RESERVE = 1 / 3
# Less than this is not worth a start: importing torch alone takes as long.
_LEAST_S = 5.0
# A failure that only comes under load, or after hours, is not seen in seconds: that the probes pass acquits no setting.
_AS_IS = msg(
    "the probes pass as it is: what failed does not show in them, so they cannot tell whether a setting is to blame (unhang run --trial-command "
    "adds steps of your own)"
)
_INTERRUPTED = msg("interrupted: what was tried until then is all there is")


@frozen
class Told:
    """What is told while it goes on: a rung that has been tried; or a trial of what can be left out, or of what has passed already (`again`)."""

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
    return _Climb(bench=bench, why=why, limit_s=limit_s, whole_s=whole_s, several=several, tell=tell).climb(tuple(rungs))


@dataclass(kw_only=True)
class _Climb:
    bench: Bench
    why: str
    limit_s: float
    whole_s: float | None
    several: bool
    tell: Callable[[Told], None]

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._until = self._began + self.limit_s
        # Rungs end before it.
        self._rungs_until = self._until - self.limit_s * _RESERVE
        # What the trial took that has to be repeated as the last proof; whether that was done, or time was over for it.
        self._proof_s = 0.0
        self._proven = self._unproven = False
        self._ran_out = False
        self._time = msg("{s} s", s=f"{self.limit_s:g}")
        if self.whole_s is not None:
            self._time = msg("{s} s (the rest of {whole} s is for your answer)", s=f"{self.limit_s:g}", whole=f"{self.whole_s:g}")
        self._tried: list[Tried] = []
        self._dropping: list[Trial] = []

    def climb(self, rungs: Sequence[Rung]) -> Outcome:
        below: Choice = {}
        below_fails = True
        seen: list[Choice] = []
        for position, rung in enumerate(rungs):
            choice = rung.above(below)
            if self.bench.cancelled():
                return self._end(None, _INTERRUPTED)
            if rung.id != AS_IS.id and (why := self._why_not(rung, choice, seen)) is not None:
                self._skip(rung, why)
                continue
            # Of a preset only what can be set here.
            choice = self._accepted(choice)
            result = self._try(rung, choice)
            if self.bench.cancelled():
                return self._end(None, _INTERRUPTED)
            if result.wrong_command:
                return self._end(
                    None,
                    msg("no setting mends your command (--trial-command), so nothing more was tried: {why}", why=result.says),
                )
            if result.outcome == "inconclusive" and (rung.id == AS_IS.id or any(s.state == "failed" for s in result.stages)):
                return self._end(None, msg("not even this can be tried here: {why}", why=result.says))
            if result.outcome == "passed":
                if rung.id == AS_IS.id:
                    for other in rungs[position + 1 :]:
                        if other.id.startswith(PRESCRIBED):
                            self._skip(
                                other, msg("what failed does not show in the probes, so they cannot tell whether this helps; try it in a run (--set)")
                            )
                    return self._end(
                        {},
                        _AS_IS
                        if self.bench.own is None
                        else msg(
                            "the probes and the command of --trial-command pass as it is: what failed does not show in them, "
                            "so nothing is said of settings"
                        ),
                    )
                self._proof_s = max(_LEAST_S, result.seconds)
                least, is_smallest = self._least(rung, choice)
                if least is not None:
                    says = self._conclusion(least, is_smallest=is_smallest and below_fails)
                    if self.several:
                        self._try_others(rungs[position + 1 :], [*seen, choice, least])
                    if self.bench.cancelled():
                        return self._end(None, _INTERRUPTED)
                    return self._end(least, says, confirmed=True)
                if self.bench.cancelled():
                    return self._end(None, _INTERRUPTED)
                if self._unproven:
                    return self._end(
                        None,
                        msg(
                            "{what} passed once, and the time of {time} was over before it could pass again: nothing is proven",
                            what=named(choice),
                            time=self._time,
                        ),
                    )
            # Also what could not be decided: it would be no clearer the second time.
            seen.append(choice)
            if rung.kept:
                below = choice
                below_fails = result.outcome != "inconclusive"
        if (why := self._own_fails()) is not None:
            return self._end(
                None,
                msg(
                    "your command (--trial-command) fails whatever is set, while the probes pass: it seems to fail for a reason of its own: {why}",
                    why=why,
                ),
            )
        says = msg("nothing that was tried works here")
        if undecided := sum(t.trial is not None and t.trial.outcome == "inconclusive" for t in self._tried):
            says = msg("nothing was seen to work here, and {n} of what was tried could not be decided")
            says = says.fill(n=undecided)
        if self._ran_out:
            says = says + msg("; the time of {time} is over, and not all was tried", time=self._time)
        return self._end(None, says)

    def _own_fails(self) -> Text | None:
        """How the user's own command failed, as it is and in one process, too, where nothing but it did; None otherwise."""
        tried = [t.trial for t in self._tried if t.trial is not None]
        ends = any(not t.choice for t in tried) and any(t.world_size == 1 for t in tried)
        if not ends or any(t.outcome != "failed" or t.steps is None for t in tried):
            return None
        return same(tried[0].says)

    def _try_others(self, rungs: Sequence[Rung], tried: list[Choice]) -> None:
        """Each by itself, with what time is left. Never fewer processes: what keeps more of them works already."""
        self._rungs_until, self._proven = self._until, True
        for rung in rungs:
            if "processes" in rung.adds:
                self._skip(rung, msg("it works with more processes"))
                continue
            choice = self._accepted(rung.adds)
            if self.bench.cancelled():
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
            return msg("no time is left of {time} for it", time=self._time)
        if self._lacks_nccl(choice):
            return msg("there is no NCCL here")
        if choice.get("backend", self.bench.backend) != "nccl" and rung.adds and set(rung.adds) <= set(TRANSPORTS):
            return msg("only NCCL has it, and the ranks talk over Gloo")
        refused = self.bench.refused(rung.adds)
        if refused and len(refused) == len(rung.adds):
            return trial.refusal(refused)
        if choice.get("backend") == self.bench.backend and "backend" in rung.adds:
            return msg("{backend} is what was tried already", backend=self.bench.backend)
        kept = self._accepted(choice)
        same = [earlier for earlier in ({}, *seen) if self._effect(earlier) == self._effect(kept)]
        if same:
            return msg("it changes nothing of what was tried already")
        return None

    def _lacks_nccl(self, choice: Choice) -> bool:
        return choice.get("backend", self.bench.backend) == "nccl" and self.bench.installed.nccl is None

    def _effect(self, choice: Choice) -> tuple[dict[str, str], Value, Value]:
        """What a trial could tell apart."""
        environ = {**self.bench.environ, **self.bench.applied(choice).env}
        if self.bench.own is None:
            unseen = trial.UNSEEN if self.bench.loaders else (*trial.UNSEEN, trial.LOADER_WORKERS)
            environ = {k: v for k, v in environ.items() if trial.OF_COMMUNICATION.match(k) and k not in unseen}
        # An empty one is as good as none to all who read these.
        return {k: v for k, v in environ.items() if v}, choice.get("backend", self.bench.backend), choice.get("processes", self.bench.world_size)

    def _accepted(self, choice: Choice) -> Choice:
        refused = {r.key for r in self.bench.refused(choice)}
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
        if found != choice and not self.bench.cancelled() and self._proves(choice):
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
        # One that passes has to pass once more: as long as it has taken has to be left.
        now = time.monotonic()
        until = self._rungs_until if self._proven else min(self._rungs_until, (now + self._until) / 2)
        # Of one climb the logs of what failed first are enough: the verdicts on the others stay.
        result = trial.run(self.bench, choice, limit_s=max(_LEAST_S, until - now), keeps_logs=rung.id == AS_IS.id)
        self._add(rung, trial_=result)
        return result

    def _drop(self, choice: Choice, *, until: float) -> Trial:
        result = trial.run(self.bench, choice, limit_s=max(_LEAST_S, until - time.monotonic()))
        passed = [t.trial for t in self._tried if t.trial is not None] + self._dropping
        again = any(t.choice == dict(choice) for t in passed)
        self._dropping.append(result)
        self.tell(Told(dropping=result, again=again))
        return result

    def _skip(self, rung: Rung, why: Text) -> None:
        self._add(rung, skipped=why)

    def _add(self, rung: Rung, *, trial_: Trial | None = None, skipped: Text = NOTHING) -> None:
        tried = Tried(
            id=rung.id,
            title=rung.title,
            cost=rung.cost,
            trial=trial_,
            skipped=skipped,
        )
        self._tried.append(tried)
        self.tell(Told(tried=tried))

    @staticmethod
    def _is_over(until: float) -> bool:
        return until - time.monotonic() < _LEAST_S

    def _conclusion(self, choice: Choice, *, is_smallest: bool) -> Text:
        concluded = msg("{what} is the smallest change that works here; it passed twice")
        if not is_smallest:
            concluded = msg("{what} works here, and passed twice; whether all of it is needed could not be found out")
            if self._ran_out:
                concluded = concluded + msg(" (the time of {time} was over)", time=self._time)
        return concluded.fill(what=named(choice)) + (
            msg("; lo reaches this host alone: a job on several hosts would not start with it") if choice.get("interface") == "lo" else NOTHING
        )

    def _end(self, chosen: Choice | None, says: Text, *, confirmed: bool = False) -> Outcome:
        done = self.bench.applied(chosen or {})
        return Outcome(
            chosen=None if chosen is None else dict(chosen),
            rungs=tuple(self._tried),
            dropping=tuple(self._dropping),
            confirmed=confirmed,
            says=says,
            why=self.why,
            environment=dict(done.env),
            arguments=(*(word for option in done.options for word in option), *done.arguments),
            seconds=round(time.monotonic() - self._began, 3),
        )


def named(choice: Choice) -> str:
    """ "shm=off, interface=lo"."""
    return ", ".join(f"{key}={typed(value)}" for key, value in choice.items())


def smallest(choice: Choice, *, added: Sequence[str], passes: Callable[[Choice], bool]) -> Choice:
    """Nothing can be taken from it without `passes` becoming false, as far as `passes` is monotone. Keys are in the order of their cost.

    `added` are the keys whose addition made it pass: as a rule they alone are needed, and that is asked first. `choice` as a whole has passed.
    """
    last = [key for key in choice if key in added]
    before = [key for key in choice if key not in added]

    def works(keys: Sequence[str]) -> bool:
        return passes({key: value for key, value in choice.items() if key in keys})

    needed = last if not before or works(last) else _needed(last, before, works, ask=False) + last
    if len(last) > 1:
        rest = [key for key in needed if key not in last]
        # Without what was added it did not work.
        needed = rest + _needed(rest, last, works, ask=False)
    return {key: value for key, value in choice.items() if key in needed}


def _needed(background: Sequence[str], candidates: Sequence[str], works: Callable[[Sequence[str]], bool], *, ask: bool) -> list[str]:
    """Those of `candidates` that `background` needs. Without `ask` it is known that the background alone does not work."""
    if ask and works(background):
        return []
    if len(candidates) == 1:
        return list(candidates)
    half = (len(candidates) + 1) // 2
    first, second = list(candidates[:half]), list(candidates[half:])
    of_second = _needed([*background, *first], second, works, ask=True)
    of_first = _needed([*background, *of_second], first, works, ask=bool(of_second))
    return of_first + of_second
