"""One rank's flight-recorder dump: loaded without trust, and brought into one shape whatever backend and version wrote it.

A dump is a pickle of plain builtins, or JSON. The unpickler refuses every class, so that a dump from anywhere can be read. What may
surprise: Gloo never moves an entry's `state` from "scheduled", only `retired` marks its end, and its `pg_config` is keyed ''; NCCL's
`retired` without "completed" is a timeout; JSON writes the numbers of `pg_status` as strings and has no frames. Dumps that unhang took carry
the members of the groups behind the pickle.
"""

from __future__ import annotations

import io
import json
import pickle
import pickletools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

from unhang.errors import RecordError
from unhang.records.frames import Frame
from unhang.records.incident import Counters

Sizes = tuple[tuple[int, ...], ...]

# A dump of 2,000 entries with stacks is about 5 MB.
MAX_BYTES = 512 * 1024 * 1024
# A call of 20 frames takes some 100 opcodes, and a second goes by over two million of them.
MAX_OPCODES = 20_000_000


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
class Group:
    """A process group as the dump names it; `members` is () where the dump does not say."""

    name: str
    desc: str = ""
    members: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Flight:
    """A whole dump. `calls` per group, oldest first. `lost`: the ring has overwritten its beginning."""

    version: str
    groups: dict[str, Group] = field(default_factory=dict)
    calls: dict[str, tuple[Call, ...]] = field(default_factory=dict)
    counters: dict[str, Counters] = field(default_factory=dict)
    lost: bool = False


def load(path: Path) -> Flight:
    """Read a dump, pickle or JSON. Raises RecordError where it is missing, cut off, foreign or refused."""
    try:
        # Devices and pipes have no end, whatever their size says.
        if path.exists() and not path.is_file():
            raise RecordError(f"{path} is no file")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as e:
        raise RecordError(f"cannot read {path}: {e.strerror or e}") from e
    if len(data) > MAX_BYTES:
        raise RecordError(f"{path} is larger than any flight-recorder dump (more than {MAX_BYTES} bytes)")
    return parse(data, source=str(path))


def parse(data: bytes, *, source: str = "the dump") -> Flight:
    """The same, of bytes in hand."""
    if not data:
        raise RecordError(f"{source} is empty", cause="the process ended while it was writing")
    raw = _decode(data, source)
    if not isinstance(raw, dict):
        raise RecordError(f"{source} is not a flight-recorder dump: it holds a {type(raw).__name__}")
    try:
        return _normalise(raw)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as e:
        raise RecordError(f"{source} is not a flight-recorder dump that can be understood: {type(e).__name__}: {e}") from e


