"""Long runs, really started. `make test-integration` runs these, and those of tests/launchers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.integration, pytest.mark.timeout(3600)]


def test_ten_undisturbed_runs_raise_no_alarm(launcher):
    body = "dist.init_process_group('gloo')\ntrain(60, step_s=0.02)\ndist.destroy_process_group()\n"
    for _ in range(10):
        run = launcher.train(body)
        assert (run.exitcode, run.outcome["incidents"], run.outcome["attempts"]) == (0, 0, 1), run.err[-3000:]


@pytest.mark.parametrize(("options", "scenarios"), [(["--quick"], 3), ([], 8)], ids=["quick", "whole"])
def test_the_demo(tmp_path, options, scenarios):
    """All faults detected, right cause, rank and line, training finished, loss equal; and `why` says the same again."""
    words = [sys.executable, "-m", "unhang", "demo", "--json", "--dir", str(tmp_path / "demo"), *options]
    done = subprocess.run(words, capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    rows = json.loads(done.stdout)
    assert len(rows) == scenarios
    for row in rows:
        again = subprocess.run(
            [sys.executable, "-m", "unhang", "why", "--json", row["run_dir"]], capture_output=True, text=True, check=False, timeout=300
        )
        verdict = json.loads(again.stdout)
        primary = verdict["primary"]
        # All of them went on, and finished.
        assert again.returncode == 0 and verdict["recovered"] == bool(row["cause"])
        assert (primary and primary["cause"]) == row["cause"]
        assert Path(row["run_dir"], "run.json").is_file()
