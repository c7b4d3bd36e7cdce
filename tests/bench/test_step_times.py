"""Step times of a run: read from the ranks' files, without the warm-up, and one number of them."""

import json
import math
import random
import struct

import pytest

from unhang.bench import step_times


def noisy(n, level=0.1, seed=1):
    rng = random.Random(seed)
    return [level * (1 + rng.gauss(0, 0.02)) for _ in range(n)]


@pytest.mark.parametrize(
    ("first", "dropped"),
    [([], (0, 2)), ([2.0], (1, 3)), ([2.0, 0.5, 0.3, 0.2, 0.15], (5, 7)), ([0.05] * 8, (8, 10)), ([0.5 - 0.01 * i for i in range(38)], (36, 41))],
)
def test_the_warm_up_is_dropped(first, dropped):
    found, is_steady = step_times.warmup([*first, *noisy(100 - len(first))])
    assert is_steady and dropped[0] <= found <= dropped[1]


def test_a_rhythm_that_never_becomes_steady_is_reported():
    steps = step_times.summarize([1.0 + 0.05 * i for i in range(100)])
    assert (steps.dropped, steps.is_steady) == (50, False)


def test_noise_alone_is_steady():
    found = [step_times.warmup(noisy(n, seed=seed)) for n in (29, 100) for seed in range(200)]
    assert sum(not is_steady for _, is_steady in found) <= 8


def test_one_pause_does_not_change_the_number():
    plain = noisy(100)
    usual, once = (step_times.summarize(times) for times in (plain, [*plain[:70], 30.0, *plain[71:]]))
    assert once.typical_s == pytest.approx(usual.typical_s, rel=0.01) and once.mean_s > 3 * usual.mean_s


@pytest.mark.parametrize("every", [5, 10, 15, 20])
def test_a_regular_pause_counts_whatever_its_phase(every):
    plain = noisy(100)
    for phase in range(every):
        steps = step_times.summarize([t + 0.5 * (i % every == phase) for i, t in enumerate(plain)])
        # A median of steps would not see it.
        assert steps.median_s < 0.11 and steps.typical_s == pytest.approx(0.1 + 0.5 / every, rel=0.15)


def test_too_few_steps_are_no_measurement():
    assert step_times.summarize([0.1] * 9) is None
    assert step_times.summarize([0.1] * 10).typical_s == pytest.approx(0.1)


def test_a_step_ends_with_its_slowest_rank(tmp_path):
    for pid, rank, ends in ((11, 1, [1.0, 2.5, 3.0]), (12, 0, [1.2, 2.0, 3.1, 4.0])):
        told = {"rank": rank, "started_with": {}, "variables": {}, "torch": {}}
        (tmp_path / f"{pid}.json").write_text(json.dumps(told))
        (tmp_path / f"{pid}.times").write_bytes(b"".join(struct.pack("=4d", end, *[math.nan] * 3) for end in ends) + b"\0\0\0")
    (tmp_path / "13.json").write_text('{"rank": 2, "ar')
    ranks = step_times.read(tmp_path)
    assert [one.rank for one in ranks] == [0, 1]
    assert step_times.durations(ranks) == pytest.approx([1.3, 0.6])
