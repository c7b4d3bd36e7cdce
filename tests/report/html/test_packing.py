"""Columns go into the page and come out of it as they were, and stay small."""

from __future__ import annotations

import base64
import random
import zlib
from array import array
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.report.html import jobs
from tests.report.html.unpacking import unpacked

from unhang.report.html.packing import pack
from unhang.report.html.scene import Divergence, Group, Scene, State, Track


def scene(*tracks: Track, **more) -> Scene:
    return Scene(groups=(Group(name="0"),), tracks=tracks, **more)


def track(count: int, *, rank: int = 0, first: int = 0, starts=None) -> Track:
    return Track(
        rank=rank,
        group=0,
        first=first,
        ops=array("H", (i % 7 for i in range(count))),
        states=bytes(i % 6 for i in range(count)),
        sites=array("H", (i % 3 for i in range(count))),
        starts_ns=None if starts is None else array("q", starts),
    )


def same(one: Track, other: Track, *, within_ns: int) -> None:
    assert (one.rank, one.group, one.first, one.ops, one.states) == (other.rank, other.group, other.first, other.ops, other.states)
    assert list(one.sites or [0] * len(one.ops)) == list(other.sites)
    if one.starts_ns is None:
        assert other.starts_ns is None
        return
    assert all(0 <= a - b < within_ns for a, b in zip(one.starts_ns, other.starts_ns, strict=True))


def test_what_goes_in_comes_out():
    for made in (jobs.small()[1], jobs.gloo()[1], jobs.job(70, 300, missing=(3,), unseen=(5, 6))):
        packed = pack(made)
        back = unpacked(packed)
        assert len(back) == len(made.tracks) and packed.left_out == 0
        for one, other in zip(made.tracks, back, strict=True):
            same(one, other, within_ns=packed.unit_ns)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(1, 10**13), max_size=30), min_size=1, max_size=5))
def test_any_times_come_out(told):
    """Those that are set back among them."""
    tracks = [track(len(times), rank=r, first=r * 10, starts=[jobs.T0_NS + t for t in times]) for r, times in enumerate(told)]
    packed = pack(scene(*tracks))
    for one, other in zip(tracks, unpacked(packed), strict=True):
        same(one, other, within_ns=packed.unit_ns)


def test_no_times_and_no_lines():
    bare = replace(track(9), sites=None)
    packed = pack(scene(bare, track(3, rank=1, starts=[0, 0, 0])))
    back = unpacked(packed)
    same(bare, back[0], within_ns=1)
    assert back[0].starts_ns is None and back[1].states == bare.states[:3]
    assert unpacked(pack(scene())) == []


def test_ranks_that_repeat_each_other_cost_next_to_nothing():
    made = jobs.job(256, 500, missing=(9,))
    packed = pack(made)
    assert len(packed.blocks["ops"]) < 6_000 and len(packed.blocks["states"]) < 2_000 and len(packed.blocks["sites"]) < 6_000
    # Random skews of some milliseconds at a resolution of 70 microseconds: a dozen bits for each start.
    bars = sum(len(t.states) for t in made.tracks)
    assert sum(map(len, packed.blocks.values())) < 3.5 * bars


def test_any_column_can_be_packed_whatever_it_holds():
    """Noise: the block is what zlib makes of it, and text that cannot end a script element."""
    noise = random.Random(1)
    one = Track(rank=0, group=0, first=0, ops=array("H", (noise.randrange(65536) for _ in range(999))), states=bytes(999))
    packed = pack(scene(one))
    assert zlib.decompress(base64.b64decode(packed.blocks["ops"]), -15)[:3] == bytes(n & 255 for n in one.ops[:3])
    assert all(set(block) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=") for block in packed.blocks.values())
    same(one, unpacked(packed)[0], within_ns=1)


@pytest.mark.parametrize("at", [5, 480, 999])
def test_of_too_many_the_newest_stay_and_the_divergence(at):
    tracks = [track(1000, rank=r, first=100) for r in range(4)]
    made = scene(*tracks, divergences=(Divergence(group=0, number=100 + at, missing=(1,)),))
    packed = pack(made, max_bars=800)
    back = unpacked(packed)
    assert packed.left_out == 4 * 800 and all(len(t.states) == 200 for t in back)
    for t in back:
        assert t.first <= 100 + at < t.first + 200
        assert t.states == tracks[0].states[t.first - 100 : t.first + 100]
    assert State.NONE == 0
