"""The libraries that a training would load: torch and what it was built for, NCCL, cuDNN, the driver's library, and what is found before them.

The order of the dynamic linker, for a library that another one needs: LD_PRELOAD, the RPATH of the one that needs it (torch's wheels have that, so
that the packages beside torch win), LD_LIBRARY_PATH, its RUNPATH, the cache of ldconfig, the system's directories. torch itself then looks into
the packages of the environment. Nothing is loaded here; libraries are read as files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from unhang.facts import distributions, elf, paths, python_env
from unhang.facts.host import Host, NotHere, Subject
from unhang.i18n import Text, joined, msg, same
from unhang.model import frozen

if TYPE_CHECKING:
    from unhang.facts.nvml import Gpu
    from unhang.facts.snapshot import Snapshot

Through = Literal["LD_PRELOAD", "RPATH", "LD_LIBRARY_PATH", "RUNPATH", "ld.so.cache", "system", "package"]

_SYSTEM = (
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/usr/lib",
)
# Their pins on torch are exact: their binaries fit one release of it.
_BUILT_FOR_TORCH = ("torchvision", "torchaudio", "torchtext", "xformers", "vllm")
_NCCL = re.compile(rb"NCCL version (\d+\.\d+\.\d+)(?:\+cuda(\d+\.\d+))?")
_ARCHITECTURES = re.compile(rb"((?:sm|compute)_\d+[af]?(?: (?:sm|compute)_\d+[af]?)*)\0")
_CACHED = re.compile(rb"/[^\0]+?/lib(?:nccl|cudnn|cuda|cudart|nccl-net[\w.-]*)\.so[\w.]*(?=\0)")
# Libraries of CUDA that come with torch; the driver's own are the host's business.
_COMES_WITH_TORCH = re.compile(r"lib(?:cu(?!da\.)|nccl|nvJitLink|nvToolsExt|nvrtc|nvshmem)")


@frozen
class Copy:
    """One copy of a library. `version` stands in the binary or its name; `cuda` is what NCCL was built with."""

    name: str
    path: str
    through: Through
    version: str | None = None
    cuda: str | None = None


@frozen
class Torch:
    """torch as it is installed. `cuda` and `hip` are what it was built for, both None in a CPU build; `architectures` is None where it does not say.

    `nccl_inside` is the release of an NCCL that is linked into torch itself: no other one is loaded then. `lacking` are libraries that it needs and
    that would not be found.
    """

    version: str
    path: str
    cuda: str | None
    hip: str | None
    architectures: tuple[str, ...] | None
    nccl_inside: str | None
    lacking: tuple[str, ...]


@frozen
class Pin:
    """`package` needs exactly `wanted` of `name`, and `installed` is there (None: nothing)."""

    package: str
    name: str
    wanted: str
    installed: str | None


@frozen
class Libraries:
    """`environment` is the prefix that was looked at. `loaded` are the copies that torch would load, `others` further ones that lie about.

    `net_plugins` are network plugins that NCCL would find by their usual names; `net_plugin` is what NCCL_NET_PLUGIN asks for, and
    `net_plugin_lacking` says that this is not found.
    """

    environment: str
    torch: Torch
    packages: Mapping[str, str]
    loaded: tuple[Copy, ...]
    others: tuple[Copy, ...]
    broken_pins: tuple[Pin, ...]
    net_plugins: tuple[str, ...]
    net_plugin: str | None
    net_plugin_lacking: bool
    preload: tuple[str, ...]
    library_path: tuple[str, ...]
    unread: tuple[str, ...] = ()

    def copy(self, name: str) -> Copy | None:
        """The copy of a library that torch would load."""
        return next((c for c in self.loaded if c.name == name), None)


def collect(host: Host) -> Libraries:
    """Raises NotHere where no torch is installed."""
    environments = python_env.outlines(host)
    env, place = next(((e, p) for e in environments if (p := _torch_place(host, e.places)) is not None), (None, None))
    if env is None or place is None:
        raise NotHere(f"no torch in {' or '.join(e.prefix for e in environments)}")
    listed = {p: paths.names(host, p) for p in env.places}
    packages = {n: v[0] for p in reversed(env.places) for n, v in distributions.installed(listed[p]).items()}
    # conda's Python carries an RPATH to the environment's lib, and hands it down to whatever it loads.
    search = Search(host, env.places, f"{place}/torch/lib", handed_down=(f"{env.prefix}/lib",) if env.kind == "conda" else ())
    torch = _torch(host, f"{place}/torch", search)
    loaded = tuple(search.loaded(torch))
    return Libraries(
        environment=env.prefix,
        torch=torch,
        packages={n: v for n, v in packages.items() if n.startswith(("nvidia-", "torch", "triton", *_BUILT_FOR_TORCH, "nccl"))},
        loaded=loaded,
        others=tuple(search.others(loaded)),
        broken_pins=tuple(_broken_pins(host, listed, packages, torch)),
        net_plugins=search.net_plugins(),
        net_plugin=(asked := host.environ.get("NCCL_NET_PLUGIN") or None),
        net_plugin_lacking=asked is not None and asked.lower() != "none" and not search.has_plugin(asked),
        preload=search.preload,
        library_path=search.library_path,
        unread=tuple(search.unread),
    )


def _torch_place(host: Host, places: Sequence[str]) -> str | None:
    return next((p for p in places if paths.is_file(host, f"{p}/torch/version.py")), None)


def _torch(host: Host, path: str, search: Search) -> Torch:
    said = distributions.of_torch(paths.text(host, f"{path}/version.py", size_bytes=65536))
    cuda = said.get("cuda") or None
    return Torch(
        version=said.get("__version__") or "unknown",
        path=path,
        cuda=cuda,
        hip=said.get("hip") or None,
        architectures=search.architectures() if cuda is not None else None,
        nccl_inside=search.nccl_inside() if cuda is not None else None,
        lacking=search.lacking() if cuda is not None else (),
    )


class Search:
    """Where the dynamic linker would look for what torch needs; `library` is the folder of torch's own libraries."""

    def __init__(self, host: Host, places: Sequence[str], library: str, *, handed_down: tuple[str, ...]) -> None:
        self._host = host
        self._library = library
        self._handed_down = handed_down
        self._packages = tuple(f"{p}/nvidia/{n}/lib" for p in places for n in paths.names(host, f"{p}/nvidia"))
        self.preload = tuple(p for p in re.split(r"[:\s]+", host.environ.get("LD_PRELOAD", "")) if p)
        self.library_path = tuple(dict.fromkeys(p for p in re.split(r"[:;]", host.environ.get("LD_LIBRARY_PATH", "")) if p.startswith("/")))
        self._cached = tuple(
            dict.fromkeys(p.decode(errors="replace") for p in _CACHED.findall(paths.head(host, "/etc/ld.so.cache", size_bytes=8 << 20)))
        )
        self._cuda_links: elf.Links | None = None
        self.unread: list[str] = []
        main = f"{library}/libtorch_cuda.so"
        if paths.is_file(host, main):
            try:
                self._cuda_links = elf.links(host, main)
            except (OSError, ValueError) as e:
                self.unread.append(f"what {main} needs ({e})")

    def found(self, name: str) -> Iterator[tuple[str, Through]]:
        """Copies of a library that torch needs, the one that would be loaded first."""
        links = self._cuda_links
        stem = name.partition(".so")[0]
        for path in self.preload:
            if path.rpartition("/")[2].partition(".so")[0] == stem and not paths.missing(self._host, path):
                yield path, "LD_PRELOAD"
        rpath = links.rpath if links is not None and not links.runpath else ()
        kinds: tuple[tuple[Through, Sequence[str]], ...] = (
            ("RPATH", (*self._origin(rpath), *self._handed_down)),
            ("LD_LIBRARY_PATH", self.library_path),
            ("RUNPATH", self._origin(links.runpath if links is not None else ())),
            ("ld.so.cache", tuple(p.rpartition("/")[0] for p in self._cached if p.rpartition("/")[2] == name)),
            ("system", _SYSTEM),
            ("package", self._packages),
        )
        for through, directories in kinds:
            for directory in directories:
                if paths.is_file(self._host, f"{directory}/{name}"):
                    yield f"{directory}/{name}", through

    def _origin(self, directories: Sequence[str]) -> tuple[str, ...]:
        return tuple(re.sub(r"\$(?:ORIGIN|\{ORIGIN\})", lambda _: self._library, d) for d in directories)

    def needs(self, start: str) -> str | None:
        """The name of a library that torch needs."""
        return next((n for n in self._cuda_links.needed if n.startswith(start)), None) if self._cuda_links is not None else None

    def loaded(self, torch: Torch) -> Iterator[Copy]:
        """What torch would load: its NCCL, CUDA runtime and cuDNN, and the driver's library."""
        for name, start in (("nccl", "libnccl.so"), ("cudart", "libcudart.so"), ("cudnn", "libcudnn.so")):
            if (needed := self.needs(start)) and (found := next(self.found(needed), None)) is not None:
                yield self._copy(name, *found)
        # No RPATH leads to it.
        if torch.cuda is not None and (driver := next((f for f in self.found("libcuda.so.1") if f[1] not in ("RPATH", "RUNPATH", "package")), None)):
            yield self._copy("cuda", *driver)

    def others(self, loaded: Sequence[Copy]) -> Iterator[Copy]:
        """Further copies of NCCL, cuDNN and the driver's library."""
        seen = {paths.real(self._host, c.path) for c in loaded}
        for name, start in (("nccl", "libnccl.so"), ("cudnn", "libcudnn.so"), ("cuda", "libcuda.so")):
            usual = {"nccl": "libnccl.so.2", "cudnn": "libcudnn.so.9", "cuda": "libcuda.so.1"}[name]
            for path, through in self.found(self.needs(start) or usual):
                if (target := paths.real(self._host, path)) not in seen:
                    seen.add(target)
                    yield self._copy(name, path, through)

    def _copy(self, name: str, path: str, through: Through) -> Copy:
        version = cuda = None
        if name == "nccl":
            version, cuda = self.nccl(path)
        # libcudnn.so.9.10.2, libcuda.so.535.183.01; a wheel's has its interface only ("libcudnn.so.9").
        named = re.search(r"\.so\.(\d+\.\d[\d.]*)$", paths.real(self._host, path))
        return Copy(name=name, path=path, through=through, version=version or (named[1] if named is not None else None), cuda=cuda)

    @property
    def is_readable(self) -> bool:
        """Whether torch says what it needs."""
        return self._cuda_links is not None

    def nccl(self, path: str) -> tuple[str | None, str | None]:
        """Its release, and the CUDA that it was built with."""
        try:
            return _of_nccl(self._host, path)
        except (OSError, ValueError) as e:
            self.unread.append(f"the version of {path} ({e})")
            return None, None

    def nccl_inside(self) -> str | None:
        return None if self._cuda_links is None or self.needs("libnccl.so") else self.nccl(f"{self._library}/libtorch_cuda.so")[0]

    def architectures(self) -> tuple[str, ...] | None:
        """What torch.cuda.get_arch_list() would answer, a constant of libtorch_python.so."""
        try:
            found = _ARCHITECTURES.findall(elf.constants(self._host, f"{self._library}/libtorch_python.so"))
        except (OSError, ValueError):
            found = []
        if not found:
            self.unread.append("the GPU architectures that torch was built for")
            return None
        return tuple(max(found, key=len).decode().split())

    def lacking(self) -> tuple[str, ...]:
        needed = self._cuda_links.needed if self._cuda_links is not None else ()
        return tuple(n for n in needed if _COMES_WITH_TORCH.match(n) and next(self.found(n), None) is None)

    def net_plugins(self) -> tuple[str, ...]:
        found = [f"{d}/{n}" for d in (*self.library_path, *_SYSTEM) for n in paths.names(self._host, d) if re.match(r"libnccl-net[\w-]*\.so", n)]
        found += [p for p in self._cached if "/libnccl-net" in p and not paths.missing(self._host, p)]
        return tuple({paths.real(self._host, p): p for p in reversed(found)}.values())[::-1]

    def has_plugin(self, asked: str) -> bool:
        """NCCL takes a path, a file's name, or what stands between "libnccl-net-" and ".so"; since 2.28 several of them."""
        return all(
            not paths.missing(self._host, one)
            if one.startswith("/")
            else any(True for name in (one, f"libnccl-net-{one}.so") for _ in self.found(name))
            for one in asked.split(",")
            if one
        )


