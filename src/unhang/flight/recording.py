"""One rank's dump in columns: what is compared between a thousand ranks, a few kilobytes each, and nothing else.

A `Track` is one rank in one group, one item for each sequence number. What may surprise: operations that were launched together share one number, and
only the last entry of them, "coalesced", ever completes; a Gloo entry that is `retired` may have failed, which is known of the last one only by the
other ranks; sends and receives have numbers of their own and are kept only while they are pending. Long because what stands in an entry, and what is
compared of it, have to be read side by side.
"""

from __future__ import annotations

import marshal
import operator
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from itertools import compress, islice
from operator import itemgetter
from typing import Any, Literal

from unhang.flight import operations
from unhang.flight.coalesced import COALESCED, has_lost, is_message, marks_batches, told_as_usual
from unhang.flight.dump_file import DumpFile
from unhang.flight.entries import (
    NOT_UNDERSTOOD,
    Group,
    configured,
    counters_of,
    group_of,
    names_of_all,
    newest_generation,
    not_understood,
    understood,
)
from unhang.flight.pickle_columns import Repeats
from unhang.model import Counters, frozen

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
# For `bytes.translate`.
_HAS_ENDED = bytes(n in (COMPLETED, ENDED) for n in range(256))
_IS_PENDING = bytes(n != COMPLETED for n in range(256))
FIELDS = ("process_group", "profiling_name", "input_sizes", "output_sizes", "input_dtypes", "output_dtypes", "is_p2p", "p2p_seq_id")
# (group and its description, name, sizes in and out, dtypes in and out, whether it is a message), as the dump has them.
What = tuple[Any, ...]
_what = itemgetter(*FIELDS[:-1])
_number = itemgetter("collective_seq_id")
_state = itemgetter("state", "retired")
_created = itemgetter("time_created_ns")
_pg = operator.methodcaller("get", "pg_id")
# Numbers of one group are dense: more holes than calls means that they are no such numbers.
_MOST_HOLES = 100_000
# Of so many calls that are over in a group it is known when they were issued.
_TIMED = 16
# Of so many calls sums are kept.
_NEWEST = 64
# Who is told to wait for ever does not wait for another run.
_MOST_PATIENT_MS = 86_400_000
# A dump has some dozens of different calls; every one that is different from all others is a hostile one's.
_MOST_MESSAGES = 4096


@frozen
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


@frozen
class Track:
    """One rank in one group. `ids[i]` is the call with number `first + i`, as an index into the recording's `calls`; 0 is a number without an entry,
    or one of which entries are lost.

    `pending_ns` tells when each call that had not completed was issued, oldest first, by number, `over_ns` the same of the newest that had, where it
    is told. `sums` are the elements in and out of calls whose sums over all ranks have to fit, by number, of the newest.
    """

    group: Group
    first: int
    ids: array[int]
    ends: bytearray
    pending_ns: Mapping[int, int]
    over_ns: Mapping[int, int] = field(default_factory=dict)
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


@frozen
class LiveCounters:
    """What a living rank counted in a group: the newest call that it issued lies in `least`..`most`; `done` is the newest that has completed."""

    least: int
    most: int
    done: int


@frozen
class Recording:
    """One rank's recorder; its dump is the one at `place` of those in `source`, that of its second recorder in `second` (alone it `is_second`).
    `calls[i]` is what has to be equal on all ranks; `groups` are those that its configuration names without a call in them.

    `oldest_ns`, `newest_ns`: when the first and last of its entries were made, `done_ns` the last that has completed. `lost`: the ring has
    overwritten its beginning; `cut`: the file has lost its end, or entries of it, which may have been the newest of any group.
    `untold`: what the recorder does not tell. `worlds`: how many default groups it had before the one that its tracks are of, as far as its ring goes
    back. `status`, of a ring of NCCL alone that has lost its beginning: what is counted of each group, also of those of which no call is left ("#ID"
    where their name is not told); Gloo's count may stay one behind for ever. `patience_ns`: the longest timeout of what has not completed, 0 where
    none is told. `heard`: what somebody who watched the rank heard of it beside its dump, by the name of the group; None where nobody did.
    """

    rank: int
    source: str
    is_second: bool = False
    second: str | None = None
    second_place: int = 0
    place: int = 0
    bytes: int = 0
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
    untold: str | None = None
    skipped: int = 0
    worlds: int = 0
    status: Mapping[str, Counters] = field(default_factory=dict)
    patience_ns: int = 0
    heard: Mapping[str, LiveCounters] | None = None

    @property
    def all_groups(self) -> tuple[Group, ...]:
        """Those of its calls and messages, and those that have none."""
        return (*(t.group for t in self.tracks), *self.groups, *(m.group for m in self.messages))


