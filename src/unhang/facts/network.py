"""Network interfaces, the routes that matter, and which interfaces NCCL and Gloo would take."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal

from unhang.facts import job, names
from unhang.facts.host import Host, Subject
from unhang.facts.job import Job, Setting
from unhang.i18n import NOTHING, Text, joined, msg, same
from unhang.model import frozen

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot

Kind = Literal["loopback", "ethernet", "wireless", "infiniband", "bond", "bridge", "vlan", "vxlan", "veth", "tunnel", "virtual"]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# ARPHRD_ numbers of /sys/class/net/*/type.
_LOOPBACK, _INFINIBAND, _TUNNELS = "772", "32", ("65534", "768", "769", "776", "778", "512")
_TUNNEL_NAMES = ("tun", "tap", "wg", "tailscale", "zt", "ppp", "utun", "nebula", "ipsec")
_DEVTYPES: dict[str, Kind] = {
    "wlan": "wireless", "bond": "bond", "bridge": "bridge", "vlan": "vlan", "vxlan": "vxlan", "wireguard": "tunnel", "ppp": "tunnel",
    "gre": "tunnel", "geneve": "vxlan",
}  # fmt: skip
_UP, _RTF_UP, _RTF_GATEWAY, _RTF_REJECT = 0x1, 0x1, 0x2, 0x200


@frozen
class Interface:
    """`up` is what the administrator said, `running` whether it can carry anything now; `speed_mbps` and `duplex` are None where the driver has none.

    `virtual` is one without a device of its own (a container's eth0 is). `member_of` is the bond or bridge that it belongs to.
    """

    name: str
    kind: Kind
    virtual: bool
    up: bool | None
    running: bool | None
    state: str | None
    speed_mbps: int | None
    duplex: str | None
    mtu_bytes: int | None
    driver: str | None
    member_of: str | None
    addresses: tuple[str, ...]


@frozen
class Route:
    """`to` is the net, `gateway` None where it is reached directly. `interface` is None where the kernel refuses what goes there."""

    to: str
    interface: str | None
    gateway: str | None = None


@frozen
class Peer:
    """The way to MASTER_ADDR: `here` where that is this very host; `route` None where there is none."""

    name: str
    address: str
    here: bool
    route: Route | None


@frozen
class Choice:
    """The interfaces that a library would take, the first one for meeting the others; None where that cannot be told. `asked` is what names them."""

    interfaces: tuple[str, ...] | None
    why: str
    asked: Setting | None = None


@frozen
class Network:
    """Interfaces in the order in which the kernel lists their addresses, which is the order in which NCCL takes them.

    Routes are those of the main table (policy routing is not looked at).
    """

    interfaces: tuple[Interface, ...]
    default_routes: tuple[Route, ...]
    peer: Peer | None
    nccl: Choice
    gloo: Choice
    job: Job
    unread: tuple[str, ...] = ()

    def interface(self, name: str | None) -> Interface | None:
        return next((i for i in self.interfaces if i.name == name), None)


def collect(host: Host) -> Network:
    """Raises OSError where neither /sys/class/net nor the kernel tells of interfaces."""
    unread: list[str] = []
    here = job.of(host.environ)
    interfaces, known = look(host)
    if not known:
        unread.append("the addresses of interfaces, and so what NCCL and Gloo would choose")
    # The kernel's tables, best first: the longest prefix, then the smallest metric.
    found: _Routes = []
    for path, read in (("/proc/net/route", _ipv4_route), ("/proc/net/ipv6_route", _ipv6_route)):
        try:
            lines = host.read(path).splitlines()
        except OSError:
            if path == "/proc/net/route":
                unread.append("routes")
            continue
        found += _read(lines, read)
    routes = sorted(found, key=lambda r: (-r[0].prefixlen, r[1]))
    unknown = Choice(interfaces=None, why="the addresses of interfaces are not known")
    nccl = _nccl(host, interfaces) if known else unknown
    if known and nccl.interfaces is None:
        unread.append(f"which interface NCCL takes: {nccl.why}")
    return Network(
        interfaces=interfaces,
        default_routes=tuple(r for net, _, r in routes if net.prefixlen == 0 and r.interface is not None),
        peer=_peer(host, here, interfaces, routes, unread),
        nccl=nccl,
        gloo=_gloo(host, interfaces) if known else unknown,
        job=here,
        unread=tuple(unread),
    )


def look(host: Host) -> tuple[tuple[Interface, ...], bool]:
    """The interfaces, and whether their addresses are known. Raises OSError as `collect` does."""
    try:
        addresses = {name: tuple(found) for name, found in host.addresses().items()}
        known = True
    except OSError:
        addresses, known = {}, False
    try:
        present = [n for n in host.names("/sys/class/net") if host.path(f"/sys/class/net/{n}").is_dir()]
    except OSError:
        if not known:
            raise
        present = []
    # /sys may be that of another network namespace.
    listed = [*addresses, *(n for n in present if n not in addresses)]
    return tuple(_interface(host, name, addresses.get(name, ())) for name in listed), known


def several_hosts(snapshot: Snapshot) -> bool:
    """Whether something says that the job runs on more hosts than this."""
    seen = snapshot.get(SUBJECT)
    return seen is not None and ((seen.job.hosts or 1) > 1 or (seen.peer is not None and not seen.peer.here))


def uplink(network: Network) -> Interface | None:
    """The interface towards the other hosts: of the route to MASTER_ADDR, or of the default route."""
    routes = [network.peer.route] if network.peer is not None and not network.peer.here else []
    found = (network.interface(r.interface) for r in [*routes, *network.default_routes] if r is not None)
    return next((i for i in found if i is not None), None)


def addressed(interface: Interface) -> bool:
    """Whether Gloo would take it: with an address, and up; the kernel lets nobody bind to the address of one that is down."""
    return bool(interface.addresses) and interface.up is not False


def usable(interface: Interface) -> bool:
    """Whether NCCL would take it: with an address, and running."""
    return bool(interface.addresses) and interface.running is not False


def _interface(host: Host, name: str, addresses: tuple[str, ...]) -> Interface:
    base = f"/sys/class/net/{name}"
    state, flags = host.text(f"{base}/operstate"), host.text(f"{base}/flags")
    up = None if flags is None else bool(_hexadecimal(flags) & _UP)
    speed = host.number(f"{base}/speed")
    duplex = host.text(f"{base}/duplex")
    virtual = not host.path(f"{base}/device").exists()
    return Interface(
        name=name,
        kind=_kind(host, name, base, virtual),
        virtual=virtual,
        up=up,
        # The kernel's IFF_RUNNING: loopback and many virtual drivers leave the state at "unknown".
        running=None if up is None or state is None else up and state in ("up", "unknown"),
        state=state,
        # The kernel writes -1, or 2^32 - 1, where the driver does not know.
        speed_mbps=speed if speed is not None and 0 < speed < 1 << 31 else None,
        duplex=duplex if duplex in ("full", "half") else None,
        mtu_bytes=host.number(f"{base}/mtu") or None,
        driver=host.link_name(f"{base}/device/driver"),
        member_of=host.link_name(f"{base}/master"),
        addresses=addresses,
    )


def _kind(host: Host, name: str, base: str, virtual: bool) -> Kind:
    number = host.text(f"{base}/type")
    devtype = next((line[8:] for line in host.lines(f"{base}/uevent") if line.startswith("DEVTYPE=")), "")
    if number == _LOOPBACK:
        return "loopback"
    if number == _INFINIBAND:
        return "infiniband"
    if devtype in _DEVTYPES:
        return _DEVTYPES[devtype]
    if host.path(f"{base}/tun_flags").exists() or number in _TUNNELS or (virtual and name.startswith(_TUNNEL_NAMES)):
        return "tunnel"
    for part, kind in (("bonding", "bond"), ("bridge", "bridge"), ("wireless", "wireless")):
        if host.path(f"{base}/{part}").is_dir():
            return kind  # type: ignore[return-value]
    if not virtual:
        return "ethernet"
    # A veth's other end is another interface, in this namespace or in another.
    index, link = host.text(f"{base}/ifindex"), host.text(f"{base}/iflink")
    return "veth" if index and link and index != link else "virtual"


def _nccl(host: Host, interfaces: tuple[Interface, ...]) -> Choice:
    """NCCL's ncclFindInterfaces (2.2x to 2.32): what is asked for; else ib*, the subnet of NCCL_COMM_ID, all but docker*, lo*, virbr*, then those."""
    family = (job.setting(host, "NCCL_SOCKET_FAMILY") or Setting(name="", value="", place="")).value
    versions = {"AF_INET": (4,), "AF_INET6": (6,)}.get(family, (4, 6))
    # getifaddrs lists the IPv4 addresses of all interfaces first.
    ready = tuple(
        dict.fromkeys(
            i.name
            for version in versions
            for i in interfaces
            if usable(i) and any(_is(version, a) and not (version == 6 and job.is_loopback(_bare(a))) for a in i.addresses)
        )
    )
    asked = job.setting(host, "NCCL_SOCKET_IFNAME")
    if asked is not None and len(asked.value) > 1:
        why = f"NCCL_SOCKET_IFNAME={asked.value} in {asked.place}"
        return Choice(interfaces=tuple(n for n in ready if job.matches(n, asked.value)), why=why, asked=asked)
    if found := _of(ready, "ib"):
        return Choice(interfaces=found, why="names that begin with ib come first")
    if (meeting := job.setting(host, "NCCL_COMM_ID")) is not None:
        return Choice(interfaces=None, why=f"it depends on NCCL_COMM_ID={meeting.value}", asked=meeting)
    steps = (("^docker,lo,virbr", "neither docker, lo nor virbr"), ("docker", "only docker's bridge is left"), ("lo", "only the loopback is left"))
    for pattern, why in (*steps, ("virbr", "only libvirt's bridge is left")):
        if found := _of(ready, pattern):
            return Choice(interfaces=found, why=why)
    return Choice(interfaces=(), why="no interface is running with an address")


def _of(ready: tuple[str, ...], pattern: str) -> tuple[str, ...]:
    return tuple(n for n in ready if job.matches(n, pattern))


def _gloo(host: Host, interfaces: tuple[Interface, ...]) -> Choice:
    """torch: the interfaces of GLOO_SOCKET_IFNAME (exact names), else the first address of the host's name that can be bound, else the loopback."""
    value = host.environ.get("GLOO_SOCKET_IFNAME", "")
    if len(value) > 1:
        asked = Setting(name="GLOO_SOCKET_IFNAME", value=value, place="the environment")
        named = value.split(",")
        found = tuple(n for n in named for i in interfaces if i.name == n and addressed(i))
        return Choice(interfaces=found, why=f"GLOO_SOCKET_IFNAME={value} in the environment", asked=asked)
    own = names.ask(host, host.hostname())
    if own.addresses is None and not own.error:
        return Choice(interfaces=None, why="what the host's name resolves to is not known")
    loopback = tuple(i.name for i in interfaces if i.kind == "loopback")[:1]
    for address in own.addresses or ():
        holder = next((i.name for i in interfaces if any(_bare(a) == address for a in i.addresses)), None)
        if holder is not None or job.is_loopback(address):
            return Choice(interfaces=(holder,) if holder else loopback, why=f"the host's name resolves to {address}")
    said = f"resolves to {own.addresses[0]}, no address of this host" if own.addresses else "does not resolve"
    return Choice(interfaces=loopback, why=f"the host's name {said}, and then it is the loopback")


_Routes = list[tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, int, Route]]


