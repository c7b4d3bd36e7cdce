"""Which NCCL or RCCL a torch would load, and the plugins that it would load in turn.

NCCL does not only come as a wheel: it is linked into torch, comes with conda, with the image, is preloaded, or is RCCL. Where it is not known for
sure which one it is, no release and no file is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from unhang.facts import distributions, libraries, paths
from unhang.facts.host import Host
from unhang.model import frozen

_FILE = re.compile(r"libnccl\.so(?:\.\d+)*")
_RCCL = re.compile(r"librccl\.so(?:\.\d+)*")
_VERSION = re.compile(r"libnccl\.so\.(\d+\.\d+\.\d+)")
_CONDA_RECORD = re.compile(r"nccl-(\d+\.\d+\.\d+)\S*-[^-]+\.json")
_SYSTEM = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/local/nccl/lib",
    "/usr/local/cuda/lib64",
)
_ROCM = ("/opt/rocm/lib", "/opt/rocm/lib64")
# RCCL looks for both.
_PLUGIN = re.compile(r"lib[nr]ccl-?(?:net|tuner|profiler|env|gin)[\w.-]*\.so[\d.]*")
# HPC-X in NVIDIA's images, Google's gIB, TCPX and TCPXO, AWS's EFA installer.
_PLUGIN_PLACES = (
    "/usr/local/gib/lib64",
    "/usr/local/gib/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/tcpx/lib64",
    "/var/lib/tcpx/lib64",
    "/var/lib/tcpxo/lib64",
    "/opt/amazon/ofi-nccl/lib",
    "/opt/amazon/ofi-nccl/lib64",
    "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "/opt/amazon/ofi-nccl/lib/aarch64-linux-gnu",
    "/opt/aws-ofi-nccl/lib",
)
_PLUGIN_TREE = "/opt/hpcx"
_CACHED_PLUGIN = re.compile(rb"/[^\0]+?/lib[nr]ccl-?(?:net|tuner|profiler|env|gin)[\w.-]*\.so[\d.]*(?=\0)")
_ASKED = ("NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN", "NCCL_ENV_PLUGIN", "NCCL_GIN_PLUGIN", "NCCL_RMA_PLUGIN")


@frozen
class Which:
    """What torch makes its collectives with. `version` is "" where the release is not known, `files` are empty where the file is not."""

    is_rccl: bool = False
    version: str = ""
    files: tuple[str, ...] = ()


@frozen
class Place:
    """Where torch is installed: its site-packages, its version, and the release of an NCCL wheel beside it ("" where there are several).

    `is_here`: the environment of this host holds for it, which it does not for another machine's packages.
    """

    site: str
    version: str
    wheel: str | None
    is_here: bool = True

    @property
    def prefix(self) -> str:
        parents = PurePosixPath(self.site).parents
        return str(parents[2]) if len(parents) > 2 else "/"


def of_torch(host: Host, place: Place) -> Which | None:
    """None where that torch has no use for NCCL, and none is there."""
    said = distributions.of_torch(paths.text(host, f"{place.site}/torch/version.py", size_bytes=65536))
    folders = torch_folders(host, place.site)
    held = {f: paths.names(host, f) for f in folders}
    rccl = tuple(f"{f}/{n}" for f in folders for n in held[f] if _RCCL.fullmatch(n))
    cuda = next((f for f in folders if "libtorch_cuda.so" in held[f]), None)
    if cuda is None and (rccl or "+rocm" in place.version or said.get("hip") or any("libtorch_hip.so" in held[f] for f in folders)):
        return Which(is_rccl=True, files=() if _replaced(host, place, "rccl") else rccl[:1] or _of_rocm(host, place))
    if _replaced(host, place, "nccl"):
        return Which()
    preloaded = [p for p in _preload(host, place) if _FILE.fullmatch(p.rpartition("/")[2])]
    if preloaded and (not preloaded[0].startswith("/") or paths.missing(host, preloaded[0])):
        return Which()
    search = None
    if cuda is not None:
        search = libraries.Search(host, (place.site,), cuda, handed_down=(f"{place.prefix}/lib",) if _is_conda(host, place) else ())
    if search is not None and search.is_readable:
        return _linked(host, place, search, f"{cuda}/libtorch_cuda.so", bool(preloaded))
    if preloaded:
        return Which(version=_release(host, place, preloaded[0]), files=(preloaded[0],))
    found = tuple(_beside(host, place))
    if len(found) == 1 and "git" not in place.version:
        return found[0]
    needs_none = "+cpu" in place.version or any("libtorch_cpu.so" in held[f] for f in folders) or said.get("cuda") == ""
    return None if not found and cuda is None and needs_none and "+cu" not in place.version else Which()


def of_system(host: Host) -> Which | None:
    """That of a distribution's package or an image, where its name has a release."""
    for folder in (*filter(None, host.environ.get("LD_LIBRARY_PATH", "").split(":")), *_SYSTEM):
        for name in paths.names(host, folder):
            if found := _VERSION.fullmatch(name):
                return Which(version=found[1], files=(f"{folder}/{name}",))
    return None


def torch_folders(host: Host, site: str) -> tuple[str, ...]:
    """Where torch's libraries are: conda-forge has them in the environment's lib."""
    place = Place(site=site, version="", wheel=None)
    return (f"{site}/torch/lib", *((f"{place.prefix}/lib",) if _is_conda(host, place) else ()))


