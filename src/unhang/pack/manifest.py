"""The first member of an archive: every entry with its sum, what it needs of a machine, and which files name the old place."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

import msgspec

from unhang import encoding
from unhang.errors import UnhangError
from unhang.model import frozen
from unhang.pack import relocate

SCHEMA = "unhang/pack/1"
# Each is searched for in every file that names one.
_MOST_MOVES, _PATH_CHARS = 200, 4096
# Thirty times that of an environment with torch.
MAX_BYTES = 128 * 1024**2
Kind = Literal["file", "link", "hard", "dir"]


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One path below the prefix. `sum` is the SHA-256 of a file; `target` is where a link leads, or of a hard link the path it shares."""

    path: str
    kind: Kind
    mode: int = 0
    size: int = 0
    sum: str = ""
    target: str = ""


@frozen
class Python:
    """`interpreter` is its path below the prefix if it was taken along from elsewhere, None if the environment holds its own (conda)."""

    version: str
    abi: str
    interpreter: str | None


@frozen
class Torch:
    version: str
    cuda: str | None


@frozen
class Source:
    """Sources that were taken along from `origin`. `commit` is that of the checkout, None outside one; `changed`: not all was committed."""

    name: str
    path: str
    origin: str
    commit: str | None = None
    changed: bool = False


@frozen
class LeftOut:
    path: str
    why: str


@frozen
class Manifest:
    """`glibc` is the newest version that a library asks for; `cpu_flags` are those of the machine that packed.

    `moves` are old absolute paths and what stands for each below the new prefix, longest first. `places` are the files that name one, and how each
    is rewritten (see `placement`).
    """

    schema: str = SCHEMA
    prefix: str
    kind: Literal["venv", "conda"]
    machine: str
    glibc: str | None
    cpu_flags: tuple[str, ...]
    python: Python
    torch: Torch | None
    distributions: dict[str, str]
    sources: tuple[Source, ...]
    moves: tuple[tuple[str, str], ...]
    places: dict[str, relocate.How]
    left_out: tuple[LeftOut, ...] = field(default=())
    entries: tuple[Entry, ...]

    @property
    def size_bytes(self) -> int:
        return sum(e.size for e in self.entries)


def encode(manifest: Manifest) -> bytes:
    """Raises UnhangError for names that are no UTF-8, and for what `decode` would refuse."""
    if wrong := next(_wrong(manifest), None):
        raise UnhangError(f"{manifest.prefix} cannot be packed: {wrong}")
    try:
        return msgspec.json.encode(manifest)
    except UnicodeEncodeError as e:
        raise UnhangError(f"the environment holds a file whose name is not UTF-8: {e.object[:200]!r}", hint="rename it") from e


def digest(encoded: bytes) -> str:
    return hashlib.sha256(encoded).hexdigest()


def decode(encoded: bytes, *, name: str) -> Manifest:
    """Raises UnhangError for what is none, is of another version, or would write outside its prefix."""
    try:
        schema = msgspec.json.decode(encoded, type=dict[str, msgspec.Raw]).get("schema")
        if schema is None or msgspec.json.decode(schema) != SCHEMA:
            raise UnhangError(f"{name} was packed in another format than {SCHEMA}", hint="use the version of unhang that packed it")
        found = msgspec.json.decode(encoded, type=Manifest)
    except encoding.NOT_JSON as e:
        raise UnhangError(f"{name} holds no manifest of an environment: {e}") from e
    if wrong := next(_wrong(found), None):
        raise UnhangError(f"{name} is refused: {wrong}", cause="it is damaged, or was made to write where it must not")
    return found


def read_placed(root: Path) -> tuple[Manifest, bytes, dict[str, Any]]:
    """The manifest of an environment that was loaded, and how it was placed (`placement.read_placed`). Raises UnhangError if it was not."""
    try:
        encoded = (root / relocate.MANIFEST).read_bytes()
    except OSError as e:
        raise UnhangError(f"{root} was not loaded from an archive: {e.strerror} ({relocate.MANIFEST})", hint="unhang pack load FILE DEST") from e
    known = decode(encoded, name=str(root))
    try:
        return known, encoded, relocate.read_placed(root)
    except (OSError, ValueError) as e:
        raise UnhangError(f"{root} was not loaded to its end: {e}", hint="unhang pack load --replace FILE DEST") from e


def _wrong(manifest: Manifest) -> Iterator[str]:
    kinds: dict[str, Kind] = {}
    for e in manifest.entries:
        if not _is_inside(e.path) or e.path.split("/")[0] == relocate.OWN:
            yield f"the path {e.path!r} leads outside"
        if e.path in kinds:
            yield f"{e.path} is there twice"
        parent = posixpath.dirname(e.path)
        if parent and kinds.get(parent) != "dir":
            yield f"{e.path} does not lie in a directory of the archive"
        # Not "a/..": a may be a link, and what lies above its target is anywhere.
        is_normal = posixpath.normpath(e.target) == e.target
        if e.kind == "link" and not (is_normal and _is_inside(posixpath.normpath(posixpath.join(parent, e.target)), top=True)):
            yield f"the link {e.path} leads outside, to {e.target!r}"
        if e.kind == "hard" and kinds.get(e.target) != "file":
            yield f"the hard link {e.path} leads to {e.target!r}, which is no file before it"
        if e.size < 0 or (e.size and e.kind != "file") or e.mode & ~0o777:
            yield f"{e.path} has a size or mode that it cannot have"
        kinds[e.path] = e.kind
    yield from (f"{p} is to be rewritten and is no file" for p in manifest.places if kinds.get(p) not in ("file", "hard"))
    if len(manifest.moves) > _MOST_MOVES:
        yield f"{len(manifest.moves):,} old places are more than an environment has"
    yield from (f"the old prefix {old!r} is not a path, or is moved to {new!r}" for old, new in manifest.moves if not _is_move(old, new))
    for source in manifest.sources:
        if kinds.get(source.path) != "dir":
            yield f"the sources of {source.name} are not in it"
    if manifest.python.interpreter is not None and kinds.get(manifest.python.interpreter) != "file":
        yield f"the interpreter {manifest.python.interpreter} is not in it"


def _is_move(old: str, new: str) -> bool:
    return 1 < len(old) < _PATH_CHARS and old.startswith("/") and posixpath.normpath(old) == old and (new == "" or _is_inside(new))


def _is_inside(path: str, *, top: bool = False) -> bool:
    """Whether a path is relative, normal, and stays below the prefix; `top`: or is the prefix."""
    return (
        (top or path != ".")
        and bool(path)
        and "\0" not in path
        and posixpath.normpath(path) == path
        and path[0] != "/"
        and path.split("/")[0] != ".."
    )
