"""unhang: distributed PyTorch training that starts, stays up, and explains itself.

The command is `unhang`; the map of the code:

    model, errors   types that cross rooms; exit codes
    facts           what is so on this host
    records         what a run left behind: run directory, incidents, stacks, flight-recorder dumps, logs
    knowledge       all that is known of each cause of failure, one file for one cause
    diagnosis       from records and knowledge to a verdict
    runtime         what runs inside a training's own processes
    launch          starting a training and supervising it from outside
    report          verdicts on a terminal, as Markdown, as JSON
    cli             one module for each verb
    testing         fault injection

Imports go from below to above in this list and never back. Importing unhang imports nothing else, least of all torch.

What a training script uses is found here by name, and imported when it is first used: all_reduce, all_gather, reduce_scatter, broadcast,
all_gather_object, reduce_metrics, barrier, agree, all_ok, deadline, adaptive, evaluate, evaluation and the Evaluation that they
find, sync_check, Monitor with its sinks JSONL, Prometheus, OpenTelemetry, TensorBoard, WandB, MLflow and Alerts, and the errors that they raise.
"""

from __future__ import annotations

# As type checkers know it; typing itself would be imported by every command.
TYPE_CHECKING = False

__version__ = "0.1.0"

_FOUND_IN = {
    **dict.fromkeys(("all_gather", "all_gather_object", "all_reduce", "broadcast", "reduce_scatter"), "unhang.runtime.collectives.collectives"),
    **dict.fromkeys(("Agreed", "agree", "all_ok", "barrier", "reduce_metrics"), "unhang.runtime.collectives.agreement"),
    **dict.fromkeys(("evaluate", "evaluation"), "unhang.runtime.evaluation.evaluation"),
    "Evaluation": "unhang.runtime.evaluation.results",
    "sync_check": "unhang.runtime.sync_check",
    "Alerts": "unhang.runtime.monitoring.sinks.alerts",
    "JSONL": "unhang.runtime.monitoring.sinks.jsonl",
    "MLflow": "unhang.runtime.monitoring.sinks.mlflow",
    "Monitor": "unhang.runtime.monitoring.monitor",
    "OpenTelemetry": "unhang.runtime.monitoring.sinks.opentelemetry",
    "Prometheus": "unhang.runtime.monitoring.sinks.prometheus",
    "TensorBoard": "unhang.runtime.monitoring.sinks.tensorboard",
    "WandB": "unhang.runtime.monitoring.sinks.wandb",
    **dict.fromkeys(("adaptive", "deadline"), "unhang.runtime.collectives.deadlines"),
    **dict.fromkeys(
        ("CollectiveError", "CollectiveMismatch", "CollectiveTimeout", "EvaluationFailed", "LatePeer", "OutOfSync", "PeerFailed", "StoreLost"),
        "unhang.errors",
    ),
}

if TYPE_CHECKING:
    from unhang.errors import CollectiveError, CollectiveMismatch, CollectiveTimeout, EvaluationFailed, LatePeer, OutOfSync, PeerFailed, StoreLost
    from unhang.runtime.collectives.agreement import Agreed, agree, all_ok, barrier, reduce_metrics
    from unhang.runtime.collectives.collectives import all_gather, all_gather_object, all_reduce, broadcast, reduce_scatter
    from unhang.runtime.collectives.deadlines import adaptive, deadline
    from unhang.runtime.evaluation.evaluation import evaluate, evaluation
    from unhang.runtime.evaluation.results import Evaluation
    from unhang.runtime.monitoring.monitor import Monitor
    from unhang.runtime.monitoring.sinks.alerts import Alerts
    from unhang.runtime.monitoring.sinks.jsonl import JSONL
    from unhang.runtime.monitoring.sinks.mlflow import MLflow
    from unhang.runtime.monitoring.sinks.opentelemetry import OpenTelemetry
    from unhang.runtime.monitoring.sinks.prometheus import Prometheus
    from unhang.runtime.monitoring.sinks.tensorboard import TensorBoard
    from unhang.runtime.monitoring.sinks.wandb import WandB
    from unhang.runtime.sync_check import sync_check

__all__ = [
    "JSONL",
    "Agreed",
    "Alerts",
    "CollectiveError",
    "CollectiveMismatch",
    "CollectiveTimeout",
    "Evaluation",
    "EvaluationFailed",
    "LatePeer",
    "MLflow",
    "Monitor",
    "OpenTelemetry",
    "OutOfSync",
    "PeerFailed",
    "Prometheus",
    "StoreLost",
    "TensorBoard",
    "WandB",
    "__version__",
    "adaptive",
    "agree",
    "all_gather",
    "all_gather_object",
    "all_ok",
    "all_reduce",
    "barrier",
    "broadcast",
    "deadline",
    "evaluate",
    "evaluation",
    "reduce_metrics",
    "reduce_scatter",
    "sync_check",
]


def __getattr__(name: str) -> object:
    if name not in _FOUND_IN:
        raise AttributeError(f"module 'unhang' has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(_FOUND_IN[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
