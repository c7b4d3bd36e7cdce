import datetime

import pytest
from tests.tables import for_each

from unhang.facts import kernel_log
from unhang.facts.host import Host, Ran

NOW = 1_800_000_000.0
UPTIME = {"/proc/uptime": "100000.00 1.0\n"}
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def kmsg(*lines):
    return "".join(f"3,{i},{int(s * 1e6)},-;{text}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n" for i, (s, text) in enumerate(lines))


def seen(machine, *texts, at=99_000.0):
    return kernel_log.collect(machine(UPTIME | {"/dev/kmsg": kmsg(*((at, t) for t in texts))}))


@for_each(
    ("text", "kind", "device", "code"),
    [
        (XID, "xid", "0000:3b:00.0", 79),
        ("NVRM: Xid (0000:03:00): 48, pid=811, An uncorrectable double bit error (DBE)", "xid", "0000:03:00.0", 48),
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", "sxid", "0000:c1:00.0", 20034),
        ("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", "gpu-lost", "0000:3b:00.0", None),
        ("NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x23:0x65:1401)", "gpu-start-failed", "0000:3b:00.0", None),
        ("NVRM: API mismatch: the client 'python' (pid 811) has the version 550.54.15, but", "driver-mismatch", None, None),
        ("pcieport 0000:3a:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)", "pcie-error", "0000:3a:00.0", None),
        ("pcieport 0000:3a:00.0: AER: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)", "pcie-error", "0000:3a:00.0", None),
        ("nvidia 10000:3b:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Inaccessible", "pcie-error", "10000:3b:00.0", None),
        (
            "pcieport 0000:00:01.0: AER: Multiple Uncorrectable (Non-Fatal) error message received from 0000:3b:00.0",
            "pcie-error",
            "0000:3b:00.0",
            None,
        ),
        ("pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:3b:00.0", "pcie-error", "0000:3b:00.0", None),
        ("pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error message received from 0000:3b:00.0", "pcie-error", "0000:3b:00.0", None),
        ("DMAR: [DMA Write NO_PASID] Request device [3b:00.0] fault addr 0xb0000000 [fault reason 0x05]", "iommu-fault", "0000:3b:00.0", None),
        ("nvidia 0000:3b:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0017 address=0xb0 flags=0x0020]", "iommu-fault", "0000:3b:00.0", None),
        ("AMD-Vi: Event logged [IO_PAGE_FAULT device=3b:00.0 domain=0x0017 address=0xb0]", "iommu-fault", "0000:3b:00.0", None),
        ("mlx5_core 0000:17:00.0: poll_health:800:(pid 0): device's health compromised - reached miss count", "nic", "0000:17:00.0", None),
        ("mlx5_core 0000:17:00.0 ens1f0np0: TX timeout detected", "nic", "0000:17:00.0", None),
        ("mlx5_core 0000:17:00.0: mlx5_handle_bad_state:140: Fatal error 3 detected", "nic", "0000:17:00.0", None),
        (
            "mlx5_core 0000:17:00.0: wait_func:1137:(pid 4): CREATE_QP(0x500) timeout. Will cause a leak of a command resource",
            "nic",
            "0000:17:00.0",
            None,
        ),
        ("mlx5_core 0000:17:00.0: temp_warn:159:(pid 0): High temperature on sensors with bit set 0 1", "nic", "0000:17:00.0", None),
        ("bnxt_en 0000:5e:00.0 eth2: Firmware not responding, status: 0x8", "nic", "0000:5e:00.0", None),
        ("NETDEV WATCHDOG: ens1f0np0 (mlx5_core): transmit queue 12 timed out", "nic", None, None),
        ("mlx5_core 0000:5e:00.0 ens1f0np0: NETDEV WATCHDOG: CPU: 3: transmit queue 12 timed out 5376 ms", "nic", "0000:5e:00.0", None),
        ("ens1f0np0: hw csum failure", "nic", None, None),
        ("mlx5_core 0000:17:00.0 ens1f0np0: Link down", "link-down", "0000:17:00.0", None),
        ("ice 0000:17:00.0 ens1f0: NIC Link is Down", "link-down", "0000:17:00.0", None),
        ("tg3 0000:17:00.0 eth0: Link is down", "link-down", "0000:17:00.0", None),
        ("bonding: bond0: Link is Down", "link-down", None, None),
        ("NVRM: RmInitAdapter failed! (0x26:0xffff:1097)", "gpu-start-failed", None, None),
        ("traps: python[811] general protection fault ip:7f00 sp:7ffe error:0 in libtorch_cuda.so[7f00+1000]", "segfault", None, None),
        ("traps: python[811] general protection ip:7f00 sp:7ffe error:0", "segfault", None, None),
        ("{1}[Hardware Error]: event severity: fatal", "memory", None, None),
        ("watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [python:811]", "soft-lockup", None, None),
        ("INFO: task python:811 blocked for more than 120 seconds.", "hung-task", None, None),
        ("python[811]: segfault at 0 ip 00007f00 sp 00007ffe error 4 in libc.so.6", "segfault", None, None),
        ("Out of memory: Killed process 811 (python) total-vm:1kB", "oom-kill", None, None),
        ("Memory cgroup out of memory: Killed process 811 (python) total-vm:1kB", "oom-kill", None, None),
    ],
)
def test_what_it_tells(machine, text, kind, device, code):
    (event,) = seen(machine, text).events
    assert (event.kind, event.device, event.code, event.text, event.last_age_s) == (kind, device, code, text, 1000.0)
    if kind in ("oom-kill", "segfault", "hung-task", "soft-lockup"):
        assert (event.pid, event.process) == (811, "python")


