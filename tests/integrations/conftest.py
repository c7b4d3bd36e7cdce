"""Trainings of each framework as two real ranks, with a fault in their first evaluation, and what must be true of all of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.launchers.environments import NotMade, environment, supported

import unhang

SCRIPTS = Path(__file__).parent / "scripts"
FAULTS = ("exception", "memory", "sleep")


@dataclass
class Ranks:
    """Runs a script of scripts/ by torchrun in the environment of a framework."""

    python: Path
    script: str
    tmp_path: Path

    def __call__(self, fault: str, *, size: int = 2, **env: str) -> list[dict[str, Any]]:
        """What each rank has left. `fault` is none (no evaluations), ok, or what rank 1 does."""
        left = self.tmp_path / f"{fault}{size}"
        left.mkdir()
        src = str(Path(unhang.__file__).parents[1])
        ours = {"FAULT": fault, "LEFT": str(left), "PYTHONPATH": src, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1"}
        command = [str(self.python), *(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)] if size > 1 else [])]
        with subprocess.Popen(
            [*command, str(SCRIPTS / self.script), str(left)],
            env={**os.environ, **ours, **env},
            cwd=left,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                said, _ = process.communicate(timeout=400)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 0, said[-4000:]
        return [json.loads((left / f"rank{rank}.json").read_text()) for rank in range(size)]


@pytest.fixture
def ranks(tmp_path: Path) -> Callable[[str, str], Ranks]:
    def of(name: str, script: str) -> Ranks:
        if not supported():
            pytest.skip("the lock files of the frameworks are of Python 3.11 and newer")
        try:
            return Ranks(environment(name) / "bin" / "python", script, tmp_path)
        except NotMade as e:
            raise pytest.fail.Exception(f"{e}\nto try again: python -m tests.launchers.environments {name}", pytrace=False) from None

    return of


def trained_on(run: Ranks, *, prefix: str) -> dict[str, list[dict[str, Any]]]:
    """Whatever happens in the first of three evaluations, the training ends as if there had been none. Returns what rank 0 evaluated, by fault."""
    without = run("none")
    assert [one["evaluations"] for one in without] == [[], []]
    found = {}
    for fault in ("ok", *FAULTS):
        ended = run(fault)
        for rank, one in enumerate(ended):
            assert (one["digest"], one["random"], one["training"]) == (without[rank]["digest"], without[rank]["random"], True), (fault, rank)
        # Alike on all ranks, on the late one too.
        assert ended[0]["evaluations"] == ended[1]["evaluations"], fault
        assert len(ended[0]["evaluations"]) == 3
        found[fault] = ended[0]["evaluations"]
    failed, attempts = f"{prefix}evaluation_failed", f"{prefix}attempts"
    assert [one[failed] for one in found["ok"]] == [0.0, 0.0, 0.0]
    # With half the batch size it fits, and finds the same.
    assert [(one[failed], one[attempts]) for one in found["memory"]] == [(0.0, 2.0)] * 3
    for one, whole in zip(found["memory"], found["ok"], strict=True):
        assert {name: value for name, value in one.items() if name != attempts} == pytest.approx(
            {name: value for name, value in whole.items() if name != attempts}
        )
    for fault in ("exception", "sleep"):
        assert [one[failed] for one in found[fault]] == [1.0, 0.0, 0.0], fault
        assert found[fault][1:] == found["ok"][1:], fault
        # What failed is not-a-number.
        assert {value for name, value in found[fault][0].items() if name.startswith((f"{prefix}a_", f"{prefix}a/"))} == {None}, fault
    return found
