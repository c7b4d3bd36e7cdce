"""Logs of a failed run: streamed, cleaned of what launchers and terminals put around each line, searched for signatures and tracebacks.

Needle first, regex second: only the parts of a file that contain a literal needle are ever decoded. `scan` is the one place that
knows how the search is done. Progress bars write many states into one line with carriage returns, and errors are printed behind the
last of them: each state is matched by itself and carries the number of its line.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

from unhang.errors import RecordError
from unhang.records.incident import Frame

Role = Literal["root", "symptom"]

CHUNK_BYTES = 1024 * 1024
# Longer lines are cut: nothing that says why a training failed is longer.
MAX_LINE_BYTES = 64 * 1024
# Of one signature in one log; a signature that hits on every line tells nothing more by the hundredth.
MAX_HITS = 20
MAX_TRACEBACKS = 200


@dataclass(frozen=True, kw_only=True)
class Signature:
    """How something looks in a log: a literal that must be there, and a pattern with named groups for what it captures ("" for none)."""

    needle: str
    pattern: str = ""
    role: Role = "root"


@dataclass(frozen=True, kw_only=True)
class Hit:
    """Where a signature was found. `rank` is known from the log's owner, or from the line's own prefix."""

    signature: Signature
    source: str
    line: int | None
    text: str
    groups: dict[str, str] = field(default_factory=dict)
    rank: int | None = None


@dataclass(frozen=True, kw_only=True)
class Line:
    """A cleaned line; `number` counts from 1; `rank` from a `[rank1]:` prefix."""

    number: int
    text: str
    rank: int | None = None


@dataclass(frozen=True, kw_only=True)
class Traceback:
    """A Python traceback as it stands in a log; of chained exceptions the last one. `line` is where it begins, `end` its exception line."""

    source: str
    line: int
    end: int
    type: str
    text: str
    frames: tuple[Frame, ...]
    rank: int | None = None

    @property
    def says(self) -> str:
        return f"{self.type}: {self.text}" if self.text else self.type


_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_RANK_PREFIX = re.compile(r"\[rank(\d+)\]:(?: |(?=\[)|$)")
_PREFIX = re.compile(r"(?:\[default\d+\]:|\([A-Za-z_]\w* (?:rank=\d+ )?pid=\d+(?:, [^)]*)?\) |stderr: |stdout: )")


def clean(text: str) -> tuple[str, int | None]:
    """A line without colours and launcher prefixes, and the rank that a prefix named."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    rank: int | None = None
    while True:
        if found := _RANK_PREFIX.match(text):
            rank = int(found[1])
        elif not (found := _PREFIX.match(text)):
            return text.rstrip(), rank
        text = text[found.end() :]


def lines(path: Path, *, limit_bytes: int | None = None, offset: int = 0, number: int = 1) -> Iterator[Line]:
    """The cleaned lines of a file, from a place that `offset` and `number` give, up to `limit_bytes`. Raises RecordError."""
    for count, raw in _raw_lines(path, limit_bytes=limit_bytes, offset=offset, number=number):
        for part in raw.replace(b"\0", b"").split(b"\r"):
            text, rank = clean(part.decode("utf-8", "replace"))
            if text:
                yield Line(number=count, text=text, rank=rank)


def scan(
    path: Path, signatures: Iterable[Signature], *, limit_bytes: int | None = None, source: str | None = None, rank: int | None = None
) -> list[Hit]:
    """Which signatures hit where, in the order of the file. Raises RecordError where the file cannot be read."""
    wanted = tuple(signatures)
    shown = source or str(path)
    hits: list[Hit] = []
    counts: dict[Signature, int] = {}
    needles = [(s.needle.encode(), s) for s in wanted]
    for start, number, chunk in _chunks(path, limit_bytes=limit_bytes):
        present = [s for needle, s in needles if needle in chunk]
        if not present:
            continue
        for line in lines(path, limit_bytes=start + len(chunk), offset=start, number=number):
            for found in match(line.text, present, source=shown, line=line.number, rank=line.rank if rank is None else rank):
                counts[found.signature] = counts.get(found.signature, 0) + 1
                if counts[found.signature] <= MAX_HITS:
                    hits.append(found)
    return hits


def match(text: str, signatures: Iterable[Signature], *, source: str, line: int | None = None, rank: int | None = None) -> list[Hit]:
    """Which signatures hit in one piece of text."""
    hits = []
    for signature in signatures:
        if signature.needle not in text:
            continue
        groups: dict[str, str] = {}
        if signature.pattern:
            found = _compiled(signature.pattern).search(text)
            if found is None:
                continue
            groups = {k: v for k, v in found.groupdict().items() if v is not None}
        hits.append(Hit(signature=signature, source=source, line=line, text=text, groups=groups, rank=rank))
    return hits


# How torchrun sums up, whatever the failure was.
_SAYS_NOTHING = re.compile(
    r"^\s*(?:[=*-]{4,}|\[\d+\]:|Root Cause \(first observed failure\):|(?:time|host|rank) {2,}: .*|error_file: <N/A>|<NO_OTHER_FAILURES>"
    r"|traceback : To enable traceback see:.*)\s*$"
)


