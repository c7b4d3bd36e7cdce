"""Which windows of motion each rank trains on at each step, and how they come to its device: loaded, from a cache, ahead of time."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from motion import Gaits, Recorded
from stop import leave_to_the_rank
from torch.utils.data import DataLoader, Dataset, Sampler

# Sequence, first frame, frames.
Window = tuple[int, int, int]


class Schedule(Sampler[list[Window]]):
    """This rank's windows at each of `steps` (from 0): a function of the step, so that a restart needs no sampler's state.

    At each step all ranks have windows of the same length, one of `buckets`: they make the same collectives, and none waits for a longer batch.
    A sequence belongs to the longest bucket that it fills. What does not fill a batch of all ranks moves on to the next shorter bucket; the rest
    of the shortest is left out of that epoch. Sequences shorter than all buckets are never used.

    Raises ValueError if `sequences` (their numbers) do not fill one batch. `lengths` has the frames of each sequence.
    """

    def __init__(
        self, sequences: np.ndarray, lengths: np.ndarray, *, buckets: list[int], batch_size: int, rank: int, world_size: int, seed: int, steps: range
    ) -> None:
        self.sequences, self.lengths, self.buckets, self.seed, self.steps = sequences, lengths, sorted(buckets), seed, steps
        self.of_all, self.mine = batch_size * world_size, slice(rank * batch_size, (rank + 1) * batch_size)
        self.steps_per_epoch = len(self._epoch(0))
        if not self.steps_per_epoch:
            fit = int((lengths[sequences] >= self.buckets[0]).sum())
            raise ValueError(f"{fit} sequences of {self.buckets[0]} frames or more are fewer than a batch of {batch_size} on {world_size} ranks")

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[list[Window]]:
        at, batches = -1, []
        for step in self.steps:
            epoch, place = divmod(step, self.steps_per_epoch)
            if epoch != at:
                at, batches = epoch, self._epoch(epoch)
            length, chosen, where = batches[place]
            starts = (where * (self.lengths[chosen] - length + 1)).astype(int)
            yield [(int(index), int(first), length) for index, first in zip(chosen[self.mine], starts[self.mine], strict=True)]

    def _epoch(self, epoch: int) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """For each step the length, the sequences of all ranks, and where in each its window lies (0 to 1)."""
        rng = np.random.default_rng([self.seed, epoch])
        order = rng.permutation(self.sequences)
        bucket = np.searchsorted(self.buckets, self.lengths[order], side="right") - 1
        found, rest = [], order[:0]
        for number, length in reversed(list(enumerate(self.buckets))):
            here = np.concatenate([rest, order[bucket == number]])
            full = len(here) // self.of_all * self.of_all
            found += [(length, chosen, rng.random(self.of_all)) for chosen in here[:full].reshape(-1, self.of_all)]
            rest = here[full:]
        return [found[k] for k in rng.permutation(len(found))]


def first_windows(sequences: np.ndarray, lengths: np.ndarray, buckets: list[int]) -> list[Window]:
    """The beginning of each sequence, as long as the longest bucket that it fills; windows of one length are neighbours."""
    fitting = ((max((b for b in buckets if b <= lengths[i]), default=0), int(i)) for i in sequences)
    return [(index, 0, length) for length, index in sorted(fitting) if length]


class Sequences(Dataset[torch.Tensor]):
    """Sequences (frames, channels) by number, and windows of them, in host memory."""

    def __init__(self, motions: Gaits | Recorded) -> None:
        self._motions = motions

    def whole(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self._motions[index])

    def __getitem__(self, window: Window) -> torch.Tensor:
        index, first, frames = window
        return self.whole(index)[first : first + frames]


class Cache:
    """Whole sequences on the device, of `budget_bytes` at most; those that were not used for the longest time go first."""

    def __init__(self, make: Callable[[int], torch.Tensor], *, budget_bytes: int, device: torch.device) -> None:
        self.make, self.budget_bytes, self._device = make, budget_bytes, device
        self._kept: OrderedDict[int, torch.Tensor] = OrderedDict()
        self.held_bytes = self.hits = self.misses = 0

    def __call__(self, index: int) -> torch.Tensor:
        if index in self._kept:
            self.hits += 1
            self._kept.move_to_end(index)
            return self._kept[index]
        self.misses += 1
        made = self.make(index).to(self._device, non_blocking=True)
        if made.nbytes <= self.budget_bytes:
            self._kept[index] = made
            self.held_bytes += made.nbytes
            while self.held_bytes > self.budget_bytes:
                self.held_bytes -= self._kept.popitem(last=False)[1].nbytes
        return made


def loaded(sequences: Sequences, schedule: Schedule, *, device: torch.device, workers: int, pin_memory: bool) -> Iterator[torch.Tensor]:
    """Batches (batch, frames, channels) on the device, made by `workers` processes (0: between the steps)."""
    # A loader draws a seed; from the global generator a resumed training would have drawn once more.
    reading: dict[str, Any] = {"num_workers": workers, "pin_memory": pin_memory, "worker_init_fn": leave_to_the_rank}
    for batch in DataLoader(sequences, batch_sampler=schedule, generator=torch.Generator(), **reading):
        yield batch.to(device, non_blocking=True)


class Read(Dataset[tuple[int, torch.Tensor]]):
    """Whole sequences with their numbers."""

    def __init__(self, make: Callable[[int], torch.Tensor]) -> None:
        self._make = make

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, self._make(index)


def missing(cache: Cache, schedule: Schedule) -> Iterator[list[int]]:
    """The sequences that the cache will not hold at each step: a shadow of it, which holds nothing but sizes, goes through the steps first."""
    frame = cache.make(int(schedule.sequences[0]))[:1].to("meta")
    wanted: list[int] = []

    def size(index: int) -> torch.Tensor:
        wanted.append(index)
        return frame.expand(int(schedule.lengths[index]), -1)

    shadow = Cache(size, budget_bytes=cache.budget_bytes, device=frame.device)
    for windows in schedule:
        for index, *_ in windows:
            shadow(index)
        yield wanted.copy()
        wanted.clear()


def cached(cache: Cache, schedule: Schedule, *, workers: int = 0, pin_memory: bool = False) -> Iterator[torch.Tensor]:
    """The same batches, with only those sequences read, by `workers` processes, and copied that the cache does not hold."""
    reading: dict[str, Any] = {"num_workers": workers, "pin_memory": pin_memory, "worker_init_fn": leave_to_the_rank}
    loader = DataLoader(Read(cache.make), batch_sampler=missing(cache, schedule), generator=torch.Generator(), collate_fn=dict, **reading)
    for windows, read in zip(schedule, loader, strict=True):
        cache.make = read.__getitem__
        yield torch.stack([cache(index)[first : first + frames] for index, first, frames in windows])


def ahead(batches: Iterator[torch.Tensor], *, depth: int, device: torch.device) -> Iterator[torch.Tensor]:
    """The same batches, `depth` of them made before they are needed: on a GPU by a stream of their own, which copies while the step computes."""
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None
    ready: deque[tuple[torch.Tensor, torch.cuda.Event | None]] = deque()

    def pull(count: int) -> None:
        with torch.cuda.stream(stream):  # does nothing for None
            for batch in islice(batches, count):
                ready.append((batch, stream.record_event() if stream else None))

    pull(depth)
    while ready:
        batch, copied = ready.popleft()
        if copied is not None:
            torch.cuda.current_stream(device).wait_event(copied)
            # The allocator must not give its memory away while the step still reads it.
            batch.record_stream(torch.cuda.current_stream(device))
        yield batch
        # The step's kernels are in the queue by now.
        pull(1)
