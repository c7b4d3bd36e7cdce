"""What the kernel's log tells of adapters, links, crashes and memory, as the causes judge it: by when it was, and by what is so now."""

import pytest
from tests.tables import for_each

from unhang.facts import snapshot, snapshot_file
from unhang.knowledge import catalogue

CAUSES = tuple(
    catalogue.load()[id]
    for id in ("framework-bug", "host-oom-or-killed", "ib-port-down", "network-blocked", "nic-hardware", "p2p-broken", "process-stuck")
)
UPTIME_S = 1_000_000
AGO = {"now": 300, "hours": 4 * 3600, "days": 3 * 86400}
BASE = {
    "/proc/uptime": f"{UPTIME_S}.00 1.0\n",
    "/proc/meminfo": "MemTotal: 67108864 kB\nMemFree: 60000000 kB\nMemAvailable: 60000000 kB\n",
    "/proc/net/route": (
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
        "ens1f0np0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\nens1f0np0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\n"
    ),
    "/sys/class/net/lo/mtu": "65536",
}
TWO = {"NNODES": "2", "MASTER_ADDR": "10.0.0.9"}
FAULT = "mlx5_core 0000:5e:00.0: poll_health:800:(pid 0): device's health compromised - reached miss count"
COMMAND = "mlx5_core 0000:5e:00.0: wait_func:1137:(pid 4720): CREATE_QP(0x500) timeout. Will cause a leak of a command resource"
LINK = "mlx5_core 0000:5e:00.0 ens1f0np0: Link down"
CRASH = "python3.11[4720]: segfault at 0 ip 00007f1a sp 00007ffc error 4 in libnccl.so.2.27.3[7f1a00000000+1000]"
KILLED = "Out of memory: Killed process 811 (pt_main_thread) total-vm:1kB"


def nic(*, state="up", flags="0x1003", rdma=True):
    base = "/sys/class/net/ens1f0np0"
    files = {f"{base}/operstate": state, f"{base}/flags": flags, f"{base}/type": "1", f"{base}/device/driver": "-> ../../drivers/mlx5_core"}
    port = "/sys/class/infiniband/mlx5_0/ports/1"
    link = {f"{port}/state": "4: ACTIVE", f"{port}/phys_state": "5: LinkUp", f"{port}/link_layer": "Ethernet", f"{port}/rate": "100 Gb/sec (4X EDR)"}
    link |= {"/sys/class/infiniband/mlx5_0/device/net/ens1f0np0": None}
    return files | (link if rdma else {})


def found(machine, *lines, files=None, environ=None):
    """The lines with when they were; what all causes find in the area of the kernel's log, and of memory."""
    records = "".join(f"4,{n},{(UPTIME_S - AGO.get(when, when)) * 10**6},-;{text}\n" for n, (when, text) in enumerate(lines))
    host = machine(BASE | {"/dev/kmsg": records} | (files or {}), environ=environ or {})
    host.interfaces = {"lo": ("127.0.0.1/8",), "ens1f0np0": ("10.0.0.7/24",)}
    taken = snapshot.take(host, only=["kernel", "network", "infiniband", "memory", "container", "pcie", "gpu"])
    taken = snapshot_file.decode(snapshot_file.encode(taken), name="itself")
    assert taken.parts["kernel"].state == "read"
    return [f for c in CAUSES for f in c.on_host(taken) if f.evidence[-1].source == "kernel log"]


def short(findings):
    return [(f.cause, f.severity) for f in findings]


@pytest.mark.parametrize(
    ("text", "cause", "says"),
    [
        (FAULT, "nic-hardware", "the adapter 0000:5e:00.0 stopped answering: its health counter stands still ({})"),
        (COMMAND, "nic-hardware", "the adapter 0000:5e:00.0 does not answer the commands of its driver ({})"),
        (
            "mlx5_core 0000:5e:00.0 ens1f0np0: NETDEV WATCHDOG: CPU: 3: transmit queue 12 timed out 5376 ms",
            "nic-hardware",
            "the adapter behind ens1f0np0 (mlx5_core) stopped sending: its transmit queue timed out ({})",
        ),
        (CRASH, "framework-bug", "a Python process crashed in native code (segmentation fault in libnccl.so.2.27.3): python3.11 (4720) {}"),
        (
            "watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [pt_main_thread:4720]",
            "process-stuck",
            "a processor was held inside the kernel, last by pt_main_thread (4720) {}",
        ),
        (
            "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0",
            "host-oom-or-killed",
            "the hardware reported errors that could not be corrected, in host memory or a processor ({})",
        ),
    ],
)
def test_what_is_of_the_last_hours_warns_and_what_is_older_is_told(machine, text, cause, says):
    for when, severity, ago in (("now", "warning", "5 minutes ago"), ("hours", "warning", "4 hours ago"), ("days", "note", "3 days ago")):
        (one,) = found(machine, (when, text))
        assert (one.cause, one.area, one.severity, one.says) == (cause, "kernel", severity, says.format(ago))
        assert [e.text for e in one.evidence] == [text]
        assert one.remedies


