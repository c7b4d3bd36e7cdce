"""The whole training with real ranks: what it leaves, and that a killed one goes on as if nothing had happened.

Three ranks, because with two every order of summation gives the same bits.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from unhang.facts.host import Host
from unhang.facts.processes import descendants

pytestmark = [pytest.mark.torch, pytest.mark.integration]

RANKS = 3
STEPS = ("--is_finetune=True", "--max-steps", "7", "--save-every", "2", "--eval-every", "3", "--batch-size", "2", "--warmup", "2")


def metrics(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def steps(lines: list[dict[str, Any]], name: str) -> dict[int, float]:
    """The last value for each step."""
    return {line["step"]: line[name] for line in lines if name in line and "final" not in line}


def state(output: Path, step: int) -> dict[str, Any]:
    return torch.load(output / "checkpoints" / f"step-{step:08d}" / "state.pt", weights_only=True)


def assert_same(a: Any, b: Any, where: str = "state") -> None:
    """Bit for bit, through dicts and lists."""
    assert type(a) is type(b), where
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_same(a[key], b[key], f"{where}[{key!r}]")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{where}[{i}]")
    else:
        assert a == b, where


@pytest.fixture(scope="module")
def undisturbed(recipe: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    done = recipe.train(output, *STEPS, ranks=RANKS)
    assert done.returncode == 0, done.stderr
    return output, done.stdout


@pytest.fixture(scope="module")
def killed(recipe: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a training whose rank 1 was killed within step 6, after the checkpoint of step 4."""
    output = tmp_path_factory.mktemp("killed") / "out"
    done = recipe.train(output, *STEPS, ranks=RANKS, UNHANG_FAULT="sigkill@train.step:rank=1,step=6")
    assert done.returncode == 1
    assert "Signal 9 (SIGKILL)" in done.stderr
    assert sorted(path.name for path in (output / "checkpoints").glob("step-*")) == ["step-00000002", "step-00000004"]
    return output


def test_the_banner_says_what_is_about_to_happen(undisturbed: tuple[Path, str]) -> None:
    _, out = undisturbed
    for said in (
        "3 on cpu (gloo), fp32, 1 threads each",
        "frozen (embedding and encoder)",
        "fresh weights",
        "GiB free of",
        "400 rows, 24 for evaluation",
    ):
        assert said in out


def test_metrics_have_every_step_and_the_end(undisturbed: tuple[Path, str]) -> None:
    output, out = undisturbed
    lines = metrics(output)
    loss = steps(lines, "loss")
    assert list(loss) == [1, 2, 3, 4, 5, 6, 7]
    assert list(steps(lines, "eval_loss")) == [3, 6, 7]
    assert loss[7] < loss[1]
    final = lines[-1]
    assert (final["final"], final["step"], final["loss"], final["eval_loss"]) == (True, 7, loss[7], steps(lines, "eval_loss")[7])
    assert f"final loss {final['loss']!r}, evaluation loss {final['eval_loss']!r} after step 7" in out


def test_the_learning_rate_goes_up_and_then_down(undisturbed: tuple[Path, str]) -> None:
    rates = steps(metrics(undisturbed[0]), "lr")
    assert [rate / 2e-3 for rate in rates.values()] == pytest.approx([1 / 3, 2 / 3, 1, 4 / 5, 3 / 5, 2 / 5, 1 / 5])


def test_only_the_newest_checkpoints_stay(undisturbed: tuple[Path, str]) -> None:
    left = sorted(path.name for path in (undisturbed[0] / "checkpoints").iterdir())
    assert left == ["step-00000004", "step-00000006", "step-00000007"]


def test_finetuning_changes_the_decoder_and_nothing_else(undisturbed: tuple[Path, str], data: Path) -> None:
    import model
    from prepare import read_meta

    torch.manual_seed(0)
    fresh = model.build("tiny", vocab_size=read_meta(data)["vocab_size"], dropout=0.1, pretrained=None).state_dict()
    trained = state(undisturbed[0], 7)["model"]
    changed = {name for name, tensor in fresh.items() if not torch.equal(tensor, trained[name])}
    assert changed == {name for name in fresh if name.startswith("decoder.") and "embed_tokens" not in name}


def test_the_model_can_be_loaded_again(undisturbed: tuple[Path, str]) -> None:
    import model

    loaded = model.build("tiny", vocab_size=1, dropout=0.1, pretrained=undisturbed[0] / "model").state_dict()
    assert_same(dict(loaded), dict(state(undisturbed[0], 7)["model"]))


def test_a_killed_training_goes_on_exactly(undisturbed: tuple[Path, str], killed: Path, recipe: Any, tmp_path: Path) -> None:
    output = shutil.copytree(killed, tmp_path / "out")
    # --fresh was in the command of the first attempt; a restart must not start over.
    done = recipe.train(output, *STEPS, "--fresh", ranks=RANKS, UNHANG_ATTEMPT="1", UNHANG_FAULT="sigkill@train.step:rank=1,step=6")
    assert done.returncode == 0, done.stderr
    assert f"checkpoint {output / 'checkpoints' / 'step-00000004'} (step 4)" in done.stdout
    assert_same(state(output, 7), state(undisturbed[0], 7))
    assert steps(metrics(output), "loss") == steps(metrics(undisturbed[0]), "loss")
    starts = [(line["step"], line["attempt"]) for line in metrics(output) if "start" in line]
    assert starts == [(0, None), (4, "1")]


@pytest.mark.parametrize(("number", "to_all"), [(signal.SIGTERM, False), (signal.SIGINT, True)])
def test_a_signal_leaves_a_checkpoint_to_go_on_from(
    undisturbed: tuple[Path, str], recipe: Any, tmp_path: Path, number: signal.Signals, to_all: bool
) -> None:
    # The ranks stand still for some seconds in step 5, in which the signal comes: to torchrun, which passes it on, or to all as by scancel.
    output = tmp_path / "out"
    with ThreadPoolExecutor(1) as pool:
        fault = {"UNHANG_FAULT": "burst@train.step:step=5,seconds=8"}
        running = pool.submit(recipe.train, output, *STEPS, "--log-every", "1", ranks=RANKS, **fault)
        while not running.done() and not any('"step": 4' in path.read_text() for path in output.glob("metrics.jsonl")):
            time.sleep(0.05)
        pid = recipe.processes[-1].pid
        for each in (*(descendants(Host(), (pid,))[pid] if to_all else ()), pid):
            os.kill(each, number)
        done = running.result()
    assert done.returncode == 1 and f"stopped by {number.name} after step" in done.stdout, done.stderr
    assert not (output / "model").exists() and len(list((output / "checkpoints").glob("step-*"))) <= 3
    assert recipe.train(output, *STEPS, ranks=RANKS).returncode == 0
    # An evaluation that was due when the signal came has no score.
    resumed, whole = ({**state(one, 7), "scores": None} for one in (output, undisturbed[0]))
    assert_same(resumed, whole)


def test_a_damaged_checkpoint_is_passed_over(undisturbed: tuple[Path, str], killed: Path, recipe: Any, tmp_path: Path) -> None:
    output = shutil.copytree(killed, tmp_path / "out")
    newest = output / "checkpoints" / "step-00000004" / "state.pt"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    done = recipe.train(output, *STEPS, ranks=RANKS)
    assert done.returncode == 0, done.stderr
    assert f"warning: checkpoint {newest.parent} is damaged (the checksum of state.pt does not match)" in done.stderr
    assert f"checkpoint {output / 'checkpoints' / 'step-00000002'} (step 2)" in done.stdout
    assert_same(state(output, 7), state(undisturbed[0], 7))
