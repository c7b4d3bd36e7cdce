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
# Lines before the mark in which the words stand that make it part of a chain or of a spawned process.
BEFORE = 4

_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>.+))?$')
_EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: ?(?P<text>.*))?$")
_SPAWNED = re.compile(r"-- Process (\d+) terminated with the following error")
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")


@dataclass(frozen=True, kw_only=True, slots=True)
class Traceback:
    """A Python traceback as it stands in a log. `line` is where it begins, `end` its exception line; frames innermost last.

    Of chained exceptions each is one; `chained` says that an earlier one led to this one.
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

    @property
    def says(self) -> str:
        return f"{self.type}: {self.text}" if self.text else self.type


def read(before: Sequence[Line], mark: Line, after: Iterable[Line], *, source: str) -> Traceback | None:
    """The traceback that begins at `mark`; None where it does not end in an exception line. Other writers' lines in between are passed over."""
    told = [line for line in before if _writer(line) == _writer(mark)][-BEFORE:]
    spawned = next((int(found[1]) for line in reversed(told) if (found := _SPAWNED.search(line.text))), None)
    frames: list[tuple[str, int, str, str]] = []
    margin = mark.text.find(MARK)
    for count, line in enumerate(after):
        if count >= MAX_LINES:
            return None
        if _writer(line) != _writer(mark):
            continue
        text = line.text
        # What a framework puts in front of every line is as wide here as in front of the mark.
        if margin and _FRAME.match(text) is None and (_FRAME.match(text[margin:]) or _EXCEPTION.match(text) is None):
            text = text[margin:] if text[:1].strip() else text
        if found := _FRAME.match(text):
            frames.append((found["file"], int(found["line"]), (found["name"] or "<module>").strip(), ""))
        elif text[:1].isspace() or not text:
            code = text.strip()
            if frames and not frames[-1][3] and set(code) - set("^~"):
                frames[-1] = (*frames[-1][:3], code)
        elif frames and (exception := _EXCEPTION.match(text)) is not None:
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
            )
        elif frames and not _AMID.match(text):
            return None
    return None


# Lines that Python itself puts between frames.
_AMID = re.compile(r"\[Previous line repeated \d+ more times?\]|\s*\|")


def _writer(line: Line) -> tuple[object, ...]:
    return (line.rank, line.label, line.host, line.pid)


@lru_cache(maxsize=16384)
def _frame(file: str, line: int, name: str, code: str) -> Frame:
    """Thousands of ranks raise at the same lines: each frame is kept once."""
    return Frame(file=file, line=line, name=name, code=code)
