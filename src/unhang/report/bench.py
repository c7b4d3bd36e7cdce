"""A comparison of arms: its progress on a terminal, and its result as a table and sentences, JSON, CSV and Markdown."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.live import Live
from rich.table import Table

from unhang.bench.arms import Arm, Rules
from unhang.bench.comparison import CONFIDENCE, Comparison, Outcome
from unhang.bench.explanation import explain
from unhang.bench.in_force import OBSERVED, Difference
from unhang.bench.measures import summarize
from unhang.bench.race import Look, looks
from unhang.bench.runner import Progress, Result, Running
from unhang.knowledge.text import COMMA, NOTHING, Text, joined, same
from unhang.report import bench_metrics, bench_plot, language, screen
from unhang.report.bench_plot import Row
from unhang.report.folding import fold

RESULT_SCHEMA = "unhang/bench-result/1"

OUTCOMES: dict[Outcome, Text] = {
    "faster": Text("faster", "更快"),
    "slower": Text("slower", "更慢"),
    "same": Text("same within {margin}", "在 {margin} 以内相同"),
    "undecided": Text("cannot tell yet", "尚无法判断"),
}
_SENTENCES: dict[Outcome, Text] = {
    "faster": Text(
        "{arm} is faster than {baseline}: {change} less time per {unit}, between {low} and {high}",
        "{arm} 比 {baseline} 快：每{unit}的时间少 {change}，在 {low} 到 {high} 之间",
    ),
    "slower": Text(
        "{arm} is slower than {baseline}: {change} more time per {unit}, between {low} and {high}",
        "{arm} 比 {baseline} 慢：每{unit}的时间多 {change}，在 {low} 到 {high} 之间",
    ),
    "same": Text(
        "{arm} is as fast as {baseline} within {margin}: the time per {unit} differs by {low} to {high}",
        "{arm} 与 {baseline} 在 {margin} 以内同样快：每{unit}的时间相差 {low} 到 {high}",
    ),
    "undecided": Text(
        "cannot tell yet whether {arm} and {baseline} differ by more than {margin}: the time per {unit} differs by {low} to {high}",
        "尚无法判断 {arm} 与 {baseline} 每{unit}的时间是否相差超过 {margin}：差别在 {low} 到 {high} 之间",
    ),
}
CERTAINTY = Text(" ({confidence} confidence, {n} rounds)", "（置信度 {confidence}，{n} 轮）")
_UNBOUNDED = Text("cannot tell yet how {arm} compares with {baseline}: {n} rounds are too few", "尚无法比较 {arm} 与 {baseline}：{n} 轮太少")
_WITHOUT_EFFECT = Text(
    "note: {name} is the same in {arm} and {baseline}, though it was asked for",
    "注意：{arm} 与 {baseline} 的 {name} 相同，尽管要求不同",
)
_EQUAL = Text(
    "left out, since they change nothing here: {arms} run with what {baseline} runs with",
    "已略去，因为在此不改变任何东西：{arms} 与 {baseline} 运行时完全相同",
)
_PLOT = Text("{arm} against {baseline} by round: * the round, = interval, : margin", "{arm} 与 {baseline} 的逐轮差别：* 该轮，= 区间，: 界限")
_LAST = Text(" (last {n} of {of})", "（共 {of} 轮，此为最后 {n} 轮）")
_PLOTTED = 12
_UNSTEADY = Text(
    "note: no steady rhythm within the first half of {runs}; more steps (--steps) make the numbers safer",
    "注意：{runs} 的前一半步数内节奏没有稳定；增加步数（--steps）可使数字更可靠",
)
_DROPPED = Text("warm-up dropped: {steps} steps of each run; records in {path}", "每次运行去掉预热的 {steps} 步；记录在 {path}")
_ROUND = Text("round {round}: {measured}{so_far}", "第 {round} 轮：{measured}{so_far}")
_LEFT = Text("not measured any more: {arms}", "不再测量：{arms}")
_RUNNING = Text(
    "round {round}, run {position} of {of}: {arm} ({asked}), step {step} of {steps}",
    "第 {round} 轮，第 {position} 次，共 {of} 次：{arm}（{asked}），第 {step} 步，共 {steps} 步",
)
_STOPPED = {
    "budget": Text("the budget of {budget} s is spent; {again} goes on", "{budget} 秒的预算已用完；可用 {again} 继续"),
    "interrupted": Text("interrupted; {again} goes on", "已中断；可用 {again} 继续"),
    "failed": Text("the training failed: unhang why {failed}; {again} goes on", "训练失败：unhang why {failed}；可用 {again} 继续"),
    "decided": NOTHING,
}
HEADS = {
    "arm": Text("arm", "组"),
    "asked": Text("setting", "设置"),
    "runs": Text("runs", "次数"),
    "step": Text("step", "每步"),
    "p95": Text("p95", "p95"),
    "rate": Text("steps/s", "步/秒"),
    "samples": Text("samples/s per rank", "样本/秒/rank"),
    "change": Text("time per {unit}", "每{unit}时间"),
    "interval": Text("{confidence} interval", "{confidence} 区间"),
    "outcome": Text("verdict", "结论"),
}
_STEP, _SAMPLE = Text("step", "步"), Text("sample", "样本")


@dataclass(frozen=True, kw_only=True)
class Report:
    """A result with what it was asked for. `again` is the command that goes on."""

    arms: Sequence[Arm]
    rules: Rules
    run_dir: Path
    again: str
    result: Result
    lang: language.Language = field(default_factory=language.spoken)

    def print(self, console: Console) -> None:
        """The table, the sentence of each verdict, and what should be known about it."""
        if self.result.runs:
            console.print(self._table())
            for line in self._plots(screen.width(console)):
                console.print(line, markup=False, soft_wrap=True)
            console.print()
            if not self.rules.is_race:
                console.print(self._as_table(self.metric_rows(), left=1))
                console.print()
        for says in (*self.verdicts(), *self.explanation(), *self.notes()):
            for line in fold(says.of(self.lang), screen.width(console)):
                console.print(line, markup=False, soft_wrap=True)

    def looks(self) -> Mapping[str, tuple[Look, ...]]:
        """Of each arm that was compared, what each of its rounds showed."""
        compared = {one.arm for one in self.result.comparisons}
        return {arm: found for arm, found in looks(self.arms, self.result.runs, self.rules).items() if arm in compared}

    def _plots(self, width: int) -> Iterator[str]:
        for arm, found in self.looks().items():
            title = _PLOT.fill(arm=arm, baseline=self.arms[0].name)
            shown = found[-_PLOTTED:]
            if len(shown) < len(found):
                title += _LAST.fill(n=len(shown), of=len(found))
            rows = [Row(label=str(n), change=look.change) for n, look in enumerate(shown, len(found) - len(shown) + 1)]
            after = found[-1].after
            yield title.of(self.lang)
            yield from bench_plot.lines(
                [*rows, Row(label="all", change=after.change, low=after.low, high=after.high)], self.rules.margin, width=width
            )

    def verdicts(self) -> Iterator[Text]:
        """The sentence of each arm, or of all together."""
        for one in self.result.comparisons:
            yield _sentence(one, self.arms, self.rules)

    def explanation(self) -> Iterator[Text]:
        """Why, as far as it was measured."""
        yield from explain(self.arms, self.result.runs, self.result.comparisons)

    def metric_rows(self) -> list[list[Text]]:
        """All numbers of the arms side by side; the first row has the heads."""
        on_gpus = any("cuda" in run.in_force.get("device", "") for run in self.result.runs)
        ran = [arm for arm in self.arms if self.numbers(arm)["runs"]]
        return bench_metrics.rows(ran, [self.numbers(arm) for arm in ran], on_gpus=on_gpus)

    def notes(self) -> Iterator[Text]:
        """What the arms differed in, what else is worth knowing, and how to go on."""
        proof = self.result.proof
        for arm in self.arms[1:] if proof is not None else ():
            found = [d for d in proof.differences if d.arm == arm.name]  # type: ignore[union-attr]
            if not found:
                continue
            yield Text("{arm} differs from {baseline} in {what}", "{arm} 与 {baseline} 的差别：{what}").fill(
                arm=arm.name, baseline=self.arms[0].name, what=joined(map(_difference, found), COMMA)
            )
            if more := [d.name for d in found if not (d.is_asked or d.name in OBSERVED)]:
                yield Text("note: nobody asked for a difference in {names}", "注意：没有要求 {names} 有差别").fill(names=", ".join(more))
        if equal := [f"{arm.name} ({arm.asked})" for arm in self.arms if self.result.out.get(arm.name) == "equal"]:
            yield _EQUAL.fill(arms=", ".join(equal), baseline=self.arms[0].name)
        for arm_name, name in proof.without_effect if proof is not None else ():
            yield _WITHOUT_EFFECT.fill(name=name, arm=arm_name, baseline=self.arms[0].name)
        if unsteady := [run.run_dir for run in self.result.runs if not run.steps.is_steady]:
            yield _UNSTEADY.fill(runs=", ".join(unsteady))
        if self.result.runs:
            low, *_, high = sorted(run.steps.dropped for run in self.result.runs)
            steps = same(str(low)) if low == high else Text("{low} to {high}", "{low} 到 {high}").fill(low=low, high=high)
            yield _DROPPED.fill(steps=steps, path=str(self.run_dir))
        if says := _STOPPED[self.result.stopped]:
            yield says.fill(budget=f"{self.rules.budget_s:g}", again=self.again, failed=self.result.failed or "")

    def rows(self) -> Iterator[list[Text]]:
        """The heads of the table, and a row for each arm."""
        rate = HEADS["samples" if self.rules.is_per_sample else "rate"]
        unit = _SAMPLE if self.rules.is_per_sample else _STEP
        yield [
            *(HEADS[name] for name in ("arm", "asked", "runs", "step", "p95")),
            rate,
            HEADS["change"].fill(unit=unit),
            HEADS["interval"].fill(confidence=f"{CONFIDENCE * 100:g} %"),
            HEADS["outcome"],
        ]
        compared = {one.arm: one for one in self.result.comparisons}
        for arm in self.arms:
            numbers = self.numbers(arm)
            if not numbers["runs"]:
                continue
            one = compared.get(arm.name)
            texts = [
                arm.name,
                arm.asked,
                str(numbers["runs"]),
                duration(numbers["step_s"]),
                duration(numbers["p95_s"]),
                f"{numbers['samples_per_s' if self.rules.is_per_sample else 'steps_per_s']:.4g}",
                "" if one is None else percent(one.change),
                "" if one is None or one.low is None else f"{percent(one.low)} .. {percent(one.high)}",
            ]
            yield [*map(same, texts), NOTHING if one is None else OUTCOMES[one.outcome].fill(margin=margin_of(self.rules))]

    def numbers(self, arm: Arm) -> dict[str, Any]:
        """Medians over the runs of an arm."""
        runs = [run for run in self.result.runs if run.arm == arm.name]
        steps = [run.steps for run in runs]
        if not steps:
            return {"runs": 0}
        typical = statistics.median(s.typical_s for s in steps)
        numbers = {
            "runs": len(steps),
            "step_s": typical,
            "mean_s": statistics.median(s.mean_s for s in steps),
            "median_s": statistics.median(s.median_s for s in steps),
            "p95_s": statistics.median(s.p95_s for s in steps),
            "steps_per_s": 1 / typical,
            "samples_per_s": None if arm.samples is None else arm.samples / typical,
        }
        return numbers | bench_metrics.metrics(arm, runs, numbers)

    def _table(self) -> Table:
        return self._as_table(self.rows(), left=2, right=6)

    def _as_table(self, found: Iterable[Sequence[Text]], *, left: int, right: int = 99) -> Table:
        heads, *rows = ([text.of(self.lang) for text in row] for row in found)
        table = Table(box=None, pad_edge=False, header_style="bold")
        for i, head in enumerate(heads):
            table.add_column(head, justify="right" if left <= i <= right else "left", overflow="fold")
        for row in rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        """The table and the sentences."""
        if not self.result.runs:
            return "".join(f"{says.of(self.lang)}\n" for says in self.notes())
        says = [f"{text.of(self.lang)}\n" for text in (*self.verdicts(), *self.explanation(), *self.notes())]
        return "\n".join((self._as_markdown(self.rows()), self._as_markdown(self.metric_rows()), *says))

    def _as_markdown(self, found: Iterable[Sequence[Text]]) -> str:
        heads, *rows = ([text.of(self.lang).replace("|", "\\|") for text in row] for row in found)
        return "".join(f"| {' | '.join(line)} |\n" for line in (heads, ["---"] * len(heads), *rows))

    def csv(self) -> str:
        """One line for each run."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        times = ("typical_s", "mean_s", "median_s", "p95_s", "elapsed_s")
        writer.writerow(("round", "arm", "setting", "steps", "dropped", "steady", *times, "run_dir", *summarize(())))
        asked = {arm.name: arm.asked for arm in self.arms}
        for run in sorted(self.result.runs, key=lambda run: (run.round, run.arm)):
            s = run.steps
            measured = (f"{value:.9g}" for value in (s.typical_s, s.mean_s, s.median_s, s.p95_s, run.elapsed_s))
            more = ("" if value is None else f"{value:.9g}" for value in summarize([run]).values())
            writer.writerow((run.round, run.arm, asked[run.arm], len(s.times_s), s.dropped, s.is_steady, *measured, run.run_dir, *more))
        return out.getvalue()

    def json(self) -> dict[str, Any]:
        result = self.result
        return {
            "schema": RESULT_SCHEMA,
            "stopped": result.stopped,
            "exitcode": result.exitcode,
            "elapsed_s": result.elapsed_s,
            "rounds": max((run.round for run in result.runs), default=0),
            "seed": self.rules.seed,
            "margin": self.rules.margin,
            "confidence": CONFIDENCE,
            "unit": "sample" if self.rules.is_per_sample else "step",
            "arms": [{"name": arm.name, "setting": arm.asked, **self.numbers(arm), "environment": dict(arm.settings)} for arm in self.arms],
            "comparisons": msgspec.to_builtins(result.comparisons),
            "says": [says.en for says in self.verdicts()],
            "explains": [says.en for says in self.explanation()],
            "in_force": {run.arm: dict(run.in_force) for run in result.runs if run.round == 1},
            "differences": None if result.proof is None else msgspec.to_builtins(result.proof.differences),
            "without_effect": None if result.proof is None else [list(one) for one in result.proof.without_effect],
            "notes": [says.en for says in self.notes()],
            "run_dir": str(self.run_dir),
            "failed": result.failed,
            "verdict": msgspec.to_builtins(result.verdict),
        }


