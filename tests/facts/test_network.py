import json
import subprocess
import sys

import pytest
from tests.tables import for_each

from unhang.facts import network, snapshot_file
from unhang.facts.host import Host

ROUTES = (
    "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
    "eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
    "wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n"
    "eth0\t0000000A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n"
    "eth1\t0000010A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
    "*\t0000020A\t00000000\t0201\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
    "eth2\t00000003\t00000000\t0000\t0\t0\t0\t000000FF\t0\t0\t0\n"
)
ROUTES_6 = (
    "fd000000000000000000000000000000 40 " + "0" * 32 + " 00 " + "0" * 32 + " 00000100 00000001 00000000 00000001     eth1\n"
    "00000000000000000000000000000000 00 " + "0" * 32 + " 00 fe800000000000000000000000000001 00000400 00000002 00000000 00000003     eth0\n"
    "00000000000000000000000000000000 00 " + "0" * 32 + " 00 " + "0" * 32 + " ffffffff 00000001 00000000 00200200       lo\n"
)


def nic(name, *, state="up", flags="0x1003", type="1", device="mlx5_core", **more):
    base = f"/sys/class/net/{name}"
    files = {f"{base}/operstate": f"{state}\n", f"{base}/flags": f"{flags}\n", f"{base}/type": f"{type}\n", f"{base}/mtu": "1500\n"}
    if device:
        files |= {f"{base}/device/driver": f"-> ../../../../bus/pci/drivers/{device}"}
    return files | {f"{base}/{k.replace('__', '/')}": v for k, v in more.items()}


LO = nic("lo", state="unknown", flags="0x9", type="772", device="")


def laid(machine, files, interfaces, *, environ=None, names=None):
    host = machine({"/proc/net/route": ROUTES, "/sys/class/net/bonding_masters": "bond0\n"} | LO | files, environ=environ)
    host.interfaces = {"lo": ("127.0.0.1/8", "::1/128")} | interfaces
    host.names_known = names if names is not None else {"node7": ("10.0.0.7",)}
    return host


def test_kinds_and_states_of_interfaces(machine):
    files = (
        nic("eth0", speed="100000\n", duplex="full\n", mtu="9000\n")
        | nic("eth1", state="down", flags="0x1003", speed="-1\n", duplex="unknown\n")
        | nic("wlan0", uevent="DEVTYPE=wlan\nINTERFACE=wlan0\n")
        | nic("ib0", type="32")
        | nic("docker0", state="down", device="", uevent="DEVTYPE=bridge\n")
        | nic("br0", device="", bridge=None)
        | nic("bond0", device="", bonding=None)
        | nic("slave0", master="-> ../bond0", speed="4294967295\n")
        | nic("tun0", state="unknown", device="", type="65534", tun_flags="0x1001\n")
        | nic("wg0", state="unknown", device="", type="65534", uevent="DEVTYPE=wireguard\n")
        | nic("veth1", device="", ifindex="7\n", iflink="8\n")
        | nic("dummy0", device="", ifindex="9\n", iflink="9\n")
        | nic("vlan5", device="", uevent="DEVTYPE=vlan\n")
    )
    seen = network.collect(laid(machine, files, {"eth0": ("10.0.0.7/24",)}))
    assert {i.name: i.kind for i in seen.interfaces} == {
        "lo": "loopback", "eth0": "ethernet", "eth1": "ethernet", "wlan0": "wireless", "ib0": "infiniband", "docker0": "bridge", "br0": "bridge",
        "bond0": "bond", "slave0": "ethernet", "tun0": "tunnel", "wg0": "tunnel", "veth1": "veth", "dummy0": "virtual", "vlan5": "vlan",
    }  # fmt: skip
    eth0, eth1, slave = (seen.interface(n) for n in ("eth0", "eth1", "slave0"))
    assert (eth0.speed_mbps, eth0.duplex, eth0.mtu_bytes, eth0.driver, eth0.running, eth0.virtual) == (100000, "full", 9000, "mlx5_core", True, False)
    assert (eth1.speed_mbps, eth1.duplex, eth1.up, eth1.running) == (None, None, True, False)
    assert (slave.member_of, slave.speed_mbps) == ("bond0", None)
    assert seen.interface("tun0").running and seen.interface("lo").running
    assert network.SUBJECT.summary(seen) == "eth0 10.0.0.7 100 Gb/s MTU 9000; NCCL takes eth0; Gloo takes eth0"


