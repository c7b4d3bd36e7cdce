"""What stands in a dump, whatever backend and version wrote it: its calls as objects, its groups and what is counted of them.

What may surprise: Gloo never moves an entry's `state` from "scheduled", only `retired` marks its end, and its `pg_config` is keyed ''; NCCL's
`retired` without "completed" is a timeout, and of calls that were launched together only the last entry, "coalesced", ever completes; a group that
was destroyed and made again starts with number 1 and its old name, in the same ring; JSON writes the numbers of `pg_status` as strings and has no
frames. Dumps that unhang took carry the members of the groups behind the pickle.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from math import prod
from typing import Any

from unhang.errors import RecordError
from unhang.flight.coalesced import COALESCED
from unhang.flight.dump_file import DumpFile
from unhang.flight.rank_from_name import is_rank
from unhang.frames import Frame, user_frame
from unhang.model import Counters, frozen
from unhang.user_files import is_user_file

Sizes = tuple[tuple[int, ...], ...]
# File, line, function.
Site = tuple[str, int, str]

_MOST_GROUPS = 10_000
# Of all groups of a process together: 40 with 100,000 ranks each.
_MOST_MEMBERS = 4_000_000
NOT_UNDERSTOOD = (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError)


@frozen
class Call:
    """One collective or point-to-point call as one rank issued it; `frames` innermost last, () in JSON dumps.

    `seq` counts collectives (or messages) of the group, `op_id` all operations; None where the dump does not tell.
    """

    group: str
    seq: int
    op: str
    backend: str = ""
    input_sizes: Sizes = ()
    output_sizes: Sizes = ()
    dtypes: tuple[str, ...] = ()
    done: bool
    op_id: int | None = None
    is_p2p: bool = False
    frames: tuple[Frame, ...] = ()
    created_ns: int = 0

    @property
    def elements(self) -> tuple[int, ...]:
        return tuple(prod(s) for s in self.input_sizes)

    @property
    def output_elements(self) -> tuple[int, ...]:
        return tuple(prod(s) for s in self.output_sizes)


@frozen
class Group:
    """A process group as the dump names it; `members` is () where the dump does not say."""

    name: str
    desc: str = ""
    members: tuple[int, ...] = ()


@frozen
class Flight:
    """A whole dump. `calls` per group, oldest first. `lost`: the ring has overwritten its beginning.

    `cut` says what of the file could not be read, `untold` what the recorder does not tell; `skipped` counts the entries that could not be
    understood.
    """

    groups: Mapping[str, Group] = field(default_factory=dict)
    calls: Mapping[str, tuple[Call, ...]] = field(default_factory=dict)
    counters: Mapping[str, Counters] = field(default_factory=dict)
    lost: bool = False
    cut: str | None = None
    untold: str | None = None
    skipped: int = 0


def alone(found: tuple[DumpFile, ...], source: str) -> DumpFile:
    """The only dump in a file. Raises RecordError where there are several."""
    if len(found) > 1:
        raise RecordError(f"{source} holds the dumps of {len(found)} ranks, where that of one was expected")
    return found[0]


@contextlib.contextmanager
def understood(source: str) -> Iterator[None]:
    """Raises RecordError in place of whatever a dump that is none raises where it is read."""
    try:
        yield
    except NOT_UNDERSTOOD as e:
        raise RecordError(f"{source} is not a flight-recorder dump that can be understood: {type(e).__name__}: {e}") from e


def newest_generation(raw: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
    """A dump without the entries of groups that were destroyed and made again by the same name, and how many default groups are among these.

    Each process numbers its groups as it makes them. With the default group all groups end. Names that several living groups have at once stay.
    """
    span: dict[str, dict[int, tuple[int, int]]] = {}
    descs: dict[str, str] = {}
    entries = raw.get("entries") or ()
    for place, entry in enumerate(entries):
        try:
            name, desc = group_of(entry)
            pg = int(entry["pg_id"])
        except NOT_UNDERSTOOD:
            continue
        of_name = span.setdefault(name, {})
        of_name[pg] = (of_name.get(pg, (place, place))[0], place)
        descs[name] = desc
    gone = {pg for of_name in span.values() if _behind_each_other(of_name) for pg in sorted(of_name)[:-1]}
    worlds = max((of_name for name, of_name in span.items() if descs[name] == "default_pg" and gone & of_name.keys()), key=len, default={})
    newest = max(worlds, default=0)
    gone |= {pg for of_name in span.values() for pg in of_name if pg < newest}
    if not gone:
        return raw, 0
    ids = set(map(str, gone))
    status = raw.get("pg_status")
    return {
        **raw,
        "entries": [e for e in entries if not (isinstance(e, Mapping) and str(e.get("pg_id")) in ids)],
        "pg_status": {pg: told for pg, told in status.items() if str(pg) not in ids} if isinstance(status, Mapping) else {},
    }, max(len(worlds) - 1, 0)


def _behind_each_other(span: Mapping[int, tuple[int, int]]) -> bool:
    """Whether the entries of each generation begin behind the end of those of the one before; False for one alone."""
    in_turn = [span[pg] for pg in sorted(span)]
    return len(in_turn) > 1 and all(one[1] < other[0] for one, other in itertools.pairwise(in_turn))


def pending_of(flight: Flight | None, group: str, number: int | None, *, is_p2p: bool, kind: str = "") -> Call | None:
    """A rank's call with this number whose operation begins with `kind`, of several launched together one that is not over, if any is."""
    calls = flight.calls.get(group, ()) if flight is not None else ()
    there = [c for c in calls if c.is_p2p == is_p2p and c.seq == number and c.op.startswith(kind) and c.op != COALESCED]
    return next((c for c in there if not c.done), there[0] if there else None)


