"""Messages whose end a recorder tells in a way of its own, brought into the usual one: with the entry "coalesced" of their own number.

What may surprise: before torch 2.5 a batch of sends and receives took its number from the counter of collectives, on those ranks only that were in
it, and its last entry is not marked as one of messages; XCCL never tells that a message is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from unhang.flight import operations
from unhang.model import frozen

# The entry that ends a launch of several calls.
COALESCED = "coalesced"
SHIFTED = "its version counts batches of messages among the collectives, and its beginning is lost: its numbers fit no other rank's"
ENDLESS = "XCCL does not tell when sends and receives are over: they were left out"
# Of torch 2.5.
_MARKED = (2, 4)
_NUMBERS = ("collective_seq_id", "seq_id")


def is_message(op: str, flag: object = False) -> bool:
    """`op` as `operations.split` has it; `flag` is the entry's own word, which older versions do not have."""
    return bool(flag) or op.startswith(("send ", "recv "))


@frozen
class Coalesced:
    """`cut`: why the numbers of its collectives fit no other rank's; `untold`: what the dump does not tell of its messages."""

    raw: Mapping[str, Any]
    cut: str | None = None
    untold: str | None = None


def marks_batches(version: object) -> bool:
    """Whether this version of the dump marks the last entry of a batch of messages as one of these."""
    parts = str(version).split(".")
    return all(part.isdecimal() for part in parts) and tuple(map(int, parts)) >= _MARKED


def told_as_usual(raw: Mapping[str, Any]) -> Coalesced:
    """A dump with its messages told in the usual way; the very same where nothing is to be done. Entries that are none are left as they are."""
    entries = raw.get("entries") or ()
    read = [_read(entry) for entry in entries]
    endless = {place for place, each in enumerate(read) if each is not None and each.endless}
    of_batch = {} if marks_batches(raw.get("version")) else _batches(read)
    if not of_batch:
        if not endless:
            return Coalesced(raw=raw)
        return Coalesced(raw={**raw, "entries": [e for place, e in enumerate(entries) if place not in endless]}, untold=ENDLESS)
    shifts, messages = dict[str, int](), dict[str, int]()
    newest = dict[str, int | None]()
    ids, begun = dict[str, str](), set[int | None]()
    made = list[Any]()
    for place, (entry, each) in enumerate(zip(entries, read, strict=True)):
        if each is None or place in endless:
            made += [] if each is not None else [entry]
            continue
        ids[str(entry.get("pg_id"))] = each.group
        last = of_batch.get(place)
        if last is not None or each.message:
            if last is None or last not in begun:
                messages[each.group] = messages.get(each.group, 0) + 1
            begun |= {last}
            made.append({**entry, "is_p2p": True, "p2p_seq_id": messages[each.group]})
            if last == place and each.number != newest.get(each.group):
                shifts[each.group] = shifts.get(each.group, 0) + 1
            continue
        newest[each.group] = each.number
        shift = shifts.get(each.group, 0)
        made.append({**entry, **{name: n - shift for name in _NUMBERS if isinstance(n := entry.get(name), int)}} if shift else entry)
    told = {**raw, "entries": made}
    if isinstance(status := raw.get("pg_status"), Mapping):
        told["pg_status"] = {pg: _less(counts, shifts.get(ids.get(str(pg), ""), 0)) for pg, counts in status.items()}
    return Coalesced(raw=told, cut=SHIFTED if shifts and has_lost(entries) else None, untold=ENDLESS if endless else None)


class _Read(NamedTuple):
    """An entry: its number is that among the collectives; `endless`: a message of which nothing tells whether it is over."""

    group: str
    op: str
    number: int | None
    message: bool
    endless: bool


def _read(entry: Any) -> _Read | None:
    if not isinstance(entry, Mapping):
        return None
    group = entry.get("process_group")
    name = str(group[0]) if isinstance(group, (list, tuple)) and group else str(entry.get("pg_id", "0"))
    backend, op = operations.split(str(entry.get("profiling_name") or ""))
    number = next((n for key in _NUMBERS if isinstance(n := entry.get(key), int)), None)
    message = is_message(op, entry.get("is_p2p"))
    return _Read(name, op, number, message, message and backend == "xccl" and entry.get("state") != "completed")


def _batches(read: Sequence[_Read | None]) -> dict[int, int]:
    """For the places of messages that were launched together, and of the entry that ends them, the place of that."""
    found = dict[int, int]()
    waiting: dict[tuple[str, int | None], list[int]] = {}
    for place, each in enumerate(read):
        if each is None:
            continue
        if each.message and each.op != COALESCED:
            waiting.setdefault((each.group, each.number), []).append(place)
        elif each.op == COALESCED and not each.message and (those := waiting.pop((each.group, each.number), None)):
            found |= dict.fromkeys((*those, place), place)
    return found


def has_lost(entries: Any) -> bool:
    """Whether the ring has overwritten its beginning: its first entry is not the first that was ever recorded."""
    first = entries[0].get("record_id") if entries and isinstance(entries[0], dict) else None
    return isinstance(first, int) and first > 0


def _less(told: Any, shift: int) -> Any:
    if not isinstance(told, Mapping) or not shift:
        return told
    return {name: n - shift if isinstance(n, int) and n >= shift else n for name, n in told.items()}
