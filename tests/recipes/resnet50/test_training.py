"""The recipe as its README starts it, smaller: what it learns and measures, and that it comes to the same end whatever happens to it."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.launch.conftest import Launcher, Run
from tests.leftovers import end_all

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="the recipe's models are those of transformers")

pytestmark = [pytest.mark.torch, pytest.mark.integration, pytest.mark.timeout(900)]

RECIPE = Path(__file__).parents[3] / "recipes" / "resnet50"
CLASSES, BATCH, STEPS = 4, 8, 40
MODEL = ("--depth", "18", "--width", "8", "--image-size", "32", "--batch", str(BATCH), "--optimizer", "adamw", "--lr", "0.003", "--log-every", "1")
SYNTHETIC = ("--classes", str(CLASSES), "--samples", "480", "--workers", "1")
SMALL = (*MODEL, *SYNTHETIC, "--warmup", "4", "--iterations", str(STEPS - 4), "--save-every", "10", "--eval-every", "20")
# Every order of summation of two numbers gives the same bits.
RANKS = 3


class Training(Launcher):
    def train(self, output: Path, *options: str, ranks: int = RANKS, **env: str) -> Run:  # type: ignore[override]
        run = self.run("-n", str(ranks), str(RECIPE / "train.py"), "--output", str(output), *options, env=env, timeout_s=300)
        assert run.exitcode == 0, run.err[-4000:]
        return run


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    training = Training(tmp_path_factory.mktemp("resnet50"))
    yield training
    end_all(training.mark)


@pytest.fixture(scope="module")
def undisturbed(training: Training) -> tuple[Path, dict[str, Any]]:
    """What it left, and what it said at the end."""
    output = training.tmp_path / "undisturbed"
    return output, json.loads(training.train(output, *SMALL).log("rank0.out").splitlines()[-1])


def metrics(output: Path, name: str) -> dict[int, float]:
    """The last value of each step."""
    lines = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line[name] for line in lines if name in line}


def assert_same_weights(a: Path, b: Path, *, but: str = "\0") -> None:
    """And moments, bit for bit; those with `but` in their names are left out."""
    found = [torch.load(output / f"step-{STEPS:08d}.pt", weights_only=True) for output in (a, b)]
    weights = [{name: value for name, value in one["model"].items() if but not in name} for one in found]
    torch.testing.assert_close(*([mine, one["optimizer"]["state"]] for mine, one in zip(weights, found, strict=True)), rtol=0, atol=0)


def alone(*options: str, script: Path = RECIPE / "train.py", **env: str) -> subprocess.CompletedProcess[str]:
    """Without a launcher."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("UNHANG_", "RANK", "WORLD_SIZE", "MASTER_"))}
    environ |= {"OMP_NUM_THREADS": "1", **env}
    return subprocess.run([sys.executable, str(script), *options], env=environ, capture_output=True, text=True, timeout=300)


def test_it_learns_and_says_how_fast(undisturbed):
    output, said = undisturbed
    assert said["chance_loss"] == pytest.approx(math.log(CLASSES))
    assert said["eval_loss"] < said["chance_loss"] / 2 and said["eval_accuracy"] > 0.8
    assert list(metrics(output, "loss")) == list(range(1, STEPS + 1))
    assert list(metrics(output, "eval_loss")) == [20, 40]
    assert sorted(path.name for path in output.glob("step-*")) == ["step-00000030.pt", "step-00000040.pt"]

    assert (said["steps"], said["ranks"], said["backend"], said["device"]) == (STEPS - 4, RANKS, "gloo", "cpu")
    assert said["images_per_s"] == pytest.approx(BATCH * RANKS * 1000 / said["mean_ms"], rel=1e-3)
    assert said["images_per_s_per_rank"] == pytest.approx(said["images_per_s"] / RANKS, rel=1e-3)
    assert 0 < said["median_ms"] <= said["p95_ms"] and 0 < said["loader_wait_ms"] < said["mean_ms"]


