"""What the training uses of unhang: a look before each checkpoint at whether all ranks train the same model, guarded evaluation, a monitor.

Where unhang cannot be imported the same training runs without them, to the same loss, and says so once.
"""

from __future__ import annotations

import os
from typing import Any, TypeVar

T = TypeVar("T")

try:
    from unhang import JSONL, Monitor, evaluate, sync_check
    from unhang.testing import faults

    missing = ""
except ImportError as e:
    missing = f"{type(e).__name__}: {e}"

    class faults:  # type: ignore[no-redef]
        """Nothing goes wrong on purpose."""

        @staticmethod
        def point(name: str, *, step: int | None = None) -> None: ...

        @staticmethod
        def tap(name: str, value: T, *, step: int | None = None) -> T:
            return value

    def sync_check(step: int, **_: Any) -> bool:
        return False


__all__ = ["JSONL", "Monitor", "evaluate", "faults", "lacking", "missing", "sync_check"]


def lacking(*, guarded: bool, monitored: bool) -> str | None:
    """What the training goes without, of what it was asked for; None where nothing is missing."""
    if not missing:
        return None
    asked = {"no check that all ranks train the same model": True, "no guarded evaluation": guarded, "no monitor": monitored}
    asked["UNHANG_FAULT does nothing"] = "UNHANG_FAULT" in os.environ
    return f"unhang cannot be imported here ({missing}): {', '.join(what for what, is_asked in asked.items() if is_asked)}"
