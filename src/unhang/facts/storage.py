"""Storage: the file systems of the paths that a training needs, their room, and whether they answer.

Every path is asked by itself, within a bound: a server of a network file system that is gone holds up whoever asks, for ever.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from stat import S_ISDIR
from typing import Any

from unhang.facts.host import Asking, Host, Space, Subject
from unhang.i18n import COMMA, NOTHING, Text, joined, msg
from unhang.model import frozen
from unhang.text import size

_ANSWERS_S = 1.5
# As much of a checkpoint as tells how fast the rest would be; a page cache takes some hundred megabytes at once and has to be written out, too.
_WRITTEN_BYTES = 1024**3
_WRITING_S = 3.0
_LEAST_BYTES = 16 * 1024**2
# What was written in that time has to reach the disk.
_WRITTEN_OUT_S = 60.0
NETWORK = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "wekafs",
    "fuse.s3fs",
    "fuse.gcsfuse",
    "fuse.sshfs",
    "9p",
    "afs",
)


@frozen
class Place:
    """A path that a training needs, and what for. `path` is where it is, or would be made: `exists` says which, None where it is behind a
    directory that is closed to us.

    `mount`, `kind`, `device` and `options` are its file system's. `problem` is why it could not be asked: "stale", "does not answer", or the system's
    word; then `space` is None. `writable` is whether we may write there (where it does not exist: into the first directory above that does).
    `is_directory` is None where that cannot be told. `written_bytes_per_s` is how fast a new file reached the disk, where that was asked for.
    """

    path: str
    purpose: str
    exists: bool | None
    is_directory: bool | None = None
    mount: str | None
    kind: str | None
    device: str | None
    options: tuple[str, ...]
    space: Space | None
    writable: bool | None
    problem: str | None
    written_bytes_per_s: float | None = None


@frozen
class Storage:
    """One entry for each path, in the order of their purposes."""

    places: tuple[Place, ...]
    unread: tuple[str, ...] = ()


def collect(host: Host) -> Storage:
    """Raises OSError where there is no /proc/mounts."""
    known = mounts(host)
    unread: list[str] = []
    asked = []
    for path, purpose in _paths(host, host.environ.get("HOME") or _home(host, unread)):
        seen: dict[str, Any] = {"exists": None, "space": None, "writable": None, "problem": None}
        asked.append((path, purpose, seen, Asking(partial(_look, host, path, seen), timeout_s=_ANSWERS_S)))
    places = []
    for path, purpose, seen, asking in asked:
        point = mount_of(path, known)
        mount = known[point] if point is not None else Mount()
        try:
            asking.answer()
        except TimeoutError:
            seen["problem"] = "does not answer"
        places.append(
            Place(
                path=path,
                purpose=purpose,
                mount=point,
                kind=mount.kind,
                device=mount.device,
                options=mount.options,
                **seen,
            )
        )
    unread += [f"the space of {p.path}" for p in places if p.space is None and p.problem is None]
    if host.writes_are_timed:
        places = list(_timed(host, places, unread))
    return Storage(places=tuple(places), unread=tuple(unread))


def _timed(host: Host, places: list[Place], unread: list[str]) -> Iterator[Place]:
    """One after another, since several on one disk would slow each other down: those that were named, else the working directory."""
    purpose = "checkpoints" if host.places else "working directory"
    for place in places:
        if purpose not in place.purpose or place.space is None:
            yield place
            continue
        speed = None
        try:
            speed = Asking(partial(_write_speed, host, place.path, place.space), timeout_s=_WRITING_S + _WRITTEN_OUT_S).answer()
        except OSError as e:
            unread.append(f"the speed of writing to {place.path} ({e.strerror or e})")
        yield replace(place, written_bytes_per_s=speed)


def _write_speed(host: Host, path: str, space: Space) -> float:
    room = min(_WRITTEN_BYTES, space.free_bytes // 4)
    if room < _LEAST_BYTES:
        raise OSError("too little room")
    return host.write_speed(path, at_most_bytes=room, at_most_s=_WRITING_S)


def _look(host: Host, path: str, seen: dict[str, Any]) -> None:
    """What is seen of a place goes into `seen` at once: the next question may never be answered."""
    try:
        mode = _mode(host, path)
        seen |= {"exists": mode is not None, "is_directory": mode is not None and S_ISDIR(mode)}
        nearest = path
        while nearest != "/" and _mode(host, nearest) is None:
            nearest = str(PurePosixPath(nearest).parent)
        seen["writable"] = os.access(host.path(nearest), os.W_OK)
        seen["space"] = host.space(nearest)
    except FileNotFoundError:
        return
    except PermissionError:
        # Closed to us on the way there: nothing is the matter with the file system.
        seen["writable"] = False
    except OSError as e:
        seen["problem"] = "stale" if e.errno == errno.ESTALE else e.strerror or str(e)


def _mode(host: Host, path: str) -> int | None:
    """None where nothing is there. From Python 3.14 on Path.exists denies what is closed to us, too."""
    try:
        return host.path(path).stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _paths(host: Host, home: str | None) -> Iterator[tuple[str, str]]:
    """Each path once, with what it is for."""
    e = host.environ
    cache = e.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else None)
    cwd = str(Path.cwd()) if host.is_live else e.get("PWD", "/")
    said = [
        (cwd, "working directory"),
        *((path, "checkpoints") for path in host.places),
        (e.get("TMPDIR") or "/tmp", "temporary files"),
        (e.get("HF_HOME") or (f"{cache}/huggingface" if cache else ""), "Hugging Face cache"),
        (e.get("TORCH_HOME") or (f"{cache}/torch" if cache else ""), "torch cache"),
        (e.get("TRITON_CACHE_DIR") or (f"{home}/.triton/cache" if home else ""), "Triton cache"),
    ]
    if "HF_DATASETS_CACHE" in e:
        said.append((e["HF_DATASETS_CACHE"], "data set cache"))
    if "TORCHINDUCTOR_CACHE_DIR" in e:
        said.append((e["TORCHINDUCTOR_CACHE_DIR"], "TorchInductor cache"))
    purposes: dict[str, list[str]] = {}
    for path, purpose in said:
        if not path or (path.startswith("~/") and not home):
            # Where that is nobody knows: it depends on the user's home.
            continue
        whole = f"{home}/{path[2:]}" if path.startswith("~/") else path if path.startswith("/") else f"{cwd}/{path}"
        # POSIX lets two slashes at the beginning mean something else, and normpath keeps them.
        purposes.setdefault("/" + os.path.normpath(whole).lstrip("/"), []).append(purpose)
    yield from ((path, ", ".join(dict.fromkeys(p))) for path, p in purposes.items())


def purpose(said: str) -> Text:
    """What a place is for."""
    return joined((msg(one) for one in said.split(", ")), COMMA)


def _home(host: Host, unread: list[str]) -> str | None:
    """Where libraries look for the home of a user whose environment names none; None where there is none, or nobody says within the bound."""
    if not host.is_live:
        return None
    try:
        home = Asking(lambda: pwd.getpwuid(os.getuid()).pw_dir, timeout_s=_ANSWERS_S).answer()
    except KeyError:
        return None
    except TimeoutError:
        unread.append("the home of this user (the user database does not answer)")
        return None
    with contextlib.suppress(TimeoutError):
        return home if Asking(partial(_is_home, home), timeout_s=_ANSWERS_S).answer() else None
    # That it does not answer is said of each path in it.
    return home


def _is_home(path: str) -> bool:
    try:
        return S_ISDIR(Path(path).stat().st_mode)
    except OSError as e:
        # A stale one is there, and to be told of.
        return isinstance(e, PermissionError) or e.errno == errno.ESTALE


@dataclass(frozen=True)
class Mount:
    kind: str | None = None
    device: str | None = None
    options: tuple[str, ...] = ()


def mounts(host: Host) -> dict[str, Mount]:
    """By mount point; of several on one point the last, which covers the others. Raises OSError where there is no /proc/mounts."""
    found = {}
    for line in host.read("/proc/mounts").splitlines():
        fields = line.split()
        if len(fields) >= 4:
            # Blanks are written as \040.
            device, point = (f.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\") for f in fields[:2])
            found[point] = Mount(fields[2], device, tuple(fields[3].split(",")))
    return found


def mount_of(path: str, mounts: Mapping[str, Mount]) -> str | None:
    """The mount point that a path lies below."""
    while path not in mounts and path != "/":
        path = str(PurePosixPath(path).parent)
    return path if path in mounts else None


def _summary(storage: Storage) -> Text:
    seen: dict[str | None, Text] = {}
    for place in storage.places:
        if place.space is not None and place.mount not in seen:
            kind = msg(" ({kind})", kind=place.kind) if place.kind else NOTHING
            seen[place.mount] = msg("{free} free on {at}{kind}", free=size(place.space.free_bytes), at=place.mount or place.path, kind=kind)
    timed = [
        msg("{path} takes {speed}/s", path=p.path, speed=size(p.written_bytes_per_s)) for p in storage.places if p.written_bytes_per_s is not None
    ]
    if not seen and not timed:
        return msg("{n} paths, of none of which the space is known", n=len(storage.places))
    return joined((*seen.values(), *timed), msg(", ", "storage"))


SUBJECT = Subject(
    id="storage",
    title=msg("storage", "title"),
    facts=Storage,
    collect=collect,
    summary=_summary,
    # Timing is on request; without it nothing takes longer than those paths that do not answer.
    timeout_s=180.0,
    volatile=("free_bytes", "free_inodes", "written_bytes_per_s"),
)
