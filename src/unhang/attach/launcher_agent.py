"""torchrun's agent: before it ends the surviving workers of a failed one, the supervisor gets the time to take their evidence."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from types import ModuleType
from typing import Any

from .protocol import ENV_SOCKET, GO_TIMEOUT_S
from .session import say_hello
from .supervisor_socket import Link


def patch(module: ModuleType) -> None:
    """Wrap PContext.close of torch.distributed.elastic.multiprocessing.api."""
    context: Any = module.PContext
    close = context.close

    @functools.wraps(close)
    def announced_close(self: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):
            _announce(self)
        return close(self, *args, **kwargs)

    context.close = announced_close


def _announce(context: Any) -> None:
    workers = _workers(context)
    # It is closed after a good end too, and more than once.
    if all(worker["exitcode"] == 0 for worker in workers) or getattr(context, "_unhang_announced", False):
        return
    context._unhang_announced = True
    link = Link.connect(os.environ.get(ENV_SOCKET, ""))
    if link is None:
        return
    try:
        say_hello(link, wants_stdio=False, is_rank=False)
        link.post("stopping", workers=workers)
        deadline = time.monotonic() + GO_TIMEOUT_S
        while link.open and time.monotonic() < deadline:
            if any(message["m"] in ("go", "refused") for message in link.receive(timeout_s=deadline - time.monotonic())):
                return
    finally:
        link.close()


def _workers(context: Any) -> list[dict[str, int | None]]:
    """Every worker with its exit code, None for those that still run."""
    handlers = getattr(context, "subprocess_handlers", None)
    if handlers:
        return [{"local_rank": i, "pid": handler.proc.pid, "exitcode": handler.proc.poll()} for i, handler in handlers.items()]
    spawned = getattr(getattr(context, "_pc", None), "processes", None) or ()
    return [{"local_rank": i, "pid": process.pid, "exitcode": process.exitcode} for i, process in enumerate(spawned)]
