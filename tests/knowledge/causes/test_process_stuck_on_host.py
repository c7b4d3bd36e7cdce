"""Tasks that hung in the kernel."""

import pytest

from unhang.facts.kernel_log import Event, KernelLog
from unhang.facts.snapshot import Part, Snapshot
from unhang.knowledge.causes.process_stuck import CAUSE

TEXT = "INFO: task python:811 blocked for more than 120 seconds."


def found(*events):
    log = KernelLog(source="/dev/kmsg", uptime_s=1e6, events=events)
    return list(CAUSE.on_host(Snapshot(host="node7", taken="", parts={"kernel": Part(state="read", facts=log)})))


def hung(age):
    return Event(kind="hung-task", text=TEXT, pid=811, process="python", first_age_s=age, last_age_s=age)


@pytest.mark.parametrize(("age", "severity"), [(60, "warning"), (86400, "note"), (None, "note")])
def test_a_task_that_hung(age, severity):
    (one,) = found(Event(kind="segfault", text="x[1]: segfault at 0", pid=1, process="x"), hung(5e5), hung(age))
    assert (one.cause, one.area, one.severity) == ("process-stuck", "kernel", severity)
    assert one.says.startswith("the kernel tells of tasks that hung in it: python (811)") and one.says.endswith("1 more before")
    assert [e.text for e in one.evidence] == [TEXT, TEXT]
    assert [r.command for r in one.remedies] == ["cat /proc/811/stack" if severity == "warning" else "cat /proc/PID/stack"]


def test_nothing_of_the_kind():
    assert found() == found(Event(kind="segfault", text="x[1]: segfault at 0", pid=1, process="x")) == []
    assert list(CAUSE.on_host(Snapshot(host="node7", taken="", parts={}))) == []
