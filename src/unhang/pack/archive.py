"""The archive: a tar behind zstd of what a manifest lists, in its order. The manifest comes first, so that everything can be checked in advance.

It holds the sums, so files are read twice. The first pass takes a fifth of the time; in return `diff` and `load` need not unpack an archive to know
what is in it. To read once and put the manifest in front afterwards takes as long: what was written would be read and summed again.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import tarfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import starmap
from pathlib import Path
from typing import BinaryIO

import zstandard

from unhang.errors import UnhangError
from unhang.model import frozen
from unhang.pack import manifest as manifests
from unhang.pack import relocate
from unhang.pack.files import Item, OnProgress, changed, no_progress, with_progress
from unhang.pack.manifest import Entry, Manifest
from unhang.pack.relocate import THREADS

_CHUNK_BYTES = 1 << 20
# Of one frame, which one core compresses. Twice as large ones make an archive with torch smaller by half a percent.
_FRAME_BYTES = 8 << 20
# zip, which wheels are rebuilt with, knows no earlier year.
_MTIME = 315532800
_TYPES = {"file": tarfile.REGTYPE, "link": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE, "dir": tarfile.DIRTYPE}
# A header, one for a long name and one for a long link, each with its blocks, and what rounds up.
_PER_ENTRY_BYTES = 16384
# Of a tar.
END = bytes(2 * tarfile.BLOCKSIZE)
# Small files that are read ahead of those who write them: 64 MiB at most.
_AHEAD = 64
# An item, where in it to begin, and how many bytes of it to take.
_Part = tuple[Item, int, int]


def write(path: Path, manifest: Manifest, items: Sequence[Item], *, level: int, on_progress: OnProgress) -> tuple[str, str]:
    """Write the archive beside `path`, and put it there when it is complete. Returns the SHA-256 of its manifest and its own. Raises UnhangError."""
    encoded = manifests.encode(manifest)
    own = of_bytes(relocate.MANIFEST, encoded) + of_bytes(relocate.SCRIPT, Path(relocate.__file__).read_bytes())
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    of_thread = threading.local()

    def compressed(piece: Iterable[_Part]) -> bytes:
        # To make a compressor takes as long as a small frame.
        if not hasattr(of_thread, "compress"):
            of_thread.compress = zstandard.ZstdCompressor(level=level).compress
        frame: bytes = of_thread.compress(b"".join(starmap(_member, piece)))
        return frame

    total = hashlib.sha256()
    try:
        with beside.open("wb") as file, ThreadPoolExecutor(THREADS) as pool:

            def add(data: bytes) -> None:
                total.update(data)
                file.write(data)

            add(zstandard.compress(own, level))
            under_way: deque[Future[bytes]] = deque()
            for piece in _pieces(with_progress(items, on_progress)):
                under_way.append(pool.submit(compressed, piece))
                if len(under_way) > 2 * THREADS:
                    add(under_way.popleft().result())
            for frame in under_way:
                add(frame.result())
            add(zstandard.compress(END, level))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as e:
        raise UnhangError(f"cannot write {path}: {e}") from e
    finally:
        beside.unlink(missing_ok=True)
    return manifests.digest(encoded), total.hexdigest()


def remove_parts(path: Path) -> None:
    """Those of processes that were killed."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        if (pid := left.suffixes[-2][1:]).isdigit() and not Path("/proc", pid).exists():
            left.unlink(missing_ok=True)


def members(items: Iterable[Item]) -> Iterator[bytes]:
    """A stream of tar in pieces, without its end."""
    return (_member(*part) for piece in _pieces(items) for part in piece)


def of_bytes(path: str, data: bytes) -> bytes:
    """A file of our own, as tar has it."""
    return _header(Entry(path, "file", 0o644, len(data))) + data + bytes(-len(data) % tarfile.BLOCKSIZE)


def _pieces(items: Iterable[Item]) -> Iterator[list[_Part]]:
    """What makes a frame each: many small files, or a stretch of a large one."""
    piece: list[_Part] = []
    left = _FRAME_BYTES
    for item in items:
        for start in range(0, item.size or 1, _FRAME_BYTES):
            size = min(item.size - start, _FRAME_BYTES)
            if size > left:
                yield piece
                piece, left = [], _FRAME_BYTES
            piece.append((item, start, size))
            left -= size + tarfile.BLOCKSIZE
    yield piece


def _member(item: Item, start: int, size: int) -> bytes:
    """A stretch of an item, as tar has it. Raises UnhangError for a file that is not as it was seen."""
    head = b"" if start else _header(item)
    if not size:
        return head
    assert item.source is not None
    with open(item.source, "rb") as file:  # noqa: PTH123  # A path takes as long to make as a small file to read.
        file.seek(start)
        data, seen = file.read(size), os.fstat(file.fileno())
    if (len(data), seen.st_size, seen.st_mtime_ns) != (size, item.size, item.modified_ns):
        raise changed(item)
    return head + data + bytes(-item.size % tarfile.BLOCKSIZE if start + size == item.size else 0)


