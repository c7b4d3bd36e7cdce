"""The functional collectives (DTensor, tensor and context parallel) on Gloo: they call C++ without passing by torch.distributed's functions.

Their gathers and scatters are coalesced ones in C++, which read CUDA addresses on the host (read in Functional.cpp and ProcessGroupGloo.cpp of 2.7).
What torch.compile traces passes by neither: it is Gloo's own there, with what Gloo lacks.
"""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any

from . import host_memory, overrides

_GATHERS = (
    "all_gather_tensor",
    "all_gather_single",
    "all_gather_tensor_autograd",
    "all_gather_single_autograd",
    "all_gather_into_tensor_coalesced",
    "all_gather_single_coalesced",
)
_REDUCTIONS = (
    "all_reduce",
    "all_reduce_coalesced",
    "reduce_scatter_tensor",
    "reduce_scatter_single",
    "reduce_scatter_tensor_autograd",
    "reduce_scatter_single_autograd",
    "reduce_scatter_tensor_coalesced",
    "reduce_scatter_single_coalesced",
)


def patch(module: Any) -> None:
    """torch.distributed._functional_collectives."""
    if overrides.backend() is None:
        return
    for name in (*_GATHERS, *_REDUCTIONS):
        if hasattr(module, name):
            setattr(module, name, _by_way_of_host(module, name))


def _by_way_of_host(module: Any, name: str) -> Any:
    original = getattr(module, name)
    signature = inspect.signature(original)

    @functools.wraps(original)
    def function(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        several = isinstance(tensors, (list, tuple))
        given = list(tensors) if several else [tensors]
        if _compiling() or not host_memory.plain(given) or not any(map(host_memory.away, given)):
            return original(tensors, *args, **kwargs)
        overrides.changed(f"functional {name}", was="NCCL's", now="by way of host memory")
        hosts = [tensor.cpu() for tensor in given]
        if name in _REDUCTIONS:
            bound = signature.bind(tensors, *args, **kwargs)
            hosts = _without_avg(module, bound.arguments, hosts)
            _refuse_wrong_reductions(name, bound.arguments["reduceOp"])
            args, kwargs = bound.args[1:], bound.kwargs
        results = original(hosts if several else hosts[0], *args, **kwargs)
        arrived = [module.wait_tensor(result).to(tensor.device) for result, tensor in zip(results if several else [results], given, strict=True)]
        return arrived if several else arrived[0]

    return function


def _without_avg(module: Any, arguments: dict[str, Any], hosts: list[Any]) -> list[Any]:
    """A sum of quotients in the place of an average, which Gloo lacks or, where it scatters, takes for a sum."""
    if str(arguments["reduceOp"]).lower() != "avg" or not all(host.is_floating_point() for host in hosts):
        return hosts
    arguments["reduceOp"] = "sum"
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    group = module._resolve_group_name(arguments["group"], arguments.get("tag", ""))
    size = c10d._get_group_size_by_name(group)
    return [host / size for host in hosts]


def _refuse_wrong_reductions(name: str, op: Any) -> None:
    torch: Any = sys.modules["torch"]
    version = tuple(int(part) for part in str(torch.__version__).split(".")[:2])
    # Seen to be right in 2.13, read to be wrong in 2.7.
    if "scatter" in name and version < (2, 13) and str(op).lower() != "sum":
        raise NotImplementedError(
            f"Gloo of torch {torch.__version__} would sum instead of reducing with {op!r} in functional {name}; use NCCL for this"
        )


def _compiling() -> bool:
    torch: Any = sys.modules["torch"]
    return bool(torch.compiler.is_compiling())
