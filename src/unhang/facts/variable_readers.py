"""The installed libraries that read variables: which release, where its files are, and the names of variables in them.

Releases come from the metadata that pip and conda leave; NCCL as torch would load it. Nothing is imported. Names that stand in files are a superset
of what the program reads. What was seen in a file is kept until the file changes. Of a shared library only its read-only data is looked at (20 MiB
of libtorch_cpu's 430): names stand there, code and GPU kernels do not. The linker merges strings with equal ends, so that a name may stand there
only as the end of a longer one.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

from unhang import fsio
from unhang.facts import distributions, elf, paths, which_nccl
from unhang.facts.host import Host
from unhang.model import frozen


@frozen
class Library:
    """`binaries` are files, `sources` directories or files of Python; both as seen on the machine. `version` is "" where it is not known."""

    id: str
    version: str
    binaries: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


# Distributions by what they are called here, with the folders of their sources.
_DISTRIBUTIONS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "torch": ("torch", ("torch",)),
    "nvidia-nccl-cu11": ("nccl", ()),
    "nvidia-nccl-cu12": ("nccl", ()),
    "nvidia-nccl-cu13": ("nccl", ()),
    "accelerate": ("accelerate", ("accelerate",)),
    "transformers": ("transformers", ("transformers",)),
    "deepspeed": ("deepspeed", ("deepspeed",)),
    "lightning": ("lightning", ("lightning",)),
    "pytorch-lightning": ("lightning", ("pytorch_lightning", "lightning_fabric")),
    "llamafactory": ("llamafactory", ("llamafactory",)),
}
# The others of torch's libraries name no variables of communication.
_OF_TORCH = re.compile(r"lib(?:torch_(?:cpu|cuda|python|hip|cuda_linalg|xpu)|torch|c10d?(?:_cuda|_hip)?|gloo\w*)\.so[\d.]*")
_OF_NCCL = re.compile(r"libnccl\.so[\d.]*")
# How the plugins that NCCL loads are asked for: several of them, of no one release.
PLUGINS = "plugins"


def installed(host: Host, site: str | None = None) -> tuple[Library, ...]:
    """What a training here would use: `site` is the site-packages of another environment. Never raises: what cannot be read is not there.

    NCCL or RCCL without a release and without files: torch uses one, and which is not known.
    """
    found: dict[str, Library] = {}
    wheels: dict[str, list[str]] = {}
    of_torch = ""
    for place in (site,) if site is not None else tuple(_sites(host)):
        for library in _in(host, place):
            if library.id == "torch" and "torch" not in found:
                of_torch = place
            if library.id == "nccl":
                wheels.setdefault(place, []).append(library.version)
            found.setdefault(library.id, library)
    if "torch" in found:
        found.pop("nccl", None)
        known = sorted(set(wheels.get(of_torch, ())))
        wheel = None if not known else known[0] if len(known) == 1 else ""
        torch = which_nccl.Place(site=of_torch, version=found["torch"].version, wheel=wheel, is_here=site is None)
        which = which_nccl.of_torch(host, torch)
    else:
        which = which_nccl.of_system(host) if "nccl" not in found and site is None else None
    if which is not None:
        id = "rccl" if which.is_rccl else "nccl"
        found[id] = Library(id=id, version=which.version, binaries=which.files)
    return tuple(found[id] for id in sorted(found))


def plugins(host: Host) -> Library | None:
    """What NCCL may load here to go over a network or to be tuned, as one library; None where there is nothing of the kind."""
    files = which_nccl.plugins(host)
    return Library(id=PLUGINS, version="", binaries=files) if files else None


def at_least(version: str, *wanted: int) -> bool:
    """Whether a release is that one or a later one; an unknown one ("") is taken for a new one."""
    return not version or tuple(int(n) for n in re.findall(r"\d+", version)[: len(wanted)]) >= wanted


def _sites(host: Host) -> Iterator[str]:
    """The environment that is active comes before the one that this program is installed in."""
    prefixes = [host.environ.get(name, "") for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    python = host.which("python3") or host.which("python")
    if python is not None:
        prefixes.append(str(PurePosixPath(python).parent.parent))
    for prefix in dict.fromkeys(p for p in prefixes if p):
        for lib in ("lib", "lib64", "local/lib"):
            for name in host.listed(f"{prefix}/{lib}"):
                if re.fullmatch(r"python3(?:\.\d+)?", name):
                    yield from (f"{prefix}/{lib}/{name}/{folder}" for folder in ("site-packages", "dist-packages"))
    if host.is_live:
        yield from dict.fromkeys([*sysconfig.get_paths().values(), *(p for p in sys.path if p.endswith("-packages"))])


def _in(host: Host, site: str) -> Iterator[Library]:
    names = host.listed(site)
    for package, versions in distributions.installed(names).items():
        if package not in _DISTRIBUTIONS:
            continue
        id, folders = _DISTRIBUTIONS[package]
        record = distributions.record(names, package)
        sources = tuple(f"{site}/{folder}" for folder in folders if paths.is_dir(host, f"{site}/{folder}")) or _editable(
            host, f"{site}/{record}", folders
        )
        binaries: tuple[str, ...] = ()
        if id == "torch":
            folders_of_torch = which_nccl.torch_folders(host, site)
            binaries = tuple(f"{d}/{f}" for d in folders_of_torch for f in host.listed(d) if _OF_TORCH.fullmatch(f))
        elif id == "nccl":
            binaries = tuple(f"{site}/nvidia/nccl/lib/{f}" for f in host.listed(f"{site}/nvidia/nccl/lib") if _OF_NCCL.fullmatch(f))
        yield from (Library(id=id, version=version, binaries=binaries, sources=sources) for version in versions)


def _editable(host: Host, metadata: str, folders: tuple[str, ...]) -> tuple[str, ...]:
    """Where `pip install -e` has left the sources."""
    root = distributions.editable_source(host.text(f"{metadata}/direct_url.json") or "")
    return tuple(path for folder in folders for path in (f"{root}/src/{folder}", f"{root}/{folder}") if root and paths.is_dir(host, path))


_CACHE = "variables-3.json"
_IN_BINARIES = (b"NCCL_", b"RCCL_", b"MSCCL", b"SHARP_", b"TORCH_", b"TORCHELASTIC_", b"GLOO_", b"TP_SOCKET", b"UCC_")
_WORD = re.compile(rb"[A-Z0-9_]*")
_WORD_BEFORE = re.compile(rb"[A-Z0-9_]*\Z")
_LONGEST = 96
_QUOTED = re.compile(rb"['\"]([A-Z][A-Z0-9_]{3,63})['\"]")
# Tests, single models and torch's compilers read nothing about communication, and are the most of all sources.
_NO_SOURCES = frozenset(
    (
        "__pycache__",
        "include",
        "share",
        "bin",
        "lib",
        "tests",
        "testing",
        "test",
        "models",
        "node_modules",
        ".git",
        "_inductor",
        "_dynamo",
        "_functorch",
        "fx",
        "ao",
        "onnx",
        "_vendor",
        "_refs",
    )
)
_BLOCK = 16 * 1024 * 1024
_ALLOCATED, _EXECUTABLE, _PROGBITS = 2, 4, 1


class _Seen(NamedTuple):
    size: int
    mtime_ns: int
    inode: int
    names: list[str]


@frozen
class Names:
    """What the files of one library hold: name to file. `whole` is False where a file could not be read."""

    binaries: Mapping[str, str]
    sources: Mapping[str, str]
    whole: bool

    def find(self, name: str) -> str | None:
        """The file that has it, "" if none has; None where not all could be read."""
        if name in self.sources:
            return self.sources[name]
        if found := next((file for word, file in self.binaries.items() if word.endswith(name)), None):
            return found
        return "" if self.whole else None


class Reader:
    """Looks into libraries, each at most once. `cache` is a folder; None keeps nothing."""

    def __init__(self, cache: Path | None) -> None:
        self._path = None if cache is None else cache / _CACHE
        self._kept: dict[str, _Seen] | None = None
        self._now: dict[str, _Seen] = {}
        self._done: dict[str, Names] = {}
        self._changed = False

    def names(self, library: Library) -> Names | None:
        """None where there is nothing to look into."""
        if not library.binaries and not library.sources:
            return None
        if library.id not in self._done:
            whole = True
            binaries: dict[str, str] = {}
            sources: dict[str, str] = {}
            for path in library.binaries:
                found = self._of_file(path)
                whole = whole and found is not None
                binaries |= dict.fromkeys(found or (), path)
            for folder in library.sources:
                for path in _python_files(folder):
                    found = self._of_file(path)
                    whole = whole and found is not None
                    for n in found or ():
                        sources.setdefault(n, path)
            self._done[library.id] = Names(binaries=binaries, sources=sources, whole=whole)
        return self._done[library.id]

    def save(self) -> None:
        """Keep what was seen; a full disk or a folder that cannot be written is no fault."""
        if self._path is None or not self._changed:
            return
        from unhang import encoding

        with contextlib.suppress(OSError):
            fsio.make_directory(self._path.parent)
            fsio.write_atomically(self._path, encoding.encode({**self._load(), **self._now}))

    def _of_file(self, path: str) -> list[str] | None:
        try:
            status = os.stat(path)  # noqa: PTH116
            kept = self._load().get(path)
            if kept is not None and (kept.size, kept.mtime_ns, kept.inode) == (status.st_size, status.st_mtime_ns, status.st_ino):
                return kept.names
            with open(path, "rb") as f:  # noqa: PTH123
                names = _in_source(f.read()) if path.endswith(".py") else _in_binary(f)
        except OSError:
            return None
        self._now[path] = _Seen(status.st_size, status.st_mtime_ns, status.st_ino, names)
        self._changed = True
        return names

    def _load(self) -> dict[str, _Seen]:
        if self._kept is None:
            import msgspec

            from unhang import encoding

            try:
                self._kept = msgspec.json.decode(self._path.read_bytes(), type=dict[str, _Seen]) if self._path is not None else {}
            except (OSError, *encoding.NOT_JSON):
                self._kept = {}
        return self._kept


def _python_files(folder: str) -> Iterator[str]:
    waiting = [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name not in _NO_SOURCES:
                            waiting.append(entry.path)
                    elif entry.name.endswith(".py"):
                        yield entry.path
        except OSError:
            continue


def _in_source(text: bytes) -> list[str]:
    return sorted({m.decode("ascii") for m in _QUOTED.findall(text) if b"_" in m or m in (b"RANK", b"NNODES", b"LOGLEVEL", b"NPROC")})


def _in_binary(file: BinaryIO) -> list[str]:
    found: set[str] = set()
    for start, size in _read_only_data(file):
        rest = b""
        file.seek(start)
        while size > 0 and (block := file.read(min(_BLOCK, size))):
            size -= len(block)
            data = rest + block
            found |= set(_words(data))
            rest = data[-_LONGEST:]
    return sorted(found)


def _words(data: bytes) -> Iterator[str]:
    for prefix in _IN_BINARIES:
        at = data.find(prefix)
        while at >= 0:
            before = _WORD_BEFORE.search(data, max(0, at - _LONGEST), at)
            word = (before[0] if before else b"") + (_WORD.match(data, at) or [b""])[0]
            if len(word) > len(prefix) + 1 and len(word) < _LONGEST:
                yield word.decode("ascii")
            at = data.find(prefix, at + len(prefix))


def _read_only_data(file: BinaryIO) -> list[tuple[int, int]]:
    """Where an ELF file's data stands (offset, size), without code and without GPU kernels; the whole file where it is none."""
    kept = []
    with contextlib.suppress(ValueError, struct.error):
        for section in elf.sections(file):
            is_data = section.kind == _PROGBITS and section.flags & _ALLOCATED and not section.flags & _EXECUTABLE
            if is_data and section.name.startswith((b".rodata", b".data", b".lrodata")):
                kept.append((section.offset, section.size))
    return kept or [(0, os.fstat(file.fileno()).st_size)]
