"""Who issued what, from the mismatches that torch's own check prints under TORCH_DISTRIBUTED_DEBUG=DETAIL.

Each rank compares its own call with those of all others and prints the first that differs, so that one line names two ranks, and the lines of
several ranks together name many. Numbers in these lines count within the group; `[rank5]:` before them counts in the job, and tells the one from the
other where both stand in one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from unhang.model import frozen

if TYPE_CHECKING:
    from unhang.logs import Hit

# ProcessGroupWrapper.cpp. Up to torch 2.0 a shape alone, up to 1.12 without a sequence number; the second of the two may be cut off.
_SEQUENCE = re.compile(r"SequenceNumber=(\d+)")
_OP = re.compile(r"OpType=(\w+)")
_SHAPE = re.compile(r"TensorShape=\[([^\]]{0,400})\]")
_DTYPES = re.compile(r"TensorDtypes=([^=]{1,200}?)(?:, TensorDeviceTypes=|$|\))")
_DEVICE = re.compile(r"\bdevice=(\w+)")


@frozen
class Fingerprint:
    """One rank's call as the check saw it; None what it does not tell."""

    seq: int | None
    op: str
    shape: str | None = None
    dtypes: str | None = None
    device: str | None = None

    @property
    def call(self) -> tuple[str | None, ...]:
        """What has to be the same on all ranks."""
        return (self.op, self.shape, self.dtypes, self.device)

    @property
    def says(self) -> str:
        """ "ALLREDUCE of [64] Float"."""
        if self.shape is None:
            return self.op
        return f"{self.op} of [{self.shape}]" + (f" {self.dtypes}" if self.dtypes else "")


@frozen
class Side:
    """Ranks that issued the same; `hits` are the lines that they printed themselves."""

    fingerprint: Fingerprint
    ranks: tuple[int, ...]
    hits: tuple[Hit, ...]


def read(text: str) -> Fingerprint | None:
    """A fingerprint as it is printed, whole or cut off; None where not even the operation is there."""
    op = _OP.search(text)
    if op is None:
        return None
    shape, dtypes, device, seq = (p.search(text) for p in (_SHAPE, _DTYPES, _DEVICE, _SEQUENCE))
    return Fingerprint(
        seq=int(seq[1]) if seq is not None else None,
        op=op[1],
        shape=shape[1] if shape is not None else None,
        dtypes=dtypes[1].strip() if dtypes is not None else None,
        device=device[1] if device is not None else None,
    )


def sides(hits: Iterable[Hit]) -> tuple[Side, ...]:
    """The ranks by what they issued, the largest side first; () where nothing differs but counts, or the lines tell too little or of two groups."""
    own: dict[int, tuple[Fingerprint, Hit]] = {}
    told: dict[int, Fingerprint] = {}
    for hit in hits:
        mine, theirs = read(hit.groups.get("mine", "")), read(hit.groups.get("theirs", ""))
        if mine is None or theirs is None:
            return ()
        one, other = int(hit.groups["one"]), int(hit.groups["other"])
        known = own.setdefault(one, (mine, hit))
        # One number for two writers, or for two calls: these lines are of more than one group, or of more than one mismatch.
        if known[0] != mine or known[1].rank != hit.rank or not _alike(told.setdefault(other, theirs), theirs):
            return ()
    if any(n in own and not _alike(own[n][0], fingerprint) for n, fingerprint in told.items()):
        return ()
    issued = {**told, **{n: fingerprint for n, (fingerprint, _) in own.items()}}
    in_job = {n: hit.rank for n, (_, hit) in own.items() if hit.rank is not None}
    if any(n != rank for n, rank in in_job.items()) and in_job.keys() != issued.keys():
        return ()
    grouped: dict[tuple[str | None, ...], list[int]] = {}
    for number in sorted(issued):
        grouped.setdefault(issued[number].call, []).append(number)
    parted = [issued[members[0]] for members in grouped.values()]
    alike = any(_alike(a, b) for i, a in enumerate(parted) for b in parted[:i])
    if len(grouped) < 2 or alike or len({f.seq for f in issued.values()} - {None}) > 1:
        return ()
    found = (
        Side(
            fingerprint=issued[members[0]],
            ranks=tuple(sorted(in_job.get(n, n) for n in members)),
            hits=tuple(own[n][1] for n in members if n in own),
        )
        for members in grouped.values()
    )
    return tuple(sorted(found, key=lambda s: (-len(s.ranks), s.ranks)))


def odd(found: Sequence[Side], world_size: int) -> tuple[Side, ...]:
    """The sides beside one that holds more than half of all ranks; () where none does."""
    return tuple(found[1:]) if 2 * len(found[0].ranks) > world_size else ()


def _alike(a: Fingerprint, b: Fingerprint) -> bool:
    """Whether two may be the same call, as far as both tell: one of them may be cut off."""
    return a.op == b.op and all(None in pair or pair[0] == pair[1] for pair in zip(a.call[1:], b.call[1:], strict=True))