@for_each(
    ("environ", "interfaces", "taken", "why"),
    [
        ({}, {"eth0": ("10.0.0.7/24",), "ib0": ("10.1.0.7/16",)}, ("ib0",), "names that begin with ib come first"),
        ({}, {"docker0": ("172.17.0.1/16",), "eth0": ("10.0.0.7/24",), "virbr0": ("192.168.122.1/24",)}, ("eth0",), "neither docker, lo nor virbr"),
        ({}, {"docker0": ("172.17.0.1/16",), "virbr0": ("192.168.122.1/24",)}, ("docker0",), "only docker's bridge is left"),
        ({}, {}, ("lo",), "only the loopback is left"),
        # IPv4 addresses of all interfaces come before IPv6.
        ({}, {"eth0": ("fe80::1/64",), "eth1": ("10.1.0.7/16",)}, ("eth1", "eth0"), "neither docker, lo nor virbr"),
        ({"NCCL_SOCKET_FAMILY": "AF_INET6"}, {"eth0": ("10.0.0.7/24",), "eth1": ("fd00::7/64",)}, ("eth1",), "neither docker, lo nor virbr"),
        ({"NCCL_SOCKET_IFNAME": "eth"}, {"eth0": ("10.0.0.7/24",), "ib0": ("10.1.0.7/16",)}, ("eth0",), "NCCL_SOCKET_IFNAME=eth in the environment"),
        ({"NCCL_SOCKET_IFNAME": "ens3"}, {"eth0": ("10.0.0.7/24",)}, (), "NCCL_SOCKET_IFNAME=ens3 in the environment"),
        ({"NCCL_SOCKET_IFNAME": "e"}, {"docker0": ("172.17.0.1/16",)}, ("docker0",), "only docker's bridge is left"),  # of one letter: as if unset
        (
            {"NCCL_COMM_ID": "10.1.0.1:2345"},
            {"eth0": ("10.0.0.7/24",), "eth1": ("10.1.0.7/16",)},
            None,
            "it depends on NCCL_COMM_ID=10.1.0.1:2345",
        ),
    ],
)
def test_what_nccl_would_take(machine, environ, interfaces, taken, why):
    files = {k: v for n in interfaces for k, v in nic(n, type="32" if n == "ib0" else "1").items()}
    seen = network.collect(laid(machine, files, interfaces, environ=environ))
    assert (seen.nccl.interfaces, seen.nccl.why) == (taken, why)


def test_nccl_passes_over_what_is_not_running(machine):
    files = nic("ib0", state="down", type="32") | nic("eth0")
    seen = network.collect(laid(machine, files, {"ib0": ("10.1.0.7/16",), "eth0": ("10.0.0.7/24",)}))
    assert seen.nccl.interfaces == ("eth0",)


@pytest.mark.parametrize(
    ("environ", "names", "taken", "why"),
    [
        ({}, {"node7": ("10.0.0.7",)}, ("eth0",), "the host's name resolves to 10.0.0.7"),
        ({}, {"node7": ("127.0.1.1",)}, ("lo",), "the host's name resolves to 127.0.1.1"),
        ({}, {"node7": ("10.9.9.9", "10.0.0.7")}, ("eth0",), "the host's name resolves to 10.0.0.7"),
        ({}, {"node7": ("10.9.9.9",)}, ("lo",), "the host's name resolves to 10.9.9.9, no address of this host, and then it is the loopback"),
        ({}, {}, None, "what the host's name resolves to is not known"),
        ({"GLOO_SOCKET_IFNAME": "eth0,eth1"}, {}, ("eth0",), "GLOO_SOCKET_IFNAME=eth0,eth1 in the environment"),
    ],
)
def test_what_gloo_would_take(machine, environ, names, taken, why):
    seen = network.collect(laid(machine, nic("eth0"), {"eth0": ("10.0.0.7/24",)}, environ=environ, names=names))
    assert (seen.gloo.interfaces, seen.gloo.why) == (taken, why)


