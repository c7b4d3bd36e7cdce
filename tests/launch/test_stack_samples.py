"""Signs of life of a rank whose children come and go."""

from __future__ import annotations

import dataclasses

import pytest

from unhang.facts.host import Host
from unhang.facts.processes import TICKS_PER_S
from unhang.launch.outside_view import Sampler
from unhang.launch.watch import RankState

STAT = "{pid} (x) S {ppid} 1 1 0 -1 4194304 9 0 0 0 {cpu} 0 {waited_for} 0 20 0 3 0 100 1000 25 0 0\n"
RANK = RankState(rank=0, pid=50, host="h", local_rank=0, since_s=0.0)


class Machine:
    """A machine with the rank's process and its children; CPU times in seconds."""

    def __init__(self, root):
        self.root = root
        self.sampler = Sampler(Host(root))
        self.t = 0.0

    def write(self, pid, ppid, *, cpu, waited_for=0.0):
        task = self.root / "proc" / str(pid) / "task" / str(pid)
        task.mkdir(parents=True, exist_ok=True)
        text = STAT.format(pid=pid, ppid=ppid, cpu=int(cpu * TICKS_PER_S), waited_for=int(waited_for * TICKS_PER_S))
        for directory in (task, task.parent.parent):
            (directory / "stat").write_text(text)
        (task / "status").write_text("voluntary_ctxt_switches:\t1\n")

    def look(self, *, waited_for, child_cpu):
        """The next sample: one child at a time."""
        self.write(50, 1, cpu=0, waited_for=waited_for)
        self.write(51, 50, cpu=child_cpu)
        self.t += 0.5
        self.sampler.look([RANK], now=self.t)


@pytest.mark.parametrize("collected", [True, False])
def test_one_computing_child_after_another(tmp_path, collected):
    """Each uses a whole core for three seconds. A rank that ignores SIGCHLD is not told what they used."""
    machine = Machine(tmp_path)
    for i in range(20):
        run, ended = i % 6 * 0.5, i // 6
        machine.look(waited_for=3.0 * ended if collected else 0.0, child_cpu=run)
        activity = machine.sampler.activity(RANK, window_s=4.0)
        assert activity is not None
        if activity.window_s >= 3.0:
            assert activity.tree_cpu_share >= 0.7 and activity.busy


def test_a_rank_without_computing_children_is_idle(tmp_path):
    machine = Machine(tmp_path)
    for _ in range(8):
        machine.look(waited_for=300.0, child_cpu=20.0)
    activity = machine.sampler.activity(RANK, window_s=4.0)
    assert activity is not None and activity.tree_cpu_share == 0.0 and not activity.busy


def test_what_a_rank_did_before_it_stood_still_does_not_count(tmp_path):
    machine = Machine(tmp_path)
    for i in range(8):
        machine.look(waited_for=0.0, child_cpu=min(i, 4) * 0.5)
    before, after = (machine.sampler.activity(RANK, window_s=10.0, since_s=s) for s in (0.0, 2.5))
    assert before.busy and not after.busy and after.window_s == 1.5
    assert not machine.sampler.activity(RANK, window_s=10.0, since_s=99.0).busy


def test_the_thread_that_trains_is_looked_at_where_it_is_not_the_main_one(tmp_path):
    """Ray's actors train in a thread; their main thread wakes up a hundred times a second for Ray's own messages."""
    machine = Machine(tmp_path)
    main, training = (tmp_path / "proc/50/task" / tid for tid in ("50", "57"))
    for i in range(20):
        machine.write(50, 1, cpu=0)
        (main / "status").write_text(f"voluntary_ctxt_switches:\t{50 * i}\n")
        training.mkdir(exist_ok=True)
        (training / "stat").write_text((main / "stat").read_text())
        (training / "status").write_text("voluntary_ctxt_switches:\t7\n")
        machine.sampler.look([dataclasses.replace(RANK, tid=57)], now=i * 0.5)
    activity = machine.sampler.activity(RANK, window_s=4.0)
    assert activity is not None and (activity.switches_per_s, activity.busy) == (0.0, False)


def test_what_one_thread_did_says_nothing_about_another(tmp_path):
    machine = Machine(tmp_path)
    state = dataclasses.replace(RANK)
    for tid, cpu in ((50, 900), (50, 900), (None, 1)):
        state.tid = tid
        machine.write(50, 1, cpu=cpu)
        machine.t += 0.5
        machine.sampler.look([state], now=machine.t)
    activity = machine.sampler.activity(state)
    assert activity is not None and activity.cpu_share == 0.0
