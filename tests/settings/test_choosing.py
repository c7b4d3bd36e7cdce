"""Presets that are chosen from facts: every choice with its reason, and the interface by the route to the master."""

from __future__ import annotations

import pytest

from unhang.facts import infiniband, network, shm, snapshot
from unhang.facts.container import Container
from unhang.facts.host import Space
from unhang.facts.numa import Device, Node, Numa
from unhang.settings import choosing
from unhang.settings.choosing import Here
from unhang.settings.setting import Installed

GPUS = Installed(torch=(2, 9), nccl=(2, 27, 5), gpus=8)
CPU = Installed(torch=(2, 13), nccl=None)
GIB = 1024**3

# What the kernel lists in /proc/net/route: the default route goes by eth0, that to 10.1.0.0/16 by eth1.
ROUTES = (
    "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
    "eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
    "eth0\t0000000A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n"
    "eth1\t0000010A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
)


def part(facts):
    return snapshot.Part(state="read", facts=facts)


def here(installed=GPUS, hosts=None, **parts):
    return Here(snapshot=snapshot.Snapshot(host="node7", taken="", parts={k: part(v) for k, v in parts.items()}), installed=installed, hosts=hosts)


def net(machine, master):
    files = {"/proc/net/route": ROUTES}
    for name, type, flags in (("lo", "772", "0x9"), ("eth0", "1", "0x1003"), ("eth1", "1", "0x1003")):
        base = f"/sys/class/net/{name}"
        files |= {f"{base}/operstate": "up\n", f"{base}/flags": flags, f"{base}/type": type, f"{base}/mtu": "1500\n"}
    host = machine(files, environ={"MASTER_ADDR": master} if master else {})
    host.interfaces = {"lo": ("127.0.0.1/8",), "eth0": ("10.0.0.7/24",), "eth1": ("10.1.0.7/16",)}
    host.names_known = {"node7": ("10.0.0.7",), "node1": ("10.1.0.1",), "far": ("8.8.8.8",)}
    return network.collect(host)


def adapters(*ports):
    """An adapter for each of (name, state, link layer)."""
    made = [
        infiniband.Device(
            name=name,
            driver=None,
            board_id=None,
            firmware=None,
            slot=None,
            net_devices=(),
            ports=(
                infiniband.Port(
                    number=1,
                    state=state,
                    physical_state=None,
                    link_layer=layer,
                    rate_gbps=None,
                    lanes=None,
                    rate=None,
                    gids=None,
                    pkeys={},
                    counters={},
                ),
            ),
        )
        for name, state, layer in ports
    ]
    return infiniband.Infiniband(
        devices=tuple(made),
        verbs_devices=(),
        verbs_usable=None,
        peer_memory=None,
        dmabuf=None,
        kernel=None,
        gpu_driver=None,
        gpus=None,
        settings={},
        net_mtu_bytes={},
    )


def shared_memory(size):
    return shm.Shm(
        present=True,
        space=Space(total_bytes=size, free_bytes=size, inodes=0, free_inodes=0),
        mounted=True,
        kind="tmpfs",
        options=(),
        limit_from=None,
        mode=None,
        owner_uid=None,
        segments=(),
        uid=0,
    )


def nodes(*memories, gpus=(0, 1), allowed=None):
    return Numa(
        nodes=tuple(Node(id=i, cpus="0-1", cpu_count=2, memory_bytes=m, free_bytes=m) for i, m in enumerate(memories)),
        cpus_allowed=None,
        memory_allowed=allowed,
        balancing=None,
        devices=tuple(Device(kind="gpu", address=f"0000:{i}", node=n) for i, n in enumerate(gpus)),
        cumem_host_enable=None,
    )


def auto(place):
    return choosing.preset("auto", place)


@pytest.mark.parametrize(
    ("master", "interface", "why"),
    [
        ("10.1.0.1", "eth1", "the route to the master 10.1.0.1 goes through it"),
        ("node1", "eth1", "the route to the master"),
        ("10.0.0.1", "eth0", "the route to the master"),
        ("10.1.0.7", "eth1", "it has the master's address"),
        ("127.0.0.1", None, "loopback"),
        ("", None, "no MASTER_ADDR"),
    ],
)
def test_the_interface_is_that_of_the_way_to_the_master(machine, master, interface, why):
    found, reason = choosing.interface(here(network=net(machine, master)))
    assert found == interface and why in reason and reason.of("zh")


