"""Python stacks: read from py-spy and from faulthandler; and the tests in the source that led to a line."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec

from unhang import encoding
from unhang.errors import RecordError
from unhang.frames import Frame
from unhang.patterns import lazily
from unhang.records.incident import Stacks, ThreadStack

# tqdm looks at its bars every ten seconds; loader workers hand out tensors through a thread of multiprocessing's.
_SERVICES = ("/tqdm/_monitor.py", "/multiprocessing/resource_sharer.py")
# Threads of unhang's own library ask its store from time to time.
_OURS = "unhang-"
_EXIT = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_LEAVES = (ast.Return, ast.Raise, ast.Break, ast.Assert, ast.Yield, ast.YieldFrom, ast.Await)
# An exhausted iterator and the end of the process leave a loop as well; a training loop is left by whatever it calls.
_LEAVING_CALL = lazily(r"(?:^|\.)(?:next|_?exit|abort|kill|exec[lv]\w*|\w*step|\w*backward|train\w*)$")
_LOOPS_AND_SCOPES = (ast.While, ast.For, ast.AsyncFor, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def main_thread(stacks: Stacks) -> tuple[Frame, ...]:
    """The frames of the main thread, innermost last; of the first thread where none is marked; () where there is none."""
    for thread in stacks.threads:
        if thread.main:
            return thread.frames
    return stacks.threads[0].frames if stacks.threads else ()


def idle_threads(stacks: Stacks) -> frozenset[int]:
    """Threads that wake up by themselves and release no lock that the training's own code may wait for."""
    return frozenset(
        t.tid for t in stacks.threads if t.tid is not None and (t.name.startswith(_OURS) or any(f.file.endswith(_SERVICES) for f in t.frames))
    )


def from_pyspy(data: bytes) -> Stacks:
    """What `py-spy dump --json` printed. Raises RecordError."""
    raw = _pyspy(data)
    threads = [
        ThreadStack(
            name=t.thread_name or f"thread {t.thread_id}",
            main=t.thread_name == "MainThread" or (t.os_thread_id is not None and t.os_thread_id == t.pid),
            frames=tuple(Frame(file=f.filename, line=max(f.line, 0), name=_NAME.sub("", f.name)) for f in reversed(t.frames)),
            tid=t.os_thread_id,
        )
        for t in raw
    ]
    return Stacks(source="py-spy", threads=tuple(_main_first(threads)))


# Python 3.11 and later tell py-spy qualified names; all other sources of frames have `co_name`.
_NAME = lazily(r"^.*\.")
# Where torch's workers keep what they were asked for, the innermost first: a sample, its batch.
_INDEX = {"torch/utils/data/_utils/fetch": ("idx", "possibly_batched_index"), "torch/utils/data/_utils/worker": ("index",)}
_WORKER_LOOP = "torch/utils/data/_utils/worker"
# Samplers may also give names of files, which are the user's own business.
_INTEGERS = lazily(r"-?\d+|[\[(]-?\d+(?:, -?\d+)*(?:, \.\.\.)?[\])]")


def worker_of_pyspy(data: bytes) -> tuple[int | None, str | None]:
    """The number of a data loader's worker, and the index that it was asked for, from `py-spy dump --json --locals`. Raises RecordError."""
    worker = index = None
    for frame in (f for thread in _pyspy(data) for f in thread.frames):
        known = {v.name: v.repr for v in frame.locals or () if v.repr is not None}
        for file, names in _INDEX.items():
            if f"/{file}.py" in frame.filename:
                index = index or next((known[n] for n in names if _INTEGERS.fullmatch(known.get(n, ""))), None)
        if f"/{_WORKER_LOOP}.py" in frame.filename and known.get("worker_id", "").isdecimal():
            worker = int(known["worker_id"])
    return worker, index


def _pyspy(data: bytes) -> list[_PySpyThread]:
    try:
        return msgspec.json.decode(data, type=list[_PySpyThread])
    except encoding.NOT_JSON as e:
        raise RecordError(f"this is not the output of py-spy dump --json: {e}") from e


# A thread that was asked for alone is only a "Stack".
_THREAD = lazily(r"^(?:(?:Current thread|Thread) 0x(?P<id>[0-9a-f]+)(?: \[(?P<name>.*)\])?|Stack) \(most recent call first\):")
_FRAME = lazily(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<name>.*)$')


