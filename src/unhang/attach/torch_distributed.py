"""Tells when torch.distributed is initialised and destroyed. Patched before torch.distributed takes the names over."""

from __future__ import annotations

import contextlib
import functools
import sys
from types import ModuleType
from typing import Any

from . import group_overrides, overrides, session
from .device import gpu


def patch(module: ModuleType) -> None:
    """Wrap init_process_group and destroy_process_group of torch.distributed.distributed_c10d."""
    try:
        group_overrides.patch(module)
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