class _Refusing(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise RecordError(f"the dump asks for {module}.{name}", cause="a dump holds plain values only; this file was made by something else")


def _decode(data: bytes, source: str) -> object:
    try:
        if data.lstrip()[:1] in (b"{", b"["):
            return json.loads(data)
        return _unpickled(data)
    except RecordError as e:
        raise RecordError(f"{source} is refused: {e}", cause=e.cause) from None
    except Exception as e:  # damaged pickles raise nearly anything
        raise RecordError(f"{source} is damaged: {type(e).__name__}: {e}", cause="it was cut off, or it is no flight-recorder dump") from e


def _unpickled(data: bytes) -> object:
    stream = io.BytesIO(data)
    # The unpickler makes room for what an opcode claims before it has seen it: 9 bytes may ask for 4 GB.
    for number, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
        if number > MAX_OPCODES or (opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and (argument or 0) > len(data)):
            raise RecordError("it asks for more than its size can hold", cause="it is no flight-recorder dump")
    behind = data[stream.tell() :]
    raw = _Refusing(io.BytesIO(data)).load()
    return raw | {"members": json.loads(behind)["members"]} if isinstance(raw, dict) and behind.startswith(b"{") else raw


def _normalise(raw: Mapping[str, Any]) -> Flight:
    if "entries" not in raw and "pg_status" not in raw:
        raise ValueError("neither entries nor pg_status")
    calls: dict[str, list[Call]] = {}
    groups: dict[str, Group] = {}
    name_of_id: dict[str, str] = {}
    for entry in raw.get("entries") or ():
        name, desc = _group_of(entry)
        name_of_id[str(entry.get("pg_id", name))] = name
        groups.setdefault(name, Group(name=name, desc=desc))
        calls.setdefault(name, []).append(_call(entry, name))
    for name, config in (raw.get("pg_config") or {}).items():
        # Gloo writes one entry keyed '' whose ranks belong to the default group, if they are there at all.
        key = name or next((g.name for g in groups.values() if g.desc == "default_pg"), "0")
        members = _members(config.get("ranks"))
        known = groups.get(key, Group(name=key, desc=str(config.get("desc") or "")))
        groups[key] = Group(name=key, desc=known.desc or str(config.get("desc") or ""), members=members)
    for name, ranks in (raw.get("members") or {}).items():
        known = groups.get(name, Group(name=name))
        groups[name] = known if known.members else replace(known, members=_members(ranks))
    counters = {
        name_of_id.get(str(pg), str(pg)): Counters(
            enqueued=int(status.get("last_enqueued_collective", -1)),
            completed=int(status.get("last_completed_collective", -1)),
        )
        for pg, status in (raw.get("pg_status") or {}).items()
    }
    return Flight(
        version=str(raw.get("version", "")),
        groups=groups,
        calls={name: tuple(sorted(found, key=lambda c: (c.created_ns, c.seq))) for name, found in calls.items()},
        counters=counters,
        lost=min((int(e.get("record_id") or 0) for e in raw.get("entries") or ()), default=0) > 0,
    )


def _group_of(entry: Mapping[str, Any]) -> tuple[str, str]:
    group = entry.get("process_group")
    if isinstance(group, (list, tuple)) and group:
        return str(group[0]), str(group[1]) if len(group) > 1 else ""
    # Before version 2.1 entries carry only pg_id.
    return str(entry.get("pg_id", "0")), ""


def _call(entry: Mapping[str, Any], group: str) -> Call:
    name = str(entry.get("profiling_name") or "")
    backend, colon, op = name.partition(":")
    if not colon:
        backend, op = "", name
    p2p = bool(entry.get("is_p2p")) or op.startswith(("send ", "recv "))
    seq = entry.get("p2p_seq_id") if p2p else entry.get("collective_seq_id", entry.get("seq_id"))
    completed = entry.get("state") == "completed"
    return Call(
        group=group,
        seq=int(seq or 0),
        op=op,
        backend=backend,
        input_sizes=_sizes(entry.get("input_sizes")),
        output_sizes=_sizes(entry.get("output_sizes")),
        dtypes=tuple(str(d) for d in entry.get("input_dtypes") or ()),
        done=bool(entry.get("retired")) or completed if backend == "gloo" else completed,
        op_id=None if entry.get("op_id") is None else int(entry["op_id"]),
        is_p2p=p2p,
        frames=tuple(_frames(entry.get("frames") or ())),
        created_ns=int(entry.get("time_created_ns") or 0),
    )


def _frames(raw: Iterable[Mapping[str, Any]]) -> list[Frame]:
    frames = [Frame(file=str(f.get("filename", "")), line=int(f.get("line") or 0), name=str(f.get("name", ""))) for f in raw]
    frames.reverse()
    return frames


def _sizes(raw: Any) -> Sizes:
    return tuple(tuple(int(n) for n in size) for size in raw or ())


def _members(raw: Any) -> tuple[int, ...]:
    """`ranks` is a string, "[0, 1]", in every version so far."""
    if isinstance(raw, str):
        return tuple(int(n) for n in raw.strip("[] ").split(",") if n.strip())
    return tuple(int(n) for n in raw or ())