def world_of(recording: Recording) -> tuple[int, ...]:
    """The members of its default group; () where it tells none, or several."""
    # Ranks share them: to hash all members for each takes longer.
    found = {id(g.members): g.members for g in recording.all_groups if g.members and (g.desc == "default_pg" or (g.name == "0" and not g.desc))}
    return next(iter(found.values())) if len(set(found.values())) == 1 else ()


def with_second(accelerator: Recording, cpu: Recording) -> Recording:
    """Both recorders of one process; the groups of the second one are called "cpu:NAME", because one group may have both backends."""

    def renamed(group: Group) -> Group:
        return replace(group, name=f"cpu:{group.name}")

    offset = len(accelerator.calls)
    return replace(
        accelerator,
        second=cpu.source,
        second_place=cpu.place,
        bytes=accelerator.bytes + (cpu.bytes if cpu.source != accelerator.source else 0),
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
        untold=accelerator.untold or cpu.untold,
        skipped=accelerator.skipped + cpu.skipped,
        patience_ns=max(accelerator.patience_ns, cpu.patience_ns),
    )


def recording_of(dump: DumpFile, *, rank: int, source: str, size: int = 0) -> Recording:
    """One dump in columns. Raises RecordError where it is none."""
    with understood(source):
        return compared(columns_of(dump)[0], rank=rank, source=source, size=size)


@frozen
class Columns:
    """The entries of one dump, oldest first, one item of each column for each entry.

    `kinds` are the different calls, `kind_of` tells which one an entry is. `message_numbers` are those of sends and receives, by the place of the
    entry. `configured` are the groups that the dump's configuration tells of, `counters` what is counted, by group. `worlds`, `status`,
    `patience_ns`: as in `Recording`.
    """

    kinds: Sequence[CallForm] = ()
    kind_of: array[int]
    numbers: array[int]
    ends: bytearray
    created: array[int]
    message_numbers: Mapping[int, int] = field(default_factory=dict)
    configured: Mapping[str, Group] = field(default_factory=dict)
    counters: Mapping[str, Counters] = field(default_factory=dict)
    lost: bool = False
    cut: str | None = None
    untold: str | None = None
    skipped: int = 0
    worlds: int = 0
    status: Mapping[str, Counters] = field(default_factory=dict)
    patience_ns: int = 0


