"""Where ranks were by their last heartbeats, in words. Whoever says so says before that it is only that."""

from __future__ import annotations

from collections.abc import Iterable

from unhang.knowledge import words
from unhang.knowledge.words import COMMA, NOTHING, Text, joined, msg, same
from unhang.records.incident import SILENT_S
from unhang.records.status import Place, Seen

# Of more places the rest is counted.
MOST_PLACES = 8


def told(seen: Iterable[Seen], *, most: int = MOST_PLACES) -> Text:
    """ "ranks 0 to 2 at train.py:16 in step (all_reduce, step 151); rank 3 at a place that is not known (no heartbeat came)"."""
    found = tuple(seen)
    said = [one(s) for s in found[:most]]
    if len(found) > most:
        said.append(msg("{n} further places", n=len(found) - most))
    return joined(said)


def before_signal(signal: str, seen: Iterable[Seen], still_s: float | None) -> Text:
    """ "as SIGTERM came, by the last heartbeats: rank 0 at ...; 0.2 s after the last step or collective"."""
    said = msg("as {signal} came, by the last heartbeats: {where}", signal=signal, where=told(seen))
    return said if still_s is None else joined((said, moved_before(still_s)))


def moved_before(still_s: float) -> Text:
    """How long before a signal the training had last moved."""
    return msg("the last step or collective was {s} before", s=words.seconds(still_s))


def by_force(seen: Iterable[Seen], after_s: float, *, by_us: bool) -> Text:
    """ "ended by force 30 s after the signal, last seen, by heartbeat: rank 1 at ..."."""
    said = msg("ended by force {s} after the signal")
    if not by_us:
        said = msg("still there {s} after the signal, then gone without a word (as if killed by its launcher)")
    return (said + msg("; last seen, by heartbeat: {where}")).fill(s=words.seconds(after_s), where=told(seen))


def one(seen: Seen) -> Text:
    """The ranks of one place."""
    where = same(short(seen.place)) if seen.place is not None else msg("a place that is not known")
    more = [same(seen.call)] if seen.call is not None else []
    if seen.step is not None:
        steps = f"{seen.least_step}-{seen.step}" if seen.least_step != seen.step else str(seen.step)
        more.append(msg("step {n}" if seen.least_step == seen.step else "steps {n}", "seen", n=steps))
    if seen.silent_s is None:
        more.append(msg("no heartbeat came"))
    elif seen.silent_s > SILENT_S:
        more.append(msg("no heartbeat for {s} by then", s=words.seconds(seen.silent_s)))
    said = msg(" ({more})", more=joined(more, COMMA)) if more else NOTHING
    return msg("{who} at {where}{said}", who=words.ranks(seen.ranks), where=where, said=said)


def short(place: Place) -> str:
    """ "train.py:16 in step"."""
    return f"{place.file.rpartition('/')[2]}:{place.line} in {place.name}"