@pytest.mark.parametrize(
    ("address", "interface", "gateway", "here"),
    [
        ("10.0.0.9", "eth0", None, False),
        ("10.1.44.1", "eth1", None, False),
        ("8.8.8.8", "eth0", "10.0.0.1", False),
        ("10.2.0.1", None, None, False),  # refused by a route of its own
        ("fd00::9", "eth1", None, False),
        ("2001:db8::1", "eth0", "fe80::1", False),
        ("10.0.0.7", None, None, True),
        ("127.0.0.1", None, None, True),
    ],
)
def test_the_way_to_the_master(machine, address, interface, gateway, here):
    host = laid(machine, nic("eth0") | nic("eth1") | {"/proc/net/ipv6_route": ROUTES_6}, {"eth0": ("10.0.0.7/24",)}, environ={"MASTER_ADDR": address})
    peer = network.collect(host).peer
    assert peer.here is here
    assert (peer.route.interface, peer.route.gateway) == (interface, gateway) if interface else peer.route is None
    assert [r.interface for r in network.collect(host).default_routes] == ["eth0", "wlan0", "eth0"]


def test_of_a_directory_only_addresses_are_missing(machine):
    seen = network.collect(machine(nic("eth0")))
    assert seen.nccl.interfaces is None and seen.gloo.interfaces is None and seen.peer is None
    assert seen.unread == ("the addresses of interfaces, and so what NCCL and Gloo would choose", "routes")


@pytest.mark.parametrize("junk", ["", "\0", "x\n", "eth0 zz zz zz\n" * 3, "9" * 50, "-5", "eth0\t1\t2\t0003\t0\t0\t0\t3\n"])
def test_damaged_files(machine, junk):
    base = "/sys/class/net/eth0"
    files = {f"{base}/{n}": junk for n in ("operstate", "flags", "type", "mtu", "speed", "duplex", "uevent", "ifindex", "iflink")}
    host = laid(
        machine, files | {"/proc/net/ipv6_route": junk}, {"eth0": ("10.0.0.7/24",)}, environ={"MASTER_ADDR": "10.0.0.9", "NCCL_COMM_ID": junk}
    )
    host.path("/proc/net/route").write_text(junk)
    network.SUBJECT.summary(network.collect(host))


def test_no_interfaces_anywhere(machine):
    with pytest.raises(OSError):
        network.collect(machine())


def test_this_machine():
    seen = network.collect(Host())
    assert seen.interface("lo").kind == "loopback"
    assert "routes" not in seen.unread


IN_A_NAMESPACE = """
mount -t sysfs sysfs /sys || exit 77
ip link add veth7 type veth peer name veth8 || exit 77
ip addr add 10.77.0.1/24 dev veth7; ip addr add 10.78.0.1/24 dev veth8
ip link set lo up; ip link set veth7 mtu 1400; ip link set veth8 up
ip link set veth7 up; ip route add 10.99.0.0/16 via 10.77.0.2
"$0" -c "$1" || exit 3
"""
LOOK = """
from unhang.facts import snapshot, snapshot_file
from unhang.facts.host import Host
import sys
sys.stdout.buffer.write(snapshot_file.encode(snapshot.take(Host(), only=["network"])))
"""


def test_real_interfaces_in_a_namespace_of_its_own():
    argv = ["unshare", "--map-root-user", "--net", "--mount", "bash", "-c", IN_A_NAMESPACE, sys.executable, LOOK]
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "MASTER_ADDR": "10.99.3.4"}
    try:
        done = subprocess.run(argv, capture_output=True, timeout=30, env=environ, check=False)
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    if done.returncode in (1, 77, 127):
        pytest.skip(f"no network namespaces here: {done.stderr.decode().strip()}")
    assert done.returncode == 0, done.stderr.decode()
    seen = snapshot_file.decode(done.stdout, name="stdout").get(network.SUBJECT)
    assert {i.name for i in seen.interfaces} >= {"lo", "veth7", "veth8"}
    veth = seen.interface("veth7")
    assert (veth.kind, veth.virtual, veth.running, veth.mtu_bytes, veth.addresses[0]) == ("veth", True, True, 1400, "10.77.0.1/24")
    assert (seen.peer.route.interface, seen.peer.route.gateway) == ("veth7", "10.77.0.2")
    assert set(seen.nccl.interfaces) >= {"veth7", "veth8"}
    assert json.loads(done.stdout)["parts"]["network"]["state"] == "read"