def test_on_one_cpu_machine_it_is_gloo(machine):
    found = auto(here(CPU, network=net(machine, "")))
    assert found.settings == {"backend": "gloo"} and "without NCCL" in found.why["backend"]


def test_where_all_is_well_nothing_is_set(machine):
    found = auto(here(GPUS, hosts=1, network=net(machine, ""), numa=nodes(GIB, GIB), shm=shared_memory(64 * GIB), infiniband=adapters()))
    assert found.settings == {} and found.unfit


def test_several_hosts_are_pinned_to_the_way_to_the_master(machine):
    found = auto(here(hosts=2, network=net(machine, "10.1.0.1")))
    assert found.settings == {"interface": "eth1", "timeout": 1800}
    assert auto(here(hosts=2, network=net(machine, ""))).settings == {"timeout": 1800}


def test_adapters_without_a_link_are_left_aside():
    down = adapters(("mlx5_0", "DOWN", "InfiniBand"))
    assert auto(here(hosts=2, infiniband=down)).settings == {"timeout": 1800, "ib": False}
    some = adapters(("mlx5_0", "ACTIVE", "InfiniBand"), ("mlx5_1", "DOWN", "InfiniBand"), ("mlx5_2", "ACTIVE", "Ethernet"))
    assert auto(here(hosts=2, infiniband=some)).settings == {"timeout": 1800, "hca": "mlx5_0"}
    assert auto(here(hosts=1, infiniband=some)).settings == {}


def test_numa_nodes_without_memory_where_others_have_some():
    found = auto(here(numa=nodes(GIB, 0)))
    assert found.settings == {"cumem-host": False} and "NUMA nodes 1" in found.why["cumem-host"]
    # Where all ranks are refused alike, they agree.
    assert auto(here(numa=nodes(GIB, 0, gpus=(1, 1)))).settings == {}
    assert auto(here(numa=nodes(GIB, GIB, allowed=(0,)))).settings == {"cumem-host": False}


def test_a_small_dev_shm():
    docker = Container(kind="docker", signs=(), capabilities=None, no_new_privileges=None, seccomp=None, **rest_of_container())
    found = auto(here(shm=shared_memory(64 * 1024**2), container=docker))
    assert found.settings == {"shm": False, "loader-workers": 0}
    assert found.why["shm"] == "/dev/shm has 64 MiB in this container (docker): NCCL's segments do not fit"
    assert auto(here(CPU, shm=shared_memory(64 * 1024**2))).settings == {"backend": "gloo", "loader-workers": 0}


def rest_of_container():
    import dataclasses

    given = {"kind", "signs", "capabilities", "no_new_privileges", "seccomp"}
    return {f.name: None for f in dataclasses.fields(Container) if f.name not in given and f.default is dataclasses.MISSING}


def test_infiniband_names_the_adapters_that_are_connected(machine):
    some = adapters(("mlx5_0", "ACTIVE", "InfiniBand"), ("mlx5_1", "DOWN", "InfiniBand"))
    found = choosing.preset("infiniband", here(hosts=2, infiniband=some, network=net(machine, "10.1.0.1")))
    assert found.settings == {"ib": True, "ib-timeout": 22, "timeout": 1800, "hca": "mlx5_0", "interface": "eth1"} and not found.unfit
    assert choosing.preset("infiniband", here()).unfit == "no adapter here has an active InfiniBand or RoCE port"


def test_ethernet_takes_the_interface_towards_the_master(machine):
    found = choosing.preset("ethernet", here(hosts=2, network=net(machine, "10.1.0.1")))
    assert found.settings == {"ib": False, "buffer": 8388608, "timeout": 1800, "interface": "eth1"} and not found.unfit
    alone = choosing.preset("ethernet", here(network=net(machine, "")))
    assert "interface" not in alone.settings and "no MASTER_ADDR" in alone.unfit


def test_one_host_is_not_for_several():
    assert choosing.preset("single-node", here(hosts=2)).unfit and not choosing.preset("single-node", here(hosts=1)).unfit
