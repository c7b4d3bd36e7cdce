"""config-error in plain logs: DeepSpeed's batch arithmetic is worked out."""

from __future__ import annotations

from unhang.knowledge import catalogue
from unhang.knowledge.cause import LogView
from unhang.logs import match

CAUSE = catalogue.load()["config-error"]

BATCH = "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size {}"


def judge(*texts: str):
    found = tuple(h for n, t in enumerate(texts) for h in match(t, CAUSE.signatures, source="a.log", line=n + 1))
    assert CAUSE.in_logs is not None
    return CAUSE.in_logs(LogView(hits={CAUSE.id: found}))


def test_the_product_is_worked_out():
    found = judge(BATCH.format("256 != 8 * 1 * 8"))
    assert found.standing == "established" and "is 64" in found.says and "single rank" not in found.says


def test_a_world_of_one_asks_for_the_launcher():
    found = judge(BATCH.format("8 != 2 * 1 * 1"))
    assert "was the script started by its launcher?" in found.says and "start-by-launcher" in [r.id for r in found.remedies]


def test_local_rank_asks_for_torchrun():
    assert judge("train.py: error: unrecognized arguments: --lr 3 --local-rank=0").remedies[0].id == "use-torchrun"
    assert judge("train.py: error: unrecognized arguments: --lr 3").remedies[0].id == "read-help"


def test_a_refusal_that_another_cause_knows_is_left_to_it(logs):
    text = "ValueError: host not found: Name or service not known"
    back = logs.raised("ValueError", "host not found: Name or service not known", line=1, names=("main", "validate_args"))
    hits = logs.lines(text, start=back.end)
    assert CAUSE.in_logs(logs.view(hits=hits, tracebacks=(back,))) is None


NO_ALGORITHM = "node7:812:812 [1] enqueue.cc:422 NCCL WARN Error : no algorithm/protocol available"


def test_no_algorithm_is_left():
    found = judge(NO_ALGORITHM)
    assert found.standing == "likely" and [r.id for r in found.remedies] == ["let-nccl-tune"]
    said = judge(f"{NO_ALGORITHM} for function AllReduce with datatype ncclInt8. NCCL_ALGO was set to CollNet.")
    assert said.standing == "established" and "NCCL_ALGO was set to CollNet" in said.says
