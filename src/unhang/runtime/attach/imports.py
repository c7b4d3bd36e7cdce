"""Runs a patch right after a module was imported, without importing anything early.

A module is found by whoever would have found it; only the `exec_module` of the very loader instance is shadowed, once, so the module's spec, loader
and type are those it would have had. When nothing is left to patch, the finder takes itself off sys.meta_path.
"""

from __future__ import annotations

import sys
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class PatchAfterImport:
    """A finder for `patches`: module name -> (module of `package`, function taking the freshly imported module)."""

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
