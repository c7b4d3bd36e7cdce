"""`unhang run` over a script's head: a training that asks for NCCL, on Gloo."""

import pytest

from unhang.attach import protocol

pytestmark = [pytest.mark.torch, pytest.mark.integration, pytest.mark.timeout(900)]

ASKS_FOR_NCCL = """
dist.init_process_group("nccl", device_id=None)
train(5)
print("rank", rank, "on", dist.get_backend(), dist.get_backend(dist.new_group(backend="nccl")))
dist.destroy_process_group()
"""


def test_a_script_that_asks_for_nccl_trains_on_gloo(launcher):
    run = launcher.train(ASKS_FOR_NCCL, env={protocol.ENV_BACKEND: "gloo", protocol.ENV_TIMEOUT: "60"})
    assert (run.exitcode, run.outcome["verdict"], run.outcome["attempts"]) == (0, None, 1), run.err[-3000:]
    assert [run.log(f"rank{rank}.out") for rank in (0, 1)] == ["rank 0 on gloo gloo\n", "rank 1 on gloo gloo\n"]
    told = {(e["what"], e["was"], e["now"]): e["ranks"] for e in run.happened("Overridden")}
    assert told == {("backend", "nccl", "gloo"): [0, 1], ("timeout", "default", "60 s"): [0, 1]}
    assert "unhang: backend nccl -> gloo in 2 ranks (train.py:" in run.err
    assert [(e["backend"], e["world_size"]) for e in run.happened("Joined")] == [("gloo", 2)] * 2


def test_without_it_the_script_gets_what_it_asks_for(launcher):
    run = launcher.train(ASKS_FOR_NCCL, "--on-failure", "abort")
    # This torch has no NCCL, or this host no GPU.
    assert run.exitcode != 0 and run.happened("Overridden") == []
