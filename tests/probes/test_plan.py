import pytest

from unhang.probes import plan, worker


@pytest.mark.parametrize(("ranks", "steps"), [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (4, (1, 2, 4)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8))])
def test_ladder(ranks, steps):
    assert plan.ladder(ranks) == steps


def test_no_ranks_are_no_ladder():
    with pytest.raises(ValueError, match="0 ranks"):
        plan.ladder(0)


def test_every_stage_can_be_run_and_is_run_once():
    ids = [s.id for s in plan.STAGES]
    assert [*ids, plan.LOADER.id] == list(worker.STAGES)
    assert [s.id for s in (*plan.stages_of(1), *plan.stages_of(2))] == ids


def test_what_a_fresh_process_does_again():
    assert plan.before("import") == ()
    assert plan.before("process-group") == ("import", "device")
    assert plan.before("sizes") == ("import", "device", "process-group", "barrier")
