"""Presets that depend on the machine: `infiniband`, `ethernet`, and `auto`, in which every choice follows from a fact.

The interface is the one that the way to the master's address goes through. The way to the internet tells nothing about the way to the other hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from unhang.facts import container, infiniband, network, numa, shm
from unhang.facts.snapshot import Snapshot
from unhang.settings.presets import PRESETS, Preset
from unhang.settings.setting import Installed, Value
from unhang.text import NOTHING, Text

# The areas of a snapshot that are looked at.
SUBJECTS = tuple(s.id for s in (container.SUBJECT, infiniband.SUBJECT, network.SUBJECT, numa.SUBJECT, shm.SUBJECT))
_TITLE_AUTO = Text("chosen from what this machine has", "根据本机情况选择")
_GIB = 1024**3
# Loader workers hand batches over through it; Docker's default is 64 MiB.
_SHM_FOR_WORKERS_BYTES = _GIB
_BOXES = ("kubernetes", "docker", "podman", "apptainer", "lxc", "container")
# NCCL's segments, of about 10 MiB for each pair of GPUs without direct copies, and some room.
_SHM_PER_GPU_BYTES = 32 * 1024**2


@dataclass(frozen=True, kw_only=True)
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
        return None, Text("the network could not be looked at", "未能查看网络")
    peer = seen.peer
    if peer is None:
        return None, Text("no MASTER_ADDR is given, so which way the other hosts are is not known", "没有给出 MASTER_ADDR，不知道通往其他主机的路径")
    if peer.here:
        held = next((i for i in seen.interfaces if any(a.partition("/")[0] == peer.address for a in i.addresses)), None)
        if held is None or held.kind == "loopback":
            return None, Text("{name} is the loopback: no other host is reached by it", "{name} 是回环地址：从它到不了其他主机").fill(name=peer.name)
        return held.name, Text("it has the master's address {address}", "主节点地址 {address} 在它上面").fill(address=peer.address)
    if peer.route is None or peer.route.interface is None:
        return None, Text("there is no route to the master {name} ({address})", "没有到主节点 {name}（{address}）的路由").fill(
            name=peer.name, address=peer.address
        )
    return peer.route.interface, Text("the route to the master {address} goes through it", "到主节点 {address} 的路由经过它").fill(
        address=peer.address
    )


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
        why["hca"] = Text("the adapters with an active port, by exact names", "端口处于活动状态的网卡（精确名称）")
    found, reason = interface(here) if here.several_hosts else (None, NOTHING)
    if found is not None:
        settings["interface"], why["interface"] = found, reason
    unfit = NOTHING if adapters else Text("no adapter here has an active InfiniBand or RoCE port", "本机没有处于活动状态的 InfiniBand/RoCE 端口")
    return replace(base, settings=settings, why=why, unfit=unfit)


def _ethernet(here: Here) -> Preset:
    base = PRESETS["ethernet"]
    found, reason = interface(here)
    if found is None:
        return replace(base, unfit=Text("the interface is left to NCCL and Gloo: {why}", "接口由 NCCL 和 Gloo 自行选择：{why}").fill(why=reason))
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
            Text("this torch is built without NCCL", "这个 torch 不含 NCCL") if no_nccl else Text("there is no GPU here", "这里没有 GPU"),
        )
    if here.several_hosts:
        found, reason = interface(here)
        if found is not None:
            choose("interface", found, reason)
        choose("timeout", 1800, Text("several hosts do not start at the same moment", "多台主机不会同时启动"))
    if uses_nccl:
        _auto_nccl(here, choose)
    space = _shm_bytes(here)
    if space is not None and space < _SHM_FOR_WORKERS_BYTES:
        choose("loader-workers", 0, _is_small(here, space, Text("workers hand batches over through it", "工作进程通过它交付数据")))
    return Preset(
        name="auto",
        title=_TITLE_AUTO,
        cost=Text("that of each setting", "即各项设置的代价"),
        settings=settings,
        why=why,
        unfit=NOTHING if settings else Text("nothing here calls for a setting", "本机情况不需要任何设置"),
    )


def _auto_nccl(here: Here, choose: Callable[[str, Value, Text], None]) -> None:
    seen = here.snapshot.get(infiniband.SUBJECT)
    adapters = active_adapters(here)
    if seen is not None and seen.devices and not adapters:
        choose("ib", False, Text("{n} adapters, and none has an active port", "有 {n} 块网卡，但没有活动端口").fill(n=len(seen.devices)))
    elif adapters and here.several_hosts and seen is not None and len(adapters) < len(seen.devices):
        choose("hca", ",".join(adapters), Text("only these have an active port for it", "只有这些网卡有可用的活动端口"))
    if here.installed.gpus < 2:
        return
    off = _without_memory(here)
    if off:
        choose(
            "cumem-host",
            False,
            Text(
                "NUMA nodes {nodes} lack memory or CPUs, or may not be used: ranks would disagree on host memory",
                "NUMA 节点 {nodes} 缺少内存或 CPU，或不允许使用：各 rank 对主机内存的结论会不一致",
            ).fill(nodes=", ".join(map(str, off))),
        )
    space = _shm_bytes(here)
    # Above 2.23 it is taken where cuMem cannot be had.
    if space is not None and space < _SHM_PER_GPU_BYTES * here.installed.gpus:
        choose("shm", False, _is_small(here, space, Text("NCCL's segments do not fit", "放不下 NCCL 的共享内存段")))


def _is_small(here: Here, space: int, what: Text) -> Text:
    boxed = here.snapshot.get(container.SUBJECT)
    where = Text(" in this container ({kind})", "（容器：{kind}）").fill(kind=boxed.kind) if boxed is not None and boxed.kind in _BOXES else NOTHING
    return Text("/dev/shm has {size} MiB{where}: {what}", "/dev/shm 只有 {size} MiB{where}：{what}").fill(
        size=space // 1024**2, where=where, what=what
    )


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
        return replace(found, unfit=Text("{n} hosts take part", "有 {n} 台主机参与").fill(n=here.hosts or 0))
    return found
