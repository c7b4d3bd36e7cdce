"""Decides what kind of process this is, and what is patched in it once it is imported.

Runs at the start of every Python process, so it imports next to nothing.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

# protocol.ENV_RANK_PID, repeated: importing protocol means importing json, 8 ms that a process which is no rank need not pay.
RANK_PID = "UNHANG_RANK_PID"
# Likewise ENV_BACKEND, ENV_STEP_TIMES, ENV_BUCKET, and those for torch's DataLoader.
BACKEND = "UNHANG_BACKEND"
STEP_TIMES = "UNHANG_STEP_TIMES_DIR"
BUCKET = "UNHANG_DDP_BUCKET_MB"
LOADER = ("UNHANG_LOADER_WORKERS", "UNHANG_LOADER_WORKERS_MOST", "UNHANG_PIN_MEMORY", "UNHANG_PERSISTENT_WORKERS", "UNHANG_PREFETCH")


def start() -> None:
    """Prepare the attachment: a rank at once, any other process when it initialises torch.distributed or takes an optimizer step."""
    if belongs_to_rank():
        return
    patches = {
        "torch.distributed.distributed_c10d": ("torch_distributed", "patch"),
        "torch.optim.optimizer": ("optimizer", "patch"),
        "torch.multiprocessing.spawn": ("exit_hooks", "patch_spawn"),
        "torch.distributed.elastic.multiprocessing.api": ("exit_hooks", "patch_launcher"),
        "ray.train.v2._internal.execution.worker_group.thread_runner": ("exit_hooks", "patch_ray_train"),
    }
    if os.environ.get(BACKEND):
        from .frameworks import PATCHES

        patches.update(PATCHES)
    if os.environ.get(BUCKET):
        patches["torch.nn.parallel.distributed"] = ("overrides", "patch_ddp")
    if any(map(os.environ.get, LOADER)):
        patches["torch.utils.data.dataloader"] = ("overrides", "patch_loader")
        patches["torchdata.stateful_dataloader.stateful_dataloader"] = ("overrides", "patch_stateful_loader")
    package = __name__.rpartition(".")[0]
    PatchAfterImport(patches, package=package).install(sys.meta_path)
    if os.environ.get(STEP_TIMES):
        # By a finder of their own: settings patch some of these modules, too.
        parts = {
            "torch.distributed.distributed_c10d": ("step_times", "patch_collectives"),
            "torch.nn.parallel.distributed": ("step_times", "patch_ddp"),
            "torch.utils.data.dataloader": ("step_times", "patch_loader"),
            "torch._dynamo.trace_rules": ("functional", "patch_compiler"),
        }
        PatchAfterImport(parts, package=package).install(sys.meta_path)
    if "RANK" in os.environ and "LOCAL_RANK" in os.environ:
        os.environ[RANK_PID] = str(os.getpid())
        from .session import attach

        attach(rank_process=True)


def belongs_to_rank() -> bool:
    """True for children of a rank (loader workers, compile workers): they inherit its environment and must not be taken for it."""
    return os.environ.get(RANK_PID, str(os.getpid())) != str(os.getpid())


class PatchAfterImport:
    """A finder for `patches`: module name -> (module of `package`, function taking the freshly imported module).

    A module is found by whoever would have found it; only the `exec_module` of the very loader instance is shadowed, once, so the module's spec,
    loader and type are those it would have had. When nothing is left to patch, the finder takes itself off sys.meta_path.
    """

    def __init__(self, patches: Mapping[str, tuple[str, str]], *, package: str) -> None:
        self._pending = dict(patches)
        self._package = package
        self._searching: set[tuple[str, int]] = set()

    def install(self, meta_path: list[Any]) -> None:
        for name in tuple(self._pending):
            if name in sys.modules:
                self._patch(sys.modules[name])
        if self._pending:
            meta_path.insert(0, self)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self._pending:
            return None
        # Another finder of this kind asks everybody else, us too.
        search = (name, get_ident())
        if search in self._searching:
            return None
        self._searching.add(search)
        try:
            spec = self._find_elsewhere(name, path, target)
        finally:
            self._searching.discard(search)
        if spec is not None:
            self._shadow(spec)
        return spec

    def _find_elsewhere(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in tuple(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                return spec
        return None

    def _shadow(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        # An archive has one loader for all its modules: this may see others too, which `_patch` ignores.
        def exec_module(module: ModuleType) -> None:
            loader.__dict__.pop("exec_module", None)
            execute(module)
            self._patch(module)

        try:
            loader.exec_module = exec_module
        except (AttributeError, TypeError):
            return

    def _patch(self, module: ModuleType) -> None:
        patch = self._pending.pop(module.__name__, None)
        if patch is not None:
            try:
                # importlib.import_module, without the half millisecond that importing importlib costs every process.
                ours = __import__(f"{self._package}.{patch[0]}", fromlist=[patch[1]])
                getattr(ours, patch[1])(module)
            except Exception:
                pass
        if not self._pending and self in sys.meta_path:
            sys.meta_path.remove(self)
