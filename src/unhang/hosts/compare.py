"""What has to be the same on all hosts of a job, and is not: the odd ones by majority. A tie blames nobody."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from unhang.facts import gpu, libraries, limits, network, python_env, shm, variables
from unhang.facts.host import Subject
from unhang.facts.snapshot import Snapshot
from unhang.i18n import Text, joined, msg, same
from unhang.knowledge import catalogue
from unhang.model import HostFinding, Severity
from unhang.text import size

_MOST_NAMED = 8
# Variables that are a host's own.
_OF_HOST = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "RANK", "LOCAL_RANK", "GROUP_RANK")


class Fact(NamedTuple):
    """`of` gives the value on one host, of what was seen of `subject`; None where it was not. `cause` is whose remedies help."""

    subject: Subject[Any]
    cause: str
    severity: Severity
    what: Text
    leads_to: Text
    of: Callable[[Any], object]


_MISREAD = msg("ranks misread each other, or meet operations that others do not have")
_FEWER = msg("the host with least of it fails first, and all wait for it")
FACTS = (
    Fact(libraries.SUBJECT, "version-mismatch", "error", same("torch"), _MISREAD, lambda f: f.torch.version),
    Fact(libraries.SUBJECT, "version-mismatch", "error", same("NCCL"), _MISREAD,
         lambda f: ", ".join(sorted({c.version or "?" for c in f.loaded if "nccl" in c.name})) or None),
    Fact(python_env.SUBJECT, "version-mismatch", "warning", same("Python"), _MISREAD,
         lambda f: next((e.version for e in f.environments), None)),
    Fact(gpu.SUBJECT, "version-mismatch", "warning", msg("the NVIDIA driver"), _MISREAD,
         lambda f: f.driver),
    Fact(gpu.SUBJECT, "rendezvous-misconfig", "warning", msg("the number or kind of GPUs"),
         msg("with as many ranks on each host, a rank finds no GPU"),
         lambda f: " × ".join((str(len(f.gpus)), *sorted({g.name for g in f.gpus if g.name})))),
    Fact(variables.SUBJECT, "launcher-wrong-env", "warning",
         msg("variables of NCCL, Gloo and torch"),
         msg("libraries choose differently on two sides of one connection"),
         lambda f: " ".join(sorted(f"{s.name}={s.value}" for s in f.settings if s.name not in _OF_HOST)) or "none"),
    Fact(limits.SUBJECT, "limits", "warning", msg("open files (ulimit -n)"), _FEWER,
         lambda f: f.open_files.soft if f.open_files is not None else None),
    Fact(limits.SUBJECT, "limits", "warning", msg("locked memory (ulimit -l)"), _FEWER,
         lambda f: f.memlock_bytes.soft or "unlimited" if f.memlock_bytes is not None else None),
    Fact(shm.SUBJECT, "shm-exhausted", "warning", same("/dev/shm"), _FEWER,
         lambda f: size(f.space.total_bytes) if f.space is not None else None),
    Fact(network.SUBJECT, "network-mtu", "warning", msg("the MTU towards the others"),
         msg("small messages pass and large ones hang"),
         lambda f: way.mtu_bytes if (way := _way(f)) is not None else None),
)  # fmt: skip


def _way(seen: network.Network) -> network.Interface | None:
    """The interface that NCCL or Gloo would meet the others on."""
    names = (*(seen.nccl.interfaces or ()), *(seen.gloo.interfaces or ()))
    return next((i for name in names if (i := seen.interface(name)) is not None), None)


def address(seen: Snapshot) -> str | None:
    """The one that GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME asks for; None where neither is set."""
    if (facts := seen.get(network.SUBJECT)) is None:
        return None
    for choice in (facts.gloo, facts.nccl):
        interface = facts.interface(choice.interfaces[0]) if choice.asked is not None and choice.interfaces else None
        if interface is not None and interface.addresses:
            return interface.addresses[0].partition("/")[0]
    return None


def compared(seen: Mapping[str, Snapshot]) -> Iterator[HostFinding]:
    """What the snapshots of all hosts say, by host."""
    for fact in FACTS:
        values = {
            name: value
            for name, snapshot in seen.items()
            if (facts := snapshot.get(fact.subject)) is not None and (value := fact.of(facts)) is not None
        }
        if (said := odd(values)) is not None:
            yield catalogue.load()[fact.cause].host_finding(
                area="differences",
                severity=fact.severity,
                says=msg("{what} differs: {said}", what=fact.what, said=said),
                leads_to=fact.leads_to,
            )


def odd(values: Mapping[str, object]) -> Text | None:
    """Who has what, the odd ones first and the majority last; None where all have the same."""
    by_value: dict[object, list[str]] = defaultdict(list)
    for name, value in values.items():
        by_value[value].append(name)
    if len(by_value) < 2:
        return None
    *few, (most, whose) = sorted(by_value.items(), key=lambda item: len(item[1]))
    others = joined(msg("{value} on {hosts}", value=str(value), hosts=named(hosts)) for value, hosts in few)
    if 2 * len(whose) <= len(values):
        return others + msg("; {value} on {hosts}", value=str(most), hosts=named(whose))
    return others + msg(", and {value} on the other {n}", value=str(most), n=len(whose))


def named(hosts: Collection[str]) -> str:
    """Names, as many as can be read at a glance."""
    first = list(hosts)[:_MOST_NAMED]
    return ", ".join(first) + (f" and {len(hosts) - len(first)} more" if len(hosts) > len(first) else "")
