"""The attachment of this process to its supervisor: made once, forgotten in forked children, ended with the interpreter; its heartbeat, and
its GPU.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from . import exit_hooks
from .frames import glance, remember_starts, stacks
from .protocol import BEAT_INTERVAL_S, ENV_RANK_PID, ENV_SOCKET, ENV_STDIO, ENV_SUPERVISOR, ENV_TOKEN, MAX_MESSAGE_BYTES, VERSION
from .recorder import Recorders
from .start import belongs_to_rank
from .supervisor_socket import Link

STDIO_TIMEOUT_S = 2.0
_STACKS_TIMEOUT_S = 2.0
# A heartbeat holds the lock for a fraction of a millisecond, a dump for seconds: a fork does not wait for the latter.
_FORK_TIMEOUT_S = 1.0
_PR_SET_PTRACER = 0x59616D61


class Session:
    """What is known of this process, and the link by which it is told."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.step = 0
        self.stepping = False
        self.go = threading.Event()
        self.recorders: Recorders | None = None
        # The thread that trains; Ray Train has one of its own for it.
        self.main_ident = threading.main_thread().ident or 0
        self.thread: threading.Thread | None = None
        # Held while the heartbeat thread is at work, so that no fork happens in the middle of it.
        self.working = threading.Lock()

    @contextlib.contextmanager
    def training_here(self) -> Iterator[None]:
        """Inside, this thread is the one to be watched; then the main one again, unless another has begun meanwhile."""
        own = self.main_ident = threading.get_ident()
        self.link.post("training", pid=os.getpid(), tid=threading.get_native_id())
        try:
            yield
        finally:
            if self.main_ident == own:
                self.main_ident = threading.main_thread().ident or 0
                self.link.post("training", pid=os.getpid(), tid=None)

    def start_heartbeat(self) -> None:
        self.thread = threading.Thread(target=_run, args=(self,), name="unhang-heartbeat", daemon=True)
        self.thread.start()
        # Whoever looks from outside can tell this thread from the training's. Not written by itself, whose open file the script might close.
        with contextlib.suppress(OSError), open(f"/proc/self/task/{self.thread.native_id}/comm", "w") as comm:  # not Linux, or no /proc
            comm.write("unhang-beat")

    def beat(self) -> None:
        place, sig, inside = glance(self.main_ident)
        # A deadline of the user's own is kept by the library itself.
        library = sys.modules.get("unhang.runtime.collectives.deadlines")
        promised = getattr(library, "promised_s", 0.0)
        self.link.post("beat", t=time.monotonic(), step=self.step, groups=self.groups(), place=place, sig=sig, inside=inside, promised=promised)

    def groups(self) -> dict[str, list[int]]:
        recorders = self.recorders
        if recorders is None:
            return {}
        try:
            return recorders.groups()
        except Exception:  # a torch whose recorder looks otherwise: beats go on without counters
            self.recorders = None
            return {}

    def give_evidence(self, *, request: object, flight: object) -> None:
        """Stacks first, and on their way before the dump is made: that may take seconds, or for ever in a broken driver."""
        threads = stacks(main_ident=self.main_ident, without=threading.get_ident())
        while len(threads) > 1 and sum(len(str(thread)) for thread in threads) > MAX_MESSAGE_BYTES // 2:
            threads.pop()
        self.link.post("evidence", id=request, threads=threads, groups=self.groups(), step=self.step, tid=threading.get_native_id())
        self.link.drain(timeout_s=_STACKS_TIMEOUT_S)
        error: str | None = None
        try:
            if self.recorders is None or not isinstance(flight, str):
                error = "torch.distributed is not initialised in this process, or this torch has no flight recorder"
            else:
                self.recorders.dump(flight)
        except Exception as e:
            error = f"{type(e).__name__}: {e}"
        self.link.post("dumped", id=request, flight=error is None, error=error)

    def wait_for_go(self, timeout_s: float) -> None:
        if self.thread is not None and self.thread.is_alive():
            self.go.wait(timeout_s)

    def end(self) -> None:
        """Say goodbye and stop the thread before the interpreter is torn down around it."""
        # How far it came in all: its last steps may have taken less time than there is between two beats.
        self.beat()
        self.link.post("leaving")
        self.link.drain(timeout_s=0.5)
        self.link.wake()
        if self.thread is not None:
            self.thread.join(1.0)
        self.link.close()


_current: Session | None = None
_tried = False
_fork_hooks = False
_quiesced: dict[int, Session] = {}


def current() -> Session | None:
    """The session of this very process, if it is attached."""
    return _current


def attach(*, rank_process: bool = False, rank: int | None = None) -> Session | None:
    """Attach this process, once: what failed is not tried again. None where there is nobody to attach to. `rank`: if the environment names none."""
    global _current, _tried
    if _current is not None or _tried or belongs_to_rank():
        return _current
    _tried = True
    link = Link.connect(os.environ.get(ENV_SOCKET, ""))
    if link is None:
        return None
    if not _hello(link, rank_process=rank_process, rank=rank):
        link.close()
        return None
    _survive_forks()
    exit_hooks.arrange()
    if rank_process:
        exit_hooks.arrange_fatal()
    _admit_supervisor()
    remember_starts()
    _current = Session(link)
    _current.start_heartbeat()
    return _current