def columns_of(dump: DumpFile) -> tuple[Columns, Sequence[Mapping[str, Any]]]:
    """The entries in columns, and as the dump has them, with their frames, innermost first; of those that differ only in numbers (in a digest) one
    for all, so that an `op_id` there is that of one of them.

    Raises one of NOT_UNDERSTOOD where it is no dump.
    """
    raw, repeats = dump.raw, dump.repeats
    skipped = 0
    try:
        entries = raw.get("entries") or []
        read = _entries_in_columns(entries)
        if repeats is not None and (read.ids > len({kind.group for kind in read.kinds}) or _unusual(read.kinds, raw.get("version"))):
            return columns_of(dump.whole())
    except NOT_UNDERSTOOD:
        if repeats is not None:
            return columns_of(dump.whole())
        entries, skipped = _evened(raw.get("entries") or [])
        read = _entries_in_columns(entries, evened=True)
    if skipped and not entries:
        raise ValueError("none of its entries is one")
    lost, worlds = has_lost(raw.get("entries")), 0
    if read.ids > len({kind.group for kind in read.kinds}):
        raw, worlds = newest_generation({**raw, "entries": entries})
        entries = raw["entries"]
        read = _entries_in_columns(entries, evened=True)
    cut = untold = None
    if _unusual(read.kinds, raw.get("version")):
        told = told_as_usual({**raw, "entries": entries})
        raw, cut, untold = told.raw, told.cut, told.untold
        entries = raw["entries"]
        read = _entries_in_columns(entries, evened=True)
    names = {k.group: Group(name=k.group, desc=k.desc) for k in reversed(read.kinds)}
    counters, status = dict[str, Counters](), dict[str, Counters]()
    if raw.get("pg_status"):
        name_of_id = {str(entry.get("pg_id")): read.kinds[k].group for k, entry in dict(zip(read.kind_of, entries, strict=True)).items()}
        counters = counters_of(raw, name_of_id)
        status = _status(raw, name_of_id, read.kinds) if lost else {}
    configuration = configured(raw, names)
    if raw.get("pg_status") and not (entries or counters or configuration):
        raise ValueError("nothing in it is what a recorder writes")
    patience_ns = _patience_ns(entries, read.ends)
    if repeats is not None:
        read, entries = _repeated(read, repeats), [entries[form] for form in repeats.form_of]
    columns = Columns(
        kinds=read.kinds,
        kind_of=read.kind_of,
        numbers=read.numbers,
        ends=read.ends,
        created=read.created,
        message_numbers=read.message_numbers,
        configured=configuration,
        counters=counters,
        lost=lost,
        cut=dump.cut or cut,
        untold=untold,
        skipped=skipped,
        worlds=worlds,
        status=status,
        patience_ns=patience_ns,
    )
    return columns, entries


def _patience_ns(entries: Sequence[Any], ends: bytearray) -> int:
    """Of the entries that have not completed."""
    told = (entry.get("timeout_ms") for entry in compress(entries, ends.translate(_IS_PENDING)))
    return min(max((ms for ms in told if isinstance(ms, int) and ms > 0), default=0), _MOST_PATIENT_MS) * 1_000_000


def _status(raw: Mapping[str, Any], name_of_id: Mapping[str, str], kinds: Sequence[CallForm]) -> dict[str, Counters]:
    """What NCCL counts of each group but those with messages, which have numbers of their own: the newest of either kind is counted."""
    if not all(k.backend == "nccl" for k in kinds):
        return {}
    messages = {k.group for k in kinds if k.p2p}
    names = names_of_all(raw, name_of_id, {k.group for k in kinds if k.desc == "default_pg"})
    return {name: c for name, c in counters_of(raw, names).items() if name in names.values() and name not in messages}


@frozen
class _Entries:
    """The columns that the entries alone tell. `ids`: how many groups they are of, by the numbers that the process gave them."""

    kinds: Sequence[CallForm]
    ids: int
    kind_of: array[int]
    numbers: array[int]
    ends: bytearray
    created: array[int]
    message_numbers: dict[int, int]


def _entries_in_columns(entries: Sequence[Any], *, evened: bool = False) -> _Entries:
    """Raises KeyError, TypeError, ValueError, AttributeError, OverflowError or RecursionError where a field is missing or none of its kind."""
    keys = [marshal.dumps(what, 2) for what in map(_what, entries)]
    states = map(_state, entries)
    index = {key: n for n, key in enumerate(dict.fromkeys(keys))}
    kind_of = array("I", map(index.__getitem__, keys))
    kinds = list(map(_kind, index))
    messages = {n for n, kind in enumerate(kinds) if kind.p2p}
    return _Entries(
        kinds=kinds,
        ids=len(set(map(_pg, entries))),
        kind_of=kind_of,
        numbers=array("q", map(_number, entries)),
        ends=bytearray(_ENDS.get(state, ISSUED) for state in states) if evened else bytearray(map(_ENDS.__getitem__, states)),
        created=array("q", map(_created, entries)),
        message_numbers={place: int(entries[place].get("p2p_seq_id") or 0) for place, k in enumerate(kind_of) if k in messages} if messages else {},
    )


