"""Interfaces, MTU, names, ports and the firewall of one host, as the causes judge them."""

import json
import shutil
import subprocess

import pytest
from tests.tables import for_each

from unhang.facts import snapshot, snapshot_file
from unhang.facts.host import Ran
from unhang.knowledge import catalogue

CAUSES = tuple(catalogue.load()[id] for id in ("interface-selection", "network-mtu", "network-blocked", "dns-resolution", "port-in-use"))
TWO = {"NNODES": "2"}
ROUTES = (
    "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
    "eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
    "eth0\t0000000A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n"
)
PORTS = {"/proc/net/tcp": "  sl  local_address\n", "/proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n"}


def nic(name, *, state="up", type="1", device="", **more):
    base = f"/sys/class/net/{name}"
    files = {f"{base}/operstate": state, f"{base}/flags": "0x1003", f"{base}/type": type, f"{base}/mtu": "1500"}
    files |= {f"{base}/device/driver": f"-> ../drivers/{device}"} if device else {}
    return files | {f"{base}/{k.replace('__', '/')}": v for k, v in more.items()}


SANE = nic("lo", state="unknown", type="772", mtu="65536") | nic("eth0", device="ena", speed="25000", duplex="full") | PORTS


def found(machine, *, files=None, interfaces=None, environ=None, names=None, routes=ROUTES, commands=None):
    host = machine(SANE | {"/proc/net/route": routes, "/proc/net/netfilter": None} | (files or {}), environ=environ)
    host.interfaces = {"lo": ("127.0.0.1/8",), "eth0": ("10.0.0.7/24",)} | (interfaces or {})
    host.names_known = {"node7": ("10.0.0.7",)} | (names or {})
    host.commands = {argv: Ran(exitcode=0, out=text, err="") for argv, text in (commands or {}).items()}
    taken = snapshot.take(host, only=["network", "names", "ports", "firewall", "infiniband", "container"])
    taken = snapshot_file.decode(snapshot_file.encode(taken), name="itself")
    assert all(p.state != "unknown" for id, p in taken.parts.items() if id != "infiniband"), taken.parts
    return [f for c in CAUSES for f in c.on_host(taken)]


def listening(port, inode=12):
    return f"  sl\n   0: 00000000:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 {inode} 1 0 100 0 0 10 0\n"


