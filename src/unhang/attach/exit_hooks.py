"""What a process says at its end: the exception that nothing caught, the call that ended it, its stacks, and that it ends in order.

Of torchrun's agent, that it is about to end the surviving workers of a failed one: the supervisor then gets the time to take their evidence.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, ModuleType, TracebackType
from typing import IO, Any

from . import session
from .frames import CodeFrame, call_stack, traceback_frames
from .protocol import ENV_FATAL, ENV_SOCKET, GO_TIMEOUT_S, open_private
from .supervisor_socket import Link

_MAX_TEXT = 20_000
_DRAIN_S = 0.5
_arranged = False
_told: int | None = None


def arrange() -> None:
    """Chain sys.excepthook, wrap what ends a process, register the goodbye; all concern only the process that is attached when they are called."""
    global _arranged
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        # A forked worker ends with os._exit: no atexit. (A spawned one has both: the second goodbye finds nobody to say it to.)
        sys.modules["multiprocessing.util"].Finalize(None, _leave, exitpriority=-100)
    if _arranged:
        return
    _arranged = True
    previous = sys.excepthook

    def excepthook(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
        tell(kind, value, traceback)
        previous(kind, value, traceback)

    sys.excepthook = excepthook
    sys.exit = _remembering(sys.exit)
    # exit() and quit(); absent under `python -S`.
    if quitter := getattr(sys.modules.get("_sitebuiltins"), "Quitter", None):
        quitter.__call__ = _remembering(quitter.__call__)
    os._exit = _reporting(os._exit)
    # Called before the threads of the script are waited for, which may take for ever. Private, and used by concurrent.futures: 3.9 to 3.14.
    with contextlib.suppress(RuntimeError):
        getattr(threading, "_register_atexit", atexit.register)(_tell_last)
    # Registered first, called last.
    atexit.register(_leave)
    # Hooks run in reverse order: after the main thread has ended, and before the interpreter waits for threads that still train.
    # It is private, and refuses once the interpreter ends.
    with contextlib.suppress(AttributeError, RuntimeError):
        threading._register_atexit(atexit.register, tell_end)  # type: ignore[attr-defined]


def tell(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
    """Report an exception that will end this process, and wait until the supervisor has taken the evidence of the others. Never raises."""
    global _told
    attached = session.current()
    if attached is None or not issubclass(kind, Exception):
        return
    with contextlib.suppress(Exception):
        _told = id(value)
        attached.go.clear()
        if attached.link.post("raised", type=_name(kind), text=_text(value), frames=traceback_frames(traceback), flight=False):
            attached.wait_for_go(GO_TIMEOUT_S)


def _tell_caught(value: Exception) -> None:
    """Without the frame that has caught it."""
    tell(type(value), value, value.__traceback__.tb_next if value.__traceback__ else None)


def _tell_last() -> None:
    """Report the uncaught exception that a replaced sys.excepthook kept from ours: the interpreter sets sys.last_value before it calls any hook."""
    value = getattr(sys, "last_value", None)
    if isinstance(value, BaseException) and id(value) != _told:
        tell(type(value), value, getattr(sys, "last_traceback", None))


class _Exit:
    """The call stack of sys.exit and its status, carried by the SystemExit that it raises and gone with it."""

    last: tuple[CodeFrame, ...] = ()
    last_status: Any = None

    def __init__(self, frames: list[CodeFrame], status: Any) -> None:
        self.frames = frames
        self.status = status

    def __del__(self, frame: Callable[[], FrameType] = sys._getframe) -> None:
        # The interpreter releases the exception that ends it with no Python frame below. An `except SystemExit` is a frame, a thread has some.
        if frame().f_back is None:
            _Exit.last, _Exit.last_status = tuple(self.frames), self.status


def exit_status() -> Any:
    """What the script gave to the sys.exit that ended it; None without one."""
    return _Exit.last_status


def _remembering(leave: Callable[..., Any]) -> Any:
    """Wrap sys.exit and its like, which raise SystemExit: no excepthook is called for that, and sys.last_value is not set."""

    @functools.wraps(leave)
    def leave_and_remember(*args: Any, **kwargs: Any) -> Any:
        try:
            return leave(*args, **kwargs)
        except SystemExit as e:
            with contextlib.suppress(Exception):
                e.__dict__["_unhang_exit"] = _Exit(call_stack(sys._getframe(1)), e.code)
            raise

    return leave_and_remember


def _reporting(leave: Callable[[int], Any]) -> Any:
    """Wrap os._exit, after which nothing of this process runs."""

    @functools.wraps(leave)
    def report_and_leave(status: int) -> Any:
        with contextlib.suppress(Exception):
            _tell_last()
            _tell_exit(call_stack(sys._getframe(1)))
        leave(status)

    return report_and_leave


def _tell_exit(frames: list[CodeFrame]) -> None:
    attached = session.current()
    if attached is not None and frames and attached.link.post("exits", frames=frames):
        attached.link.drain(timeout_s=_DRAIN_S)


def _leave() -> None:
    attached = session.current()
    if attached is not None:
        _tell_last()
        _tell_exit(list(_Exit.last))
        attached.end()


def _name(kind: type[BaseException]) -> str:
    return kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"


def _text(value: BaseException) -> str:
    lines = [_say(value)]
    seen = {id(value)}
    cause = value.__cause__
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        lines.append(f"caused by {_name(type(cause))}: {_say(cause)}")
        cause = cause.__cause__
    return "\n".join(lines)[:_MAX_TEXT]


def _say(value: BaseException) -> str:
    try:
        return str(value)
    except Exception:
        return "<the exception has no readable text>"


def tell_end() -> None:
    """Report that the script has run to its end, before the interpreter is torn down: what dies after that took no result with it.

    Does nothing if an exception ended the script, or it asked for an exit code.
    """
    attached = session.current()
    # What printed the exception has kept it there, also where sys.excepthook was replaced.
    if attached is not None and exit_status() in (None, 0) and getattr(sys, "last_type", None) is None:
        attached.link.post("finished")
        attached.link.drain(timeout_s=0.5)


# Its workers' exceptions are caught and sent to the parent, so sys.excepthook never sees them.
def patch_spawn(module: ModuleType) -> None:
    """Wrap what torch.multiprocessing.spawn runs in each worker. It stays picklable: by its name, as before."""
    run: Any = module._wrap

    @functools.wraps(run)
    def run_and_tell(fn: Any, *args: Any, **kwargs: Any) -> Any:
        def told(*fn_args: Any) -> Any:
            try:
                return fn(*fn_args)
            except Exception as e:
                _tell_caught(e)
                raise

        return run(told, *args, **kwargs)

    module._wrap = run_and_tell  # type: ignore[attr-defined]


# Ray Train runs the training in a thread of its actor and keeps its exceptions: sys.excepthook never sees them, and the main thread only waits.
def patch_ray_train(module: ModuleType) -> None:
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
                    _tell_caught(e)
                    raise

        return run(self, told, *args, **kwargs)

    runner.run = run_and_tell


# For ends that leave no time for anything else, a crash or a launcher's SIGTERM: faulthandler writes stacks from inside the signal handler, so that a
# rank that is blocked in C++ and runs no Python code leaves its stacks too.
_fatal_file: IO[bytes] | None = None
_fatal_enabled = False


def arrange_fatal() -> None:
    """Write the stacks of all threads to a file in UNHANG_FATAL_DIR; nothing where that cannot be written or the user does it already."""
    global _fatal_file, _fatal_enabled
    directory = os.environ.get(ENV_FATAL)
    if not directory or _fatal_file is not None:
        return
    rank = os.environ.get("RANK", "")
    name = f"rank{rank}.txt" if rank.isdecimal() else f"pid{os.getpid()}.txt"
    try:
        _fatal_file = open(os.path.join(directory, name), "ab", buffering=0, opener=open_private)  # noqa: SIM115  open as long as the process lives
        if not faulthandler.is_enabled():
            faulthandler.enable(file=_fatal_file, all_threads=True)
            _fatal_enabled = True
        # chain: afterwards the signal does what it would have done. A handler that the script installs later replaces this one.
        faulthandler.register(signal.SIGTERM, file=_fatal_file, all_threads=True, chain=True)
    except Exception:
        return


def forget_fatal() -> None:
    """In a forked child: loader workers are ended by SIGTERM as a matter of course, and theirs are not the rank's stacks."""
    global _fatal_file, _fatal_enabled
    if _fatal_file is None:
        return
    try:
        # Once the script has a handler of its own, unregistering would take that away.
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            faulthandler.unregister(signal.SIGTERM)
        if _fatal_enabled:
            faulthandler.disable()
        _fatal_file.close()
    except Exception:
        pass
    _fatal_file, _fatal_enabled = None, False


def patch_launcher(module: ModuleType) -> None:
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
        session.say_hello(link, wants_stdio=False, is_rank=False)
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
