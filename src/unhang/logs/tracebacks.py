"""Python tracebacks in a log, wherever and however they stand: behind prefixes, interleaved by rank, chained, from spawned processes.

Python's own form, the box that rich draws (for typer, Lightning, accelerate), and an exception line whose traceback lost its header or all of its
frames: cut off, left out by whoever pasted it, or never printed by a logger.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from unhang.frames import Frame
from unhang.logs.signature import RETRIED
from unhang.model import Evidence
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.logs.line import Line

# Colours stand between the word before it and this.
MARK = "(most recent call last)"
# A traceback is longer than this only in endless recursion, which Python abridges.
MAX_LINES = 1000
# Lines of others that stand between those of a traceback.
MAX_STRANGERS = 8
# Lines before the mark in which the words stand that make it part of a chain or of a spawned process.
BEFORE = 4
# Lines behind a traceback in which steps are looked for.
BEHIND = 30
# Literals of exception lines; those without a message are mostly the last ones.
ALONE = (
    "Error:", "Exception:", "Error): ", ".exceptions.", ".errors.", ".exc.", "TimeoutExpired: ", "BadZipFile: ", "queue.Empty",
    "BrokenProcessPool: ", "OutOfResources: ", "ArrowInvalid: ", "AssertionError", "NotImplementedError", "StopIteration",
)  # fmt: skip
# What those lines hold, wherever it begins: most other lines with such a literal are told from them by that.
CLASS = r"(?:Error|Exception|Iteration|Expired|Zip|Empty|\.[A-Z]\w*)(?:\([A-Z]\w*\))?(?:: |:?\s*$)"
# Lines above an exception line in which its frames are looked for, and behind it in which the rest of its message is.
ABOVE = 60

_PLAIN = "Traceback (most recent call last):"
_FRAME = lazily(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d{1,9})(?:, in (?P<name>.+))?$')
# Forms, chats and some log shippers take the blanks off the front of lines, and web pages `<module>`.
_FLAT = lazily(r'^File "(?P<file>[^"]+)", line (?P<line>\d{1,9})(?:, in ?(?P<name>.*))?$')
_OF_TASK = lazily(r"(?:ray\.exceptions\.)?RayTaskError\((?P<inner>\w+)\): ")
_EXCEPTION = lazily(r"^(?P<type>[A-Za-z_][\w.]*)(?:: ?(?P<text>.*))?$")
# Names that nothing but exceptions has.
_ERROR = lazily(r"[\w.]*(?:Error|Exception|Interrupt|SystemExit)")
# What names the rank that raised, where another process prints it: torch.multiprocessing and torchrun above the traceback, torch's checkpoints in its
# first line. torchrun indents all lines but that one.
_RAISED_BY = lazily(r"-- Process (\d{1,7}) terminated with the following error|^ {0,8}rank {1,20}: (\d{1,7}) \(local_rank: \d{1,7}\)")
_OF_CHECKPOINT = lazily(r"\(RANK (\d{1,7})\)$")
_FAILED_RANK = lazily(r"ranks:dict_keys\(\[(\d{1,7})\]\)")
_OF_AGENT = lazily(r"traceback {1,20}: $")
# torchrun's error file has the whole traceback in one line.
_CALL_STACK = lazily(r'"py_callstack": ("(?:[^"\\]|\\.)*")')
# Ray: the task that raised, and its process; of nested ones the last.
_RAY_TASK = lazily(r"\bray::\S{1,200} \(pid=(\d{1,8}), ip=([\w.:-]{1,64})")
# An exception line alone: only what nothing but exceptions is called, at the beginning of a line or of a logger's record. Ray puts what was raised
# into parentheses: `ray.exceptions.RayTaskError(ValueError): ray::train()`.
_ALONE = lazily(
    r"^(?:.{0,120}?\b(?:ERROR|CRITICAL|FATAL)\b[\s\]|:-]{1,9}(?:[\w.:<>]{1,80}?[\s\]|:-]{1,9})?)?"
    r"(?:.{0,60}?\b(?:[Uu]ncaught|[Uu]nhandled) (?:exception:? )?)?"
    # What torchrun sums up is read from its block.
    r"(?!\S*ChildFailedError)(?P<type>(?:[A-Za-z_]\w*\.)*(?:_?[A-Z]\w*(?:Error|Exception)|Exception|StopIteration|TimeoutExpired|BadZipFile|BrokenProcessPool|OutOfResources|ArrowInvalid)|_?queue\.Empty|(?:[A-Za-z_]\w*\.)*(?:exc|errors?|exceptions?)\.[A-Z]\w*)"
    r"(?:\((?P<inner>[A-Z]\w*)\))?(?:: ?(?P<text>.*))?$"
)
# What stands in front of every line of a traceback that is indented, quoted, or in a column of a table.
_MARGINS = " \t>│|"
# A message that says the rest in its next lines, and lines that belong to a message though they are not indented.
_ANNOUNCES = lazily(r"(?:.*:|\d+ validation errors? for \S+)?\s*$")
_GOES_ON = lazily(r"\s+\S|Parameter at index \d|Parameter indices ")
_MAX_MESSAGE_LINES = 6
_NATIVE = lazily(r"\s*frame #\d+: |\s*#\d+ |Exception raised from |C\+\+ CapturedTraceback")
_RETRIED = lazily(rf"\b{RETRIED}\b", re.IGNORECASE)
# Records that a program goes on after.
PASSED = frozenset(("TRACE", "DEBUG", "INFO", "WARNING"))
_LEVELS = frozenset(("DEBUG", "INFO", "NOTE", "WARN", "WARNING", "ERROR", "CRITICAL", "FATAL", "TRACE", "Warning", "Error", "Info"))
# What Python and asyncio print of exceptions that end nobody but a thread, a task or an object.
_IGNORED = ("Exception ignored in", "Exception in thread", "Task exception was never retrieved", "--- Logging error ---")
CAUSED = "The above exception was the direct cause"
_CHAINED = (CAUSED, "During handling of the above exception")
# What a pool puts around the traceback of its worker.
_REMOTE = lazily(r'(?:\w+\.)*_?RemoteTraceback:|"""')
# A level that whoever prints an exception that he has caught gives it. What was told before a crash is mostly INFO.
_OF_ERRORS = frozenset(("WARNING", "ERROR", "CRITICAL"))
# What trainings count, and a progress bar. A loss counts nothing: two ranks have two of them in one step.
# A job's step of Slurm ("*** STEP 4711.0 ON node1 CANCELLED", "StepId=4711.0") is none.
_STEP = lazily(r"(?!STEP \d+\.\w+ ON )\b(?:step|iter|iteration|epoch)s?\b[\"']?[\s:=#\[(]{0,12}\d[\d.]*|\b\d+(?:/\d+|it) \[(?=\d)", re.IGNORECASE)
_MAX_STEP_CHARS = 500
_LOGGED_STEP = "{'loss': "
# Trackers sum up at the end of a process, also of one that crashed.
_SUMMARY = lazily(r"\s*\[?(?:wandb|swanlab|trackio|mlflow|neptune|clearml|comet(?:_ml)?)\b", re.IGNORECASE)
# rich's box, and what it is drawn with where the encoding has no lines: `╭── Traceback (most recent call last) ──╮`, `+-- ... --+`.
_TOP = lazily(r"[╭+][─-]+ Traceback \(most recent call last\) [─-]")
_EDGES = ("╭", "╰", "+")
_SIDES = ("│", "|")
# `/job/train.py:12 in main`, wrapped anywhere; of code that is in no file only `in main:12`, which names no place.
_PLACE = lazily(r"(?P<file>.+?):(?P<line>\d{1,9}) ?in ?(?P<name>\S.*)$")
_MAX_PLACE = 4096
# `❱ 12 │   work()`, the arrow where the frame stands.
_CODE = lazily(r"(?P<here>[❱>?]?) *(?P<line>\d{1,9})(?: (?P<code>.*))?$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Traceback:
    """A Python traceback as it stands in a log. `line` is where it begins, `end` its exception line; frames innermost last.

    `text` has the lines of the message that belong together; `more` are the numbers of those behind `end`, which stands before `line` where the
    exception was printed before its frames. Of chained exceptions each is one; `chained` tells how an earlier one led to this one (`CAUSED`: it was
    raised from it); `led` are the lines of those that did. `ignored` ones end no process; `passed_on` ones are printed by another process than
    raised them, as their header tells; `native` counts the lines of the C++ stack that torch prints after it; `logged` ones stand behind a logger's
    record of an error. `steps` are those that its writer, or another one that nothing tells apart, counts soon behind it: each once. `by_name`: that
    the rank is what the file's name says; `host_by_name`: the host.
    """

    source: str
    line: int
    end: int
    type: str
    text: str
    frames: tuple[Frame, ...]
    rank: int | None = None
    label: int | None = None
    local_rank: int | None = None
    host: str | None = None
    pid: int | None = None
    at_s: float | None = None
    utc_offset_s: int | None = None
    attempt: int = 1
    place: int = 0
    more: tuple[int, ...] = ()
    chained: str = ""
    led: tuple[int, ...] = ()
    ignored: bool = False
    logged: bool = False
    passed_on: bool = False
    steps: tuple[str, ...] = ()
    by_name: bool = False
    host_by_name: bool = False
    native: int = 0

    @property
    def says(self) -> str:
        """The exception line."""
        return f"{self.type}: {first}" if (first := self.text.partition("\n")[0]) else self.type

    def evidence(self) -> Evidence:
        """The line of its exception."""
        return Evidence(source=self.source, line=self.end, text=self.says)


def read(before: Sequence[Line], mark: Line, after: Iterable[Line], *, source: str) -> Traceback | None:
    """The traceback that begins at `mark`; None where it does not end in an exception line. Other writers' lines in between are passed over."""
    top = _TOP.search(mark.text)
    begin = mark.text.find(_PLAIN) if top is None else top.start()
    if begin < 0:
        return None
    margin = _OF_AGENT.sub("", mark.text[:begin])
    told = [line for line in before if writer(line) == writer(mark)]
    elsewhere = _OF_CHECKPOINT.search(mark.text)
    header = elsewhere or next((found for line in reversed(told) if (found := _RAISED_BY.search(line.text))), None)
    raised_by = next((int(n) for n in header.groups() if n), None) if header is not None else None
    own = _within(_written(mark, after), margin)
    if stack := _CALL_STACK.search(mark.text):
        # Not by a parser of JSON: a path of another system, or a cut, makes no traceback unreadable.
        whole = stack[1].strip('"').replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
        own = (replace(mark, text=text) for text in whole.splitlines()[1:])
    frames: list[_Place] = []
    body = _plain(own, frames) if top is None else _boxed(own)
    if body is not None:
        text, more, native, own = _message(body.exception["text"] or "", own)
    elif frames and told and (first := _ALONE.match(_inside(told[-1].text, margin))) and not _ends_another([_inside(x.text, margin) for x in told]):
        # A handler that formats exceptions itself may print the exception before its frames.
        body, text, more, native = _Body(frames, first, told[-1]), first["text"] or "", (), 0
    else:
        return None
    # Indented is the box in rich's table of log records.
    headed = [line for line in told if not _REMOTE.fullmatch(line.text)]
    record = (bool(headed) and headed[-1].level in _OF_ERRORS) or (top is not None and mark.text[:1].isspace())
    failed = _FAILED_RANK.match(body.exception["text"] or "", len("CheckpointException "))
    whose = mark if elsewhere is None else replace(mark, host=None, pid=None, local_rank=None)
    return Traceback(
        source=source,
        line=mark.number,
        end=body.last.number,
        type=body.exception["type"],
        text=text + (body.last.ending or ""),
        more=more,
        frames=tuple(_frame(*f) for f in body.frames),
        rank=int(failed[1]) if failed is not None else mark.rank if raised_by is None else raised_by,
        label=mark.label,
        local_rank=whose.local_rank,
        host=whose.host if body.task is None else body.task[2],
        pid=whose.pid if body.task is None else int(body.task[1]),
        chained=next((words for words in _CHAINED if any(words in line.text for line in told)), ""),
        ignored=any(words in line.text for line in told for words in _IGNORED),
        logged=record,
        passed_on=raised_by is not None or body.task is not None,
        steps=steps(own),
        native=native,
    )


def alone(above: Iterable[Line], line: Line, after: Iterable[Line], *, source: str) -> Traceback | None:
    """The exception of a line that no header leads to, with the frames right above it; None if `read` finds it from its header, or if it is none.

    `above` are the lines before it, the nearest first. Without frames nothing tells it from an error that a program caught and logged, and whoever
    counts on behind it tells that: its steps are left to the caller.
    """
    margin = line.text[: len(line.text) - len(line.text.lstrip(_MARGINS))]
    found = _ALONE.match(_inside(line.text, margin))
    if found is None or line.level in PASSED:
        return None
    frames: list[_Place] = []
    if line.label is not None:
        above = list(above)
        if any(MARK in other.text and other.label != line.label for other in above):
            # One traceback, its lines dealt out to several tasks.
            return None
    own = _within((other for other in above if writer(other) == writer(line)), margin)
    first, code, other, over = line, "", next(own, None), None
    while other is not None:
        text, over = other.text, next(own, None)
        if frame := _frame_of(text):
            frames.append((frame["file"], int(frame["line"]), (frame["name"] or "<module>").strip(), code))
            first, code = other, ""
        elif MARK in text:
            if frames:
                return None
            break
        elif text[:1].isspace() or not set(text) - set("^~ ") or (over is not None and _FLAT.match(over.text)):
            code = text.strip() if set(text) - set("^~ ") else code
        else:
            break
        other = over
    frames.reverse()
    # Without frames only the rest of its message is read.
    following = _within(_written(line, after if frames else islice(after, ABOVE)), margin)
    behind = next(following, None)
    following = following if behind is None else chain((behind,), following)
    first_of_all = behind is not None and not frames and _frame_of(behind.text) is not None
    if (behind is not None and found["inner"] and MARK in behind.text) or (first_of_all and _plain(following, frames) is not None):
        # It announces the traceback of another process, which ends in the exception itself.
        return None
    if margin and not frames:
        return None
    text, more, native, following = (found["text"] or "", (), 0, following) if first_of_all else _message(found["text"] or "", following)
    return Traceback(
        source=source,
        line=first.number,
        end=line.number,
        type=found["inner"] or found["type"],
        text=text + (line.ending or ""),
        more=more,
        frames=tuple(_frame(*f) for f in frames),
        rank=line.rank,
        label=line.label,
        local_rank=line.local_rank,
        host=line.host,
        pid=line.pid,
        # What is tried again ended nothing.
        ignored=any(other is not None and _RETRIED.search(other.text) for other in (other, over)),
        logged=first_of_all or not frames,
        steps=steps(following) if frames else (),
        native=native,
    )


def message(lines: Sequence[str]) -> list[str]:
    """The first line of an exception's message with those of the next ones that belong to it."""
    told = [line.strip() for line in lines[:1]]
    for line in lines[1:]:
        if not (_GOES_ON.match(line) or (len(told) == 1 and _ANNOUNCES.match(told[0]))) or _frame_of(line) or step_of(line):
            break
        told.append(line.rstrip())
    return told


def _ends_another(above: Sequence[str]) -> bool:
    """Whether the last of these lines ends a traceback of its own: a frame, or its code, stands right above it."""
    return any(text[:1].isspace() and text.strip() for text in above[-2:-1]) or any(_frame_of(text) for text in above[-3:-1])


def _message(first: str, following: Iterator[Line]) -> tuple[str, tuple[int, ...], int, Iterator[Line]]:
    """A message whose first line is in the exception line, where its others stand, the length of the native stack, and the lines behind it all."""
    read: list[Line] = []
    for line in islice(following, _MAX_MESSAGE_LINES):
        read.append(line)
        if line.level is not None or len(message([first, *(r.text for r in read)])) <= len(read):
            break
    told = message([first, *(r.text for r in read if r.level is None)])
    more = tuple(line.number for line in read[: len(told) - 1])
    rest = chain(read[len(told) - 1 :], following)
    native = 0
    for line in rest:
        if _NATIVE.match(line.text) is None:
            return "\n".join(told), more, native, chain((line,), rest)
        native += 1
    return "\n".join(told), more, native, rest


def _frame_of(text: str) -> re.Match[str] | None:
    return _FRAME.match(text) or _FLAT.match(text)


_Place = tuple[str, int, str, str]


class _Body(NamedTuple):
    frames: list[_Place]
    exception: re.Match[str]
    last: Line
    task: re.Match[str] | None = None


def _written(mark: Line, after: Iterable[Line]) -> Iterator[Line]:
    """The lines behind one that are of the same writer, or of nobody where its own prefix stands in front of the first line only."""
    lines = islice(after, MAX_LINES)
    first = next(lines, None)
    if first is None:
        return iter(())
    own = {writer(mark), writer(first)} if not any(x is not None for x in writer(first)) and _frame_of(first.text) else {writer(mark)}
    return (line for line in chain((first,), lines) if writer(line) in own)


def _within(lines: Iterable[Line], margin: str) -> Iterator[Line]:
    return (replace(line, text=_inside(line.text, margin)) for line in lines) if margin else iter(lines)


def _inside(text: str, margin: str) -> str:
    """A line without what stands in front of the first one, and of all: indentation, quote marks, the edges of a table, a prefix as wide as that."""
    if text.startswith(margin) or text == margin.rstrip():
        edge = margin.rstrip()[-1:]
        text = text[len(margin) :]
        return text.removesuffix(f" {edge}").rstrip() if edge and edge in _SIDES else text
    rest = text[len(margin) :]
    if not margin.strip() or text[:1].isspace() or text.startswith((*_SIDES, *_EDGES)) or _FLAT.match(text):
        return text
    return rest if _FRAME.match(rest) or (_exception(text) is None and (rest[:1].isspace() or _exception(rest) is not None)) else text


@lru_cache(maxsize=4096)
def step_of(text: str) -> str:
    """What a line counts; "" where it counts nothing."""
    # transformers logs so, of its main process only, and its epochs are too coarse to tell steps apart.
    return text if text.startswith(_LOGGED_STEP) else " ".join(_STEP.findall(text[:_MAX_STEP_CHARS]))


def may_count(raw: bytes) -> bool:
    """Whether a line as it stands may be one that `step_of` finds something in, once it is cleaned; most are not."""
    lower = raw.lower()
    return any(mark in lower for mark in (b"step", b"iter", b"epoch", b" [", b"{'loss': ", b"\x1b"))


def sums_up(text: str) -> bool:
    """Whether a line is of a tracker's summary, which is printed at the end."""
    return _SUMMARY.match(text) is not None


def steps(lines: Iterable[Line]) -> tuple[str, ...]:
    """The first steps that the next lines count, each once."""
    told = (step_of(line.text) for line in islice(lines, BEHIND) if not sums_up(line.text))
    return tuple(dict.fromkeys(step for step in told if step))


def _plain(lines: Iterable[Line], frames: list[_Place]) -> _Body | None:
    """Python's own form, whose frames are added to `frames` whether an exception ends them or not."""
    strangers, flat = MAX_STRANGERS, False
    task: re.Match[str] | None = None
    for line in lines:
        text = line.text
        task = _RAY_TASK.search(text) or task
        if (flat or not frames) and (found := _FLAT.match(text)):
            flat = True
            frames.append((found["file"], int(found["line"]), (found["name"] or "<module>").strip(), ""))
            continue
        if flat and text and not frames[-1][3] and ((exception := _exception(text)) is None or _ERROR.fullmatch(exception["type"]) is None):
            frames[-1] = (*frames[-1][:3], text.strip())
            continue
        if found := _FRAME.match(text):
            frames.append((found["file"], int(found["line"]), (found["name"] or "<module>").strip(), ""))
        elif _PLAIN in text:
            # Cut off by another one.
            frames.clear()
            return None
        elif text[:1].isspace() or not text:
            code = text.strip()
            if frames and not frames[-1][3] and set(code) - set("^~"):
                frames[-1] = (*frames[-1][:3], code)
        elif frames and (exception := _exception(text)) is not None:
            return _Body(frames, exception, line, task)
        elif not _AMID.match(text) and not _RAY_TASK.search(text):
            # Somebody who has no prefix writes into the same file.
            strangers -= 1
            if strangers < 0:
                return None
    # The log ends in the line that tells what another process raised.
    if frames and (raised := _OF_TASK.match(last := line.text.strip())):
        exception = _exception(f"{raised['inner']}: {last}")
        return None if exception is None else _Body(frames, exception, line, task)
    return None


def _boxed(lines: Iterable[Line]) -> _Body | None:
    """rich's box: the places and their lines of code in it, the exception behind its end."""
    frames: list[_Place] = []
    inside, place, strangers = True, "", 0
    for line in lines:
        text = line.text
        if inside and text.startswith(_SIDES):
            said = text[1:].removesuffix(text[0]).rstrip().removeprefix(" ")
            if not said or said.startswith((*_EDGES, *_SIDES)):
                # Between two frames, or their local variables.
                place = ""
            elif not place and (code := _CODE.match(said)):
                if code["here"] and frames and int(code["line"]) == frames[-1][1]:
                    frames[-1] = (*frames[-1][:3], (code["code"] or "").lstrip("│ "))
            else:
                place = (place + said)[:_MAX_PLACE]
                if found := _PLACE.match(place):
                    frames.append((found["file"], int(found["line"]), found["name"], ""))
                    place = ""
        elif text.startswith(_EDGES) and not _TOP.match(text):
            # A syntax error has a second box.
            inside = not inside
        elif not inside and frames and (exception := _exception(text)) is not None:
            return _Body(frames, exception, line)
        elif text:
            strangers += 1
            if strangers > MAX_STRANGERS or _TOP.match(text):
                return None
    return None


def writer(piece: Line | Traceback) -> tuple[object, ...]:
    """Whose line it is, as far as it tells."""
    return (piece.rank, piece.label, piece.host, piece.pid)


def _exception(text: str) -> re.Match[str] | None:
    """A line that can end a traceback: a class by its dotted name, or one that is written as classes are."""
    found = _EXCEPTION.match(text)
    if found is None or ("." not in found["type"] and (found["type"] in _LEVELS or not found["type"].lstrip("_")[:1].isupper())):
        return None
    return found


# Lines that Python itself puts between frames.
_AMID = lazily(r"\[Previous line repeated \d+ more times?\]|\s*\|")


@lru_cache(maxsize=16384)
def _frame(file: str, line: int, name: str, code: str) -> Frame:
    """Thousands of ranks raise at the same lines: each frame is kept once."""
    return Frame(file=file, line=line, name=name, code=code)