@for_each(
    "more",
    [
        {},
        {"environ": TWO | {"MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "29500", "NODE_RANK": "1", "NCCL_SOCKET_IFNAME": "eth0"}},
        {"environ": TWO | {"MASTER_ADDR": "node7", "MASTER_PORT": "29500", "NODE_RANK": "0", "GLOO_SOCKET_IFNAME": "eth0"}},
        # One host alone may meet over whatever there is.
        {"environ": {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "localhost"}, "names": {"localhost": ("127.0.0.1",)}},
        # A host that runs containers: its bridge comes after the network.
        {"files": nic("docker0", uevent="DEVTYPE=bridge", bridge=None), "interfaces": {"docker0": ("172.17.0.1/16",)}},
        {"files": nic("br-0123456789ab", bridge=None), "interfaces": {"br-0123456789ab": ("172.18.0.1/16",)}},
        # A laptop whose VPN comes after its network.
        {"files": nic("tun0", type="65534", tun_flags="1"), "interfaces": {"tun0": ("10.8.0.2/24",)}},
        # An adapter without a cable.
        {"files": nic("eth1", state="down", device="ena", speed="10", duplex="half")},
        {"files": {"/proc/net/tcp": listening(8080)}},
        # Kubernetes: the first pod has MASTER_ADDR=localhost, and a service stands before the first pod elsewhere.
        {"environ": TWO | {"MASTER_ADDR": "localhost", "RANK": "0"}, "names": {"localhost": ("127.0.0.1",)}},
        {"files": {"/proc/net/tcp": listening(29500)}, "environ": {"TORCHELASTIC_RUN_ID": "x", "MASTER_PORT": "29500", "RANK": "0"}},
        {"files": {"/proc/net/tcp": listening(29500)}, "environ": {"MASTER_PORT": "29500", "NODE_RANK": "1"}},
    ],
)
def test_a_sane_machine(machine, more):
    assert found(machine, **more) == []


def test_nothing_known_nothing_found(machine):
    taken = snapshot.take(machine(), only=["network", "names", "ports", "firewall"])
    assert [f for c in CAUSES for f in c.on_host(taken)] == []
    assert [f for c in CAUSES for f in c.on_host(snapshot.take(machine(), only=["memory"]))] == []


def test_an_interface_that_is_not_there(machine):
    nccl, gloo = found(machine, environ={"NCCL_SOCKET_IFNAME": "ens3", "GLOO_SOCKET_IFNAME": "eth0,ens3"})
    assert (nccl.severity, nccl.area) == (gloo.severity, gloo.area) == ("error", "network")
    assert nccl.says == "NCCL_SOCKET_IFNAME=ens3 matches no interface that is running with an address; this host has lo, eth0"
    assert [r.command for r in nccl.remedies] == ["unset NCCL_SOCKET_IFNAME", "export NCCL_SOCKET_IFNAME=eth0"]
    assert gloo.says.startswith("GLOO_SOCKET_IFNAME names 'ens3':")
    assert [r.id for r in gloo.remedies] == ["unset-gloo", "gloo-interface"] and gloo.remedies[1].command == "export GLOO_SOCKET_IFNAME=eth0"

    # Of several hosts each one's own name may lead to itself alone.
    (gloo,) = [f for f in found(machine, environ=TWO | {"GLOO_SOCKET_IFNAME": "ens3"}) if "GLOO" in f.says]
    assert gloo.remedies[0].id == "gloo-interface"


def test_a_setting_in_a_file(machine):
    (one,) = found(machine, files={"/etc/nccl.conf": "NCCL_SOCKET_IFNAME=ens3\n"})
    assert one.evidence[0].source == "/etc/nccl.conf"
    assert one.remedies[0].command == "sudo sed -i '/^NCCL_SOCKET_IFNAME/d' /etc/nccl.conf"


def test_a_bridge_is_taken_first(machine):
    files = nic("br-0123456789ab", bridge=None)
    bridge_first = {"lo": ("127.0.0.1/8",), "br-0123456789ab": ("172.18.0.1/16",)}
    host = machine(SANE | {"/proc/net/route": ROUTES} | files)
    host.interfaces = bridge_first | {"eth0": ("10.0.0.7/24",)}
    (one,) = catalogue.load()["interface-selection"].on_host(snapshot.take(host, only=["network"]))
    assert (one.severity, one.says) == ("warning", "NCCL meets the other ranks over br-0123456789ab (172.18.0.1/16), which no other host can reach")
    host.environ = TWO
    (one,) = catalogue.load()["interface-selection"].on_host(snapshot.take(host, only=["network"]))
    assert one.severity == "error"


def test_a_bridge_among_others_matters_to_several_hosts(machine):
    files, interfaces = nic("br-0123456789ab", bridge=None), {"br-0123456789ab": ("172.18.0.1/16",)}
    (one,) = found(machine, files=files, interfaces=interfaces, environ=TWO)
    assert (one.severity, one.cause) == ("warning", "interface-selection")
    # br0 is how a host of virtual machines reaches the network.
    via = ROUTES.replace("eth0", "br0")
    assert found(machine, files=nic("br0", bridge=None), interfaces={"br0": ("10.0.0.8/24",)}, environ=TWO, routes=via) == []


def test_only_the_loopback_for_several_hosts(machine):
    down = nic("eth0", state="down", device="ena")
    (one,) = found(machine, files=down, environ=TWO)
    assert (one.severity, one.says) == ("error", "NCCL meets the other ranks over lo (127.0.0.1/8), which no other host can reach")
    assert found(machine, files=down) == []


def test_a_vpn_is_taken(machine):
    host = machine(SANE | {"/proc/net/route": ROUTES} | nic("tun0", type="65534", tun_flags="1"))
    host.interfaces = {"lo": ("127.0.0.1/8",), "tun0": ("10.8.0.2/24",), "eth0": ("10.0.0.7/24",)}
    (one,) = catalogue.load()["interface-selection"].on_host(snapshot.take(host, only=["network"]))
    assert (one.severity, one.remedies[0].command) == ("warning", "export NCCL_SOCKET_IFNAME=eth0")
    host.lay("/proc/net/ipv6_route", "")
    host.path("/proc/net/route").write_text(ROUTES.replace("eth0", "tun0"))
    assert list(catalogue.load()["interface-selection"].on_host(snapshot.take(host, only=["network"]))) == []


def test_a_slow_link(machine):
    (one,) = found(machine, files=nic("eth0", device="e1000e", speed="100", duplex="half"))
    assert (one.severity, one.says) == ("note", "eth0 runs at 100 Mb/s, half duplex")
    # Virtual ones say what they like: in a container this is 10 Gb/s or 10 Mb/s of nothing.
    host = machine(nic("lo", state="unknown", type="772") | nic("eth0", speed="10", duplex="half") | {"/proc/net/route": ROUTES})
    host.interfaces = {"lo": ("127.0.0.1/8",), "eth0": ("10.0.0.7/24",)}
    assert list(catalogue.load()["interface-selection"].on_host(snapshot.take(host, only=["network"]))) == []


def test_mtu_of_a_bond_and_of_an_overlay(machine):
    bond = (
        nic("bond0", bonding=None, mtu="9000")
        | nic("eth1", device="ena", master="-> ../bond0")
        | nic("eth2", device="ena", master="-> ../bond0", mtu="9000")
    )
    (one,) = found(machine, files=bond)
    assert (one.cause, one.severity, one.says) == ("network-mtu", "warning", "bond0 sends packets of 9000 bytes, its member eth1 carries 1500")
    assert one.remedies[0].command == "sudo ip link set dev eth1 mtu 9000"
    (one,) = found(machine, files=nic("flannel.1", state="unknown", uevent="DEVTYPE=vxlan"))
    assert one.remedies[0].command == "sudo ip link set dev flannel.1 mtu 1450"
    assert found(machine, files=nic("flannel.1", state="unknown", uevent="DEVTYPE=vxlan", mtu="1450")) == []
    small = {"/sys/class/net/eth0/mtu": "1400"}
    (one,) = found(machine, files=small | nic("docker0", bridge=None), interfaces={"docker0": ("172.17.0.1/16",)})
    assert (one.severity, one.remedies[0].id) == ("note", "docker-mtu")
    assert one.remedies[0].command.endswith("systemctl restart docker   # ends all containers")
    assert found(machine, files=small | nic("docker0", state="down", bridge=None), interfaces={"docker0": ("172.17.0.1/16",)}) == []


def test_mtu_of_a_network_that_docker_made(machine):
    small = {"/sys/class/net/eth0/mtu": "1400"}
    made = {"br-0a1b2c3d4e5f": ("172.18.0.1/16",)}
    (one,) = found(machine, files=small | nic("br-0a1b2c3d4e5f", bridge=None), interfaces=made)
    assert (one.severity, one.says) == ("note", "containers on br-0a1b2c3d4e5f send packets of 1500 bytes, eth0 carries 1400")
    assert one.remedies[0].command == (
        "name=$(docker network inspect -f '{{.Name}}' 0a1b2c3d4e5f) && docker network rm \"$name\" "
        '&& docker network create -o com.docker.network.driver.mtu=1400 "$name"'
    )
    assert found(machine, files=small | nic("br-0a1b2c3d4e5f", bridge=None, mtu="1400"), interfaces=made) == []
    # A bridge that somebody made for virtual machines.
    assert found(machine, files=small | nic("br-ex", bridge=None), interfaces={"br-ex": ("172.18.0.1/16",)}) == []


@pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}, "mtu": 9000}',
            {"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}},
        ),
        ("", {}),
        (None, {}),
        ("{broken", None),
    ],
)
def test_dockers_other_settings_stay(tmp_path, before, after):
    file = tmp_path / "docker" / "daemon.json"
    if before is not None:
        file.parent.mkdir()
        file.write_text(before)
    command = next(r.command for r in catalogue.load()["network-mtu"].remedies if r.id == "docker-mtu").replace("/etc/docker", str(file.parent))
    ran = subprocess.run(f'sudo() {{ [ $1 = systemctl ] || "$@"; }}; {command}', shell=True, check=False, capture_output=True)
    assert (ran.returncode == 0) == (after is not None), ran.stderr
    if after is None:
        assert file.read_text() == before
    else:
        assert json.loads(file.read_text()) == after | {"mtu": 1450}


