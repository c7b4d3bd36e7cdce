"""Puts an archive in its place, complete or not there at all; before a byte is written, whether it can live on this host at that path."""

from __future__ import annotations

import contextlib
import os
import platform
import posixpath
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec

from unhang.errors import UnhangError
from unhang.facts.host import Host
from unhang.facts.libraries import number
from unhang.i18n import msg
from unhang.knowledge.cause import cause
from unhang.knowledge.causes import driver_too_old
from unhang.knowledge.commands import command
from unhang.model import HostFinding, Remedy, frozen
from unhang.pack import archive, manifest, relocate
from unhang.pack.files import OnProgress, no_progress
from unhang.pack.manifest import Manifest
from unhang.pack.packer import cpu_flags

_AREA = "place"
# Directories, inodes and half-filled blocks.
_PER_ENTRY_BYTES = 4096


@frozen
class Target:
    """What a host is to an environment. `free_inodes` is None where they are not counted; what could not be asked for is None, too."""

    machine: str
    glibc: str | None
    free_bytes: int
    free_inodes: int | None
    driver: str | None
    cpu_flags: tuple[str, ...]


def this_host(directory: Path, manifest: Manifest) -> Target:
    """`directory` is where the environment shall lie. The driver is asked for only if torch is for CUDA. Raises OSError."""
    host = Host()
    space = host.space(str(directory))
    gpus = None
    if manifest.torch is not None and manifest.torch.cuda is not None:
        from unhang.facts import gpu, snapshot

        gpus = snapshot.take(host, only=(gpu.SUBJECT.id,)).get(gpu.SUBJECT)
    return Target(
        machine=platform.machine(),
        glibc=platform.libc_ver()[1] or None,
        free_bytes=space.free_bytes,
        free_inodes=space.free_inodes if space.inodes else None,
        driver=(gpus.driver or gpus.nvml_driver) if gpus is not None else None,
        cpu_flags=cpu_flags(host.read("/proc/cpuinfo")),
    )


def preflight(manifest: Manifest, dest: str, host: Target, *, needs_bytes: int) -> Iterator[HostFinding]:
    """Errors mean that it cannot work at `dest` on this host; warnings that a part of it may not."""
    if manifest.machine != host.machine:
        yield cause("arch-not-in-build").host_finding(
            area=_AREA,
            severity="error",
            says=msg("the environment is for {machine}, and this host is {here}", machine=manifest.machine, here=host.machine),
            leads_to=msg("its Python does not start: Exec format error"),
            remedies=(),
        )
        return
    has = host.glibc
    if manifest.glibc is not None and number(has or "") < number(manifest.glibc):
        yield cause("library-link").host_finding(
            area=_AREA,
            severity="error",
            says=msg(
                "libraries of the environment ask for glibc {glibc}, and this host has {version}",
                glibc=manifest.glibc,
                version=has or msg("none", "glibc"),
            ),
            leads_to=msg("they do not load: version `GLIBC_{glibc}' not found", glibc=manifest.glibc),
            remedies=("newer-runtime",),
        )
    old = min((path for path, new in manifest.moves if not new), key=len, default=manifest.prefix)
    longer = len(os.fsencode(dest)) > len(os.fsencode(old))
    if longer and (fixed := [p for p, how in manifest.places.items() if how == "binary"]):
        yield cause("env-relocation").host_finding(
            area=_AREA,
            severity="error",
            says=msg(
                "{fixed} binary files hold the path {old}, and have no room for the longer {dest}: {first}",
                fixed=len(fixed),
                old=old,
                dest=dest,
                first=fixed[0],
            ),
            leads_to=msg("programs look for their files at the old place"),
            remedies=(),
        )
    yield from _space(manifest, dest, host, needs_bytes)
    yield from _driver(manifest, host)
    if lacking := sorted(set(manifest.cpu_flags) - set(host.cpu_flags)):
        yield cause("arch-not-in-build").host_finding(
            area=_AREA,
            severity="note",
            says=msg("this CPU lacks {lacking} of the one that packed", lacking=", ".join(lacking)),
            leads_to=msg("extensions that were compiled there for that very CPU end with Illegal instruction; wheels from an index do not"),
            remedies=(),
        )


def _space(manifest: Manifest, dest: str, host: Target, needs_bytes: int) -> Iterator[HostFinding]:
    n = len(manifest.entries)
    needs = needs_bytes + n * _PER_ENTRY_BYTES
    lacks_inodes = host.free_inodes is not None and host.free_inodes < n
    if lacks_inodes or host.free_bytes < needs:
        free = f"{host.free_inodes} inodes" if lacks_inodes else f"{host.free_bytes / 1e9:.1f} GB"
        wants = f"{n} inodes" if lacks_inodes else f"{needs / 1e9:.1f} GB"
        directory = posixpath.dirname(dest)
        found = cause("disk-full").host_finding(
            area=_AREA,
            severity="error",
            says=msg("{directory} has {free} free, and the environment takes {wants}", directory=directory, free=free, wants=wants),
            leads_to=msg("unpacking ends with No space left on device"),
            remedies=(),
        )
        says = msg("See what fills it, or choose another place.")
        look = command("df -h {path:path}; df -i {path:path}", path=directory)
        yield replace(found, remedies=(Remedy(id="what-fills-it", says=says, command=look),))


def _driver(manifest: Manifest, host: Target) -> Iterator[HostFinding]:
    if manifest.torch is None or manifest.torch.cuda is None:
        return
    driver = host.driver
    minimum = driver_too_old.oldest_driver(manifest.torch.cuda)
    # Jetson's drivers (35, 540 on Tegra) are counted otherwise.
    if driver is not None and minimum is not None and (100,) <= number(driver) < number(minimum):
        yield cause("driver-too-old").host_finding(
            area=_AREA,
            severity="warning",
            says=msg(
                "torch {version} is for CUDA {cuda}, which needs driver {minimum} or newer; this host has {driver}",
                version=manifest.torch.version,
                cuda=manifest.torch.cuda,
                minimum=minimum,
                driver=driver,
            ),
            leads_to=msg("CUDA does not start on this host"),
            remedies=("upgrade-the-driver", "older-cuda-build"),
        )


@frozen
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
        taken = dest.is_symlink() or (any(dest.iterdir()) if dest.is_dir() else dest.exists())
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