def plugins(host: Host) -> tuple[str, ...]:
    """Network, tuner, profiler and environment plugins that NCCL may load here: each reads variables of its own, many of them named NCCL_."""
    folders = [p for p in host.environ.get("LD_LIBRARY_PATH", "").split(":") if p.startswith("/")]
    folders += [*_SYSTEM, *_PLUGIN_PLACES, *_ROCM]
    for one in paths.names(host, _PLUGIN_TREE):
        folders += [f"{_PLUGIN_TREE}/{one}/lib", f"{_PLUGIN_TREE}/{one}/lib64"]
    asked = {a for name in _ASKED for a in host.environ.get(name, "").split(",") if a and a.lower() != "none"}
    found = [a for a in sorted(asked) if a.startswith("/") and paths.is_file(host, a)]
    for folder in dict.fromkeys(folders):
        found += [f"{folder}/{n}" for n in paths.names(host, folder) if _PLUGIN.fullmatch(n) or n in asked]
    cached = _CACHED_PLUGIN.findall(paths.head(host, "/etc/ld.so.cache", size_bytes=8 << 20))
    found += [p for p in (c.decode(errors="replace") for c in cached) if not paths.missing(host, p)]
    return tuple({_real(host, p): p for p in reversed(found)}.values())[::-1]


def _real(host: Host, path: str) -> str:
    try:
        return paths.real(host, path)
    except OSError:
        return path


def _is_conda(host: Host, place: Place) -> bool:
    return host.path(f"{place.prefix}/conda-meta").is_dir()


def _preload(host: Host, place: Place) -> tuple[str, ...]:
    return tuple(p for p in re.split(r"[:\s]+", host.environ.get("LD_PRELOAD", "")) if p) if place.is_here else ()


def _replaced(host: Host, place: Place, name: str) -> bool:
    """Whether something that is no NCCL itself stands in for it: MSCCL++ is put in front of it by LD_PRELOAD or LD_AUDIT."""
    if not place.is_here:
        return False
    audit = [p for p in host.environ.get("LD_AUDIT", "").split(":") if p]
    own = _FILE if name == "nccl" else re.compile(r"(?!)")
    in_front = (p.rpartition("/")[2] for p in _preload(host, place))
    return any(not own.fullmatch(p) and not _PLUGIN.fullmatch(p) and re.search("[nr]ccl", p) for p in in_front) or any("ccl" in p for p in audit)


def _of_rocm(host: Host, place: Place) -> tuple[str, ...]:
    folders = (*filter(None, host.environ.get("LD_LIBRARY_PATH", "").split(":")), *_ROCM) if place.is_here else ()
    return tuple(f"{f}/{n}" for f in folders for n in paths.names(host, f) if _RCCL.fullmatch(n))[:1]


def _linked(host: Host, place: Place, search: libraries.Search, main: str, is_preloaded: bool) -> Which:
    needed = search.needs("libnccl.so")
    if needed is None:
        # What is preloaded may or may not take the place of what is inside.
        inside = None if is_preloaded else search.nccl(main)[0]
        return Which(version=inside, files=(main,)) if inside is not None else Which()
    for path, through in search.found(needed):
        if place.is_here or through in ("RPATH", "RUNPATH", "package"):
            folder, _, name = path.rpartition("/")
            # $ORIGIN/../../nvidia/nccl/lib
            straight = f"{_real(host, folder)}/{name}" if "/../" in path else path
            return Which(version=_release(host, place, straight), files=(straight,))
    return Which()


def _beside(host: Host, place: Place) -> Iterator[Which]:
    """Copies of which torch may take one, where it does not say which: the wheel's and conda's."""
    if place.wheel is not None:
        folder = f"{place.site}/nvidia/nccl/lib"
        files = tuple(f"{folder}/{n}" for n in paths.names(host, folder) if _FILE.fullmatch(n))
        yield Which(version=_release(host, place, files[0]) if files else place.wheel, files=files)
    if _is_conda(host, place):
        folder = f"{place.prefix}/lib"
        name = _fullest(n for n in paths.names(host, folder) if _FILE.fullmatch(n))
        if name is not None:
            yield Which(version=_release(host, place, f"{folder}/{name}"), files=(f"{folder}/{name}",))


def _fullest(names: Iterator[str]) -> str | None:
    return max(names, key=len, default=None)


def _release(host: Host, place: Place, path: str) -> str:
    """What the file says of itself, else its name, else the record of the package that brought it; "" where none of them tells."""
    inside = libraries.release_of_nccl(host, path)
    if inside is not None:
        return inside
    real = _real(host, path)
    if named := _VERSION.fullmatch(real.rpartition("/")[2]):
        return named[1]
    if place.wheel is not None and paths.same(host, path.rpartition("/")[0], f"{place.site}/nvidia/nccl/lib"):
        return place.wheel
    recorded: Sequence[str] = ()
    if path.startswith(f"{place.prefix}/lib/"):
        recorded = [m[1] for n in paths.names(host, f"{place.prefix}/conda-meta") if (m := _CONDA_RECORD.fullmatch(n))]
    return recorded[0] if len(recorded) == 1 else ""
