"""What file names tell, and what they do not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.tables import for_each

from unhang.logs import Owner, owner_of
from unhang.records.rundir import RunDir

HEX = "0123456789abcdef"


@for_each(
    ("name", "owner"),
    [
        ("rank3.err", Owner(rank=3)),
        ("rank_3.log", Owner(rank=3)),
        ("RANK-03.log.gz", Owner(rank=3)),
        ("log_rank3", Owner(rank=3)),
        ("worker-3.log", Owner(rank=3)),
        ("2026-11-03_10-00-01_rank3.log", Owner(rank=3)),
        ("nccl_trace_rank_3", Owner(rank=3)),
        ("rank3-2026-11-03.log", Owner(rank=3)),
        ("rank3-20261103.log", Owner(rank=3)),
        ("job.tar.gz!logs/rank3.err", Owner(rank=3)),
        ("logs\\rank3.err", Owner(rank=3)),
        ("out/1/rank.3/stderr", Owner(rank=3)),
        ("rank3_pid4711.txt", Owner(rank=3, pid=4711)),
        ("1234_3_log.err", Owner(rank=3)),
        ("local_rank_3.log", Owner(local_rank=3)),
        ("rank12_local_rank4.log", Owner(rank=12, local_rank=4)),
        ("logs/id_ab12/attempt_1/3/stderr.log", Owner(local_rank=3, attempt=2)),
        ("logs/attempt_0/3/stdout.log", Owner(local_rank=3, attempt=1)),
        ("logs/attempt_0/3/error.json", Owner(local_rank=3, attempt=1)),
        ("runs/a/logs/attempt-1/rank3.err", Owner(rank=3, attempt=2)),
        ("runs/a/logs/attempt-1/launcher.err", Owner(attempt=2)),
        ("job-abc-worker-3", Owner(host="job-abc-worker-3")),
        ("pods/job-abc-worker-3.log", Owner(host="job-abc-worker-3")),
        ("node7/rank_12.log", Owner(rank=12, host="node7")),
        ("nodes/node-3/train.log", Owner(host="node-3")),
        ("node-3.log", Owner(host="node-3")),
        ("10.0.0.2/rank1.err", Owner(rank=1, host="10.0.0.2")),
        ("node7-rank12.log", Owner(rank=12, host="node7")),
        ("rank_12.node7.log", Owner(rank=12, host="node7")),
        ("job-1234-node7-3.err", Owner(host="node7")),
        ("nccl.node7.4711.log", Owner(host="node7", pid=4711)),
        ("nccl_debug.gpu-a.b.local.4711.txt", Owner(host="gpu-a.b.local", pid=4711)),
        ("nccl-debug-4711.log", Owner(pid=4711)),
        ("nccl_rank3.log", Owner(rank=3)),
        (f"worker-{HEX}{HEX}{HEX[:8]}-01000000-4711.err", Owner(pid=4711)),
        (f"/var/log/containers/train-0_ml_main-{HEX * 4}.log", Owner(host="train-0")),
        ("/var/log/pods/ml_train-0_01234567-89ab-cdef-0123-456789abcdef/main/0.log", Owner(host="train-0")),
    ],
)
def test_names_that_tell(name, owner):
    assert owner_of(name) == owner


@for_each(
    "name",
    [
        *(
            "",
            "-",
            "slurm-1234.out",
            "slurm-1234_3.out",
            "train.log",
            "3.log",
            "node_rank_3.log",
            "ranks-0-7.log",
            "rank0-7.log",
            "rank_0_to_7.log",
            "rank0..7.log",
            "rank0_rank1.log",
        ),
        *("gpu3.log", "rank.log", "franks3.log", "crank3.log", "out/3/stderr.log", "nccl.log", "step-3.log", "2026-11-03.log", "attempt_one/3/x.log"),
    ],
)
def test_names_that_tell_nothing(name):
    assert owner_of(name) == Owner()


def test_the_files_of_a_run_directory(tmp_path):
    run = RunDir(tmp_path)
    assert owner_of(run.relative(run.log(2, rank=5, stream="err"))) == Owner(rank=5, attempt=3)
    assert owner_of(run.relative(run.log(0, rank=None, stream="out"))) == Owner(attempt=1)
    assert owner_of(run.relative(run.stacks(1, 4))) == Owner(rank=4)


@given(
    st.one_of(
        st.text(), st.lists(st.sampled_from(["rank", "3", "_", "-", "/", "!", "node7", "attempt_1", ".log", "nccl", ".", "worker", "a"])).map("".join)
    )
)
def test_no_name_raises(name):
    owner_of(name)


def test_long_names_take_no_time():
    for unit in ("a-", "nccl.", "rank", "node1-", "1."):
        owner_of(unit * 100_000)
