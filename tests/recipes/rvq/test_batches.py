"""Which windows each rank gets, and that a cache and a prefetcher change nothing about them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.torch

BUCKETS = [16, 32, 48]
CPU = torch.device("cpu")


few = st.integers(1, 4)


@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=80), batch_size=few, world_size=few, start=st.integers(0, 10), seed=few)
def test_all_ranks_do_the_same_steps(lengths, batch_size, world_size, start, seed):
    from batches import Schedule

    frames = np.array(lengths)
    usable = int((frames >= BUCKETS[0]).sum())

    def schedules(steps: range) -> list[Schedule]:
        more = {"buckets": BUCKETS, "batch_size": batch_size, "world_size": world_size, "seed": seed, "steps": steps}
        return [Schedule(np.arange(len(frames)), frames, rank=rank, **more) for rank in range(world_size)]

    if usable < batch_size * world_size:
        with pytest.raises(ValueError, match=f"{usable} sequences of 16 frames or more are fewer than a batch of {batch_size} on {world_size} ranks"):
            schedules(range(1))
        return
    per_epoch = schedules(range(1))[0].steps_per_epoch
    # Longer sequences may fill shorter windows: only what is no batch of all ranks is left out.
    assert per_epoch == usable // (batch_size * world_size)
    ranks = [list(one) for one in schedules(range(2 * per_epoch))]
    for step in zip(*ranks, strict=True):
        assert len({length for batch in step for _, _, length in batch}) == 1
        assert [len(batch) for batch in step] == [batch_size] * world_size
    for epoch in range(2):
        used = [window for rank in ranks for batch in rank[epoch * per_epoch :][:per_epoch] for window in batch]
        assert len({index for index, _, _ in used}) == len(used)
        assert all(first >= 0 and first + length <= frames[index] for index, first, length in used)
    # A restart goes on where it was.
    start = min(start, 2 * per_epoch)
    assert [list(one) for one in schedules(range(start, 2 * per_epoch))] == [rank[start:] for rank in ranks]


@given(asked=st.lists(st.integers(0, 9), max_size=60), budget=st.integers(0, 40))
def test_the_cache_gives_up_what_was_not_used_for_longest(asked, budget):
    from batches import Cache

    made = []

    def make(index: int) -> torch.Tensor:
        made.append(index)
        return torch.full((index + 1,), index, dtype=torch.uint8)

    cache = Cache(make, budget_bytes=budget, device=CPU)
    kept: list[int] = []  # the newest last
    for number, index in enumerate(asked):
        expected = len(made) + (index not in kept)
        assert cache(index).tolist() == [index] * (index + 1)
        assert len(made) == expected
        kept = [one for one in kept if one != index] + ([index] if index + 1 <= budget else [])
        while sum(one + 1 for one in kept) > budget:
            kept.pop(0)
        assert cache.held_bytes == sum(one + 1 for one in kept) <= budget
        assert cache.hits + cache.misses == number + 1 and cache.misses == len(made)


def test_cache_and_prefetcher_give_the_loaders_batches():
    from batches import Cache, Schedule, Sequences, ahead, cached, loaded
    from motion import Gaits

    gaits = Gaits(40, seed=3)
    sequences = Sequences(gaits)
    schedule = Schedule(np.arange(40), gaits.lengths, buckets=[64, 96, 128], batch_size=3, rank=1, world_size=2, seed=5, steps=range(4, 19))

    def load():
        return loaded(sequences, schedule, device=CPU, workers=0, pin_memory=False)

    plain = list(load())
    assert len(plain) == 15 and len({batch.shape for batch in plain}) == 3
    cache, read_by_others = (Cache(sequences.whole, budget_bytes=30_000, device=CPU) for _ in range(2))
    for other in (
        cached(cache, schedule),
        cached(read_by_others, schedule, workers=2),
        ahead(load(), depth=2, device=CPU),
        ahead(load(), depth=99, device=CPU),
    ):
        assert all(torch.equal(a, b) for a, b in zip(plain, other, strict=True))
    assert cache.hits and cache.misses > cache.hits
    assert (read_by_others.hits, read_by_others.misses) == (cache.hits, cache.misses)


def test_the_prefetcher_is_that_many_batches_ahead():
    from batches import ahead

    taken = []
    source = (taken.append(number) or torch.tensor(number) for number in range(6))
    seen = []
    for batch in ahead(source, depth=2, device=CPU):
        seen.append((int(batch), len(taken)))
    assert seen == [(0, 2), (1, 3), (2, 4), (3, 5), (4, 6), (5, 6)]


@pytest.mark.gpu
def test_the_same_on_a_gpu():
    from batches import Cache, Schedule, Sequences, ahead, cached, loaded
    from motion import Gaits

    gaits, gpu = Gaits(40, seed=3), torch.device("cuda", 0)
    sequences = Sequences(gaits)
    schedule = Schedule(np.arange(40), gaits.lengths, buckets=[64, 96], batch_size=3, rank=0, world_size=1, seed=5, steps=range(30))
    plain = list(loaded(sequences, schedule, device=CPU, workers=0, pin_memory=False))
    for pinned in (False, True):
        there = ahead(loaded(sequences, schedule, device=gpu, workers=0, pin_memory=pinned), depth=2, device=gpu)
        assert all(torch.equal(a, b.cpu()) for a, b in zip(plain, there, strict=True))
    there = ahead(cached(Cache(sequences.whole, budget_bytes=30_000, device=gpu), schedule), depth=2, device=gpu)
    assert all(torch.equal(a, b.cpu()) for a, b in zip(plain, there, strict=True))
