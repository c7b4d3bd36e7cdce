"""What was tried after a failure of communication: stage by stage what failed, the ways with what was measured, what was chosen, and how to apply it.

`menu` offers the ways that work for one of them to be chosen (`unhang run --fallback ask`).

Stars are measurements: of speed, the bandwidth (the median of a way's trials) as a share of the best, unless one way differs from itself so much that
a rank among ways would be noise; of stability, how many of the trials of that way passed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from unhang.diagnosis.rerun_command import RunCommand, again
from unhang.i18n import Words, in_language, joined, msg
from unhang.model import Outcome, Trial, Tried
from unhang.printable import strip_unprintable
from unhang.probes.plan import LOADER, STAGES
from unhang.remedies.settings_file import in_shell
from unhang.report.console import cut
from unhang.report.language import Language
from unhang.settings.setting import Choice, typed

_MARKS = {"passed": "✓", "failed": "✗", "lacking": "-", "inconclusive": "-"}
_STARS = 5
# Small trials on a machine that others use, too, differ by half among themselves.
_STEADY = 2.0
_MOST_SAID = 160
_WORDS = Words("ladder-report")


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way that was tried, with all its trials: those of the ladder, and those that looked for what is needed."""

    title: str
    cost: str
    trials: tuple[Trial, ...]

    @property
    def passed(self) -> int:
        return sum(t.outcome == "passed" for t in self.trials)

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
    return strip_unprintable("\n".join(_lines(outcome, _WORDS[lang], lang, command))) + "\n"


def _lines(outcome: Outcome, words: Mapping[str, str], lang: Language, command: Sequence[str]) -> Iterator[str]:
    yield f"# {words['title']}"
    yield ""
    if outcome.why:
        yield words["because"].format(cause=outcome.why)
    yield f"**{words['conclusion']}**: {in_language(outcome.says, lang)}"
    yield ""
    first = next((r.trial for r in outcome.rungs if r.trial is not None and r.trial.outcome != "passed" and _has_broken(r.trial)), None)
    if first is not None:
        yield from _stages(first, words, lang)
    found = ways(outcome, lang)
    best = best_of(found)
    yield f"## {words['ways']}"
    yield ""
    yield words["head"]
    yield "|---|---|---|---|---|---|"
    for way in found:
        yield _row(way, best, words, lang)
    for rung in outcome.rungs:
        if rung.trial is None:
            yield _skipped(rung, words, lang)
    yield ""
    if outcome.dropping:
        yield f"## {words['dropped']}"
        yield ""
        seen = [r.trial.choice for r in outcome.rungs if r.trial is not None]
        for trial in outcome.dropping:
            title = words["again" if trial.choice in seen else "alone"].format(what=what(trial.choice, lang))
            seen.append(trial.choice)
            yield f"- {_MARKS[trial.outcome]} {title}: {words[f'drop-{trial.outcome}']}"
        yield ""
    yield from _chosen(outcome, words, command)
    yield words["took"].format(s=outcome.seconds)


def _has_broken(trial: Trial) -> bool:
    """What was interrupted, or had no time left, has not."""
    return trial.outcome == "failed" or any(stage.state == "failed" for stage in trial.stages)


def _stages(trial: Trial, words: Mapping[str, str], lang: Language) -> Iterator[str]:
    titles = {s.id: in_language(s.title, lang) for s in (*STAGES, LOADER)}
    yield f"## {words['failed']}"
    yield ""
    yield words["failed-with" if trial.choice else "failed-as-is"].format(what=what(trial.choice, lang), n=trial.world_size, backend=trial.backend)
    yield ""
    for stage in trial.stages:
        if stage.state == "not-tested":
            continue
        said = f": {in_language(stage.says, lang)}" if stage.says else ""
        yield f"- {_MARKS[stage.state]} {titles[stage.stage]}{said}"
    if left := [titles[stage.stage] for stage in trial.stages if stage.state == "not-tested"]:
        yield f"- {words['not-reached'].format(stages=joined(left, msg('; ', 'stages')).of(lang))}"
    if trial.verdict is not None and trial.verdict.primary is not None:
        primary = trial.verdict.primary
        yield ""
        yield f"`{primary.cause}`: {in_language(primary.says, lang)}"
    yield ""


def _row(way: Way, best: float | None, words: Mapping[str, str], lang: Language) -> str:
    decided = [t for t in way.trials if t.outcome != "inconclusive"]
    if not way.passed:
        result = words["fails" if decided else "inconclusive"]
        mark = _MARKS["failed" if decided else "inconclusive"]
        says = in_language(way.trials[0].says, lang)
        return f"| {_cell(way.title)} | {mark} {result} | - | - | {_cell(cut(says, _MOST_SAID))} | {_cell(way.cost)} |"
    result = words["passed" if way.trials[0].choice else "unseen"]
    speed = way.busbw_gbps
    measured = [spread(way, lang) if speed is not None else words["not-measured"]]
    if way.step_s is not None:
        measured.append(words["step"].format(s=way.step_s))
    measured.append(words["of-trials"].format(n=way.passed, all=len(decided)))
    stars = stars_of(speed / best) if speed is not None and best else "-"
    return f"| {_cell(way.title)} | ✓ {result} | {stars} | {stars_of(way.passed / len(decided))} | {', '.join(measured)} | {_cell(way.cost)} |"


def _skipped(rung: Tried, words: Mapping[str, str], lang: Language) -> str:
    title, cost, why = (in_language(said, lang) for said in (rung.title, rung.cost, rung.skipped))
    return f"| {_cell(title)} | - {_cell(words['skipped'].format(why=why))} | - | - | - | {_cell(cost)} |"


def _chosen(outcome: Outcome, words: Mapping[str, str], command: Sequence[str]) -> Iterator[str]:
    yield f"## {words['chosen']}"
    yield ""
    if not outcome.chosen:
        yield words["nothing" if outcome.chosen is None else "as-is"]
        yield ""
        return
    by_hand = variables(outcome)
    if by_hand:
        yield words["by-hand"]
        yield ""
        yield "```bash"
        yield from (in_shell(name, value) for name, value in by_hand.items())
        yield "```"
        yield ""
    yield words["by-run" if by_hand else "only-by-run"]
    yield ""
    yield "```bash"
    yield by_run(outcome, command)
    yield "```"
    yield ""
    last = next((t for t in reversed(outcome.dropping) if t.choice == outcome.chosen and t.outcome == "passed"), None)
    if last is not None and (last.transports or last.interfaces):
        yield f"{words['used']}:"
        yield ""
        if last.transports:
            yield f"- {words['transports'].format(what=', '.join(last.transports))}"
        if last.interfaces:
            yield f"- {words['interfaces'].format(what=', '.join(last.interfaces))}"
        yield ""


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


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _key(trial: Trial) -> tuple[tuple[str, object], ...]:
    return tuple(sorted(trial.choice.items()))
