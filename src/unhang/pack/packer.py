"""Takes stock of an environment, and packs it."""

from __future__ import annotations

import contextlib
import json
import platform
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from unhang import fsio
from unhang.errors import UnhangError
from unhang.facts import elf
from unhang.facts.distributions import of_torch
from unhang.facts.host import Host
from unhang.model import frozen
from unhang.pack import archive
from unhang.pack.environment import Environment, base_python, examine
from unhang.pack.files import Item, OnProgress, check_include, complete, no_progress, sources, summed, walk
from unhang.pack.manifest import LeftOut, Manifest, Python, Source, Torch
from unhang.pack.relocate import OWN, PYTHON, THREADS, How

EDITABLE, PROJECT, WHEELS = ".editable", ".project", ".wheels"
WITHOUT = frozenset(("__pycache__", OWN))
_LIBRARY = re.compile(r".*\.so(?:\.[\d.]+)?|.*/bin/python[\d.]*t?")
_PROGRAM = re.compile(r"bin/python[\d.]*t?")
# Extensions that somebody compiled for their own machine may need them.
_FLAGS = frozenset(
    ("avx", "avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512_bf16", "avx512_vnni", "amx_tile", "asimddp", "sve", "sve2", "bf16")
)
_DOWNLOAD_S = 3600.0


@frozen
class Stock:
    """An environment as it can be packed or sent: `items` are the sources of the manifest's entries, in the same order.

    `ignored` are files of projects that git ignores and that stay here. The manifest, which only changes with what travels, does not have them.
    """

    manifest: Manifest
    items: tuple[Item, ...]
    ignored: tuple[LeftOut, ...] = ()


@frozen
class Extras:
    """What travels beside an environment: projects, wheels of `requirements`, and what `include` (pathspecs) names of what git ignores in sources."""

    projects: Sequence[Path] = ()
    requirements: Path | None = None
    include: Sequence[str] = ()


@contextlib.contextmanager
def stock(prefix: Path, extras: Extras, *, without: Path | None = None, on_progress: OnProgress = no_progress) -> Iterator[Stock]:
    """Read it all, projects without one file. What is made for it is there until the context ends. Raises UnhangError."""
    with fsio.temporary_directory("pack-") as directory:
        try:
            taken = _taken(prefix, extras, without, directory, on_progress)
        except OSError as e:
            raise UnhangError(f"cannot read {e.filename or prefix}: {e.strerror or e}") from e
        yield taken


def _taken(prefix: Path, extras: Extras, without: Path | None, workshop: Path, on_progress: OnProgress) -> Stock:
    host = Host()
    env = examine(prefix, host)
    left: list[LeftOut] = list(env.strays)
    items = [*walk(env.prefix, "", inside=env.prefix, without=WITHOUT, skip=lambda e: e.path == f"{env.prefix}/{PYTHON}", leave=left.append)]
    taken, ignored = list[Source](), list[LeftOut]()
    for below, name, top in (
        *((EDITABLE, e.name, e.path) for e in env.editables),
        *((PROJECT, p.resolve().name, p.resolve()) for p in extras.projects),
    ):
        if not top.is_dir():
            raise UnhangError(f"{top} is no directory")
        # pip's own checkouts lie in the environment.
        at = str(top.relative_to(env.prefix)) if env.prefix in top.parents else f"{below}/{name}"
        source, found, stays = sources(name, top, at, host=host, without=without, include=extras.include)
        if any(source.path == other.path for other in taken):
            raise UnhangError(f"two of the directories that are taken along are called {name}", hint="rename one of them")
        taken.append(source)
        items += found
        ignored += stays
    check_include(extras.include, [source.origin for source in taken], host)
    if extras.requirements is not None:
        items += _wheels(env, extras.requirements, workshop / WHEELS, host)
    program = None
    if env.kind == "venv":
        program = f"{PYTHON}/bin/{env.python.executable.name}"
        # A link that leads to the base Python, or a copy of it.
        items = [
            replace(i, kind="link", target=f"../{program}", source=None, size=0, inode=None) if i.kind == "file" and _PROGRAM.fullmatch(i.path) else i
            for i in items
        ]
        items += base_python(env.python, host, workshop)
    whole = _with_sums(env, complete(items), host, sources=taken, left=left, program=program, on_progress=on_progress)
    return replace(whole, ignored=tuple(ignored))


