"""The kernel log: who was killed for memory, who crashed."""

from __future__ import annotations

import pytest

from unhang.errors import RecordError
from unhang.records.kernel_events import events

LOG = """\
[1.0] usb 1-1: new device
[88123.4] Out of memory: Killed process 4720 (python3) total-vm:91234567kB, anon-rss:65012345kB
[88124.4] Memory cgroup out of memory: Killed process 4721 (pt_main_thread) total-vm:1kB
[5.0] Out of memory: Kill process 4722 (python) score 900 or sacrifice child
[88125.4] pt_main_thread[4730]: segfault at 10 ip 00007f sp 00007f error 4 in libnccl.so.2[7f+1]
[88126.4] python3 invoked oom-killer: gfp_mask=0x0
[88127.4] NVRM: Xid (PCI:0000:3B:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[88128.4] nvidia-nvswitch1: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
[88129.4] mlx5_core 0000:86:00.0 eth2: Link down
no stamp: mlx5_core 0000:86:00.1: health compromised - reached miss count
"""


def test_events(tmp_path):
    path = tmp_path / "kernel.txt"
    path.write_text(LOG)
    found = [(e.kind, e.pid, e.name, e.line) for e in events(path) if e.pid is not None]
    devices = [e for e in events(path) if e.pid is None]
    assert found == [
        ("oom-kill", 4720, "python3", 2),
        ("oom-kill", 4721, "pt_main_thread", 3),
        ("oom-kill", 4722, "python", 4),
        ("segfault", 4730, "pt_main_thread", 5),
    ]
    assert [(e.kind, e.device, e.line, e.boot_s) for e in devices] == [
        ("xid", "0000:3b:00.0", 7, 88127.4),
        ("sxid", "0000:c1:00.0", 8, 88128.4),
        ("link-down", "0000:86:00.0", 9, 88129.4),
        ("nic", "0000:86:00.1", 10, None),
    ]
    assert devices[0].text.startswith("NVRM: Xid")


def test_a_log_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(RecordError):
        events(tmp_path / "kernel.txt")
