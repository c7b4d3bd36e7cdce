"""Attempts in one log: a start behind a failure, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.tables import for_each

from unhang.logs import Hit, exits, match
from unhang.logs.attempts import AGENTS, GAVE_UP, LIBRARIES, NCCL_VERSION, STEPS, Failure, Marks, attempt_of, starts_of, unsaid_start

LIGHTNING = LIBRARIES[0]


def start(place, at_s=None, signature=AGENTS[0], host=None, pid=None):
    return Hit(signature=signature, source="x", line=1, text="", place=place, at_s=at_s, host=host, pid=pid)


def places(starts, *failures):
    return tuple(h.place for h in starts_of(starts, [Failure(place=p, at_s=at_s, ended=ended) for p, at_s, ended in failures]))


def failed(place, at_s=None):
    return (place, at_s, False)


def ended(place, at_s=None):
    return (place, at_s, True)


@pytest.mark.parametrize(
    ("starts", "failures", "expected"),
    [
        ([], [], ()),
        ([0], [failed(50)], ()),
        # Eight ranks print their starts; only the first one behind a failure counts.
        ([0, 5, 6, 100, 101, 102], [failed(50)], (100,)),
        ([0, 100, 200], [failed(50), ended(150)], (100, 200)),
        ([0, 100], [], ()),
        ([0, 100], [failed(150)], ()),
    ],
)
def test_starts(starts, failures, expected):
    assert places([start(p) for p in starts], *failures) == expected


def test_another_hosts_log_that_was_appended_is_no_new_attempt():
    assert places([start(0, 10.0), start(100, 11.0)], failed(50, 300.0)) == ()
    assert places([start(0, 10.0), start(100, 301.0)], failed(50, 300.0)) == (100,)
    # The one after it is: it began behind the failure.
    assert places([start(0, 10.0), start(100, 11.0), start(200, 400.0)], failed(50, 300.0)) == (200,)


@pytest.mark.parametrize(("banner", "pid"), [(LIGHTNING, None), (NCCL_VERSION, 61)])
def test_a_librarys_banner_is_a_start_only_where_processes_have_ended(banner, pid):
    assert places([start(100, signature=banner, pid=pid)], failed(50)) == ()
    assert places([start(100, signature=banner, pid=pid)], ended(50)) == (100,)
    assert places([start(10, signature=banner), start(100, signature=banner, pid=pid)], failed(50)) == ()


def test_nccl_of_nobody_or_of_another_release_is_no_start():
    """Each copy of NCCL in a process prints it, with its first communicator."""
    again = [start(10, signature=NCCL_VERSION), start(100, signature=NCCL_VERSION)]
    assert places(again, ended(50)) == ()
    assert [s.place for s in starts_of(again, [Failure(place=50, ended=True, gone=True)])] == [100]
    old, new = (replace(start(n, signature=NCCL_VERSION, pid=61), groups={"version": v}) for n, v in ((10, "2.27.3"), (100, "2.28.9")))
    assert places([old, new], failed(50)) == ()


def test_or_where_a_process_would_have_printed_it_twice():
    """Pids of containers are the same in each attempt."""
    first = start(10, signature=NCCL_VERSION, host="pod-0", pid=61)
    for host, pid, expected in (("pod-0", 61, (100,)), ("pod-0", 62, ()), ("pod-1", 61, ()), (None, None, ())):
        again = start(100, signature=NCCL_VERSION, host=host, pid=pid)
        assert places([first, again], failed(50)) == expected
        assert places([first, again]) == ()


def hit(signature, place, at_s=None, source="agent"):
    return Hit(signature=signature, source=source, line=1, text="", place=place, at_s=at_s)


def failure(place, at_s=None):
    return hit(exits.FAILED, place, at_s)


def step(place, at_s=None, source="agent"):
    return hit(STEPS[0], place, at_s, source)


def gave_up(place, at_s=None, source="agent"):
    return hit(GAVE_UP, place, at_s, source)


@for_each(
    ("own", "marks", "expected"),
    [
        ([failure(50)], [step(10), step(90)], 51),
        ([failure(50)], [step(10)], None),
        ([failure(50)], [step(90)], None),
        ([failure(50)], [step(10), step(90), gave_up(95)], None),
        # The agent gave up; a node's agent may do so in a log of its own.
        ([failure(50)], [step(10), step(90), gave_up(1, source="other")], None),
        ([failure(50, 100.0)], [step(10), step(90, 120.0), gave_up(1, 20.0, source="other")], 51),
        # Each failure of the same attempt, and the last one that was survived.
        ([failure(50), failure(60), failure(99)], [step(10), step(90)], 61),
        # Something says so already.
        ([failure(50), start(70)], [step(10), step(90)], None),
        # Steps of another log that was appended, and of ranks with logs of their own.
        ([failure(50, 100.0)], [step(10), step(90, 40.0)], None),
        ([failure(50, 100.0)], [step(1, 80.0, "rank0"), step(5, 120.0, "rank0")], 51),
        ([failure(50, 100.0)], [step(1, 80.0, "rank0"), step(5, 100.5, "rank0")], None),
        ([failure(50)], [step(5, 120.0, "rank0")], None),
        ([failure(50)], [step(90, source="rank0")], None),
        ([], [step(10), step(90)], None),
    ],
)
def test_an_agent_that_says_nothing_when_it_starts_again(own, marks, expected):
    found = unsaid_start(own, [h for h in own if h.signature in AGENTS], Marks(marks))
    assert (found and found.place) == expected


@for_each(
    ("line", "steps"),
    [
        ("rank 0 - step 5/20 loss 1.9846 grad_norm 1.042", True),
        ("{'loss': 1.98, 'grad_norm': 0.4, 'epoch': 0.01}", True),
        (" iteration       10/     100 | lm loss: 1.03E+01 | loss scale: 1.0 |", True),
        ("Train Epoch: 1 Loss: 0.31", True),
        ("epoch 3: loss is tensor(0.31, device='cuda:0')", True),
        ("step 7 loss: nan", True),
        ("loss function: cross entropy", False),
        ("    loss = loss_of(model(x), y)", False),
        ("    loss.backward()", False),
        ("    return loss / 2", False),
        ("the loss of a peer", False),
    ],
)
def test_steps(line, steps):
    assert bool(match(line, STEPS, source="x")) == steps


def test_places():
    assert [attempt_of(p, (100, 200)) for p in (0, 99, 100, 199, 200, 999)] == [1, 1, 2, 2, 3, 3]