def test_times_are_reduced_from_contiguous_memory(monkeypatch):
    """NCCL refuses any other, and Gloo reduces what lies between."""
    monkeypatch.syspath_prepend(str(RECIPE))
    import step_clock

    seen = []
    monkeypatch.setattr(step_clock.dist, "all_reduce", lambda tensor, op: seen.append((tuple(tensor.shape), tensor.is_contiguous())))
    monkeypatch.setattr(step_clock.dist, "get_world_size", lambda: 2)
    clock = step_clock.StepClock(torch.device("cpu"))
    for batch in range(5):
        assert clock.next(iter([batch])) == batch
        clock.end()
    clock.results(images=8, skip=2)
    assert seen == [((2, 3), True)]


@pytest.mark.parametrize(
    ("fault", "cause", "attempts", "tries"),
    [
        ("sigkill@train.step:rank=1,step=25", "host-oom-or-killed", 2, 1),
        ("stuck@train.step:rank=1,step=25", "process-stuck", 2, 1),
        ("raise@evaluate.batch:rank=1,step=20", None, 1, 2),
    ],
)
def test_whatever_happens_it_comes_to_the_same_weights(training, undisturbed, tmp_path, fault, cause, attempts, tries):
    run = training.train(tmp_path, *SMALL, UNHANG_FAULT=fault)
    assert run.outcome["attempts"] == attempts
    if cause is not None:
        assert (run.primary["cause"], run.primary["ranks"]) == (cause, [1])
        assert metrics(tmp_path, "eval_loss") == metrics(undisturbed[0], "eval_loss")
    assert metrics(tmp_path, "eval_attempts") == {20: tries, 40: 1}
    assert metrics(tmp_path, "loss") == metrics(undisturbed[0], "loss")
    assert_same_weights(tmp_path, undisturbed[0])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_a_checkpoint_to_go_on_from(training, undisturbed, tmp_path, number):
    # The ranks stand still for some seconds in step 25, in which the signal comes.
    words = ("--hang-after", "60", "-n", str(RANKS), str(RECIPE / "train.py"), "--output", str(tmp_path), *SMALL)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(training.run, *words, env={"UNHANG_FAULT": "burst@train.step:step=25,seconds=8"}, timeout_s=300)
        training.until(lambda: any('"step": 24' in path.read_text() for path in tmp_path.glob("metrics.jsonl")), 300)
        training.processes[-1].send_signal(number)
        run = running.result()
    last = int(max(path.stem for path in tmp_path.glob("step-*"))[-8:])
    assert 24 <= last <= 27 and f"stopped by {number.name} after step {last}" in run.log("rank0.out") and run.exitcode == 128 + number, run.err[
        -4000:
    ]
    training.train(tmp_path, *SMALL)
    # Running statistics were averaged over the ranks once more than otherwise.
    assert_same_weights(tmp_path, undisturbed[0], but="running_")


def test_fsdp2_trains_as_ddp_does_and_goes_on_from_either(training, undisturbed, tmp_path):
    sharded, mended, changed = tmp_path / "sharded", tmp_path / "mended", tmp_path / "changed"
    training.train(sharded, *SMALL, "--strategy", "fsdp2")
    for name in ("loss", "eval_loss"):
        assert metrics(sharded, name) == pytest.approx(metrics(undisturbed[0], name), rel=0.01)

    # The newest checkpoint is damaged.
    shutil.copytree(sharded, mended)
    newest = mended / f"step-{STEPS:08d}.pt"
    newest.write_bytes(newest.read_bytes()[:-1000])
    shutil.copytree(mended, changed)
    run = training.train(mended, *SMALL, "--strategy", "fsdp2")
    assert f"warning: {newest} cannot be read" in run.log("rank0.err") and "goes on after step 30\n" in run.log("rank0.out")
    assert_same_weights(mended, sharded)

    run = training.train(changed, *SMALL, "--bucket-mb", "1", "--lr", "0.002")
    assert "goes on after step 30, not exactly: lr was 0.003, is 0.002\n" in run.log("rank0.out")