def _unusual(kinds: Sequence[CallForm], version: object) -> bool:
    """Whether messages have to be told in another way (`batches`)."""
    return any(k.p2p and k.backend == "xccl" for k in kinds) or (any(k.p2p for k in kinds) and not marks_batches(version))


def _repeated(forms: _Entries, repeats: Repeats) -> _Entries:
    """The columns of all entries, of those of one entry of each form."""
    of = repeats.form_of
    kind_of = array("I", map(forms.kind_of.__getitem__, of))
    messages = {n for n, kind in enumerate(forms.kinds) if kind.p2p}
    numbers = repeats.numbers("p2p_seq_id") if messages else ()
    return replace(
        forms,
        kind_of=kind_of,
        numbers=repeats.numbers("collective_seq_id"),
        ends=bytearray(map(forms.ends.__getitem__, of)),
        created=repeats.numbers("time_created_ns"),
        message_numbers={place: n for place, (k, n) in enumerate(zip(kind_of, numbers, strict=True)) if k in messages} if messages else {},
    )


def compared(columns: Columns, *, rank: int, source: str, size: int = 0) -> Recording:
    """What is compared between ranks. Raises ValueError for numbers that are none."""
    kinds = columns.kinds
    groups: dict[str, Group] = {}
    for kind in kinds:
        groups.setdefault(kind.group, Group(name=kind.group, desc=kind.desc))
    used = {name: columns.configured.get(name, group) for name, group in groups.items()}
    texts: dict[str, int] = {"": 0}
    tracks, strays = _tracks(columns, kinds, used, texts)
    created = columns.created
    oldest, newest, done = min(created, default=0), max(created, default=0), max(compress(created, columns.ends.translate(_HAS_ENDED)), default=0)
    # Without times all are of the oldest.
    tracks = tuple(replace(t, over_ns={n: ns for n, ns in t.over_ns.items() if ns > oldest}) for t in tracks)
    return Recording(
        rank=rank,
        source=source,
        bytes=size,
        calls=tuple(texts),
        tracks=tracks,
        groups=tuple(g for name, g in columns.configured.items() if name not in groups),
        counters={name: c.enqueued for name, c in columns.counters.items()},
        messages=_messages(columns, kinds, used),
        oldest_ns=oldest,
        newest_ns=newest,
        done_ns=done,
        entries=len(columns.kind_of),
        lost=columns.lost,
        cut=columns.cut or not_understood(columns.skipped + strays),
        untold=columns.untold,
        skipped=columns.skipped + strays,
        worlds=columns.worlds,
        status=columns.status,
        patience_ns=columns.patience_ns,
    )


class CallForm:
    """All entries with the same group, name and sizes."""

    __slots__ = ("backend", "desc", "dtypes", "elements", "group", "input_dtypes", "input_sizes", "op", "output_sizes", "p2p", "sums", "text")

    def __init__(self, what: What) -> None:
        group, name, sent, got, sent_types, got_types, p2p = what
        self.group, self.desc = (str(group[0]), str(group[1]) if len(group) > 1 else "") if isinstance(group, (list, tuple)) else (str(group), "")
        self.backend, self.op = operations.split(str(name))
        self.p2p = is_message(self.op, p2p)
        self.input_dtypes = tuple(map(str, sent_types or ()))
        self.dtypes = tuple(dict.fromkeys((*self.input_dtypes, *map(str, got_types or ()))))
        self.elements = operations.elements(sent or got or ())
        self.text = operations.key(self.op, sent or (), got or (), sent_types or (), got_types or ())
        self.sums = (
            (operations.elements(sent or ()), operations.elements(got or ())) if operations.rule(operations.spelling(self.op)) == "sums" else None
        )
        self.input_sizes, self.output_sizes = (tuple(tuple(map(int, size)) for size in sizes or ()) for sizes in (sent, got))

    @property
    def gloo(self) -> bool:
        return self.backend == "gloo"


@lru_cache(maxsize=4096)
def _kind(marshalled: bytes) -> CallForm:
    """Ranks issue the same calls."""
    return CallForm(marshal.loads(marshalled))