@for_each(
    "text",
    [
        "nvidia-nvlink: Nvlink Core is being initialized, major device number 511",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15",
        "pcieport 0000:00:01.0: AER: enabled with IRQ 24",
        "mlx5_core 0000:17:00.0: firmware version: 28.39.1002",
        "mlx5_core 0000:17:00.0 ens1f0np0: Link up",
        "mlx5_core 0000:17:00.0: mlx5_cmd_out_err:838:(pid 4): QUERY_X(0x1) op_mod(0x0) failed, status internal error(0x1), syndrome (0x0)",
        "ice 0000:17:00.0 ens1f0: NIC Link is up 100 Gbps Full Duplex",
        "general protection fault, probably for non-canonical address 0xdead000000000122: 0000 [#1] PREEMPT SMP",
        "{1}[Hardware Error]: event severity: corrected",
        "{1}[Hardware Error]: severity: non-fatal",
        "DMAR: [DMA Write] Request device [..:..:...] fault addr 0",
        "IPv6: ADDRCONF(NETDEV_CHANGE): ens1f0np0: link becomes ready",
        "DMAR: IOMMU enabled",
        "AMD-Vi: AMD IOMMUv2 loaded and initialized",
        "EDAC MC0: Giving out device to module i10nm_edac",
    ],
)
def test_everyday_lines_are_not_kept(machine, text):
    assert seen(machine, text).events == ()


LINK = "mlx5_core 0000:17:00.0 ens1f0np0: Link down"


def test_links_that_go_down_while_the_machine_starts_are_nothing(machine):
    log = kernel_log.collect(machine(UPTIME | {"/dev/kmsg": kmsg((9.0, LINK), (400.0, LINK), (50_000.0, LINK), (99_000.0, LINK))}))
    assert [(e.interface, e.count, e.last_age_s) for e in log.events] == [("ens1f0np0", 2, 1000.0)]
    # Without times nobody knows which it was.
    assert kernel_log.collect(machine({"/dev/kmsg": kmsg((99_000.0, LINK))})).events == ()
    host = machine(UPTIME)
    host.commands[("dmesg",)] = Ran(exitcode=0, out=f"{LINK}\n", err="")
    assert kernel_log.collect(host).events == ()


def test_faults_of_one_adapter_are_told_apart(machine):
    texts = ("TX timeout detected", "poll_health:800:(pid 0): device's health compromised - reached miss count", "TX timeout detected")
    log = seen(machine, *(f"mlx5_core 0000:17:00.0: {t}" for t in texts))
    assert [(e.what, e.count) for e in log.events] == [("health compromised", 1), ("TX timeout", 2)]


@pytest.mark.parametrize(("age", "expected"), [(60.0, True), (5 * 3600.0, True), (7 * 3600.0, False), (None, False)])
def test_what_is_of_the_last_hours(age, expected):
    event = kernel_log.Event(kind="nic", text="", last_age_s=age, count=3)
    assert kernel_log.recent(event) is expected
    assert kernel_log.times(event) == f"{kernel_log.ago(age)}, 3 times"


@pytest.mark.parametrize("word", ["Uncorrected", "Uncorrectable"])
def test_kernels_of_all_times_tell_a_severity_alike(machine, word):
    (event,) = seen(machine, f"nvidia 0000:3b:00.0: AER: PCIe Bus Error: severity={word} (Fatal), type=Transaction Layer").events
    assert event.severity == "Uncorrected (Fatal)"


def test_a_process_whose_name_has_brackets(machine):
    (event,) = seen(machine, "Out of memory: Killed process 811 ((sd-pam)) total-vm:1kB, anon-rss:1kB").events
    assert (event.pid, event.process) == (811, "(sd-pam)")


def test_alike_lines_are_one_event(machine):
    lines = [(10.0, XID), (60_000.0, XID), (99_990.0, XID), (99_995.0, XID.replace("3b", "5e"))]
    log = kernel_log.collect(machine(UPTIME | {"/dev/kmsg": kmsg(*lines)}))
    assert [(e.device, e.count, e.first_age_s, e.last_age_s) for e in log.events] == [
        ("0000:3b:00.0", 3, 99990.0, 10.0),
        ("0000:5e:00.0", 1, 5.0, 5.0),
    ]
    assert kernel_log.SUBJECT.summary(log) == "4 xid"


