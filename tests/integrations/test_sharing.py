"""Every batch is some rank's, once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset

from unhang.integrations import sharing
from unhang.integrations.accelerate import evaluate as guarded_by_accelerate

pytestmark = pytest.mark.torch


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(range(10))


@pytest.fixture
def shares(monkeypatch):
    """What each of so many ranks gets."""

    def of(loader, size):
        found = []
        for rank in range(size):
            monkeypatch.setattr(sharing, "rank_and_size", lambda rank=rank: (rank, size))
            found.append([batch.tolist() for batch in sharing.share(loader)])
        return found

    return of


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("data", [list(range(10)), Numbers()], ids=["list", "iterable"])
def test_all_samples_are_seen_once(shares, data, size):
    found = shares(DataLoader(data, batch_size=3), size)
    assert sorted(number for rank in found for batch in rank for number in batch) == list(range(10))
    # One of each rank in turn is the loader's own order.
    assert [rank[0] for rank in found if rank] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]][:size]


def test_a_loader_that_is_divided_already_stays_so(shares):
    data = list(range(10))
    loader = DataLoader(data, batch_size=5, sampler=DistributedSampler(data, num_replicas=2, rank=1, shuffle=False))
    assert shares(loader, 2)[0] == [[1, 3, 5, 7, 9]]


def test_a_batch_sampler_over_one_that_divides_stays_so(shares):
    data = list(range(8))
    sampler = DistributedSampler(data, num_replicas=2, rank=1, shuffle=False)
    assert shares(DataLoader(data, batch_sampler=BatchSampler(sampler, 2, drop_last=False)), 2)[0] == [[1, 3], [5, 7]]


class DividesItself(IterableDataset):
    """As those of accelerate and of `datasets` say."""

    def __iter__(self):
        return iter((1, 3))


@pytest.mark.parametrize(("name", "value"), [("num_processes", 2), ("_distributed", "rank 1 of 2")])
def test_an_iterable_that_says_that_it_is_divided_stays_so(shares, name, value):
    data = DividesItself()
    setattr(data, name, value)
    assert shares(DataLoader(data, batch_size=1), 2)[1] == [[1], [3]]


@pytest.mark.parametrize("own", [False, True])
def test_an_order_that_is_drawn_is_the_same_for_all(monkeypatch, own):
    seen, data = [], list(range(32))
    for rank in range(2):
        torch.manual_seed(rank)
        monkeypatch.setattr(sharing, "rank_and_size", lambda rank=rank: (rank, 2))
        generator = torch.Generator().manual_seed(rank) if own else None
        before = torch.get_rng_state(), generator and generator.get_state()
        loader = DataLoader(data, batch_size=4, shuffle=True, generator=generator)
        with sharing._drawn_alike(loader.sampler):
            pass
        assert torch.equal(torch.get_rng_state(), before[0]) and (generator is None or torch.equal(generator.get_state(), before[1]))
        seen += [number for batch in sharing.share(loader) for number in batch.tolist()]
    assert sorted(seen) == data and seen != data


def test_what_a_loader_was_given_is_kept(shares):
    loader = DataLoader(list(range(6)), batch_size=2, collate_fn=lambda batch: torch.tensor(batch) * 10, num_workers=1, prefetch_factor=3)
    assert shares(loader, 2)[1] == [[20, 30]]


def test_batches_are_moved_whole():
    class Words(dict):
        moved_to = None

        def to(self, device):
            self.moved_to = device
            return self

    assert sharing.moved(Words(), "cpu").moved_to == "cpu"
    moved = sharing.moved({"x": [torch.ones(1), "name"]}, "meta")
    assert moved["x"][0].device.type == "meta" and moved["x"][1] == "name"


def test_a_loader_in_the_place_of_a_data_set_is_named_with_the_user_s_line():
    """What accelerate itself does is in test_accelerate: here nothing of it is reached."""
    here = SimpleNamespace(distributed_type=SimpleNamespace(name="NO"), state=None, unwrap_model=lambda model: model)
    loader = torch.utils.data.DataLoader([1, 2])
    found = guarded_by_accelerate(here, lambda model, batch: {}, {"d": loader}, model=torch.nn.Linear(1, 1), batch_size=2)
    why = found.data_sets["d"].why
    assert "datasets holds a DataLoader: give its data set (loader.dataset)" in why and "(test_sharing.py:" in why
