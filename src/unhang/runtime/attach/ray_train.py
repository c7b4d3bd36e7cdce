"""Ray Train runs the training in a thread of its actor and keeps its exceptions: sys.excepthook never sees them, and the main thread only waits."""

from __future__ import annotations

import contextlib
import functools
from types import ModuleType
from typing import Any

from . import session
from .last_words import tell


def patch(module: ModuleType) -> None:
    """Wrap ThreadRunner.run of ray.train.v2._internal.execution.worker_group.thread_runner, through which every training goes."""
    runner: Any = module.ThreadRunner
    run = runner.run

    @functools.wraps(run)
    def run_and_tell(self: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        @functools.wraps(target)
        def told() -> Any:
            attached = session.current()
            with contextlib.nullcontext() if attached is None else attached.training_here():
                try:
                    return target()
                except Exception as e:
                    # Without this frame.
                    tell(type(e), e, e.__traceback__.tb_next if e.__traceback__ else None)
                    raise

        return run(self, told, *args, **kwargs)

    runner.run = run_and_tell
