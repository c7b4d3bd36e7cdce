"""The JSON answer of RAS (2.28.7 and later): every rank that RAS knows, one by one, without judgement. What newer versions add is left out.

The text answer judges; here the same rules are applied, so that both say the same. Source: NCCL, src/ras/client_support.cc.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import get_args

import msgspec

from unhang import encoding
from unhang.errors import RecordError
from unhang.ras.model import (
    MAX_COMMUNICATORS,
    Communicator,
    Failure,
    InState,
    Launched,
    Member,
    Missing,
    Phase,
    Process,
    Report,
    State,
    normal_hash,
)

# 200,000 ranks are ten communicators on each of 20,000 GPUs. A rank has about 18 fields.
MAX_RANKS = 1 << 18
MAX_FIELDS = 18 * MAX_RANKS
# NCCL 2.32 counts 13 kinds of operations.
_MAX_KINDS = 256
# Ranks that have launched equally much share what they have launched.
_KEPT_COUNTS = 256

# nccl.h, ncclResult_t. In the words of the text answer.
_SUCCESS, _IN_PROGRESS = 0, 7
_RESULTS = {
    1: "Unhandled CUDA error",
    2: "System error",
    3: "Internal error",
    4: "Invalid argument",
    5: "Invalid usage",
    6: "Remote process error",
}
# The furthest first.
_ORDER: tuple[State, ...] = ("ABORT", "FINALIZE", "RUNNING", "INIT", "NOCOMM")


class _RankStatus(msgspec.Struct):
    init_state: int = _SUCCESS
    async_error: int = _SUCCESS
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False


class _MissingStatus(msgspec.Struct):
    unresponsive: bool | None = None
    considered_dead: bool | None = None


class _Rank(msgspec.Struct):
    rank: int
    host: str | None = None
    pid: int | None = None
    nvml_dev: int | None = None
    status: _RankStatus | None = None
    collective_counts: dict[str, int] = {}


class _MissingRank(msgspec.Struct):
    rank: int
    host: str | None = None
    pid: int | None = None
    nvml_dev: int | None = None
    status: _MissingStatus | None = None


class _Communicator(msgspec.Struct):
    hash: str
    size: int
    secondary_hash: str = ""
    missing_ranks_count: int = 0
    ranks: list[msgspec.Raw] = []
    missing_ranks: list[msgspec.Raw] = []


class _Ras(msgspec.Struct):
    timeouts_count: int = 0


class _Whole(msgspec.Struct):
    communicators: list[msgspec.Raw]
    nccl_version: str = ""
    timestamp: str = ""
    ras: _Ras | None = None


_WHOLE = msgspec.json.Decoder(_Whole)
_COMMUNICATOR = msgspec.json.Decoder(_Communicator)
_RANK = msgspec.json.Decoder(_Rank)
_MISSING_RANK = msgspec.json.Decoder(_MissingRank)


def parse(data: bytes, *, source: str, cut: str | None = None) -> Report:
    """Read a JSON answer. Raises RecordError where it is cut off, damaged, none of RAS, or larger than any job's."""
    # Every field has a colon, and nothing is made in memory without one but empty objects and lists.
    if (fields := max(map(data.count, (b":", b"{", b"[")))) > MAX_FIELDS:
        raise RecordError(f"{source} has more fields than any answer of NCCL's RAS (about {fields}, more than {MAX_FIELDS})")
    try:
        whole = _WHOLE.decode(data)
        if len(whole.communicators) > MAX_COMMUNICATORS:
            raise RecordError(f"{source} is damaged: it tells of {len(whole.communicators)} communicators")
        communicators = tuple(_communicators(whole.communicators, source))
    except encoding.NOT_JSON as e:
        why = cut or "the process that was asked ended while it answered, or this is no answer of NCCL's RAS"
        # In other words by each msgspec.
        said = "it is not valid UTF-8" if "utf-8" in str(e).lower() else e
        raise RecordError(f"{source} cannot be understood as an answer of NCCL's RAS ({len(data)} bytes): {said}", cause=why) from e
    named: list[Member | Missing] = []
    for c in communicators:
        named += [*c.members, *c.missing]
    lost = [m for c in communicators for m in c.missing]
    dead = _processes(m for m in lost if m.dead)
    gone = {(p.host, p.pid) for p in dead}
    silent = _processes(m for m in lost if m.unresponsive and (m.host, m.pid) not in gone)
    return Report(
        source=source,
        format="json",
        nccl_version=whole.nccl_version,
        timestamp=whole.timestamp,
        gpus=len({(r.host, r.pid, r.nvml_dev) for r in named if r.pid is not None and r.nvml_dev is not None}) or None,
        communicators=communicators,
        silent=silent,
        silent_count=len(silent),
        dead=dead,
        dead_count=len(dead),
        timeouts=whole.ras.timeouts_count if whole.ras else 0,
    )


def _communicators(written: Iterable[msgspec.Raw], source: str) -> Iterator[Communicator]:
    """One by one: what was decoded of one is gone before the next."""
    ranks = 0
    for one in written:
        raw = _COMMUNICATOR.decode(one)
        ranks += len(raw.ranks) + len(raw.missing_ranks)
        if ranks > MAX_RANKS:
            raise RecordError(f"{source} is damaged: it tells of more than {MAX_RANKS} ranks")
        yield _communicator(raw, source)


