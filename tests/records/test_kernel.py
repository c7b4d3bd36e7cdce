"""The kernel log: who was killed for memory, who crashed."""

from __future__ import annotations

from unhang.records.kernel import events

LOG = """\
[1.0] usb 1-1: new device
[88123.4] Out of memory: Killed process 4720 (python3) total-vm:91234567kB, anon-rss:65012345kB
[88124.4] Memory cgroup out of memory: Killed process 4721 (pt_main_thread) total-vm:1kB
[5.0] Out of memory: Kill process 4722 (python) score 900 or sacrifice child
[88125.4] pt_main_thread[4730]: segfault at 10 ip 00007f sp 00007f error 4 in libnccl.so.2[7f+1]
[88126.4] python3 invoked oom-killer: gfp_mask=0x0
"""


def test_events(tmp_path):
    path = tmp_path / "kernel.txt"
    path.write_text(LOG)
    found = [(e.kind, e.pid, e.name, e.line) for e in events(path)]
    assert found == [
        ("oom-kill", 4720, "python3", 2),
        ("oom-kill", 4721, "pt_main_thread", 3),
        ("oom-kill", 4722, "python", 4),
        ("segfault", 4730, "pt_main_thread", 5),
    ]
