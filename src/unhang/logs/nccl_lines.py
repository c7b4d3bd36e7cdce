"""NCCL's own words, printed with NCCL_DEBUG=INFO: versions, communicators, transports, interfaces, settings, return-code traces, collectives."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from unhang.logs.log_facts import MAX_WORLD_SIZE, At, Call, Init, NcclSaid, at
from unhang.logs.signature import HARMLESS, Hit, Signature, compiled

# What a trace's numbers mean (ncclResult_t, nccl.h).
RESULTS: Mapping[int, str] = {
    1: "unhandled CUDA error",
    2: "system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    6: "remote error",
    7: "in progress",
}


def _context(needle: str, pattern: str, keep: int = 256) -> Signature:
    return Signature(needle=needle, pattern=pattern, role="context", keep=keep)


# Its rank is the one within the communicator, and so no group `rank`: that would say whose line it is.
_COMM = (
    r"comm (?P<comm>0x[0-9a-f]{1,16}) rank (?P<comm_rank>\d{1,9}) nranks (?P<nranks>\d{1,9}) "
    r"(?:.{0,300}?commId (?P<comm_id>0x[0-9a-f]{1,16}))?.{0,300}?"
)
VERSION = _context("NCCL version ", r"NCCL version (?P<version>\d{1,4}\.\d{1,4}(?:\.\d{1,4})?)")
START = _context(
    " - Init START",
    rf"{_COMM}Init START",
    keep=4096,
)
COMPLETE = _context(
    " - Init COMPLETE",
    rf"{_COMM}Init COMPLETE",
    keep=4096,
)
TRANSPORT = _context("] via ", r"\d{1,9}\[[0-9a-f]{1,16}\] -> \d{1,9}\[[0-9a-f]{1,16}\] (?:\[\w{1,20}\] )?via (?P<via>[A-Z][\w/.:-]{0,100})", keep=64)
# NET/Socket : Using [0]eth0:10.0.0.7<0>; NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.7<0>; Bootstrap : Using eth0:10.0.0.7<0>
INTERFACE = _context(" : Using ", r"(?P<kind>Bootstrap|NET/\w{1,30}) : Using (?P<interface>[^;\n]{1,500}(?:; OOB \S{1,200})?)", keep=64)
SETTING = _context("set by environment to ", r"(?P<name>NCCL_\w{1,100}) set by environment to (?P<value>\S{1,1000}?)\.?(?:\s|$)")
TRACE = _context(".cc:", r"(?P<place>(?<![\w/])[\w/]{1,200}\.(?:cc|cu|h):\d{1,9}) -> (?P<code>[1-7])(?: \[Async thread\])?\s*$", keep=64)
# NCCL_DEBUG_SUBSYS=COLL: every call, so that only the last of each log count. RCCL adds whose it is.
CALL = Signature(
    needle=": opCount ",
    pattern=r"(?P<op>[A-Z]\w{1,40}): opCount (?P<count>[0-9a-f]{1,16}) sendbuff .{0,300}? comm (?P<comm>0x[0-9a-f]{1,16}) "
    r"\[nranks=(?P<nranks>\d{1,9})\](?:.{0,100}? globalrank (?P<rank>\d{1,9}))?",
    role="context",
    keep=128,
    newest=True,
)
# `cudaDev 1 nvmlDev 1 busId 3b000`: the PCI address of the writer's GPU as one hexadecimal number, without the signs between its parts.
BUS_ID = _context(" busId ", r"cudaDev \d{1,4} .{0,60}?busId (?P<bus>[0-9a-f]{4,12})\b")
_SAID = r"(?P<said>\S.{0,500})"
# nccl2, where the script names no device (TORCH_CPP_LOG_LEVEL=INFO).
GUESSED = _context("User did not provide device ID", r"using device (?P<device>\w{1,20}:\d{1,4})", keep=64)
# RCCL complains at each start of a kernel without iommu=pt.
WARN = _context("NCCL WARN ", rf"NCCL WARN (?!Missing \"|.{{0,300}}(?:{HARMLESS})){_SAID}", keep=64)
# torch puts the words on a line of their own, nccl2 behind it; they may be missing.
LAST_ERROR = (
    _context("Last error:", rf"Last error: *{_SAID}", keep=64),
    _context("Last Error: ", rf"Last Error: *{_SAID}", keep=64),
    Signature(
        needle="Last error:",
        pattern=r"Last error:$",
        then=rf"(?!Traceback \(|Exception raised|terminate called|\[[EWIF]\d{{3,4}} ){_SAID}",
        role="context",
        keep=64,
    ),
)
SIGNATURES = (VERSION, START, COMPLETE, TRANSPORT, INTERFACE, SETTING, TRACE, CALL, BUS_ID, GUESSED, WARN, *LAST_ERROR)
# Which field of NcclSaid a value belongs to, and how it is put together.
_VALUES: Mapping[Signature, tuple[str, str]] = {
    VERSION: ("versions", "{version}"),
    TRANSPORT: ("transports", "{via}"),
    INTERFACE: ("interfaces", "{kind} {interface}"),
    SETTING: ("settings", "{name}={value}"),
    GUESSED: ("guessed", "{device}"),
    WARN: ("warnings", "{said}"),
    **dict.fromkeys(LAST_ERROR, ("last_errors", "{said}")),
}
# Each rank sends and receives as often as it has to: their communicators are not counted alike.
_POINT_TO_POINT = ("Send", "Recv")
# Source, host, pid and pointer, which is only unique within its process.
_Communicator = tuple[str, str | None, int | None, str]


def gpu_of(hit: Hit) -> str | None:
    """The PCI address that a hit of BUS_ID tells, as sysfs writes it: "0000:3b:00.0"."""
    if hit.signature != BUS_ID:
        return None
    number = hit.groups["bus"].zfill(5)
    return f"{int(number[:-5] or '0', 16):04x}:{number[-5:-3]}:{number[-3:-1]}.{number[-1]}"


def read(hits: Iterable[Hit]) -> NcclSaid:
    """All of it, each value with the places where it stood."""
    values: dict[str, dict[str, list[At]]] = {field: {} for field, _ in _VALUES.values()}
    inits: dict[tuple[_Communicator, str], Init] = {}
    traces: list[At] = []
    calls: dict[str, list[Hit]] = {}
    for h in hits:
        if (of := _VALUES.get(h.signature)) is not None:
            field, said = of
            values[field].setdefault(said.format_map(h.groups).strip(), []).append(at(h))
        elif h.signature == TRACE:
            traces.append(at(h))
        elif h.signature == CALL:
            calls.setdefault(h.source, []).append(h)
        elif h.signature in (START, COMPLETE) and int(h.groups["nranks"]) <= MAX_WORLD_SIZE:
            key = (_communicator(h), h.groups["comm_rank"])
            inits[key] = Init(
                at=at(h),
                comm=h.groups["comm"],
                comm_id=h.groups.get("comm_id"),
                rank=int(h.groups["comm_rank"]),
                nranks=int(h.groups["nranks"]),
                completed=h.signature == COMPLETE or (key in inits and inits[key].completed),
            )
    return NcclSaid(
        inits=tuple(inits.values()),
        traces=tuple(traces),
        calls=tuple(_last_calls(calls.values(), {c: i.comm_id for (c, _), i in inits.items()})),
        **{field: {value: tuple(places) for value, places in found.items()} for field, found in values.items()},
    )


def _last_calls(logs: Iterable[list[Hit]], ids: Mapping[_Communicator, str | None]) -> Iterator[Call]:
    """The last call of each process on each communicator."""
    for hits in logs:
        hits.sort(key=lambda h: h.place)
        last: dict[_Communicator, Hit] = {}
        for h in hits:
            key = _communicator(h)
            if key not in last or last[key].groups["op"] not in _POINT_TO_POINT:
                last[key] = h
        for key, h in last.items():
            if h.groups["op"] not in _POINT_TO_POINT:
                yield Call(at=at(h), op=h.groups["op"], count=int(h.groups["count"], 16), comm_id=ids.get(key), nranks=int(h.groups["nranks"]))


def _communicator(hit: Hit) -> _Communicator:
    return (hit.source, hit.host, hit.pid, hit.groups["comm"])


# What one process used. The wording is that of net.cc, p2p.cc, shm.cc, init.cc and enqueue.cc of NCCL 2.20 to 2.29.
TRANSPORTS = "NCCL transports"
NETWORK = "NCCL network"
CONNECTED = "NCCL connected"
ALGORITHMS = "NCCL algorithms"

# Trees are connected when a collective first needs them (2.22 and later), before that always.
_CONNECTED = r"Connected (?:all )?(?P<what>rings|trees|NVLS[\w ]{0,20}?|[Cc]ollnet[\w ]{0,20}?)(?:,|\s*$| comm )"
# NCCL_DEBUG_SUBSYS=TUNING, by the first rank of each communicator.
_ALGORITHM = r"(?P<op>[A-Z]\w{1,30}): \d{1,20} Bytes -> Algo (?P<algorithm>\w{1,30}) proto (?P<protocol>\w{1,30})"
# Which of several adapters or links it is differs between ranks.
_NUMBER = re.compile(r"/\d+(?=/|$)")
_MAX_LINES = 1_000_000


def read_used(path: Path) -> dict[str, str]:
    """What the log says, by the names above; a name is missing if nothing of the kind was printed. Raises OSError."""
    found: dict[str, set[str]] = {}
    with path.open(errors="replace") as lines:
        for _, line in zip(range(_MAX_LINES), lines, strict=False):
            if "] via " in line and (hit := compiled(TRANSPORT.pattern).search(line)):
                found.setdefault(TRANSPORTS, set()).add(_NUMBER.sub("", hit["via"]))
            elif " : Using " in line and (hit := compiled(INTERFACE.pattern).search(line)) and hit["kind"] != "Bootstrap":
                found.setdefault(NETWORK, set()).add(f"{hit['kind'].removeprefix('NET/')} {hit['interface'].strip()}")
            elif "Connected " in line and (hit := compiled(_CONNECTED).search(line)):
                found.setdefault(CONNECTED, set()).add(hit["what"])
            elif " -> Algo " in line and (hit := compiled(_ALGORITHM).search(line)):
                found.setdefault(ALGORITHMS, set()).add(f"{hit['op']} {hit['algorithm']}/{hit['protocol']}")
    return {name: ", ".join(sorted(values)) for name, values in found.items()}
