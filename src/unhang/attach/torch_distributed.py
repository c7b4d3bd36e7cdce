"""Tells when torch.distributed is initialised and destroyed, and gives every process group the backend and the timeout that the user of unhang asked
for. Patched before torch.distributed takes the names over.

accelerate's InitProcessGroupKwargs, transformers' ddp_timeout, DeepSpeed's init_distributed(timeout) and Lightning's strategy(timeout) all end in the
`timeout` of init_process_group (read in accelerate 1.15, transformers 5.23, DeepSpeed 0.19, Lightning 2.6); a device mesh ends in new_group or
split_group. One that the script gives shorter is overridden as well: one timeout was asked for, and which others it replaced is reported.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from datetime import timedelta
from types import ModuleType
from typing import Any

from . import gloo_stand_in, overrides, session
from .session import gpu

# Backends for tensors that Gloo takes as well. "mpi" brings its own ranks, "fake" is no communication at all, and an NPU's tensors are not for Gloo.
_REPLACEABLE = frozenset({"nccl", "ucc", "gloo", "undefined"})


def patch(module: ModuleType) -> None:
    """Wrap init_process_group and destroy_process_group of torch.distributed.distributed_c10d."""
    try:
        override_groups(module)
    except Exception:  # a torch that looks otherwise
        overrides.ignored("torch.distributed", "backend or timeout", "unknown")
    initialise, destroy = module.init_process_group, module.destroy_process_group

    @functools.wraps(initialise)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        try:
            result = initialise(*args, **kwargs)
        except Exception:
            # Lightning's and Ray's ranks are attached only by joining: what was done to the call that failed is to be told all the same.
            with contextlib.suppress(Exception):
                session.attach(rank=kwargs.get("rank"))
                overrides.flush()
            raise
        with contextlib.suppress(Exception):
            _joined(module, args, kwargs)
        return result

    @functools.wraps(destroy)
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        result = destroy(*args, **kwargs)
        with contextlib.suppress(Exception):
            _left(module)
        return result

    module.init_process_group = init_process_group  # type: ignore[attr-defined]
    module.destroy_process_group = destroy_process_group  # type: ignore[attr-defined]


def _joined(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    attached = session.attach()
    if attached is None:
        return
    session.claim_children()
    session.use_recorders(module)
    torch: Any = sys.modules["torch"]
    device = _device(torch, kwargs.get("device_id"))
    attached.link.post(
        "joined",
        rank=module.get_rank(),
        world_size=module.get_world_size(),
        backend=_backend(module),
        device=device,
        gpu=gpu(torch, device),
        timeout_s=_timeout_s(module, args, kwargs),
        torch=str(torch.__version__),
    )
    overrides.flush()


def _left(module: Any) -> None:
    attached = session.current()
    if attached is not None and not module.is_initialized():
        attached.link.post("left")
        if attached.recorders is not None:
            attached.recorders.forget()


def _backend(module: Any) -> str | None:
    try:
        backend = str(module.get_backend())
        # Several backends in one group ("cpu:gloo,cuda:nccl") have no single name.
        return str(module.get_backend_config()) if backend in ("undefined", "custom") else backend
    except Exception:
        return None


def _timeout_s(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | None:
    """That of the group as it was made; what was asked for is only believed where the group does not tell."""
    with contextlib.suppress(Exception):
        group = module._get_default_group()
        # An accelerator's timeout is the one that bites: it is the shorter one.
        devices = sorted(group._device_types, key=lambda device: device.type == "cpu")
        return float(group._get_backend(devices[0]).options._timeout.total_seconds())
    if (seconds := overrides.timeout_s()) is not None:
        return seconds
    with contextlib.suppress(Exception):
        given = kwargs.get("timeout", args[2] if len(args) > 2 else None)
        return float((given or module._get_default_timeout(module.get_backend())).total_seconds())
    return None


def _device(torch: Any, given: Any) -> str | None:
    try:
        if given is not None:
            return str(given) if isinstance(given, torch.device) else f"cuda:{given}"
        if torch.cuda.is_initialized():
            return f"cuda:{torch.cuda.current_device()}"
    except Exception:
        pass
    return None


def override_groups(module: ModuleType) -> None:
    """Wrap what makes groups, and give Gloo what it lacks. Nothing where nothing is asked for."""
    gloo = overrides.backend() is not None
    seconds = overrides.timeout_s()
    timeout = None if seconds is None else timedelta(seconds=seconds)
    c10d: Any = module
    if gloo:
        if hasattr(c10d, "split_group"):
            c10d.split_group = _split_by_new_group(c10d)
        gloo_stand_in.patch(c10d)
    if gloo or timeout is not None:
        for name in ("init_process_group", "new_group", "_new_group_with_tag", "split_group", "_set_pg_timeout"):
            if hasattr(c10d, name):
                setattr(c10d, name, _wrapped(getattr(c10d, name), gloo=gloo and name != "_set_pg_timeout", timeout=timeout))


def _wrapped(function: Any, *, gloo: bool, timeout: timedelta | None) -> Any:
    initialises = function.__name__ == "init_process_group"

    def change(arguments: dict[str, Any], signature: inspect.Signature) -> None:
        if gloo and (initialises or arguments.get("backend") is not None):
            _set_backend(arguments)
        if gloo:
            _drop_options_of_nccl(arguments)
        if timeout is not None and "timeout" in signature.parameters:
            _set_timeout(arguments, timeout)

    return overrides.rebound(function, change)


def _set_backend(arguments: dict[str, Any]) -> None:
    was = arguments.get("backend")
    named = "undefined" if was is None else str(was).lower()
    if named == "gloo":
        return
    if not {pair.rpartition(":")[2] for pair in named.split(",")} <= _REPLACEABLE:
        overrides.ignored("backend", named, "tensors")
        return
    overrides.changed("backend", was="default" if named == "undefined" else named, now="gloo")
    arguments["backend"] = "gloo"
    # A bound device makes torch split NCCL's communicator for every further group.
    arguments.pop("device_id", None)


def _drop_options_of_nccl(arguments: dict[str, Any]) -> None:
    for name in ("pg_options", "backend_options"):
        if "NCCL" in type(arguments.get(name)).__qualname__:
            del arguments[name]


def _set_timeout(arguments: dict[str, Any], timeout: timedelta) -> None:
    was = arguments.get("timeout")
    if was != timeout:
        said = f"{was.total_seconds():g} s" if isinstance(was, timedelta) else "default"
        overrides.changed("timeout", was=said, now=f"{timeout.total_seconds():g} s")
    arguments["timeout"] = timeout
    # torch sets that of a store it has made itself.
    store: Any = arguments.get("store")
    if hasattr(store, "set_timeout"):
        store.set_timeout(timeout)


def _split_by_new_group(c10d: Any) -> Any:
    """torch splits groups only for a bound device; the same groups can be made anew, by their members alone."""
    split = c10d.split_group

    @functools.wraps(split)
    def split_group(
        parent_pg: Any = None, split_ranks: Any = None, timeout: Any = None, pg_options: Any = None, group_desc: Any = None, **more: Any
    ) -> Any:
        if not split_ranks or not gloo_stand_in.on_gloo(c10d, parent_pg):
            return split(parent_pg, split_ranks, timeout, pg_options, group_desc, **more)
        parent = parent_pg or c10d._get_default_group()
        own = parent.rank()
        for ranks in split_ranks:
            if own in ranks:
                members = [c10d.get_global_rank(parent, rank) for rank in ranks]
                return c10d.new_group(members, timeout=timeout, use_local_synchronization=True, group_desc=group_desc)
        return None

    return split_group
