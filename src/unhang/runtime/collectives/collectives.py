"""The collectives: of any size, layout and device, in chunks of which several are under way, each with a deadline for progress.

Chunks cure no hang. They are points at which something is seen to be completed, so that a deadline can mean "nothing moves" and not "it takes long".
"""

from __future__ import annotations

import ctypes
import functools
import pickle
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import msgspec
import torch
import torch.distributed as dist

from unhang.errors import CollectiveError, CollectiveTimeout
from unhang.runtime.collectives import deadlines
from unhang.runtime.collectives import guarded_group as circles
from unhang.runtime.collectives.abortable_group import kind
from unhang.runtime.collectives.agreement import short
from unhang.runtime.collectives.calls import Call, Turn
from unhang.runtime.collectives.deadlines import Deadline
from unhang.runtime.collectives.guarded_group import GuardedGroup
from unhang.runtime.collectives.tensor_layout import FlatTensor, row, sendable, usual, writable

# Up to this one piece; above it pieces of that size: two are under way in threads of their own, which gains more than pieces cost (those of 1 to 4 MB
# up to 2.7 times).
_WHOLE_BYTES = 32 << 20
_CHUNK_BYTES = 32 << 20
_LEAST_CHUNK_BYTES = 1 << 10
_UNDER_WAY = 4
# Of a packed object: its size.
_HEAD = 8

ChunkBytes = int | Literal["auto"]
_NAMES = ["avg", "band", "bor", "bxor", "max", "mean", "min", "product", "sum"]
_REDUCES = {name.upper(): getattr(dist.ReduceOp, name.upper()) for name in _NAMES if name not in ("avg", "mean")} | {"AVG": dist.ReduceOp.SUM}
_BITWISE = frozenset({"BAND", "BOR", "BXOR"})


def all_reduce(
    tensor: torch.Tensor,
    op: Any = "sum",
    group: Any = None,
    *,
    deadline: Deadline = None,
    chunk_bytes: ChunkBytes = "auto",
    out: torch.Tensor | None = None,
    atomic: bool = False,
) -> torch.Tensor:
    """Reduces `tensor` over the ranks of `group`, in place, or into `out` (same shape and dtype), and returns what holds the result.

    `op`: a ReduceOp of torch, or its name ("sum", "avg", "min", "max", "product", "band", "bor", "bxor"). AVG of integers is refused.
    `deadline`: seconds without any chunk being completed. `atomic`: on failure the input is as it was, on every rank.
    Raises CollectiveTimeout (on all ranks alike, with the `missing` ones), CollectiveMismatch, CollectiveError for tensors that cannot be reduced.
    Results of several chunks may differ from those of one piece in the last bits.
    """
    circle = circles.of() if group is None else circles.meant(group)
    # No more functions on this way than have to be: their memory is cold after the bytes of the call before, and each costs microseconds.
    try:
        if group is not None:
            circles.checked(group)
        if (source := usual(tensor)) is None:
            source = row(sendable(tensor), by_host=_by_host(tensor, circle))
        if chunk_bytes != "auto":
            _check(chunk_bytes)
        flat = source.flat
        dtype = flat.dtype
        device = "cpu" if flat.is_cpu else flat.device.type
        asked = op if type(op) is str else str(op)
        name, call, step_bytes, reduces = _reduction(asked, tensor.dtype, flat.numel(), dtype, device, chunk_bytes, source.order)
        if out is not None:
            _same_kind(tensor, out)
        deadline_s = deadlines.found(deadline, kind="all_reduce", numel=call.numel, step_bytes=step_bytes)
        if out is not None or atomic:
            kept = _Kept(circle, source, name, call, tensor if out is None else out, atomic=atomic)
    except Exception as e:
        circle.refused("all_reduce", e)
        raise
    if out is not None or atomic:
        return kept.run(deadline_s)
    if reduces is not None and circle.again(call, flat, reduces, deadline_s):
        if name == "AVG":
            flat.div_(circle.size)
    else:
        with circle.turn(call, deadline_s) as turn:
            _reduce(circle, turn, flat, name, call.chunk)
    if not source.own:
        source.give_back()
    return tensor


