"""Kills in plain logs: who did it speaks before that it happened, and a stranger's death is not ours."""

from __future__ import annotations

import pytest

from unhang.knowledge import catalogue

EXIT = "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 4 (pid: 5120) of binary: /usr/bin/python3"
OOM = "[88123.41] Out of memory: Killed process {pid} ({name}) total-vm:91234567kB, anon-rss:65012345kB"


def judge(view):
    return catalogue.get("host-oom-or-killed").in_logs(view)


def test_an_exit_code_alone_names_no_killer(logs):
    found = judge(logs.view(hits=logs.lines(EXIT), exits=(logs.ended(-9, pid=5120, local_rank=4),)))
    assert found.standing == "established" and "by whom is not in the log" in found.says and found.remedies[0].id == "find-the-killer"


@pytest.mark.parametrize(("how", "word"), [("Killed", "was killed (SIGKILL)"), ("Out Of Memory", "used up the memory")])
def test_many_hosts_in_one_line(logs, how, word):
    found = judge(logs.view(hits=logs.lines(f"srun: error: node[1-64],gpu1: tasks 0-511: {how}")))
    assert f"task 0-511 on node[1-64],gpu1 {word}" in found.says
    hosts = ",".join(f"node{i}" for i in range(1, 65))
    tasks = ",".join(map(str, range(0, 512, 8)))
    found = judge(logs.view(hits=logs.lines(f"srun: error: {hosts}: tasks {tasks}: {how}")))
    assert f"task {tasks[:40]}… on {hosts[:40]}… {word}" in found.says
    assert hosts in found.evidence[0].text


def test_the_kernel_speaks_first(logs):
    found = judge(logs.view(hits=logs.lines(EXIT + "\n" + OOM.format(pid=5120, name="python3"))))
    assert "OOM killer ended process 5120 (python3)" in found.says and found.remedies[0].id == "less-memory"


def test_a_strangers_death_is_not_ours(logs):
    hits = logs.lines(OOM.format(pid=77, name="chrome"))
    assert judge(logs.view(hits=hits)) is None
    assert judge(logs.view(hits=hits, exits=(logs.ended(-9, rank=2, pid=77),))) is not None
    assert judge(logs.view(hits=hits, exits=(logs.ended(1, rank=2, pid=77),))) is None


def test_exits_are_enough(logs):
    found = judge(logs.view(exits=(logs.ended(-9, rank=2), logs.ended(-15, rank=0))))
    assert found.ranks == (2,) and found.says.startswith("rank 2 was killed")
    assert judge(logs.view(exits=(logs.ended(-15, rank=0), logs.ended(1, rank=1)))) is None


def test_rays_own_monitor_has_its_own_remedy(logs):
    text = "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory."
    found = judge(logs.view(hits=logs.lines(text + "\n" + EXIT)))
    assert found.remedies[0].id == "ray-threshold" and "Ray" in found.says


def test_what_the_launcher_killed_itself_is_no_cause(logs):
    forced = "api.py:862] Unable to shutdown process 5120 via Signals.SIGTERM, forcefully exiting via Signals.SIGKILL"
    view = logs.view(hits=logs.lines(f"{forced}\n{EXIT}"), exits=(logs.ended(-9, pid=5120, local_rank=4),))
    assert catalogue.get("host-oom-or-killed").in_logs(view) is None
    other = logs.view(hits=logs.lines(forced), exits=(logs.ended(-9, pid=77),))
    assert catalogue.get("host-oom-or-killed").in_logs(other) is not None
