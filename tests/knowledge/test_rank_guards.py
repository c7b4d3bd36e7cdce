"""Which tests choose ranks."""

from __future__ import annotations

from tests.tables import for_each

from unhang.knowledge.rank_guards import outcome
from unhang.knowledge.rank_guards import tests_rank as chooses


@for_each(
    "guard",
    [
        "rank == 0", "not rank", "self.rank == 0", "args.local_rank in (-1, 0)", "local_rank in [-1, 0]", "dist.get_rank() == 0", "is_main_process",
        "accelerator.is_main_process", "self.accelerator.is_local_main_process", "is_master", "trainer.is_global_zero", "is_main_process()",
        "int(os.environ['RANK']) == 0", "global_rank == 0", "rank % 2", "step % 10 == 0 and rank == 0", "not (rank == 0)",
        "state.is_world_process_zero",
        "rank_zero_only.rank == 0", "local_rank not in [-1, 0]", "self.is_rank_0()", "rank is not None and rank == 0",
        "r == 0", "step > 3 and r != 0", "r in (0, 1)", "accelerator.process_index == 1 and step == 12",
    ],
)  # fmt: skip
def test_these_do(guard):
    assert chooses(guard)


@for_each(
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


@for_each(
    ("test", "on"),
    [
        ("rank == 0", (True, False)),
        ("not (rank == 0)", (False, True)),
        ("self.rank in (0, 2)", (True, False)),
        ("dist.get_rank() > 0", (False, True)),
        ("rank", (False, True)),
        ("not rank", (True, False)),
        ("rank == 0 and step % 10 == 0", (None, False)),
        ("not (a.mode == 'skip' and rank == 1 and (step == 30))", (True, None)),
        ("rank == 0 or args.all", (True, None)),
        ("epoch > 1", (None, None)),
        ("self.args.rank == 0", (True, False)),
        ("torch.distributed.get_rank() == 0", (True, False)),
        ("self.trainer.global_rank == 0", (True, False)),
        ("rank_zero_only.rank == 0", (True, False)),
        ("accelerator.process_index == 1", (False, True)),
        ("accelerator.local_process_index == 1", (None, None)),
        ("node.rank == 0", (None, None)),
        ("args.node.rank == 0", (None, None)),
        ("self.tp_group.rank == 0", (None, None)),
        ("mesh.get_rank() == 0", (None, None)),
        ("dp.rank == 0 or rank == 0", (True, None)),
        ("args.local_rank == 0", (None, None)),
        ("local_rank == 0", (None, None)),
        ("accelerator.is_main_process", (None, None)),
        ("rank % 2", (None, None)),
        ("rank < 'x'", (None, None)),
        ("if", (None, None)),
    ],
)
def test_what_a_test_gives_on_a_rank(test, on):
    assert (outcome(test, 0), outcome(test, 1)) == on