def from_faulthandler(text: str) -> Stacks:
    """What faulthandler wrote while a signal was ending the process. Raises RecordError where no stack is in the text."""
    threads = []
    for head, frames in _threads(text, _THREAD, _FRAME):
        name = head["name"] or (f"thread 0x{head['id'].lstrip('0')}" if head["id"] else "thread")
        # Threads that Python started have threading's bootstrap at the bottom; the main thread has the script.
        threads.append(ThreadStack(name=name, main=not frames[0].file.endswith("/threading.py"), frames=frames))
    if not threads:
        raise RecordError("no Python stack in what faulthandler wrote", cause="it was cut off, or the process had no thread with a Python frame")
    return Stacks(source="fatal-signal", threads=tuple(_main_first(threads)))


_SPIED = lazily(r'^Thread (?P<id>(?:0x)?[0-9A-Fa-f]+) \([\w+]+\)(?:: "(?P<name>.*)")?$')
_SPIED_FRAME = lazily(r"^ {4}(?P<name>\S.*) \((?P<file>.+):(?P<line>\d+)\)$")


def from_pyspy_text(text: str) -> Stacks:
    """What `py-spy dump` printed for people; without --full-filenames, files are names alone. Raises RecordError where no stack is in the text."""
    threads = []
    for head, frames in _threads(text, _SPIED, _SPIED_FRAME):
        # Python tells py-spy the names once `threading` is imported; before, and of a stripped Python, the script is below the main thread alone.
        main = head["name"] == "MainThread" if head["name"] else frames[0].name == "<module>"
        threads.append(ThreadStack(name=head["name"] or f"thread {head['id']}", main=main, frames=frames))
    if not threads:
        raise RecordError("no Python stack in what py-spy printed")
    return Stacks(source="py-spy", threads=tuple(_main_first(threads)))


def _threads(text: str, head: re.Pattern[str], frame: re.Pattern[str]) -> list[tuple[re.Match[str], tuple[Frame, ...]]]:
    """The heading of each thread that has frames, and these, innermost last; in the text the innermost comes first."""
    found: list[tuple[re.Match[str], list[Frame]]] = []
    for line in text.partition("\nExtension modules:")[0].splitlines():
        if (begun := head.match(line)) is not None:
            found.append((begun, []))
        elif found and (at := frame.match(line)) is not None:
            found[-1][1].append(Frame(file=at["file"], line=int(at["line"]) if at["line"].isdigit() else 0, name=at["name"]))
    return [(begun, tuple(reversed(frames))) for begun, frames in found if frames]


@lru_cache(maxsize=4096)
def guards_of(path: str, line: int) -> tuple[str, ...]:
    """The tests that had to be true for `line` to be reached, outermost first: of the `if`s around it and of the `if ...: return` before it.

    Within one function; () where the source cannot be read or parsed.
    """
    guards: list[str] = []
    _descend(_parsed(path).body, line, guards)
    return tuple(guards)


@lru_cache(maxsize=4096)
def is_endless(path: str, line: int) -> bool:
    """Whether the innermost loop around `line`, within its function, is a `while True` that no statement in it leaves (an exception may)."""
    around = [n for n in ast.walk(_parsed(path)) if isinstance(n, _LOOPS_AND_SCOPES) and n.lineno <= line <= (n.end_lineno or n.lineno)]
    loop = max(around, key=lambda n: n.lineno, default=None)
    if not isinstance(loop, ast.While) or not isinstance(loop.test, ast.Constant) or not loop.test.value:
        return False
    return not any(isinstance(n, _LEAVES) or (isinstance(n, ast.Call) and _LEAVING_CALL.search(ast.unparse(n.func))) for n in ast.walk(loop))


@lru_cache(maxsize=8)
def _parsed(path: str) -> ast.Module:
    """Empty where the source cannot be read or parsed."""
    try:
        return ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module(body=[], type_ignores=[])


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


class _PySpyVariable(msgspec.Struct):
    name: str
    repr: str | None = None


class _PySpyFrame(msgspec.Struct):
    name: str
    filename: str
    line: int = 0
    locals: list[_PySpyVariable] | None = None


class _PySpyThread(msgspec.Struct):
    pid: int
    thread_id: int
    thread_name: str | None = None
    os_thread_id: int | None = None
    frames: list[_PySpyFrame] = []