def not_understood(entries: int) -> str | None:
    """What is lost with so many entries: any of them may have been the newest of its group."""
    return f"{entries} of its entries could not be understood" if entries else None


def counters_of(raw: Mapping[str, Any], name_of_id: Mapping[str, str]) -> dict[str, Counters]:
    """What the dump counts of each group, by name, where it can be understood."""
    status = raw.get("pg_status")
    found: dict[str, Counters] = {}
    # An id may be another group's name.
    for pg, told in sorted(status.items(), key=lambda item: str(item[0]) in name_of_id) if isinstance(status, Mapping) else ():
        try:
            found[name_of_id.get(str(pg), str(pg))] = Counters(
                enqueued=int(told.get("last_enqueued_collective", -1)), completed=int(told.get("last_completed_collective", -1))
            )
        except NOT_UNDERSTOOD:
            continue
    return found


def names_of_all(raw: Mapping[str, Any], name_of_id: Mapping[str, str], defaults: Collection[str]) -> dict[str, str]:
    """The names of all groups that a dump counts, by the number that the process gave them, also of those of which no entry is left.

    Groups are numbered in the order in which they are named, hence what is left of both belongs together, if it is equally many; "#ID" where that
    does not tell. Those from before the newest of `defaults`, default groups, are not among them: nobody counts what became of their calls.
    """
    status, configs = raw.get("pg_status"), raw.get("pg_config")
    ids = [str(pg) for pg in status if str(pg).isdecimal()] if isinstance(status, Mapping) else []
    newest = max((int(pg) for pg, name in name_of_id.items() if name in defaults and pg.isdecimal()), default=0)
    ids = [pg for pg in ids if int(pg) >= newest]
    found = {pg: name_of_id.get(pg, f"#{pg}") for pg in ids}
    left = [pg for pg in ids if pg not in name_of_id]
    named = set(name_of_id.values())
    free = [name for name in map(str, configs if isinstance(configs, Mapping) else ()) if name and name not in named]
    if len(left) != len(free) or not all(name.isdecimal() for name in free[1:]):
        return found
    if len(left) > 1:
        left.sort(key=int)
        free.sort(key=int)
    joined = {**found, **dict(zip(left, free, strict=True))}
    in_turn = [int(name) for pg in sorted(joined, key=int) if (name := joined[pg]).isdecimal()]
    return joined if in_turn == sorted(in_turn) else found


def together(accelerator: Flight, cpu: Flight) -> Flight:
    """Two recorders of one process. A group may have both backends, each with numbers of its own: Gloo's part of it is called "cpu:NAME", as in
    heartbeats."""

    def renamed(name: str) -> str:
        return f"cpu:{name}"

    return replace(
        accelerator,
        groups={**cpu.groups, **{name: g for name, g in accelerator.groups.items() if g.members or name not in cpu.groups}},
        calls={**accelerator.calls, **{renamed(name): tuple(replace(c, group=renamed(name)) for c in calls) for name, calls in cpu.calls.items()}},
        counters={**accelerator.counters, **{renamed(name): c for name, c in cpu.counters.items()}},
        lost=accelerator.lost or cpu.lost,
        cut=accelerator.cut or cpu.cut,
        untold=accelerator.untold or cpu.untold,
        skipped=accelerator.skipped + cpu.skipped,
    )


