"""Interfaces, routes, names and sockets, and the adapters of InfiniBand and RoCE."""

from __future__ import annotations

import ipaddress

from tests.hosts import pci
from tests.hosts.part import Part, all_of

_UP, _GATEWAY = 0x1, 0x2
_NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
_TCP = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode" + " " * 53 + "\n"
_ROUTES = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT" + " " * 55 + "\n"


def interface(
    name: str,
    address: str = "",
    *,
    at: str = "",
    driver: str = "",
    speed: int | None = 25000,
    mtu: int = 1500,
    state: str = "up",
    kind: str = "1",
    index: int = 2,
    linked: int | None = None,
    **more: str | None,
) -> Part:
    """One interface; `at` is its device below /sys/devices ("" for a virtual one), `linked` the other end of a veth. `more` are further files."""
    home = f"devices/{at}/net/{name}" if at else f"devices/virtual/net/{name}"
    files: dict[str, str | None] = {
        f"/sys/class/net/{name}": f"-> ../../{home}",
        f"/sys/{home}/operstate": f"{state}\n",
        f"/sys/{home}/flags": f"{'0x1003' if state != 'down' else '0x1002'}\n",
        f"/sys/{home}/type": f"{kind}\n",
        f"/sys/{home}/mtu": f"{mtu}\n",
        f"/sys/{home}/ifindex": f"{index}\n",
        f"/sys/{home}/iflink": f"{linked or index}\n",
    } | {f"/sys/{home}/{file}": text for file, text in more.items()}
    # Reading them fails (EINVAL) where the driver has none, and while the interface is down.
    if speed is not None and kind != "772" and state == "up":
        files |= {f"/sys/{home}/speed": f"{speed}\n", f"/sys/{home}/duplex": "full\n"}
    if at:
        files[f"/sys/{home}/device"] = f"-> ../../../{at.rpartition('/')[2]}"
        files[f"/sys/devices/{at}/driver"] = f"-> {'../' * (at.count('/') + 2)}bus/pci/drivers/{driver}"
    return Part(files=files, interfaces={name: (address,) if address else ()})


def loopback() -> Part:
    return interface("lo", mtu=65536, state="unknown", kind="772", index=1) | Part(interfaces={"lo": ("127.0.0.1/8", "::1/128")})


def routes(name: str, address: str, gateway: str) -> Part:
    """The net of an interface, and the default route through it."""
    net = ipaddress.ip_interface(address).network

    def row(to: str, via: str, flags: int, metric: int, mask: str) -> str:
        words = [ipaddress.ip_address(a).packed[::-1].hex().upper() for a in (to, via, mask)]
        return f"{name}\t{words[0]}\t{words[1]}\t{flags:04X}\t0\t0\t{metric}\t{words[2]}\t0\t0\t0{' ' * 66}\n"

    rows = row("0.0.0.0", gateway, _UP | _GATEWAY, 100, "0.0.0.0") + row(str(net.network_address), "0.0.0.0", _UP, 100, str(net.netmask))
    return Part(files={"/proc/net/route": _ROUTES + rows, "/proc/net/ipv6_route": ""})


def names(host: str, address: str, *, in_hosts: str | None = None) -> Part:
    """The host's own name; `in_hosts` is its address in /etc/hosts where that is another than its interface's."""
    own = in_hosts or address
    return Part(
        files={
            "/etc/hostname": f"{host}\n",
            "/etc/hosts": f"127.0.0.1\tlocalhost\n{own}\t{host}.cluster.example {host}\n::1\tlocalhost ip6-localhost ip6-loopback\n",
            "/etc/resolv.conf": "# made by hand\nnameserver 10.0.0.2\nsearch cluster.example\n",
        },
        names_known={host: (own,), "localhost": ("127.0.0.1",)},
    )


def sockets(*ports: int, address: str = "00000000") -> Part:
    """Listeners; sshd on 22 is always there."""
    rows = "".join(
        f"{n:4}: {address}:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 {1000 + n} 1 0 100 0 0 10 0\n"
        for n, port in enumerate((22, *ports))
    )
    return Part(
        files={
            "/proc/net/tcp": _TCP + rows,
            "/proc/net/tcp6": _TCP,
            "/proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
            "/proc/sys/net/ipv4/ip_local_reserved_ports": "\n",
        }
    )


