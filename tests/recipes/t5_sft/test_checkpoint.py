"""Choosing and keeping checkpoints, with a process group of one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import checkpoint
import numpy as np
import pytest
import torch
import world

pytestmark = pytest.mark.torch


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[world.World]:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    yield world.join(timeout_s=30, bf16="off")
    world.leave()


@pytest.fixture
def kept(alone: world.World, tmp_path: Path) -> checkpoint.Checkpoints:
    return checkpoint.Checkpoints(tmp_path / "checkpoints", keep=2, world=alone)


def test_there_may_be_none(kept: checkpoint.Checkpoints) -> None:
    assert kept.load_latest() is None


def test_the_newest_comes_back_and_old_ones_go(kept: checkpoint.Checkpoints) -> None:
    for step in (1, 2, 10):
        kept.save(step, {"weights": torch.full((3,), float(step))})
    found = kept.load_latest()
    assert found is not None
    assert (found[0].name, found[1]["step"], found[1]["weights"].tolist()) == ("step-00000010", 10, [10.0, 10.0, 10.0])
    assert sorted(path.name for path in kept.directory.iterdir()) == ["step-00000002", "step-00000010"]


@pytest.mark.parametrize("damage", ["truncated", "no manifest", "no state", "empty manifest"])
def test_a_damaged_one_is_passed_over_and_written_again(kept: checkpoint.Checkpoints, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    kept.save(1, {"weights": torch.ones(1000)})
    kept.save(2, {"weights": torch.ones(1000)})
    newest = kept.directory / "step-00000002"
    if damage == "truncated":
        (newest / "state.pt").write_bytes((newest / "state.pt").read_bytes()[:-100])
    elif damage == "no state":
        (newest / "state.pt").unlink()
    elif damage == "no manifest":
        (newest / "manifest.json").unlink()
    else:
        (newest / "manifest.json").write_text("")
    found = kept.load_latest()
    assert found is not None
    assert found[0].name == "step-00000001"
    assert f"warning: checkpoint {newest} is damaged" in capsys.readouterr().err
    kept.save(2, {"weights": torch.zeros(1000)})
    again = kept.load_latest()
    assert again is not None
    assert again[0] == newest


def test_what_a_killed_process_left_half_written_is_no_checkpoint(kept: checkpoint.Checkpoints) -> None:
    half = kept.directory / ".step-00000003.4711"
    half.mkdir(parents=True)
    (half / "state.pt").write_bytes(b"half")
    assert kept.load_latest() is None
    assert not half.exists()


def test_random_numbers_go_on_where_they_were(kept: checkpoint.Checkpoints) -> None:
    def drawn() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), torch.rand(()).item()

    kept.save(1, {})
    after = drawn()
    drawn()
    found = kept.load_latest()
    assert found is not None
    checkpoint.restore_rng(found[1]["rng"][0])
    assert drawn() == after