def _communicator(raw: _Communicator, source: str) -> Communicator:
    members, failed = list[Member](), {phase: defaultdict[int, list[int]](list) for phase in get_args(Phase)}
    kept: dict[tuple[tuple[str, int], ...], dict[str, int]] = {}
    for written in raw.ranks:
        rank = _RANK.decode(written)
        if len(kept) >= _KEPT_COUNTS:
            kept.clear()
        counts = kept.setdefault(tuple(rank.collective_counts.items()), rank.collective_counts)
        status = rank.status
        state = None if status is None else _state(status)
        members.append(
            Member(rank=rank.rank, host=_host(rank.host), pid=_known(rank.pid), nvml_dev=_known(rank.nvml_dev), state=state, counts=counts)
        )
        for phase, result in zip(failed, () if status is None else (status.init_state, status.async_error), strict=False):
            if result not in (_SUCCESS, _IN_PROGRESS):
                failed[phase][result].append(rank.rank)
    if len(set().union(*(m.counts for m in members))) > _MAX_KINDS:
        raise RecordError(f"{source} is damaged: communicator {raw.hash[:40]!r} has more than {_MAX_KINDS} kinds of operations")
    missing = tuple(_missing(_MISSING_RANK.decode(m)) for m in raw.missing_ranks)
    told = {m.rank for m in members} | {m.rank for m in missing}
    if len(told) < len(members) + len(missing) or not all(0 <= rank < raw.size for rank in (min(told, default=0), max(told, default=0))):
        raise RecordError(f"{source} is damaged: communicator {raw.hash[:40]!r} of {raw.size} ranks has a rank twice, or one that is not among them")
    # A rank that is listed nowhere has told nothing either.
    missing_count = max(raw.missing_ranks_count, raw.size - len(members))
    ranks: defaultdict[State, list[int]] = defaultdict(list)
    for m in members:
        if m.state is not None:
            ranks[m.state].append(m.rank)
    for gone in missing:
        if gone.unresponsive is False:
            ranks["NOCOMM"].append(gone.rank)
    found = [InState(state=state, ranks_count=len(of), ranks=tuple(sorted(of))) for state, of in ranks.items()]
    return Communicator(
        hash=normal_hash(raw.hash),
        secondary=raw.secondary_hash,
        size=raw.size,
        state=next((s for s in _ORDER if s in ranks), None),
        incomplete=any(m.unresponsive is not False for m in missing) or missing_count > len(missing),
        members=tuple(members),
        missing=missing,
        missing_count=missing_count,
        launched=tuple(_launched(members)),
        failures=tuple(
            _failure(phase, result, of) for phase, results in failed.items() for result, of in sorted(results.items(), key=lambda item: -len(item[1]))
        ),
        states=tuple(sorted(found, key=lambda s: -s.ranks_count)),
    )


def _failure(phase: Phase, result: int, ranks: Sequence[int]) -> Failure:
    return Failure(phase=phase, says=_RESULTS.get(result, f"Unexpected error {result}"), ranks_count=len(ranks), ranks=tuple(ranks))


def _missing(raw: _MissingRank) -> Missing:
    return Missing(
        rank=raw.rank,
        host=_host(raw.host),
        pid=_known(raw.pid),
        nvml_dev=_known(raw.nvml_dev),
        unresponsive=raw.status.unresponsive if raw.status else None,
        dead=raw.status.considered_dead if raw.status else None,
    )


def _state(status: _RankStatus) -> State:
    # ncclCommAbort sets both flags.
    if status.abort_flag:
        return "ABORT"
    if status.finalize_called or status.destroy_flag:
        return "FINALIZE"
    return "RUNNING" if status.init_state == _SUCCESS else "INIT"


def _launched(members: Sequence[Member]) -> Iterable[Launched]:
    """Kinds that nobody has used are left out; one that a rank does not count is not taken for zero."""
    found: dict[str, dict[int, list[int]]] = {}
    for m in members:
        for op, count in m.counts.items():
            found.setdefault(op, {}).setdefault(count, []).append(m.rank)
    for op, ranks in found.items():
        if any(ranks):
            yield from (Launched(op=op, count=count, ranks_count=len(ranks[count]), ranks=tuple(ranks[count])) for count in sorted(ranks))


def _processes(missing: Iterable[Missing]) -> tuple[Process, ...]:
    found: defaultdict[tuple[str | None, int | None], list[Missing]] = defaultdict(list)
    for m in missing:
        found[m.host, m.pid].append(m)
    return tuple(Process(host=host, pid=pid, nvml_devs=_numbers(m.nvml_dev for m in ranks)) for (host, pid), ranks in found.items())


def _numbers(devices: Iterable[int | None]) -> tuple[int, ...]:
    return tuple(sorted({d for d in devices if d is not None}))


def _host(host: str | None) -> str | None:
    return None if host in ("unknown", "") else host


def _known(number: int | None) -> int | None:
    """RAS writes -1 for what it does not know."""
    return number if number is not None and number >= 0 else None