DROPS = {("iptables-save",): "*filter\n:INPUT DROP [0:0]\n-A INPUT -i lo -j ACCEPT\n{}\nCOMMIT\n"}


def rules(rule):
    return {argv: text.format(rule) for argv, text in DROPS.items()}


def test_a_firewall_between_hosts(machine):
    (one,) = found(machine, commands=rules("-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT"))
    assert (one.cause, one.area, one.severity) == ("network-blocked", "firewall", "warning")
    assert one.says == "the firewall drops new connections from 10.0.0.1 over eth0 to port 46883 (iptables INPUT: policy drop)"
    assert "ufw allow from 10.0.0.0/24" in one.remedies[0].command
    (one,) = found(machine, commands=rules(""), environ=TWO | {"MASTER_ADDR": "10.0.0.9", "NODE_RANK": "1"})
    assert (one.severity, "from 10.0.0.9" in one.says) == ("error", True)
    assert found(machine, commands=rules(""), environ={"NNODES": "1"}) == []
    assert found(machine, commands=rules("-A INPUT -s 10.0.0.0/24 -j ACCEPT")) == []
    assert found(machine, commands=rules("-A INPUT -m set --match-set friends src -j ACCEPT")) == []


def test_a_firewall_against_this_host_itself(machine):
    (one,) = found(machine, commands={("iptables-save",): "*filter\n:INPUT DROP [0:0]\n-A INPUT -s 10.0.0.0/24 -j ACCEPT\nCOMMIT\n"})
    assert (one.severity, one.remedies[0].id) == ("error", "accept-loopback")


