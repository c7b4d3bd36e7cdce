"""MLflow: metrics of the training's active run, or of one of our own."""

from __future__ import annotations

import math
import os
import sys
from itertools import islice
from typing import Any

from unhang.runtime.monitoring.counters import Snapshot
from unhang.runtime.monitoring.sinks.measures import axis, flat, needed

# A server takes no more at once.
_AT_ONCE = 1000


class MLflow:
    """`run_id`: the training's; without one that which is active when a snapshot comes (or MLFLOW_RUN_ID), else a run of its own in `experiment`.

    Steps are the training's where it tells them (`monitor.step`), else seconds since the first snapshot. Raises MissingExtra.
    """

    def __init__(self, run_id: str | None = None, *, tracking_uri: str | None = None, experiment: str = "unhang") -> None:
        needed("MLflow", "mlflow", "mlflow")
        self._given, self._uri, self._experiment = run_id, tracking_uri, experiment
        self.where = run_id
        # An active run belongs to the thread that has started it; sinks are called in another one.
        self._here = _active()
        self._client: Any = None
        self._run_id: str | None = None
        self._own = False
        self._began_s = 0.0

    def write(self, snapshot: Snapshot) -> None:
        from mlflow.entities import Metric

        if self._client is None:
            from mlflow import MlflowClient

            self._client, self._began_s = MlflowClient(tracking_uri=self._uri), snapshot.time_s
        run_id = self._run()
        step, time_ms = axis(snapshot, self._began_s), round(snapshot.time_s * 1000)
        # Not-a-number is kept as such; the infinite becomes the largest finite number in SQL stores, and is left out.
        values = iter([Metric(name, value, time_ms, step) for name, value in flat(snapshot).items() if not math.isinf(value)])
        while some := list(islice(values, _AT_ONCE)):
            self._client.log_batch(run_id, metrics=some)

    def close(self) -> None:
        if self._own:
            self._client.set_terminated(self._run_id)

    def _run(self) -> str:
        """The same from the first snapshot on: a run takes metrics after its end, too."""
        if self._run_id is None:
            self._run_id = self._given or _active() or self._here or os.environ.get("MLFLOW_RUN_ID")
        if self._run_id is None:
            found = self._client.get_experiment_by_name(self._experiment)
            experiment = found.experiment_id if found else self._client.create_experiment(self._experiment)
            self._run_id, self._own = self._client.create_run(experiment, tags={"mlflow.runName": "unhang"}).info.run_id, True
        return str(self._run_id)


def _active() -> str | None:
    """Of any thread, where this MLflow can tell. What nobody has imported has no run."""
    fluent: Any = sys.modules.get("mlflow.tracking.fluent")
    if fluent is None:
        return None
    run = fluent.active_run() or (fluent._get_latest_active_run() if hasattr(fluent, "_get_latest_active_run") else None)
    return str(run.info.run_id) if run is not None else None