def release_of_nccl(host: Host, path: str) -> str | None:
    """What an NCCL says of itself; None where it cannot be read or does not tell."""
    try:
        return _of_nccl(host, path)[0]
    except (OSError, ValueError):
        return None


def _of_nccl(host: Host, path: str) -> tuple[str | None, str | None]:
    found = _NCCL.search(elf.constants(host, path))
    return (found[1].decode(), found[2].decode() if found[2] is not None else None) if found is not None else (None, None)


def _broken_pins(host: Host, listed: Mapping[str, Sequence[str]], packages: Mapping[str, str], torch: Torch) -> Iterator[Pin]:
    for package in ("torch", *_BUILT_FOR_TORCH):
        where = next(((place, r) for place, names in listed.items() if (r := distributions.record(names, package)) is not None), None)
        if where is None:
            continue
        file = "METADATA" if where[1].endswith(".dist-info") else "PKG-INFO"
        for name, wanted in distributions.pins(paths.text(host, f"{where[0]}/{where[1]}/{file}")).items():
            there = torch.version if name == "torch" else packages.get(name)
            ours = name == "torch" if package != "torch" else name.startswith("nvidia-") or name == "triton"
            if ours and not _fits(wanted, there):
                yield Pin(package=package, name=name, wanted=wanted, installed=there)