def test_images_from_folders(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for part, count in (("train", 12), ("val", 5)):
        for name, colour in (("blue", (20, 40, 200)), ("red", (200, 40, 20))):
            (tmp_path / part / name).mkdir(parents=True)
            for number in range(count):
                image.new("RGB", (60 + number, 50), tuple(part + number for part in colour)).save(tmp_path / part / name / f"{number}.png")
    for workers in ("0", "2"):
        done = alone(
            *MODEL, "--data", str(tmp_path), "--iterations", "30", "--workers", workers, "--eval-every", "30", "--output", str(tmp_path / workers)
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1])["eval_accuracy"] == 1
    # Crops are drawn from the place in the order, not by whoever comes first.
    assert metrics(tmp_path / "0", "loss") == metrics(tmp_path / "2", "loss")


def test_it_never_sets_a_variable_of_a_library(tmp_path):
    script = tmp_path / "around.py"
    script.write_text(f"""
import os, runpy, sys
before = dict(os.environ)
sys.path.insert(0, {str(RECIPE)!r})
runpy.run_path({str(RECIPE / "train.py")!r}, run_name="__main__")
changed = {{name for name in before.keys() | os.environ.keys() if before.get(name) != os.environ.get(name)}}
print([name for name in changed if name.startswith(("NCCL_", "TORCH_NCCL_", "GLOO_"))], file=sys.stderr)
""")
    done = alone(*MODEL, *SYNTHETIC, "--iterations", "2", script=script, NCCL_SHM_DISABLE="1")
    assert done.returncode == 0 and done.stderr.splitlines()[-1] == "[]", done.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--strategy", "fsdp2", "--bucket-mb", "5"), "--bucket-mb is for DDP"),
        (("--data", "nowhere"), "nowhere/train has no images.\nExpected: nowhere/train/CLASS/FILE"),
        (("--samples", "7", "--batch", "8"), "7 images are fewer than one batch of 8 on each of 1 ranks."),
    ],
)
def test_what_cannot_be_is_refused(options, says):
    done = alone(*options)
    assert done.returncode in (1, 2) and says in done.stderr and "Traceback" not in done.stderr


def test_a_torch_without_fsdp2_is_refused(tmp_path):
    script = tmp_path / "older.py"
    script.write_text(f"""
import sys, torch.distributed.fsdp
sys.path.insert(0, {str(RECIPE)!r})
import train
build = train.build
def built(*words, **more):
    model = build(*words, **more)
    del torch.distributed.fsdp.fully_shard
    return model
train.build = built
train.main()
""")
    done = alone(*MODEL, *SYNTHETIC, "--strategy", "fsdp2", script=script)
    assert done.returncode == 1 and "--strategy fsdp2 needs torch 2.6 or newer" in done.stderr and "Traceback" not in done.stderr


def test_settings_reach_the_script_through_unhang_toml():
    words = ["--set", "batch=16", "--set", "loader-workers=2", "--set", "precision=bf16", "-n", "2", "train.py"]
    done = subprocess.run(
        [sys.executable, "-m", "unhang", "run", "--dry-run", "--json", *words], cwd=RECIPE, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["command"][-6:] == ["--batch", "16", "--workers", "2", "--amp", "bf16"]


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_full_size_on_gpus(training, tmp_path, strategy):
    gpus = torch.cuda.device_count()
    run = training.train(tmp_path, "--batch", "64", "--amp", "bf16", "--iterations", "20", "--strategy", strategy, "--eval-every", "25",
                         "--samples", "20000", ranks=gpus)  # fmt: skip
    said = json.loads(run.log("rank0.out").splitlines()[-1])
    assert (said["steps"], said["ranks"], said["backend"], said["model"]) == (20, gpus, "nccl", "resnet50")
    assert said["eval_attempts"] == 1 and math.isfinite(said["loss"]) and said["images_per_s_per_rank"] > 0
