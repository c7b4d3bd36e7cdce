"""One rank's dump in columns: what is compared between a thousand ranks, a few kilobytes each, and nothing else.

A `Track` is one rank in one group, one item for each sequence number. What may surprise: operations that were launched together share one number, and
only the last entry of them, "coalesced", ever completes; a Gloo entry that is `retired` may have failed, which is known of the last one only by the
other ranks; sends and receives have numbers of their own and are kept only while they are pending.
"""

from __future__ import annotations

import marshal
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Literal

from unhang.errors import RecordError
from unhang.records.flight import operations
from unhang.records.flight.entries import Group, configured, group_of, has_lost
from unhang.records.flight.opening import Opened

# What is known of the end of a call.
ISSUED, STARTED, COMPLETED, ENDED = 0, 1, 2, 3
_ENDS = {
    ("completed", True): COMPLETED,
    ("completed", False): COMPLETED,
    ("started", True): ENDED,
    ("started", False): STARTED,
    ("scheduled", True): ENDED,
    ("scheduled", False): ISSUED,
}
_FIELDS = ("process_group", "profiling_name", "input_sizes", "output_sizes", "input_dtypes", "output_dtypes", "is_p2p", "p2p_seq_id")
_what = itemgetter(*_FIELDS[:-1])
_number = itemgetter("collective_seq_id")
_state = itemgetter("state", "retired")
_created = itemgetter("time_created_ns")
# Numbers of one group are dense: more holes than calls means that they are no such numbers.
_MOST_HOLES = 100_000
# A dump has some dozens of different calls; every one that is different from all others is a hostile one's.
_MOST_MESSAGES = 4096


@dataclass(frozen=True, kw_only=True)
class Message:
    """A send or receive that is pending. `source`, `destination`: ranks in the group, None for any or where it is not told."""

    kind: Literal["send", "recv"]
    group: Group
    source: int | None
    destination: int | None
    elements: int
    dtypes: tuple[str, ...]
    created_ns: int
    number: int


