"""Lines of a log: read in order, cleaned of what launchers and terminals put around each of them.

Progress bars write many states into one line with carriage returns, and errors are printed behind the last of them: each state is a
line of its own here and carries the number of the line in the file.
"""

from __future__ import annotations

import io
import re
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol

from unhang.errors import RecordError
from unhang.logs.prefixes import Said, strip
from unhang.model import frozen
from unhang.patterns import lazily
from unhang.printable import strip_unprintable

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer as Buffer

    from unhang.logs.timestamps import Stamp


class Readable(Protocol):
    """A log that is read from its front to its end."""

    def read(self, size: int, /) -> bytes: ...


CHUNK_BYTES = 1024 * 1024
# Longer lines are cut: nothing that says why a training failed is longer.
MAX_LINE_BYTES = 64 * 1024


@frozen
class Line:
    """A line without what stands around it, and what that told; None where nothing did.

    `number` counts from 1. `rank` is the writer's own (`[rank1]:`, Open MPI's tag, `[Rank 1]` where the line begins with it). `label` is the number
    that srun or mpirun gave the task: the rank where they start one task for each rank, the node where they start launchers. `launcher` is "mpirun"
    where its tag tells. `local_rank` counts on the node. `host` is a name or an address, of the machine or the pod, as printed. `level` is TRACE,
    DEBUG, INFO, WARNING, ERROR or CRITICAL. `ending`: what Ray puts behind a line that stands for others.
    """

    number: int
    text: str
    rank: int | None = None
    label: int | None = None
    launcher: str | None = None
    local_rank: int | None = None
    host: str | None = None
    pid: int | None = None
    time: Stamp | None = None
    level: str | None = None
    ending: str | None = None


# Colours and titles, of seven bits and of eight, also cut off where the line is; an ESC that is left over is dropped.
_ANSI = lazily(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*(?:[@-~]|\Z)|(?:\x1b\]|\x9d)[^\x07\x1b\x9c\x9d]*(?:\x07|\x1b\\|\x9c)|\x1b(?:[()*+][0-9A-Za-z]|[@-Z\\-_])?"
)
# Colours that lost their ESC on the way or had it written out: copied from a browser, `cat -v`, JSON, rsyslog.
_BARE_COLOUR = lazily(r"(?:\^\[|#033|\\(?:x1b|u001b|033|e))?\[\d{1,3}(?:;\d{1,3}){0,8}m(?!\])", re.ASCII | re.IGNORECASE)
_MAX_BARE_COLOURS_NESTED = 8
# At the end of a line nothing else looks like this: `[m` and `[K` of grep and gcc, `(B[m` of tput, a colour that goes on in the next line.
_BARE_AT_END = lazily(r"(?:\^\[|#033|\\(?:x1b|u001b|033|e)|\(B)?\[(?:\d{0,3}(?:;\d{1,3}){0,8}m|[0-2]?K)\Z", re.ASCII | re.IGNORECASE)
_MAX_BARE_CHARS = 64
# int() refuses numbers of more than 4,300 digits; no number of a training comes near.
_LONG_LINE_CHARS = 4000
_LONG_NUMBER = lazily(r"(?<!\d)(\d{300})\d+")
# Ray's end of a line that it shows once for many; with its first one it says how to see them all.
_REPEATED = lazily(r"( \[repeated \d{1,7}x across cluster\])(?: \(Ray deduplicates logs by default\..*)?$")


def parse(raw: bytes | str, *, number: int = 1) -> Line:
    """A line without its prefixes, however nested, and what they told. Never raises; parsing the text again changes nothing.

    Indentation behind a prefix survives. What belongs to the message (`[E321 ...]`, `host:pid:tid [0] NCCL WARN`, `[Rank 1]`) is read and stays.
    """
    text = decode(raw) if isinstance(raw, bytes) else raw[:MAX_LINE_BYTES]
    said = Said()
    wrapped = unwrapped(text) if text.startswith(JSON_BEGINS) else None
    text = strip(_plain(text if wrapped is None else wrapped.text), said)
    repeated = _REPEATED.search(text) if " across cluster]" in text else None
    if wrapped is not None and said.host is None:
        said.host = wrapped.host
    return Line(
        number=number,
        text=text if repeated is None else text[: repeated.start()],
        rank=said.task if said.rank is None else said.rank,
        label=said.label,
        launcher=said.launcher,
        local_rank=said.local_rank,
        host=said.host,
        pid=said.pid,
        time=said.time,
        level=said.level,
        ending=None if repeated is None else repeated[1],
    )


def clean(text: str) -> tuple[str, int | None]:
    """A line without colours and prefixes, and the rank that a prefix named."""
    line = parse(text)
    return line.text, line.rank


def decode(raw: bytes) -> str:
    """UTF-8 with replacements for what is none. Without NULs, cut at MAX_LINE_BYTES."""
    return raw[:MAX_LINE_BYTES].replace(b"\0", b"").decode("utf-8", "replace")


def _plain(text: str) -> str:
    if not text.isprintable():
        text = strip_unprintable(_ANSI.sub("", text))
    if "[0m" in text or "[39m" in text:
        bare = text
        for _ in range(_MAX_BARE_COLOURS_NESTED):
            bare, found = _BARE_COLOUR.subn("", bare)
            if not found:
                text = bare
                break
    if len(text) > _LONG_LINE_CHARS:
        text = _LONG_NUMBER.sub(r"\1…", text)
    text = text.rstrip()
    return text if text[-1:] not in ("m", "K") else text[: _end(text)]