def _read(lines: Iterable[str], read: Callable[[list[str]], _Routes]) -> _Routes:
    found: _Routes = []
    for line in lines:
        try:
            found += read(line.split())
        except (ValueError, IndexError):  # a header, or a line that the kernel cut
            continue
    return found


def _ipv4_route(words: list[str]) -> _Routes:
    flags = int(words[3], 16)
    if not flags & _RTF_UP:
        return []
    to, gateway, mask = (bytes.fromhex(words[i])[::-1] for i in (1, 2, 7))
    net = ipaddress.IPv4Network((int.from_bytes(to, "big"), bin(int.from_bytes(mask, "big")).count("1")))
    via = str(ipaddress.IPv4Address(gateway)) if flags & _RTF_GATEWAY else None
    return [(net, int(words[6]), Route(to=str(net), interface=None if flags & _RTF_REJECT else words[0], gateway=via))]


def _ipv6_route(words: list[str]) -> _Routes:
    flags = int(words[8], 16)
    if not flags & _RTF_UP or words[9] == "lo":
        return []
    net = ipaddress.IPv6Network((bytes.fromhex(words[0]), int(words[1], 16)))
    via = str(ipaddress.IPv6Address(bytes.fromhex(words[4]))) if flags & _RTF_GATEWAY else None
    return [(net, int(words[5], 16), Route(to=str(net), interface=None if flags & _RTF_REJECT else words[9], gateway=via))]


