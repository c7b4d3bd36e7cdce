"""Measured collectives as a table with bars, as JSON; and speeds against their baseline."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, field
from typing import Any

from rich.table import Table

from unhang.bench.baseline import Baseline, named
from unhang.bench.collective_bench import Limit, Result, Row
from unhang.bench.comparison import Comparison
from unhang.i18n import NOTHING, Text, msg, same
from unhang.model import frozen
from unhang.report import language
from unhang.report.bench import NOT_USEFUL, OUTCOMES, duration, interval, percent, table
from unhang.report.console import Console
from unhang.text import counted, size

_BAR_CELLS = 20
INTERRUPTED = msg("interrupted: the rest was not measured")
_HEADS = (
    *(msg("operation"), msg("size"), msg("calls"), msg("mean"), same("p50"), same("p95"), same("p99")),
    *(msg("algorithm GB/s"), msg("bus GB/s"), msg("of the link"), NOTHING),
)
_CHECK_HEADS = (
    *(msg("measured"), msg("baseline"), msg("now"), msg("time"), msg("interval")),
    msg("verdict"),
)


@frozen
class Report:
    """What was measured; `limit` is what the links should carry, where that is known."""

    result: Result
    limit: Limit | None
    lang: language.Language = field(default_factory=language.spoken)

    def print(self, console: Console) -> None:
        rows = self.result.rows
        if rows:
            plain = [row for row in rows if row.pair is None]
            console.print(table([head.of(self.lang) for head in _HEADS], [self._cells(row) for row in plain], left=(0, 10)))
            if pairs := {row.pair: row for row in rows if row.pair is not None}:
                console.print(self._matrix(pairs))
        for says in self.says():
            console.print(says.of(self.lang))

    def says(self) -> Iterable[Text]:
        group, result = self.result.group, self.result
        if group is not None:
            n, m = len(group.hosts), len(set(group.hosts))
            library = f"NCCL {group.nccl}" if group.nccl else group.backend
            yield msg(
                "{ranks} on {hosts}, {library}, torch {torch}, {device}",
                ranks=counted(n, "rank"),
                hosts=counted(m, "host"),
                n=n,
                m=m,
                library=library,
                torch=group.torch,
                device=group.device,
            )
        if self.limit is not None:
            yield msg("the link: {what}, {gbps} GB/s", what=self.limit.what, gbps=f"{self.limit.gbps:.4g}")
        if of_pairs := list({row.pair: row for row in result.rows if row.pair is not None and row.calls}.values()):
            low, high = (duration(of(row.mean_s for row in of_pairs)) for of in (min, max))
            yield msg("pairs: {size} in {low} to {high} (mean of each pair)", size=size(of_pairs[0].size_bytes), low=low, high=high)
        for row in result.rows:
            if row.wrong or row.lacking:
                how = msg("wrong result: {why}") if row.wrong else msg("not in this backend: {why}")
                yield same(f"{named(row)}: ") + how.fill(why=row.wrong or row.lacking)
        if result.stopped == "failed":
            yield msg("the ranks failed: {why}; what they printed is in {log}", why=result.failure, log=result.log)
        if result.stopped == "interrupted":
            yield INTERRUPTED

    def _ratio(self, row: Row) -> float | None:
        of_links = row.op not in ("memory", "gpu memory", "host to gpu")
        return row.busbw_gbps / self.limit.gbps if self.limit is not None and row.busbw_gbps is not None and of_links else None

    def _cells(self, row: Row) -> list[str]:
        ratio = self._ratio(row)
        speeds = ["" if value is None else f"{value:.3g}" for value in (row.algbw_gbps, row.busbw_gbps)]
        bar = "█" * round(_BAR_CELLS * min(ratio or 0.0, 1.0))
        times = [duration(value) for value in (row.mean_s, row.p50_s, row.p95_s, row.p99_s)] if row.calls else [""] * 4
        return [
            row.op,
            size(row.size_bytes),
            str(row.calls or ""),
            *times,
            *speeds,
            "" if ratio is None else f"{ratio * 100:.1f} %",
            "wrong" if row.wrong else bar,
        ]

    def _matrix(self, pairs: dict[tuple[int, int], Row]) -> Table:
        """Bus bandwidths in GB/s, from the rank of a line to that of a column."""
        ranks = sorted({rank for pair in pairs for rank in pair})
        heads = [msg("GB/s from \\ to").of(self.lang), *map(str, ranks)]
        cells = [[f"{row.busbw_gbps or 0:.3g}" if (row := pairs.get((a, b))) else "-" for b in ranks] for a in ranks]
        return table(heads, [[str(rank), *line] for rank, line in zip(ranks, cells, strict=True)], left=(0,))

    def json(self) -> dict[str, Any]:
        rows = [{**asdict(row), "of_link": self._ratio(row)} for row in self.result.rows]
        return {"schema": "unhang/bench-comm/1", **asdict(self.result), "rows": rows, "link": self.limit and asdict(self.limit)}


def check_table(baseline: Baseline, measured: dict[str, list[float]], found: Sequence[Comparison], margin: float) -> Table:
    lang = language.spoken()
    lines = []
    for one in found:
        # Of the rounds that were compared: their ratio is the mean of the ratios, which the verdict is on.
        times = (duration(statistics.geometric_mean(seconds[one.arm][: one.rounds])) for seconds in (baseline.seconds, measured))
        verdict = OUTCOMES[one.outcome].fill(margin=f"{margin * 100:g} %").of(lang)
        lines.append([one.arm, *times, percent(one.change), interval(one.low, one.high) if one.is_useful else NOT_USEFUL.of(lang), verdict])
    return table([head.of(lang) for head in _CHECK_HEADS], lines, left=(0, 5))
