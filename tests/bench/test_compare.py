"""`unhang bench compare` of real trainings of two ranks on Gloo."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid

import pytest
from tests.launch.conftest import NO_COMPILER
from tests.leftovers import end_all, living

pytestmark = [pytest.mark.torch, pytest.mark.integration, pytest.mark.timeout(900)]

TRAIN = """
import argparse, os, sys, time
import torch, torch.distributed as dist
torch.set_num_threads(1)
parser = argparse.ArgumentParser()
parser.add_argument("--pause", type=float, default=0.01)
parser.add_argument("--batch-size", type=int, default=1)
asked = parser.parse_args()
pause, batch = asked.pause, asked.batch_size
{before}
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100_000):
    optimizer.zero_grad()
    model(torch.ones(batch, 4)).sum().backward()
    optimizer.step()
    time.sleep(pause if step > 3 else 0.3)
"""


class Bench:
    def __init__(self, folder):
        self.folder = folder
        self.began = time.monotonic()
        self.mark = f"UNHANG_TEST_MARK={uuid.uuid4().hex}"

    def script(self, before=""):
        (self.folder / "train.py").write_text("import sys\nimport torch\n" + NO_COMPILER + TRAIN.replace("{before}", before))

    def start(self, *words, verb="compare"):
        key, _, value = self.mark.partition("=")
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("UNHANG_", "RANK", "WORLD_SIZE", "MASTER_", "LC_", "LANG", "TORCH_"))}
        argv = [sys.executable, "-m", "unhang", "bench", verb, *words]
        return subprocess.Popen(argv, cwd=self.folder, env={**environ, key: value}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *words, code=0, verb="compare"):
        out, err = (process := self.start(*words, verb=verb)).communicate(timeout=800)
        assert process.returncode == code, err[-3000:]
        assert not living(self.mark)
        return out, err

    def interrupted(self, *words, verb="compare"):
        """By Ctrl-C after the first run that counts: that run, and the directory that goes on."""
        process = self.start(*words, verb=verb)
        deadline = time.monotonic() + 300
        while not self.runs() and time.monotonic() < deadline:
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=100)
        assert process.returncode == 130 and f"unhang bench {verb} --resume runs/bench-train-" in out + err
        assert not living(self.mark)
        (before,) = self.runs()
        (path,) = self.folder.glob("runs/bench-train-*")
        return before, path

    def elapsed_s(self):
        return time.monotonic() - self.began

    def runs(self):
        return [json.loads(line) for path in self.folder.glob("runs/*/runs.jsonl") for line in path.read_text().splitlines()]


@pytest.fixture
def bench(tmp_path):
    found = Bench(tmp_path)
    yield found
    end_all(found.mark)


def test_a_real_difference_is_found_also_after_an_interruption(bench):
    bench.script()
    before, path = bench.interrupted("--arg", "pause=0.02,0.2", "--steps", "24", "--budget", "10m", "-n", "2", "train.py")
    out, err = bench.run("--resume", str(path), "--json", "--markdown", "result.md")
    told = json.loads(out)
    (found,) = told["comparisons"]
    assert (told["stopped"], found["outcome"], told["unit"], told["margin"]) == ("decided", "slower", "step", 0.01) and found["low"] > 1
    assert bench.runs()[0] == before and len(bench.runs()) == 2 * told["rounds"]
    # As a clock outside of it: a step sleeps that long.
    assert 0.2 <= told["arms"][1]["step_s"] < 0.3 and all(run["steps"]["dropped"] >= 3 for run in bench.runs())
    assert [d["name"] for d in told["differences"]] == ["arguments"]
    assert told["says"][0] in (bench.folder / "result.md").read_text()
    assert err.count("unhang: round ") == told["rounds"]


@pytest.mark.parametrize(
    ("name", "arms"),
    [("TORCH_DISTRIBUTED_DEBUG", ("detail=off", "detail=on")), ("READ_AHEAD", ("env.READ_AHEAD=1", "env.READ_AHEAD=2"))],
)
def test_a_script_that_overrides_the_variable_is_refused(bench, name, arms):
    bench.script(f'os.environ["{name}"] = "OFF"')
    out, _ = bench.run("--a", arms[0], "--b", arms[1], "--steps", "24", "-n", "2", "--json", "train.py", code=2)
    told = json.loads(out)
    assert told["error"] == f"arms a and b do not differ in anything effective: {name}=OFF in both"
    assert told["cause"] == f"the script sets {name} itself, whatever it was started with" and told["error_zh"]
    assert len(bench.runs()) == 2


def test_what_else_differs_is_reported_and_the_budget_holds(bench):
    # A variable of the script's own.
    bench.script('os.environ["OMP_MAX_ACTIVE_LEVELS"] = os.environ.get("READ_AHEAD", "1")')
    words = ["--a", "none", "--b", "env.READ_AHEAD=2", "--steps", "24", "--budget", "1m", "-n", "2", "train.py"]
    # A machine that others keep busy may need longer for a round.
    while "differs from" not in (out := bench.run(*words, code=4)[0]):
        assert "arm  setting" in out and bench.elapsed_s() < 600
        (path,) = bench.folder.glob("runs/bench-train-*")
        words = ["--resume", str(path)]
    assert "b differs from a in OMP_MAX_ACTIVE_LEVELS (1; in b 2), READ_AHEAD (not set; in b 2)" in out
    assert {run["arm"]: run["in_force"].get("READ_AHEAD") for run in bench.runs()} == {"a": None, "b": "2"}
    assert "note: the arms also differ in OMP_MAX_ACTIVE_LEVELS, which was not requested" in out and "the budget of 60 s is spent" in out


def test_the_budget_also_ends_a_training_that_takes_no_step(bench):
    bench.script("time.sleep(1000)")
    out, _ = bench.run("--arg", "pause=0.01,0.2", "--budget", "10s", "-n", "2", "--json", "train.py", code=4)
    told = json.loads(out)
    assert (told["stopped"], told["rounds"]) == ("budget", 0) and told["elapsed_s"] >= 10


def test_a_training_that_fails_is_reported(bench):
    bench.script('sys.exit("no data") if pause > 0.1 else None')
    out, _ = bench.run("--arg", "pause=0.01,0.2", "--steps", "24", "-n", "2", "train.py", code=1)
    said = " ".join(out.split())
    assert "the training failed in arm b (pause=0.2): rank " in said and "; it said: no data; unhang why /" in said and "-b says more" in said


def test_priorities_find_what_gains_most(bench):
    bench.script()
    (bench.folder / "unhang.toml").write_text('[arguments]\nbatch = "--batch-size"\n')
    # A step takes the same time, however many samples it has.
    words = ("--only", "batch,workers,ib", "--steps", "24", "--budget", "12m", "-n", "1", "train.py", "--batch-size", "4", "--pause", "0.05")
    before, path = bench.interrupted(*words, verb="priorities")
    out, err = bench.run("--resume", str(path), "--json", verb="priorities")
    told = json.loads(out)
    best = told["ranking"][0]
    assert (told["stopped"], told["unit"], best["setting"], best["outcome"], best["place"]) == ("decided", "sample", "batch=16", "faster", 1), err
    # Four times the samples in the time of one step.
    assert best["low"] < best["gain"] < best["high"] and 2 < best["gain"] < 5
    settings = {arm["name"]: arm["setting"] for arm in told["arms"]}
    assert {settings[arm] for arm, why in told["out"].items() if why == "equal"} == {f"loader-workers={n}" for n in (0, 2, 4)}
    assert told["left_out"].keys() == {"ib"}
    runs = bench.runs()
    assert runs[0] == before and len(runs) == len({(run["round"], run["arm"]) for run in runs})
    assert sum(settings[run["arm"]].startswith("loader-workers") for run in runs) == 3


def test_ready_made_arms_that_change_nothing_are_refused(bench):
    bench.script()
    out, _ = bench.run("workers", "--steps", "24", "-n", "1", "--json", "train.py", code=2)
    assert json.loads(out)["error"].startswith("arms a and b do not differ in anything effective: loader num_workers not applied in both")
    assert len(bench.runs()) == 4
