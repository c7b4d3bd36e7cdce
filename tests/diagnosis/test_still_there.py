"""No remedy is for a process that is gone, or may by now be another."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from tests.chinese import both, zh

from unhang.diagnosis import rerun_command
from unhang.diagnosis.why import judge
from unhang.facts import processes
from unhang.facts.host import Host
from unhang.launch.incidents import _identified
from unhang.model import Counters, Finding, Remedy, Verdict
from unhang.records.incident import Activity, Ended, Incident, RankRecord
from unhang.records.rundir import RunDir

OTHER = "another one may have its number by now"
COMMANDS = ("kill -CONT {pid}", "py-spy dump --native --pid {pid}", "cat /proc/{pid}/stack")


def record(its, **more) -> RankRecord:
    return RankRecord(**({"rank": 1, "pid": its.pid, "host": "node0", "process": its} | more))


def told(rank: RankRecord, command: str, alive: bool | None = None) -> Remedy:
    remedy = Remedy(id="a", says=both("Do it.", "这样做。"), command=command.format(pid=rank.pid))
    other = Remedy(id="b", says="b", command="unhang run -- COMMAND")
    finding = Finding(cause="process-stuck", standing="established", says="", remedies=(remedy, other))
    found = rerun_command.with_living_processes(Verdict(primary=finding, symptoms=(finding,)), (rank,), is_alive=lambda process: alive)
    assert found.primary.remedies == found.symptoms[0].remedies and found.primary.remedies[1] == other
    return found.primary.remedies[0]


@pytest.fixture
def ours():
    return processes.identity(Host(), os.getpid())


@pytest.mark.parametrize("command", COMMANDS)
def test_only_a_process_that_is_known_to_live_is_prescribed_for_without_a_word(ours, command):
    lives, gone, unseen = (told(record(ours), command, alive) for alive in (True, False, None))
    assert (lives.says, lives.command) == ("Do it.", command.format(pid=ours.pid))
    assert (gone.says, gone.command) == (f"Do it. Process {ours.pid} has ended since.", None) and zh(gone.says).endswith("此后已结束。")
    assert unseen.command == lives.command and OTHER in unseen.says and "node0" in unseen.says and "别的进程" in zh(unseen.says)
    # Of older runs the process is not recorded; one that had ended needs no look.
    assert OTHER in told(record(ours, process=None), command, True).says
    assert told(record(ours, ended=Ended(at_s=1.0)), command, True).command is None


@pytest.mark.parametrize("alive", [True, None])
def test_who_is_about_to_be_ended_is_not_prescribed_for(ours, alive):
    def ending(rank):
        remedy = Remedy(id="a", says=both("Do it.", "这样做。"), command=f"kill -CONT {ours.pid}")
        finding = Finding(cause="process-stuck", standing="established", says="", remedies=(remedy,))
        return rerun_command.with_living_processes(Verdict(primary=finding), (rank,), ends=True, is_alive=lambda process: alive).primary.remedies[0]

    found = ending(record(ours))
    assert (found.says, found.command) == (f"Do it. unhang run ends process {ours.pid} together with the other ranks.", None)
    assert zh(found.says).endswith("与其他 rank 一并结束。")
    assert ending(record(ours, ended=Ended(at_s=1.0))).says.endswith("has ended since.")
    # Who is none of the ranks is not ended with them.
    assert ending(record(ours, pid=ours.pid + 1)).command is not None


@pytest.mark.parametrize("command", ["unhang run -n 2 train.py --pid 3", "unhang run -- bash -c 'kill -CONT 12'"])
def test_what_the_user_has_typed_names_no_process(ours, command):
    assert told(record(ours), command, False) == Remedy(id="a", says=both("Do it.", "这样做。"), command=command)


def test_what_cannot_be_seen_is_said_once(ours):
    remedy = told(record(ours), COMMANDS[0])
    finding = Finding(cause="process-stuck", standing="established", says="", remedies=(remedy,))
    (again,) = rerun_command.with_living_processes(Verdict(primary=finding), (record(ours),), is_alive=lambda process: None).primary.remedies
    assert again == remedy


def stopped(tmp_path, process) -> Remedy:
    rundir = RunDir.create(tmp_path / "run")
    rundir.write(rundir.run, {})
    activity = Activity(window_s=2.0, state="T", cpu_share=0.0, tree_cpu_share=0.0, switches_per_s=0.0)
    common = {"host": "node0", "world_size": 2, "last_beat_s": 1.0}
    ranks = (
        RankRecord(rank=0, pid=10, groups={"0": Counters(enqueued=5, completed=4)}, **common),
        record(process, groups={"0": Counters(enqueued=4, completed=4)}, activity=activity, **common),
    )
    incident = Incident(number=1, attempt=0, kind="hang", at_s=9.0, at="now", cwd="/p", command=("x",), stalled_for_s=5.0, ranks=ranks)
    rundir.write(rundir.incident(1), incident)
    (remedy,) = judge(rundir).primary.remedies
    assert remedy.id == "continue-it"
    return remedy


@pytest.mark.parametrize("to", ["lives", "gone", "reused", "elsewhere"])
def test_a_verdict_that_is_read_later_looks_whether_the_very_process_still_stands_there(tmp_path, to):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        process = _identified(RankRecord(rank=1, pid=child.pid, host="node0"), Host()).process
        assert process is not None
        if to == "gone":
            child.kill()
            child.wait()
        process = {"reused": replace(process, start_ticks=process.start_ticks - 1), "elsewhere": replace(process, boot_id="another")}.get(to, process)
        remedy = stopped(tmp_path, process)
    finally:
        child.kill()
        child.communicate()
    expected = f"kill -CONT {child.pid}"
    assert remedy.command == {"lives": expected, "elsewhere": expected}.get(to)
    assert (OTHER in remedy.says, "has ended since" in remedy.says) == (to == "elsewhere", to in ("gone", "reused"))


def test_of_a_rank_that_has_ended_nothing_is_written_down_that_its_pid_may_tell_of_another():
    assert _identified(RankRecord(rank=0, pid=os.getpid(), host="h", ended=Ended(at_s=1.0)), Host()).process is None