@dataclass(frozen=True, kw_only=True)
class Track:
    """One rank in one group. `ids[i]` is the call with number `first + i`, as an index into the recording's `calls`; 0 is a number without an entry.

    `pending_ns` tells when each call that had not completed was issued, oldest first, by number. `sums` are the elements in and out of calls whose
    sums over all ranks have to fit, by number, of the newest.
    """

    group: Group
    first: int
    ids: array[int]
    ends: bytearray
    pending_ns: Mapping[int, int]
    sums: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    gloo: bool = False

    @property
    def last(self) -> int:
        return self.first + len(self.ids) - 1

    def at(self, number: int) -> int | None:
        """The index of a call; None outside the window."""
        i = number - self.first
        return self.ids[i] if 0 <= i < len(self.ids) else None

    def end(self, number: int) -> int | None:
        i = number - self.first
        return self.ends[i] if 0 <= i < len(self.ids) else None


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One rank's recorder; its dump is the one at `place` of those in `source`, that of its second recorder in `second`. `calls[i]` is what has to be
    equal on all ranks; `groups` are those that its configuration names without a call in them.

    `oldest_ns`, `newest_ns`: when the first and last of its entries were made, `done_ns` the last that has completed. `lost`: the ring has
    overwritten its beginning; `cut`: the file has lost its end.
    """

    rank: int
    source: str
    second: str | None = None
    place: int = 0
    bytes: int = 0
    version: str = ""
    calls: tuple[str, ...] = ("",)
    tracks: tuple[Track, ...] = ()
    groups: tuple[Group, ...] = ()
    counters: Mapping[str, int] = field(default_factory=dict)
    messages: tuple[Message, ...] = ()
    oldest_ns: int = 0
    newest_ns: int = 0
    done_ns: int = 0
    entries: int = 0
    lost: bool = False
    cut: str | None = None
    skipped: int = 0


def with_second(accelerator: Recording, cpu: Recording) -> Recording:
    """Both recorders of one process; the groups of the second one are called "cpu:NAME", because one group may have both backends."""

    def renamed(group: Group) -> Group:
        return replace(group, name=f"cpu:{group.name}")

    offset = len(accelerator.calls)
    return replace(
        accelerator,
        second=cpu.source,
        bytes=accelerator.bytes + cpu.bytes,
        calls=(*accelerator.calls, *cpu.calls),
        tracks=(
            *accelerator.tracks,
            *(replace(t, group=renamed(t.group), ids=array("I", (i + offset if i else 0 for i in t.ids))) for t in cpu.tracks),
        ),
        counters={**accelerator.counters, **{f"cpu:{name}": n for name, n in cpu.counters.items()}},
        oldest_ns=max(accelerator.oldest_ns, cpu.oldest_ns),
        newest_ns=max(accelerator.newest_ns, cpu.newest_ns),
        done_ns=max(accelerator.done_ns, cpu.done_ns),
        entries=accelerator.entries + cpu.entries,
        lost=accelerator.lost or cpu.lost,
        cut=accelerator.cut or cpu.cut,
        skipped=accelerator.skipped + cpu.skipped,
    )


def recording_of(dump: Opened, *, rank: int, source: str, size: int = 0) -> Recording:
    """One dump in columns. Raises RecordError where it is none."""
    try:
        return _recording(dump, rank, source, size)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as e:
        raise RecordError(f"{source} is not a flight-recorder dump that can be understood: {type(e).__name__}: {e}") from e


def _recording(dump: Opened, rank: int, source: str, size: int) -> Recording:
    raw = dump.raw
    entries = raw.get("entries") or []
    skipped = 0
    try:
        keys = [marshal.dumps(what, 2) for what in map(_what, entries)]
        numbers = array("q", map(_number, entries))
        ends = bytearray(map(_ENDS.__getitem__, map(_state, entries)))
        created = array("q", map(_created, entries))
    except (KeyError, TypeError, ValueError, OverflowError):
        entries, skipped = _evened(entries)
        keys = [marshal.dumps(what, 2) for what in map(_what, entries)]
        numbers = array("q", map(_number, entries))
        ends = bytearray(_ENDS.get(state, ISSUED) for state in map(_state, entries))
        created = array("q", map(_created, entries))
    if skipped and not entries:
        raise ValueError("none of its entries is one")
    kinds = {key: _Kind(marshal.loads(key)) for key in dict.fromkeys(keys)}
    groups: dict[str, Group] = {}
    name_of_id: dict[str, str] = {}
    for kind in kinds.values():
        groups.setdefault(kind.group, Group(name=kind.group, desc=kind.desc))
    told = configured(raw, groups)
    if raw.get("pg_status") and entries:
        name_of_id = {str(entry.get("pg_id")): kinds[key].group for key, entry in dict(zip(keys, entries, strict=True)).items()}
    used = {name: told.get(name, group) for name, group in groups.items()}
    texts: dict[str, int] = {"": 0}
    tracks = _tracks(keys, kinds, numbers, ends, created, used, texts)
    return Recording(
        rank=rank,
        source=source,
        bytes=size,
        version=str(raw.get("version", "")),
        calls=tuple(texts),
        tracks=tracks,
        groups=tuple(g for name, g in told.items() if name not in groups),
        counters={
            name_of_id.get(str(pg), str(pg)): int(status.get("last_enqueued_collective", -1)) for pg, status in (raw.get("pg_status") or {}).items()
        },
        messages=_messages(keys, kinds, entries, ends, created, used),
        oldest_ns=min(created, default=0),
        newest_ns=max(created, default=0),
        done_ns=max((ns for ns, end in zip(created, ends, strict=True) if end in (COMPLETED, ENDED)), default=0),
        entries=len(entries),
        lost=has_lost(entries),
        cut=dump.cut,
        skipped=skipped,
    )


class _Kind:
    """All entries with the same group, name and sizes."""

    __slots__ = ("desc", "dtypes", "elements", "gloo", "group", "op", "p2p", "sums", "text")

    def __init__(self, what: tuple[Any, ...]) -> None:
        group, name, sent, got, sent_types, got_types, p2p = what
        self.group, self.desc = (str(group[0]), str(group[1]) if len(group) > 1 else "") if isinstance(group, (list, tuple)) else (str(group), "")
        backend, self.op = operations.split(str(name))
        self.gloo = backend == "gloo"
        self.p2p = bool(p2p) or self.op.startswith(("send ", "recv "))
        self.dtypes = tuple(dict.fromkeys(map(str, (*(sent_types or ()), *(got_types or ())))))
        self.elements = operations.elements(sent or got or ())
        self.text = operations.key(self.op, sent or (), got or (), sent_types or (), got_types or ())
        self.sums = (
            (operations.elements(sent or ()), operations.elements(got or ())) if operations.rule(operations.spelling(self.op)) == "sums" else None
        )


def _evened(entries: Sequence[Any]) -> tuple[list[dict[str, Any]], int]:
    """Entries of older versions, of JSON and of damaged files, with every field that is looked at; and how many are none."""
    found = []
    for entry in entries:
        try:
            name, desc = group_of(entry)
            number = entry.get("collective_seq_id", entry.get("seq_id"))
            even = {
                "record_id": int(entry.get("record_id") or 0),
                "pg_id": entry.get("pg_id", name),
                "process_group": (name, desc),
                "profiling_name": str(entry["profiling_name"]),
                "input_sizes": [[int(n) for n in size] for size in entry.get("input_sizes") or ()],
                "output_sizes": [[int(n) for n in size] for size in entry.get("output_sizes") or ()],
                "input_dtypes": [str(d) for d in entry.get("input_dtypes") or ()],
                "output_dtypes": [str(d) for d in entry.get("output_dtypes") or ()],
                "is_p2p": bool(entry.get("is_p2p")),
                "collective_seq_id": int(number or 0),
                "p2p_seq_id": int(entry.get("p2p_seq_id") or 0),
                "state": str(entry.get("state")),
                "retired": bool(entry.get("retired")),
                "time_created_ns": int(entry.get("time_created_ns") or 0),
            }
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            continue
        found.append(even)
    return found, len(entries) - len(found)


def _tracks(
    keys: Sequence[bytes],
    kinds: Mapping[bytes, _Kind],
    numbers: array[int],
    ends: bytearray,
    created: array[int],
    groups: Mapping[str, Group],
    texts: dict[str, int],
) -> tuple[Track, ...]:
    for kind in kinds.values():
        if not kind.p2p:
            texts.setdefault(kind.text, len(texts))
    only = next(iter(kinds.values())) if kinds else None
    if only is not None and all(k.group == only.group and not k.p2p for k in kinds.values()):
        index = {key: texts[kind.text] for key, kind in kinds.items()}
        of_group = {only.group: (array("I", map(index.__getitem__, keys)), numbers, ends, created)}
    else:
        of_group = {}
        for key, number, end, ns in zip(keys, numbers, ends, created, strict=True):
            kind = kinds[key]
            if kind.p2p:
                continue
            if (columns := of_group.get(kind.group)) is None:
                columns = of_group[kind.group] = (array("I"), array("q"), bytearray(), array("q"))
            columns[0].append(texts[kind.text])
            columns[1].append(number)
            columns[2].append(end)
            columns[3].append(ns)
    sums = {texts[k.text]: None for k in kinds.values() if k.sums is not None}
    gloo = {k.group for k in kinds.values() if k.gloo}
    found = []
    for name, (ids, seqs, states, times) in of_group.items():
        track = _track(groups[name], ids, seqs, states, times, texts, gloo=name in gloo)
        if sums:
            newest = dict[int, tuple[int, int]]()
            for key, number in zip(reversed(keys), reversed(numbers), strict=True):
                kind = kinds[key]
                if kind.sums is not None and kind.group == name and not kind.p2p and len(newest) < 64:
                    newest.setdefault(number, kind.sums)
            track = Track(
                group=track.group, first=track.first, ids=track.ids, ends=track.ends, pending_ns=track.pending_ns, sums=newest, gloo=track.gloo
            )
        found.append(track)
    return tuple(found)


def _track(group: Group, ids: array[int], numbers: array[int], ends: bytearray, created: array[int], texts: dict[str, int], *, gloo: bool) -> Track:
    first, last = min(numbers), max(numbers)
    dense = last - first + 1 == len(numbers) and numbers[0] == first and numbers == array("q", range(first, last + 1))
    if not dense:
        if last - first > len(numbers) + _MOST_HOLES:
            raise ValueError(f"numbers from {first} to {last} in group {group.name}")
        ids, ends, created = _filled(first, last, ids, numbers, ends, created, texts)
    if gloo:
        # Whoever has issued another one behind it has been through it.
        tail = len(ends)
        while tail and ends[tail - 1] != ENDED:
            tail -= 1
        through = tail if tail < len(ends) else tail - 1
        for i in range(through):
            if ends[i] == ENDED:
                ends[i] = COMPLETED
    return Track(
        group=group,
        first=first,
        ids=ids,
        ends=ends,
        pending_ns={first + i: created[i] for i, end in enumerate(ends) if end != COMPLETED and ids[i]},
        gloo=gloo,
    )


def _filled(
    first: int, last: int, ids: array[int], numbers: array[int], ends: bytearray, created: array[int], texts: dict[str, int]
) -> tuple[array[int], bytearray, array[int]]:
    """The same with one item for each number. Calls that were launched together are one; their last entry tells how they ended."""
    names = list(texts)
    parts: dict[int, list[int]] = {}
    for place, number in enumerate(numbers):
        parts.setdefault(number, []).append(place)
    full, states, times = (
        array("I", bytes(4 * (last - first + 1))),
        bytearray([COMPLETED]) * (last - first + 1),
        array("q", bytes(8 * (last - first + 1))),
    )
    for number, places in parts.items():
        i = number - first
        states[i], times[i] = ends[places[-1]], created[places[0]]
        if len(places) == 1:
            full[i] = ids[places[0]]
        else:
            text = "+".join(names[ids[p]] for p in places)
            full[i] = texts.setdefault(text, len(texts))
    return full, states, times


def _messages(
    keys: Sequence[bytes],
    kinds: Mapping[bytes, _Kind],
    entries: Sequence[Mapping[str, Any]],
    ends: bytearray,
    created: array[int],
    groups: Mapping[str, Group],
) -> tuple[Message, ...]:
    """The pending ones, oldest first. Those that were launched together end with the entry "coalesced" of their number."""
    if not any(k.p2p for k in kinds.values()):
        return ()
    together: dict[tuple[str, int], int] = {}
    pending = list[tuple[int, _Kind, int]]()
    for place, key in enumerate(keys):
        kind = kinds[key]
        if kind.p2p and kind.op == "coalesced":
            together[kind.group, int(entries[place].get("p2p_seq_id") or 0)] = ends[place]
    for place, key in enumerate(keys):
        kind = kinds[key]
        if not kind.p2p or kind.op == "coalesced":
            continue
        number = int(entries[place].get("p2p_seq_id") or 0)
        if together.get((kind.group, number), ends[place]) == COMPLETED or len(pending) >= _MOST_MESSAGES:
            continue
        pending.append((place, kind, number))
    found = []
    for place, kind, number in pending:
        source, destination = operations.peers(kind.op) or (None, None)
        found.append(
            Message(
                kind="send" if kind.op.startswith("send") else "recv",
                group=groups[kind.group],
                source=source,
                destination=destination,
                elements=kind.elements,
                dtypes=kind.dtypes,
                created_ns=created[place],
                number=number,
            )
        )
    return tuple(sorted(found, key=lambda m: m.created_ns))