def _fits(wanted: str, there: str | None) -> bool:
    """Whether a version is the one that is pinned; a local part ("+cu128") counts only where it is asked for, and "2.6" is "2.6.0"."""
    if there is None:
        return False
    if "+" not in wanted:
        there = there.partition("+")[0]
    if wanted.endswith(".*"):
        return there == wanted[:-2] or there.startswith(wanted[:-1])
    return re.sub(r"(\.0)+$", "", wanted) == re.sub(r"(\.0)+$", "", there)


def number(version: str) -> tuple[int, ...]:
    """A version to compare by: "2.27.5" is (2, 27, 5)."""
    found = re.match(r"\d{1,9}(?:\.\d{1,9})*", version)
    return tuple(int(n) for n in found[0].split(".")) if found is not None else ()


def usable_gpus(snapshot: Snapshot) -> tuple[Gpu, ...]:
    """GPUs that a training can reach here: a container without a GPU may see those of its host in /proc and /sys."""
    from unhang.facts import container, gpu

    seen, around = snapshot.get(gpu.SUBJECT), snapshot.get(container.SUBJECT)
    if seen is None or seen.visible in ("", "-1", "NoDevFiles"):
        return ()
    files = {d.path for d in around.devices if d.usable} if around is not None else set()
    return tuple(g for g in seen.gpus if g.error is None and (seen.nvml_error is None or f"/dev/nvidia{g.minor}" in files))


