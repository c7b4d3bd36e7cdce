"""A comparison of arms: its progress on a terminal, and its result as a table and sentences, JSON and Markdown."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.status import Status
from rich.table import Table

from unhang import encoding
from unhang.bench.arms import Arm, Rules
from unhang.bench.comparison import CONFIDENCE, LEAST_DECIDING, Comparison
from unhang.bench.effective_settings import OBSERVED, WORLD_SIZE, Difference, find_changes
from unhang.bench.elimination import RaceState
from unhang.bench.explain import explain, summarize
from unhang.bench.records import last_words
from unhang.bench.runner import Progress, Result, RunProgress
from unhang.i18n import texts
from unhang.knowledge.words import COMMA, NOTHING, Text, joined, msg, same
from unhang.model import frozen
from unhang.printable import strip_unprintable
from unhang.report import bench_metrics, language, screen
from unhang.report.console import Console, fold
from unhang.text import counted

OUTCOMES = texts("bench-outcomes")
_SENTENCES = texts("bench-sentences")
SAID = msg("; it said: {said}")
BETWEEN = msg("between {low} and {high}")
AT_LEAST = msg("at least {low}")
CERTAINTY = msg(" ({confidence} confidence, {rounds})")
NOT_USEFUL = msg("no useful interval yet")
_STOPPED = texts("bench-stopped")
HEADS = texts("bench-heads", "bench")
_STEP, _SAMPLE = msg("step", "bench-2"), msg("sample")


@frozen
class Report:
    """A result with what it was asked for. `again` is the command that goes on."""

    arms: Sequence[Arm]
    rules: Rules
    run_dir: Path
    again: str
    result: Result
    lang: language.Language = field(default_factory=language.spoken)

    @property
    def state(self) -> RaceState:
        return self.result.state

    def print(self, console: Console) -> None:
        """The table, the sentence of each verdict, and what should be known about it."""
        console.print(table(*in_language(self.rows(), self.lang), left=(0, 1, 7, 8)))
        if compared := sorted((one for one in self.state.comparisons if one.is_useful), key=lambda one: one.change):
            console.print(msg("time against {baseline}: * mean, = interval, : margin", baseline=self.arms[0].name).of(self.lang))
            console.print_all(bench_metrics.lines(compared, self.rules.margin, width=screen.width(console)))
        console.print()
        if self.state.runs and not self.rules.is_race:
            console.print(table(*in_language(self.metric_rows(), self.lang), left=(0,)))
            console.print()
        for says in (*self.verdicts(), *self.explanation(), *self.differences(), *self.notes()):
            console.print_all(fold(says.of(self.lang), screen.width(console)))

    def verdicts(self) -> Iterator[Text]:
        """The sentence of each arm, or of all together."""
        for one in self.state.comparisons:
            yield _sentence(one, self.arms, self.rules)

    def explanation(self) -> Iterator[Text]:
        """Why, as far as it was measured."""
        yield from explain(self.arms, self.state.runs, self.state.comparisons)

    def metric_rows(self) -> list[list[Text]]:
        """All numbers of the arms side by side; the first row has the heads."""
        on_gpus = any("cuda" in run.in_force.get("device", "") for run in self.state.runs)
        ran = [arm for arm in self.arms if self.numbers(arm)["runs"]]
        return bench_metrics.rows(ran, [self.numbers(arm) for arm in ran], on_gpus=on_gpus)

    def differences(self) -> Iterator[Text]:
        """What each arm differed in from the first."""
        found = self.state.proof.differences if self.state.proof is not None else ()
        for name, of_arm in itertools.groupby(found, key=lambda one: one.arm):
            yield msg("{arm} differs from {baseline} in {what}", arm=name, baseline=self.arms[0].name, what=joined(map(_difference, of_arm), COMMA))

    def notes(self) -> Iterator[Text]:
        """What else is worth knowing, and how to go on."""
        proof, first = self.state.proof, self.arms[0].name
        if self.rules.is_per_sample:
            yield msg(
                "compared per sample, of which a rank has in a step: {samples}", samples=", ".join(f"{arm.name} {arm.samples}" for arm in self.arms)
            )
        found = proof.differences if proof is not None else ()
        if more := sorted({one.name for one in found if not (one.is_asked or one.name in OBSERVED)}):
            yield msg("note: the arms also differ in {names}, which was not requested", names=", ".join(more))
        if equal := [f"{arm.name} ({arm.asked})" for arm in self.arms if self.state.out.get(arm.name) == "equal"]:
            yield msg("left out, since they change nothing here: {arms} run with what {baseline} runs with", arms=", ".join(equal), baseline=first)
        for arm_name, name in proof.without_effect if proof is not None else ():
            yield msg("note: {name} was requested for {arm} but is the same in both arms", name=name, arm=arm_name)
        for arm in self.arms:
            if changed := find_changes([run for run in self.state.runs if run.arm == arm.name]):
                yield msg("note: {names} changed between the runs of {arm}", arm=arm.name, names=", ".join(changed))
        if unsteady := [run.run_dir for run in self.state.runs if not run.steps.is_steady]:
            yield msg("note: no steady rhythm within the first half of {runs}; more steps (--steps) make the numbers safer", runs=", ".join(unsteady))
        if short := sorted({run.arm for run in self.state.runs if len(run.steps.times_s) + 1 < self.rules.steps}):
            yield msg("note: runs of {arms} ended by themselves before step {steps} (--steps)", arms=", ".join(short), steps=self.rules.steps)
        if self.state.runs:
            dropped = [run.steps.dropped for run in self.state.runs]
            low, high = min(dropped), max(dropped)
            steps = same(str(low)) if low == high else msg("{low} to {high}", low=low, high=high)
            yield msg("warm-up steps dropped from each run: {steps}; records in {path}", steps=steps, path=str(self.run_dir))
        if says := _STOPPED.get(self.result.stopped, NOTHING):
            primary = self.result.verdict.primary if self.result.verdict is not None else None
            why = NOTHING if primary is None else msg(": {says}", says=primary.says)
            arm_name = next((f"{arm.name} ({arm.asked})" for arm in self.arms if arm.name == self.result.failed_arm), "")
            said = SAID.fill(said=line) if (line := last_words(self.result.verdict)) else NOTHING
            yield says.fill(budget=f"{self.rules.budget_s:g}", again=self.again, failed=self.result.failed or "", arm=arm_name, why=why, said=said)
        if self.result.stopped == "budget" and self.state.rounds < LEAST_DECIDING:
            spent_s = sum(run.elapsed_s for run in self.state.runs) / (self.state.rounds or 1)
            yield msg(
                "{least} rounds are the least that can decide, and {rest}",
                least=LEAST_DECIDING,
                rest=msg("a round takes about {seconds} s", seconds=f"{spent_s:.0f}") if self.state.rounds else msg("not even one was over by then"),
            )

    def rows(self) -> Iterator[list[Text]]:
        """The heads of the table, and a row for each arm, whatever is known of it."""
        rate, unit = ("samples", _SAMPLE) if self.rules.is_per_sample else ("rate", _STEP)
        heads = [HEADS[name] for name in ("arm", "asked", "runs", "step", "p95", rate, self._change, "interval", "outcome")]
        yield [head.fill(unit=unit, confidence=f"{CONFIDENCE * 100:g} %") for head in heads]
        compared = {one.arm: one for one in self.state.comparisons}
        for arm in self._order():
            numbers, one = self.numbers(arm), compared.get(arm.name)
            speed = numbers.get("samples_per_s" if self.rules.is_per_sample else "steps_per_s")
            times = [duration(numbers[name]) if name in numbers else "" for name in ("step_s", "p95_s")]
            change, low, high = (None, None, None) if one is None else self._changes(one)
            cells = (arm.name, arm.asked, str(numbers["runs"]), *times, "" if speed is None else f"{speed:.4g}")
            of_one = same(interval(low, high)) if one is None or one.is_useful else NOT_USEFUL
            yield [*map(same, (*cells, "" if change is None else percent(change))), of_one, self._outcome(arm.name, one)]

    _change = "change"

    def _order(self) -> Iterable[Arm]:
        return self.arms

    def _changes(self, one: Comparison) -> tuple[float, float | None, float | None]:
        return one.change, one.low, one.high

    def _outcome(self, name: str, one: Comparison | None) -> Text:
        return NOTHING if name == self.arms[0].name else OUTCOMES["undecided" if one is None else one.outcome].fill(margin=margin_of(self.rules))

    def numbers(self, arm: Arm) -> dict[str, Any]:
        """Of an arm, over its runs: means of what adds up, medians of the rest."""
        runs = [run for run in self.state.runs if run.arm == arm.name]
        steps = [run.steps for run in runs]
        if not steps:
            return {"runs": 0}
        # The ratio of two of these is the mean of the ratios.
        typical = statistics.geometric_mean(s.typical_s for s in steps)
        world = runs[0].in_force.get(WORLD_SIZE, "")
        each = None if arm.samples is None else arm.samples / typical
        return {
            "runs": len(steps),
            "step_s": typical,
            "mean_s": statistics.fmean(s.mean_s for s in steps),
            **{name: statistics.median(getattr(s, name) for s in steps) for name in ("median_s", "p95_s")},
            "steps_per_s": 1 / typical,
            "samples_per_s": each,
            "samples_per_s_total": each * int(world) if each is not None and world.isdecimal() else None,
            **summarize(runs),
        }

    def markdown(self) -> str:
        """The table and the sentences."""
        tables = (self.rows(), *([self.metric_rows()] if self.state.runs else ()))
        says = [f"{text.of(self.lang)}\n" for text in (*self.verdicts(), *self.explanation(), *self.differences(), *self.notes())]
        return strip_unprintable("\n".join((*(_markdown(*in_language(rows, self.lang)) for rows in tables), *says)))

    def json(self) -> dict[str, Any]:
        result, proof = self.result, self.state.proof
        return {
            "schema": "unhang/bench-result/1",
            "stopped": result.stopped,
            "exitcode": result.exitcode,
            "elapsed_s": result.elapsed_s,
            "rounds": self.state.rounds,
            "seed": self.rules.seed,
            "margin": self.rules.margin,
            "confidence": CONFIDENCE,
            "unit": "sample" if self.rules.is_per_sample else "step",
            "arms": [{"name": arm.name, "setting": arm.asked, **self.numbers(arm), "environment": dict(arm.settings)} for arm in self.arms],
            "comparisons": encoding.plain(self.state.comparisons),
            "says": list(self.verdicts()),
            "explains": list(self.explanation()),
            "in_force": {run.arm: dict(run.in_force) for run in self.state.runs if run.round == 1},
            "differences": None if proof is None else encoding.plain(proof.differences),
            "without_effect": None if proof is None else [list(one) for one in proof.without_effect],
            "notes": list(self.notes()),
            "run_dir": str(self.run_dir),
            "failed": result.failed,
            "failed_arm": result.failed_arm,
            "verdict": encoding.plain(result.verdict),
        }


class ProgressLine:
    """What happens, on standard error: a line for each round, and on a terminal a live one below for the run."""

    def __init__(self, arms: Sequence[Arm], rules: Rules, status: Status) -> None:
        self._arms = arms
        self._rules = rules
        self._status = status
        self._lang = language.spoken()
        self._is_proven = False

    def show(self, event: Progress) -> None:
        if isinstance(event, RunProgress):
            asked = next(arm.asked for arm in self._arms if arm.name == event.arm)
            self._status.update(
                escape(
                    msg(
                        "round {round}, run {position} of {of}: {arm} ({asked}), step {step} of {steps}",
                        **vars(event),
                        asked=asked,
                        steps=self._rules.steps,
                    ).of(self._lang)
                )
            )
            return
        for one in event.proof.differences if event.proof is not None and not self._is_proven else ():
            self._say(msg("{arm} differs: {what}", arm=one.arm, what=_difference(one)))
        self._is_proven = True
        runs = {run.arm: run for run in sorted(event.runs, key=lambda run: run.arm) if run.round == event.rounds}
        measured = ", ".join(f"{arm} {duration(run.steps.typical_s)} (-{run.steps.dropped})" for arm, run in runs.items())
        # Of an arm that is out nothing new is known.
        so_far = joined((_so_far(one) for one in event.comparisons if one.arm in runs), NOTHING)
        self._say(msg("round {round}: {measured}{so_far}", round=event.rounds, measured=measured, so_far=so_far))
        if left := [arm for arm in runs if arm not in event.racing]:
            self._say(msg("not measured any more: {arms}", arms=", ".join(left)))

    def _say(self, says: Text) -> None:
        self._status.console.print(f"unhang: {says.of(self._lang)}")


def _so_far(one: Comparison) -> Text:
    between = interval(one.low, one.high) if one.is_useful else ""
    return msg("; {arm} {change}", arm=one.arm, change=percent(one.change) + (f", {between}" if between else ""))


def _sentence(one: Comparison, arms: Sequence[Arm], rules: Rules) -> Text:
    names = {arm.name: f"{arm.name} ({arm.asked})" for arm in arms}
    if not one.is_useful:
        return NOT_USEFUL + msg(
            ": cannot tell how {arm} compares with {baseline} after {rounds}",
            arm=names[one.arm],
            baseline=names[one.baseline],
            n=one.rounds,
            rounds=counted(one.rounds, "round"),
        )
    ends = [f"{value * 100:.1f} %" for value in sorted(abs(end) for end in (one.low, one.high) if end is not None)]
    says = _SENTENCES[one.outcome].fill(
        arm=names[one.arm],
        baseline=names[one.baseline],
        change=f"{abs(one.change) * 100:.1f} %",
        between=BETWEEN.fill(low=ends[0], high=ends[1]) if len(ends) == 2 else AT_LEAST.fill(low=ends[0]),
        low=percent(one.low),
        high=percent(one.high),
        margin=margin_of(rules),
        unit=_SAMPLE if rules.is_per_sample else _STEP,
    )
    return says + CERTAINTY.fill(confidence=f"{CONFIDENCE * 100:g} %", n=one.rounds, rounds=counted(one.rounds, "round"))


def _difference(one: Difference) -> Text:
    a, b = (msg("not set") if value is None else same(value) for value in one.values)
    return msg("{name} ({a}; in {arm} {b})", name=one.name, a=a, b=b, arm=one.arm)


def margin_of(rules: Rules) -> str:
    return f"{rules.margin * 100:.3g} %"


def percent(change: float | None) -> str:
    return "?" if change is None else f"{change * 100:+.1f} %"


def interval(low: float | None, high: float | None) -> str:
    return "" if low is None and high is None else f"{percent(low)} .. {percent(high)}"


def in_language(rows: Iterable[Sequence[Text]], lang: str) -> tuple[list[str], list[list[str]]]:
    """The heads, which are the first row, and the others."""
    heads, *others = ([text.of(lang) for text in row] for row in rows)
    return heads, others


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, left: Collection[int]) -> Table:
    """For a terminal; the columns of `left` are aligned to the left."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for i, head in enumerate(heads):
        made.add_column(head, justify="left" if i in left else "right", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in (heads, ["---"] * len(heads), *rows))


def duration(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{value * 1000:.3g} ms" if value >= 0.001 else f"{value * 1e6:.3g} µs"
