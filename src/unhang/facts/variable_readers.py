"""The installed libraries that read variables: which release, and where its files are.

From the metadata that pip and conda leave; NCCL as torch would load it. Nothing is imported.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from unhang.facts import distributions, paths, which_nccl
from unhang.facts.host import Host


@dataclass(frozen=True, kw_only=True)
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
