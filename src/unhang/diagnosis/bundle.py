"""What a verdict rests on as one archive without credentials, for a bug report: `unhang why` judges it like what it was made of.

A run directory stays one. Of a log stays what was found in it with the lines around, its beginning and its end; each line keeps its number, since
what is left out becomes empty lines behind a mark. Dumps are written anew, text by text. What cannot be cleaned is left out, and said.

Credentials are taken out; hosts, paths, addresses and lines of code stay: without them nobody can help.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import re
import tarfile
import tempfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import msgspec

from unhang import __version__, encoding
from unhang.diagnosis.redact import HIDDEN, redact, redact_data
from unhang.errors import RecordError
from unhang.model import NotExamined, Verdict
from unhang.records.flight import digest, opening
from unhang.records.logs.opening import Source, walk
from unhang.records.logs.said import LEFT_OUT
from unhang.records.logs.signature import NEAR_LINES
from unhang.records.logs.streams import words
from unhang.records.rundir import MEMBER, RunDir

SCHEMA = "unhang/bundle/1"
# Hiding credentials takes up to half a second for each MB: of all logs together about so much stays, and of each at least so many lines.
TEXT_BYTES = 4 * 1024**2
LEAST_LINES = 40
MOST_LINES = 4_000
AROUND_LINES = 30
# Of a line that is longer, the beginning: a progress bar, or a tensor printed whole.
LINE_BYTES = 16 * 1024
# What stands behind the cut tells whether a credential begins before it: no pattern of `redact` looks further ahead.
_AHEAD_BYTES = 4 * 1024
_USUAL_LINE_BYTES = 120
_NAMING_LINES = 20
_CHUNK_BYTES = 1 << 20
_KEY_BEGIN = re.compile(rb"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_END = re.compile(rb"-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
# Behind whatever prefix a line has.
_KEY_LINE = re.compile(
    rb"(?:(?<![A-Za-z0-9+/=])[A-Za-z0-9+/=]{16,}|^[ \t|>]{0,40}[A-Za-z0-9+/=]{1,100}|(?:Proc-Type|DEK-Info): [^\n]{0,200})[ \t\r'\",|\\]{0,8}$"
)
_MOST_KEY_LINES = 200
_MOST_STRANGE_LINES = 16
_PACKED = re.compile(r"(?:\.(?:gz|xz|lzma|bz2|zst))+$")

Progress = Callable[[int, "int | None"], None]


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, kw_only=True)
class Bundled:
    """What was written: the size of the archive, the number of files in it, and what is not in it."""

    size_bytes: int
    files: int
    left_out: tuple[NotExamined, ...]


def of_run(target: Path, rundir: RunDir, verdict: Verdict, *, progress: Progress = lambda done, total: None) -> Bundled:
    """Write a run directory to `target` (.tar.gz). Raises OSError where it cannot be written; an archive that was there stays until then."""
    with _writing(target, verdict, ["a run directory"]) as bundle:
        root = rundir.path.resolve()
        files = [p for p in sorted(rundir.path.rglob("*")) if p.is_file() and MEMBER.fullmatch(p.relative_to(rundir.path).as_posix())]
        told = _told(verdict)
        share = _lines_each(sum(p.parent.parent.name == "logs" for p in files))
        for done, path in enumerate(files):
            name = path.relative_to(rundir.path).as_posix()
            progress(done, len(files))
            if not path.resolve().is_relative_to(root):
                bundle.leave_out(name, "it leads out of the run directory")
                continue
            try:
                _add_record(bundle, path, name, told.get(name, ()), share)
            except (OSError, RecordError) as e:
                bundle.leave_out(name, words(e) if isinstance(e, OSError) else str(e))
    return bundle.result(target)


def of_files(
    target: Path,
    sources: Sequence[Source],
    dumps: Sequence[Path],
    verdict: Verdict,
    found: Iterable[tuple[str, int]] = (),
    places: Iterable[tuple[str, int]] = (),
    *,
    called: Callable[[str], str] = str,
    progress: Progress = lambda done, total: None,
) -> Bundled:
    """Write logs and dumps to `target` (.tar.gz). `found`: the lines on which something was found, by the name of their source;
    `places`: the others that were looked at.

    `called` gives the name of a file that was unpacked. Raises OSError.
    """
    told, beside = _told(verdict), dict[str, list[int]]()
    for lines, pairs in ((told, found), (beside, places)):
        for source, line in pairs:
            lines.setdefault(source, []).append(line)
    with _writing(target, verdict, [s.name for s in sources] + [str(p) for p in dumps]) as bundle:
        share = _lines_each(max(len(sources), len({i.source for i in verdict.inputs})))
        for done, opened in enumerate(walk(sources, bundle.left_out.append)):
            name = opened.source.name
            progress(done, len(sources) if len(sources) > 1 else None)
            try:
                if opened.stream is not None:
                    bundle.add(_member(name), _excerpt(opened.stream, told.get(name, ()), share, beside.get(name, ())), mtime=opened.source.mtime)
                elif opened.path is not None:
                    with opened.path.open("rb") as log:
                        bundle.add(_member(name), _excerpt(log, told.get(name, ()), share, beside.get(name, ())), mtime=opened.source.mtime)
            except OSError as e:
                bundle.leave_out(name, words(e))
        for path in dumps:
            try:
                bundle.add(_member(called(str(path))), _dump(path), mtime=path.stat().st_mtime)
            except (OSError, RecordError) as e:
                bundle.leave_out(called(str(path)), called(words(e) if isinstance(e, OSError) else str(e)))
    return bundle.result(target)


def is_one(path: Path) -> bool:
    """Whether a file is such an archive. Raises OSError where it cannot be read."""
    try:
        with tarfile.open(path, "r:gz") as archive:
            return archive.pax_headers.get("comment") == SCHEMA
    except (tarfile.TarError, EOFError, zlib.error):
        return False


class _Bundle:
    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._names: set[str] = set()
        self.left_out: list[NotExamined] = []

    def add(self, name: str, content: bytes, *, mtime: float | None = None) -> None:
        """`mtime`, in seconds since 1970, tells the year of times that are printed without one."""
        stem, n = name, 1
        while name in self._names:
            n += 1
            name = f"{n}-{stem}"
        self._names.add(name)
        info = tarfile.TarInfo(name)
        info.size = len(content)
        info.mode = 0o644
        info.mtime = mtime or 0
        self._archive.addfile(info, io.BytesIO(content))

    def leave_out(self, name: str, why: str) -> None:
        self.left_out.append(NotExamined(what=name, why=why, unread=True))

    def result(self, target: Path) -> Bundled:
        return Bundled(size_bytes=target.stat().st_size, files=len(self._names), left_out=tuple(self.left_out))


@contextlib.contextmanager
def _writing(target: Path, verdict: Verdict, made_of: Sequence[str]) -> Iterator[_Bundle]:
    fd, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(fd, "wb") as f, tarfile.open(fileobj=f, mode="w:gz", format=tarfile.PAX_FORMAT, pax_headers={"comment": SCHEMA}) as archive:
            bundle = _Bundle(archive)
            yield bundle
            if "verdict.json" not in bundle._names:
                bundle.add("verdict.json", encoding.encode(verdict))
            about = {"schema": SCHEMA, "unhang": __version__, "made_of": list(made_of), "left_out": msgspec.to_builtins(bundle.left_out)}
            bundle.add("bundle.json", encoding.encode(redact_data(about)))
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _told(verdict: Verdict) -> dict[str, list[int]]:
    """The lines of logs that the verdict names."""
    told: dict[str, list[int]] = {}
    for finding in verdict.findings:
        for e in finding.evidence:
            if e.line is not None:
                told.setdefault(e.source, []).append(e.line)
    return told


def _lines_each(logs: int) -> int:
    return min(MOST_LINES, max(LEAST_LINES, TEXT_BYTES // _USUAL_LINE_BYTES // max(1, logs)))


def _add_record(bundle: _Bundle, path: Path, name: str, told: Iterable[int], share: int) -> None:
    mtime = path.stat().st_mtime
    if re.match(r"(?:incidents/\d+/)?flight/", name):
        bundle.add(name, _dump(path), mtime=mtime)
    elif name.startswith("logs/"):
        with path.open("rb") as log:
            bundle.add(name, _excerpt(log, told, share), mtime=mtime)
    elif name.endswith(".json"):
        bundle.add(name, _json(path.read_bytes(), name), mtime=mtime)
    elif name.endswith(".jsonl"):
        bundle.add(name, b"".join(_json(line, name) + b"\n" for line in path.read_bytes().splitlines() if line.strip()), mtime=mtime)
    elif name != "report.html":
        # A report can be made again.
        bundle.add(name, _clean(path.read_bytes()), mtime=mtime)


def _json(data: bytes, name: str) -> bytes:
    try:
        return json.dumps(redact_data(json.loads(data)), ensure_ascii=False).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError) as e:
        if name.endswith(".jsonl"):
            # The last line of a run that was killed.
            return _clean(data)
        raise RecordError(f"it is damaged, and what cannot be read cannot be cleaned: {e}") from e


def _dump(path: Path) -> bytes:
    """The dumps of a file written anew, as a pickle; what had been cut off is cut off again. A digest was cleaned when it was made."""
    if digest.is_digest(path):
        return path.read_bytes()
    found = opening.opened(path)
    data = [_as_was(o.raw) for o in found]
    if any(o.rank is not None for o in found) or len(found) > 1:
        raw: Any = {"ranks": {str(n if o.rank is None else o.rank): d for n, (o, d) in enumerate(zip(found, data, strict=True))}}
    else:
        raw = data[0]
    packed = pickle.dumps(raw, protocol=2)
    return packed[:-1] if any(o.cut for o in found) else packed


def _as_was(raw: Mapping[str, Any]) -> dict[str, Any]:
    clean: dict[str, Any] = _texts_cleaned(dict(raw), {})
    # torch writes its entries last: what is cut off loses these.
    if "entries" in clean:
        clean["entries"] = clean.pop("entries")
    return clean


def _texts_cleaned(value: Any, seen: dict[int, tuple[Any, Any]]) -> Any:
    """A dump without credentials. Its entries share their frames: by identity each is cleaned once, as long as the first is held."""
    if isinstance(value, str):
        return _text(value)
    if not isinstance(value, (dict, list, tuple)):
        return value
    if id(value) not in seen:
        clean = (
            {_texts_cleaned(k, seen): _texts_cleaned(v, seen) for k, v in value.items()}
            if isinstance(value, dict)
            else [_texts_cleaned(v, seen) for v in value]
        )
        seen[id(value)] = value, clean
    return seen[id(value)][1]


@lru_cache(maxsize=100_000)
def _text(text: str) -> str:
    return redact(text)


def _windows(told: Iterable[int], share: int, beside: Iterable[int] = ()) -> list[range]:
    """The lines that stay whatever follows them, counted from 1: the first, and those around what tells something; less around what is `beside`."""
    ranges = [range(1, share // 4 + 1)]
    for lines, most in ((told, AROUND_LINES), (beside, NEAR_LINES)):
        near = sorted(line for line in set(lines) if line > 0)
        if len(near) > share:
            # What was found first and last says more than what stands between.
            near = [*near[: share // 2], *near[-share // 2 :]]
        around = most if len(near) * most < 2 * share else 2
        ranges += [range(n - around, n + around + 1) for n in near]
    windows = ranges[:1]
    for each in sorted(ranges[1:], key=lambda r: r.start):
        if each.start <= windows[-1].stop:
            windows[-1] = range(windows[-1].start, max(windows[-1].stop, each.stop))
        else:
            windows.append(each)
    return windows


def _excerpt(log: _Readable, told: Iterable[int], share: int, beside: Iterable[int] = ()) -> bytes:
    """What stays of a log, without credentials: the windows and its end; a mark and empty lines for what lies between: each keeps its number."""
    windows = deque(_windows(told, share, beside))
    pieces, block, gap = list[bytes](), list[bytes](), 0
    # The name of a credential may be cut out while its value, on a later line, is kept.
    skipped, before = deque[bytes](maxlen=_NAMING_LINES), list[bytes]()
    # What may turn out to be the end, each line with whether it stays if it is not.
    recent = deque[tuple[bytes, bool]]()

    def settle(line: bytes, *, stays: bool) -> None:
        nonlocal block, before, gap
        if not stays:
            gap += 1
            skipped.append(line)
            return
        if gap:
            pieces.extend((_cleaned(block, before), _mark(gap)))
            block, before, gap = [], [*skipped], 0
            skipped.clear()
        block.append(line)

    for number, line in enumerate(_without_keys(_lines(log)), 1):
        while windows and windows[0].stop <= number:
            windows.popleft()
        recent.append((line, bool(windows) and number in windows[0]))
        if len(recent) > share - share // 4:
            line, stays = recent.popleft()
            settle(line, stays=stays)
    for line, _ in recent:
        settle(line, stays=True)
    return b"".join([*pieces, _cleaned(block, before)])


def _lines(log: _Readable) -> Iterator[bytes]:
    """The lines of a log with their ends; of a long one LINE_BYTES, and what is needed to cut it there."""
    begun, most = b"", LINE_BYTES + _AHEAD_BYTES
    while chunk := log.read(_CHUNK_BYTES):
        *whole, rest = chunk.split(b"\n")
        for line in whole:
            yield (begun + line)[:most] + b"\n"
            begun = b""
        begun = (begun + rest)[:most]
    if begun:
        yield begun


def _without_keys(lines: Iterable[bytes]) -> Iterator[bytes]:
    """As many lines: of a private key that stands on several, some of which may be left out later, each one is hidden for itself."""
    left = strange = 0
    for line in lines:
        end = line[len(line.rstrip(b"\n")) :]
        if left and (found := _KEY_END.search(line)):
            left = 0
            yield HIDDEN.encode() + line[found.end() :]
        elif left and (found := _KEY_LINE.search(line)):
            left, strange = left - 1, 0
            yield line[: found.start()] + HIDDEN.encode() + end
        elif (found := _KEY_BEGIN.search(line)) and not _KEY_END.search(line, found.end()):
            left, strange = _MOST_KEY_LINES, 0
            yield line[: found.start()] + HIDDEN.encode() + end
        else:
            # Other ranks may write in between; and a line of code that looks for a key begins none.
            strange += 1
            left = left - 1 if left and strange <= _MOST_STRANGE_LINES else 0
            yield line


def _mark(lines: int) -> bytes:
    return f"{LEFT_OUT}: {lines:,}]".encode() + b"\n" * lines


def _cleaned(block: Sequence[bytes], before: Sequence[bytes]) -> bytes:
    """Lines without credentials, as many as there were, each of LINE_BYTES at most; read behind those `before`, which are no part of them."""
    pieces, run = list[bytes](), list[bytes]()
    for line in (*before, *block):
        if len(line) <= LINE_BYTES:
            run.append(line)
        else:
            pieces += [_clean(b"".join(run)), _cut(line)]
            run = []
    return b"".join([*pieces, _clean(b"".join(run))]).split(b"\n", len(before))[-1]


def _cut(line: bytes) -> bytes:
    """The beginning of a long line without credentials, and without the beginning of one: as far as what follows makes no difference to it."""
    whole = line.rstrip(b"\n")
    clean, cut = _clean(whole), _clean(whole[:LINE_BYTES])
    alike = next((n for n, (a, b) in enumerate(zip(clean, cut, strict=False)) if a != b), min(len(clean), len(cut)))
    return cut[:alike] + line[len(whole) :]


def _clean(data: bytes) -> bytes:
    return redact(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _member(name: str) -> str:
    """A name in the archive that leads nowhere, keeps the folders by which ranks are told apart, and does not call text packed."""
    parts = [p for p in re.split(r"[/!\\]", redact(name)) if p not in ("", ".", "..")]
    return _PACKED.sub("", "/".join(parts)) or "log"
