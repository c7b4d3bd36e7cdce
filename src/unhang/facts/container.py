"""What stands between us and the machine: container runtime, batch system, service manager, WSL; capabilities, namespaces, devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from unhang.facts.host import Host
from unhang.facts.subject import Subject

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot

Kind = Literal["docker", "podman", "kubernetes", "apptainer", "lxc", "container", "slurm", "systemd", "wsl", "bare"]


@dataclass(frozen=True, kw_only=True)
class Container:
    """`kind` is what has to be told to change a limit or a mount here: the innermost that sets them; `signs` are what tells so."""

    kind: Kind
    signs: tuple[str, ...]
    unread: tuple[str, ...] = ()


def collect(host: Host) -> Container:
    """Never raises: a machine without any sign is bare."""
    found: list[tuple[Kind, str]] = []
    if "KUBERNETES_SERVICE_HOST" in host.environ or host.path("/var/run/secrets/kubernetes.io").exists():
        found.append(("kubernetes", "KUBERNETES_SERVICE_HOST"))
    if host.path("/.dockerenv").exists():
        found.append(("docker", "/.dockerenv"))
    return Container(kind=found[0][0] if found else "bare", signs=tuple(sign for _, sign in found))


def kind(snapshot: Snapshot) -> Kind:
    """What remedies are told for: "bare" where that was not looked at."""
    found = snapshot.get(SUBJECT)
    return "bare" if found is None else found.kind


SUBJECT = Subject(
    id="container", title="container and batch system", title_zh="容器与作业系统", facts=Container, collect=collect, summary=lambda c: c.kind
)
