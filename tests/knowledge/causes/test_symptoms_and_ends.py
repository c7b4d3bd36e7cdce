"""Waiting, leaving and standing still in plain logs: who is missing is said, and consequences are not taken for causes."""

from __future__ import annotations

from unhang.knowledge import catalogue

STUCK = "[rank3]:[E1103 ProcessGroupNCCL.cpp:1484] [Rank 3] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress"
LEFT = "[2026-11-03 10:00:01,529] [INFO] [launch.py:347:main] Process 4720 exits successfully."
LOST = "RuntimeError: [/g/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:47492."


def judge(cause, view):
    return catalogue.get(cause).in_logs(view)


def test_the_rank_that_never_issued_it_is_named(logs):
    timeouts = tuple(logs.timeout(r, 21937, "_ALLGATHER_BASE", 176) for r in (0, 2, 3))
    found = judge("collective-timeout", logs.view(timeouts=timeouts, statuses=(logs.status(1, 21937, 21936, 21936),)))
    assert "ranks 0, 2 and 3 waited 10 min in _ALLGATHER_BASE #21937 (176 elements)" in found.says
    assert "rank 1 never issued it (last: #21936)" in found.says and found.ranks == (0, 2, 3)


def test_srun_names_many_hosts_in_one_line(logs):
    hosts = ",".join(f"node{i}" for i in range(1, 65))
    found = judge("launcher-teardown", logs.view(hits=logs.lines(f"srun: error: {hosts}: tasks 0-511: Exited with exit code 1")))
    assert found.says == "Slurm task 0-511 on node1,node2,node3,node4,node5,node6,node… ended with exit code 1"
    assert judge("launcher-teardown", logs.view()) is None


def test_a_silent_rank_is_named(logs):
    found = judge("collective-timeout", logs.view(timeouts=(logs.timeout(0, 4), logs.timeout(1, 4)), world_size=3))
    assert found.says.endswith("rank 2 printed no timeout")


def test_counters_of_another_group_tell_nothing(logs):
    found = judge("collective-timeout", logs.view(timeouts=(logs.timeout(0, 9),), statuses=(logs.status(1, 9, 2, 2, group="5"),)))
    assert "never issued" not in found.says


def test_a_heartbeat_after_a_timeout_is_its_consequence(logs):
    hits = logs.lines(STUCK, rank=3)
    assert judge("process-stuck", logs.view(hits=hits)).standing == "possible"
    assert judge("process-stuck", logs.view(hits=hits, timeouts=(logs.timeout(3, 5),))) is None


def test_a_blocked_task_stays_likely_behind_a_timeout(logs):
    hits = logs.lines("[88123.41] INFO: task python3:4720 blocked for more than 120 seconds.")
    found = judge("process-stuck", logs.view(hits=hits, timeouts=(logs.timeout(3, 5),)))
    assert found.standing == "likely" and found.remedies[0].id == "look-at-io"


def test_leaving_in_order_is_early_only_where_another_was_harmed(logs):
    assert judge("premature-exit", logs.view(hits=logs.lines(LEFT))) is None
    found = judge("premature-exit", logs.view(hits=logs.lines(LEFT + "\n" + LOST), exits=(logs.ended(1, pid=4721),)))
    assert found.standing == "likely" and "process 4720 ended in order" in found.says


def test_where_a_rank_was_killed_nobody_left_early(logs):
    hits = logs.lines(LEFT + "\n" + LOST)
    assert judge("premature-exit", logs.view(hits=hits, exits=(logs.ended(-9, pid=4721),))) is None
    found = judge("premature-exit", logs.view(hits=logs.lines(LOST), exits=(logs.ended(0, rank=1), logs.ended(1, rank=0))))
    assert found.ranks == (1,)


CUT = "Exception raised from checkTimeout at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:618 (most recent call first):"
FENCE = "slurmstepd: error:  mpi/pmix_v4: pmixp_coll_ring_reset_if_to: node7 [0]: pmixp_coll_ring.c:742: 0x14ce0c02cb20: collective timeout seq=0"


def test_the_stack_of_a_watchdog_is_a_timeout(logs):
    assert judge("collective-timeout", logs.view(hits=logs.lines(CUT))).evidence[0].text == CUT
    assert judge("collective-timeout", logs.view(hits=logs.lines(CUT.replace("checkTimeout", "checkForNCCLErrors")))) is None


def test_the_fence_of_slurms_pmix_is_a_timeout(logs):
    found = judge("collective-timeout", logs.view(hits=logs.lines(FENCE)))
    assert "Slurm's PMIx on node7" in found.says
