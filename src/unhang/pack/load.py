"""Puts an archive in its place: checked before anything is written, complete or not there at all."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from unhang.errors import UnhangError
from unhang.model import HostFinding
from unhang.pack import archive, manifest, relocate
from unhang.pack.files import OnProgress, no_progress
from unhang.pack.manifest import Manifest
from unhang.pack.preflight import preflight, this_host


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """`state` is "refused" if a finding is an error: nothing was written then."""

    state: Literal["loaded", "replaced", "unchanged", "refused"]
    dest: str
    digest: str
    manifest: Manifest
    findings: tuple[HostFinding, ...]


def load(file: Path, given: Path, *, replace: bool = False, on_progress: OnProgress = no_progress) -> Loaded:
    """Raises UnhangError for archives that are damaged or hostile, and for a place that is taken; then nothing is left of it."""
    dest = given.absolute()
    dest = dest.parent.resolve() / dest.name
    with archive.opened(file) as opened, _alone(dest):
        above = next(p for p in dest.parents if p.exists())
        if not above.is_dir():
            raise UnhangError(f"{above} is no directory")
        relocate.restore(dest)
        digest = manifest.digest(opened.encoded)
        taken = dest.is_symlink() or (dest.exists() and not _is_empty(dest))
        if taken:
            if relocate.is_placed(dest, digest, msgspec.to_builtins(opened.manifest.entries)):
                return Loaded(state="unchanged", dest=str(dest), digest=digest, manifest=opened.manifest, findings=())
            # Whoever mistypes DEST loses no home directory.
            if dest.is_symlink() or not any((dest / mark).exists() for mark in ("pyvenv.cfg", "conda-meta", relocate.PLACED)):
                raise UnhangError(f"{dest} is a link, or no environment: it is not replaced", hint="another directory, or remove it yourself")
            if not replace:
                words = shlex.join(("--replace", str(file), str(given)))
                raise UnhangError(f"{dest} exists already, and is not what {file} holds", hint=f"unhang pack load {words}, or another directory")
        findings = tuple(preflight(opened.manifest, str(dest), this_host(above, opened.manifest), needs_bytes=opened.manifest.size_bytes))
        state: Literal["loaded", "replaced", "refused"] = "replaced" if taken else "loaded"
        if any(f.severity == "error" for f in findings):
            state = "refused"
        else:
            _write(opened, dest, replace=taken, on_progress=on_progress)
        return Loaded(state=state, dest=str(dest), digest=digest, manifest=opened.manifest, findings=findings)


def _write(opened: archive.Opened, dest: Path, *, replace: bool, on_progress: OnProgress) -> None:
    missing = [p for p in dest.parents if not p.exists()]
    try:
        dest.parent.mkdir(parents=True, exist_ok=True)
        with relocate.beside(dest) as new:
            opened.extract(new, on_progress)
            relocate.place(new, str(dest), opened.encoded)
            relocate.exchange(new, dest, replace=replace)
    finally:
        for made in missing:
            # What holds an environment now stays.
            with contextlib.suppress(OSError):
                made.rmdir()


@contextlib.contextmanager
def _alone(dest: Path) -> Iterator[None]:
    try:
        yield
    except BlockingIOError as e:
        raise UnhangError(f"another process is loading into {dest}", hint="wait for it, or load into another directory") from e
    except OSError as e:
        raise UnhangError(f"cannot write {dest}: {e.strerror or e}") from e


def _is_empty(dest: Path) -> bool:
    return dest.is_dir() and not any(dest.iterdir())
