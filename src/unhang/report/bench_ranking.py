"""The ranking of `unhang bench priorities`: what each setting gains, with its interval, and what could not be compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from unhang.bench.arms import Arm
from unhang.bench.comparison import CONFIDENCE, Comparison
from unhang.bench.explain import explain
from unhang.i18n import NOTHING, Text, msg, same
from unhang.model import frozen
from unhang.report.bench import AT_LEAST, BETWEEN, CERTAINTY, OUTCOMES, SAID, Report, margin_of, percent
from unhang.text import counted

_BEATEN = {
    "faster": msg("faster, another one is faster still"),
    "undecided": msg("cannot win by more than {margin}"),
}


@frozen
class Ranking(Report):
    """`left_out` says of each ready-made comparison that was not made why."""

    left_out: Mapping[str, str] = field(default_factory=dict)

    _change = "gain"

    def _places(self) -> dict[str, int]:
        """Of what was compared, the script as it is included."""
        changes = {self.arms[0].name: 0.0, **{one.arm: one.change for one in self.state.comparisons if self.state.out.get(one.arm) != "failed"}}
        return {name: place for place, name in enumerate(sorted(changes, key=lambda name: changes[name]), 1)}

    def _order(self) -> list[Arm]:
        places = self._places()
        return sorted(self.arms, key=lambda arm: places.get(arm.name, len(self.arms)))

    def _changes(self, one: Comparison) -> tuple[float, float | None, float | None]:
        """The change of the throughput, 0.74 for 74 % more, and its interval; None where unbounded."""
        low, high = (None if end is None else 1 / (1 + end) - 1 for end in (one.high, one.low))
        return 1 / (1 + one.change) - 1, low, high

    def _outcome(self, name: str, one: Comparison | None) -> Text:
        out = self.state.out.get(name)
        failure = next((failure for failure in self.result.failures if failure.arm == name), None)
        if failure is not None:
            return (
                same(failure.why)
                if failure.why
                else msg(
                    "its training fails{said}: unhang why {path}",
                    path=failure.run_dir,
                    said=SAID.fill(said=failure.said) if failure.said else NOTHING,
                )
            )
        if out == "equal" or one is None:
            return msg("changes nothing here") if out == "equal" else super()._outcome(name, one)
        says = OUTCOMES[one.outcome]
        return (_BEATEN.get(one.outcome, says) if out == "beaten" else says).fill(margin=margin_of(self.rules))

    def _racing(self) -> list[Comparison]:
        return [one for one in self.state.comparisons if one.arm not in self.state.out]

    def verdicts(self) -> Iterator[Text]:
        names = {arm.name: f"{arm.name} ({arm.asked})" for arm in self.arms}
        racing = self._racing()
        if len(racing) == 1 and racing[0].outcome == "faster":
            gain, low, high = self._changes(racing[0])
            between = AT_LEAST.fill(low=percent(low)) if high is None else BETWEEN.fill(low=percent(low), high=percent(high))
            says = msg("{arm} gains most: {gain} throughput, {between}", arm=names[racing[0].arm], gain=percent(gain), between=between)
            n = racing[0].rounds
            yield says + CERTAINTY.fill(confidence=f"{CONFIDENCE * 100:g} %", n=n, rounds=counted(n, "round"))
        elif racing:
            yield msg("cannot tell yet which is the fastest: {arms}", arms=", ".join(names[one.arm] for one in racing))
        elif self.result.stopped == "decided":
            yield (
                msg("nothing that was compared is faster than the script as it is by more than {margin}", margin=margin_of(self.rules))
                if self.state.comparisons
                else msg("no setting could be compared: each one fails or changes nothing here")
            )

    def explanation(self) -> Iterator[Text]:
        """Of what may still be the best."""
        best = self._racing()
        yield from explain([self.arms[0], *(arm for arm in self.arms if any(one.arm == arm.name for one in best))], self.state.runs, best)

    def notes(self) -> Iterator[Text]:
        if len(self.state.comparisons) > 1:
            yield msg("note: each setting was compared by itself; what several gain together is not measured")
        for why in self.left_out.values():
            yield msg("not compared: {why}", why=why)
        yield from super().notes()

    def json(self) -> dict[str, Any]:
        compared = {one.arm: one for one in self.state.comparisons}
        asked = {arm.name: arm.asked for arm in self.arms}
        ranking = [
            {
                "place": place,
                "arm": name,
                "setting": asked[name],
                "rounds": one.rounds,
                "outcome": one.outcome,
                **dict(zip(("gain", "low", "high"), self._changes(one), strict=True)),
                "out": self.state.out.get(name),
            }
            for name, place in self._places().items()
            if (one := compared.get(name)) is not None
        ]
        failures = {one.arm: one.run_dir for one in self.result.failures}
        return {**super().json(), "ranking": ranking, "out": dict(self.state.out), "failures": failures, "left_out": dict(self.left_out)}
