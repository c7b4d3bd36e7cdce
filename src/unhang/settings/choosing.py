"""Presets that depend on the machine: `infiniband`, `ethernet`, and `auto`, in which every choice follows from a fact.

The interface is the one that the way to the master's address goes through. The way to the internet tells nothing about the way to the other hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from unhang.facts import container, infiniband, network, numa, shm
from unhang.facts.snapshot import Snapshot
from unhang.i18n import NOTHING, Text, msg
from unhang.model import frozen
from unhang.settings.catalogue import PRESETS, Preset
from unhang.settings.setting import Installed, Value

# The areas of a snapshot that are looked at.
SUBJECTS = tuple(s.id for s in (container.SUBJECT, infiniband.SUBJECT, network.SUBJECT, numa.SUBJECT, shm.SUBJECT))
_TITLE_AUTO = msg("chosen from what this machine has")
_GIB = 1024**3
# Loader workers hand batches over through it; Docker's default is 64 MiB.
_SHM_FOR_WORKERS_BYTES = _GIB
_BOXES = ("kubernetes", "docker", "podman", "apptainer", "lxc", "container")
# NCCL's segments, of about 10 MiB for each pair of GPUs without direct copies, and some room.
_SHM_PER_GPU_BYTES = 32 * 1024**2


@frozen
class Here:
    """The machine and what is installed. `hosts` is how many take part, None where nothing says so."""

    snapshot: Snapshot
    installed: Installed
    hosts: int | None = None

    @property
    def several_hosts(self) -> bool:
        return self.hosts is not None and self.hosts > 1


def interface(here: Here) -> tuple[str | None, Text]:
    """The interface towards the master's address, and why; None with the reason where that cannot be told."""
    seen = here.snapshot.get(network.SUBJECT)
    if seen is None:
        return None, msg("the network could not be looked at")
    peer = seen.peer
    if peer is None:
        return None, msg("no MASTER_ADDR is given, so which way the other hosts are is not known")
    if peer.here:
        held = next((i for i in seen.interfaces if any(a.partition("/")[0] == peer.address for a in i.addresses)), None)
        if held is None or held.kind == "loopback":
            return None, msg("{name} is the loopback: no other host is reached by it", name=peer.name)
        return held.name, msg("it has the master's address {address}", address=peer.address)
    if peer.route is None or peer.route.interface is None:
        return None, msg("there is no route to the master {name} ({address})", name=peer.name, address=peer.address)
    return peer.route.interface, msg("the route to the master {address} goes through it", address=peer.address)


def active_adapters(here: Here) -> tuple[str, ...]:
    """RDMA devices with a port that is active; where some are InfiniBand only those, for Ethernet ones may be the host's ordinary network."""
    seen = here.snapshot.get(infiniband.SUBJECT)
    if seen is None:
        return ()
    active = [(d.name, p.link_layer) for d in seen.devices for p in d.ports if p.state == "ACTIVE"]
    of_infiniband = [name for name, layer in active if layer == "InfiniBand"]
    return tuple(dict.fromkeys(of_infiniband or [name for name, _ in active]))


def _infiniband(here: Here) -> Preset:
    base = PRESETS["infiniband"]
    settings, why = dict(base.settings), dict(base.why)
    adapters = active_adapters(here)
    if adapters:
        settings["hca"] = ",".join(adapters)
        why["hca"] = msg("the adapters with an active port, by exact names")
    found, reason = interface(here) if here.several_hosts else (None, NOTHING)
    if found is not None:
        settings["interface"], why["interface"] = found, reason
    unfit = NOTHING if adapters else msg("no adapter here has an active InfiniBand or RoCE port")
    return replace(base, settings=settings, why=why, unfit=unfit)


def _ethernet(here: Here) -> Preset:
    base = PRESETS["ethernet"]
    found, reason = interface(here)
    if found is None:
        return replace(base, unfit=msg("the interface is left to NCCL and Gloo: {why}", why=reason))
    return replace(base, settings={**base.settings, "interface": found}, why={**base.why, "interface": reason})


