"""Exceptions in plain logs: alike ones counted, launchers and victims left out, the first or the odd one named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.chinese import zh

from unhang.frames import Frame
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


def missing_on_one(logs, text, *, kind="ModuleNotFoundError", file="/srv/job/train.py", host="node7", exits=()):
    back = replace(
        logs.raised(kind, text, rank=3),
        host=host,
        frames=(Frame(file="/srv/job/train.py", line=3, name="<module>"), Frame(file=file, line=1, name="f")),
    )
    return judge(logs.view(tracebacks=(back,), world_size=8, exits=exits))


@pytest.mark.parametrize(
    ("text", "file", "command", "verify"),
    [
        ("No module named 'cv2'", "/opt/env/lib/python3.11/site-packages/x.py", "/opt/env/bin/python -m pip install opencv-python-headless", "cv2"),
        ("No module named 'datasets'", "/srv/job/train.py", "python -m pip install datasets", "datasets"),
        # Who knows what brings these: somebody else's package has the name.
        ("No module named 'apex'", "/opt/env/lib/python3.11/site-packages/x.py", "/opt/env/bin/python -m pip list", "apex"),
        ("No module named 'my_project'", "/srv/job/train.py", "python -m pip list", "my_project"),
        ("No module named 'transformers.masking'", "/srv/job/train.py", "python -m pip list", "transformers.masking"),
    ],
)
def test_a_missing_module_is_named_with_its_rank_host_and_interpreter(logs, text, file, command, verify):
    (remedy,) = missing_on_one(logs, text, file=file).remedies
    assert (remedy.id, remedy.command) == ("install-the-module", command)
    assert remedy.verify == f"{command.partition(' ')[0]} -c 'import {verify}'"
    python = f" under {command.partition(' ')[0]}" if command.startswith("/") else ""
    what = verify if "." in verify else f"module {verify}"
    assert remedy.says.startswith(f"rank 3 on node7 found no {what}{python}: ")
    assert verify in zh(remedy.says) and "rank 3（主机 node7）" in zh(remedy.says)


def test_the_interpreter_that_the_launcher_names(logs):
    said = logs.ended(1, rank=3)
    said = replace(said, at=replace(said.at, text="failed (exitcode: 1) local_rank: 3 (pid: 812) of binary: /data/envs/b/bin/python3.11"))
    (remedy,) = missing_on_one(logs, "No module named 'peft'", exits=(said,)).remedies
    assert remedy.command == "/data/envs/b/bin/python3.11 -m pip install peft"


@pytest.mark.parametrize(
    ("kind", "text"),
    [("ImportError", "the plugin is not there"), ("ValueError", "No module named 'x'"), ("LookupError", "'cv2'")],
)
def test_exceptions_of_which_no_more_is_known_keep_the_general_remedies(logs, kind, text):
    # No sample can cause an import to fail.
    general = ["correct-the-line"] if kind == "ImportError" else ["correct-the-line", "agree-on-failure"]
    assert [r.id for r in missing_on_one(logs, text, kind=kind).remedies] == general
