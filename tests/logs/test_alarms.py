"""Slow work outside collectives, and whether it was over."""

from __future__ import annotations

import pytest
from tests.logs.scanned import scan

from unhang.logs import NEAR_LINES, alarms

SAVES = "[INFO] Saving model checkpoint to /out/checkpoint-{n}"
STEP = "{{'loss': 0.5, 'step': {n}}}"
OTHER = "nothing of interest"


@pytest.fixture
def whats(tmp_path):
    def whats(*lines):
        path = tmp_path / "log"
        path.write_text("\n".join(lines) + "\n")
        return [(h.line, h.groups["what"]) for h in scan(path, alarms.WORK)]

    return whats


def test_progress(whats):
    assert whats("Map (num_proc=16):  43%|####3     | 430000/1000000 [10:02<13:11, 510.90 examples/s]") == [(1, "Map (num_proc=16)")]


def test_work_that_is_announced_and_not_followed_by_steps_is_under_way(whats):
    assert whats(OTHER, SAVES.format(n=1), OTHER) == [(2, "Saving model checkpoint")]
    # Steps that came before it are none that follow.
    assert whats(STEP.format(n=1), SAVES.format(n=1)) == [(2, "Saving model checkpoint")]
    # Neither is one in its own line.
    assert set(whats("step 7: Saving checkpoint 7")) == {(1, "Saving checkpoint")}


@pytest.mark.parametrize("between", range(NEAR_LINES + 1))
def test_steps_that_follow_soon_say_that_it_was_over(whats, between):
    assert bool(whats(SAVES.format(n=1), *[OTHER] * between, STEP.format(n=2))) == (between == NEAR_LINES)


def test_of_two_the_one_that_no_step_follows_is_under_way(whats):
    assert whats(SAVES.format(n=1), STEP.format(n=2), SAVES.format(n=2), OTHER) == [(3, "Saving model checkpoint")]


def test_lines_that_say_the_same_many_times_take_no_time(whats):
    line = " ".join(["Saving model checkpoint to step 5"] * 40)
    assert whats(*[line] * 20)[-1] == (20, "Saving model checkpoint")
