"""Whether an environment can live on this host at a path: asked before a byte of it is written."""

from __future__ import annotations

import os
import platform
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from unhang.facts.host import Host
from unhang.facts.libraries import number
from unhang.knowledge.causes import arch_not_in_build, disk_full, driver_too_old, env_relocation, library_link
from unhang.knowledge.commands import command
from unhang.model import HostFinding, Remedy
from unhang.pack.manifest import Manifest
from unhang.pack.packer import cpu_flags
from unhang.text import Text

_AREA = "place"
# Directories, inodes and half-filled blocks.
_PER_ENTRY_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
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
        yield arch_not_in_build.CAUSE.host_finding(
            area=_AREA,
            severity="error",
            says=Text(
                f"the environment is for {manifest.machine}, and this host is {host.machine}",
                f"该环境面向 {manifest.machine}，而本机是 {host.machine}",
            ),
            leads_to=Text("its Python does not start: Exec format error", "其中的 Python 无法启动：Exec format error"),
            remedies=(),
        )
        return
    has = host.glibc
    if manifest.glibc is not None and number(has or "") < number(manifest.glibc):
        yield library_link.CAUSE.host_finding(
            area=_AREA,
            severity="error",
            says=Text(
                f"libraries of the environment ask for glibc {manifest.glibc}, and this host has {has or 'none'}",
                f"环境中的库需要 glibc {manifest.glibc}，而本机是 {has or '无 glibc'}",
            ),
            leads_to=Text(
                f"they do not load: version `GLIBC_{manifest.glibc}' not found", f"这些库无法加载：version `GLIBC_{manifest.glibc}' not found"
            ),
            remedies=("newer-runtime",),
        )
    old = min((path for path, new in manifest.moves if not new), key=len, default=manifest.prefix)
    longer = len(os.fsencode(dest)) > len(os.fsencode(old))
    if longer and (fixed := [p for p, how in manifest.places.items() if how == "binary"]):
        yield env_relocation.CAUSE.host_finding(
            area=_AREA,
            severity="error",
            says=Text(
                f"{len(fixed)} binary files hold the path {old}, and have no room for the longer {dest}: {fixed[0]}",
                f"{len(fixed)} 个二进制文件中写有路径 {old}，容不下更长的 {dest}：{fixed[0]}",
            ),
            leads_to=Text("programs look for their files at the old place", "程序会到旧位置查找文件"),
            remedies=(),
        )
    yield from _space(manifest, dest, host, needs_bytes)
    yield from _driver(manifest, host)
    if lacking := sorted(set(manifest.cpu_flags) - set(host.cpu_flags)):
        yield arch_not_in_build.CAUSE.host_finding(
            area=_AREA,
            severity="note",
            says=Text(f"this CPU lacks {', '.join(lacking)} of the one that packed", f"本机 CPU 缺少打包机器所具有的 {', '.join(lacking)}"),
            leads_to=Text(
                "extensions that were compiled there for that very CPU end with Illegal instruction; wheels from an index do not",
                "在那里专为该 CPU 编译的扩展会因 Illegal instruction 终止；来自索引的 wheel 不会",
            ),
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
        found = disk_full.CAUSE.host_finding(
            area=_AREA,
            severity="error",
            says=Text(f"{directory} has {free} free, and the environment takes {wants}", f"{directory} 剩余 {free}，而该环境需要 {wants}"),
            leads_to=Text("unpacking ends with No space left on device", "解包会因 No space left on device 终止"),
            remedies=(),
        )
        says, says_zh = "See what fills it, or choose another place.", "查看是什么占用了空间，或换一个位置。"
        look = command("df -h {path:path}; df -i {path:path}", path=directory)
        yield replace(found, remedies=(Remedy(id="what-fills-it", says=says, says_zh=says_zh, command=look),))


def _driver(manifest: Manifest, host: Target) -> Iterator[HostFinding]:
    if manifest.torch is None or manifest.torch.cuda is None:
        return
    driver = host.driver
    minimum = driver_too_old.oldest_driver(manifest.torch.cuda)
    # Jetson's drivers (35, 540 on Tegra) are counted otherwise.
    if driver is not None and minimum is not None and (100,) <= number(driver) < number(minimum):
        yield driver_too_old.CAUSE.host_finding(
            area=_AREA,
            severity="warning",
            says=Text(
                f"torch {manifest.torch.version} is for CUDA {manifest.torch.cuda}, which needs driver {minimum} or newer; this host has {driver}",
                f"torch {manifest.torch.version} 面向 CUDA {manifest.torch.cuda}，需要 {minimum} 或更新的驱动；本机是 {driver}",
            ),
            leads_to=Text("CUDA does not start on this host", "CUDA 在本机无法启动"),
            remedies=("upgrade-the-driver", "older-cuda-build"),
        )
