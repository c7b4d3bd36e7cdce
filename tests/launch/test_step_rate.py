import pytest

from unhang.launch.step_rate import FLOOR_S, STANDS_S, STARTUP_S, Rhythm


def walk(rhythm: Rhythm, *, gap_s: float, moves: int, steps: bool, moves_per_step: int = 4) -> None:
    for i in range(moves):
        rhythm.progress(0, t=i * gap_s, steps=int(steps and i % moves_per_step == moves_per_step - 1))


def test_startup_allowance_until_the_rhythm_is_known():
    rhythm = Rhythm(startup_s=77)
    assert rhythm.usual_gap_s is None
    assert rhythm.threshold_s == 77
    walk(rhythm, gap_s=0.2, moves=8, steps=True)
    assert rhythm.threshold_s == 77  # two whole steps
    walk(rhythm, gap_s=0.2, moves=40, steps=True)
    assert rhythm.threshold_s < 15


@pytest.mark.parametrize("gap_s", [0.01, 0.3, 0.5])
def test_a_step_of_twenty_times_the_usual_is_no_hang(gap_s):
    rhythm = Rhythm()
    walk(rhythm, gap_s=gap_s, moves=40, steps=True)
    assert rhythm.usual_gap_s == pytest.approx(gap_s)
    assert 20 * gap_s < rhythm.threshold_s


@pytest.mark.parametrize("gap_s", [0.01, 0.3, 0.99])
def test_below_a_second_a_hang_leaves_time_for_evidence_within_15_s(gap_s):
    rhythm = Rhythm()
    walk(rhythm, gap_s=gap_s, moves=40, steps=True)
    assert 8 <= rhythm.threshold_s <= 11


def test_slow_steps_get_a_threshold_of_their_own():
    rhythm = Rhythm()
    walk(rhythm, gap_s=3.0, moves=40, steps=True)
    assert rhythm.threshold_s == pytest.approx(66)
    assert rhythm.silence_s == pytest.approx(660)


def test_one_long_step_does_not_change_what_is_usual():
    rhythm = Rhythm()
    walk(rhythm, gap_s=0.2, moves=80, steps=True)
    rhythm.progress(0, t=100.0, steps=1)
    assert rhythm.usual_gap_s == pytest.approx(0.2)


def test_the_longest_gap_within_a_step_counts():
    rhythm = Rhythm()
    t = 0.0
    for _ in range(10):
        for gap, steps in ((0.1, 0), (2.0, 0), (0.1, 1)):
            t += gap
            rhythm.progress(0, t=t, steps=steps)
    assert rhythm.usual_gap_s == pytest.approx(2.0)


def test_without_optimizer_steps_collectives_give_the_rhythm():
    rhythm = Rhythm()
    walk(rhythm, gap_s=0.4, moves=30, steps=False)
    assert rhythm.usual_gap_s == pytest.approx(0.4)


def test_the_allowance_holds_until_the_rhythm_is_known():
    rhythm = Rhythm(startup_s=77)
    assert rhythm.allowance_s == 77
    walk(rhythm, gap_s=0.4, moves=30, steps=False)
    assert rhythm.allowance_s is None and Rhythm(hang_after_s=5).allowance_s is None


def test_a_fixed_threshold_wins():
    rhythm = Rhythm(hang_after_s=5)
    assert rhythm.threshold_s == 5
    walk(rhythm, gap_s=3.0, moves=40, steps=True)
    assert rhythm.threshold_s == 5
    assert rhythm.silence_s == 5


def test_steps_are_counted_not_heartbeats():
    """Fifty steps in a second come with four heartbeats."""
    rhythm = Rhythm()
    rhythm.begin(0, t=0.0)
    rhythm.progress(0, t=0.25, steps=12)
    assert rhythm.usual_gap_s < 0.25
    assert rhythm.threshold_s == FLOOR_S


def test_what_was_before_a_group_was_joined_is_no_gap():
    rhythm = Rhythm()
    rhythm.begin(0, t=0.0)
    for joined_s in (100.0, 200.0):
        rhythm.progress(0, t=joined_s)
        rhythm.begin(0, t=joined_s)
        rhythm.progress(0, t=joined_s + 1.0, steps=1)
    rhythm.progress(0, t=202.0, steps=1)
    assert rhythm.usual_gap_s == pytest.approx(1.0)


def test_what_is_forgotten_is_learned_anew():
    rhythm = Rhythm()
    rhythm.begin(0, t=0.0)
    rhythm.progress(0, t=0.25, steps=12)
    rhythm.forget()
    assert (rhythm.usual_gap_s, rhythm.threshold_s) == (None, STARTUP_S)


def test_a_slower_phase_is_learned_from_its_first_steps():
    rhythm = Rhythm()
    rhythm.begin(0, t=0.0)
    walk(rhythm, gap_s=0.05, moves=60, steps=True, moves_per_step=1)
    for i in range(5):
        rhythm.progress(0, t=10.0 + 4 * i, steps=1)
    assert rhythm.usual_gap_s == pytest.approx(4.0)


def test_one_long_step_among_short_ones_changes_nothing():
    rhythm = Rhythm()
    rhythm.begin(0, t=0.0)
    walk(rhythm, gap_s=0.05, moves=60, steps=True, moves_per_step=1)
    rhythm.progress(0, t=10.0, steps=1)
    assert rhythm.usual_gap_s == pytest.approx(0.05)


def test_what_is_out_of_the_ordinary_before_it_is_a_hang():
    rhythm = Rhythm()
    assert rhythm.stands_s == STANDS_S
    rhythm.begin(0, t=0.0)
    walk(rhythm, gap_s=10.0, moves=10, steps=True, moves_per_step=1)
    assert rhythm.stands_s == pytest.approx(20.0)
    # A start that took long, in a training without steps.
    rhythm = Rhythm()
    rhythm.begin(0, t=0.0)
    for t in (13.0, 20.0, *(20.0 + 0.25 * i for i in range(1, 20))):
        rhythm.progress(0, t=t)
    assert rhythm.stands_s == STANDS_S
    assert Rhythm(hang_after_s=1.0).stands_s == 1.0