def _evened(entries: Sequence[Any]) -> tuple[list[dict[str, Any]], int]:
    """Entries of older versions, of JSON and of damaged files, with every field that is looked at; and how many are none."""
    found = []
    whole = array("q")
    for entry in entries:
        try:
            name, desc = group_of(entry)
            number = entry.get("collective_seq_id", entry.get("seq_id"))
            even = {
                "record_id": int(entry.get("record_id") or 0),
                "pg_id": pg if isinstance(pg := entry.get("pg_id"), (int, str)) else name,
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
                "op_id": entry.get("op_id"),
                "timeout_ms": entry.get("timeout_ms"),
                "frames": entry.get("frames"),
            }
            _kind(marshal.dumps(_what(even), 2))
            # What is no number of 64 bits is none.
            whole[:] = array("q", (even["collective_seq_id"], even["p2p_seq_id"], even["time_created_ns"]))
        except NOT_UNDERSTOOD:
            continue
        found.append(even)
    return found, len(entries) - len(found)


def _tracks(columns: Columns, kinds: Sequence[CallForm], groups: Mapping[str, Group], texts: dict[str, int]) -> tuple[tuple[Track, ...], int]:
    """With how many entries have a number that is none."""
    for kind in kinds:
        if not kind.p2p:
            texts.setdefault(kind.text, len(texts))
    names = {name: n for n, name in enumerate(dict.fromkeys(kind.group for kind in kinds if not kind.p2p))}
    of_kind = tuple(None if kind.p2p else (names[kind.group], texts[kind.text]) for kind in kinds)
    sums = _sums(columns, kinds) if any(k.sums is not None and not k.p2p for k in kinds) else {}
    gloo = {k.group for k in kinds if k.gloo}
    tracks, strays = [], 0
    for name, (places, ids) in zip(names, split(columns.kind_of.tobytes(), of_kind, len(names)), strict=True):
        if not ids:
            continue
        seqs, states, times = columns.numbers, columns.ends, columns.created
        if places is not None:
            seqs, states, times = array("q", places(seqs)), bytearray(places(states)), array("q", places(times))
        if (near := _near_each_other(seqs)) is not None:
            strays += len(seqs) - len(near)
            ids, seqs, times = (array(c.typecode, map(c.__getitem__, near)) for c in (ids, seqs, times))
            states = bytearray(map(states.__getitem__, near))
        track = _track(groups[name], ids, seqs, states, times, texts, gloo=name in gloo, lost=columns.lost, cut=columns.cut is not None)
        if track is not None:
            tracks.append(replace(track, sums=sums[name]) if name in sums else track)
    return tuple(tracks), strays


@lru_cache(maxsize=16)
def split(
    kind_of: bytes, of_kind: tuple[tuple[int, int] | None, ...], groups: int
) -> tuple[tuple[Callable[[Any], tuple[int, ...]] | None, array[int]], ...]:
    """For each group what takes its entries out of a column, None for all of them, and its calls. `of_kind`: group and call of each kind. On most
    ranks they are the same."""
    kinds = array("I")
    kinds.frombytes(kind_of)
    places: list[list[int]] = [[] for _ in range(groups)]
    ids = [array("I") for _ in range(groups)]
    for place, kind in enumerate(kinds):
        if (of := of_kind[kind]) is not None:
            places[of[0]].append(place)
            ids[of[0]].append(of[1])
    # Of one place itemgetter gives no tuple.
    return tuple(
        (None if len(at) == len(kinds) else itemgetter(*at) if len(at) > 1 else lambda column, at=at: tuple(column[n] for n in at), calls)
        for at, calls in zip(places, ids, strict=True)
    )


def _sums(columns: Columns, kinds: Sequence[CallForm]) -> dict[str, dict[int, tuple[int, int]]]:
    """Of the newest calls of each group that has any."""
    told = [None if k.p2p or k.sums is None else (k.group, k.sums) for k in kinds]
    newest: dict[str, dict[int, tuple[int, int]]] = {}
    for k, number in zip(reversed(columns.kind_of), reversed(columns.numbers), strict=True):
        if (of := told[k]) is not None and len(known := newest.setdefault(of[0], {})) < _NEWEST:
            known.setdefault(number, of[1])
    return newest


