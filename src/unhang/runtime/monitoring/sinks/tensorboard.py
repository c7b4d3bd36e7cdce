"""Event files for TensorBoard, by torch's own writer: it needs nothing but the package tensorboard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unhang.runtime.monitoring.counters import Snapshot
from unhang.runtime.monitoring.sinks.measures import axis, flat, needed, run_dir


class TensorBoard:
    """`log_dir` is that of the training; what is written lies in `unhang` below it, and shows beside its curves.

    Steps are the training's where it tells them (`monitor.step`), else seconds since the first snapshot. Raises MissingExtra.
    """

    def __init__(self, log_dir: str | Path | None = None) -> None:
        needed("TensorBoard", "tensorboard", "tensorboard")
        # TensorBoard reads the files of a directory one after the other and leaves the earlier one for good: a second writer cuts off the first.
        self.log_dir = ((run_dir() or Path("unhang-monitor")) / "tensorboard" if log_dir is None else Path(log_dir)) / "unhang"
        self.where = str(self.log_dir)
        self._writer: Any = None
        self._began_s = 0.0

    def write(self, snapshot: Snapshot) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer, self._began_s = SummaryWriter(str(self.log_dir)), snapshot.time_s
        step = axis(snapshot, self._began_s)
        # What is not finite is drawn as a triangle.
        for name, value in flat(snapshot).items():
            self._writer.add_scalar(name, value, step, walltime=snapshot.time_s)
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