class ProgressLine:
    """What happens, on standard error: a line for each round, and on a terminal a live one below for the run."""

    def __init__(self, arms: Sequence[Arm], rules: Rules, console: Console) -> None:
        self._arms = arms
        self._rules = rules
        self._console = console
        self._lang = language.spoken()
        self._live = Live(console=console, transient=True, refresh_per_second=4) if console.is_terminal and not screen.is_plain() else None

    def __enter__(self) -> ProgressLine:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def tell(self, event: Progress) -> None:
        if isinstance(event, Running):
            if self._live is not None:
                asked = next(arm.asked for arm in self._arms if arm.name == event.arm)
                says = _RUNNING.fill(**vars(event), asked=asked, steps=self._rules.steps)
                self._live.update(says.of(self._lang))
            return
        for one in event.proof.differences if event.proof is not None else ():
            self._say(Text("{arm} differs: {what}", "{arm} 的差别：{what}").fill(arm=one.arm, what=_difference(one)))
        measured = ", ".join(f"{run.arm} {duration(run.steps.typical_s)} (-{run.steps.dropped})" for run in event.runs)
        # Of an arm that is out nothing new is known.
        so_far = joined((_so_far(one) for one in event.comparisons if any(run.arm == one.arm for run in event.runs)), NOTHING)
        self._say(_ROUND.fill(round=event.round, measured=measured, so_far=so_far))
        if event.racing and (left := [run.arm for run in event.runs if run.arm not in event.racing]):
            self._say(_LEFT.fill(arms=", ".join(left)))

    def _say(self, says: Text) -> None:
        self._console.print(f"unhang: {says.of(self._lang)}", markup=False, soft_wrap=True)


