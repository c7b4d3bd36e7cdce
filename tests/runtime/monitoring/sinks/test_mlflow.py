"""The real library, with its file store and its SQLite store."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.integration, pytest.mark.timeout(900)]

SCRIPT = "mlflow_runs.py"
BEGAN_MS = 1_800_000_000_000


@pytest.fixture(params=["file", "sqlite"])
def held(request, beside, tmp_path):
    def of(case):
        store = f"file://{tmp_path}/mlruns" if request.param == "file" else f"sqlite:///{tmp_path}/mlflow.db"
        return beside(SCRIPT, case, store, MLFLOW_ALLOW_FILE_STORE="true", MLFLOW_RUN_ID=None, MLFLOW_TRACKING_URI=None).found

    return of


def test_numbers_stand_in_the_training_s_run_at_its_steps(held):
    (run,) = held("beside_a_training").values()
    assert [one[:2] for one in run["metrics"]["loss"]] == [[100, 0.5], [110, 0.4]]
    restarts = run["metrics"]["unhang/restarts"]
    assert restarts == [[100, 1.0, BEGAN_MS], [110, 2.0, BEGAN_MS + 10_000], [120, 3.0, BEGAN_MS + 20_000]]
    of = "unhang/calls/barrier/ranks_0_2"
    assert run["metrics"][f"{of}/latency_p99_s"][0][1] == 0.1
    # Not-a-number is kept; a database would make a number of the infinite.
    assert run["metrics"][f"{of}/latency_p50_s"][0][1] == "nan" and f"{of}/latency_p95_s" not in run["metrics"]
    assert run["status"] == "FINISHED"


def test_where_the_training_has_no_run_there_is_one_of_its_own(held):
    (run,) = held("of_its_own").values()
    assert (run["experiment"], run["status"]) == ("seen by unhang", "FINISHED")
    assert [one[:2] for one in run["metrics"]["unhang/restarts"]] == [[0, 0.0], [10, 10.0]]


def test_a_run_that_was_given_is_taken_and_not_ended(held):
    runs = held("given")
    assert runs["theirs"]["metrics"]["unhang/restarts"][0][1] == 4 and runs["theirs"]["status"] == "RUNNING"
    assert runs["another"]["metrics"] == {}


def test_more_numbers_than_a_server_takes_at_once(held):
    (run,) = held("many_groups").values()
    assert run["names"] == 1200 + 9
