"""Tasks that hung in the kernel."""

import pytest

from unhang.facts.kernel_log import Event, KernelLog
from unhang.facts.snapshot import Part, Snapshot
from unhang.knowledge import catalogue

CAUSE = catalogue.load()["process-stuck"]

TEXT = "INFO: task python:811 blocked for more than 120 seconds."


def found(*events):
    log = KernelLog(source="/dev/kmsg", uptime_s=1e6, events=events)
    return list(CAUSE.on_host(Snapshot(host="node7", taken="", parts={"kernel": Part(state="read", facts=log)})))


def hung(age, *, seconds=122, pid=811, there=None, count=1):
    return Event(
        kind="hung-task", text=TEXT, pid=pid, process="python", first_age_s=age, last_age_s=age, seconds=seconds, process_is_there=there, count=count
    )


@pytest.mark.parametrize(("age", "severity"), [(60, "warning"), (86400, "note"), (None, "note")])
def test_a_task_that_hung(age, severity):
    (one,) = found(Event(kind="segfault", text="x[1]: segfault at 0", pid=1, process="x"), hung(5e5, count=3), hung(age))
    assert (one.cause, one.area, one.severity) == ("process-stuck", "kernel", severity)
    assert one.says.startswith("the kernel tells of tasks that hung in it: python (811) for more than 122 s, ")
    assert one.says.endswith("; 3 more reports of others")
    assert [e.text for e in one.evidence] == [TEXT, TEXT]


@pytest.mark.parametrize(
    ("there", "command"),
    [
        (True, "cat /proc/811/stack"),
        (False, "dmesg -T | grep -A 30 'blocked for more than'"),
        (None, "dmesg -T | grep -A 30 'blocked for more than'"),
    ],
)
def test_the_stack_is_offered_of_a_task_that_is_still_there(there, command):
    (one,) = found(hung(60, there=there, count=4))
    assert [r.command for r in one.remedies] == [command]
    assert one.says.endswith(", 4 times")


def test_who_waited_for_a_busy_disk_is_only_told_of():
    """Where hung_task_timeout_secs was lowered to a second."""
    (one,) = found(hung(60, seconds=1, there=True))
    assert (one.severity, "for more than 1 s" in one.says) == ("note", True)
    # The serious one is told first, whichever came last.
    (one,) = found(hung(90, pid=812), hung(60, seconds=1))
    assert (one.severity, "python (812)" in one.says) == ("warning", True)


def test_nothing_of_the_kind():
    assert found() == found(Event(kind="segfault", text="x[1]: segfault at 0", pid=1, process="x")) == []
    assert list(CAUSE.on_host(Snapshot(host="node7", taken="", parts={}))) == []