def _peer(host: Host, here: Job, interfaces: tuple[Interface, ...], routes: _Routes, unread: list[str]) -> Peer | None:
    if here.master_addr is None:
        return None
    try:
        found: tuple[str, ...] | None = (str(ipaddress.ip_address(here.master_addr)),)
    except ValueError:
        found = names.ask(host, here.master_addr).addresses
    if not found:
        return None
    own = {_bare(a) for i in interfaces for a in i.addresses}
    first = next((a for a in found if a in own or job.is_loopback(a)), None)
    if first is not None:
        return Peer(name=here.master_addr, address=first, here=True, route=None)
    if "routes" in unread or not own:
        return None
    address = ipaddress.ip_address(found[0].partition("%")[0])
    best = next((r for net, _, r in routes if net.version == address.version and address in net), None)
    return Peer(name=here.master_addr, address=found[0], here=False, route=None if best is None or best.interface is None else best)


def _bare(address: str) -> str:
    return address.partition("/")[0]


def _is(version: int, address: str) -> bool:
    return (":" in address) == (version == 6)


def _hexadecimal(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0


def _summary(network: Network) -> Text:
    parts = [_one(i) for i in network.interfaces if i.kind != "loopback" and usable(i)]
    more = msg(" and {n} more", "network", n=len(parts) - 3, all=len(parts)) if len(parts) > 3 else NOTHING
    running = same(", ".join(parts[:3])) + more if parts else msg("no interface is running with an address")
    chosen = [
        msg("{name} takes {which}", name=name, which=",".join(c.interfaces[:3]) or msg("none"))
        for name, c in (("NCCL", network.nccl), ("Gloo", network.gloo))
        if c.interfaces is not None
    ]
    return joined((running, *chosen))


def _one(interface: Interface) -> str:
    speed = "" if interface.speed_mbps is None or interface.virtual else f" {interface.speed_mbps / 1000:g} Gb/s"
    return f"{interface.name} {_bare(interface.addresses[0])}{speed} MTU {interface.mtu_bytes}"


SUBJECT = Subject(id="network", title=msg("network", "title"), facts=Network, collect=collect, summary=_summary)
