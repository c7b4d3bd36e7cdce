"""What a verdict rests on as one archive without credentials, for a bug report: `unhang why` judges it like what it was made of.

Each file goes through `redact` whole, so that no credential depends on where a piece ends, and at most LIMIT_BYTES of all files are read. A file
that does not fit, or that cannot be read and therefore not be cleaned, is left out and named. A run directory stays one.

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
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol

from unhang import __version__, encoding
from unhang.diagnosis.redact import redact, redact_data
from unhang.errors import RecordError
from unhang.flight import digest, dump_file
from unhang.logs.sources import Source, is_plain, walk
from unhang.logs.streams import HEAD_BYTES, words
from unhang.model import NotExamined, Verdict
from unhang.records.rundir import MEMBER, RunDir

SCHEMA = "unhang/bundle/1"
LIMIT_BYTES = 64 * 1024**2
_PACKED = re.compile(r"(?:\.(?:gz|xz|lzma|bz2|zst))+$")
_FLIGHT = re.compile(r"(?:incidents/\d+/)?flight/")

Progress = Callable[[int, "int | None"], None]


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def of_run(target: Path, rundir: RunDir, verdict: Verdict, *, progress: Progress = lambda done, total: None) -> Bundle:
    """Write a run directory to `target` (.tar.gz), its small files first. Raises OSError; an archive that was there stays until all is written."""
    root = rundir.path.resolve()
    names = [p.relative_to(rundir.path).as_posix() for p in rundir.path.rglob("*") if p.is_file()]
    # A report can be made again.
    files = sorted((dump_file.size_of(rundir.path / n), n) for n in names if MEMBER.fullmatch(n) and n != "report.html")
    with _writing(target, verdict, ["a run directory"]) as bundle:
        for done, (_, name) in enumerate(files):
            progress(done, len(files))
            bundle.add(name, partial(_record, rundir.path / name, name, root), path=rundir.path / name)
    return bundle


def of_files(
    target: Path,
    sources: Sequence[Source],
    dumps: Sequence[Path],
    verdict: Verdict,
    *,
    called: Callable[[str], str] = str,
    progress: Progress = lambda done, total: None,
) -> Bundle:
    """Write logs and dumps to `target` (.tar.gz). `called` gives the name of a file that was unpacked. Raises OSError."""
    with _writing(target, verdict, [s.name for s in sources] + [str(p) for p in dumps]) as bundle:
        for done, opened in enumerate(walk(sources, bundle.left_out.append)):
            progress(done, len(sources) if len(sources) > 1 else None)
            bundle.add(opened.source.name, partial(_text, opened.stream or opened.path), mtime=opened.source.mtime)
        for path in dumps:
            bundle.add(str(path), partial(_dump, path), path=path, called=called)
    return bundle


def is_one(path: Path) -> bool:
    """Whether a file is such an archive. Raises OSError where it cannot be read."""
    try:
        with tarfile.open(path, "r:gz") as archive:
            return archive.pax_headers.get("comment") == SCHEMA
    except (tarfile.TarError, EOFError, zlib.error):
        return False


class Bundle:
    """What is in an archive, by `names`, and what is not."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._left_bytes = LIMIT_BYTES
        self.names: set[str] = set()
        self.left_out: list[NotExamined] = []

    def add(
        self,
        name: str,
        content: Callable[[int], bytes],
        *,
        path: Path | None = None,
        mtime: float | None = None,
        called: Callable[[str], str] = str,
    ) -> None:
        """`content` returns a file without credentials, or raises why it is left out; its argument is the most that it may read.

        `mtime`, in seconds since 1970, or that of `path` tells the year of times that are printed without one.
        """
        try:
            data = content(self._left_bytes)
            mtime = mtime if path is None else path.stat().st_mtime
        except (OSError, RecordError) as e:
            why = called(words(e) if isinstance(e, OSError) else str(e))
            self.left_out.append(NotExamined(what=called(name), why=why, unread=True))
            return
        self._left_bytes = max(0, self._left_bytes - len(data))
        # A name that leads nowhere, keeps the folders by which ranks are told apart, and does not call text packed.
        parts = [p for p in re.split(r"[/!\\]", redact(called(name))) if p not in ("", ".", "..")]
        stem, n = _PACKED.sub("", "/".join(parts)) or "log", 1
        unique = stem
        while unique in self.names:
            n += 1
            unique = f"{n}-{stem}"
        self.names.add(unique)
        info = tarfile.TarInfo(unique)
        info.size, info.mode, info.mtime = len(data), 0o644, mtime or 0
        self._archive.addfile(info, io.BytesIO(data))


