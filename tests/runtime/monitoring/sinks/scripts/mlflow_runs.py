"""What MLflow's store holds when a training and a sink log side by side: `mlflow_runs.py CASE STORE`. Prints each run's metrics as JSON."""

from __future__ import annotations

import json
import logging
import math
import sys
import threading
from typing import Any

import mlflow

import unhang
from unhang.runtime.monitoring.counters import OfCalls, Snapshot

NOT_FINITE = OfCalls(
    group="ranks 0,2", collective="barrier", count=1, latency_p50_s=float("nan"), latency_p95_s=float("inf"), latency_p99_s=0.1, busbw_p50_gbps=None
)
# Each history is a question of its own.
_READ = 50


def snapshot(at_s: float, **more: Any) -> Snapshot:
    return Snapshot(**{"time_s": 1.8e9 + at_s, "world_size": 1, "heard_from": 1, "restarts": 0, "calls": [NOT_FINITE], **more})


def elsewhere(fn: Any, *args: Any) -> None:
    """In a thread, as the monitor does."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            fn(*args)
        except BaseException as e:
            raised.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def beside_a_training() -> None:
    """The run begins behind the sink, and ends before it."""
    sink = unhang.MLflow()
    with mlflow.start_run(run_name="theirs"):
        mlflow.log_metric("loss", 0.5, step=100)
        elsewhere(sink.write, snapshot(0, step=100, restarts=1))
        mlflow.log_metric("loss", 0.4, step=110)
        elsewhere(sink.write, snapshot(10, step=110, restarts=2))
    elsewhere(sink.write, snapshot(20, step=120, restarts=3))
    elsewhere(sink.close)


def of_its_own() -> None:
    sink = unhang.MLflow(experiment="seen by unhang")
    for at_s in (0, 10):
        elsewhere(sink.write, snapshot(at_s, restarts=at_s))
    elsewhere(sink.close)


def given() -> None:
    client = mlflow.MlflowClient()
    run_id = client.create_run("0", run_name="theirs").info.run_id
    with mlflow.start_run(run_name="another"):
        elsewhere(unhang.MLflow(run_id).write, snapshot(0, restarts=4))


def many_groups() -> None:
    """More numbers than a server takes at once."""
    calls = [OfCalls(**{**vars(NOT_FINITE), "group": f"ranks {i},{i + 2}", "latency_p50_s": 0.1, "latency_p95_s": 0.1}) for i in range(300)]
    sizes = []
    log_batch = mlflow.MlflowClient.log_batch

    def logged(self: Any, run_id: str, metrics: Any) -> None:
        sizes.append(len(metrics))
        log_batch(self, run_id, metrics=metrics)

    mlflow.MlflowClient.log_batch = logged
    sink = unhang.MLflow()
    elsewhere(sink.write, snapshot(0, calls=calls))
    elsewhere(sink.close)
    # Local stores take any number.
    assert sizes == [1000, 209], sizes


def held() -> dict[str, Any]:
    client = mlflow.MlflowClient()
    runs = client.search_runs([one.experiment_id for one in client.search_experiments()])
    return {
        run.info.run_name: {
            "status": run.info.status,
            "experiment": client.get_experiment(run.info.experiment_id).name,
            "names": len(run.data.metrics),
            "metrics": {
                name: [
                    [one.step, "nan" if math.isnan(one.value) else one.value, one.timestamp]
                    for one in client.get_metric_history(run.info.run_id, name)
                ]
                for name in list(run.data.metrics)[:_READ]
            },
        }
        for run in runs
    }


if __name__ == "__main__":
    logging.basicConfig(format="logged: %(message)s")
    mlflow.set_tracking_uri(sys.argv[2])
    globals()[sys.argv[1]]()
    print(json.dumps(held()))
