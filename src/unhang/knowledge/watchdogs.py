"""What watchdog lines of several ranks prove together: who gave up waiting, in which collective, and whether it was the same one for all.

Sequence numbers count the collectives of one group on one rank. Ranks that make the same calls have the same collective under the same number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from unhang.frames import Frame, user_frame
from unhang.knowledge.words import NOTHING, Text, msg, same
from unhang.model import frozen
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.knowledge.cause import LogView
    from unhang.logs import Traceback
    from unhang.logs.log_facts import Timeout

# Calls whose sizes legitimately differ between ranks.
_UNEVEN = ("GATHER", "SCATTER", "ALLTOALL", "SEND", "RECV", "COALESCED", "ALLTOALL_BASE", "UNKNOWN")
# The same by torch's names for them.
_NEEDS_ALL_CALLS = frozenset(
    (
        "all_reduce", "all_gather", "all_gather_into_tensor", "_all_gather_base", "all_gather_single", "all_gather_object", "reduce_scatter",
        "reduce_scatter_tensor", "_reduce_scatter_base", "reduce_scatter_single", "all_to_all", "all_to_all_single", "barrier", "monitored_barrier",
    )
)  # fmt: skip
_GUARD = lazily(
    r"\bif\b.*(?:\brank\b\W{0,3}\s*==\s*0|\bget_rank\(\)\s*==\s*0|is_main_process|is_global_zero|is_world_process_zero|not\s+(?:\w+\.)*rank\b)"
)
_GAVE_UP = ("collective-timeout", "peer-lost", "store-disconnect")
# Which calls carry what, from how many elements to how many. DeepSpeed's ZeRO closes a bucket where the next gradient would exceed
# reduce_bucket_size, 5e8 as it comes (runtime/zero/stage_1_and_2.py): a full one lies just below.
_GRADIENTS = msg("gradients, in the backward pass")
_ZERO = _GRADIENTS + msg(" (if it is DeepSpeed, a bucket of ZeRO-2 or ZeRO-1, whose reduce_bucket_size is 5e8 by default)")
_PARAMETERS = msg("parameters that ZeRO-3 or FSDP gathers, in the forward or backward pass")
_CARRY = (
    (r"ALLREDUCE$|REDUCE$", 350_000_000, 500_000_000, _ZERO),
    (r"ALLREDUCE|_?REDUCE", 1_000_000, None, _GRADIENTS),
    (r"_?ALLGATHER", 1_000_000, None, _PARAMETERS),
    (r"BROADCAST", 1_000_000, None, msg("parameters, at the start or after a checkpoint was read")),
)


@frozen
class Parted:
    """Ranks of one group had different collectives under one number; `sides` are the ranks of each, the largest first."""

    group: str | None
    seq: int
    sides: tuple[tuple[Timeout, ...], ...]


@frozen
class GaveUpIn:
    """Where a rank was when it gave up: in which call of torch.distributed, called from where."""

    rank: int
    call: str
    frame: Frame
    back: Traceback


def ranks_of(timeouts: Iterable[Timeout]) -> tuple[int, ...]:
    return tuple(sorted({t.at.rank for t in timeouts if t.at.rank is not None}))


def first_of_each(view: LogView) -> tuple[Timeout, ...]:
    """The first collective that each rank gave up in each group, in order of rank. A watchdog prints the same one several times."""
    found: dict[tuple[int, str | None], Timeout] = {}
    for t in view.timeouts:
        if t.at.rank is None or t.seq is None:
            continue
        key = (t.at.rank, t.group)
        if key not in found or (found[key].seq or 0) > t.seq:
            found[key] = t
    return tuple(found[k] for k in sorted(found, key=lambda k: (k[0], k[1] or "")))


def _by_group(timeouts: Sequence[Timeout]) -> Mapping[str | None, list[Timeout]]:
    groups: dict[str | None, list[Timeout]] = {}
    for t in timeouts:
        groups.setdefault(t.group, []).append(t)
    return groups


def parted(view: LogView) -> Parted | None:
    """Where two ranks' lines name different collectives under one number of one group."""
    for group, members in _by_group(first_of_each(view)).items():
        by_seq: dict[int, list[Timeout]] = {}
        for t in members:
            if t.seq is not None:
                by_seq.setdefault(t.seq, []).append(t)
        for seq, here in sorted(by_seq.items()):
            sides: dict[tuple[object, ...], list[Timeout]] = {}
            for t in here:
                sides.setdefault(_key(t), []).append(t)
            if len(sides) > 1:
                ordered = sorted(sides.values(), key=lambda s: (-len(s), s[0].at.rank or 0))
                return Parted(group=group, seq=seq, sides=tuple(tuple(s) for s in ordered))
    return None