def network(
    host: str, address: str, gateway: str, *, card: str = "eno1", driver: str = "ixgbe", mtu: int = 1500, in_hosts: str | None = None
) -> Part:
    """One adapter for everything."""
    at = "pci0000:00/0000:00:1c.0"
    return all_of(
        loopback(),
        pci.function(at, pci.ETHERNET, vendor=pci.INTEL, device="0x1563", driver=driver, lanes=4),
        interface(card, address, at=at, driver=driver, mtu=mtu),
        routes(card, address, gateway),
        names(host, address.partition("/")[0], in_hosts=in_hosts),
        sockets(),
    )


def infiniband(
    number: int, at: str, *, state: str = "4: ACTIVE", physical: str = "5: LinkUp", rate: str = "400 Gb/sec (4X NDR)", node: int = 0
) -> Part:
    """A ConnectX-7 with one port, plugged in at `at`."""
    gids = {"gids/0": f"fe80:0000:0000:0000:a088:c203:0096:1b{number:02x}", "gids/1": _NO_GID}
    return _adapter(number, at, "InfiniBand", state, physical, rate, node, gids) | interface(
        f"ib{number}", at=at, driver="mlx5_core", kind="32", mtu=2044, state="up" if state.endswith("ACTIVE") else "down"
    )


def roce(number: int, at: str, *, address: str | None = "192.168.{}.7", mtu: int = 9000, node: int = 0) -> Part:
    """The same of Ethernet. Without an address only the link-local GIDs of both versions are there."""
    card, own = f"ens{number}np0", None if address is None else f"{address.format(number)}/24"
    link_local = f"fe80:0000:0000:0000:a288:c2ff:fe96:1b{number:02x}"
    table = [(link_local, "IB/RoCE v1"), (link_local, "RoCE v2")]
    if own is not None:
        packed = ipaddress.ip_interface(own).ip.packed.hex()
        mapped = f"0000:0000:0000:0000:0000:ffff:{packed[:4]}:{packed[4:]}"
        table += [(mapped, "IB/RoCE v1"), (mapped, "RoCE v2")]
    gids = {f"gids/{n}": gid for n, (gid, _) in enumerate(table)} | {f"gids/{len(table)}": _NO_GID}
    gids |= {f"gid_attrs/types/{n}": kind for n, (_, kind) in enumerate(table)} | {f"gid_attrs/ndevs/{n}": card for n in range(len(table))}
    adapter = _adapter(number, at, "Ethernet", "4: ACTIVE", "5: LinkUp", "400 Gb/sec (4X NDR)", node, gids)
    return adapter | interface(card, own or "", at=at, driver="mlx5_core", speed=400000, mtu=mtu)


def _adapter(number: int, at: str, layer: str, state: str, physical: str, rate: str, node: int, gids: dict[str, str]) -> Part:
    name = f"mlx5_{number}"
    home = f"devices/{at}/infiniband/{name}"
    port = {
        "state": state,
        "phys_state": physical,
        "link_layer": layer,
        "rate": rate,
        "pkeys/0": "0xffff" if layer == "Ethernet" else "0x7fff" if state.endswith("INIT") else "0xffff",
        "pkeys/1": "0x0000",
        "counters/symbol_error": "0",
        "counters/link_downed": "1",
        "counters/link_error_recovery": "0",
        "counters/port_rcv_errors": "0",
        "counters/port_rcv_packets": "90871253",
        "counters/port_xmit_packets": "90871251",
        "hw_counters/local_ack_timeout_err": "0",
        "hw_counters/out_of_sequence": "0",
    } | gids
    files: dict[str, str | None] = {f"/sys/{home}/ports/1/{file}": f"{text}\n" for file, text in port.items()}
    files |= {
        f"/sys/class/infiniband/{name}": f"-> ../../{home}",
        f"/sys/{home}/device": f"-> ../../../{at.rpartition('/')[2]}",
        f"/sys/{home}/board_id": "MT_0000000838\n",
        f"/sys/{home}/fw_ver": "28.39.2048\n",
        f"/dev/infiniband/uverbs{number}": "",
        "/dev/infiniband/rdma_cm": "",
    }
    kind = pci.INFINIBAND if layer == "InfiniBand" else pci.ETHERNET
    return pci.function(at, kind, vendor=pci.MELLANOX, device="0x1021", node=node, driver="mlx5_core") | Part(files=files)