@dataclass(eq=False)
class _Kept:
    """An all_reduce whose input is kept: it can go on after a timeout, and with `atomic` it is done for all ranks or for none."""

    circle: GuardedGroup
    source: FlatTensor
    name: str
    call: Call
    to: torch.Tensor
    _: KW_ONLY
    atomic: bool

    def __post_init__(self) -> None:
        self._flat = torch.empty_like(self.source.flat)
        # Chunks that are complete here, and those that were complete everywhere when it began.
        self._done = self._begins = 0

    def run(self, deadline_s: float) -> torch.Tensor:
        flat = self._flat
        detail = ", ".join([self.call.detail, "atomic" if self.atomic else "kept", *([f"from piece {self._begins}"] if self._begins else [])])
        try:
            with self.circle.turn(msgspec.structs.replace(self.call, detail=detail), deadline_s) as turn:
                try:
                    _reduce(self.circle, turn, flat, self.name, self.call.chunk, begins=self._begins, source=self.source.flat)
                finally:
                    self._done = max(self._done, turn.done)
                # With a result on one rank and an error on another nobody could go on.
                self.circle.commit(turn)
        except CollectiveTimeout as e:
            raise type(e)(str(e), missing=e.missing, closed=e.closed, resume=self._resumed) from None
        self.source.give_back(flat, to=self.to)
        return self.to

    def _resumed(self, *, deadline: Deadline = None) -> torch.Tensor:
        # How far this rank has come the others cannot know, least of all if it was late.
        deadline_s = _deadline(deadline, self.call, self.call.chunk * self._flat.element_size())
        done = self.circle.exchange("resume", b"%d" % self._done, deadline_s)
        if missing := tuple(rank for rank in self.circle.ranks if rank not in done):
            said = f"{self.call} cannot go on without rank {', '.join(map(str, missing))}"
            raise CollectiveTimeout(said, missing=missing, resume=self._resumed)
        self._begins = min(map(int, done.values()))
        return self.run(deadline_s)


def _reduce(
    circle: GuardedGroup, turn: Turn, flat: torch.Tensor, name: str, step: int, *, begins: int = 0, source: torch.Tensor | None = None
) -> None:
    """`flat` in chunks of `step` elements, from chunk `begins` on; what `source` holds is copied into it first, chunk by chunk."""
    op = _REDUCES[name]
    turn.chunks = _chunks(flat, step)
    turn.done = begins
    before = _divides_before(name, flat.dtype)
    # Piece by piece: what is complete stays as it is where the call goes on later.
    after = deque[torch.Tensor]() if name == "AVG" and not before and circle.size > 1 else None

    def completed() -> None:
        _completed(circle, turn)
        if after is not None:
            after.popleft().div_(circle.size)

    for index in range(begins, turn.chunks):
        piece = _piece(flat, index, step)
        if source is not None:
            piece.copy_(_piece(source, index, step))
        if turn.lane is None:
            turn.done += 1
            continue
        if before:
            piece /= circle.size
        if len(turn.works) >= _UNDER_WAY:
            completed()
        turn.works.append(turn.lane.all_reduce(piece, op))
        if after is not None:
            after.append(piece)
    while turn.works:
        completed()


