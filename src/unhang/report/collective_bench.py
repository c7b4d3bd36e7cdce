"""Measured collectives as a table with bars, as JSON; and speeds against their baseline."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from unhang.bench.baseline import Baseline, named
from unhang.bench.collective_bench import Result, Row
from unhang.bench.comparison import Comparison
from unhang.bench.hardware import Limit
from unhang.facts.units import counted, size
from unhang.report import language
from unhang.report.bench import NOT_USEFUL, OUTCOMES, duration, interval, percent, table
from unhang.text import NOTHING, Text, same

_BAR_CELLS = 20
INTERRUPTED = Text("interrupted: the rest was not measured", "已中断：其余未测量")
_HEADS = (
    *(Text("operation", "操作"), Text("size", "大小"), Text("calls", "次数"), Text("mean", "平均"), same("p50"), same("p95"), same("p99")),
    *(Text("algorithm GB/s", "算法 GB/s"), Text("bus GB/s", "总线 GB/s"), Text("of the link", "占链路"), NOTHING),
)
_CHECK_HEADS = (
    *(Text("measured", "测量"), Text("baseline", "基线"), Text("now", "现在"), Text("time", "时间"), Text("interval", "区间")),
    Text("verdict", "结论"),
)


@dataclass(frozen=True, kw_only=True)
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
            console.print(says.of(self.lang), markup=False, soft_wrap=True)

    def says(self) -> Iterable[Text]:
        group, result = self.result.group, self.result
        if group is not None:
            n, m = len(group.hosts), len(set(group.hosts))
            library = f"NCCL {group.nccl}" if group.nccl else group.backend
            yield Text("{ranks} on {hosts}, {library}, torch {torch}, {device}", "{n} 个 rank，{m} 台主机，{library}，torch {torch}，{device}").fill(
                ranks=counted(n, "rank"), hosts=counted(m, "host"), n=n, m=m, library=library, torch=group.torch, device=group.device
            )
        if self.limit is not None:
            yield Text("the link: {what}, {gbps} GB/s", "链路：{what}，{gbps} GB/s").fill(what=self.limit.what, gbps=f"{self.limit.gbps:.4g}")
        if of_pairs := list({row.pair: row for row in result.rows if row.pair is not None and row.calls}.values()):
            low, high = (duration(of(row.mean_s for row in of_pairs)) for of in (min, max))
            says = Text("pairs: {size} in {low} to {high} (mean of each pair)", "成对：{size} 用时 {low} 到 {high}（每对的平均）")
            yield says.fill(size=size(of_pairs[0].size_bytes), low=low, high=high)
        for row in result.rows:
            if row.wrong or row.lacking:
                how = Text("wrong result: {why}", "结果错误：{why}") if row.wrong else Text("not in this backend: {why}", "该后端不支持：{why}")
                yield same(f"{named(row)}: ") + how.fill(why=row.wrong or row.lacking)
        if result.stopped == "failed":
            yield Text("the ranks failed: {why}; what they printed is in {log}", "rank 失败：{why}；输出保存在 {log}").fill(
                why=result.failure, log=result.log
            )
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
        heads = [Text("GB/s from \\ to", "GB/s 从 \\ 到").of(self.lang), *map(str, ranks)]
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