def _key(t: Timeout) -> tuple[object, ...]:
    return (t.op,) if t.op.startswith(_UNEVEN) else (t.op, t.numel_in, t.numel_out)


def stood(view: LogView) -> tuple[GaveUpIn, ...]:
    """Where each rank was that gave up waiting or lost its peers inside a collective that needs all ranks, in order of rank."""
    ends = {(h.source, h.line) for c in _GAVE_UP for h in view.hits_of(c)}
    found: dict[int, GaveUpIn] = {}
    for back in view.tracebacks:
        frame = user_frame(back.frames)
        call = next((f.name for f in back.frames if f.file.endswith("torch/distributed/distributed_c10d.py") and f.name in _NEEDS_ALL_CALLS), None)
        if back.rank is not None and (back.source, back.end) in ends and frame is not None and call is not None:
            found.setdefault(back.rank, GaveUpIn(rank=back.rank, call=call, frame=frame, back=back))
    return tuple(found[r] for r in sorted(found))


def rank_0_apart(view: LogView) -> tuple[GaveUpIn, tuple[GaveUpIn, ...]] | None:
    """Where rank 0 gave up alone in one call and all others together in another: what a test of the rank around the first looks like."""
    where = stood(view)
    own = next((s for s in where if s.rank == 0), None)
    others = tuple(s for s in where if s.rank != 0)
    if (
        own is None
        or not others
        or {(s.call, s.frame.file, s.frame.line) for s in others} != {(others[0].call, others[0].frame.file, others[0].frame.line)}
    ):
        return None
    apart = own.call != others[0].call and (own.frame.file, own.frame.line) != (others[0].frame.file, others[0].frame.line)
    whole = view.world_size is None or view.world_size == len(where)
    # Of two ranks either may be the one that went astray, unless the test stands in the line.
    return (own, others) if apart and ((len(others) > 1 and whole) or guard_in(own) is not None) else None


def guard_in(stood: GaveUpIn) -> str | None:
    """The line of a rank's traceback that tests the rank, where it does so in the line that calls."""
    return next((f.code for f in reversed(stood.back.frames) if _GUARD.search(f.code)), None)


def behind(view: LogView) -> tuple[tuple[int, int], ...]:
    """(rank, last number it issued) of ranks that never issued the collective that others gave up, as far as they printed their counters."""
    found: dict[int, int] = {}
    failed: dict[str | None, int] = {}
    for t in view.timeouts:
        if t.seq is not None:
            failed[t.group] = min(failed.get(t.group, t.seq), t.seq)
    for s in view.statuses:
        if s.at.rank is not None and s.group in failed and 0 <= s.enqueued < failed[s.group]:
            found[s.at.rank] = s.enqueued
    return tuple(sorted(found.items()))


def silent(view: LogView) -> tuple[int, ...]:
    """Ranks that are known to exist and printed no timeout, where others did."""
    waited = set(ranks_of(view.timeouts))
    known = set(view.printed) | (set(range(view.world_size)) if view.world_size is not None else set())
    return tuple(sorted(known - waited)) if waited else ()


def collective(t: Timeout) -> Text:
    """ "ALLREDUCE #1580 (466119168 elements)"."""
    seq = "" if t.seq is None else f" #{t.seq}"
    size = NOTHING if t.numel_in is None else msg(" ({n} elements)", n=t.numel_in)
    return same(f"{t.op}{seq}") + size


def carried(t: Timeout) -> Text:
    """ "; 466,119,168 elements (0.932 GB in 16 bits, 1.86 GB in 32): by its size most likely ...", NOTHING of few."""
    size = max(t.numel_in or 0, t.numel_out or 0)
    what = next((says for op, least, most, says in _CARRY if least <= size <= (most or size) and re.match(op, t.op)), None)
    told = msg("; {n} elements ({half} GB in 16 bits, {full} GB in 32): by its size most likely {what}")
    return NOTHING if what is None else told.fill(n=f"{size:,}", half=f"{size * 2e-9:.3g}", full=f"{size * 4e-9:.3g}", what=what)
