"""Which times of different logs can be compared: zones where they are printed, and how far the clocks of hosts differ, from events all of them saw.

Assumed: hosts whose logs print no zone are set to the same one, unless shared events show otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from unhang.model import frozen

# A host whose shared events scatter more than this has no offset that means anything.
MAX_SCATTER_S = 5.0


@frozen
class Scale:
    """How times of several logs become comparable.

    `utc`: their zones differ, and are taken off. `apart` are logs that cannot be placed among the others.
    """

    utc: bool = False
    apart: frozenset[str] = frozenset()

    def seconds(self, source: str, at_s: float | None, utc_offset_s: int | None) -> float | None:
        """A printed time on this scale; None where it cannot be compared with those of the other logs."""
        if at_s is None or source in self.apart:
            return None
        return at_s - utc_offset_s if self.utc and utc_offset_s is not None else at_s


def scale_of(zones: Iterable[tuple[str, int | None]]) -> Scale:
    """The scale of times, each told by its log and its zone.

    A zone counts where every time of its log has one. What a log without zones says stands in an unknown relation to one with them.
    """
    of_source: dict[str, set[int | None]] = {}
    for source, zone in zones:
        of_source.setdefault(source, set()).add(zone)
    zoned = {s for s, found in of_source.items() if None not in found}
    if not zoned:
        return Scale()
    different = len(set[int | None]().union(*(of_source[s] for s in zoned))) > 1
    return Scale(utc=different, apart=frozenset(of_source.keys() - zoned))


@frozen
class Shared:
    """One event on one clock: `key` names the event, `clock` the host (or the log, where the host is not known)."""

    key: tuple[object, ...]
    clock: str
    at_s: float


def offsets(events: Iterable[Shared]) -> dict[str, float]:
    """Seconds by which each clock is ahead of the reference, the clock with most shared events; only clocks that share events with it."""
    by_key: dict[tuple[object, ...], dict[str, float]] = {}
    for e in events:
        # Of several ranks of one host the last one counts: an event that all wait for ends for all of them then.
        seen = by_key.setdefault(e.key, {})
        seen[e.clock] = max(e.at_s, seen.get(e.clock, e.at_s))
    shared = {k: seen for k, seen in by_key.items() if len(seen) > 1}
    counts: dict[str, int] = {}
    for seen in shared.values():
        for clock in seen:
            counts[clock] = counts.get(clock, 0) + 1
    if not counts:
        return {}
    # Imported here: most logs share no event, and it takes longer to import than a small log to read.
    from statistics import median

    reference = min(counts, key=lambda c: (-counts[c], c))
    found = {reference: 0.0}
    for clock in counts:
        differences = [seen[clock] - seen[reference] for seen in shared.values() if clock in seen and reference in seen]
        if clock != reference and differences and max(differences) - min(differences) <= 2 * MAX_SCATTER_S:
            found[clock] = median(differences)
    return found


def corrected(at_s: float | None, clock: str | None, ahead: Mapping[str, float]) -> float | None:
    """A time on the reference clock, as far as the offset is known."""
    return None if at_s is None else at_s - ahead.get(clock or "", 0.0)