def configured(raw: Mapping[str, Any], groups: Mapping[str, Group]) -> dict[str, Group]:
    """The groups that a dump's configuration names; `groups` are those that its entries name."""
    found: dict[str, Group] = {}
    configs, members = raw.get("pg_config"), raw.get("members")
    if any(isinstance(of, Mapping) and len(of) > _MOST_GROUPS for of in (configs, members, raw.get("pg_status"))):
        raise ValueError("more groups than a process has")
    for name, config in configs.items() if isinstance(configs, Mapping) else ():
        # Gloo writes one entry keyed '' whose ranks belong to the default group, if they are there at all.
        key = str(name) or next((g.name for g in groups.values() if g.desc == "default_pg"), "0")
        # Version 1.4 has nothing but the ranks.
        config = config if isinstance(config, Mapping) else {"ranks": config} if isinstance(config, (list, tuple)) else {}
        desc = str(config.get("desc") or "")
        known = groups.get(key, Group(name=key, desc=desc))
        found[key] = Group(name=key, desc=known.desc or desc, members=members_of(config.get("ranks")))
    for name, ranks in members.items() if isinstance(members, Mapping) else ():
        known = found.get(name) or groups.get(name) or Group(name=name)
        found[name] = known if known.members else replace(known, members=members_of(ranks))
    if sum(len(group.members) for group in found.values()) > _MOST_MEMBERS:
        raise ValueError("more members of groups than a job has")
    return found


def group_of(entry: Mapping[str, Any]) -> tuple[str, str]:
    """(name, description) of the group of an entry."""
    group = entry.get("process_group")
    if isinstance(group, (list, tuple)) and group:
        return str(group[0]), str(group[1]) if len(group) > 1 else ""
    # Before version 2.1 entries carry only pg_id.
    return str(entry.get("pg_id", "0")), ""


def members_of(raw: Any) -> tuple[int, ...]:
    """`ranks` is a string, "[0, 1]", in every version so far; () for what cannot be understood, which is no list of members."""
    return _members_in(raw) if isinstance(raw, str) else _members(raw)


@lru_cache(maxsize=64)
def _members_in(text: str) -> tuple[int, ...]:
    text = text.strip()
    names = [n.strip() for n in text[1:-1].split(",")] if text[:1] == "[" and text[-1:] == "]" else []
    return _members(names) if all(n.isdecimal() for n in names) else ()


def _members(raw: Any) -> tuple[int, ...]:
    try:
        members = tuple(int(n) for n in raw or ())
    except (TypeError, ValueError, OverflowError):
        return ()
    return members if all(map(is_rank, members)) else ()


def sites_of(entries: Sequence[Mapping[str, Any]]) -> list[Site | None]:
    """The line of the user's code that issued each entry, as the dump has it; None where no line is the user's, or its frames are none."""
    frames = [entry.get("frames") or () for entry in entries]
    # In a pickle the very same frames stand in thousands of entries, and often the very same list of them.
    of_list: dict[int, Site | None] = {}
    of_frames: dict[tuple[int, ...], Site | None] = {}
    for stack in frames:
        if id(stack) not in of_list:
            key = tuple(map(id, stack)) if isinstance(stack, (list, tuple)) else ()
            if key not in of_frames:
                of_frames[key] = _site(stack) if key else None
            of_list[id(stack)] = of_frames[key]
    return [of_list[id(stack)] for stack in frames]


def _site(stack: Sequence[Mapping[str, Any]]) -> Site | None:
    try:
        # As `user_frame` does, and mostly done before the frames are brought into objects.
        for f in stack:
            if _is_user_file(file := str(f.get("filename", ""))):
                return file, int(f.get("line") or 0), str(f.get("name", ""))
        frame = user_frame(
            [Frame(file=str(f.get("filename", "")), line=int(f.get("line") or 0), name=str(f.get("name", ""))) for f in reversed(stack)]
        )
    except (TypeError, ValueError, AttributeError):
        return None
    return None if frame is None else (frame.file, frame.line, frame.name)


_is_user_file = lru_cache(maxsize=4096)(is_user_file)
