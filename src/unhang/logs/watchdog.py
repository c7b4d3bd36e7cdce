"""What torch's NCCL watchdog, or a thread that waits, prints about a collective that was given up: the collective, and its group's counters.

The rank that prints it came. A rank whose counters stand before the failed collective never entered it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from unhang.logs.log_facts import At, Status, Timeout, at
from unhang.logs.signature import Hit, Signature

# Numbers of ranks have up to 9 digits here, counters, elements and milliseconds up to 18: what is longer stands in a torn line.
# Every rank of a large job prints one of each.
_KEEP = 4096

# torch 1.x: `WorkNCCL(OpType=ALLREDUCE, TensorShape=[64], Timeout(ms)=1800000)`; SeqNum since 1.12, NumelIn and NumelOut since 2.1.
_WORK = (
    r"\w{1,60}\((?:SeqNum=(?P<seq>\d{1,18}), )?OpType=(?P<op>\w{1,60}),"
    r"(?: TensorShape=\[(?P<shape>[^\]]{0,2000})\],)?(?: NumelIn=(?P<numel_in>\d{1,18}), NumelOut=(?P<numel_out>\d{1,18}),)?"
    r" Timeout\(ms\)=(?P<timeout_ms>\d{1,18})\)"
)
_RANK = r"(?:\[Rank (?P<group_rank>\d{1,9})\] )?"
TIMEOUT = Signature(
    needle="Watchdog caught collective operation timeout",
    pattern=rf"{_RANK}Watchdog caught collective operation timeout: {_WORK}(?: ran for (?P<ran_ms>\d{{1,18}}) milliseconds)?",
    role="context",
    keep=_KEEP,
)
# Printed by the thread that waits, with TORCH_NCCL_BLOCKING_WAIT=1 (older versions name the variable behind it), later by `work.wait(timeout)` too.
BLOCKING = Signature(
    needle="timed out in blocking wait",
    pattern=rf"{_RANK}Work {_WORK} timed out in blocking wait",
    role="context",
    keep=_KEEP,
)
# Where a terminal broke the line within the words above, this still stands in its beginning.
_FILE = "ProcessGroupNCCL.cpp:"
_GIVEN_UP = (TIMEOUT, BLOCKING, TIMEOUT._replace(needle=_FILE))
# 2.3 `[PG 1 Rank 1] Timeout at NCCL work: 5, last enqueued NCCL work: 6, ...`; 2.4 `... detected by watchdog at work: 5, ...`; 2.5 names
# `[PG ID 0 PG GUID 0(default_pg) Rank 0]`; 2.6 `failure detected by watchdog at work sequence id: 5 PG status: last enqueued work: 6, ...`.
STATUS = Signature(
    needle="last enqueued ",
    pattern=r"(?:\[PG (?:ID )?(?P<id>\S{1,200})(?: PG GUID (?P<guid>[^\s\]]{1,200}))? Rank (?P<group_rank>\d{1,9})\][^\[\]]{0,300}?)?"
    r"(?:work sequence id|at NCCL work|at work):? (?P<failed>\d{1,18})[^\[\]]{0,60}?last enqueued (?:NCCL )?work: (?P<enqueued>-?\d{1,18}), "
    r"last completed (?:NCCL )?work: (?P<completed>-?\d{1,18})(?!\d)",
    role="context",
    keep=_KEEP,
)
_STATUSES = (STATUS, STATUS._replace(needle=_FILE))
SIGNATURES = (*_GIVEN_UP, *_STATUSES)
NEEDLES = frozenset(s.needle for s in SIGNATURES)


def timeouts(hits: Iterable[Hit]) -> tuple[Timeout, ...]:
    """The collectives that were given up. The group is that of the status which the same rank prints for the same number."""
    found = tuple(hits)
    groups = {(h.source, _at(h).rank, h.groups["failed"]): _group(h) for h in found if h.signature in _STATUSES}
    return tuple(
        Timeout(
            at=_at(h),
            group=groups.get((h.source, _at(h).rank, h.groups.get("seq", ""))),
            seq=_int(h, "seq"),
            op=h.groups["op"],
            numel_in=_int(h, "numel_in"),
            numel_out=_int(h, "numel_out"),
            timeout_ms=int(h.groups["timeout_ms"]),
            ran_ms=_int(h, "ran_ms"),
        )
        for h in _each_line(found, _GIVEN_UP)
    )


def statuses(hits: Iterable[Hit]) -> tuple[Status, ...]:
    """The counters that were printed, one for each line."""
    return tuple(
        Status(
            at=_at(h),
            group=_group(h),
            failed=int(h.groups["failed"]),
            enqueued=int(h.groups["enqueued"]),
            completed=int(h.groups["completed"]),
        )
        for h in _each_line(hits, _STATUSES)
    )


def _each_line(hits: Iterable[Hit], signatures: tuple[Signature, ...]) -> Iterable[Hit]:
    return {(h.source, h.line): h for h in hits if h.signature in signatures}.values()


def _at(hit: Hit) -> At:
    """The `[rank3]:` in front of the line is the global rank; the one inside it is the rank in the group, and the only one up to torch 2.2."""
    said = at(hit)
    return said if said.rank is not None or "group_rank" not in hit.groups else replace(said, rank=int(hit.groups["group_rank"]))


def _group(hit: Hit) -> str | None:
    # The GUID is the same on all ranks; the id is each rank's own count of its groups.
    return hit.groups.get("guid") or hit.groups.get("id")


def _int(hit: Hit, name: str) -> int | None:
    value = hit.groups.get(name)
    return None if value is None else int(value)
