"""The ranking of `unhang bench priorities`: what each setting gains, with its interval, and what could not be compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from unhang.bench.comparison import CONFIDENCE, Comparison
from unhang.bench.explanation import explain
from unhang.report import bench_plot
from unhang.report.bench import CERTAINTY, HEADS, OUTCOMES, Report, duration, margin_of, percent
from unhang.report.bench_plot import Row
from unhang.text import NOTHING, Text, same

_PLACE = Text("place", "名次")
_ROUNDS = Text("rounds", "轮数")
_GAIN = Text("throughput", "吞吐")
_BEATEN = {
    "faster": Text("faster, another one is faster still", "更快，但另有更快的"),
    "undecided": Text("cannot win by more than {margin}", "不可能胜出超过 {margin}"),
}
_EQUAL = Text("changes nothing here", "在此不改变任何东西")
_FAILED = Text("its training fails: unhang why {path}", "它的训练失败：unhang why {path}")
_BEST = Text("{arm} gains most: {gain} throughput, between {low} and {high}", "{arm} 收益最大：吞吐 {gain}，在 {low} 到 {high} 之间")
_NONE = Text(
    "nothing that was compared is faster than the script as it is by more than {margin}",
    "所比较的设置中，没有一个比脚本原样快 {margin} 以上",
)
_OPEN = Text("cannot tell yet which is the fastest: {arms}", "尚无法判断哪个最快：{arms}")
_TOGETHER = Text(
    "note: each setting was compared by itself; what several gain together is not measured", "注意：各设置是单独比较的；多个一起用的收益没有测量"
)
_PLOT = Text("time against the script as it is: * mean, = interval, : margin", "与脚本原样相比的时间：* 平均，= 区间，: 界限")
_LEFT_OUT = Text("not compared: {why}", "未比较：{why}")


@dataclass(frozen=True, kw_only=True)
class Ranking(Report):
    """`left_out` says of each ready-made comparison that was not made why, in English and Chinese."""

    left_out: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def _places(self) -> dict[str, int]:
        """Of what was compared, the script as it is included."""
        changes = {self.arms[0].name: 0.0, **{one.arm: one.change for one in self.result.comparisons}}
        return {name: place for place, name in enumerate(sorted(changes, key=lambda name: changes[name]), 1)}

    def _plots(self, width: int) -> Iterator[str]:
        compared = {one.arm: one for one in self.result.comparisons}
        rows = [Row(label=name, change=one.change, low=one.low, high=one.high) for name in self._places() if (one := compared.get(name))]
        if rows:
            yield _PLOT.of(self.lang)
            yield from bench_plot.lines(rows, self.rules.margin, width=width)

    def verdicts(self) -> Iterator[Text]:
        if not self.result.comparisons:
            return
        names = {arm.name: f"{arm.name} ({arm.asked})" for arm in self.arms}
        racing = [one for one in self.result.comparisons if one.arm not in self.result.out]
        if not racing:
            yield _NONE.fill(margin=margin_of(self.rules))
        elif len(racing) == 1 and racing[0].outcome == "faster":
            gain, low, high = gains(racing[0])
            says = _BEST.fill(arm=names[racing[0].arm], gain=percent(gain), low=percent(low), high=percent(high))
            yield says + CERTAINTY.fill(confidence=f"{CONFIDENCE * 100:g} %", n=racing[0].rounds)
        else:
            yield _OPEN.fill(arms=", ".join(names[one.arm] for one in racing))

    def explanation(self) -> Iterator[Text]:
        """Of what may still be the best."""
        best = [one for one in self.result.comparisons if one.arm not in self.result.out]
        yield from explain([self.arms[0], *(arm for arm in self.arms if any(one.arm == arm.name for one in best))], self.result.runs, best)

    def notes(self) -> Iterator[Text]:
        if len(self.result.comparisons) > 1:
            yield _TOGETHER
        for why in self.left_out.values():
            yield _LEFT_OUT.fill(why=Text(*why))
        yield from super().notes()

    def rows(self) -> Iterator[list[Text]]:
        """The heads of the table, and a row for each arm."""
        heads = (HEADS["arm"], HEADS["asked"], _PLACE, _ROUNDS, HEADS["step"], _GAIN)
        yield [*heads, HEADS["interval"].fill(confidence=f"{CONFIDENCE * 100:g} %"), HEADS["outcome"]]
        arms = {arm.name: arm for arm in self.arms}
        compared = {one.arm: one for one in self.result.comparisons}
        places = self._places()
        for name in (*places, *(name for name in arms if name not in places)):
            numbers, one = self.numbers(arms[name]), compared.get(name)
            gain, low, high = (None, None, None) if one is None else gains(one)
            step = duration(numbers["step_s"]) if numbers["runs"] else ""
            interval = "" if low is None else f"{percent(low)} .. {percent(high)}"
            texts = (name, arms[name].asked, str(places.get(name, "")), str(numbers["runs"]), step, "" if gain is None else percent(gain), interval)
            yield [*map(same, texts), self._outcome(name, one)]

    def _outcome(self, name: str, one: Comparison | None) -> Text:
        out = self.result.out.get(name)
        if out == "failed":
            return _FAILED.fill(path=self.result.failures.get(name, ""))
        if out == "equal":
            return _EQUAL
        if one is None:
            return NOTHING
        says = OUTCOMES[one.outcome]
        return (_BEATEN.get(one.outcome, says) if out == "beaten" else says).fill(margin=margin_of(self.rules))

    def json(self) -> dict[str, Any]:
        asked = {arm.name: arm.asked for arm in self.arms}
        places = self._places()
        ranking = [
            {
                "place": places[one.arm],
                "arm": one.arm,
                "setting": asked[one.arm],
                **dict(zip(("gain", "low", "high"), gains(one), strict=True)),
                "rounds": one.rounds,
                "outcome": one.outcome,
                "out": self.result.out.get(one.arm),
            }
            for one in sorted(self.result.comparisons, key=lambda one: places[one.arm])
        ]
        left_out = {name: why for name, (why, _) in self.left_out.items()}
        return {**super().json(), "ranking": ranking, "out": dict(self.result.out), "failures": dict(self.result.failures), "left_out": left_out}


def gains(one: Comparison) -> tuple[float, float | None, float | None]:
    """The change of the throughput, 0.74 for 74 % more, and its interval; None where unbounded."""
    low, high = (None if end is None else 1 / (1 + end) - 1 for end in (one.high, one.low))
    return 1 / (1 + one.change) - 1, low, high
