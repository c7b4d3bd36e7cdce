"""Interfaces, routes and names that do not lead to the other host."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch

# A rule about what comes in has to stand before the one that delivers it.
LOCAL_LATER = "ip -n node1 rule add lookup local pref 200; ip -n node1 rule del pref 0"


def test_an_interface_that_is_not_there(provoke):
    ran = provoke.ranks("connect.py", env={"GLOO_SOCKET_IFNAME": "nonesuch0"})[0]
    primary = provoke.primary(ran.log)
    assert primary["cause"] == "interface-selection"
    assert "nonesuch0" in primary["says"]


def test_a_master_whose_name_nobody_knows(provoke):
    env = {"MASTER_ADDR": "no-such-host.invalid", "WORLD_SIZE": "2", "RANK": "1", "MASTER_PORT": "29500"}
    ran = provoke(provoke.python, provoke.scripts / "connect.py", "--timeout-s", "2", env=env)
    primary = provoke.primary(ran.log)
    assert primary["cause"] == "dns-resolution" and primary["standing"] in ("established", "likely")
    assert "no-such-host.invalid" in primary["says"]


def test_hosts_that_reach_each_other(hosts, provoke):
    ran = hosts("connect.py", env={"GLOO_SOCKET_IFNAME": "eth0"})
    assert ran.exitcode == 0, ran.text
    assert provoke.verdict(ran.log)["primary"] is None


@pytest.mark.parametrize(
    "between",
    [
        f"ip -n node1 rule add iif eth0 blackhole pref 1; {LOCAL_LATER}",
        "ip -n node1 addr flush dev eth0; ip -n node1 addr add 10.78.0.2/24 dev eth0",
    ],
    ids=["dropped", "no-route"],
)
def test_hosts_that_cannot_reach_each_other(hosts, provoke, between):
    ran = hosts("connect.py", "--timeout-s", "3", between=between)
    assert ran.exitcode != 0
    assert provoke.primary(ran.log)["cause"] == "network-blocked"


@pytest.mark.integration
def test_a_firewall_that_refuses_the_master_port(hosts, provoke):
    refuse = "ip rule add iif eth0 ipproto tcp dport 29500 prohibit pref 1; ip rule add lookup local pref 200; ip rule del pref 0"
    ran = hosts("connect.py", "--timeout-s", "3", between=f"sysctl -qw net.ipv4.ip_forward=1; {refuse}")
    assert provoke.primary(ran.log)["cause"] == "network-blocked"


@pytest.mark.integration
def test_only_the_master_port_is_open(hosts, provoke):
    """The store is reached, and then Gloo's pairs are not: they listen on ports that nobody opened."""
    closed = "ip rule add iif eth0 ipproto tcp dport 30000-65534 blackhole pref 1; ip rule add lookup local pref 200; ip rule del pref 0"
    ran = hosts("connect.py", "--timeout-s", "6", between=f"{closed}; {LOCAL_LATER}", env={"GLOO_SOCKET_IFNAME": "eth0"})
    assert provoke.primary(ran.log)["cause"] in ("gloo-connect", "network-blocked")


@pytest.mark.integration
def test_a_name_that_means_loopback(hosts, provoke):
    """Debian writes the host's own name beside 127.0.1.1, and Gloo tells that address to its peers."""
    ran = hosts("connect.py", "--timeout-s", "6", between="printf '127.0.1.1 node0 node1\\n' >> /run/hosts; sed -i /10.77/d /run/hosts")
    assert provoke.primary(ran.log)["cause"] in ("gloo-connect", "dns-resolution", "interface-selection")


@pytest.mark.integration
def test_large_packets_are_lost(hosts, provoke):
    """A queue that carries no packet of more than 1,000 bytes and tells nobody: the first large collective stands still on both ranks."""
    queue = "tc qdisc add dev eth0 root tbf rate 1gbit burst 1100 latency 50ms"
    both = f"{queue}; ip netns exec node1 {queue}"
    ran = hosts("connect.py", "--timeout-s", "3", "--elements", "100000", between=both, env={"GLOO_SOCKET_IFNAME": "eth0"})
    assert ran.exitcode != 0 and "2 ranks, sum 16" in ran.text
    primary = provoke.primary(ran.log)
    # No line names it. It has to be said to be possible, and nobody may be called late: both ranks are in the collective.
    assert primary["standing"] in ("possible", "not-established")
    assert "network-mtu" in primary["cause"] + primary["says"]
