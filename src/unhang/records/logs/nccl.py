"""NCCL's own words, printed with NCCL_DEBUG=INFO: versions, communicators, transports, interfaces, settings, return-code traces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from unhang.records.logs.job_size import MAX_WORLD_SIZE
from unhang.records.logs.said import At, Init, NcclSaid, at
from unhang.records.logs.signature import Hit, Signature

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
TRACE = _context(".cc:", r"(?P<place>[\w/]{1,200}\.(?:cc|cu|h):\d{1,9}) -> (?P<code>[1-7])(?: \[Async thread\])?\s*$", keep=64)
SIGNATURES = (VERSION, START, COMPLETE, TRANSPORT, INTERFACE, SETTING, TRACE)


def read(hits: Iterable[Hit]) -> NcclSaid:
    """All of it, each value with the places where it stood."""
    versions: dict[str, list[At]] = {}
    transports: dict[str, list[At]] = {}
    interfaces: dict[str, list[At]] = {}
    settings: dict[str, list[At]] = {}
    inits: dict[object, Init] = {}
    traces: list[At] = []
    for h in hits:
        signature = h.signature
        if signature == VERSION:
            versions.setdefault(h.groups["version"], []).append(at(h))
        elif signature == TRANSPORT:
            transports.setdefault(h.groups["via"], []).append(at(h))
        elif signature == INTERFACE:
            interfaces.setdefault(f"{h.groups['kind']} {h.groups['interface'].strip()}", []).append(at(h))
        elif signature == SETTING:
            settings.setdefault(f"{h.groups['name']}={h.groups['value']}", []).append(at(h))
        elif signature == TRACE:
            traces.append(at(h))
        elif signature in (START, COMPLETE):
            if int(h.groups["nranks"]) > MAX_WORLD_SIZE:
                continue
            # The pointer is only unique within its process.
            key = (h.source, h.host, h.pid, h.groups["comm"], h.groups["comm_rank"])
            done = signature == COMPLETE or (key in inits and inits[key].completed)
            inits[key] = Init(
                at=at(h),
                comm=h.groups["comm"],
                comm_id=h.groups.get("comm_id"),
                rank=int(h.groups["comm_rank"]),
                nranks=int(h.groups["nranks"]),
                completed=done,
            )
    return NcclSaid(
        versions=_frozen(versions),
        inits=tuple(inits.values()),
        transports=_frozen(transports),
        interfaces=_frozen(interfaces),
        settings=_frozen(settings),
        traces=tuple(traces),
    )


def _frozen(found: Mapping[str, list[At]]) -> dict[str, tuple[At, ...]]:
    return {k: tuple(v) for k, v in found.items()}