@contextlib.contextmanager
def _writing(target: Path, verdict: Verdict, made_of: Sequence[str]) -> Iterator[Bundle]:
    fd, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(fd, "wb") as f, tarfile.open(fileobj=f, mode="w:gz", format=tarfile.PAX_FORMAT, pax_headers={"comment": SCHEMA}) as archive:
            bundle = Bundle(archive)
            yield bundle
            if "verdict.json" not in bundle.names:
                bundle.add("verdict.json", lambda _: encoding.encode(verdict))
            about = {"schema": SCHEMA, "unhang": __version__, "made_of": list(made_of), "left_out": bundle.left_out}
            bundle.add("bundle.json", lambda _: encoding.encode(redact_data(about)))
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _record(path: Path, name: str, root: Path, most: int) -> bytes:
    if not path.resolve().is_relative_to(root):
        raise RecordError("it leads out of the run directory")
    if _FLIGHT.match(name):
        return _dump(path, most)
    if name.endswith(".json"):
        return _json(_read(path, most))
    if name.endswith(".jsonl"):
        return b"".join(_json(line, cut=True) + b"\n" for line in _read(path, most).splitlines())
    return _text(path, most)


def _read(log: _Readable | Path | None, most: int) -> bytes:
    if isinstance(log, Path):
        with log.open("rb") as f:
            return _read(f, most)
    data = log.read(most + 1) if log is not None else b""
    _check_size(len(data), most)
    return data


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise RecordError(f"it does not fit: all files of a bundle have {LIMIT_BYTES >> 20} MiB together")


def _text(log: _Readable | Path | None, most: int) -> bytes:
    data = _read(log, most)
    if not is_plain(data[:HEAD_BYTES]):
        raise RecordError("it is packed, and what cannot be read cannot be cleaned")
    return _clean(data)


def _clean(data: bytes) -> bytes:
    return redact(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _json(data: bytes, *, cut: bool = False) -> bytes:
    """`cut`: it may be the last line of a run that was killed."""
    try:
        return encoding.encode(redact_data(encoding.with_messages(json.loads(data))))
    except (ValueError, RecursionError) as e:
        if cut:
            return _clean(data)
        raise RecordError(f"it is damaged, and what cannot be read cannot be cleaned: {e}") from e


def _dump(path: Path, most: int) -> bytes:
    """The dumps of a file as a new pickle; one that was cut off lacks its end again. A digest was cleaned when it was made."""
    if digest.is_digest(path):
        return _read(path, most)
    _check_size(dump_file.size_of(path), most)
    found = dump_file.opened(path)
    data = [_without_credentials(dict(o.raw), {}) for o in found]
    for raw in data:
        # torch writes its entries last: what is cut off loses these.
        raw |= {"entries": raw.pop("entries")} if "entries" in raw else {}
    whole = {"ranks": {str(n if o.rank is None else o.rank): raw for n, (o, raw) in enumerate(zip(found, data, strict=True))}}
    packed = pickle.dumps(data[0] if len(found) == 1 and found[0].rank is None else whole, protocol=2)
    _check_size(len(packed), most)
    return packed[:-1] if any(o.cut for o in found) else packed


def _without_credentials(value: Any, seen: dict[int, tuple[Any, Any]]) -> Any:
    """Plain values. The entries of a dump share their frames: by identity each is cleaned once, as long as the first is held."""
    if isinstance(value, str):
        return _cleaned_once(value)
    if not isinstance(value, (dict, list, tuple)):
        return value
    if id(value) not in seen:
        again = partial(_without_credentials, seen=seen)
        clean = {again(k): again(v) for k, v in value.items()} if isinstance(value, dict) else [again(v) for v in value]
        seen[id(value)] = value, clean
    return seen[id(value)][1]


_cleaned_once = lru_cache(maxsize=100_000)(redact)