def test_the_newest_are_kept(machine):
    log = seen(machine, *(f"p{i}[{i}]: segfault at 0 ip 0" for i in range(250)))
    assert (len(log.events), log.left_out, log.events[-1].pid) == (100, 150, 249)


def test_log_files_with_their_times(machine):
    def stamp(ago, form):
        return datetime.datetime.fromtimestamp(NOW - ago).strftime(form)

    texts = {
        "syslog": f"{stamp(600, '%b %d %H:%M:%S')} node7 kernel: [  99.5] {XID}\n",
        "iso": f"{datetime.datetime.fromtimestamp(NOW - 600, datetime.timezone.utc).isoformat(timespec='microseconds')} node7 kernel: {XID}\n",
    }
    for name, text in texts.items():
        (event,) = kernel_log.collect(machine(UPTIME | {"/var/log/kern.log": text})).events
        assert event.last_age_s == pytest.approx(600, abs=1), name
        assert event.text == XID
    old = f"{stamp(200_000, '%b %d %H:%M:%S')} node7 kernel: {XID}\n"
    new = f"{stamp(600, '%b %d %H:%M:%S')} node7 kernel: nothing special\n"
    assert kernel_log.collect(machine(UPTIME | {"/var/log/kern.log": old + new})).events == ()
    with pytest.raises(OSError, match=r"/var/log/kern\.log: it holds nothing"):
        kernel_log.collect(machine(UPTIME | {"/var/log/kern.log": old}))


@pytest.mark.parametrize(
    "files",
    [
        {"/dev/kmsg": "-> /dev/null"},
        {"/dev/kmsg": ""},
        {"/dev/kmsg": "30,1,99000000,-;systemd[1]: Started something.\n"},
        {"/var/log/kern.log": "", "/var/log/messages": "Jan  1 00:00:00 node7 systemd: hi\n"},
        {"/var/log/messages": f"{LINK}\n"},
    ],
)
def test_a_log_that_shows_nothing_is_no_healthy_machine(machine, files):
    with pytest.raises(OSError, match=r"shows nothing|holds nothing"):
        kernel_log.collect(machine(UPTIME | files))


@pytest.mark.parametrize("empty", [{"/dev/kmsg": "-> /dev/null"}, {"/dev/kmsg": ""}])
def test_where_one_shows_nothing_the_next_is_asked(machine, empty):
    stamp = datetime.datetime.fromtimestamp(NOW - 600).strftime("%b %d %H:%M:%S")
    host = machine(UPTIME | empty | {"/var/log/kern.log": "", "/var/log/messages": f"{stamp} node7 kernel: {XID}\n"})
    host.commands[("journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-unix", "-n", "20000")] = Ran(
        exitcode=0, out="-- No entries --\n", err=""
    )
    log = kernel_log.collect(host)
    assert (log.source, [e.kind for e in log.events], log.unread) == ("/var/log/messages", ["xid"], ())


@pytest.mark.parametrize(("comm", "there"), [("python", True), ("bash", False), (None, False)])
def test_whether_a_task_that_hung_is_still_there(machine, comm, there):
    files = {} if comm is None else {"/proc/811/comm": f"{comm}\n"}
    lines = kmsg((99_000.0, "INFO: task python:811 blocked for more than 122 seconds."), (99_100.0, "python[811]: segfault at 0 ip 0"))
    hung, crashed = kernel_log.collect(machine(UPTIME | files | {"/dev/kmsg": lines})).events
    assert (hung.seconds, hung.process_is_there, crashed.process_is_there) == (122, there, None)


def test_the_journal_where_the_kernel_refuses(machine):
    host = machine(UPTIME)
    argv = ("journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-unix", "-n", "20000")
    host.commands[argv] = Ran(exitcode=0, out=f"{NOW - 50:.6f} node7 kernel: {XID}\n", err="")
    log = kernel_log.collect(host)
    assert (log.source, log.events[0].last_age_s) == ("journalctl", 50.0)


def test_where_nothing_may_be_read(machine):
    with pytest.raises(OSError, match="the kernel log may not be read: /dev/kmsg"):
        kernel_log.collect(machine({}))


@pytest.mark.parametrize(
    "text", ["\x00\xff;;;\n", "3,1,99999999999999999999,-;NVRM: Xid (PCI:0000:3b:00): 99999999999999\n", "NVRM: Xid (PCI:" + "0" * 5000]
)
def test_damaged_lines_are_survived(machine, text):
    kernel_log.collect(machine(UPTIME | {"/dev/kmsg": kmsg((1.0, "Linux version 6.8.0")) + text}))


@pytest.mark.parametrize(
    ("age", "said"), [(5, "5 s ago"), (150, "2 minutes ago"), (7300, "2 hours ago"), (300_000, "3 days ago"), (None, "at an unknown time")]
)
def test_ages_in_words(age, said):
    assert kernel_log.ago(age) == said


def test_this_machine():
    try:
        log = kernel_log.collect(Host())
    except OSError as e:
        assert "may not be read" in str(e)
    else:
        assert log.source
