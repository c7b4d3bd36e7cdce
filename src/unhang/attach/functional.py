"""The functional collectives (DTensor, tensor parallel, what torch.compile traces) on Gloo: they pass by none of torch.distributed's functions.

Their gathers and scatters are coalesced ones in C++, which read CUDA addresses on the host, and an average is a sum there before 2.13 (read in
Functional.cpp and ProcessGroupGloo.cpp of 2.7). So the operators themselves get kernels for CUDA, made of the functions that stand in: eager code,
DTensors and compiled graphs all end there. A kernel is done when it returns; wait_tensor then finds nothing to wait for.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from . import gloo_stand_in, overrides

# What torch.compile would trace to operators that have no kernel here: it goes on outside of the graph instead.
_POINT_TO_POINT = ("isend", "irecv", "batch_isend_irecv")
# The kernels last as long as their library.
_libraries: list[Any] = []


def patch(module: Any) -> None:
    """torch.distributed._functional_collectives."""
    if overrides.backend() is None:
        return
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    for name in _POINT_TO_POINT:
        function = getattr(c10d, name)
        getattr(module, "traceable_collective_remaps", {}).pop(function, None)
        # Traced into itself, batch_isend_irecv asks its group for what a graph of torch 2.15 knows nothing of: an error, where 2.13 went on outside.
        function._torchdynamo_disable = True
    register(c10d, "CUDA")


def patch_compiler(module: Any) -> None:
    """torch._dynamo.trace_rules: it is not to trace into what stands in. Such calls are made between graphs."""
    module.SKIP_DIRS.append(os.path.dirname(os.path.abspath(__file__)) + os.sep)
    module._recompile_re()


def register(c10d: Any, device: str) -> None:
    """Kernels for the tensors of one kind of device."""
    torch: Any = sys.modules["torch"]
    library = torch.library.Library("_c10d_functional", "IMPL")
    for name, ours in _KERNELS.items():
        if hasattr(torch.ops._c10d_functional, name):
            library.impl(name, _kernel(torch, c10d, name, ours), device)
    _libraries.append(library)


def _kernel(torch: Any, c10d: Any, name: str, ours: Any) -> Any:
    operator = getattr(torch.ops._c10d_functional, name).default
    # torch has one function for all devices: that of a device without a kernel of its own is the one that was here.
    elsewhere = torch._C.DispatchKeySet(torch._C.DispatchKey.XLA)

    resolve: Any = vars(sys.modules["torch._C._distributed_c10d"])["_resolve_process_group"]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        *given, named = args
        group = resolve(named) if isinstance(named, str) else named
        if not gloo_stand_in.on_gloo(c10d, group):
            return operator.redispatch(elsewhere, *args, **kwargs)
        overrides.changed(f"functional {name}", was="NCCL's", now="what stands in for it")
        with torch.no_grad():
            return ours(c10d, group, *given, **kwargs)

    return kernel


def _all_reduce_(c10d: Any, group: Any, tensor: Any, op: str) -> Any:
    whole = tensor.contiguous()
    c10d.all_reduce(whole, op=_op(c10d, op), group=group)
    return tensor if whole is tensor else tensor.copy_(whole)


def _all_reduce(c10d: Any, group: Any, tensor: Any, op: str) -> Any:
    return _all_reduce_(c10d, group, _copied(tensor), op)


def _all_gather_into_tensor_out(c10d: Any, group: Any, tensor: Any, size: int, *, out: Any) -> Any:
    _by_either_name(c10d, "all_gather_single", "all_gather_into_tensor")(out, tensor.contiguous(), group=group)
    return out


def _all_gather_into_tensor(c10d: Any, group: Any, tensor: Any, size: int) -> Any:
    # A scalar counts for a vector of one.
    first, *rest = tensor.shape or (1,)
    out = tensor.new_empty((first * size, *rest))
    return _all_gather_into_tensor_out(c10d, group, tensor, size, out=out)


def _reduce_scatter_tensor_out(c10d: Any, group: Any, tensor: Any, op: str, size: int, *, out: Any) -> Any:
    _by_either_name(c10d, "reduce_scatter_single", "reduce_scatter_tensor")(out, tensor, op=_op(c10d, op), group=group)
    return out


def _reduce_scatter_tensor(c10d: Any, group: Any, tensor: Any, op: str, size: int) -> Any:
    out = tensor.new_empty((tensor.shape[0] // size, *tensor.shape[1:]))
    return _reduce_scatter_tensor_out(c10d, group, tensor, op, size, out=out)


def _all_to_all_single(c10d: Any, group: Any, tensor: Any, sizes_out: list[int], sizes_in: list[int]) -> Any:
    out = tensor.new_empty((sum(sizes_out), *tensor.shape[1:]))
    c10d.all_to_all_single(out, tensor.contiguous(), list(sizes_out), list(sizes_in), group=group)
    return out


def _broadcast_(c10d: Any, group: Any, tensor: Any, source: int) -> Any:
    whole = tensor.contiguous()
    c10d.broadcast(whole, c10d.get_global_rank(group, source), group=group)
    return tensor if whole is tensor else tensor.copy_(whole)


def _broadcast(c10d: Any, group: Any, tensor: Any, source: int) -> Any:
    return _broadcast_(c10d, group, _copied(tensor), source)


def _refused(name: str) -> Any:
    def refuse(c10d: Any, group: Any, *args: Any) -> Any:
        raise NotImplementedError(f"functional {name} of CUDA tensors: Gloo has none; use torch.distributed.{name}, or NCCL")

    return refuse


def _of_each(one: Any) -> Any:
    def coalesced(c10d: Any, group: Any, tensors: list[Any], *given: Any) -> list[Any]:
        return [one(c10d, group, tensor, *given) for tensor in tensors]

    return coalesced


def _copied(tensor: Any) -> Any:
    torch: Any = sys.modules["torch"]
    return tensor.clone(memory_format=torch.contiguous_format)


def _by_either_name(c10d: Any, new: str, old: str) -> Any:
    # torch 2.13 warns of the old one.
    return getattr(c10d, new, None) or getattr(c10d, old)


def _op(c10d: Any, name: str) -> Any:
    return getattr(c10d.ReduceOp, str(name).upper())


_KERNELS = {
    "all_reduce_": _all_reduce_, "all_reduce_coalesced_": _of_each(_all_reduce_),
    "all_reduce": _all_reduce, "all_reduce_coalesced": _of_each(_all_reduce),
    "all_gather_into_tensor_out": _all_gather_into_tensor_out,
    "all_gather_into_tensor": _all_gather_into_tensor, "all_gather_into_tensor_coalesced": _of_each(_all_gather_into_tensor),
    "reduce_scatter_tensor_out": _reduce_scatter_tensor_out,
    "reduce_scatter_tensor": _reduce_scatter_tensor, "reduce_scatter_tensor_coalesced": _of_each(_reduce_scatter_tensor),
    "all_to_all_single": _all_to_all_single, "broadcast_": _broadcast_, "broadcast": _broadcast,
    **{name: _refused(name) for name in ("isend", "irecv", "batch_p2p_ops")},
}  # fmt: skip
