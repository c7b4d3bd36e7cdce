"""`unhang doctor --hosts` on hosts that are namespaces, each time with a fault that was made: the right host or edge, the right cause, bounded.

P1 and a few more run in `make test-integration`, all by `make test-hosts`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.cluster import slurm
from tests.cluster.hosts import SBIN, Cluster
from tests.cluster.test_hosts import hosts_can_be_made, need  # noqa: F401

pytestmark = pytest.mark.integration

UNHANG = Path(sys.executable).with_name("unhang")


@dataclass(frozen=True)
class Fault:
    """`make` and `undo` are texts for the shell: of a host by its number, of the switch at 0. `finds` are (cause, words of its sentence)."""

    id: str
    make: dict[int, str]
    undo: dict[int, str]
    finds: tuple[tuple[str, str], ...]
    environ: dict[str, str]
    more: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    seldom: bool = True


def fault(id, make, undo, *finds, seldom=True, more=(), beside=(), **environ):
    return Fault(id, make, undo, finds, environ, more, beside, seldom=seldom)


def drop(rule, node):
    return {node: f"iptables -A INPUT {rule}"}, {node: f"iptables -D INPUT {rule}"}


def _mtu(size):
    """Large packets everywhere but at the third port."""
    offload = "off" if size > 1500 else "on"
    host = f"ip link set eth0 mtu {size}; ethtool -K eth0 tso {offload} gso {offload} gro {offload}"
    return {0: f"for n in 0 1 2 4; do ip link set port${{n}}p0 mtu {size}; done; ip link set br0 mtu {size}", **dict.fromkeys((1, 2, 3, 4), host)}


def _gpus(count):
    """So many on the bus, without a driver."""
    return f"""mount -t tmpfs tmpfs /sys/bus/pci/devices; cd /sys/bus/pci/devices
