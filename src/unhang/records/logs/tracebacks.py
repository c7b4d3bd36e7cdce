"""Python tracebacks in a log, wherever and however they stand: behind prefixes, interleaved by rank, chained, from spawned processes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from unhang.records.incident import Frame
from unhang.records.logs.line import Line

MARK = "Traceback (most recent call last):"
# A traceback is longer than this only in endless recursion, which Python abridges.
MAX_LINES = 1000
# Lines of others that stand between those of a traceback.
MAX_STRANGERS = 8
# Lines before the mark in which the words stand that make it part of a chain or of a spawned process.
BEFORE = 4

_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>.+))?$')
_EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: ?(?P<text>.*))?$")
_SPAWNED = re.compile(r"-- Process (\d+) terminated with the following error")
_LEVELS = frozenset(("DEBUG", "INFO", "NOTE", "WARN", "WARNING", "ERROR", "CRITICAL", "FATAL", "TRACE", "Warning", "Error", "Info"))
# What Python and asyncio print of exceptions that end nobody but a thread, a task or an object.
_IGNORED = ("Exception ignored in", "Exception in thread", "Task exception was never retrieved", "--- Logging error ---")
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")


@dataclass(frozen=True, kw_only=True, slots=True)
class Traceback:
    """A Python traceback as it stands in a log. `line` is where it begins, `end` its exception line; frames innermost last.

    Of chained exceptions each is one; `chained` says that an earlier one led to this one. `ignored` ones end no process;
    `logged` ones stand behind a record of a logger, which has caught them.
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
    chained: bool = False
    ignored: bool = False
    logged: bool = False

    @property
    def says(self) -> str:
        return f"{self.type}: {self.text}" if self.text else self.type


def read(before: Sequence[Line], mark: Line, after: Iterable[Line], *, source: str) -> Traceback | None:
    """The traceback that begins at `mark`; None where it does not end in an exception line. Other writers' lines in between are passed over."""
    told = [line for line in before if writer(line) == writer(mark)]
    spawned = next((int(found[1]) for line in reversed(told) if (found := _SPAWNED.search(line.text))), None)
    frames: list[tuple[str, int, str, str]] = []
    margin = mark.text.find(MARK)
    strangers = 0
    for count, line in enumerate(after):
        if count >= MAX_LINES or strangers > MAX_STRANGERS:
            return None
        if writer(line) != writer(mark):
            continue
        text = line.text
        # What a framework puts in front of every line is as wide here as in front of the mark.
        if margin and text[:1].strip() and _FRAME.match(text) is None and (_FRAME.match(text[margin:]) or _exception(text) is None):
            text = text[margin:]
        if found := _FRAME.match(text):
            frames.append((found["file"], int(found["line"]), (found["name"] or "<module>").strip(), ""))
        elif MARK in text:
            return None
        elif text[:1].isspace() or not text:
            code = text.strip()
            if frames and not frames[-1][3] and set(code) - set("^~"):
                frames[-1] = (*frames[-1][:3], code)
        elif frames and (exception := _exception(text)) is not None:
            return Traceback(
                source=source,
                line=mark.number,
                end=line.number,
                type=exception["type"],
                text=(exception["text"] or "").strip(),
                frames=tuple(_frame(*f) for f in frames),
                rank=mark.rank if spawned is None else spawned,
                label=mark.label,
                local_rank=mark.local_rank,
                host=mark.host,
                pid=mark.pid,
                chained=any(words in line.text for line in told for words in _CHAINED),
                ignored=any(words in line.text for line in told for words in _IGNORED),
                logged=bool(told) and told[-1].level is not None,
            )
        elif not _AMID.match(text):
            # Somebody who has no prefix writes into the same file.
            strangers += 1
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
_AMID = re.compile(r"\[Previous line repeated \d+ more times?\]|\s*\|")


@lru_cache(maxsize=16384)
def _frame(file: str, line: int, name: str, code: str) -> Frame:
    """Thousands of ranks raise at the same lines: each frame is kept once."""
    return Frame(file=file, line=line, name=name, code=code)
