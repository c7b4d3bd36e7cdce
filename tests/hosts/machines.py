"""Machines without GPUs, sane and complete: a server, a laptop, a virtual machine in a cloud. What stands in them comes on top."""

from __future__ import annotations

from tests.hosts import pci
from tests.hosts.linux import (
    NO_CAPABILITIES,
    clock,
    group,
    kernel,
    kernel_log,
    looks,
    namespaces,
    no_firewall,
    nodes,
    process,
    python,
    shm,
    storage,
)
from tests.hosts.network import interface, loopback, network, routes, sockets
from tests.hosts.part import GIB, Part, all_of, ran, space


def server(*, memory_gib: int = 1024, options: str = "intel_iommu=on iommu=pt", in_hosts: str | None = None) -> Part:
    """Two sockets, 128 CPUs, bare metal, and its administrator at it."""
    session = "/user.slice/user-0.slice/session-3.scope"
    return all_of(
        kernel(memory_gib=memory_gib, options=options),
        nodes([("0-63", memory_gib // 2), ("64-127", memory_gib // 2)]),
        looks(memory_nodes="0-1"),
        namespaces(),
        process(1, "systemd"),
        process(2, "kthreadd"),
        process(811, "systemd-timesyncd", threads=2),
        clock(),
        storage(shm(memory_gib * GIB // 2)),
        python(),
        kernel_log(),
        no_firewall(),
        group("/user.slice"),
        group("/user.slice/user-0.slice", pids=84439),
        group(session),
        Part(files={"/proc/self/cgroup": f"0::{session}\n", "/sys/class/iommu/dmar0": None, "/sys/class/iommu/dmar1": None}),
        network("node7", "10.0.0.7/24", "10.0.0.1", in_hosts=in_hosts),
    )


def laptop() -> Part:
    """Fedora, in use by somebody who is not root: wireless, an empty socket for a cable, Docker's bridge, no GPU of NVIDIA's."""
    home, wireless, cable = "/home/ada", "pci0000:00/0000:00:14.3", "pci0000:00/0000:00:1f.6"
    shell = "/user.slice/user-1000.slice/user@1000.service/app.slice/vte-spawn-1f0c.scope"
    own = ("192.168.1.23", "fe80::8f1c:20ff:fe3a:91d4")
    refused = "Operation not permitted (you must be root)\nnetlink: Error: cache initialization failed: Operation not permitted\n"
    kept = "1800000000.100000 ada kernel: Linux version 6.8.9-300.fc40.x86_64\n1800000000.200000 ada kernel: i915 0000:00:02.0: [drm] ready\n"
    return pci.unprivileged(
        all_of(
            kernel(release="6.8.9-300.fc40.x86_64", cpus=8, memory_gib=16),
            looks(capabilities=NO_CAPABILITIES, cpus="0-7", open_files=1024, memlock="8388608", processes="62533"),
            namespaces(),
            process(1, "systemd"),
            process(2, "kthreadd"),
            process(902, "chronyd"),
            clock(),
            storage(shm(8 * GIB, used_bytes=200 << 20), root_gib=476, kind="btrfs", device="/dev/nvme0n1p3"),
            python(),
            group("/user.slice/user-1000.slice", pids=20530, tasks=900),
            group(shell),
            pci.function("pci0000:00/0000:00:01.0", pci.BRIDGE, vendor=pci.INTEL, device="0x460d", driver="pcieport"),
            pci.function("pci0000:00/0000:00:02.0", pci.VGA, vendor=pci.INTEL, device="0x46a6", driver="i915"),
            pci.function(wireless, "0x028000", vendor=pci.INTEL, device="0x51f0", driver="iwlwifi"),
            pci.function(cable, pci.ETHERNET, vendor=pci.INTEL, device="0x1a1e", driver="e1000e"),
            loopback(),
            interface("wlp0s20f3", "192.168.1.23/24", at=wireless, driver="iwlwifi", speed=None, index=3, uevent="DEVTYPE=wlan\n"),
            interface("enp0s31f6", at=cable, driver="e1000e", state="down"),
            interface("docker0", "172.17.0.1/16", state="down", index=4, uevent="DEVTYPE=bridge\n"),
            routes("wlp0s20f3", "192.168.1.23/24", "192.168.1.1"),
            sockets(631, address="0100007F"),
            Part(
                files={
                    "/proc/self/cgroup": f"0::{shell}\n",
                    "/proc/net/netfilter/nf_log": "",
                    "/etc/hostname": "ada\n",
                    "/etc/hosts": "127.0.0.1   localhost localhost.localdomain\n::1         localhost localhost.localdomain\n",
                    "/etc/resolv.conf": "nameserver 127.0.0.53\noptions edns0 trust-ad\n",
                    home: None,
                },
                environ={"HOME": home, "PWD": home},
                spaces={home: space(476 * GIB, 120 * GIB)},
                # The resolver knows the addresses of the host by itself (nss-myhostname).
                names_known={"ada": own},
                commands={
                    ("journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-unix", "-n", "20000"): ran(kept),
                    ("nft", "-j", "list", "ruleset"): ran(exitcode=1, err=refused),
                    ("chronyc", "-n", "tracking"): ran("System time     : 0.000213541 seconds slow of NTP time\n"),
                },
            ),
        )
    )


def cloud_vm() -> Part:
    """Four virtual CPUs, one adapter."""
    service = "/system.slice/ssh.service"
    return all_of(
        kernel(release="6.8.0-1021-aws", cpus=4, memory_gib=16, virtual="Amazon EC2"),
        looks(cpus="0-3"),
        namespaces(),
        process(1, "systemd"),
        process(2, "kthreadd"),
        process(533, "chronyd"),
        clock(),
        storage(shm(8 * GIB), root_gib=100, device="/dev/nvme0n1p1"),
        python(),
        kernel_log(),
        no_firewall(),
        group(service),
        network("ip-10-0-1-23", "10.0.1.23/20", "10.0.0.1", card="ens5", driver="ena", mtu=9001),
        Part(
            files={"/proc/self/cgroup": f"0::{service}\n", "/etc/hosts": "127.0.0.1 localhost\n"},
            commands={("chronyc", "-n", "tracking"): ran("System time     : 0.000000812 seconds fast of NTP time\n")},
        ),
    )
