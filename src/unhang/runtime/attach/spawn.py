"""Workers of torch.multiprocessing.spawn: their exceptions are caught and sent to the parent, so sys.excepthook never sees them."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from .last_words import tell


def patch(module: ModuleType) -> None:
    """Wrap what torch.multiprocessing.spawn runs in each worker. It stays picklable: by its name, as before."""
    run: Any = module._wrap

    @functools.wraps(run)
    def run_and_tell(fn: Any, *args: Any, **kwargs: Any) -> Any:
        def told(*fn_args: Any) -> Any:
            try:
                return fn(*fn_args)
            except Exception as e:
                # Without this frame.
                tell(type(e), e, e.__traceback__.tb_next if e.__traceback__ else None)
                raise

        return run(told, *args, **kwargs)

    module._wrap = run_and_tell  # type: ignore[attr-defined]