def use_recorders(distributed: ModuleType) -> None:
    """From now on, beats carry the counters of the groups."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    if _current is not None and _current.recorders is None and c10d is not None:
        _current.recorders = Recorders(distributed, c10d)


def claim_children() -> None:
    """Children of this process are not to be taken for ranks, though they inherit RANK."""
    os.environ[ENV_RANK_PID] = str(os.getpid())


def say_hello(link: Link, *, wants_stdio: bool, is_rank: bool = True, rank: int | None = None) -> bool:
    """The first message on every connection. A launcher is no rank, though its own environment may name one (Kubeflow sets RANK for every pod)."""
    return link.post(
        "hello",
        v=VERSION,
        token=os.environ.get(ENV_TOKEN, ""),
        pid=os.getpid(),
        rank=found if is_rank and (found := number("RANK")) is not None else rank,
        local_rank=number("LOCAL_RANK") if is_rank else None,
        world_size=number("WORLD_SIZE"),
        local_world_size=number("LOCAL_WORLD_SIZE"),
        job=_job(),
        restarts=number("TORCHELASTIC_RESTART_COUNT"),
        host=os.uname().nodename,
        python=sys.version.split()[0],
        argv=list(sys.orig_argv),
        wants_stdio=wants_stdio,
    )


def _hello(link: Link, *, rank_process: bool, rank: int | None) -> bool:
    streams = _streams_of_supervisor() if rank_process else {}
    if not say_hello(link, wants_stdio=bool(streams), rank=rank) or not streams:
        return link.open
    fds = link.receive_fds(2, timeout_s=STDIO_TIMEOUT_S)
    for fd, stream in streams.items():
        if fds is not None:
            os.dup2(fds[stream], fd)
    for received in fds or ():
        os.close(received)
    if fds is not None and 1 in streams:
        # A rank that is killed must not take the lines with it that it had printed.
        with contextlib.suppress(Exception):
            sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return link.open


def _streams_of_supervisor() -> dict[int, int]:
    """Which of fd 1 and 2 still is the supervisor's own stdout (0) or stderr (1): a launcher that sent them elsewhere meant it."""
    pipes = os.environ.get(ENV_STDIO, "").split(",")
    streams = {}
    for fd in (1, 2):
        try:
            stat = os.fstat(fd)
        except OSError:
            continue
        name = f"{stat.st_dev}:{stat.st_ino}"
        if name in pipes[:2]:
            # Where both are one pipe, each keeps its own name.
            streams[fd] = fd - 1 if pipes[fd - 1 : fd] == [name] else pipes.index(name)
    return streams


def _job() -> str | None:
    """What tells the trainings of one command apart: torchrun's id (a static rendezvous has none), else where the ranks are to meet."""
    run_id = os.environ.get("TORCHELASTIC_RUN_ID")
    if run_id and run_id != "none":
        return run_id
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    return f"{address}:{port}" if address and port else None


def number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else None


def _admit_supervisor() -> None:
    # Under Yama's ptrace_scope=1 a process may be read only by its ancestors; the supervisor's py-spy is a sibling.
    supervisor = number(ENV_SUPERVISOR)
    if supervisor is None or not sys.platform.startswith("linux"):
        return
    try:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(supervisor), 0, 0, 0)
    except Exception:
        pass


def _survive_forks() -> None:
    global _fork_hooks
    if not _fork_hooks:
        _fork_hooks = True
        os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def _before_fork() -> None:
    session = _current
    if session is not None and session.working.acquire(timeout=_FORK_TIMEOUT_S):
        _quiesced[threading.get_ident()] = session


def _after_fork_in_parent() -> None:
    session = _quiesced.pop(threading.get_ident(), None)
    if session is not None:
        session.working.release()


def _after_fork_in_child() -> None:
    """A forked child is another process. Should it join a group of its own, it attaches anew."""
    global _current, _tried
    session, _current, _tried = _current, None, False
    _quiesced.clear()
    if session is not None:
        session.link.close()
        exit_hooks.forget_fatal()


# What a fault of this thread itself would raise must stay unblocked.
_OWN_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}


def _run(session: Session) -> None:
    """The thread that beats, also while the main thread is blocked inside a collective, and answers, until the supervisor is gone."""
    try:
        # A script that blocks a signal in all its threads, to wait for it, knows nothing of this one.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _OWN_FAULTS)
        _serve(session)
    except Exception:  # whatever it is, the training goes on
        pass
    finally:
        session.link.close()
        session.go.set()


def _serve(session: Session) -> None:
    due = time.monotonic()
    while session.link.open:
        if time.monotonic() >= due:
            with session.working:
                # A supervisor that does not read is not buried in beats.
                if session.link.flush() and not session.link.pending:
                    session.beat()
            due = time.monotonic() + BEAT_INTERVAL_S
        for message in session.link.receive(timeout_s=due - time.monotonic()):
            kind = message["m"]
            if kind == "evidence":
                with session.working:
                    session.give_evidence(request=message.get("id"), flight=message.get("flight"))
            elif kind == "go":
                session.go.set()
            elif kind == "refused":
                return


def gpu(torch: Any, device: str | None) -> str | None:
    """The PCI address of the GPU that this process uses, by which the kernel log names it: "0000:3b:00.0" of "cuda:3", as this process counts its
    devices. None where nothing tells, and as long as CUDA does not run in it.
    """
    try:
        kind, _, index = (device or "").split(" ")[0].partition(":")
        if kind != "cuda" or not torch.cuda.is_initialized():
            return None
        import ctypes

        driver = ctypes.CDLL("libcuda.so.1")
        handle, text = ctypes.c_int(), ctypes.create_string_buffer(32)
        if driver.cuDeviceGet(ctypes.byref(handle), int(index or 0)) or driver.cuDeviceGetPCIBusId(text, 32, handle):
            return None
        return text.value.decode("ascii").lower()
    except Exception:
        return None