def last_lines(path: Path, *, limit_bytes: int | None = None, count: int = 3) -> tuple[Line, ...]:
    """The last lines that say anything. Raises RecordError."""
    try:
        size = path.stat().st_size
    except OSError as e:
        raise RecordError(f"cannot read {path}: {e.strerror or e}") from e
    tail = max(0, (size if limit_bytes is None else min(size, limit_bytes)) - MAX_LINE_BYTES)
    for offset, number, chunk in _chunks(path, limit_bytes=limit_bytes):
        if offset + len(chunk) > tail:
            cut = chunk.find(b"\n", tail - offset) + 1 if tail > offset else 0
            found = lines(path, limit_bytes=limit_bytes, offset=offset + cut, number=number + chunk.count(b"\n", 0, cut))
            return tuple(deque((line for line in found if not _SAYS_NOTHING.match(line.text)), maxlen=count))
    return ()


_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>.+))?$')
_EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: ?(?P<text>.*))?$")
_SPAWNED = re.compile(r"-- Process (\d+) terminated with the following error")
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")


def tracebacks(path: Path, *, limit_bytes: int | None = None, source: str | None = None, rank: int | None = None) -> list[Traceback]:
    """The Python tracebacks in a file, oldest first. Raises RecordError."""
    where = _first(path, _TRACEBACK.encode(), limit_bytes)
    if where is None:
        return []
    found: list[Traceback] = []
    # Ranks that share one log interleave by lines: each prefix has its own reader.
    readers: dict[int | None, _TracebackReader] = {}
    for line in lines(path, limit_bytes=limit_bytes, offset=where[0], number=where[1]):
        reader = readers.setdefault(line.rank, _TracebackReader(source or str(path), line.rank if rank is None else rank))
        if done := reader.feed(line):
            if reader.chained and found and found[-1].rank == done.rank:
                found.pop()
            if len(found) < MAX_TRACEBACKS:
                found.append(done)
    return found


class _TracebackReader:
    """Puts the lines of one writer together to tracebacks."""

    def __init__(self, source: str, rank: int | None) -> None:
        self.source = source
        self.rank = rank
        self.spawned: int | None = None
        self.chained = False
        self._chain = False
        self._begin: int | None = None
        self._frames: list[Frame] = []

    def feed(self, line: Line) -> Traceback | None:
        if spawned := _SPAWNED.search(line.text):
            self.spawned = int(spawned[1])
        elif line.text.startswith(_CHAINED):
            self._chain = True
        elif _TRACEBACK in line.text:
            self._begin, self._frames = line.number, []
        elif self._begin is not None:
            return self._inside(line)
        elif line.text.strip():
            # Anything else between two tracebacks ends a chain.
            self._chain = False
        return None

    def _inside(self, line: Line) -> Traceback | None:
        if found := _FRAME.match(line.text):
            self._frames.append(Frame(file=found["file"], line=int(found["line"]), name=(found["name"] or "<module>").strip()))
            return None
        if line.text[:1].isspace():
            if self._frames and not self._frames[-1].code and set(line.text.strip()) - set("^~"):
                last = self._frames[-1]
                self._frames[-1] = Frame(file=last.file, line=last.line, name=last.name, code=line.text.strip())
            return None
        begin, self._begin = self._begin, None
        self.chained, self._chain = self._chain, False
        exception = _EXCEPTION.match(line.text)
        if exception is None or begin is None or not self._frames:
            return None
        rank, self.spawned = (self.rank if self.spawned is None else self.spawned), None
        return Traceback(
            source=self.source,
            line=begin,
            end=line.number,
            type=exception["type"],
            text=(exception["text"] or "").strip(),
            frames=tuple(self._frames),
            rank=rank,
        )


def _chunks(path: Path, *, limit_bytes: int | None) -> Iterator[tuple[int, int, bytes]]:
    """(offset, line number, bytes), cut at line ends wherever a line is shorter than a chunk."""
    offset, number, rest = 0, 1, b""
    remaining = limit_bytes
    try:
        with path.open("rb") as f:
            while remaining is None or remaining > 0:
                data = f.read(CHUNK_BYTES if remaining is None else min(CHUNK_BYTES, remaining))
                if not data:
                    break
                if remaining is not None:
                    remaining -= len(data)
                data = rest + data
                cut = data.rfind(b"\n") + 1 or (len(data) if len(data) >= CHUNK_BYTES else 0)
                chunk, rest = data[:cut], data[cut:]
                if chunk:
                    yield offset, number, chunk
                    offset += len(chunk)
                    number += chunk.count(b"\n")
            if rest:
                yield offset, number, rest
    except OSError as e:
        raise RecordError(f"cannot read {path}: {e.strerror or e}") from e


def _raw_lines(path: Path, *, limit_bytes: int | None, offset: int, number: int) -> Iterator[tuple[int, bytes]]:
    remaining = None if limit_bytes is None else limit_bytes - offset
    try:
        with path.open("rb") as f:
            f.seek(offset)
            while remaining is None or remaining > 0:
                line = f.readline(MAX_LINE_BYTES if remaining is None else min(MAX_LINE_BYTES, remaining))
                if not line:
                    return
                if remaining is not None:
                    remaining -= len(line)
                yield number, line.rstrip(b"\n")
                if line.endswith(b"\n"):
                    number += 1
    except OSError as e:
        raise RecordError(f"cannot read {path}: {e.strerror or e}") from e


def _first(path: Path, needle: bytes, limit_bytes: int | None) -> tuple[int, int] | None:
    """Offset and number of the first line that holds the needle, and of up to two lines before it."""
    for offset, number, chunk in _chunks(path, limit_bytes=limit_bytes):
        at = chunk.find(needle)
        if at >= 0:
            start = at
            for _ in range(3):
                start = chunk.rfind(b"\n", 0, max(start, 0))
                if start < 0:
                    break
            return offset + start + 1, number + chunk.count(b"\n", 0, start + 1)
    return None


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
