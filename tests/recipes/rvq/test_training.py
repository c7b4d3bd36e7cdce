"""The recipe under `unhang run`: whatever befalls it, it ends with the same weights, codebooks, optimizer and random numbers, bit for bit.

Three ranks, because with two every order of summation gives the same bits.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.launch.conftest import Run, launcher  # noqa: F401
from tests.launchers.conftest import Training, training  # noqa: F401
from tests.recipes.rvq.conftest import RECIPE
from torch.utils._pytree import tree_flatten

pytestmark = [pytest.mark.torch, pytest.mark.integration, pytest.mark.timeout(1000)]

WORDS = "--sequences 60 --batch-size 4 --multi-length-training --lengths 64,96 --width 16 --quantizers 2 --codes 16 --steps 12"
EVERY = "--log-every 3 --save-every 4 --eval-every 6 --sync-check-every 5"
RANKS = 3


class Recipe:
    def __init__(self, made: Training, output: Path) -> None:
        self.made, self.output = made, output

    def argv(self, *words: str, name: str, ranks: int = RANKS) -> list[str]:
        start = ["torchrun", "--standalone", "--nproc-per-node", str(ranks), str(RECIPE / "train.py")]
        return [*start, "--output", str(self.output / name), *WORDS.split(), *EVERY.split(), *words]

    def run(self, *words: str, name: str = "out", ranks: int = RANKS, fault: str = "", options: tuple[str, ...] = ()) -> Run:
        more = {"UNHANG_FAULT": fault} if fault else {}
        return self.made.run(*self.argv(*words, name=name, ranks=ranks), options=options, more=more)

    def lines(self, name: str = "out") -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.output / name / "metrics.jsonl").read_text().splitlines()]

    def state(self, name: str = "out") -> list[Any]:
        """All of the last checkpoint; `course`, which tells apart what was asked for, is compared with it."""
        (last,) = (self.output / name / "checkpoints").glob("step-00000012.pt")
        values, structure = tree_flatten(torch.load(last, weights_only=True))
        return [str(structure), *(value.tolist() if isinstance(value, torch.Tensor) else value for value in values)]


@pytest.fixture
def recipe(training: Callable[..., Training], tmp_path: Path) -> Recipe:  # noqa: F811
    return Recipe(training("rvq", "none.py", PYTHONPATH=str(RECIPE.parents[1] / "src")), tmp_path)


_undisturbed: list[Any] = []


@pytest.fixture
def undisturbed(recipe: Recipe) -> list[Any]:
    """The state at the end of a run that nothing befell, made once."""
    if not _undisturbed:
        run = recipe.run(name="undisturbed")
        assert run.exitcode == 0, run.err[-4000:]
        assert (run.outcome["attempts"], run.outcome["incidents"]) == (1, 0)
        _undisturbed.extend(recipe.state("undisturbed"))
    return _undisturbed


def test_it_learns_and_reports_its_codebooks(recipe):
    more = "--sequences 2000 --batch-size 32 --width 32 --quantizers 3 --codes 32 --steps 60 --log-every 20 --eval-every 30 --save-every 60"
    run = recipe.run(*more.split(), ranks=2)
    assert run.exitcode == 0, run.err[-4000:]
    first, last = [line for line in recipe.lines() if "eval/validation/reconstruction" in line]
    assert last["eval/validation/mean_pose"] == pytest.approx(1, abs=0.1)
    assert last["eval/validation/reconstruction"] < first["eval/validation/reconstruction"]
    assert last["eval/validation/reconstruction"] < 0.5 * last["eval/validation/mean_pose"]
    report = [line for line in recipe.lines() if "usage" in line][-1]
    assert len(report["usage"]) == len(report["perplexity"]) == 3
    assert all(0.5 < share <= 1 for share in report["usage"]) and all(8 < one <= 32 for one in report["perplexity"])


def test_presets_change_no_bit(recipe, undisturbed):
    (recipe.output / "unhang.toml").write_bytes((RECIPE / "unhang.toml").read_bytes())
    for preset in ("gpu_cache", "prefetch"):
        run = recipe.run(name=preset, options=("--preset", preset, "--set", "batch=4"))
        assert run.exitcode == 0, run.err[-4000:]
        assert "does nothing" not in run.log("rank0.out")
        assert bool(re.search(r"cache: [1-9]\d* hits", run.log("rank0.out"))) == (preset == "gpu_cache")
        assert recipe.state(preset) == undisturbed


@pytest.mark.parametrize(
    ("fault", "cause"),
    [("sigkill@train.step:rank=1,step=7", "host-oom-or-killed"), ("stuck@train.step:rank=1,step=7", "process-stuck")],
)
def test_a_rank_that_dies_or_hangs_is_named_and_the_training_goes_on(recipe, undisturbed, fault, cause):
    run = recipe.run(fault=fault, options=("--hang-after", "25"))
    assert run.exitcode == 0, run.err[-4000:]
    assert (run.outcome["attempts"], run.primary["cause"], run.primary["ranks"]) == (2, cause, [1])
    assert "step-00000004.pt" in run.log("rank0.out", attempt=1)
    assert recipe.state() == undisturbed


def test_an_exception_in_an_evaluation_costs_an_attempt_of_it(recipe, undisturbed):
    run = recipe.run(fault="raise@evaluate.batch:rank=1,step=6")
    assert (run.exitcode, run.outcome["attempts"]) == (0, 1), run.err[-4000:]
    assert [line["eval/attempts"] for line in recipe.lines() if "eval/attempts" in line] == [2, 1]
    assert recipe.state() == undisturbed


def test_a_rank_whose_codebook_parts_is_named(recipe, undisturbed):
    """No rank's codebooks had parted in the run that nothing befell, or it would have ended like this one."""
    run = recipe.run(fault="drift@train.codebook:rank=1,step=7")
    assert (run.exitcode, run.outcome["attempts"], run.primary["cause"], run.primary["ranks"]) == (0, 2, "out-of-sync", [1]), run.err[-4000:]
    assert "codebooks.layers_0__codebook_embed_avg (rank 1)" in run.log("rank0.err")
    assert recipe.state() == undisturbed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_a_checkpoint_to_go_on_from(recipe, undisturbed, number):
    # The ranks stand still for some seconds in step 6, in which the signal comes.
    launched = recipe.made.launcher
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(recipe.run, fault="burst@train.step:step=6,seconds=8", options=("--hang-after", "60"))
        launched.until(lambda: any('"step":3' in path.read_text() for path in recipe.output.glob("out/metrics.jsonl")), 300)
        launched.processes[-1].send_signal(number)
        run = running.result()
    last = int(max(path.stem for path in (recipe.output / "out" / "checkpoints").iterdir())[-8:])
    assert 4 <= last <= 8 and f"stopped by {number.name} after step {last}; the same command goes on from there" in run.log("rank0.out")
    assert run.exitcode == 128 + number, run.err[-4000:]
    assert recipe.run().exitcode == 0
    assert recipe.state() == undisturbed
