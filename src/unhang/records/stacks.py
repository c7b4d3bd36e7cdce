"""Python stacks: read from py-spy and from faulthandler, and found their way about in.

`is_user_file` is the one rule for "the user's own code". The hook that runs inside the training keeps a copy of it, because it must
work where unhang is not installed; a conformance test holds the two equal.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec

from unhang.errors import RecordError
from unhang.records.incident import Frame, Stacks, ThreadStack

_STDLIB = re.compile(r"/lib(?:64)?/python3\.?\d+t?(?:\.zip)?/")
_INSTALLED = re.compile(r"/(?:site|dist)-packages/")
_UNHANG = re.compile(
    r"/unhang/(?:__init__|__main__|model|errors|facts|records|knowledge|diagnosis|probes|remedies|runtime|launch|bench|plan|pack|report|cli|testing)(?:/|\.py)"
)
_TORCH = re.compile(r"(?:^|/)torch/")
_EXIT = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def is_user_file(path: str) -> bool:
    """Whether a file is the user's own code: not interactive, not the standard library, not installed, not unhang (its recipes are)."""
    if not path or path.startswith("<"):
        return False
    if "/unhang/recipes/" in path:
        return True
    return not (_INSTALLED.search(path) or _STDLIB.search(path) or _UNHANG.search(path))


def without_hook(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The frames above which unhang's own hook (or a fault of unhang.testing) stands and waits, with whatever of the standard library it called."""
    end = len(frames)
    for i in range(len(frames) - 1, -1, -1):
        file = frames[i].file
        if "/unhang/recipes/" not in file and _UNHANG.search(file):
            end = i
        elif not (_STDLIB.search(file) and not _INSTALLED.search(file)):
            break
    return tuple(frames[:end]) or tuple(frames)


def user_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame of the user's code; failing that, the innermost one of a library that is neither Python, torch nor unhang."""
    for frame in reversed(frames):
        if is_user_file(frame.file):
            return frame
    for frame in reversed(frames):
        library = _INSTALLED.search(frame.file)
        if library and not _TORCH.match(frame.file[library.end() :]) and not _UNHANG.search(frame.file):
            return frame
    return None


def main_thread(stacks: Stacks) -> tuple[Frame, ...]:
    """The frames of the main thread, innermost last; of the first thread where none is marked; () where there is none."""
    for thread in stacks.threads:
        if thread.main:
            return thread.frames
    return stacks.threads[0].frames if stacks.threads else ()


def inside(frame: Frame, package: str) -> bool:
    """Whether the frame's file lies in a package, given as a path: `torch/utils/data`."""
    return f"/{package}/" in frame.file or f"/{package}.py" in frame.file


def shown_path(file: str, cwd: str) -> str:
    """The path relative to the working directory of the training when it lies inside, else as it is."""
    root = cwd.rstrip("/") + "/"
    return file[len(root) :] if len(root) > 1 and file.startswith(root) else file


def place(frame: Frame, cwd: str) -> str:
    """ "train.py:88 in evaluate"."""
    return f"{shown_path(frame.file, cwd)}:{frame.line} in {frame.name}"


def from_pyspy(data: bytes) -> Stacks:
    """What `py-spy dump --json` printed. Raises RecordError."""
    try:
        raw = msgspec.json.decode(data, type=list[_PySpyThread])
    except (msgspec.DecodeError, msgspec.ValidationError) as e:
        raise RecordError(f"this is not the output of py-spy dump --json: {e}") from e
    threads = [
        ThreadStack(
            name=t.thread_name or f"thread {t.thread_id}",
            main=t.thread_name == "MainThread" or (t.os_thread_id is not None and t.os_thread_id == t.pid),
            frames=tuple(Frame(file=f.filename, line=max(f.line, 0), name=f.name) for f in reversed(t.frames)),
        )
        for t in raw
    ]
    return Stacks(source="py-spy", threads=tuple(_main_first(threads)))


_THREAD = re.compile(r"^(?P<current>Current thread|Thread) 0x(?P<id>[0-9a-f]+)(?: \[(?P<name>.*)\])? \(most recent call first\):")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<name>.*)$')


def from_faulthandler(text: str) -> Stacks:
    """What faulthandler wrote while a signal was ending the process. Raises RecordError where no stack is in the text."""
    threads: list[ThreadStack] = []
    name = ""
    frames: list[Frame] = []

    def close() -> None:
        if name and frames:
            frames.reverse()
            # Threads that Python started have threading's bootstrap at the bottom; the main thread has the script.
            main = not frames[0].file.endswith("/threading.py")
            threads.append(ThreadStack(name=name, main=main, frames=tuple(frames)))

    for line in text.splitlines():
        if header := _THREAD.match(line):
            close()
            name, frames = header["name"] or f"thread 0x{header['id'].lstrip('0')}", []
        elif line.startswith("Extension modules:"):
            break
        elif name and (found := _FRAME.match(line)):
            frames.append(Frame(file=found["file"], line=int(found["line"]) if found["line"].isdigit() else 0, name=found["name"]))
    close()
    if not threads:
        raise RecordError("no Python stack in what faulthandler wrote", cause="it was cut off, or the process had no thread with a Python frame")
    return Stacks(source="fatal-signal", threads=tuple(_main_first(threads)))


@lru_cache(maxsize=4096)
def guards_of(path: str, line: int) -> tuple[str, ...]:
    """The tests that had to be true for `line` to be reached, outermost first: of the `if`s around it and of the `if ...: return` before it.

    Within one function; () where the source cannot be read or parsed.
    """
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    guards: list[str] = []
    _descend(tree.body, line, guards)
    return tuple(guards)


def _descend(body: Sequence[ast.stmt], line: int, guards: list[str]) -> None:
    passed: list[str] = []
    for statement in body:
        if not statement.lineno <= line <= (statement.end_lineno or statement.lineno):
            if statement.lineno < line and isinstance(statement, ast.If) and not statement.orelse and isinstance(statement.body[-1], _EXIT):
                passed.append(f"not ({ast.unparse(statement.test)})")
            continue
        guards.extend(passed)
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            guards.clear()
            _descend(statement.body, line, guards)
        elif isinstance(statement, ast.If):
            test = ast.unparse(statement.test)
            if statement.body[0].lineno <= line <= (statement.body[-1].end_lineno or 0):
                guards.append(test)
                _descend(statement.body, line, guards)
            elif statement.orelse and statement.orelse[0].lineno <= line:
                guards.append(f"not ({test})")
                _descend(statement.orelse, line, guards)
        else:
            for block in _blocks(statement):
                _descend(block, line, guards)
        return


def _blocks(statement: ast.stmt) -> Iterable[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        block = getattr(statement, field, None)
        if isinstance(block, list):
            yield block
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield part.body


def _main_first(threads: list[ThreadStack]) -> list[ThreadStack]:
    return sorted(threads, key=lambda t: not t.main)


class _PySpyFrame(msgspec.Struct):
    name: str
    filename: str
    line: int = 0


class _PySpyThread(msgspec.Struct):
    pid: int
    thread_id: int
    thread_name: str | None = None
    os_thread_id: int | None = None
    frames: list[_PySpyFrame] = []
