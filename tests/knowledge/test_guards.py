"""Which tests choose ranks."""

from __future__ import annotations

import pytest

from unhang.knowledge.guards import tests_rank as chooses


@pytest.mark.parametrize(
    "guard",
    [
        "rank == 0", "not rank", "self.rank == 0", "args.local_rank in (-1, 0)", "local_rank in [-1, 0]", "dist.get_rank() == 0", "is_main_process",
        "accelerator.is_main_process", "self.accelerator.is_local_main_process", "is_master", "trainer.is_global_zero", "is_main_process()",
        "int(os.environ['RANK']) == 0", "global_rank == 0", "rank % 2", "step % 10 == 0 and rank == 0", "not (rank == 0)",
        "state.is_world_process_zero",
        "rank_zero_only.rank == 0", "local_rank not in [-1, 0]", "self.is_rank_0()", "rank is not None and rank == 0",
        "r == 0", "step > 3 and r != 0", "r in (0, 1)",
    ],
)  # fmt: skip
def test_these_do(guard):
    assert chooses(guard)


@pytest.mark.parametrize(
    "guard",
    [
        "world_size > 1",
        "ranking",
        "step % 10 == 0",
        "local_rank != -1",
        "rank is not None",
        "rank >= 0",
        "lora_rank_alpha > 3",
        "franklin",
        "use_ranking_loss",
        "args.local_rank == -1",
        "r2 > 0.9",
        "lr == 0",
        "r > 0.5",
    ],
)
def test_these_do_not(guard):
    assert not chooses(guard)
