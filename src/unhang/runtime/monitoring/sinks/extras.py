"""Whether the library of a sink is there, without importing it: sinks are made on every rank, and used on one."""

from __future__ import annotations

import importlib.util

from unhang.errors import MissingExtra


def needed(sink: str, extra: str, *modules: str) -> None:
    """Raises MissingExtra with the command that installs what is not there."""
    missing = [name.partition(".")[0] for name in modules if not _there(name)]
    if missing:
        install = f'pip install "unhang[{extra}]"'
        raise MissingExtra(f"unhang.{sink} needs {missing[0]}, which is not installed: {install}", hint=install)


def _there(name: str) -> bool:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return False
    # ./wandb is also what wandb writes, and ./tensorboard a usual name for logs: a directory without code can be imported, and holds nothing.
    return spec is not None and spec.origin is not None