_THROUGH: Mapping[Through, Text] = {"system": msg("system"), "package": msg("package")}


def _summary(seen: Libraries) -> Text:
    torch = seen.torch
    built = msg("for CUDA {cuda}", cuda=torch.cuda) if torch.cuda else msg("for ROCm {hip}", hip=torch.hip) if torch.hip else msg("CPU build")
    at = msg("torch {version} ({built}) in {at}")
    told = [at.fill(version=torch.version, built=built, at=seen.environment)]
    nccl = seen.copy("nccl")
    if nccl is not None:
        through = msg("NCCL {version} through {way}")
        unnumbered = msg("of unknown version")
        told.append(through.fill(version=nccl.version or unnumbered, way=_THROUGH.get(nccl.through, same(nccl.through))))
    elif torch.nccl_inside is not None:
        told.append(msg("NCCL {version} inside torch", version=torch.nccl_inside))
    told += [same(f"cuDNN {v}") for n, v in seen.packages.items() if n.startswith("nvidia-cudnn")]
    if seen.net_plugins:
        told.append(msg("network plugins: {names}", names=", ".join(seen.net_plugins)))
    return joined(told)


SUBJECT = Subject(id="libraries", title=msg("torch and its libraries", "title"), facts=Libraries, collect=collect, summary=_summary)
