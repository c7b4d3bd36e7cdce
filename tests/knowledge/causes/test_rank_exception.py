"""Exceptions in plain logs: alike ones counted, launchers and victims left out, the first or the odd one named."""

from __future__ import annotations

import pytest

from unhang.knowledge import catalogue


def judge(view):
    return catalogue.get("rank-exception").in_logs(view)


def test_the_first_in_one_log_speaks_and_the_rest_are_told(logs):
    backs = (
        logs.raised("ValueError", "bad sample 17", rank=7, line=10, at=40),
        *(logs.raised("RuntimeError", f"rank {r} lost its peer", rank=r, line=20 + 10 * r) for r in range(7)),
    )
    found = judge(logs.view(tracebacks=backs))
    assert (found.standing, found.ranks, found.where) == ("established", (7,), "/srv/job/train.py:40 in main")
    assert found.says.startswith("rank 7 raised ValueError: bad sample 17") and "ranks 0 to 6 raised RuntimeError as well" in found.says


def test_of_separate_logs_the_odd_one_speaks(logs):
    backs = [logs.raised("RuntimeError", "peer failed", rank=r, source=f"rank{r}.log") for r in range(3)]
    backs.append(logs.raised("KeyError", "'label'", rank=3, source="rank3.log", at=51))
    found = judge(logs.view(tracebacks=tuple(backs)))
    assert found.ranks == (3,) and "KeyError" in found.says


@pytest.mark.parametrize(
    ("world", "who"), [(4, "every rank raised the same"), (8, "ranks 0 to 3 raised the same"), (None, "ranks 0 to 3 raised the same")]
)
def test_alike_ones_are_one(logs, world, who):
    backs = tuple(logs.raised("FileNotFoundError", f"/data/shard-{r}.bin", rank=r, line=10 * r + 1) for r in range(4))
    found = judge(logs.view(tracebacks=backs, world_size=world))
    assert found.says.startswith(who) and found.ranks == (0, 1, 2, 3) and found.remedies[1].id == "same-on-all"


def test_without_ranks_processes_are_counted_and_it_is_likely(logs):
    found = judge(logs.view(tracebacks=(logs.raised("ValueError", "x"), logs.raised("ValueError", "x", line=30))))
    assert (found.standing, found.ranks) == ("likely", ()) and found.says.startswith("2 processes raised the same ValueError")


@pytest.mark.parametrize(
    "type",
    [
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError",
        "subprocess.CalledProcessError",
        "torch.multiprocessing.spawn.ProcessRaisedException",
        "torch.distributed.DistBackendError",
        "ray.exceptions.ActorDiedError",
        "KeyboardInterrupt",
    ],
)
def test_launchers_and_victims_are_no_cause(logs, type):
    assert judge(logs.view(tracebacks=(logs.raised(type, "x", rank=0),))) is None


def test_a_line_that_has_a_cause_of_its_own_is_left_to_it(logs):
    text = "RuntimeError: DataLoader timed out after 120 seconds"
    back = logs.raised("RuntimeError", "DataLoader timed out after 120 seconds", line=7)
    assert judge(logs.view(hits=logs.lines(text, start=10), tracebacks=(back,))) is None
    assert judge(logs.view(hits=logs.lines(text, start=99), tracebacks=(back,))) is not None


def test_a_broken_connection_speaks_only_where_nothing_else_does(logs):
    weak = logs.raised("ConnectionResetError", "[Errno 104] Connection reset by peer", rank=0)
    assert judge(logs.view(tracebacks=(weak,))).standing == "possible"
    found = judge(logs.view(tracebacks=(weak, logs.raised("ValueError", "x", rank=1, line=50))))
    assert (found.standing, found.ranks) == ("established", (1,))


@pytest.mark.parametrize("names", [("__del__", "_shutdown_workers"), ("_shutdown", "join")])
def test_what_goes_wrong_while_python_clears_up_is_no_cause(logs, names):
    assert judge(logs.view(tracebacks=(logs.raised("AssertionError", "can only join a child process", names=names),))) is None
    assert judge(logs.view(tracebacks=(logs.raised("AssertionError", "can only join a child process", names=("main", *names)),))) is not None