def _chunks(flat: torch.Tensor, step: int) -> int:
    return -(-flat.numel() // step) if flat.numel() else 0


def _piece(flat: torch.Tensor, index: int, step: int) -> torch.Tensor:
    return flat if step >= flat.numel() else flat[index * step : (index + 1) * step]


def _completed(circle: GuardedGroup, turn: Turn) -> None:
    circle.wait(turn, turn.works[0])
    del turn.works[0]
    turn.done += 1


def broadcast(tensor: torch.Tensor, src: int = 0, group: Any = None, *, deadline: Deadline = None, chunk_bytes: ChunkBytes = "auto") -> torch.Tensor:
    """`tensor` of global rank `src`, in place, on all ranks of `group`; returned. Raises as all_reduce does."""
    circle = circles.meant(group)
    with circle.preparing("broadcast"):
        circles.checked(group)
        if isinstance(src, bool) or not hasattr(src, "__index__"):
            raise TypeError(f"src is the number of a rank, not {short(src)}")
        if src not in circle.ranks:
            raise CollectiveError(f"rank {src} is no member of the group (ranks {', '.join(map(str, circle.ranks))})")
        source = row(tensor, moves=True, by_host=_by_host(sendable(tensor), circle))
        flat = source.flat
        _check(chunk_bytes)
        call = _call("broadcast", flat.numel(), flat.dtype, flat.device.type, chunk_bytes, f"from {src}{_raw(source)}", source.order)
        step = call.chunk
        deadline_s = _deadline(deadline, call, step * flat.element_size())
    with circle.turn(call, deadline_s) as turn:
        turn.chunks = _chunks(flat, step)
        for index in range(turn.chunks if turn.lane else 0):
            if len(turn.works) >= _UNDER_WAY:
                _completed(circle, turn)
            assert turn.lane is not None
            turn.works.append(turn.lane.broadcast(_piece(flat, index, step), circle.ranks.index(src)))
        while turn.works:
            _completed(circle, turn)
    if circle.me != src:
        source.give_back()
    return tensor


def all_gather(tensor: torch.Tensor, group: Any = None, *, deadline: Deadline = None) -> list[torch.Tensor]:
    """The tensor of each rank, in the order of the group's ranks; all of one size and dtype. Raises as all_reduce does."""
    circle = circles.meant(group)
    with circle.preparing("all_gather"):
        circles.checked(group)
        by_host = _by_host(sendable(tensor), circle)
        source = row(tensor, reads=True, moves=True, by_host=by_host)
        flat = source.flat
        # So that what is complete is seen, and that Gloo, which gathers into one row of its own first, has little in it.
        step = max(1, min(flat.numel(), _WHOLE_BYTES // (flat.element_size() * circle.size)))
        detail = f"shape {tuple(tensor.shape)}{_raw(source)}"
        call = Call(what="all_gather", numel=flat.numel(), dtype=str(flat.dtype), device=flat.device.type, chunk=step, detail=detail)
        deadline_s = _deadline(deadline, call, step * flat.element_size() * circle.size)
        gathered = [torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu" if by_host else tensor.device) for _ in circle.ranks]
    rows = [row(part, moves=True).flat for part in gathered]
    with circle.turn(call, deadline_s) as turn:
        turn.chunks = _chunks(flat, step)
        if turn.lane is None:
            rows[0].copy_(flat)
        for index in range(turn.chunks if turn.lane else 0):
            if len(turn.works) >= _UNDER_WAY:
                _completed(circle, turn)
            assert turn.lane is not None
            turn.works.append(turn.lane.all_gather([_piece(part, index, step) for part in rows], _piece(flat, index, step)))
        while turn.works:
            _completed(circle, turn)
    return [part.to(tensor.device) for part in gathered] if by_host else gathered


def reduce_scatter(
    tensor: torch.Tensor, op: Any = "sum", group: Any = None, *, deadline: Deadline = None, chunk_bytes: ChunkBytes = "auto"
) -> torch.Tensor:
    """This rank's part, along the first dimension, of `tensor` reduced over all ranks; the input stays as it is.

    The first dimension has to be a multiple of the number of ranks. By way of an all_reduce: twice the bytes of a scatter that stops half-way, and
    the same result under every backend (Gloo has none before torch 2.8).
    """
    circle = circles.meant(group)
    with circle.preparing("reduce_scatter"):
        circles.checked(group)
        if sendable(tensor).dim() == 0 or tensor.shape[0] % circle.size:
            raise CollectiveError(f"the first dimension ({tuple(tensor.shape)}) is no multiple of {circle.size} ranks")
        whole = tensor.detach().clone(memory_format=torch.contiguous_format)
    all_reduce(whole, op, group, deadline=deadline, chunk_bytes=chunk_bytes)
    part = whole.shape[0] // circle.size
    return whole.narrow(0, circle.rank * part, part).clone()


def all_gather_object(value: Any, group: Any = None, *, deadline: Deadline = None) -> list[Any]:
    """What each rank gave, in the order of the group's ranks; pickled, so among trusted ranks only. Raises as all_reduce does."""
    circle = circles.meant(group)
    with circle.preparing("all_gather_object"):
        circles.checked(group)
        packed = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    longest = torch.tensor([len(packed)], dtype=torch.int64)
    all_reduce(longest, "max", group, deadline=deadline)
    # It may be that of another rank that there is no memory for.
    with circle.preparing("all_gather"):
        sent = torch.empty(_room(_HEAD + int(longest.item())), dtype=torch.uint8)
    with _memory(sent) as memory:
        memory[:_HEAD] = len(packed).to_bytes(_HEAD, "little")
        memory[_HEAD : _HEAD + len(packed)] = packed
    del packed
    parts = all_gather(sent, group, deadline=deadline)
    del sent
    found = []
    # One after the other: what has been read is not kept.
    parts.reverse()
    while parts:
        with _memory(parts.pop()) as memory:
            found.append(pickle.loads(memory[_HEAD : _HEAD + int.from_bytes(memory[:_HEAD], "little")]))
    return found


def _room(size_bytes: int) -> int:
    """Few sizes, so that few kinds of calls have to be agreed on, and at most an eighth more than is needed."""
    grain = max(256, 1 << max(0, size_bytes.bit_length() - 4))
    return -(-size_bytes // grain) * grain


@contextmanager
def _memory(tensor: torch.Tensor) -> Iterator[memoryview]:
    """The bytes of a contiguous tensor in host memory, without NumPy, which torch does not need."""
    with memoryview((ctypes.c_ubyte * tensor.numel()).from_address(tensor.data_ptr())).cast("B") as memory:
        yield memory


def _by_host(tensor: torch.Tensor, circle: GuardedGroup) -> bool:
    """Whether neither Gloo nor NCCL reads its device: not of CPUs, nor of GPUs where the training has NCCL."""
    return not tensor.is_cpu and kind("", tensor.device.type, circle.group) != "nccl"


def _raw(source: FlatTensor) -> str:
    """What has to be alike beside the numbers of bytes."""
    return f", {str(source.tensor.dtype).removeprefix('torch.')} as bytes" if source.raw else ""


# What was worked out once: trainings make the same few calls again and again.
@functools.lru_cache(maxsize=1024)
def _reduction(
    op: str, dtype: torch.dtype, numel: int, sent_as: torch.dtype, device: str, chunk_bytes: ChunkBytes, order: str
) -> tuple[str, Call, int, Any]:
    """Of an all_reduce of tensors of `dtype`: the operation, the call, the bytes of its chunks, and torch's operation if it is one piece."""
    name = _operation(op, dtype)
    call = _call("all_reduce", numel, sent_as, device, chunk_bytes, name, order)
    is_one = 0 < numel <= call.chunk and not _divides_before(name, sent_as)
    return name, call, call.chunk * sent_as.itemsize, _REDUCES[name] if is_one else None


def _divides_before(name: str, dtype: torch.dtype) -> bool:
    """Sums of halves overflow where averages do not; NCCL divides before as well."""
    return name == "AVG" and dtype is torch.float16


def _operation(op: str, dtype: torch.dtype) -> str:
    name = op.rpartition(".")[2].lower()
    if name not in _NAMES:
        raise CollectiveError(f"no operation {op!r}; there are {', '.join(_NAMES)}")
    name = "AVG" if name == "mean" else name.upper()
    whole = not (dtype.is_floating_point or dtype.is_complex)
    if name == "AVG" and whole:
        raise CollectiveError(f"the average of {dtype} has no one right rounding: reduce with sum and divide, or convert to float first")
    if name in _BITWISE and not whole:
        raise CollectiveError(f"{name} is of integers, not of {dtype}")
    if dtype.is_complex and name not in ("SUM", "AVG"):
        raise CollectiveError(f"{name} of complex numbers is not defined here: sum and avg are")
    if dtype is torch.bool:
        # A sum of truths is a truth: as NCCL has it.
        return {"SUM": "MAX", "BOR": "MAX", "PRODUCT": "MIN", "BAND": "MIN", "BXOR": "BXOR"}.get(name, name)
    return name


@functools.lru_cache(maxsize=1024)
def _call(what: str, numel: int, dtype: torch.dtype, device: str, chunk_bytes: ChunkBytes, detail: str, order: str) -> Call:
    if order:
        detail = f"{detail}, dimensions in memory {order}"
    return Call(what=what, numel=numel, dtype=str(dtype), device=device, chunk=_step(numel, dtype.itemsize, chunk_bytes), detail=detail)


def _step(numel: int, size: int, chunk_bytes: ChunkBytes) -> int:
    """Elements of one chunk, of `size` bytes each."""
    if chunk_bytes == "auto":
        return numel if numel * size <= _WHOLE_BYTES else _CHUNK_BYTES // size
    return max(1, min(numel, chunk_bytes // size))


def _check(chunk_bytes: ChunkBytes) -> None:
    if chunk_bytes != "auto" and (isinstance(chunk_bytes, bool) or not isinstance(chunk_bytes, int) or chunk_bytes < _LEAST_CHUNK_BYTES):
        raise ValueError(f'chunk_bytes is "auto" or a number of bytes from {_LEAST_CHUNK_BYTES} on, not {chunk_bytes!r}')


def _deadline(given: Deadline, call: Call, step_bytes: int) -> float:
    return deadlines.found(given, kind=call.what, numel=call.numel, step_bytes=step_bytes)


def _same_kind(tensor: torch.Tensor, out: torch.Tensor) -> None:
    writable(out, "out")
    if out.shape != tensor.shape or out.dtype != tensor.dtype or out.device != tensor.device:
        raise CollectiveError(
            f"out ({tuple(out.shape)}, {out.dtype}, {out.device}) is not like the input ({tuple(tensor.shape)}, {tensor.dtype}, {tensor.device})"
        )
