"""InfiniBand and RoCE adapters as sysfs shows them, the way from them to GPU memory, and NCCL's settings for them."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping

from unhang.facts import job
from unhang.facts.host import Host, NotHere, Subject
from unhang.facts.job import Setting
from unhang.i18n import NOTHING, Text, joined, msg
from unhang.model import frozen
from unhang.text import counted

_BASE = "/sys/class/infiniband"
_MAX_GIDS = 256
_NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
_SETTINGS = ("NCCL_IB_DISABLE", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_PKEY", "NCCL_NET", "NCCL_NET_PLUGIN")
# Where NCCL itself looks; each only where the module is loaded.
_PEER_MEMORY = (
    "/sys/module/nvidia_peermem/version",
    "/sys/kernel/mm/memory_peers/nv_mem/version",
    "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
    "/sys/kernel/mm/memory_peers/nvidia-peermem/version",
    "/sys/module/nv_peer_mem/version",
)
_COUNTERS = (
    "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_rcv_remote_physical_errors", "port_xmit_discards",
    "port_rcv_constraint_errors", "local_link_integrity_errors", "excessive_buffer_overrun_errors", "port_xmit_wait",
    "port_rcv_packets", "port_xmit_packets",
)  # fmt: skip
_HW_COUNTERS = (
    "out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err", "implied_nak_seq_err", "out_of_buffer",
    "roce_adp_retrans", "roce_slow_restart", "np_cnp_sent", "rp_cnp_handled", "rx_icrc_encapsulated", "req_cqe_error", "req_remote_access_errors",
)  # fmt: skip


@frozen
class Gid:
    """An entry of a port's table of addresses. `type` is "IB/RoCE v1" or "RoCE v2", `ipv4` what a mapped address stands for."""

    index: int
    address: str
    type: str | None
    ipv4: str | None


@frozen
class Port:
    """`state` is ACTIVE, INIT, ARMED or DOWN, `physical_state` for example LinkUp, Polling or Disabled; `lanes` is the width of the link.

    `pkeys` are the partition keys by index, those that are not 0. `counters` run since the driver was loaded or somebody reset them.
    """

    number: int
    state: str | None
    physical_state: str | None
    link_layer: str | None
    rate_gbps: float | None
    lanes: int | None
    rate: str | None
    gids: tuple[Gid, ...] | None
    pkeys: Mapping[str, str]
    counters: Mapping[str, int]


@frozen
class Device:
    """`slot` is the PCI card ("0000:5e:00"): the ports of one card are devices of their own there."""

    name: str
    driver: str | None
    board_id: str | None
    firmware: str | None
    slot: str | None
    net_devices: tuple[str, ...]
    ports: tuple[Port, ...]


@frozen
class Infiniband:
    """`verbs_devices` are /dev/infiniband/uverbs*, `verbs_usable` whether this user may open all of them.

    `peer_memory` names the kernel module that lets adapters reach GPU memory; `dmabuf` is whether kernel and GPU driver could do without one.
    `gpus` are the models of NVIDIA's GPUs as its driver names them; None where that cannot be seen.
    """

    devices: tuple[Device, ...]
    verbs_devices: tuple[str, ...]
    verbs_usable: bool | None
    peer_memory: str | None
    dmabuf: bool | None
    kernel: str | None
    gpu_driver: str | None
    gpus: tuple[str, ...] | None
    settings: Mapping[str, Setting]
    net_mtu_bytes: Mapping[str, int]
    unread: tuple[str, ...] = ()


def collect(host: Host) -> Infiniband:
    """Raises NotHere without adapters."""
    unread: list[str] = []
    try:
        names = host.names(_BASE)
    except FileNotFoundError:
        if not host.path("/sys/class").exists():
            raise
        raise NotHere(f"{_BASE} is missing: no driver of an RDMA adapter is loaded") from None
    if not names:
        raise NotHere(f"{_BASE} is empty: there is no RDMA adapter")
    devices = tuple(_device(host, name) for name in names)
    if any(p.state is None for d in devices for p in d.ports) or any(not d.ports for d in devices):
        unread.append("the state of some ports")
    verbs = _verbs(host)
    kernel, driver = host.text("/proc/sys/kernel/osrelease"), next(iter(host.lines("/proc/driver/nvidia/version")), None)
    return Infiniband(
        devices=devices,
        verbs_devices=verbs,
        verbs_usable=all(os.access(host.path(v), os.R_OK | os.W_OK) for v in verbs) if verbs else None,
        peer_memory=next((p.split("/")[-2] for p in _PEER_MEMORY if host.path(p).exists()), None),
        dmabuf=_dmabuf(kernel, driver),
        kernel=kernel,
        gpu_driver=driver,
        gpus=_gpus(host),
        settings={name: found for name in _SETTINGS if (found := job.setting(host, name)) is not None},
        net_mtu_bytes={n: mtu for d in devices for n in d.net_devices if (mtu := host.number(f"/sys/class/net/{n}/mtu"))},
        unread=tuple(unread),
    )


def disabled(seen: Infiniband) -> bool:
    """Whether NCCL was told to leave these adapters alone."""
    off, net = seen.settings.get("NCCL_IB_DISABLE"), seen.settings.get("NCCL_NET")
    return (off is not None and off.value.strip() not in ("", "0")) or (net is not None and net.value.lower() == "socket")


def asked_for(seen: Infiniband, device: Device, port: Port) -> bool | None:
    """Whether NCCL_IB_HCA names a port (True), leaves it out (False), or says nothing of it (None)."""
    wanted = seen.settings.get("NCCL_IB_HCA")
    if wanted is None or not wanted.value.strip("^="):
        return None
    if not job.matches(device.name, wanted.value, port=port.number):
        return False
    return None if wanted.value.startswith("^") else True