def _with_sums(
    env: Environment,
    items: tuple[Item, ...],
    host: Host,
    *,
    sources: Sequence[Source],
    left: Sequence[LeftOut],
    program: str | None,
    on_progress: OnProgress,
) -> Stock:
    outside = {s.origin: s.path for s in sources if not s.origin.startswith(f"{env.prefix}/")}
    recorded = {e.recorded: outside[str(e.path)] for e in env.editables if str(e.path) in outside}
    moves = dict.fromkeys((str(env.prefix), *env.recorded), "") | outside | recorded
    # As in direct_url.json.
    moves |= {quote(old): new for old, new in moves.items()}
    read = summed(items, tuple(moves), on_progress)
    declared = _declared(env.prefix) if env.kind == "conda" else frozenset()
    places: dict[str, How] = {**read.places, **{p: "binary" for p in read.binaries if p in declared}}
    named = (LeftOut(path=p, why=f"binary, and names {env.prefix}: it is taken along as it is") for p in read.binaries if p not in declared)
    manifest = Manifest(
        prefix=str(env.prefix),
        kind=env.kind,
        machine=platform.machine(),
        glibc=_glibc(items, host),
        cpu_flags=cpu_flags(host.read("/proc/cpuinfo")),
        python=Python(version=env.python.version, abi=env.python.abi, interpreter=program),
        torch=torch(env.packages),
        distributions=env.distributions,
        sources=tuple(sources),
        moves=tuple(sorted(moves.items(), key=lambda m: (-len(m[0]), m[0]))),
        places=dict(sorted(places.items())),
        left_out=(*left, *named),
        entries=read.entries,
    )
    return Stock(manifest=manifest, items=items)


def save(
    prefix: Path, file: Path, extras: Extras, *, level: int = 3, replace: bool = False, on_progress: OnProgress = no_progress
) -> tuple[Stock, str, str]:
    """Pack an environment. Returns it, the digest of its manifest, and the archive's. Raises UnhangError, also if `file` exists, unless `replace`."""
    if not file.absolute().parent.is_dir():
        raise UnhangError(f"cannot write {file}: there is no directory {file.absolute().parent}")
    if prefix.resolve() in file.resolve().parents:
        raise UnhangError(f"{file} would lie within the environment that it holds", hint="write it elsewhere")
    if str(file) == "-" or file.is_symlink() or (file.exists() and not file.is_file()):
        raise UnhangError(f"cannot write {file}: it is no regular file", hint="write it elsewhere")
    if file.exists() and not replace:
        words = shlex.join(("--replace", str(prefix), str(file)))
        raise UnhangError(f"{file} exists already", hint=f"unhang pack save {words}, or another file")
    archive.remove_parts(file)
    # It may lie in a project.
    with stock(prefix, extras, without=file.resolve(), on_progress=lambda done, total: on_progress(done, 2 * total)) as taken:
        sums = archive.write(file, taken.manifest, taken.items, level=level, on_progress=lambda done, total: on_progress(total + done, 2 * total))
        return taken, *sums


def cpu_flags(cpuinfo: str) -> tuple[str, ...]:
    """Those that compiled extensions may need, of the text of /proc/cpuinfo."""
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    return tuple(sorted(_FLAGS & set(found[1].split()))) if found is not None else ()


def _glibc(items: Sequence[Item], host: Host) -> str | None:
    def needs(path: str) -> tuple[int, int]:
        with contextlib.suppress(OSError, ValueError):
            return elf.glibc(host, path) or (0, 0)
        return (0, 0)

    libraries = [i.source for i in items if i.kind == "file" and i.source is not None and _LIBRARY.fullmatch(i.path)]
    with ThreadPoolExecutor(THREADS) as pool:
        newest = max(pool.map(needs, libraries), default=(0, 0))
    return f"{newest[0]}.{newest[1]}" if newest > (0, 0) else None


def torch(packages: Iterable[Path]) -> Torch | None:
    """The one in these directories, by its own version.py."""
    for place in packages:
        with contextlib.suppress(OSError):
            found = of_torch((place / "torch" / "version.py").read_text())
            return Torch(version=found.get("__version__") or "unknown", cuda=found.get("cuda") or None)
    return None


def _declared(prefix: Path) -> frozenset[str]:
    """Binary files that conda has written its prefix into, and may again."""
    found: set[str] = set()
    for record in (prefix / "conda-meta").glob("*.json"):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            paths = json.loads(record.read_text()).get("paths_data", {}).get("paths", [])
            found.update(p["_path"] for p in paths if p.get("prefix_placeholder") and p.get("file_mode") == "binary")
    return frozenset(found)


def _wheels(env: Environment, requirements: Path, directory: Path, host: Host) -> Iterator[Item]:
    if not requirements.is_file():
        raise UnhangError(f"there is no file {requirements}")
    directory.mkdir()
    python = str(env.prefix / "bin" / "python")
    ran = host.run([python, "-m", "pip", "download", "--quiet", "-r", str(requirements), "-d", str(directory)], timeout_s=_DOWNLOAD_S)
    if ran.exitcode:
        raise UnhangError(f"pip cannot download what {requirements} lists: {' '.join(ran.err.split())[-300:]}")
    shutil.copyfile(requirements, directory / "requirements.txt")
    return walk(directory, WHEELS, inside=directory)