def _end(text: str) -> int:
    """Where a text ends without the colours behind it."""
    end = len(text)
    while found := _BARE_AT_END.search(text, max(0, end - _MAX_BARE_CHARS), end):
        end = found.start()
        while end and text[end - 1].isspace():
            end -= 1
    return end


def wanted_lines(log: Path | Readable, wanted: Callable[[int, bytes], bool]) -> Iterator[Line]:
    """The cleaned lines of a file, or of a stream, that are `wanted` by their number and as they stand: cleaning takes a hundred times as long as
    reading. Raises RecordError."""
    for count, raw in _of_file(log) if isinstance(log, Path) else _raw_lines(io.BufferedReader(_Raw(log), CHUNK_BYTES), None, 1):
        if wanted(count, raw):
            yield from _parts(raw, count)


def _parts(raw: bytes, number: int) -> Iterator[Line]:
    for part in raw.split(b"\r"):
        line = parse(part, number=number)
        if line.text:
            yield line


_LAST_LINES = 3
# How torchrun sums up, whatever the failure was.
_SAYS_NOTHING = lazily(
    r"^\s*(?:[=*-]{4,}|\[\d+\]:|Root Cause \(first observed failure\):|(?:time|host|rank) {2,}: .*|error_file: <N/A>|<NO_OTHER_FAILURES>"
    r"|traceback : To enable traceback see:.*)\s*$"
)


def last_lines(path: Path, *, limit_bytes: int | None = None) -> tuple[Line, ...]:
    """The last lines that say anything. Raises RecordError."""
    try:
        with path.open("rb") as f:
            size = f.seek(0, io.SEEK_END) if limit_bytes is None else min(limit_bytes, f.seek(0, io.SEEK_END))
            number, before = 1, max(0, size - MAX_LINE_BYTES)
            f.seek(0)
            while data := f.read(min(CHUNK_BYTES, before - f.tell())):
                number += data.count(b"\n")
            if before:
                # The rest of a line says nothing, if another one follows: a progress bar is one long line.
                if f.readline(MAX_LINE_BYTES).endswith(b"\n"):
                    number += 1
                else:
                    f.seek(before)
            found = (line for count, raw in _raw_lines(f, size - f.tell(), number) for line in _parts(raw, count))
            return tuple(deque((line for line in found if not _SAYS_NOTHING.match(line.text)), maxlen=_LAST_LINES))
    except OSError as e:
        raise RecordError(f"cannot read {path}: {e.strerror or e}") from e


class _Raw(io.RawIOBase):
    """A log that exists as a stream only, for readers of lines."""

    def __init__(self, log: Readable) -> None:
        self._log = log

    def readable(self) -> bool:
        return True

    def readinto(self, into: Buffer) -> int:
        view = memoryview(into)
        data = self._log.read(len(view))
        view[: len(data)] = data
        return len(data)


def _of_file(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as f:
            yield from _raw_lines(f, None, 1)
    except OSError as e:
        raise RecordError(f"cannot read {path}: {e.strerror or e}") from e


def _raw_lines(log: BinaryIO | io.BufferedReader, remaining: int | None, number: int) -> Iterator[tuple[int, bytes]]:
    while remaining is None or remaining > 0:
        line = log.readline(MAX_LINE_BYTES if remaining is None else min(MAX_LINE_BYTES, remaining))
        if not line:
            return
        if remaining is not None:
            remaining -= len(line)
        yield number, line.rstrip(b"\n")
        if line.endswith(b"\n"):
            number += 1


# Lines that a collector wrapped into JSON: Docker's json-file driver, Fluent Bit and Fluentd, Vector, cloud consoles.
JSON_BEGINS = '{"'
_TEXTS = ("log", "message", "msg", "MESSAGE", "textPayload")
_TIMES = ("time", "timestamp", "@timestamp", "ts")
# What a training prints as JSON itself has none of these beside a text.
_WRAPPER = frozenset((*_TIMES, "stream", "kubernetes"))
_HOSTS = ("pod_name", "host", "hostname", "_HOSTNAME")
# What was wrapped may be wrapped itself: by the runtime, then by the collector.
_DEEPEST = 4


class Wrapped(NamedTuple):
    """What was printed, behind the time that the collector saw it, and where."""

    text: str
    host: str | None


def unwrapped(text: str) -> Wrapped | None:
    """The line that a JSON document holds; None where it is none, or the training's own."""
    found: Wrapped | None = None
    for _ in range(_DEEPEST):
        if not text.startswith(JSON_BEGINS) or (inner := _inner(text)) is None:
            break
        text, time, host = inner
        found = Wrapped(f"{time} {text}" if time else text, host if host is not None or found is None else found.host)
    return found


def _inner(text: str) -> tuple[str, str, str | None] | None:
    import json

    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    said = next((document[k] for k in _TEXTS if isinstance(document.get(k), str)), None)
    if said is None or _WRAPPER.isdisjoint(document):
        return None
    time = next((document[k] for k in _TIMES if isinstance(document.get(k), str)), "")
    return said.rstrip("\r\n").rpartition("\r")[2].partition("\n")[0], time, _host(document)


def _host(document: dict[str, Any]) -> str | None:
    pod = document.get("kubernetes")
    places = (pod, document) if isinstance(pod, dict) else (document,)
    return next((place[k] for place in places for k in _HOSTS if isinstance(place.get(k), str) and place[k]), None)
