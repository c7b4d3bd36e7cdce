"""Where ranks were by their last heartbeats, in words. Whoever says so says before that it is only that."""

from __future__ import annotations

from collections.abc import Iterable

from unhang.knowledge import text, words
from unhang.knowledge.text import COMMA, NOTHING, Text, joined, same
from unhang.records.incident import SILENT_S
from unhang.records.now import Place
from unhang.records.seen import Seen

# Of more places the rest is counted.
MOST_PLACES = 8


def told(seen: Iterable[Seen], *, most: int = MOST_PLACES) -> Text:
    """ "ranks 0 to 2 at train.py:16 in step (all_reduce, step 151); rank 3 at a place that is not known (no heartbeat came)"."""
    found = tuple(seen)
    said = [one(s) for s in found[:most]]
    if len(found) > most:
        said.append(Text("{n} further places", "另有 {n} 处").fill(n=len(found) - most))
    return joined(said)


def one(seen: Seen) -> Text:
    """The ranks of one place."""
    where = same(short(seen.place)) if seen.place is not None else Text("a place that is not known", "未知的位置")
    more = [same(seen.call)] if seen.call is not None else []
    if seen.step is not None:
        steps = f"{seen.least_step}-{seen.step}" if seen.least_step != seen.step else str(seen.step)
        more.append(Text("step {n}" if seen.least_step == seen.step else "steps {n}", "第 {n} 步").fill(n=steps))
    if seen.silent_s is None:
        more.append(Text("no heartbeat came", "没有收到心跳"))
    elif seen.silent_s > SILENT_S:
        more.append(Text("no heartbeat for {s} by then", "当时已有 {s} 没有心跳").fill(s=words.seconds(seen.silent_s)))
    said = Text(" ({more})", "（{more}）").fill(more=joined(more, COMMA)) if more else NOTHING
    return Text("{who} at {where}{said}", "{who} 在 {where}{said}").fill(who=text.ranks(seen.ranks), where=where, said=said)


def short(place: Place) -> str:
    """ "train.py:16 in step"."""
    return f"{place.file.rpartition('/')[2]}:{place.line} in {place.name}"
