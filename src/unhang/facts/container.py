"""What stands between us and the machine: container runtime, batch system, service manager, WSL; capabilities, namespaces, device files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from unhang.facts import pcie
from unhang.facts.host import Host, Subject
from unhang.i18n import Text, msg, same
from unhang.model import frozen

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot

Kind = Literal["kubernetes", "docker", "podman", "apptainer", "lxc", "container", "wsl", "slurm", "systemd", "bare"]

# Bits of include/uapi/linux/capability.h; those that trainings and we have a use for.
_CAPABILITIES = {
    1: "DAC_OVERRIDE",
    12: "NET_ADMIN",
    13: "NET_RAW",
    14: "IPC_LOCK",
    19: "SYS_PTRACE",
    21: "SYS_ADMIN",
    23: "SYS_NICE",
    24: "SYS_RESOURCE",
}
_DEVICES = ("/dev/nvidia", "/dev/infiniband/", "/dev/dri/", "/dev/kfd", "/dev/dxg", "/dev/gdrdrv", "/dev/fuse")


@frozen
class Device:
    """A device file; `usable` whether we may read and write it."""

    path: str
    usable: bool


@frozen
class Container:
    """`kind` is what has to be told to change a limit or a mount here: the innermost that sets them; `signs` are all that were seen.

    `capabilities` are those in force among the ones that matter here; None where the kernel did not say.
    `nvidia_gpus_on_bus` and `infiniband_on_bus` count what the kernel knows, whether or not we may use it.
    """

    kind: Kind
    signs: tuple[str, ...]
    capabilities: tuple[str, ...] | None
    no_new_privileges: bool | None
    seccomp: bool | None
    devices: tuple[Device, ...]
    nvidia_gpus_on_bus: int
    infiniband_on_bus: int
    nvidia_driver_capabilities: str | None
    kernel: str | None
    unread: tuple[str, ...] = ()


def collect(host: Host) -> Container:
    """Never raises: a machine without any sign is bare."""
    signs = list(_signs(host))
    text = host.text("/proc/self/status") or ""
    status = {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
    unread = []
    if not status:
        unread.append("capabilities")
    return Container(
        kind=signs[0][0] if signs else "bare",
        signs=tuple(dict.fromkeys(sign for _, sign in signs)),
        capabilities=_capabilities(status.get("CapEff")),
        no_new_privileges=status["NoNewPrivs"] == "1" if "NoNewPrivs" in status else None,
        seccomp=status["Seccomp"] != "0" if "Seccomp" in status else None,
        devices=tuple(_devices(host)),
        nvidia_gpus_on_bus=len(pcie.gpus(host)),
        infiniband_on_bus=len(host.listed("/sys/class/infiniband")),
        nvidia_driver_capabilities=host.environ.get("NVIDIA_DRIVER_CAPABILITIES"),
        kernel=host.text("/proc/sys/kernel/osrelease"),
        unread=tuple(unread),
    )


def kind(snapshot: Snapshot) -> Kind:
    """What remedies are told for: "bare" where that was not looked at."""
    found = snapshot.get(SUBJECT)
    return "bare" if found is None else found.kind


def lacks_verbs(snapshot: Snapshot) -> bool:
    """Whether this is a container on a machine with RDMA adapters, of which it may use none."""
    seen = snapshot.get(SUBJECT)
    if seen is None or seen.kind in ("bare", "slurm", "systemd", "wsl") or not seen.infiniband_on_bus:
        return False
    return not any(d.usable for d in seen.devices if d.path.startswith("/dev/infiniband/uverbs"))


def _signs(host: Host) -> Iterator[tuple[Kind, str]]:
    """In the order in which they count: what is further in first."""
    groups = host.text("/proc/self/cgroup") or ""
    if "KUBERNETES_SERVICE_HOST" in host.environ:
        yield "kubernetes", "KUBERNETES_SERVICE_HOST"
    if host.path("/var/run/secrets/kubernetes.io").exists():
        yield "kubernetes", "/var/run/secrets/kubernetes.io"
    if "kubepods" in groups:
        yield "kubernetes", "/proc/self/cgroup: kubepods"
    if host.path("/.singularity.d").exists() or "APPTAINER_CONTAINER" in host.environ or "SINGULARITY_CONTAINER" in host.environ:
        yield "apptainer", "/.singularity.d"
    if host.path("/run/.containerenv").exists():
        yield "podman", "/run/.containerenv"
    if host.path("/.dockerenv").exists():
        yield "docker", "/.dockerenv"
    if "/docker/" in groups or "/docker-" in groups:
        yield "docker", "/proc/self/cgroup: docker"
    # PID 1's environment is root's to read; systemd leaves what it says there for all.
    said = host.text("/run/systemd/container") or host.environ.get("container")
    if said in ("lxc", "lxc-libvirt"):
        yield "lxc", f"container={said}"
    elif said:
        yield "container", f"container={said}"
    if "microsoft" in (host.text("/proc/sys/kernel/osrelease") or "").lower():
        yield "wsl", "/proc/sys/kernel/osrelease: microsoft"
    if "SLURM_JOB_ID" in host.environ:
        yield "slurm", "SLURM_JOB_ID"
    if "INVOCATION_ID" in host.environ and any(line.endswith(".service") for line in groups.splitlines()):
        yield "systemd", "INVOCATION_ID"


def _capabilities(text: str | None) -> tuple[str, ...] | None:
    try:
        mask = int(text or "", 16)
    except ValueError:
        return None
    return tuple(name for bit, name in _CAPABILITIES.items() if mask >> bit & 1)


def _devices(host: Host) -> Iterator[Device]:
    names = [f"/dev/{name}" for name in host.listed("/dev")]
    names += [f"/dev/{folder}/{name}" for folder in ("infiniband", "dri", "nvidia-caps") for name in host.listed(f"/dev/{folder}")]
    for path in names:
        if path.startswith(_DEVICES) and not host.path(path).is_dir():
            yield Device(path=path, usable=os.access(host.path(path), os.R_OK | os.W_OK))


def _summary(container: Container) -> Text:
    said = {"bare": msg("none"), "wsl": same("WSL")}.get(container.kind, same(container.kind))
    if container.capabilities is not None and "SYS_ADMIN" in container.capabilities and container.kind not in ("bare", "slurm", "systemd", "wsl"):
        said += msg(", privileged")
    return said


SUBJECT = Subject(id="container", title=msg("container and batch system", "title"), facts=Container, collect=collect, summary=_summary)
