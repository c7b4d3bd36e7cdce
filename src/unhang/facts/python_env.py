"""The Python environments: which one answers on the PATH, what is broken in it, and what from elsewhere gets in between.

The training's environment is the one of the first `python` on the PATH; unhang may live in another (pipx, its own venv). No interpreter is started,
except where a `python` on the PATH is a wrapper that alone knows what it starts.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from unhang.facts import distributions, paths
from unhang.facts.distributions import Lead
from unhang.facts.host import Host, NotHere, Subject
from unhang.facts.paths import Fault
from unhang.i18n import NOTHING, Text, msg, same
from unhang.model import frozen

Kind = Literal["venv", "conda", "system", "installation"]

LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "llamafactory-cli")
_PYTHONS = ("python", "python3")
_NAMES = (*_PYTHONS, *LAUNCHERS, "pip")
# What a training is made of; that a user's own `requests` comes before the system's is as it should be.
# fmt: off
TRAINING = frozenset((
    "torch", "torchvision", "torchaudio", "triton", "numpy", "accelerate", "deepspeed", "transformers", "tokenizers", "datasets", "peft", "trl",
    "llamafactory", "lightning", "pytorch-lightning", "flash-attn", "xformers", "bitsandbytes", "apex", "transformer-engine", "megatron-core",
    "vllm", "ray", "safetensors", "huggingface-hub",
))
# fmt: on
_SYSTEM = ("/usr/bin", "/bin", "/usr/local/bin")
_MAX_SCRIPTS = 2000
_WRAPPER_S = 3.0
ACTIVATES = re.compile(r"""^\s*(?:export )?VIRTUAL_ENV=(?:"(/[^"$`\n]+)"|'(/[^'\n]+)'|(/[^\s"'$`]+))\s*$""", re.MULTILINE)
_VERSIONED = re.compile(r"(?:python|pypy)(3\.\d+)t?")


@frozen
class Program:
    """What a name answers on the PATH. `interpreter` runs it, out of the environment `prefix`; None where it is no script of Python.

    `shim` is what stands on the PATH where that only hands over (pyenv). `dead_links` of this name come earlier on the PATH: a shell goes past them.
    """

    name: str
    path: str
    interpreter: str | None
    prefix: str | None
    fault: Fault | None = None
    shim: str | None = None
    dead_links: tuple[str, ...] = ()


@frozen
class Script:
    """A script in an environment's bin whose interpreter is faulty, or (`prefix`) belongs to another environment."""

    path: str
    interpreter: str
    fault: Fault | None
    prefix: str | None = None


@frozen
class Shadow:
    """A package of the environment that another copy hides: `version` in `place` comes before `hidden`."""

    name: str
    version: str
    place: str
    hidden: str


@frozen
class Outline:
    """Where an environment is. `places` are all directories that it takes packages from, `own` those that belong to it or to its base."""

    prefix: str
    kind: Kind
    python: str
    target: str
    gone: bool
    version: str | None
    base: str | None
    places: tuple[str, ...]
    own: tuple[str, ...]


@frozen
class Environment:
    """One environment. `places` are its directories of packages in the order of sys.path, with PYTHONPATH and the user site where they count.

    `python_target` is where its python leads; `python_gone` says that this is not there. `recorded` is the prefix that its activate script names
    where that is another place. `packages` are its own, each with the version whose record comes first. `left_behind` are versions of Python whose
    packages it holds, none of them the version that it runs. `scripts` is how many were looked at.
    """

    prefix: str
    kind: Kind
    python: str
    python_target: str | None
    python_gone: bool
    version: str | None
    base: str | None
    recorded: str | None
    places: tuple[str, ...]
    packages: Mapping[str, str]
    scripts: int
    broken_scripts: tuple[Script, ...]
    foreign_scripts: tuple[Script, ...]
    editables_gone: tuple[Lead, ...]
    lines_gone: tuple[Lead, ...]
    duplicates: Mapping[str, tuple[str, ...]]
    shadows: tuple[Shadow, ...]
    left_behind: tuple[str, ...]


