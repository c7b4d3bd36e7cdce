"""Every batch is some rank's, once."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from unhang.integrations import sharing

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
