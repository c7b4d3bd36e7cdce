"""The training with unhang and without it: the same to the last bit; ranks that diverge are named, evaluations that fail end nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.recipes.t5_sft.test_training import assert_same, metrics, state, steps

pytestmark = [pytest.mark.torch, pytest.mark.integration]

STEPS = ("--is_finetune", "--max-steps", "4", "--save-every", "2", "--eval-every", "2", "--batch-size", "2", "--warmup", "2")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of processes in which unhang cannot be imported."""
    place = tmp_path_factory.mktemp("without")
    (place / "unhang.py").write_text("raise ModuleNotFoundError(\"No module named 'unhang'\", name='unhang')\n")
    return {"PYTHONPATH": str(place)}


@pytest.fixture(scope="module")
def plain(recipe: Any, alone: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    output = tmp_path_factory.mktemp("plain") / "out"
    done = recipe.train(output, *STEPS, "--guarded", "--monitored", ranks=2, **alone)
    assert done.returncode == 0, done.stderr
    return output, done.stdout


@pytest.fixture(scope="module")
def guarded(recipe: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    output = tmp_path_factory.mktemp("guarded") / "out"
    done = recipe.train(output, *STEPS, "--guarded", "--monitored", ranks=2)
    assert done.returncode == 0, done.stderr
    return output, done.stdout


def test_without_unhang_it_is_a_plain_training_and_says_so_once(plain: tuple[Path, str]) -> None:
    output, out = plain
    said = "unhang cannot be imported here (ModuleNotFoundError: No module named 'unhang')"
    assert (
        out.count("unhang") == 2
        and out.count(f"warning: {said}: no check that all ranks train the same model, no guarded evaluation, no monitor") == 1
    )
    assert not (output / "monitor.jsonl").exists()


def test_the_same_comes_out_bit_for_bit(plain: tuple[Path, str], guarded: tuple[Path, str]) -> None:
    assert_same(state(guarded[0], 4), state(plain[0], 4))
    for name in ("loss", "eval_loss", "perplexity"):
        assert steps(metrics(guarded[0]), name) == steps(metrics(plain[0]), name)
    assert metrics(guarded[0])[-1] == metrics(plain[0])[-1]
    assert "warning" not in guarded[1]


def test_the_monitor_tells_of_the_trainings_own_collectives(guarded: tuple[Path, str]) -> None:
    told = json.loads((guarded[0] / "monitor.jsonl").read_text().splitlines()[-1])
    assert (told["heard_from"], told["evaluations"], told["evaluation_failures"], told["failures"]) == (2, 2, 0, [])
    if told["torch_collectives"] == "counted":
        assert {one["collective"]: one["count"] for one in told["calls"]}["gloo:all_reduce"] >= 4


def test_without_unhang_the_data_has_to_be_brought(recipe: Any, alone: dict[str, str], tmp_path: Path) -> None:
    import train

    done = recipe.python(str(Path(train.__file__)), "prepare", "--out", str(tmp_path / "data"), **alone)
    assert done.returncode == 1
    assert "No module named 'unhang'" in done.stderr and "train.py train --data DIR" in done.stderr and "Traceback" not in done.stderr


def test_a_rank_that_has_diverged_is_named_and_gets_into_no_checkpoint(recipe: Any, tmp_path: Path) -> None:
    output = tmp_path / "out"
    done = recipe.train(output, *STEPS, ranks=3, UNHANG_FAULT="drift@train.weights:rank=1,step=3")
    assert done.returncode == 1
    assert (
        "OutOfSync: the ranks are out of sync at step 4. parameters: decoder.block.0.layer.0.SelfAttention.q.weight (rank 1) differs" in done.stderr
    )
    assert [path.name for path in (output / "checkpoints").iterdir()] == ["step-00000002"]


def test_an_evaluation_that_fails_once_is_tried_again_to_the_same_end(plain: tuple[Path, str], recipe: Any, tmp_path: Path) -> None:
    done = recipe.train(tmp_path / "out", *STEPS, "--guarded", ranks=2, UNHANG_FAULT="raise@evaluate.sample:rank=1,step=2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("in 2 attempts") == 1
    assert_same(state(tmp_path / "out", 4), state(plain[0], 4))


def test_an_evaluation_that_fails_has_no_score_and_the_training_goes_on(plain: tuple[Path, str], recipe: Any, tmp_path: Path) -> None:
    # Code that is wrong is not tried again.
    code = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
sys.argv[:2] = [sys.argv[1] + "/train.py"]
import data
whole = data.ArrowRows.__getitem__
data.ArrowRows.__getitem__ = lambda self, index: whole(self, index) if "eval" not in self.path.name or index != 1 else {}["a label"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    script = tmp_path / "broken.py"
    script.write_text(code)
    import train

    place = str(Path(train.__file__).parent)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script), place]
    options = ["train", "--preset", "demo", "--data", str(recipe.data), "--output", str(tmp_path / "out"), *STEPS, "--guarded"]
    done = recipe.python(*launcher, *options)
    assert done.returncode == 0, done.stderr
    assert "step 2  evaluation failed, the training goes on: rank 1: KeyError: 'a label'" in done.stdout
    lines = metrics(tmp_path / "out")
    assert steps(lines, "eval_loss") == {2: None, 4: None} and lines[-1]["eval_loss"] is None
    assert steps(lines, "loss") == steps(metrics(plain[0]), "loss")
    assert_same(state(tmp_path / "out", 4)["model"], state(plain[0], 4)["model"])
