"""The real library, offline: what is in the files that `wandb sync` would upload."""

from __future__ import annotations

import math
import socket

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.integration, pytest.mark.timeout(900)]

SCRIPT = "wandb_runs.py"
# As where nobody has logged in.
NOBODY = {"WANDB_API_KEY": None, "WANDB_MODE": None, "WANDB_SILENT": "true"}


def test_the_training_s_own_rows_stay_as_they_are(beside):
    done = beside(SCRIPT, "beside_a_training", **NOBODY)
    (run,) = done.found.values()
    assert [(row["_step"], row["loss"]) for row in run["rows"]] == [(step, pytest.approx(1 / step)) for step in range(100, 105)]
    # The newest snapshot at each step stands in the training's row.
    assert [row.get("unhang/restarts") for row in run["rows"]] == [2, 2, 2, 2, None]
    assert [row.get("unhang/step") for row in run["rows"]] == [100, 101, 102, 103, None]
    assert run["metrics"] == {"unhang/step": "", "unhang/*": "unhang/step"}
    row = run["rows"][0]
    assert math.isnan(row["unhang/calls/barrier/world/latency_p50_s"]) and math.isinf(row["unhang/calls/barrier/world/latency_p95_s"])
    assert "WARN" not in done.err.upper() and "logged:" not in done.err


def test_a_training_that_logs_no_more_shows_the_newest_numbers_in_the_summary(beside):
    done = beside(SCRIPT, "during_a_hang", **NOBODY)
    assert "summary 7" in done.err
    (run,) = done.found.values()
    assert run["rows"][0]["loss"] == 1.0 and "unhang/restarts" not in run["rows"][0]


def test_a_run_that_was_given_is_taken(beside):
    (run,) = beside(SCRIPT, "given", **NOBODY).found.values()
    assert run["project"] == "given" and [row["unhang/restarts"] for row in run["rows"]] == [3]


def test_without_a_key_it_goes_offline_says_so_once_and_leaves_the_training_its_own_run(beside):
    # On a terminal, where wandb would ask.
    done = beside(SCRIPT, "of_its_own", terminal=True, **NOBODY)
    runs = {run["project"]: run for run in done.found.values()}
    assert set(runs) == {"unhang", "theirs"}
    assert [(row["unhang/step"], row["unhang/restarts"]) for row in runs["unhang"]["rows"]] == [(1, 1), (2, 2)]
    assert [(row["loss"], row["unhang/restarts"]) for row in runs["theirs"]["rows"]] == [(1.0, 3)]
    assert done.err.count("has found no key") == 1 and "wandb sync " in done.err


def test_a_monitor_ends_the_run_that_it_has_begun(beside):
    (run,) = beside(SCRIPT, "monitored", **NOBODY).found.values()
    assert [row["unhang/step"] for row in run["rows"]] == [77] and run["summary"]["_wandb/runtime"] >= 0


def test_a_server_that_does_not_answer_takes_the_sink_and_not_the_training(beside):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        base_url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        done = beside(SCRIPT, "unreachable", **{**NOBODY, "WANDB_API_KEY": "0123456789" * 4, "WANDB_BASE_URL": base_url})
    assert "the monitor's WandB is switched off, the training goes on: CommError" in done.err
    assert "0123456789" not in done.err
