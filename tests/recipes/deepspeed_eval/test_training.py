"""The recipe as its README starts it: whatever happens in an evaluation, the final loss is the same."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.launch.conftest import Run, launcher  # noqa: F401
from tests.launchers.conftest import training  # noqa: F401
from tests.launchers.environments import ROOT

pytestmark = [pytest.mark.torch, pytest.mark.integration, pytest.mark.timeout(1000)]

REPOSITORY = Path(__file__).parents[3]
SCRIPT = REPOSITORY / "recipes" / "deepspeed_eval" / "train.py"


@pytest.fixture
def train(training, tmp_path) -> Callable[..., tuple[Run, list[dict[str, Any]]]]:  # noqa: F811
    """The run, and what it has written about its steps and evaluations."""
    if shutil.which("g++") is None:
        assert not os.environ.get("CI"), "CI tests DeepSpeed, which compiles its operator for shared memory: scripts/apt installs g++"
        pytest.skip("DeepSpeed compiles its operator for shared memory: g++ is needed (scripts/apt installs it)")
    # The launchers' environments are made without unhang, which this training imports.
    more = {"DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(ROOT / "deepspeed-extensions"), "PYTHONPATH": str(REPOSITORY / "src")}
    made = training("deepspeed", "deepspeed_zero.py", **more)

    def of(fault: str, *options: str) -> tuple[Run, list[dict[str, Any]]]:
        output = tmp_path / (fault.partition("@")[0] or "none")
        words = ["--output", str(output), *(["--fault", fault] if fault else []), *options]
        run = made.run("torchrun", "--standalone", "--nproc-per-node", "2", str(SCRIPT), *words)
        assert run.exitcode == 0, run.err[-4000:]
        return run, [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]

    of.made = made  # type: ignore[attr-defined]
    return of


def evaluations(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last of each step: what a killed rank's partner says of the evaluation that broke off stays where it is."""
    last = {line["step"]: line for line in lines if "eval/evaluation_failed" in line}
    return [{name: value for name, value in last[step].items() if name != "step"} for step in sorted(last)]


def test_the_training_ends_with_the_same_loss(train):
    _, without = train("", "--eval-every", "0")
    _, fine = train("")
    ended = without[-1]
    assert ended["finished"] and fine[-1] == ended
    whole = evaluations(fine)
    assert [one["eval/evaluation_failed"] for one in whole] == [0.0] * 3
    assert whole[-1]["eval/clean/accuracy"] > whole[-1]["eval/noisy/accuracy"] > 0.5

    _, raised = train("exception@20:1")
    assert raised[-1] == ended
    first, *rest = evaluations(raised)
    assert (first["eval/clean/loss"], first["eval/noisy/loss"], first["eval/evaluation_failed"]) == (None, whole[0]["eval/noisy/loss"], 1.0)
    assert rest == whole[1:]

    _, short = train("memory@20:1")
    assert short[-1] == ended
    assert evaluations(short)[0] == pytest.approx({**whole[0], "eval/attempts": 2.0})

    run, late = train("sleep@20:1", "--deadline", "6")
    assert late[-1] == ended and run.outcome["attempts"] == 1
    assert [one["eval/evaluation_failed"] for one in evaluations(late)] == [1.0, 0.0, 0.0]


def test_a_rank_that_is_killed_is_named_and_the_training_starts_again(train):
    _, fine = train("")
    run, killed = train("kill@40:1", "--deadline", "60")
    assert run.outcome["attempts"] == 2
    assert (run.primary["cause"], run.primary["ranks"]) == ("host-oom-or-killed", [1])
    assert killed[-1] == fine[-1]
    assert evaluations(killed) == evaluations(fine)


def test_a_signal_leaves_a_checkpoint_and_the_newest_two_stay(train, tmp_path):
    words = ("--output", str(tmp_path), "--steps", "100000", "--eval-every", "10")
    launched = train.made.launcher
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(train.made.run, "torchrun", "--standalone", "--nproc-per-node", "2", str(SCRIPT), *words)
        launched.until(lambda: any('"step": 41,' in path.read_text() for path in tmp_path.glob("metrics.jsonl")), 600)
        launched.processes[-1].send_signal(signal.SIGTERM)
        run = running.result()
    assert run.exitcode == 128 + signal.SIGTERM, run.err[-4000:]
    last = max(json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines())
    kept = sorted(path.name for path in (tmp_path / "checkpoints").glob("step-*"))
    assert len(kept) == 2 and kept[-1] == f"step-{last:06}" and f"stopped by SIGTERM after step {last}" in run.log("rank0.out")