@frozen
class PythonEnv:
    """`training` is the environment that trainings start from, `chosen_by` what says so. `own` is unhang's, None where it is the same one.

    `virtual_env` and `conda_prefix` are what seems to be activated, links followed; conda's base does not count. `python_home_wrong` says that
    PYTHONHOME holds no standard library for that Python.
    """

    programs: tuple[Program, ...]
    chosen_by: str
    training: Environment
    own: Environment | None
    virtual_env: str | None
    conda_prefix: str | None
    user_site: str | None
    python_path: tuple[str, ...]
    python_home: str | None
    python_home_wrong: bool
    unread: tuple[str, ...] = ()

    def program(self, name: str) -> Program | None:
        return next((p for p in self.programs if p.name == name), None)

    @property
    def environments(self) -> tuple[Environment, ...]:
        """The training's, and unhang's own where that holds torch too: `unhang run` then starts trainings with it."""
        return (self.training, *((self.own,) if self.own is not None and "torch" in self.own.packages else ()))


def collect(host: Host) -> PythonEnv:
    """Raises NotHere where no Python can be found."""
    looking = _Looking(host)
    programs = tuple(p for name in _NAMES if (p := looking.program(name)) is not None)
    chosen, own, chosen_by = looking.chosen(programs)
    training = looking.environment(chosen)
    home = host.environ.get("PYTHONHOME") or None
    return PythonEnv(
        programs=programs,
        chosen_by=chosen_by,
        training=training,
        own=looking.environment(own) if own is not None else None,
        virtual_env=looking.activated("VIRTUAL_ENV"),
        conda_prefix=looking.activated("CONDA_PREFIX"),
        user_site=looking.user_site(training.version),
        python_path=looking.python_path,
        python_home=home,
        python_home_wrong=home is not None and training.version is not None and _without_library(host, home, _minor(training.version)),
        unread=tuple(looking.unread),
    )


def outlines(host: Host) -> tuple[Outline, ...]:
    """The training's environment, and unhang's own where that is another one: where they look for packages, and no more. Raises as `collect` does."""
    looking = _Looking(host)
    chosen, own, _ = looking.chosen([p for name in _PYTHONS if (p := looking.program(name)) is not None])
    return (chosen, own) if own is not None else (chosen,)