def _auto(here: Here) -> Preset:
    settings: dict[str, Value] = {}
    why: dict[str, Text] = {}

    def choose(key: str, value: Value, reason: Text) -> None:
        settings[key] = value
        why[key] = reason

    uses_nccl = here.installed.nccl is not None and here.installed.gpus > 0
    if not uses_nccl:
        no_nccl = here.installed.nccl is None
        choose(
            "backend",
            "gloo",
            msg("this torch is built without NCCL") if no_nccl else msg("there is no GPU here"),
        )
    if here.several_hosts:
        found, reason = interface(here)
        if found is not None:
            choose("interface", found, reason)
        choose("timeout", 1800, msg("several hosts do not start at the same moment"))
    if uses_nccl:
        _auto_nccl(here, choose)
    space = _shm_bytes(here)
    if space is not None and space < _SHM_FOR_WORKERS_BYTES:
        choose("loader-workers", 0, _is_small(here, space, msg("workers hand batches over through it")))
    return Preset(
        name="auto",
        title=_TITLE_AUTO,
        cost=msg("that of each setting"),
        settings=settings,
        why=why,
        unfit=NOTHING if settings else msg("nothing here calls for a setting"),
    )


def _auto_nccl(here: Here, choose: Callable[[str, Value, Text], None]) -> None:
    seen = here.snapshot.get(infiniband.SUBJECT)
    adapters = active_adapters(here)
    if seen is not None and seen.devices and not adapters:
        choose("ib", False, msg("{n} adapters, and none has an active port", n=len(seen.devices)))
    elif adapters and here.several_hosts and seen is not None and len(adapters) < len(seen.devices):
        choose("hca", ",".join(adapters), msg("only these have an active port for it"))
    if here.installed.gpus < 2:
        return
    off = _without_memory(here)
    if off:
        choose(
            "cumem-host",
            False,
            msg("NUMA nodes {nodes} lack memory or CPUs, or may not be used: ranks would disagree on host memory", nodes=", ".join(map(str, off))),
        )
    space = _shm_bytes(here)
    # Above 2.23 it is taken where cuMem cannot be had.
    if space is not None and space < _SHM_PER_GPU_BYTES * here.installed.gpus:
        choose("shm", False, _is_small(here, space, msg("NCCL's segments do not fit")))


def _is_small(here: Here, space: int, what: Text) -> Text:
    boxed = here.snapshot.get(container.SUBJECT)
    where = msg(" in this container ({kind})", kind=boxed.kind) if boxed is not None and boxed.kind in _BOXES else NOTHING
    return msg("/dev/shm has {size} MiB{where}: {what}", size=space // 1024**2, where=where, what=what)


def _shm_bytes(here: Here) -> int | None:
    seen = here.snapshot.get(shm.SUBJECT)
    return None if seen is None or seen.space is None else seen.space.total_bytes


def _without_memory(here: Here) -> tuple[int, ...]:
    """Nodes at which a GPU stands and cuMem gets no host memory, where others have some: see cause cumem-host-numa."""
    seen = here.snapshot.get(numa.SUBJECT)
    if seen is None or len(seen.nodes) < 2:
        return ()
    nodes = {n.id: n for n in seen.nodes}
    at = {g.node for g in seen.gpus if g.node is not None and g.node in nodes}
    lacking = {
        n for n in at if nodes[n].memory_bytes == 0 or nodes[n].cpu_count == 0 or (seen.memory_allowed is not None and n not in seen.memory_allowed)
    }
    return tuple(sorted(lacking)) if lacking != at else ()


_CHOSEN: Mapping[str, Callable[[Here], Preset]] = {"infiniband": _infiniband, "ethernet": _ethernet, "auto": _auto}
NAMES = ("auto", *PRESETS)


def preset(name: str, here: Here) -> Preset:
    """One of ours by name. Raises KeyError."""
    if name in _CHOSEN:
        return _CHOSEN[name](here)
    found = PRESETS[name]
    if name == "single-node" and here.several_hosts:
        return replace(found, unfit=msg("{n} hosts take part", n=here.hosts or 0))
    return found
