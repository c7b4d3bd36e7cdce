"""What an environment is: its kind, its Python, what is installed in it, and what of it lies elsewhere."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from unhang.errors import UnhangError
from unhang.facts.distributions import editable_source
from unhang.facts.host import Host
from unhang.facts.python_env import ACTIVATES
from unhang.knowledge.commands import command
from unhang.pack.manifest import LeftOut

_ASK_S = 60.0
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


@dataclass(frozen=True, kw_only=True)
class BasePython:
    """The Python that an environment was made with, links followed. `shared`: directories of its packages that the environment sees."""

    version: str
    abi: str
    prefix: Path
    executable: Path
    stdlib: tuple[Path, ...]
    include: Path
    shared: tuple[Path, ...]


@dataclass(frozen=True, kw_only=True)
class Editable:
    """`recorded` is `path` as it was given to pip: directories above it may be links."""

    name: str
    path: Path
    recorded: str


@dataclass(frozen=True, kw_only=True)
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
