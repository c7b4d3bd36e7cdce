"""Tells frameworks that the backend is Gloo, where they keep a word of their own about it. Imported by `start`: it imports next to nothing.

    accelerate   PartialState.backend decides how gather works (all_gather for Gloo), and must equal what the caller assigned
    Lightning    each strategy asks its _get_process_group_backend before it initialises torch.distributed
    DeepSpeed    the accelerator's communication_backend_name() is the default of init_distributed, and names the backend in its log

What else they ask, they ask torch.distributed. Read in accelerate 1.15, Lightning 2.6 and DeepSpeed 0.19; where a version looks otherwise, torch's
groups are Gloo all the same, and it is reported that the framework was not told.
"""

from __future__ import annotations

import functools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_STRATEGIES = ("ddp", "fsdp", "deepspeed", "model_parallel")

PATCHES = {
    "torch.distributed._functional_collectives": ("functional", "patch"),
    "torch._dynamo.trace_rules": ("functional", "patch_compiler"),
    "accelerate.state": ("frameworks", "patch_accelerate"),
    "deepspeed.accelerator.cuda_accelerator": ("frameworks", "patch_deepspeed"),
    "accelerator.cuda_accelerator": ("frameworks", "patch_deepspeed"),
    **{
        f"{package}.strategies.{name}": ("frameworks", "patch_lightning")
        for package in ("lightning.fabric", "lightning.pytorch", "lightning_fabric", "pytorch_lightning")
        for name in _STRATEGIES
    },
}


def patch_accelerate(module: ModuleType) -> None:
    """accelerate.state: what is assigned, and what is found by looking at the machine."""
    if not _asked():
        return
    state: Any = getattr(module, "PartialState", None)
    prepare = getattr(state, "_prepare_backend", None)
    if prepare is None:
        _not_told("accelerate")
        return
    initialise = state.__init__

    @functools.wraps(prepare)
    def _prepare_backend(*args: Any, **kwargs: Any) -> Any:
        found = prepare(*args, **kwargs)
        if not isinstance(found, tuple):
            _not_told("accelerate")
            return found
        return (*map(_gloo_for, found[:1]), *found[1:])

    @functools.wraps(initialise)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if "backend" in kwargs:
            kwargs["backend"] = _gloo_for(kwargs["backend"])
        return initialise(self, *args, **kwargs)

    state._prepare_backend = _prepare_backend
    state.__init__ = __init__


def patch_lightning(module: ModuleType) -> None:
    """One module of strategies: all classes of it that say by themselves which backend they want."""
    if not _asked():
        return
    classes = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__ and c.__name__.endswith("Strategy")]
    for strategy in classes:
        if "_get_process_group_backend" in vars(strategy):
            _wrap(strategy, "_get_process_group_backend")
        elif not hasattr(strategy, "_get_process_group_backend"):
            _not_told("Lightning")


def patch_deepspeed(module: ModuleType) -> None:
    """DeepSpeed's accelerator for CUDA; that for CPU has no NCCL to offer."""
    if not _asked():
        return
    accelerator = getattr(module, "CUDA_Accelerator", None)
    if hasattr(accelerator, "communication_backend_name"):
        _wrap(accelerator, "communication_backend_name")
    else:
        _not_told("DeepSpeed")


def _wrap(owner: Any, name: str) -> None:
    function = getattr(owner, name)

    @functools.wraps(function)
    def with_gloo(*args: Any, **kwargs: Any) -> Any:
        return _gloo_for(function(*args, **kwargs))

    setattr(owner, name, with_gloo)


def _gloo_for(backend: Any) -> Any:
    """What a framework was asked for, or would take. It is told here: torch.distributed is then asked for Gloo, and has nothing to tell."""
    from . import overrides

    if not (isinstance(backend, str) and backend.lower() in ("nccl", "cpu:gloo,cuda:nccl", "cuda:nccl,cpu:gloo")):
        return backend
    overrides.changed("backend", was=backend.lower(), now="gloo")
    return "gloo"


def _asked() -> bool:
    from . import overrides

    return overrides.backend() == "gloo"


def _not_told(framework: str) -> None:
    from . import overrides

    overrides.ignored(framework, "backend", "unknown")