class _Looking:
    """Looks things up on one machine, interpreters that many scripts share only once."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._limit = paths.shebang_limit(host)
        self._prefixes: dict[str, str] = {}
        self.unread: list[str] = []
        self.python_path = tuple(p for p in host.environ.get("PYTHONPATH", "").split(":") if p.startswith("/"))

    # What answers on the PATH

    def program(self, name: str) -> Program | None:
        dead: list[str] = []
        for directory in self._host.environ.get("PATH", "").split(":"):
            path = f"{directory.rstrip('/')}/{name}"
            if not directory.startswith("/"):
                continue
            if paths.is_file(self._host, path) and self._runs(path):
                if "pyenv" in (start := paths.text(self._host, path, size_bytes=1000)) and start.startswith("#!") and directory.endswith("/shims"):
                    handed = self._pyenv(directory.rstrip("/").rpartition("/")[0], name)
                    if handed is None:
                        continue
                    return self._told(name, handed, shim=path, dead=dead)
                return self._told(name, path, shim=None, dead=dead)
            if self._dead(path):
                dead.append(path)
        return None if not dead else Program(name=name, path=dead[0], interpreter=None, prefix=None, fault="gone", dead_links=tuple(dead))

    def _runs(self, path: str) -> bool:
        return bool(self._host.path(paths.real(self._host, path)).stat().st_mode & 0o111)

    def _dead(self, path: str) -> bool:
        try:
            self._host.link(path)
        except (OSError, ValueError):
            return False
        return paths.missing(self._host, path)

    def _told(self, name: str, path: str, *, shim: str | None, dead: Sequence[str]) -> Program:
        interpreter, fault = (path, None) if name in _PYTHONS else self._interpreter(path)
        if name in _PYTHONS and self._wraps(path):
            shim, interpreter = path, self._asked(path)
        return Program(
            name=name,
            path=path,
            interpreter=interpreter,
            prefix=self.prefix(interpreter) if interpreter is not None and fault is None else None,
            fault=fault,
            shim=shim,
            dead_links=tuple(dead),
        )

    def _interpreter(self, path: str) -> tuple[str | None, Fault | None]:
        found = paths.shebang(self._host, path, at_most=self._limit)
        if found is None or not found.interpreter.rpartition("/")[2].startswith(("python", "pypy")):
            return None, None
        if "/" in found.interpreter or found.fault is not None:
            return found.interpreter, found.fault
        answers = self.program(found.interpreter)
        return (answers.interpreter, answers.fault) if answers is not None else (found.interpreter, "gone")

    def _pyenv(self, root: str, name: str) -> str | None:
        """What a pyenv shim would start."""
        # A package of a distribution stands elsewhere.
        for pyenv in (f"{root}/bin/pyenv", "pyenv"):
            with contextlib.suppress(OSError):
                ran = self._host.run([pyenv, "which", name], timeout_s=_WRAPPER_S)
                return ran.out.strip() if ran.exitcode == 0 else None
        return None

    def _wraps(self, path: str) -> bool:
        target = paths.real(self._host, path)
        return not target.rpartition("/")[2].startswith(("python", "pypy")) or paths.head(self._host, target, size_bytes=2) == b"#!"

    def _asked(self, path: str) -> str | None:
        try:
            ran = self._host.run([path, "-I", "-c", "import sys; print(sys.executable)"], timeout_s=_WRAPPER_S)
        except OSError:
            ran = None
        if ran is None or ran.exitcode or not ran.out.strip().startswith("/"):
            self.unread.append(f"what {path} starts, which is a wrapper")
            return None
        return ran.out.strip().splitlines()[-1]

    def training(self, programs: Sequence[Program]) -> tuple[str | None, str]:
        """The python that trainings start with, and what says so."""
        for program in programs:
            if program.name in _PYTHONS:
                # A shell goes past a link that leads nowhere, to a Python that nobody meant.
                dead = next((d for d in program.dead_links if self._home_of(d.rpartition("/")[0]) is not None), None)
                if dead is not None:
                    return dead, f"{program.name} on the PATH"
                if program.interpreter is not None:
                    return program.interpreter, f"{program.name} on the PATH"
        for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
            prefix = self._host.environ.get(name, "").rstrip("/")
            if prefix.startswith("/"):
                return f"{prefix}/bin/python", name
        return None, ""

    def activated(self, name: str) -> str | None:
        """What an activate script says of itself. conda's base is active in every shell that ever saw conda, and tells nothing."""
        prefix = self._host.environ.get(name, "")
        if not prefix.startswith("/") or (name == "CONDA_PREFIX" and not paths.missing(self._host, f"{prefix}/condabin")):
            return None
        return paths.real(self._host, prefix)

    # One environment

    def _home_of(self, directory: str) -> str | None:
        """The environment that a bin directory belongs to, where something there says so."""
        above = directory.rpartition("/")[0]
        marks = ((directory, "pyvenv.cfg"), (above, "pyvenv.cfg"), (above, "conda-meta"))
        return next((p for p, mark in marks if not paths.missing(self._host, f"{p}/{mark}")), None)

    def prefix(self, python: str) -> str:
        """sys.prefix of an interpreter: pyvenv.cfg beside it or above it, before links are followed; else where it really stands."""
        if python not in self._prefixes:
            directory = python.rpartition("/")[0]
            target = paths.real(self._host, python)
            own = paths.is_file(self._host, f"{directory}/pyvenv.cfg") or paths.is_file(self._host, f"{directory}/../pyvenv.cfg")
            place = self._home_of(directory) if own else None
            self._prefixes[python] = paths.real(self._host, place) if place else target.rpartition("/")[0].rpartition("/")[0] or "/"
        return self._prefixes[python]

    def chosen(self, programs: Sequence[Program]) -> tuple[Outline, Outline | None, str]:
        """The training's environment, unhang's own where that is another one, and what chose the first."""
        python, chosen_by = self.training(programs)
        own = sys.executable if self._host.is_live else None
        if python is None:
            if own is None:
                raise NotHere("no python on the PATH, and neither VIRTUAL_ENV nor CONDA_PREFIX is set")
            python, chosen_by = own, "unhang"
        training = self.outline(python)
        beside = None if own is None or paths.same(self._host, self.prefix(own), training.prefix) else self.outline(own)
        return training, beside, chosen_by

    def outline(self, python: str) -> Outline:
        host = self._host
        gone = paths.missing(host, python)
        prefix = paths.real(host, python.rpartition("/")[0].rpartition("/")[0]) if gone else self.prefix(python)
        target = paths.real(host, python)
        # pyvenv.cfg; None where there is none.
        text = paths.text(host, f"{prefix}/pyvenv.cfg")
        lines = (line.partition("=") for line in text.splitlines())
        found = {key.strip().lower(): value.strip() for key, sign, value in lines if sign}
        config = found or None
        kind: Kind = "system" if prefix in ("/usr", "/usr/local") else "installation"
        if config is not None:
            kind = "venv"
        elif not paths.missing(host, f"{prefix}/conda-meta"):
            kind = "conda"
        version = self._version(prefix, target, config or {}, gone)
        minor = _minor(version) if version is not None else None
        base = target.rpartition("/")[0].rpartition("/")[0] if config is not None and not gone else None
        shared = base if config is not None and config.get("include-system-site-packages", "").lower() == "true" else None
        own = tuple(self._places(prefix, minor, gone))
        user = self.user_site(version) if config is None or shared is not None else None
        # In a venv its own packages come before the user's, which come before those of the base.
        order = (user, *own) if config is None else (*own, user, *(self._places(shared, minor, gone) if shared else ()))
        places = tuple(dict.fromkeys(p for p in (*self.python_path, *order) if p is not None and not paths.missing(host, p)))
        return Outline(
            prefix=prefix,
            kind=kind,
            python=python,
            target=target,
            gone=gone,
            version=version,
            base=base,
            places=places,
            own=tuple(p for p in places if p not in self.python_path and p != user),
        )

    def environment(self, at: Outline) -> Environment:
        host = self._host
        listed = {place: paths.names(host, place) for place in at.places}
        known = {place: distributions.installed(listed[place]) for place in at.places}
        leads = [distributions.leads_nowhere(host, place, listed[place]) for place in at.own]
        scripts, broken, foreign = self._scripts(at.prefix, at.kind)
        activate = ACTIVATES.search(paths.text(host, f"{at.prefix}/bin/activate")) if at.kind == "venv" else None
        recorded = next((g for g in activate.groups() if g), None) if activate is not None else None
        return Environment(
            prefix=at.prefix,
            kind=at.kind,
            python=at.python,
            python_target=at.target if at.target != at.python else None,
            python_gone=at.gone,
            version=at.version,
            base=at.base,
            recorded=None if recorded is None or paths.same(host, recorded, at.prefix) else recorded,
            places=at.places,
            packages={name: versions[0] for place in reversed(at.own) for name, versions in known[place].items()},
            scripts=scripts,
            broken_scripts=broken,
            foreign_scripts=foreign,
            editables_gone=tuple(e for editables, _ in leads for e in editables),
            lines_gone=tuple(line for _, lines in leads for line in lines),
            duplicates={n: v for place in at.own for n, v in known[place].items() if len(v) > 1},
            shadows=tuple(_shadows(known, [p for p in at.places if p not in at.own], at.own)),
            left_behind=self._left_behind(at.prefix, at.version) if at.kind == "venv" and not at.gone else (),
        )

    def _version(self, prefix: str, target: str, config: Mapping[str, str], gone: bool) -> str | None:
        said = re.match(r"3\.\d+(?:\.\d+)?", config.get("version") or config.get("version_info") or "")
        named = _VERSIONED.fullmatch(target.rpartition("/")[2])
        if named is None and not gone:
            base = target.rpartition("/")[0].rpartition("/")[0]
            alike = [m[1] for n in paths.names(self._host, f"{base}/lib") if (m := _VERSIONED.fullmatch(n)) and self._is_library(f"{base}/lib/{n}")]
            found = alike[0] if len(alike) == 1 else None
        else:
            found = named[1] if named is not None else None
        if found is None:
            return said[0] if said is not None else None
        return said[0] if said is not None and _minor(said[0]) == found else found

    def _is_library(self, directory: str) -> bool:
        return paths.is_file(self._host, f"{directory}/os.py")

    def _places(self, prefix: str, minor: str | None, gone: bool) -> Iterator[str]:
        """Directories of packages below a prefix; those of any Python where it is not known which one it has."""
        for version in self._versions(prefix) if gone and minor is None else [minor] if minor is not None else []:
            if prefix == "/usr":
                yield f"/usr/local/lib/python{version}/dist-packages"
                yield "/usr/lib/python3/dist-packages"
                yield f"/usr/local/lib/python{version}/site-packages"
            yield f"{prefix}/lib/python{version}/site-packages"
            if not paths.same(self._host, f"{prefix}/lib", f"{prefix}/lib64"):
                yield f"{prefix}/lib64/python{version}/site-packages"

    def user_site(self, version: str | None) -> str | None:
        """The user's own packages for this Python, where they exist and count."""
        base = self._host.environ.get("PYTHONUSERBASE") or (f"{home}/.local" if (home := self._host.environ.get("HOME", "")).startswith("/") else "")
        if version is None or not base.startswith("/") or self._host.environ.get("PYTHONNOUSERSITE"):
            return None
        place = f"{base.rstrip('/')}/lib/python{_minor(version)}/site-packages"
        return None if paths.missing(self._host, place) else place

    def _scripts(self, prefix: str, kind: Kind) -> tuple[int, tuple[Script, ...], tuple[Script, ...]]:
        """How many scripts of Python there are, those that cannot start, and launchers that another environment's interpreter would run."""
        # An installation brings scripts that name wherever it was built, and shares its bin with others.
        names = paths.names(self._host, f"{prefix}/bin")[:_MAX_SCRIPTS] if kind in ("venv", "conda") else LAUNCHERS
        count = 0
        broken: list[Script] = []
        foreign: list[Script] = []
        for name in names:
            path = f"{prefix}/bin/{name}"
            found = paths.shebang(self._host, path, at_most=self._limit)
            program = found.interpreter.rpartition("/")[2] if found is not None else ""
            if found is None or not program.startswith(("python", "pypy")):
                continue
            count += 1
            if found.fault is None and "/" not in found.interpreter:
                continue
            # Written so by its authors, not for this environment.
            if found.interpreter.rpartition("/")[0] in _SYSTEM and name not in LAUNCHERS:
                continue
            if found.fault is not None:
                broken.append(Script(path=path, interpreter=found.interpreter, fault=found.fault))
            elif name in (*LAUNCHERS, "pip") and not paths.same(self._host, other := self.prefix(found.interpreter), prefix):
                foreign.append(Script(path=path, interpreter=found.interpreter, fault=None, prefix=other))
        return count, tuple(broken), tuple(foreign)

    def _versions(self, prefix: str) -> list[str]:
        """Of Python, that a prefix has a library directory for."""
        return [m[1] for n in paths.names(self._host, f"{prefix}/lib") if (m := _VERSIONED.fullmatch(n))]

    def _left_behind(self, prefix: str, version: str | None) -> tuple[str, ...]:
        held = [
            v
            for v in self._versions(prefix)
            if any(n.endswith(".dist-info") for n in paths.names(self._host, f"{prefix}/lib/python{v}/site-packages"))
        ]
        return tuple(held) if version is not None and held and _minor(version) not in held else ()