for i in $(seq {count}); do mkdir 0000:0$i:00.0; echo 0x10de > 0000:0$i:00.0/vendor; echo 0x030200 > 0000:0$i:00.0/class; done"""


_HOSTS = "10.77.0"
_ALL = (1, 2, 3, 4)
_KEEP, _BACK = "cp /etc/hosts /scratch/hosts", "cat /scratch/hosts > /etc/hosts"
_SITE = Path(torch.__file__).parent / "version.py"
_SLOW_EDGE = f"""
tc qdisc add dev eth0 root handle 1: htb default 1
tc class add dev eth0 parent 1: classid 1:1 htb rate 10gbit quantum 60000
tc class add dev eth0 parent 1: classid 1:2 htb rate 100mbit quantum 1500
iptables -t mangle -A POSTROUTING -d {_HOSTS}.2 -j CLASSIFY --set-class 1:2"""
# The agent, once it listens.
_STOP = """nohup bash -c 'until p=$(ss -Hltnp | grep -Po "python.*pid=\\K[0-9]+"); do sleep 0.05; done
sleep 0.5; echo $p > /scratch/pid; kill -STOP $p' >/dev/null 2>&1 &"""
FAULTS = [
    fault("P1 clean", {}, {}, more=("--group",), seldom=False),
    fault("P2 one way", *drop(f"-s {_HOSTS}.4 -p tcp --syn -j DROP", 2), ("network-blocked", "node4 does not reach node2"), seldom=False),
    fault("P3 only the store's port", *drop("-p tcp -m multiport ! --dports 22,29500 -m conntrack --ctstate NEW -j DROP", 3),
          ("network-blocked", "node3 cannot be reached")),
    fault("P4 the store's port", *drop("-p tcp --dport 29500 -j REJECT --reject-with tcp-reset", 1), ("network-blocked", "port 29500 of node1")),
    fault("P5 taken", {1: "nohup python3 -m http.server 29500 >/dev/null 2>&1 & echo $! > /scratch/pid; sleep 1"}, {1: "kill $(cat /scratch/pid)"},
          ("port-in-use", "http.server"), seldom=False),
    fault("P6 docker0", {}, {}, ("interface-selection", "have the same address 172.17.0.1"), GLOO_SOCKET_IFNAME="docker0"),
    fault("P7 a pattern", {}, {}, ("interface-selection", "GLOO_SOCKET_IFNAME names"), GLOO_SOCKET_IFNAME="^docker0"),
    fault("P8 loopback", {2: f"{_KEEP}; sed 's/{_HOSTS}.2 /127.0.1.1 /' /scratch/hosts > /etc/hosts"}, {2: _BACK}, ("dns-resolution", "node2")),
    fault("P9 unknown", {3: f"{_KEEP}; grep -v node2 /scratch/hosts > /etc/hosts"}, {3: _BACK},
          ("dns-resolution", "node2 does not resolve on node3"), seldom=False),
    fault("P10 its own name", {3: "hostname stranger"}, {3: "hostname node3"}, ("dns-resolution", "what node3 call themselves: stranger")),
    fault("P11 one address", dict.fromkeys(_ALL, f"{_KEEP}; sed 's/{_HOSTS}.3 /{_HOSTS}.2 /' /scratch/hosts > /etc/hosts"),
          dict.fromkeys(_ALL, _BACK), ("interface-selection", f"node2, node3 have the same address {_HOSTS}.2"), beside=("dns-resolution",)),
    fault("P12 no name server", {2: f"{_KEEP}; grep -v node4 /scratch/hosts > /etc/hosts; echo nameserver {_HOSTS}.250 > /etc/resolv.conf"},
          {2: f"{_BACK}; : > /etc/resolv.conf"}, ("dns-resolution", "looking up a name takes")),
    fault("P13 jumbo", _mtu(9000), _mtu(1500), ("network-mtu", "node3")),
    fault("P14 slow sender", {4: "tc qdisc add dev eth0 root tbf rate 100mbit burst 64kb latency 50ms"}, {4: "tc qdisc del dev eth0 root"},
          ("straggler-timeout", "node4 sends at"), seldom=False),
    fault("P15 slow edge", {3: _SLOW_EDGE}, {3: "tc qdisc del dev eth0 root; iptables -t mangle -F"},
          ("straggler-timeout", "node3 to node2 carries")),
    fault("P16 loss", *drop(f"-s {_HOSTS}.4 -m statistic --mode random --probability 0.05 -j DROP", 3), ("straggler-timeout", "node4 to node3")),
    fault("P17 apart", dict.fromkeys((3, 4), f"iptables -A INPUT -s {_HOSTS}.1 -j DROP; iptables -A INPUT -s {_HOSTS}.2 -j DROP"),
          dict.fromkeys((3, 4), "iptables -F INPUT"), ("network-blocked", "node1, node2 | node3, node4"), seldom=False),
    fault("P18 unplugged", {0: "ip link set port3p0 down"}, {0: "ip link set port3p0 up"}, ("ssh-launcher", "node3 cannot be logged in to")),
    fault("P19 silent", {3: _STOP}, {3: "kill -CONT $(cat /scratch/pid)"}, ("peer-lost", "node3 answered at first, and is silent now")),
    fault("P20 no sshd", *drop("-p tcp --dport 22 -j REJECT --reject-with tcp-reset", 2), ("ssh-launcher", "node2 cannot be logged in to")),
    fault("P22 another torch", {2: f"sed s/2.13.0/2.12.1/ {_SITE} > /scratch/v; mount --bind /scratch/v {_SITE}"}, {2: f"umount {_SITE}"},
          ("version-mismatch", "torch differs")),
    fault("P23 missing", dict.fromkeys((1, 2, 4), "mkdir -p /scratch/data"), dict.fromkeys((1, 2, 4), "rm -rf /scratch/data"),
          ("filesystem-shared", "/scratch/data on node3"), more=("--path", "/scratch/data"), seldom=False),
    fault("P24 other content", {n: f"mkdir -p /scratch/data; echo {'x' * n} > /scratch/data/f" for n in _ALL},
          dict.fromkeys(_ALL, "rm -rf /scratch/data"), ("filesystem-shared", "what it holds differs"), more=("--path", "/scratch/data")),
    fault("P25 small /dev/shm", {2: "mount -o remount,size=64m /dev/shm"}, {2: "mount -o remount,size=2g /dev/shm"}, ("shm-exhausted", "node2")),
    fault("P26 few files", {2: "prlimit --pid 1 --nofile=256:20000"}, {2: "prlimit --pid 1 --nofile=20000:20000"}, ("limits", "node2")),
    fault("P27 full", {2: "mkdir /scratch/d; mount -t tmpfs -o size=1m tmpfs /scratch/d; head -c 1m /dev/zero > /scratch/d/x || true",
                       **dict.fromkeys((1, 3, 4), "mkdir /scratch/d")}, {2: "umount /scratch/d", **dict.fromkeys((1, 3, 4), "rmdir /scratch/d")},
          ("disk-full", "node2"), more=("--path", "/scratch/d"), beside=("filesystem-shared",)),
    fault("P28 fewer GPUs", {n: _gpus(4 if n == 3 else 8) for n in _ALL}, dict.fromkeys(_ALL, "umount /sys/bus/pci/devices"),
          ("rendezvous-misconfig", "GPUs differs: 4 on node3"), beside=("container-capability",)),
    fault("P29 other commit", {n: f"git init -q /scratch/g && git -C /scratch/g -c user.name=x -c user.email=x@x commit -q --allow-empty -m {n // 4}"
                               " --date 2026-01-01T00:00:00Z" for n in _ALL}, dict.fromkeys(_ALL, "rm -rf /scratch/g"),
          ("version-mismatch", "the commit of /scratch/g differs"), more=("--path", "/scratch/g"), beside=("filesystem-shared",)),
    fault("a group without one", {3: f"echo 'import os; os.environ.get(chr(82)+\"ANK\") and os._exit(9)' > /scratch/x; cat {_SITE} >> /scratch/x; "
                                  f"mount --bind /scratch/x {_SITE}"}, {3: f"umount {_SITE}"},
          ("rank-exception", "on node3"), more=("--group",)),
    fault("P30 two", {2: f"iptables -A INPUT -s {_HOSTS}.4 -p tcp --syn -j DROP", 1: "mount -o remount,size=64m /dev/shm"},
          {2: "iptables -F INPUT", 1: "mount -o remount,size=2g /dev/shm"},
          ("network-blocked", "node4 does not reach node2"), ("shm-exhausted", "node1")),
]  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(4, tmp_path_factory.mktemp("cluster")) as made:
        yield made


