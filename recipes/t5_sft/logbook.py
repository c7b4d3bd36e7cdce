"""What a training says: the banner at the start, one line or bar of progress, and metrics.jsonl.

metrics.jsonl is only ever appended to. Each start writes a line of its own; after a restart steps come a second time, and
the later line counts.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

if TYPE_CHECKING:
    from evaluation import Score


class Logbook:
    """Rank 0 writes; on every other rank all methods do nothing."""

    def __init__(self, path: Path, *, speaks: bool) -> None:
        self.speaks = speaks
        self._file = path.open("a", encoding="utf-8") if speaks else None
        self._bar: tqdm[Any] | None = None

    def say(self, text: str) -> None:
        if self.speaks:
            tqdm.write(text, file=sys.stdout)
            sys.stdout.flush()

    def record(self, **values: Any) -> None:
        """One line of metrics.jsonl."""
        if self._file is not None:
            self._file.write(json.dumps(values) + "\n")
            self._file.flush()

    def start(self, *, step: int, total: int, resumed_from: Path | None) -> None:
        self.record(
            start=True, step=step, resumed_from=resumed_from and str(resumed_from), attempt=os.environ.get("UNHANG_ATTEMPT"), time=time.time()
        )
        if self.speaks and sys.stderr.isatty():
            self._bar = tqdm(total=total, initial=step, unit="step", dynamic_ncols=True)

    def step(self, step: int, *, total: int, values: dict[str, float] | None) -> None:
        """A step is done; `values` are given where it is to be logged."""
        if self._bar is not None:
            self._bar.update(1)
        if values is None:
            return
        self.record(step=step, **values)
        shown = f"loss {values['loss']:.4f}  lr {values['lr']:.2e}  {values['tokens_per_s']:.0f} tokens/s"
        if self._bar is not None:
            self._bar.set_postfix_str(shown)
        else:
            self.say(f"step {step}/{total}  {shown}  {values['step_s']:.3f} s")

    def evaluation(self, step: int, score: Score, *, seconds: float) -> None:
        loss, perplexity = score.loss, score.perplexity
        if loss is None or perplexity is None:
            self.record(step=step, eval_loss=None, perplexity=None, eval_s=seconds, eval_failed=score.why)
            self.say(f"step {step}  evaluation failed, the training goes on: {score.why}")
            return
        self.record(step=step, eval_loss=loss, perplexity=perplexity, eval_s=seconds)
        again = f" in {score.attempts} attempts" if score.attempts > 1 else ""
        self.say(f"step {step}  evaluation: loss {loss:.4f}, perplexity {perplexity:.2f}, {seconds:.1f} s{again}")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        if self._file is not None:
            self._file.close()


class Stages:
    """Where the time until the first step goes."""

    def __init__(self) -> None:
        self._at = time.perf_counter()
        self.seconds: dict[str, float] = {}

    def done(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = now - self._at
        self._at = now

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.seconds.items())
        return f"{sum(self.seconds.values()):.1f} s ({parts})"