def _header(entry: Entry | Item) -> bytes:
    info = tarfile.TarInfo(entry.path)
    info.type, info.mode, info.size, info.linkname, info.mtime = _TYPES[entry.kind], entry.mode, entry.size, entry.target, _MTIME
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


class _Bounded:
    """A stream that ends in an error where more comes than was announced."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._stream, self._name = stream, name
        self.left = manifests.MAX_BYTES

    def read(self, size: int) -> bytes:
        try:
            data = self._stream.read(size)
        except zstandard.ZstdError as e:
            raise UnhangError(f"{self._name} is damaged, or no archive of unhang pack: {e}") from e
        self.left -= len(data)
        if self.left < 0:
            raise UnhangError(f"{self._name} is refused: it unpacks to more than it announces")
        return data


@frozen
class Opened:
    manifest: Manifest
    encoded: bytes
    name: str
    tar: tarfile.TarFile

    def extract(self, root: Path, on_progress: OnProgress = no_progress) -> None:
        """Write everything below `root`, which is empty. Raises UnhangError if anything differs from the manifest; what was written stays."""
        with _refused(self.name), ThreadPoolExecutor(THREADS) as pool:
            if (script := self.tar.next()) is None or script.name != relocate.SCRIPT:
                raise UnhangError(f"{self.name} is refused: it ends before {relocate.SCRIPT}", cause="it was cut short")
            written: deque[Future[None]] = deque()
            for entry in with_progress(self.manifest.entries, on_progress):
                # Hard links come last, after what they share.
                while len(written) > (0 if entry.kind == "hard" else _AHEAD):
                    written.popleft().result()
                if (file := self._extract(entry, root / entry.path)) is not None:
                    written.append(pool.submit(self._write, entry, root / entry.path, file))
            for last in written:
                last.result()
            if (more := self.tar.next()) is not None:
                raise UnhangError(f"{self.name} is refused: it holds {more.name}, which its manifest does not list")

    def _extract(self, entry: Entry, at: Path) -> bytes | None:
        """The content of a small file, which somebody else may write."""
        member = self.tar.next()
        if member is None:
            raise UnhangError(f"{self.name} is refused: it ends before {entry.path}", cause="it was cut short")
        # Types as the manifest has them only: no devices, no sparse files.
        if (member.name, member.type, member.size, member.linkname) != (entry.path, _TYPES[entry.kind], entry.size, entry.target):
            raise UnhangError(f"{self.name} is refused: {member.name} is not what its manifest lists, {entry.path}")
        if entry.kind != "file":
            relocate.make(at.parents[entry.path.count("/")], [(entry.path, entry.kind, entry.mode, 0, "", entry.target)])
            return None
        source = self.tar.extractfile(member)
        assert source is not None
        if entry.size <= _CHUNK_BYTES:
            return source.read()
        self._write(entry, at, iter(lambda: source.read(_CHUNK_BYTES), b""))
        return None

    def _write(self, entry: Entry, at: Path, content: bytes | Iterator[bytes]) -> None:
        summed = hashlib.sha256()
        with at.open("xb", buffering=0) as file:
            for chunk in (content,) if isinstance(content, bytes) else content:
                summed.update(chunk)
                file.write(chunk)
            os.fchmod(file.fileno(), entry.mode)
        if summed.hexdigest() != entry.sum:
            raise UnhangError(f"{self.name} is refused: {entry.path} has another sum than its manifest lists", cause="it is damaged")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Opened]:
    """Read the manifest of an archive. Raises UnhangError for what is none."""
    name = str(path)
    try:
        file = path.open("rb")
    except OSError as e:
        raise UnhangError(f"cannot read {path}: {e.strerror}") from e
    with file, zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as stream:
        if not file.peek().startswith(zstandard.FRAME_HEADER):
            raise UnhangError(f"{path} is no archive of unhang pack: it does not begin as zstd does", hint="unhang pack save ENV FILE")
        bounded = _Bounded(stream, name)
        with _refused(name):
            tar = tarfile.open(fileobj=bounded, mode="r|", bufsize=_CHUNK_BYTES)  # type: ignore[call-overload] # noqa: SIM115
            first = tar.next()
        if first is None or first.name != relocate.MANIFEST or first.type != tarfile.REGTYPE or first.size > manifests.MAX_BYTES:
            raise UnhangError(f"{path} is no archive of unhang pack: its first member is not {relocate.MANIFEST}", hint="unhang pack save ENV FILE")
        with _refused(name):
            source = tar.extractfile(first)
            assert source is not None
            encoded = source.read()
        manifest = manifests.decode(encoded, name=name)
        bounded.left = manifest.size_bytes + len(manifest.entries) * _PER_ENTRY_BYTES + 2 * _CHUNK_BYTES
        yield Opened(manifest=manifest, encoded=encoded, name=name, tar=tar)


@contextlib.contextmanager
def _refused(name: str) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, EOFError, ValueError, RecursionError) as e:
        raise UnhangError(f"{name} is damaged, or no archive of unhang pack: {e}") from e