def examined(cluster, hosts, *more, **environ):
    """Its exit code, and what it says as JSON."""
    words = ["env", f"PATH={SBIN}", *(f"{name}={value}" for name, value in environ.items()), str(UNHANG), "doctor", "--hosts", hosts, "--json", *more]
    done = subprocess.run(cluster.login.inside(*words), capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


def at(cluster, texts):
    for number, text in texts.items():
        if number:
            cluster[number].run(text)
        else:
            cluster.switch(text)


@pytest.mark.parametrize("fault", [pytest.param(f, id=f.id, marks=[pytest.mark.exhaustive] * f.seldom) for f in FAULTS])
def test_a_fault_is_named(cluster, fault):
    at(cluster, fault.make)
    try:
        code, found = examined(cluster, "node[1-4]", *fault.more, **fault.environ)
    finally:
        at(cluster, fault.undo)
    told = found["examination"]["findings"]
    for cause, words in fault.finds:
        assert any(f["cause"] == cause and words in f["says"] for f in told), [(f["cause"], f["says"]) for f in told]
    # Each fault has one cause; a host that cannot be reached at the store's port cannot be reached otherwise either.
    assert {f["cause"] for f in told if f["severity"] != "note"} <= {cause for cause, _ in fault.finds} | set(fault.beside)
    assert code == bool(fault.finds)
    assert nobody_is_left(cluster)


def nobody_is_left(cluster):
    until = time.monotonic() + 30
    while (left := [p for p in cluster.processes() if "sleep infinity" not in p[1]]) and time.monotonic() < until:
        time.sleep(0.1)
    return not left


def test_within_an_allocation_of_slurm(tmp_path):
    need(slurm.PROGRAMS)
    with Cluster(3, tmp_path / "cluster") as three:
        started = slurm.Slurm(three)
        three[2].run(f"iptables -A INPUT -s {_HOSTS}.3 -p tcp --syn -j DROP")
        words = ["salloc", "-N3", str(UNHANG), "doctor", "--hosts", "slurm", "--json"]
        done = subprocess.run(started.inside(*words), capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
        (found,) = json.loads(done.stdout)["examination"]["findings"]
    assert done.returncode == 1 and "node3 does not reach node2" in found["says"]


@pytest.mark.exhaustive
def test_nothing_is_found_on_eight_clean_hosts(tmp_path):
    """However often they are looked at."""
    with Cluster(8, tmp_path / "cluster") as eight:
        took_s = []
        for _ in range(20):
            code, found = examined(eight, "node[1-8]")
            assert (code, [f["says"] for f in found["examination"]["findings"] if f["severity"] != "note"]) == (0, [])
            assert found["coverage"] == 1.0
            took_s.append(found["took_s"])
        print(f"{min(took_s):.1f} to {max(took_s):.1f} s each")
        assert nobody_is_left(eight)
