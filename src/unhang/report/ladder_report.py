"""What was tried after a failure of communication: stage by stage what failed, the ways with what was measured, what was chosen, and how to apply it.

`menu` offers the ways that work for one of them to be chosen (`unhang run --fallback ask`).

Stars are measurements: of speed, the bandwidth (the median of a way's trials) as a share of the best, unless one way differs from itself so much that
a rank among ways would be noise; of stability, how many of the trials of that way passed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from unhang.diagnosis.rerun_command import RunCommand, again
from unhang.i18n import Words, in_language, joined, msg
from unhang.model import Outcome, Trial, frozen
from unhang.printable import strip_unprintable
from unhang.probes.plan import LOADER, STAGES
from unhang.remedies.settings_file import in_shell
from unhang.report.console import cut
from unhang.report.language import Language
from unhang.report.markdown import filled
from unhang.settings.setting import Choice, typed

_MARKS = {"passed": "✓", "failed": "✗", "lacking": "-", "inconclusive": "-"}
_STARS = 5
# Small trials on a machine that others use, too, differ by half among themselves.
_STEADY = 2.0
_WORDS = Words("ladder-report")


@frozen
class Way:
    """A way that was tried, with all its trials: those of the ladder, and those that looked for what is needed."""

    title: str
    cost: str
    trials: tuple[Trial, ...]

    @property
    def passed(self) -> int:
        return sum(t.outcome == "passed" for t in self.trials)

    @property
    def decided(self) -> int:
        return sum(t.outcome != "inconclusive" for t in self.trials)

    @property
    def speeds_gbps(self) -> tuple[float, ...]:
        """Of each trial that passed, the lowest first."""
        return tuple(sorted(t.busbw_gbps for t in self.trials if t.outcome == "passed" and t.busbw_gbps is not None))

    @property
    def busbw_gbps(self) -> float | None:
        return median(self.speeds_gbps) if self.speeds_gbps else None

    @property
    def step_s(self) -> float | None:
        return min((t.steps.step_s for t in self.trials if t.outcome == "passed" and t.steps is not None and t.steps.step_s), default=None)


def best_of(found: Sequence[Way]) -> float | None:
    """The bandwidth that stars are shares of, in GB/s; None where none was measured, or one way differs from itself by more than `_STEADY`."""
    if any(way.speeds_gbps and way.speeds_gbps[-1] > _STEADY * way.speeds_gbps[0] for way in found):
        return None
    return max((w.busbw_gbps for w in found if w.busbw_gbps is not None), default=None)


def spread(way: Way, lang: Language) -> str:
    """ "0.16 to 1.04 GB/s", or one number."""
    ends = dict.fromkeys(f"{speed:.3g}" for speed in (way.speeds_gbps[0], way.speeds_gbps[-1]))
    return f"{_WORDS[lang]['to'].join(ends)} GB/s"


def ways(outcome: Outcome, lang: Language) -> tuple[Way, ...]:
    """Every candidate that was tried, the best first: those that work, by speed; then the others, in the order of the ladder."""
    found: dict[tuple[tuple[str, object], ...], Way] = {}
    for rung in outcome.rungs:
        if rung.trial is not None:
            title, cost = in_language(rung.title, lang), in_language(rung.cost, lang)
            found[_key(rung.trial)] = Way(title=title, cost=cost, trials=(rung.trial,))
    for trial in outcome.dropping:
        before = found.get(_key(trial))
        title, cost, trials = (before.title, before.cost, before.trials) if before else (what(trial.choice, lang), "", ())
        found[_key(trial)] = Way(title=title, cost=cost, trials=(*trials, trial))
    return tuple(sorted(found.values(), key=lambda way: (way.passed == 0, -(way.busbw_gbps or 0.0) if way.passed else 0.0)))


def menu(found: Sequence[Way], *, lang: Language) -> str:
    """Numbered from 1, which is what an empty answer takes; 0 changes nothing."""
    words = _WORDS[lang]
    best = best_of(found)
    lines = [words["offer"]]
    for number, way in enumerate(found, 1):
        speed = way.busbw_gbps
        measured = spread(way, lang) if speed is not None else words["not-measured"]
        if way.step_s is not None:
            measured += words["offer-step"].format(s=way.step_s)
        stars = f"{stars_of(speed / best) if speed is not None and best else '-' * 5} {stars_of(way.passed / len(way.trials))}"
        lines.append(f"  {number}) {stars}  {what(way.trials[0].choice, lang)}  ({way.title}): {measured}")
        if way.cost:
            lines.append(f"     {words['cost'].format(cost=way.cost)}")
    if best is None and any(way.speeds_gbps for way in found):
        lines.append(f"  {words['varies']}")
    lines.append(f"  0) {words['none']}")
    return "\n".join(lines)


def question(*, lang: Language) -> str:
    return _WORDS[lang]["ask"]


def read_choice(answer: str, most: int) -> int | None:
    """The number that was chosen; None where it is none of them."""
    text = answer.strip()
    if not text:
        return 1
    return int(text) if text.isdecimal() and int(text) <= most else None


def not_understood(most: int, *, lang: Language) -> str:
    return _WORDS[lang]["no-choice"].format(most=most)


def render(outcome: Outcome, *, lang: Language, command: Sequence[str] = ()) -> str:
    """As Markdown."""
    found = ways(outcome, lang)
    # What was interrupted, or had no time left, has not failed.
    broken = next((r.trial for r in outcome.rungs if r.trial is not None and r.trial.outcome != "passed" and _has_broken(r.trial)), None)
    titles = {s.id: in_language(s.title, lang) for s in (*STAGES, LOADER)}
    left = [titles[stage.stage] for stage in broken.stages if stage.state == "not-tested"] if broken is not None else []
    seen = [r.trial.choice for r in outcome.rungs if r.trial is not None]
    dropping = []
    for trial in outcome.dropping:
        dropping.append((trial, "again" if trial.choice in seen else "alone"))
        seen.append(trial.choice)
    text = filled(
        "solution",
        lang,
        outcome=outcome,
        words=_WORDS[lang],
        marks=_MARKS,
        titles=titles,
        broken=broken,
        not_reached=joined(left, msg("; ", "stages")).of(lang),
        found=found,
        best=best_of(found),
        dropping=dropping,
        by_hand=variables(outcome),
        last=next((t for t in reversed(outcome.dropping) if t.choice == outcome.chosen and t.outcome == "passed"), None),
        command=command,
        what=what,
        spread=spread,
        in_shell=in_shell,
        by_run=by_run,
        cut=cut,
        stars=stars_of,
    )
    return strip_unprintable(text)


def _has_broken(trial: Trial) -> bool:
    return trial.outcome == "failed" or any(stage.state == "failed" for stage in trial.stages)


def variables(outcome: Outcome) -> Mapping[str, str]:
    """What brings the chosen change about without us: nothing where a part of it is an argument, or is read by our hook alone."""
    hooked = any(name.startswith("UNHANG_") for name in outcome.environment)
    return {} if hooked or outcome.arguments or not outcome.chosen or "processes" in outcome.chosen else outcome.environment


def by_run(outcome: Outcome, command: Sequence[str] = ()) -> str:
    """The chosen change under unhang run."""
    sets = [word for key, value in (outcome.chosen or {}).items() for word in ("--set", f"{key}={typed(value)}")]
    return again(sets, RunCommand(command=tuple(command)) if command else None) or ""


def what(choice: Choice, lang: Language) -> str:
    """ "shm=off, interface=lo"."""
    return ", ".join(f"{key}={typed(value)}" for key, value in choice.items()) or _WORDS[lang]["as-it-is"]


def stars_of(share: float) -> str:
    """One to five of five."""
    full = max(1, min(_STARS, round(share * _STARS)))
    return "★" * full + "☆" * (_STARS - full)


def _key(trial: Trial) -> tuple[tuple[str, object], ...]:
    return tuple(sorted(trial.choice.items()))
