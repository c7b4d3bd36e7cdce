"""How a tensor's elements lie in memory, and how they come to stand in one row.

Gloo takes a tensor for the numel() elements from its first one on: of a column slice it reduces its neighbours, of an expanded tensor it writes past
the end. Dense tensors (transposed, channels-last) can be reduced where they are, if all ranks hold them in the same order. All others are copied, and
copied back. So are those of devices that neither Gloo nor NCCL reads: through host memory.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import torch

from unhang.errors import CollectiveError

# Gloo and NCCL both know these.
_SENT_AS_THEY_ARE = frozenset(
    {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64},
)
# What fits, for types that one of them lacks.
_SENT_AS = {torch.bool: torch.uint8, torch.int16: torch.int32}
_COMPLEX = {torch.complex64, torch.complex128}
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
# Gone from torch 2.13 on.
_NAMED = hasattr(torch.Tensor, "has_names")


class FlatTensor(msgspec.Struct, frozen=True, kw_only=True):
    """`flat` is one-dimensional, contiguous and of a type that can be sent; `order` the dimensions from slow to fast, "" for 0, 1, 2, ...

    `own` says that `flat` is the tensor's own memory, `raw` that it holds the bytes of elements that cannot be sent as what they are.
    """

    tensor: torch.Tensor
    flat: torch.Tensor
    own: bool
    order: str = ""
    raw: bool = False

    def give_back(self, flat: torch.Tensor | None = None, to: torch.Tensor | None = None) -> None:
        """Writes `flat` (by default what stands in the row) into the tensor, or into `to`, which has its shape."""
        flat = self.flat if flat is None else flat
        to = self.tensor if to is None else to
        if self.own and to is self.tensor and flat.data_ptr() == self.flat.data_ptr():
            return
        if self.raw:
            flat = flat.view(self.tensor.dtype)
        # Tensors of inference mode can be written there only.
        with torch.inference_mode() if to.is_inference() else torch.no_grad():
            to.copy_(_shaped(flat, self.tensor, self.order))


def usual(tensor: Any) -> FlatTensor | None:
    """The row of what nearly every call sends: a dense tensor of this host, its dimensions in their order. None for all others, which `sendable` and
    `row` are for.
    """
    # Each property once: it costs a microsecond, from memory that is cold.
    if type(tensor) not in _PLAIN or not tensor.is_cpu or tensor.dtype not in _SENT_AS_THEY_ARE or tensor.layout is not torch.strided:
        return None
    if tensor.is_nested or not tensor.is_contiguous() or tensor.is_neg() or tensor.requires_grad or (_NAMED and tensor.has_names()):
        return None
    if not tensor.data_ptr() and tensor.numel():
        return None
    return FlatTensor(tensor=tensor, flat=tensor if tensor.dim() == 1 else tensor.view(-1), own=True)


def sendable(tensor: Any, what: str = "the tensor") -> torch.Tensor:
    """`tensor`, if it is a plain one. Raises TypeError where it is not (the memory of a DTensor is not its own), CollectiveError where it has nothing
    that can be sent.
    """
    if type(tensor) not in _PLAIN:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{what} is no tensor, but of type {type(tensor).__name__}")
        raise TypeError(f"{what} is a {type(tensor).__name__}, no plain tensor: give its local part (of a DTensor, to_local())")
    if tensor.layout is not torch.strided or tensor.is_nested:
        layout, dense = ("nested", "to_padded_tensor") if tensor.is_nested else (f"of layout {tensor.layout}", "to_dense")
        raise CollectiveError(f"{what} is {layout}, which cannot be sent: make it dense first ({dense}())")
    if tensor.is_quantized:
        raise CollectiveError(f"{what} is quantised ({tensor.dtype}), by scales that may differ among the ranks: dequantize() it first")
    if tensor.is_meta:
        raise CollectiveError(f"{what} is on the meta device, and holds no values: give it memory first (to_empty(), then its values)")
    if (tensor.is_cpu or tensor.is_cuda) and tensor.numel() and not tensor.data_ptr():
        raise CollectiveError(f"{what} has no memory: it was freed, as FSDP does with parameters outside of forward and backward")
    return tensor


def writable(tensor: Any, what: str) -> None:
    """As sendable; raises CollectiveError where several elements share a place."""
    if _overlaps(sendable(tensor, what)):
        raise CollectiveError(f"{what} is expanded: several elements have one place of memory; give a clone() of it")


def row(tensor: torch.Tensor, *, reads: bool = False, moves: bool = False, by_host: bool = False) -> FlatTensor:
    """Of a tensor that is only read (`reads`), in the order of its dimensions: it may be expanded. One that is moved (`moves`), not reduced, may be
    of any type. `by_host`: `flat` is in host memory.

    Of what is `sendable`. Raises CollectiveError for types that cannot be reduced.
    """
    if tensor.requires_grad:
        tensor = tensor.detach()
    if _NAMED and tensor.has_names():
        tensor = tensor.rename(None)
    if by_host:
        if not reads:
            _refuse_overlaps(tensor)
        there = row(tensor.contiguous().cpu(), reads=reads, moves=moves)
        return FlatTensor(tensor=tensor, flat=there.flat, own=False, raw=there.raw)
    if tensor.dtype in _SENT_AS_THEY_ARE and tensor.is_contiguous() and not tensor.is_neg():
        return FlatTensor(tensor=tensor, flat=tensor if tensor.dim() == 1 else tensor.view(-1), own=True)
    if reads:
        tensor = tensor.contiguous()
    _refuse_overlaps(tensor)
    plain = tensor.resolve_conj().resolve_neg() if tensor.is_conj() or tensor.is_neg() else tensor
    own = plain is tensor and tensor.is_contiguous()
    if tensor.dtype in _COMPLEX:
        return FlatTensor(tensor=tensor, flat=torch.view_as_real(plain).contiguous().view(-1), own=own)
    if moves and tensor.dtype not in _SENT_AS_THEY_ARE:
        return FlatTensor(tensor=tensor, flat=plain.contiguous().view(-1).view(torch.uint8), own=own, raw=True)
    if tensor.dtype in _SENT_AS:
        plain = tensor.to(_SENT_AS[tensor.dtype])
    elif tensor.dtype not in _SENT_AS_THEY_ARE:
        raise CollectiveError(f"neither Gloo nor NCCL reduces {tensor.dtype}: convert it first")
    dims = _dense(tensor) if plain is tensor else None
    if dims is None:
        return FlatTensor(tensor=tensor, flat=plain.contiguous().view(-1), own=False)
    flat = tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
    return FlatTensor(tensor=tensor, flat=flat, order=",".join(map(str, dims)), own=True)


def _overlaps(tensor: torch.Tensor) -> bool:
    return bool(tensor.numel()) and any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def _refuse_overlaps(tensor: torch.Tensor) -> None:
    if _overlaps(tensor):
        raise CollectiveError("an expanded tensor has several elements in one place of memory: reduce what was expanded, or a clone() of it")


def _dense(tensor: torch.Tensor) -> list[int] | None:
    """The dimensions from the slowest to the fastest, where they leave no gap and do not overlap."""
    dims = sorted((d for d in range(tensor.dim()) if tensor.shape[d] > 1), key=lambda d: -tensor.stride(d))
    expected = 1
    for d in reversed(dims):
        if tensor.stride(d) != expected:
            return None
        expected *= tensor.shape[d]
    return dims if expected == math.prod(tensor.shape) else None


def _shaped(flat: torch.Tensor, like: torch.Tensor, order: str) -> torch.Tensor:
    """`flat` in the shape of `like`."""
    if like.dtype in _COMPLEX:
        return torch.view_as_complex(flat.view(*like.shape, 2))
    if order:
        return flat.as_strided(like.shape, like.stride())
    return flat.view(like.shape)