def _so_far(one: Comparison) -> Text:
    if one.low is None:
        return Text("; {arm} {change}", "；{arm} {change}").fill(arm=one.arm, change=percent(one.change))
    return Text("; {arm} {change}, {low} to {high}", "；{arm} {change}，{low} 到 {high}").fill(
        arm=one.arm, change=percent(one.change), low=percent(one.low), high=percent(one.high)
    )


def _sentence(one: Comparison, arms: Sequence[Arm], rules: Rules) -> Text:
    names = {arm.name: f"{arm.name} ({arm.asked})" for arm in arms}
    if one.low is None:
        return _UNBOUNDED.fill(arm=names[one.arm], baseline=names[one.baseline], n=one.rounds)
    low, high = percent(one.low), percent(one.high)
    if one.outcome in ("faster", "slower"):
        low, high = (f"{value * 100:.1f} %" for value in sorted((abs(one.low), abs(one.high or one.low))))
    says = _SENTENCES[one.outcome].fill(
        arm=names[one.arm],
        baseline=names[one.baseline],
        change=f"{abs(one.change) * 100:.1f} %",
        low=low,
        high=high,
        margin=margin_of(rules),
        unit=_SAMPLE if rules.is_per_sample else _STEP,
    )
    return says + CERTAINTY.fill(confidence=f"{CONFIDENCE * 100:g} %", n=one.rounds)


def _difference(one: Difference) -> Text:
    a, b = (Text("not set", "未设置") if value is None else same(value) for value in one.values)
    return Text("{name} ({a}; in {arm} {b})", "{name}（{a}；{arm} 中为 {b}）").fill(name=one.name, a=a, b=b, arm=one.arm)


def margin_of(rules: Rules) -> str:
    return f"{rules.margin * 100:.3g} %"


def percent(change: float | None) -> str:
    return "?" if change is None else f"{change * 100:+.1f} %"


def duration(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{value * 1000:.3g} ms" if value >= 0.001 else f"{value * 1e6:.3g} µs"