def _near_each_other(numbers: array[int]) -> list[int] | None:
    """The places of those that may be numbers of one group; None for all of them."""
    if abs(numbers[-1] - numbers[0]) < len(numbers) and numbers.tobytes() == _dense(numbers[0], numbers[-1]):
        return None
    reach = len(numbers) + _MOST_HOLES
    if max(numbers) - min(numbers) <= reach:
        return None
    middle = sorted(numbers)[(len(numbers) - 1) // 2]
    return [place for place, n in enumerate(numbers) if abs(n - middle) <= reach // 2]


def _track(
    group: Group,
    ids: array[int],
    numbers: array[int],
    ends: bytearray,
    created: array[int],
    texts: dict[str, int],
    *,
    gloo: bool,
    lost: bool,
    cut: bool,
) -> Track | None:
    """None where nothing is left that is whole."""
    first, last = numbers[0], numbers[-1]
    if last - first + 1 != len(numbers) or numbers.tobytes() != _dense(first, last):
        first, last = min(numbers), max(numbers)
        ids, ends, created = _filled(first, last, ids, numbers, ends, created, texts)
    if gloo:
        # Whoever has issued another one behind it has been through it.
        ends = bytearray(ends)
        tail = len(ends)
        while tail and ends[tail - 1] != ENDED:
            tail -= 1
        through = tail if tail < len(ends) else tail - 1
        for i in range(through):
            if ends[i] == ENDED:
                ends[i] = COMPLETED
    if cut:
        # The number at the end of the file may have been one of several calls that were launched together, and the others are lost.
        left = len(ids) - 1
        while left and not ids[left - 1]:
            left -= 1
        ids, ends = ids[:left], ends[:left]
        if not left:
            return None
    calls = list(texts)
    unknown = {0} if lost and calls[ids[0]].split("+")[-1] == COALESCED else set[int]()
    if len(parts := calls[ids[-1]].split("+")) > 1 and parts[-1] != COALESCED:
        # It was being launched when the dump was taken.
        unknown.add(len(ids) - 1)
    if unknown:
        ids = array("I", (0 if i in unknown else call for i, call in enumerate(ids)))
    return Track(
        group=group,
        first=first,
        ids=ids,
        ends=ends,
        pending_ns={first + i: created[i] for i in compress(range(len(ends)), ends.translate(_IS_PENDING))},
        over_ns={first + i: created[i] for i in islice((i for i in range(len(ends) - 1, -1, -1) if ends[i] == COMPLETED and ids[i]), _TIMED)},
        gloo=gloo,
    )


@lru_cache(maxsize=16)
def _dense(first: int, last: int) -> bytes:
    return array("q", range(first, last + 1)).tobytes()


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


def _messages(columns: Columns, kinds: Sequence[CallForm], groups: Mapping[str, Group]) -> tuple[Message, ...]:
    """The pending ones, oldest first. Those that were launched together end with the entry "coalesced" of their number."""
    numbers, ends = columns.message_numbers, columns.ends
    of_message = [(place, kinds[columns.kind_of[place]], number) for place, number in numbers.items()]
    together = {(kind.group, number): ends[place] for place, kind, number in of_message if kind.op == COALESCED}
    found = list[Message]()
    for place, kind, number in of_message:
        if kind.op == COALESCED or together.get((kind.group, number), ends[place]) == COMPLETED or len(found) >= _MOST_MESSAGES:
            continue
        source, destination = operations.peers(kind.op) or (None, None)
        found.append(
            Message(
                kind="send" if kind.op.startswith("send") else "recv",
                group=groups[kind.group],
                source=source,
                destination=destination,
                elements=kind.elements,
                dtypes=kind.dtypes,
                created_ns=columns.created[place],
                number=number,
            )
        )
    return tuple(sorted(found, key=lambda m: m.created_ns))
