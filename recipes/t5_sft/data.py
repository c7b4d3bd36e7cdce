"""The data set as training sees it: rows mapped from an Arrow file, and the order in which they come.

Nothing is held but the record batch in use: the pages belong to the kernel's page cache, all ranks and loader workers of
a host share them, and the kernel may drop them. Memory grows neither with rows nor with ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from prepare import EOS, PAD, ROWS_IN_A_BATCH
from torch.utils.data import Dataset, Sampler

IGNORED = -100  # a label that the loss leaves out


class ArrowRows(Dataset[dict[str, Any]]):
    """The rows of one Arrow file, as token ids. The file is mapped by each process for itself, on first use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader: pa.RecordBatchFileReader | None = None
        self._at = -1
        self._batch: pa.RecordBatch | None = None
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
            batches = reader.num_record_batches
            # Every batch but the last is full.
            self._rows = (batches - 1) * ROWS_IN_A_BATCH + reader.get_batch(batches - 1).num_rows if batches else 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None, "_at": -1, "_batch": None}

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: int) -> dict[str, Any]:
        batch, offset = self._find(index)
        return {name: batch.column(name)[offset].values.to_numpy() for name in ("input_ids", "labels")}

    def text(self, index: int) -> dict[str, str]:
        """The same row to read."""
        batch, offset = self._find(index)
        return {name: batch.column(name)[offset].as_py() for name in ("language", "cause", "question", "answer")}

    def _find(self, index: int) -> tuple[pa.RecordBatch, int]:
        if not 0 <= index < self._rows:
            raise IndexError(f"row {index} of {self._rows}")
        number, offset = divmod(index, ROWS_IN_A_BATCH)
        if number != self._at:
            if self._reader is None:
                self._reader = pa.ipc.open_file(pa.memory_map(str(self.path)))
            self._batch, self._at = self._reader.get_batch(number), number
        assert self._batch is not None
        return self._batch, offset


class Order:
    """A shuffled order for each epoch that is computed, not held: blocks change places, and rows inside their block.

    Neighbours stay near each other on disk, so that a data set larger than RAM is read in long stretches.
    """

    def __init__(self, rows: int, *, seed: int, block: int = ROWS_IN_A_BATCH) -> None:
        self.rows, self.seed, self.block = rows, seed, block
        self._epoch = -1
        self._blocks: torch.Tensor = torch.empty(0)
        self._inside: tuple[int, torch.Tensor] = (-1, torch.empty(0))

    def row(self, epoch: int, place: int) -> int:
        """The row that comes at `place` (0 to rows - 1) of `epoch`."""
        if epoch != self._epoch:
            # The last block may be short: it stays last, so that every place is found by division.
            self._epoch, self._blocks, self._inside = epoch, self._permutation(self.rows // self.block, epoch), (-1, self._blocks)
        number, offset = divmod(place, self.block)
        block = int(self._blocks[number]) if number < len(self._blocks) else number
        if block != self._inside[0]:
            self._inside = block, self._permutation(min(self.block, self.rows - block * self.block), epoch, block)
        return block * self.block + int(self._inside[1][offset])

    def _permutation(self, count: int, *key: int) -> torch.Tensor:
        mixed = np.random.SeedSequence([self.seed, *key]).generate_state(1, np.uint64)[0]
        return torch.randperm(count, generator=torch.Generator().manual_seed(int(mixed) >> 1))


class Batches(Sampler[list[int]]):
    """This rank's micro-batches, from number `start` on to `stop`, across epochs. A rest too small for all ranks is left out of its epoch.

    The position in the data is one number, so that a resumed training goes on exactly there.
    """

    def __init__(self, order: Order, *, batch_size: int, rank: int, world_size: int, start: int, stop: int) -> None:
        self.order, self.batch_size, self.rank, self.world_size, self.start, self.stop = order, batch_size, rank, world_size, start, stop
        self.per_epoch = order.rows // (batch_size * world_size)
        if not self.per_epoch:
            raise ValueError(f"{order.rows} rows are fewer than one batch of {batch_size} on each of {world_size} ranks")

    def __len__(self) -> int:
        return self.stop - self.start

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(self.start, self.stop):
            epoch, batch = divmod(number, self.per_epoch)
            first = (batch * self.world_size + self.rank) * self.batch_size
            yield [self.order.row(epoch, place) for place in range(first, first + self.batch_size)]


class Collate:
    """Pads rows to one length; longer ones are cut and still end with the end-of-sequence token."""

    def __init__(self, *, source_tokens: int, target_tokens: int) -> None:
        self.source_tokens, self.target_tokens = source_tokens, target_tokens

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        source = _pad([row["input_ids"] for row in rows], limit=self.source_tokens, fill=PAD)
        labels = _pad([row["labels"] for row in rows], limit=self.target_tokens, fill=IGNORED)
        return {"input_ids": source, "attention_mask": (source != PAD).long(), "labels": labels}


def _pad(rows: list[np.ndarray], *, limit: int, fill: int) -> torch.Tensor:
    padded = np.full((len(rows), min(limit, max(map(len, rows)))), fill, dtype=np.int64)
    for line, ids in zip(padded, rows, strict=True):
        line[: len(ids)] = ids[:limit]
        if len(ids) > limit:
            line[-1] = EOS
    return torch.from_numpy(padded)
