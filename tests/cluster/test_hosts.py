"""The hosts of the cluster are hosts, and the faults that can be made on them bite: everything else that is said of several hosts rests on that."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.cluster import slurm
from tests.cluster.hosts import PROGRAMS, Cluster, command_of, lacking, not_installed

pytestmark = pytest.mark.integration

# Sends argv[3] bytes to argv[1]:argv[2], and waits for one byte back.
SEND = """
import socket, sys, time
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[4])) as s:
    begun = time.monotonic()
    s.sendall(b"x" * int(sys.argv[3]))
    s.shutdown(socket.SHUT_WR)
    assert s.recv(1) == b"y", "closed"
    print(time.monotonic() - begun)
"""
TAKE = """
import socket
server = socket.create_server(("", 7000), backlog=64)
while True:
    taken, _ = server.accept()
    while taken.recv(1 << 20):
        pass
    taken.sendall(b"y")
    taken.close()
"""


def need(programs):
    if (missing := not_installed(programs)) is not None:
        assert not os.environ.get("CI"), f"CI tests hosts and Slurm: {missing} (make test-integration installs it)"
        pytest.skip(missing)


@pytest.fixture(scope="module", autouse=True)
def hosts_can_be_made():
    # scripts/apt cannot install anything without root either.
    if os.geteuid() == 0:
        need(PROGRAMS)
    if (why := lacking()) is not None:
        pytest.skip(why)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    before = (os.readlink("/proc/self/ns/net"), Path("/proc/net/dev").read_text().count(":"))
    with Cluster(3, tmp_path_factory.mktemp("cluster")) as made:
        takers = [subprocess.Popen(node.inside("python3", "-c", TAKE), stdin=subprocess.DEVNULL) for node in made.nodes]
        for node in made.nodes:
            node.run("until ss -ltn | grep -q :7000; do sleep 0.05; done")
        yield made
        lived = made.processes()
        assert len(lived) >= made.size
    assert not [(pid, words) for pid, words in lived if command_of(pid) == words]
    assert {taker.wait(60) for taker in takers} == {-signal.SIGKILL}
    assert (os.readlink("/proc/self/ns/net"), Path("/proc/net/dev").read_text().count(":")) == before


def sent(source, target, size=1, limit_s=4.0):
    """Seconds, or the exception's name."""
    done = source.run(["python3", "-c", SEND, target.address, "7000", str(size), str(limit_s)], check=False)
    return float(done.stdout) if done.returncode == 0 else done.stderr.strip().rsplit("\n", 1)[-1].partition(":")[0]


def test_every_host_is_one_of_its_own(cluster):
    for node in cluster.nodes:
        told = cluster.login.run(f"ssh {node.name} 'hostname; cat /proc/1/comm; ls /scratch; echo {node.name} > /scratch/{node.name}'").stdout.split()
        assert told == [node.name, "sshd"]
        assert cluster[1].run(f"ssh {node.name}.cluster hostname").stdout.split() == [node.name]
    assert [sorted(os.listdir(node.directory / "scratch")) for node in cluster.nodes] == [[node.name] for node in cluster.nodes]
    assert all(isinstance(sent(a, b), float) for a in cluster.nodes for b in cluster.nodes)


def test_one_way_is_closed_and_the_other_open(cluster):
    one, two = cluster[1], cluster[2]
    two.run(f"iptables -A INPUT -s {one.address} -p tcp --syn -j DROP")
    try:
        assert sent(one, two) == "TimeoutError"
        assert isinstance(sent(two, one), float)
    finally:
        two.run("iptables -F INPUT")
    assert isinstance(sent(one, two), float)


def test_one_edge_is_slow(cluster):
    one, two, three = cluster.nodes
    size = 2_000_000
    one.run(
        "tc qdisc add dev eth0 root handle 1: htb default 1; tc class add dev eth0 parent 1: classid 1:1 htb rate 10gbit quantum 60000;"
        "tc class add dev eth0 parent 1: classid 1:2 htb rate 20mbit quantum 60000;"
        f"iptables -t mangle -A POSTROUTING -d {two.address} -j CLASSIFY --set-class 1:2"
    )
    try:
        assert sent(one, two, size, limit_s=30) > size * 8 / 20e6 / 2
        assert sent(one, three, size) < size * 8 / 20e6 / 2
    finally:
        one.run("tc qdisc del dev eth0 root; iptables -t mangle -F")


def test_a_cable_is_pulled_and_plugged_in(cluster):
    cluster.link(3, "down")
    try:
        assert sent(cluster[1], cluster[3]) in ("TimeoutError", "OSError")
        assert isinstance(sent(cluster[1], cluster[2]), float)
    finally:
        cluster.link(3, "up")
    until = time.monotonic() + 30
    while not isinstance(sent(cluster[1], cluster[3]), float):
        assert time.monotonic() < until


def test_large_segments_are_lost(cluster):
    """A port of the switch that takes 1,500 bytes, between hosts that send 9,000: what is small arrives."""
    for number, mtu in ((1, 9000), (2, 9000), (3, 9000)):
        cluster[number].run(f"ethtool -K eth0 tso off gso off gro off; ip link set eth0 mtu {mtu}")
        cluster.switch(f"ip link set port{number}p0 mtu {1500 if number == 3 else mtu}")
    try:
        assert isinstance(sent(cluster[1], cluster[2], 100_000), float)
        assert isinstance(sent(cluster[1], cluster[3]), float)
        assert sent(cluster[1], cluster[3], 100_000) == "TimeoutError"
    finally:
        for number in (1, 2, 3):
            cluster[number].run("ip link set eth0 mtu 1500")
            cluster.switch(f"ip link set port{number}p0 mtu 1500")


def test_a_host_is_lost_with_all_that_runs_on_it(tmp_path):
    with Cluster(2, tmp_path) as two:
        client = subprocess.Popen(two.login.inside("ssh", "node2", "sleep 1000"), stdin=subprocess.DEVNULL)
        until = time.monotonic() + 60
        while not any(words == "sleep 1000" for _, words in two.processes()):
            assert time.monotonic() < until and client.poll() is None
        two[2].kill()
        assert client.wait(30) == 255
        assert not any(words == "sleep 1000" for _, words in two.processes())
        two.login.run("ssh node1 true")


def test_slurm_runs_on_them(tmp_path):
    need(slurm.PROGRAMS)
    with Cluster(3, tmp_path) as three:
        started = slurm.Slurm(three)
        assert sorted(started.run("srun", "-N3", "hostname").stdout.split()) == ["node1", "node2", "node3"]
        job = "#!/bin/bash\nsrun hostname\nsrun -N1 -x node1 bash -c 'echo spare $(hostname) of $SLURM_JOB_NODELIST'\n"
        (tmp_path / "job.sh").write_text(job)
        told = started.run("sbatch", "--wait", "-N2", "-o", str(tmp_path / "out"), str(tmp_path / "job.sh")).stdout
        assert "Submitted" in told
        assert sorted((tmp_path / "out").read_text().splitlines()) == ["node1", "node2", "spare node2 of node[1-2]"]