def _shadows(known: Mapping[str, Mapping[str, tuple[str, ...]]], outside: Sequence[str], inside: Sequence[str]) -> Iterator[Shadow]:
    order = list(known)
    for place in outside:
        for name, versions in known[place].items():
            hidden = next((known[p][name][0] for p in inside if order.index(p) > order.index(place) and name in known[p]), None)
            if hidden is not None and hidden != versions[0] and (name in TRAINING or name.startswith("nvidia-")):
                yield Shadow(name=name, version=versions[0], place=place, hidden=hidden)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _without_library(host: Host, home: str, minor: str) -> bool:
    prefix = home.partition(":")[0].rstrip("/")
    library = (f"{prefix}/lib/python{minor}/encodings", f"{prefix}/lib64/python{minor}/encodings", f"{prefix}/lib/python{minor.replace('.', '')}.zip")
    return all(paths.missing(host, p) for p in library)


_KINDS: Mapping[Kind, Text] = {
    "venv": same("venv"),
    "conda": same("conda"),
    "system": msg("system", "python_env"),
    "installation": msg("installation"),
}
_CHOSEN_BY = {f"{name} on the PATH": msg("{name} on the PATH", name=name) for name in _PYTHONS}


def _summary(seen: PythonEnv) -> Text:
    env = seen.training
    torch = env.packages.get("torch")
    told = msg(
        "{kind} {prefix}, Python {version} ({chosen}), {n} packages, {torch}",
        kind=_KINDS[env.kind],
        prefix=env.prefix,
        version=env.version or msg("of unknown version"),
        chosen=_CHOSEN_BY.get(seen.chosen_by, same(seen.chosen_by)),
        n=len(env.packages),
        torch=f"torch {torch}" if torch else msg("no torch"),
    )
    if seen.own is not None:
        own = seen.own.packages.get("torch")
        beside = msg(" with torch {version}", version=own) if own is not None else NOTHING
        told += msg("; unhang itself lives in {prefix}{beside}", prefix=seen.own.prefix, beside=beside)
    return told


SUBJECT = Subject(id="python_env", title=msg("Python environment", "title"), facts=PythonEnv, collect=collect, summary=_summary)
