"""Exit codes as launchers write them."""

from __future__ import annotations

import pytest
from tests.logs.scanned import scan
from tests.tables import for_each

from unhang.logs import exits


@pytest.fixture
def read(tmp_path):
    def read(text):
        path = tmp_path / "log"
        path.write_text(text)
        return [(e.at.rank, e.local_rank, e.at.pid, e.code) for e in exits.read(scan(path, exits.SIGNATURES))]

    return read


BLOCK = """E1103 09:12:44 4711 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 4720) of binary: x
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-03_09:12:44
  host      : node7
  rank      : 12 (local_rank: 4)
  exitcode  : 1 (pid: 4724)
  error_file: <N/A>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-03_09:12:44
  host      : node7
  rank      : 9 (local_rank: 1)
  exitcode  : -9 (pid: 4720)
"""


def test_torchruns_block_names_the_rank(read):
    assert sorted(read(BLOCK)) == [(9, 1, 4720, -9), (12, 4, 4724, 1)]


def test_torchruns_block_names_the_host(tmp_path):
    path = tmp_path / "log"
    path.write_text(BLOCK)
    assert {(e.at.rank, e.at.host) for e in exits.read(scan(path, exits.SIGNATURES))} == {(9, "node7"), (12, "node7")}


@for_each(
    ("line", "ended"),
    [
        (
            "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 4 (pid: 5120) of binary: /usr/bin/python3",
            (None, 4, 5120, -9),
        ),
        (
            "subprocess.CalledProcessError: Command '['/opt/bin/python', 't.py', '--local_rank=3', '--lr', '1']' died with <Signals.SIGSEGV: 11>.",
            (None, 3, None, -11),
        ),
        ("subprocess.CalledProcessError: Command '['ninja', '-v']' died with <Signals.SIGSEGV: 11>.", (None, None, None, -11)),
        ("[2026-11-03 10:00:01,000] [INFO] [launch.py:347:main] Process 5100 exits with return code = -6", (None, None, 5100, -6)),
        # The handler prints the command that was started last, whoever died.
        ("[ERROR] [launch.py:325:sigkill_handler] ['python', 't.py', '--local_rank=3'] exits with return code = -6", (None, None, None, -6)),
        ("[2026-11-03 10:00:01,000] [INFO] [launch.py:316:sigkill_handler] Killing subprocess 77", None),
        ("torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGSEGV", (1, None, None, -11)),
        ("torch.multiprocessing.spawn.ProcessExitedException: process 3 terminated with exit code 7", (3, None, None, 7)),
        ("subprocess.CalledProcessError: Command '['python', 't.py']' returned non-zero exit status 137.", (None, None, None, -9)),
        ("subprocess.CalledProcessError: Command '['python', 't.py']' died with <Signals.SIGABRT: 6>.", (None, None, None, -6)),
        ("srun: error: node7: task 3: Out Of Memory", (3, None, None, -9)),
        ("srun: error: node7: task 3: Exited with exit code 143", (3, None, None, -15)),
        ("mpirun noticed that process rank 3 with PID 88 on node node7 exited on signal 9 (Killed).", (3, None, 88, -9)),
        ("process 1 terminated with joy", None),
    ],
)
def test_each_launcher(read, line, ended):
    found = read(line + "\n")
    assert found == ([ended] if ended else [])


def test_slurms_lists_of_tasks(read):
    assert [e[0] for e in read("srun: error: node7: tasks 0-2,5: Exited with exit code 1\n")] == [0, 1, 2, 5]


@pytest.mark.parametrize(
    ("hosts", "host"),
    [("node7", "node7"), ("node[1-64],gpu1", None), ("node[1-3,7]-ib,login", None), ("node[1-2000+", None)],
)
def test_one_host_of_many_is_nobodys(tmp_path, hosts, host):
    path = tmp_path / "node5.log"
    path.write_text(f"srun: error: {hosts}: tasks 0-511: Killed\n")
    found = exits.read(scan(path, exits.SIGNATURES))
    assert (len(found), {e.code for e in found}, {e.at.host for e in found}) == (512, {-9}, {host})


def test_a_torn_list_stays_bounded(read):
    assert len(read("srun: error: node7: tasks 0-999999999: Killed\n")) == exits.MAX_TASKS
    assert read("srun: error: node7: tasks 0-99999999999: Killed\n") == [(None, None, None, -9)]


def test_a_line_of_many_ranges_stays_bounded(read):
    line = "srun: error: node7: tasks " + ",".join(["0-70000"] * 100) + ": Killed\n"
    assert len(read(line)) == exits.MAX_TASKS
    assert [e[0] for e in read("srun: error: node7: tasks 3,0-70000: Killed\n")][:3] == [3, 0, 1]
    # A list that is longer is no list.
    assert read(f"srun: error: node7: tasks {'1,' * 2000}2: Killed\n") == []


@for_each(
    "line",
    [
        "failed (exitcode: {n}) local_rank: 4 (pid: 5120) of binary: python",
        "failed (exitcode: 1) local_rank: {n} (pid: 5120) of binary: python",
        "failed (exitcode: 1) local_rank: 4 (pid: {n}) of binary: python",
        "  exitcode  : {n} (pid: 4724)",
        "{n} exits with return code = 1",
        "5100 exits with return code = {n}",
        "process {n} terminated with exit code 1",
        "process 1 terminated with exit code {n}",
        "returned non-zero exit status {n}.",
        "srun: error: node7: task {n}: Killed",
        "srun: error: node7: task 1: Exited with exit code {n}",
        "mpirun noticed that process rank {n} with PID 88 on node node7 exited on signal 9 (Killed).",
        "mpirun noticed that process rank 1 with PID 88 on node node7 exited on signal {n} (Killed).",
    ],
)
def test_endless_numbers_are_none(read, line):
    assert all(len(str(value)) < 12 for e in read(line.format(n="6" * 5000) + "\n") for value in e)
