"""Where the threads of this process stand: a glance for every heartbeat (tens of microseconds), all stacks on request.

Source lines are read here rather than with linecache, which imports modules when first used: an import from this thread could wait for one that the
main thread is in the middle of.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from types import FrameType, TracebackType

TYPE_CHECKING = False
# Where unhang need not be installed, its file is found by the hook's search path.
if TYPE_CHECKING or __package__ != "_unhang_attach":
    from unhang.user_files import is_library_file, is_user_file
else:
    from _unhang_attach.user_files import is_library_file, is_user_file

MAX_FRAMES = 400
_MAX_CODE_CHARS = 300
_COLLECTIVES = "torch/distributed/distributed_c10d.py"
# What no recorder holds of a call: its root, counted within its group where this torch does (since 2.6), and its reduction.
_ARGUMENTS = ("group_src", "group_dst", "src", "dst", "op")
# One process builds an extension, the others look ten times a second whether its lock file is still there, without a limit.
_LOCKS = "torch/utils/file_baton.py"
# Part of the protocol: what is told instead of a function of torch.distributed.
POLLS_A_LOCK = "file_baton"

# What a rank waits in that calls unhang's own collectives, and what lies between them and the wait itself.
_GUARDED = ("/unhang/runtime/collectives/", "/unhang/runtime/evaluation/", "/unhang/runtime/sync_check.py")
_BETWEEN = ("/unhang/attach/", "/torch/distributed/", "/contextlib.py", "/threading.py")

# On a thread of Python's: where it was started.
STARTED = "_unhang_started"
# Before the name of a function of unhang's library.
OURS = "unhang."
_USER, _LIBRARY, _NEITHER, _WAITS, _PASSES = range(5)
_kinds: dict[str, int] = {}

Place = tuple[str, int, str]
CodeFrame = tuple[str, int, str, str, str]


def glance(ident: int) -> tuple[Place | None, int, str | None]:
    """The innermost user frame of a thread (else the innermost frame of a library), a number that changes when the thread moves, and the function
    of torch.distributed or of unhang's library that the thread waits in (the recorder knows neither Gloo's send and recv nor waits on the store), or
    POLLS_A_LOCK.

    A thread that is computing is seen where it lets go of the interpreter: at calls and at the ends of loops. One tight loop without calls therefore
    looks as if it stood still; its processor time says otherwise.
    """
    frame: FrameType | None = sys._current_frames().get(ident)
    second: Place | None = None
    place: Place | None = None
    inside: str | None = None
    waits = True
    steps: list[int] = []
    while frame is not None and len(steps) < 2 * MAX_FRAMES:
        code = frame.f_code
        steps.append(id(code))
        steps.append(frame.f_lasti)
        if place is None:
            kind = _kind(code.co_filename)
            if code.co_filename.endswith(_COLLECTIVES):
                inside = code.co_name
            elif second is None and code.co_filename.endswith(_LOCKS) and code.co_name == "wait":
                inside = POLLS_A_LOCK
            elif kind == _WAITS:
                # An evaluation lies below whatever it calls, too.
                inside = f"{OURS}{code.co_name}" if waits else inside
            elif kind != _PASSES:
                waits = False
            if kind == _USER:
                place = (code.co_filename, frame.f_lineno or 0, code.co_name)
            elif kind == _LIBRARY and second is None:
                second = (code.co_filename, frame.f_lineno or 0, code.co_name)
        frame = frame.f_back
    return place or second, hash(tuple(steps)) & 0xFFFFFFFF, inside


def remember_starts() -> None:
    """From now on, keep with each thread the place that started it."""
    start = threading.Thread.start

    @functools.wraps(start)
    def remembering(self: threading.Thread) -> None:
        # A subclass may refuse attributes that it does not know.
        with contextlib.suppress(Exception):
            self.__dict__[STARTED] = glance(threading.get_ident())[0]
        start(self)

    threading.Thread.start = remembering  # type: ignore[method-assign]


def stacks(*, main_ident: int, without: int) -> list[dict[str, object]]:
    """All threads but `without`, the main one first; frames innermost last."""
    sources = Sources()
    # threading.enumerate() takes a lock that the interrupted thread may hold.
    known = dict(getattr(threading, "_active", {}))
    snapshot = sys._current_frames()
    threads: list[dict[str, object]] = []
    for ident in sorted(snapshot, key=lambda i: (i != main_ident, i)):
        if ident != without:
            thread = known.get(ident)
            name = getattr(thread, "name", None) or f"thread {ident}"
            tid = getattr(thread, "native_id", None)
            keeps, started = not getattr(thread, "daemon", True), getattr(thread, STARTED, None)
            frames = call_stack(snapshot[ident], sources)
            threads.append({"name": name, "main": ident == main_ident, "frames": frames, "tid": tid, "keeps": keeps, "started": started})
    snapshot.clear()
    return threads


def traceback_frames(traceback: TracebackType | None) -> list[CodeFrame]:
    """The frames of an exception, innermost last."""
    sources = Sources()
    frames: list[CodeFrame] = []
    while traceback is not None:
        frames.append(_described(traceback.tb_frame, traceback.tb_lineno or 0, sources))
        traceback = traceback.tb_next
    return frames[-MAX_FRAMES:]


def call_stack(frame: FrameType | None, sources: Sources | None = None) -> list[CodeFrame]:
    """The frames of a thread down to `frame`, innermost last."""
    sources = sources or Sources()
    frames: list[CodeFrame] = []
    while frame is not None and len(frames) < MAX_FRAMES:
        frames.append(_described(frame, frame.f_lineno or 0, sources))
        frame = frame.f_back
    frames.reverse()
    return frames


def _described(frame: FrameType, line: int, sources: Sources) -> CodeFrame:
    code, arguments = frame.f_code, ""
    if code.co_filename.endswith(_COLLECTIVES):
        passed = {n: str(frame.f_locals.get(n)).removeprefix("RedOpType.") for n in _ARGUMENTS if n in code.co_varnames[: code.co_argcount]}
        arguments = " ".join(f"{name}={v}" for name, v in passed.items() if v.isalnum() and v != "None" and f"group_{name}" not in passed)
    return code.co_filename, line, code.co_name, sources.line(code.co_filename, line), arguments


def _kind(path: str) -> int:
    kind = _kinds.get(path)
    if kind is None:
        kind = _kinds[path] = _kind_of(path)
    return kind


def _kind_of(path: str) -> int:
    if is_user_file(path):
        return _USER
    if any(part in path for part in _GUARDED):
        return _WAITS
    if path.startswith("<") or any(part in path for part in _BETWEEN):
        return _PASSES
    return _LIBRARY if is_library_file(path) else _NEITHER


class Sources:
    """Source lines, each file read once."""

    def __init__(self) -> None:
        self._files: dict[str, list[str]] = {}

    def line(self, path: str, number: int) -> str:
        lines = self._files.get(path)
        if lines is None:
            lines = self._files[path] = self._read(path)
        return lines[number - 1].strip()[:_MAX_CODE_CHARS] if 0 < number <= len(lines) else ""

    @staticmethod
    def _read(path: str) -> list[str]:
        # Notebooks and compilers put what exists in no file there.
        entry = getattr(sys.modules.get("linecache"), "cache", {}).get(path)
        if entry is not None and len(entry) == 4:
            return list(entry[2])
        if path.startswith("<"):
            return []
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                return file.readlines()
        except OSError:
            return []
