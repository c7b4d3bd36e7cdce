"""Every prefix and marker: what is left of the line, and what it told. Lines that only look like one keep their meaning."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from tests.tables import for_each

from unhang.logs import parse

NOV_3 = "2026-11-03 10:00:01"
HEAD = "2026-11-03T10:00:01.123456789Z"


def told(raw):
    """What a line told beside its text; times printed, with `year-less` and `boot` where they are that."""
    line = parse(raw)
    fields = {k: v for k, v in vars(line).items() if v is not None and k not in ("number", "text", "time")}
    if line.time is not None:
        printed = datetime.fromtimestamp(line.time.seconds, tz=timezone.utc)
        fields["time"] = printed.strftime("%Y-%m-%d %H:%M:%S" if line.time.has_year else "%m-%d %H:%M:%S")
        if line.time.clock == "boot":
            fields["time"] = f"boot {line.time.seconds}"
    return line.text, fields


TAKEN_OFF = [
    ("2026:11:03-10:00:01:(812) |CCL_ERROR| boom", "|CCL_ERROR| boom", {"pid": 812, "time": NOV_3}),
    # torch and torchrun
    ("[rank12]: boom", "boom", {"rank": 12}),
    ("[rank0]:Traceback (most recent call last):", "Traceback (most recent call last):", {"rank": 0}),
    ("[default3]:boom", "boom", {"local_rank": 3}),
    ('[default3]:  File "x"', '  File "x"', {"local_rank": 3}),
    ("[rank0]:     raise E", "    raise E", {"rank": 0}),
    ("rank 3: boom", "boom", {"rank": 3}),
    ("Rank 3 | boom", "boom", {"rank": 3}),
    ("rank3: boom", "boom", {"rank": 3}),
    # srun, MPI
    ("3: boom", "boom", {"label": 3}),
    ("  3: boom", "boom", {"label": 3}),
    ("10: [rank11]: boom", "boom", {"label": 10, "rank": 11}),
    ("[1,3]<stderr>:boom", "boom", {"launcher": "mpirun", "label": 3, "rank": 3}),
    ("[1,3]<stderr>: boom", "boom", {"launcher": "mpirun", "label": 3, "rank": 3}),
    ("[prterun-node7-99@1,3]<stdout>: boom", "boom", {"launcher": "mpirun", "label": 3, "rank": 3}),
    ("[1,mpirank:3,algo-2]<stderr>:boom", "boom", {"launcher": "mpirun", "label": 3, "rank": 3, "host": "algo-2"}),
    ("[3]<stdout>:boom", "boom", {"launcher": "mpirun", "label": 3, "rank": 3}),
    ("[1,0]<stderr>:[rank8]: boom", "boom", {"launcher": "mpirun", "label": 0, "rank": 8}),
    ("[3] Traceback (most recent call last):", "Traceback (most recent call last):", {"label": 3}),
    ("[3] [rank5]: boom", "boom", {"label": 3, "rank": 5}),
    # Kubernetes, containers
    ("[pod/job-worker-3/pytorch] boom", "boom", {"host": "job-worker-3"}),
    ("job-abc-worker-3 pytorch boom", "boom", {"host": "job-abc-worker-3"}),
    ("train-6d4b75cb6d-x7k2p user-container boom", "boom", {"host": "train-6d4b75cb6d-x7k2p"}),
    ("job-abc-worker-3 anything [rank2]: boom", "boom", {"host": "job-abc-worker-3", "rank": 2}),
    (f"{HEAD} stderr F boom", "boom", {"time": NOV_3}),
    (f'{HEAD} stdout P   File "x"', '  File "x"', {"time": NOV_3}),
    (f"{HEAD} stdout F", "", {"time": NOV_3}),
    (f'{HEAD}   File "x"', '  File "x"', {"time": NOV_3}),
    ("worker-1  | boom", "boom", {"host": "worker-1"}),
    # Ray and vLLM
    ("(RayWorkerWrapper pid=812) boom", "boom", {"pid": 812}),
    ("(RayWorkerWrapper pid=812, ip=10.0.0.2) boom", "boom", {"pid": 812, "host": "10.0.0.2"}),
    ("(f.<locals>.work(x) pid=812) boom", "boom", {"pid": 812}),
    ("(pid=812) boom", "boom", {"pid": 812}),
    ("(Trainer rank=2 pid=812) boom", "boom", {"pid": 812, "rank": 2}),
    ("(VllmWorkerProcess pid=77) boom", "boom", {"pid": 77}),
    ("(Worker_TP1 pid=77) boom", "boom", {"pid": 77, "rank": 1}),
    ("(Worker_PP1_TP1 pid=77) boom", "boom", {"pid": 77}),
    ("(EngineCore_0 pid=77) boom", "boom", {"pid": 77}),
    ('(Worker pid=77) ERROR 11-03 10:00:01 [core.py:12]   File "x"', '  File "x"', {"pid": 77, "level": "ERROR", "time": "11-03 10:00:01"}),
    ("WARNING 11-03 10:00:01 core.py:12] boom", "boom", {"level": "WARNING", "time": "11-03 10:00:01"}),
    ("[2026-11-03 10:00:01,123 E 4711 4712] boom", "boom", {"level": "ERROR", "pid": 4711, "time": NOV_3}),
    ("[2026-11-03 10:00:01 TP3] boom", "boom", {"rank": 3, "time": NOV_3}),
    # launchers, several hosts
    ("stderr: boom", "boom", {}),
    ("stdout: boom", "boom", {}),
    ("node7: boom", "boom", {"host": "node7"}),
    ("worker-1: boom", "boom", {"host": "worker-1"}),
    ("dgx-a100-03.cluster.local: boom", "boom", {"host": "dgx-a100-03.cluster.local"}),
    ("10.0.0.2: boom", "boom", {"host": "10.0.0.2"}),
    ("g0012: [rank2]: boom", "boom", {"host": "g0012", "rank": 2}),
    # times of loggers
    ("[2026-11-03 10:00:01,123] boom", "boom", {"time": NOV_3}),
    ("[2026-11-03 10:00:01,123] [INFO] [launch.py:9:f] boom", "[INFO] [launch.py:9:f] boom", {"time": NOV_3, "level": "INFO"}),
    ("2026-11-03 10:00:01,123 - root - ERROR - boom", "root - ERROR - boom", {"time": NOV_3, "level": "ERROR"}),
    ("2026-11-03 10:00:01.123 | ERROR    | a:b:1 - boom", "ERROR    | a:b:1 - boom", {"time": NOV_3, "level": "ERROR"}),
    ("11/03/2026 10:00:01 - WARNING - x - boom", "WARNING - x - boom", {"time": NOV_3, "level": "WARNING"}),
    ("[NeMo W 2026-11-03 10:00:01 x:9] boom", "boom", {"time": NOV_3, "level": "WARNING"}),
    ("[INFO|trainer.py:12] 2026-11-03 10:00:01,123 >> boom", "boom", {"time": NOV_3, "level": "INFO"}),
    ("[INFO|2026-11-03 10:00:01] x:1 >> boom", "x:1 >> boom", {"time": NOV_3, "level": "INFO"}),
    ("[rank0]:[titan] 2026-11-03 10:00:01,123 - root - INFO - boom", "root - INFO - boom", {"rank": 0, "time": NOV_3, "level": "INFO"}),
    ("2026-11-03 10:00:01,123: rank3[4711][MainThread]: ERROR: x: boom", "ERROR: x: boom", {"rank": 3, "pid": 4711, "time": NOV_3, "level": "ERROR"}),
    ("2026/11/03 10:00:01 boom", "boom", {"time": NOV_3}),
    (
        "[2024-05-08 08:47:31,261] torch.distributed.api: [ERROR] failed",
        "torch.distributed.api: [ERROR] failed",
        {"time": "2024-05-08 08:47:31", "level": "ERROR"},
    ),
    # the machine
    ("Nov  3 10:00:01 node7 kernel: boom", "boom", {"time": "11-03 10:00:01", "host": "node7"}),
    ("Nov 03 10:00:01 node7 python3[4711]: boom", "boom", {"time": "11-03 10:00:01", "host": "node7", "pid": 4711}),
    ("Nov 03 10:00:01 node7 slurmd[9]: error: boom", "slurmd[9]: error: boom", {"time": "11-03 10:00:01", "host": "node7"}),
    ("2026-11-03T10:00:01.123456+08:00 node7 kernel: [88123.41] boom", "boom", {"time": NOV_3, "host": "node7"}),
    ("[88123.41] boom", "boom", {"time": "boot 88123.41"}),
    ("<4>[    3.141592][  T123] boom", "boom", {"time": "boot 3.141592"}),
    ("[Tue Nov  3 10:00:01 2026] boom", "boom", {"time": NOV_3}),
    ("Tue Nov  3 10:00:01 2026[1,3]<stderr>:boom", "boom", {"time": NOV_3, "launcher": "mpirun", "label": 3, "rank": 3}),
]

STAYING = [
    ("[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] boom", {"level": "ERROR", "time": "03-21 02:07:08"}),
    ("[E1103 02:07:08.408271257 ProcessGroupNCCL.cpp:607] boom", {"level": "ERROR", "time": "11-03 02:07:08"}),
    ("[E1121 02:07:08.408271257 ProcessGroupNCCL.cpp:607] boom", {"level": "ERROR", "time": "11-21 02:07:08"}),
    ("[W121 02:07:08.408271257 socket.cpp:607] boom", {"level": "WARNING", "time": "01-21 02:07:08"}),
    ("[E145 02:07:08.408271257 socket.cpp:607] boom", {"level": "ERROR"}),
    ("[E ProcessGroupNCCL.cpp:607] [Rank 5] boom", {"level": "ERROR", "rank": 5}),
    ("[E ProcessGroupNCCL.cpp:607] [PG ID 0 PG GUID 0(default_pg) Rank 5] boom", {"level": "ERROR", "rank": 5}),
    # the rank within a group
    ("[E ProcessGroupNCCL.cpp:607] [PG ID 3 PG GUID 7(tensor) Rank 1] boom", {"level": "ERROR"}),
    ("[Rank 5] Watchdog caught", {"rank": 5}),
    # nccl2
    ("[E ProcessGroupNCCL.cpp:607] [TC][rank=5][name=0] boom", {"level": "ERROR", "rank": 5}),
    ("[E ProcessGroupNCCL.cpp:607] [rank=5][name=default_pg] boom", {"level": "ERROR", "rank": 5}),
    ("[E ProcessGroupNCCL.cpp:607] [TC][rank=1][name=tensor] boom", {"level": "ERROR"}),
    ("[rank=5][name=0] boom", {"rank": 5}),
    ("[rank: 5] Child process", {"rank": 5}),
    ("  what():  [PG 0 Rank 5] boom", {"rank": 5}),
    ("W1103 10:00:01.792000 4711 torch/x/api.py:28] boom", {"level": "WARNING", "pid": 4711, "time": "11-03 10:00:01"}),
    ("W1103 10:00:01.792000 140123456789012 torch/x/api.py:28] boom", {"level": "WARNING", "time": "11-03 10:00:01"}),
    ("E20261103 10:00:01.792000  4711 x.cc:28] boom", {"level": "ERROR", "pid": 4711, "time": NOV_3}),
    ("ERROR:torch.distributed:failed", {"level": "ERROR"}),
    ("node7:4711:4712 [0] NCCL INFO boom", {"level": "INFO", "host": "node7", "pid": 4711}),
    ("node7:4711:4712 [0] misc/shm.cc:9 NCCL WARN boom", {"level": "WARNING", "host": "node7", "pid": 4711}),
    ("node7:4711:4712 [0] misc/shm.cc:9 (open) NCCL WARN boom", {"level": "WARNING", "host": "node7", "pid": 4711}),
    ("node7:4711:4712 NCCL CALL boom", {"host": "node7", "pid": 4711}),
    ("node7:4711 NCCL DIAG [INFO] boom", {"host": "node7", "pid": 4711}),
    ("[node7:04711] *** Process received signal ***", {"host": "node7", "pid": 4711}),
    ("[node7:4711:0:4711] Caught signal 11", {"host": "node7", "pid": 4711}),
    ("[node7:4711 :1]       rc_ep.c:221  UCX  ERROR boom", {"host": "node7", "pid": 4711}),
    ("slurmstepd-node7: error: execve(): boom", {"host": "node7"}),
    ("slurmstepd-node7: error: *** STEP 123.0 ON node7 CANCELLED AT 2026-11-03T10:00:01 DUE TO TIME LIMIT ***", {"host": "node7", "time": NOV_3}),
    ("slurmstepd: error: *** STEP 123.0 ON node7 CANCELLED AT 2026-11-03T10:00:01 ***", {"host": "node7", "time": NOV_3}),
]

NO_PREFIX = [
    "3:14 PM",
    "10:00:01 boom",
    "123456: boom",
    "    3: 'indented',",
    "[0] NVIDIA H100",
    "[0]: boom",
    "[c10d] boom",
    "[cuda:0] boom",
    "[train.py:12] boom",
    "[1, 2, 3]",
    "ValueError: x",
    "error: boom",
    "srun: error: node7: task 3: Killed",
    "python3: can't open file",
    "gpu0: boom",
    "cuda:0 boom",
    "gpt-2: boom",
    "gpt-2 model-parallel boom",
    "job-abc-worker-3 failed to start",
    "ranking 3: boom",
    "Rank 2 failed to pass monitoredBarrier",
    "(see pid 12) boom",
    "(raylet) boom",
    "2026-13-45 10:00:01 boom",
    "Error in node7",
    "Nov 3 is a day",
    "stderr is closed",
    '  File "x", line 3',
    "RuntimeError: [Rank 1] boom",
]


@for_each(("raw", "text", "fields"), TAKEN_OFF, ids=[x[0] for x in TAKEN_OFF])
def test_prefixes_are_taken_off(raw, text, fields):
    assert told(raw) == (text, fields)


@for_each(("raw", "fields"), STAYING, ids=[x[0] for x in STAYING])
def test_markers_are_read_and_stay(raw, fields):
    assert told(raw) == (raw, fields)
    assert told(f"[rank7]: {raw}") == (raw, fields | {"rank": 7})


@for_each("raw", NO_PREFIX)
def test_what_only_looks_like_a_prefix_stays(raw):
    assert told(raw) == (raw, {})


@pytest.mark.parametrize(
    ("raw", "printed"),
    [
        (f"Nov  3 10:00:01 node7 python[1]: [{NOV_3}] boom", NOV_3),
        (f"{HEAD} [88123.41] boom", NOV_3),
        (f"[88123.41] [{NOV_3}] boom", NOV_3),
        (f"[{NOV_3}] [2026-11-04 10:00:01] boom", NOV_3),
        (f"[{NOV_3}] [E1104 02:07:08.4 x.cpp:607] boom", NOV_3),
    ],
)
def test_of_several_times_the_outermost_with_a_date_counts(raw, printed):
    assert told(raw)[1]["time"] == printed