def test_no_route_to_the_master(machine):
    (one,) = found(
        machine, routes=ROUTES.splitlines()[0] + "\n" + ROUTES.splitlines()[2] + "\n", environ={"MASTER_ADDR": "10.9.0.1", "NODE_RANK": "1"}
    )
    assert (one.cause, one.severity, one.says) == ("network-blocked", "error", "there is no route to MASTER_ADDR (10.9.0.1)")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (("127.0.1.1",), "this host's own name node7 resolves to 127.0.1.1, the loopback"),
        (("10.5.5.5",), "this host's own name node7 resolves to 10.5.5.5, no address of this host"),
    ],
)
def test_own_name(machine, answer, says):
    hosts = {"/etc/hosts": "127.0.0.1 localhost\n127.0.1.1 node7\n"}
    (one,) = found(machine, files=hosts, names={"node7": answer})
    assert (one.cause, one.area, one.severity, one.says) == ("dns-resolution", "names", "note", says)
    assert (one.evidence[0].line, one.remedies[0].id) == (2, "own-name")
    assert "echo '10.0.0.7 node7'" in one.remedies[0].command
    (one,) = found(machine, files=hosts | {"/.dockerenv": ""}, names={"node7": answer}, environ=TWO)
    assert (one.severity, one.remedies[0].command) == ("warning", "docker run --add-host node7:10.0.0.7 ...")


def test_a_master_that_does_not_resolve(machine):
    host = machine(SANE | {"/proc/net/route": ROUTES}, environ={"MASTER_ADDR": "gone"})
    host.interfaces = {"eth0": ("10.0.0.7/24",)}

    def resolve(name):
        if name == "gone":
            raise OSError(-2, "Name or service not known")
        return ("10.0.0.7",)

    host.resolve = resolve
    (one,) = catalogue.load()["dns-resolution"].on_host(snapshot.take(host, only=["names", "network"]))
    assert (one.severity, one.says) == ("error", "MASTER_ADDR=gone does not resolve: Name or service not known")


def test_a_master_that_is_somebody_else(machine):
    (one,) = found(machine, environ=TWO | {"MASTER_ADDR": "node1", "NODE_RANK": "0"}, names={"node1": ("10.0.0.1",)})
    assert (one.severity, one.remedies[0].command) == ("warning", "export MASTER_ADDR=10.0.0.7")
    assert found(machine, environ=TWO | {"MASTER_ADDR": "node1", "NODE_RANK": "1"}, names={"node1": ("10.0.0.1",)}) == []


def test_localhost_as_master_of_several_hosts(machine):
    (one,) = found(machine, environ=TWO | {"MASTER_ADDR": "localhost", "NODE_RANK": "1"}, names={"localhost": ("127.0.0.1",)})
    assert (one.severity, one.says) == ("error", "MASTER_ADDR=localhost is this very host (127.0.0.1), and the job has 2 hosts")


def test_the_usual_port_is_taken(machine):
    files = {"/proc/net/tcp": listening(29500), "/proc/4711/fd/3": "-> socket:[12]", "/proc/4711/cmdline": "python\0train.py\0"}
    (one,) = found(machine, files=files)
    assert (one.cause, one.area, one.severity) == ("port-in-use", "ports", "warning")
    assert one.says == "port 29500, which launchers take unless told another, is taken by pid 4711 (python train.py), listening on 0.0.0.0"
    assert one.remedies[0].command == "ps -fp 4711"
    (one,) = found(machine, files=files, environ={"MASTER_PORT": "29500", "NODE_RANK": "0"})
    assert (one.severity, one.says.startswith("MASTER_PORT=29500 is taken")) == ("error", True)


def test_the_range_of_the_system(machine):
    (one,) = found(machine, files={"/proc/sys/net/ipv4/ip_local_port_range": "10000 65535"})
    assert (one.severity, one.remedies[0].command) == ("note", "sudo sysctl -w net.ipv4.ip_local_reserved_ports=29500")
    kept = {"/proc/sys/net/ipv4/ip_local_port_range": "10000 65535", "/proc/sys/net/ipv4/ip_local_reserved_ports": "29500"}
    assert found(machine, files=kept) == []
    (one,) = found(machine, files={"/proc/sys/net/ipv4/ip_local_port_range": "40000 40999"})
    assert one.says == "the system hands out 1000 ports only (40000 to 40999)"
    used = "  sl\n" + "".join(listening(p).split("\n")[1] + "\n" for p in range(40000, 40009))
    (one,) = found(machine, files={"/proc/sys/net/ipv4/ip_local_port_range": "40000 40009", "/proc/net/tcp": used})
    assert (one.severity, one.says) == ("warning", "9 of the 10 ports that the system hands out are in use")