def candidates(seen: Infiniband) -> tuple[tuple[Device, Port], ...]:
    """The ports that NCCL's own transport would look at: of InfiniBand or Ethernet, and not left out."""
    return tuple((d, p) for d in seen.devices for p in d.ports if p.link_layer in ("InfiniBand", "Ethernet") and asked_for(seen, d, p) is not False)


def active(seen: Infiniband) -> tuple[tuple[Device, Port], ...]:
    """Those of them that it would use."""
    return () if disabled(seen) else tuple((d, p) for d, p in candidates(seen) if p.state == "ACTIVE")


def _device(host: Host, name: str) -> Device:
    base = f"{_BASE}/{name}"
    numbers = sorted(int(n) for n in host.listed(f"{base}/ports") if n.isdigit())
    bus = host.link_name(f"{base}/device")
    net = host.listed(f"{base}/device/net")
    return Device(
        name=name,
        driver=host.link_name(f"{base}/device/driver"),
        board_id=host.text(f"{base}/board_id"),
        firmware=host.text(f"{base}/fw_ver"),
        slot=bus.rpartition(".")[0] if bus and "." in bus else None,
        net_devices=net,
        ports=tuple(_port(host, f"{base}/ports/{n}", n) for n in numbers),
    )


def _port(host: Host, base: str, number: int) -> Port:
    rate = host.text(f"{base}/rate")
    # "400 Gb/sec (4X NDR)"
    found = re.match(r"([\d.]+) Gb/sec(?: \((\d+)X)?", rate or "")
    counters = {c: v for c in _COUNTERS if (v := host.number(f"{base}/counters/{c}")) is not None}
    counters |= {c: v for c in _HW_COUNTERS if (v := host.number(f"{base}/hw_counters/{c}")) is not None}
    return Port(
        number=number,
        state=_word(host.text(f"{base}/state")),
        physical_state=_word(host.text(f"{base}/phys_state")),
        link_layer=host.text(f"{base}/link_layer"),
        rate_gbps=_float(found[1]) if found else None,
        lanes=int(found[2]) if found and found[2] else None,
        rate=rate,
        gids=_gids(host, base),
        pkeys=_pkeys(host, base),
        counters=counters,
    )


def _gids(host: Host, base: str) -> tuple[Gid, ...] | None:
    try:
        indices = sorted(int(n) for n in host.names(f"{base}/gids") if n.isdigit())[:_MAX_GIDS]
    except OSError:
        return None
    found = []
    for index in indices:
        address = host.text(f"{base}/gids/{index}")
        if address and address != _NO_GID:
            # An unused entry has no type: reading it fails with EINVAL, and so it does in a container whose entry it is not.
            found.append(Gid(index=index, address=address, type=host.text(f"{base}/gid_attrs/types/{index}"), ipv4=_ipv4(address)))
    return tuple(found)


def _ipv4(address: str) -> str | None:
    try:
        mapped = ipaddress.IPv6Address(address).ipv4_mapped
    except ValueError:
        return None
    return None if mapped is None else str(mapped)


def _pkeys(host: Host, base: str) -> Mapping[str, str]:
    indices = sorted((n for n in host.listed(f"{base}/pkeys") if n.isdigit()), key=int)[:_MAX_GIDS]
    read = {n: host.text(f"{base}/pkeys/{n}") for n in indices}
    return {n: key for n, key in read.items() if key and key != "0x0000"}


def _verbs(host: Host) -> tuple[str, ...]:
    return tuple(f"/dev/infiniband/{n}" for n in host.listed("/dev/infiniband") if n.startswith("uverbs"))


def _dmabuf(kernel: str | None, driver: str | None) -> bool | None:
    """Linux 5.12 brought it to verbs; only the open GPU kernel driver exports GPU memory so."""
    version = re.match(r"(\d+)\.(\d+)", kernel or "")
    if version is None or driver is None:
        return None
    return (int(version[1]), int(version[2])) >= (5, 12) and "Open Kernel Module" in driver


def _gpus(host: Host) -> tuple[str, ...] | None:
    try:
        gpus = host.names("/proc/driver/nvidia/gpus")
    except OSError:
        return None
    texts = (host.lines(f"/proc/driver/nvidia/gpus/{g}/information") for g in gpus)
    return tuple(line.partition(":")[2].strip() for text in texts for line in text if line.startswith("Model:"))


def _word(text: str | None) -> str | None:
    """ACTIVE of "4: ACTIVE"."""
    return text.rpartition(":")[2].strip() or None if text else None


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _summary(seen: Infiniband) -> Text:
    ports = [p for d in seen.devices for p in d.ports]
    up = [p for p in ports if p.state == "ACTIVE"]
    rates = sorted({p.rate_gbps for p in up if p.rate_gbps is not None})
    layers = sorted({p.link_layer for p in up if p.link_layer is not None})
    at = NOTHING
    if rates:
        speeds = joined((f"{r:g}" for r in rates), msg(" and "))
        at = msg(" at {speeds} Gb/s ({layers})", speeds=speeds, layers=", ".join(layers))
    return msg(
        "{adapters}, {up} of {all} ports active{at}",
        adapters=counted(len(seen.devices), "adapter"),
        n=len(seen.devices),
        up=len(up),
        all=len(ports),
        at=at,
    )


SUBJECT = Subject(id="infiniband", title=msg("InfiniBand and RoCE", "title"), facts=Infiniband, collect=collect, summary=_summary)
