"""Checkpoints from which a training goes on exactly: weights, optimizer, schedule, position in the data, every rank's random numbers.

    DIR/step-00000012/state.pt, manifest.json

One is written beside its place, synced to disk, and renamed: it is there whole or not at all. The manifest carries a
checksum, since disks also lose what was written well: a damaged newest one is passed over, with a warning, for the one before.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import sys
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
import torch.distributed as dist
from library import faults
from world import World


class Checkpoints:
    """The checkpoints in one directory; the newest `keep` stay. Every rank calls every method: they contain collectives."""

    def __init__(self, directory: Path, *, keep: int, world: World) -> None:
        self.directory, self.keep, self.world, self.rank = directory, keep, world, world.rank

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write one. `state` needs to be the same on all ranks; random number states are gathered here."""
        rng: list[Any] = [None] * self.world.size
        dist.all_gather_object(rng, rng_state())
        if self.rank == 0:
            self._write(step, {**state, "step": step, "rng": rng})
            faults.point("checkpoint.saved", step=step)

    def load_latest(self) -> tuple[Path, dict[str, Any]] | None:
        """The newest sound one, or None. Rank 0 chooses, so that no two ranks can go on from different steps."""
        chosen: list[str | None] = [self._newest_sound() if self.rank == 0 else None]
        dist.broadcast_object_list(chosen, src=0)
        if chosen[0] is None:
            return None
        path = self.directory / chosen[0]
        return path, torch.load(path / "state.pt", map_location="cpu", weights_only=True)

    def remove_all(self) -> None:
        """Start over. Only rank 0 removes; the broadcast in `load_latest` keeps the others from looking too early."""
        if self.rank == 0:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _write(self, step: int, state: dict[str, Any]) -> None:
        final = self.directory / f"step-{step:08d}"
        building = self.directory / f".{final.name}.{os.getpid()}"
        building.mkdir(parents=True)
        with (building / "state.pt").open("wb") as file:
            checked = _Checked(file)
            torch.save(state, checked)
            _sync(file)
        manifest = {"step": step, "bytes": checked.bytes, "crc32": checked.crc32, "ranks": self.world.size}
        with (building / "manifest.json").open("w", encoding="utf-8") as text:
            json.dump(manifest, text)
            _sync(text)
        _discard(final)
        building.rename(final)
        _sync_directory(self.directory)
        for old in self._all()[: -self.keep]:
            _discard(old)

    def _all(self) -> list[Path]:
        return sorted(self.directory.glob("step-*"))

    def _newest_sound(self) -> str | None:
        for leftover in self.directory.glob(".step-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        for path in reversed(self._all()):
            problem = _damage(path)
            if problem is None:
                return path.name
            print(f"warning: checkpoint {path} is damaged ({problem}); going on from the one before", file=sys.stderr, flush=True)
        return None


def seed_rng(seed: int) -> None:
    """Begin all random number generators of this process from one number."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def rng_state() -> dict[str, Any]:
    """All random number generators of this process."""
    name, keys, position, has_gauss, gauss = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def restore_rng(state: dict[str, Any]) -> None:
    """Put back what `rng_state` returned."""
    random.setstate(state["python"])
    name, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


class _Checked:
    """A binary file that counts and sums what goes through it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.bytes, self.crc32 = file, 0, 0

    def write(self, data: bytes) -> int:
        self.bytes += len(data)
        self.crc32 = zlib.crc32(data, self.crc32)
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()


def _damage(path: Path) -> str | None:
    """What is wrong with a checkpoint; None where nothing is."""
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        expected, size, crc32 = manifest["crc32"], 0, 0
        with (path / "state.pt").open("rb") as file:
            while data := file.read(1 << 22):
                size, crc32 = size + len(data), zlib.crc32(data, crc32)
    except (OSError, ValueError, KeyError, TypeError) as e:
        return f"{type(e).__name__}: {e}"
    if size != manifest["bytes"]:
        return f"state.pt has {size} bytes instead of {manifest['bytes']}"
    return None if crc32 == expected else "the checksum of state.pt does not match"


def _discard(path: Path) -> None:
    """Remove a directory so that nobody ever finds half of it under its name."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path.rename(path.with_name(f".{path.name}.old.{os.getpid()}")))


def _sync(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
