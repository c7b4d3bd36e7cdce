"""Agreement in blocks says what a comparison call by call says."""

from __future__ import annotations

import random
from array import array

import pytest
from tests.tables import for_each

from unhang.flight.entries import Group
from unhang.flight.recording import Track
from unhang.flight.voting import Edit, edit, parted


def track(first, ids):
    return Track(group=Group(name="0"), first=first, ids=array("I", ids), ends=bytearray(len(ids)), pending_ns={})


def slowly(tracks):
    for number in range(min(t.first for t in tracks.values()), max(t.last for t in tracks.values()) + 1):
        sides = {}
        for rank, t in tracks.items():
            if call := t.at(number):
                sides.setdefault(call, set()).add(rank)
        if len(sides) > 1:
            return number, sides
    return None


@for_each("seed", range(200))
def test_the_first_number_that_differs(seed):
    rng = random.Random(seed)
    length = rng.choice([3, 64, 65, 130, 300])
    calls = [rng.randrange(1, 4) for _ in range(2 * length)]
    tracks = {}
    for rank in range(rng.randrange(1, 7)):
        begin = rng.randrange(0, length)
        ids = calls[begin : begin + rng.randrange(1, length + 1)]
        if rng.random() < 0.3:
            ids[rng.randrange(len(ids))] = rng.choice([0, 9])
        tracks[rank] = track(1000 + begin, ids)
    found = parted(tracks)
    expected = slowly(tracks)
    assert (found and (found.number, {call: set(ranks) for call, ranks in found.sides})) == expected


def test_windows_that_lie_far_apart():
    assert parted({0: track(1, [1, 2, 3]), 1: track(1 << 40, [1, 2, 3])}) is None
    assert parted({0: track(5, [1]), 1: track(1 << 40, [1, 2]), 2: track(1 << 40, [1, 3])}).number == (1 << 40) + 1


def test_the_majority():
    found = parted({r: track(1, [1, 2 if r == 3 else 1]) for r in range(4)})
    assert (found.number, found.meant, found.odd) == (2, 1, (3,))
    found = parted({r: track(1, [1, 2 if r > 1 else 1]) for r in range(4)})
    assert (found.meant, found.odd) == (None, ())


def test_who_is_not_here_votes_for_nobody():
    """Three of four that are here, of eight: the others may all be with the fourth."""
    here = {r: track(1, [1, 2 if r == 3 else 1]) for r in range(4)}
    assert (parted(here, members=8).meant, parted(here, members=8).odd) == (None, ())
    assert (parted(here, members=5).meant, parted(here, members=5).odd) == (1, (3,))


USUAL = [1, 2, 3] * 40


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda u: [*u[:70], 9, *u[70:]], Edit(change="extra")),
        (lambda u: [*u[:70], 9, 8, *u[70:]], Edit(change="extra", count=2)),
        (lambda u: [*u[:70], *u[71:]], Edit(change="lacking")),
        (lambda u: [*u[:70], u[71], u[70], *u[72:]], Edit(change="order")),
        (lambda u: [*u[:70], 8, *u[71:]], Edit(change="content")),
        (lambda u: [*u[:70], 8], None),
        (lambda u: [*u[:70], *[7] * 40], None),
    ],
)
def test_how_calls_become_those_of_the_others(change, expected):
    odd, usual = track(100, change(list(USUAL))), track(100, USUAL)
    assert edit(odd, usual, parted({0: odd, 1: usual}).number) == expected


def test_two_explanations_are_none():
    """Of two calls in turn, one too many and one too few look the same."""
    usual = [1, 2] * 20
    odd, others = track(1, [*usual[:10], *usual[11:]]), track(1, usual)
    assert edit(odd, others, 11) is None