def test_one_adapter_is_told_of_once_by_its_newest_and_worst(machine):
    (one,) = found(machine, ("days", FAULT), ("hours", COMMAND), ("hours", COMMAND))
    assert (one.severity, one.says) == ("warning", "the adapter 0000:5e:00.0 does not answer the commands of its driver (4 hours ago, 2 times)")
    assert [e.text for e in one.evidence] == [COMMAND, FAULT]
    assert len(found(machine, ("now", FAULT), ("now", FAULT.replace("5e", "5f")))) == 2


@pytest.mark.parametrize("text", ["chrome[4720]: segfault at 0 ip 00007f1a sp 00007ffc error 4 in chrome[55d+1000]", "ls[1]: segfault at 0 ip 0"])
def test_crashes_of_other_programs_are_none_of_ours(machine, text):
    assert found(machine, ("now", text)) == []


def test_in_a_container_the_crashes_are_the_host_s(machine):
    (one,) = found(machine, ("now", CRASH), ("now", CRASH), files={"/.dockerenv": ""})
    assert one.severity == "note"
    assert one.says.endswith("python3.11 (4720) 5 minutes ago; 2 crashes since the machine started")
    assert one.remedies[0].command.startswith("coredumpctl info 4720;")


@for_each(
    ("lines", "files", "expected"),
    [
        # Up again: once is worth knowing for some hours, thrice is a link that cannot be trusted.
        ([("hours", LINK)], nic(), [("ib-port-down", "note"), ("network-blocked", "note")]),
        ([("hours", LINK)] * 3, nic(), [("ib-port-down", "warning"), ("network-blocked", "note")]),
        ([("days", LINK)], nic(), []),
        ([("days", LINK)] * 3, nic(), [("ib-port-down", "note")]),
        # While the machine started.
        ([(UPTIME_S - 30, LINK)] * 5, nic(), []),
        # Down until now; and taken down by somebody.
        ([("hours", LINK)], nic(state="down"), [("ib-port-down", "warning")]),
        ([("days", LINK)], nic(state="down"), [("ib-port-down", "note")]),
        ([("hours", LINK)] * 3, nic(state="down", flags="0x1002"), []),
        # Not an adapter of RDMA: it matters where it leads to the others.
        ([("hours", LINK)], nic(rdma=False), [("network-blocked", "note")]),
        ([("days", LINK)] * 9, nic(rdma=False), []),
        ([("now", LINK.replace("ens1f0np0", "ens9"))], nic(rdma=False), []),
    ],
)
def test_links_that_went_down(machine, lines, files, expected):
    assert short(found(machine, *lines, files=files)) == expected


def test_the_way_to_other_hosts_went_down_in_a_job_of_several(machine):
    (one,) = found(machine, ("now", LINK), ("now", LINK), files=nic(rdma=False), environ=TWO)
    assert (one.cause, one.severity) == ("network-blocked", "warning")
    assert one.says == "the link of ens1f0np0, the way to other hosts, went down (5 minutes ago, 2 times); it is up again"
    assert one.remedies[0].command == "ip -s -s link show ens1f0np0; ethtool ens1f0np0; dmesg -T | grep -i 'ens1f0np0.*link'"


@pytest.mark.parametrize(
    ("when", "text", "files", "severity"),
    [
        ("now", KILLED, {}, "warning"),
        ("days", KILLED, {}, "note"),
        ("now", KILLED.replace("pt_main_thread", "chrome"), {}, "note"),
        ("now", KILLED, {"/.dockerenv": ""}, "note"),
    ],
)
def test_who_was_killed_and_when(machine, when, text, files, severity):
    (one,) = found(machine, (when, text), files=files | {"/proc/vmstat": "oom_kill 2\n"})
    name = "chrome" if "chrome" in text else "pt_main_thread"
    ago = {"now": "5 minutes ago", "days": "3 days ago"}[when]
    assert (one.cause, one.severity) == ("host-oom-or-killed", severity)
    assert one.says == f"the OOM killer has ended 2 processes on this machine since it started, {name} (811) {ago}"
