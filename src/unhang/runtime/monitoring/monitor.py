"""The monitor of a rank: it counts calls, gathers the counts of all ranks through the store, and rank 0 hands snapshots to sinks."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import operator
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import torch
import torch.distributed as dist

from unhang.attach.protocol import ENV_ATTEMPT
from unhang.errors import StoreLost
from unhang.runtime import log
from unhang.runtime.collectives import guarded_group as circles
from unhang.runtime.collectives.bounded_store import BoundedStore
from unhang.runtime.collectives.calls import Observed, add_observer, remove_observer
from unhang.runtime.collectives.deadlines import learned
from unhang.runtime.monitoring.counters import (
    Calls,
    Intervals,
    Moment,
    Silent,
    Snapshot,
    Tally,
    calls_since,
    merged,
    newest_evaluation_failed,
    shortened,
    summed,
)
from unhang.runtime.monitoring.sink_worker import Sink, SinkWorker, checked, named

if TYPE_CHECKING:
    from unhang.runtime.evaluation.results import Evaluation
    from unhang.runtime.monitoring.torch_collectives import TorchCollectives

_EVERY_S = 10.0
# Up to so many ranks; reading, adding up and writing what more of them tell may not take more of rank 0's time.
_EVERY_S_RANKS = 256
_TELLS_WITHIN_S = 10.0
_WRITES_WITHIN_S = 5.0
# How often it is looked whether torch's recorder has filled.
LOOK_S = 1.0
_OTHERS_WITHIN_S = 2.0
_LOOK_S = 0.02
# Tellings come from a thread: what keeps it from three in a row, and for as long as this, is no pause.
_TELLINGS_MISSED = 3
_SILENT_AFTER_S = 5.0
# Who has told nothing for so many intervals is not compared with those that have.
_OLD_INTERVALS, _OLD_S = 2, 1.0
# Of this process, and so of all ranks: each has keys of its own in the store.
_numbers = itertools.count()


class Monitor:
    """One on every rank, made after init_process_group, in the same order on all; call `close` before destroy_process_group, or use `with`.

    `sinks` are used on rank 0 alone; by default a JSONL file. `every_s`: how often it is told; by default 10, above 256 ranks more in proportion.
    A sink that takes longer than `patience_s` for a snapshot is switched off. Adds no collectives, and never raises into a training what a sink or
    the store does.
    `torch_collectives`: also counts what goes through torch's own, DDP's among them, as its flight recorder has it.
    Also a `monitor` for `unhang.evaluate`. Where the training sets `step` to its own (`monitor.step = step`; that of rank 0 counts), plots take it.
    Raises ValueError for what is no interval, TypeError for what is no list of sinks, on every rank that is given it; CollectiveError before
    init_process_group, but in a training that was started as one process.
    """

    def __init__(
        self, sinks: Sequence[Sink] | None = None, *, every_s: float | None = None, patience_s: float = 10.0, torch_collectives: bool = False
    ) -> None:
        if not dist.is_initialized():
            circles.meant_or_alone()
        self._size: int = dist.get_world_size() if dist.is_initialized() else 1
        if every_s is None:
            every_s = _EVERY_S * max(1.0, self._size / _EVERY_S_RANKS)
        if not _is_seconds(every_s) or not _is_seconds(patience_s):
            raise ValueError(f"every_s and patience_s are positive numbers of seconds, not {every_s!r} and {patience_s!r}")
        # On every rank, though rank 0 alone uses them: where it alone refused, the others would count on without it.
        given = None if sinks is None else checked(sinks)
        self._rank: int = dist.get_rank() if dist.is_initialized() else 0
        self._step: int | None = None
        self._step_refused = False
        self._heard: dict[int, tuple[int, float]] = {}
        # What each of the others has told last, and who had closed by the snapshot before.
        self._others: dict[int, Tally] = {}
        self._closed: frozenset[int] = frozenset()
        self._merged: dict[str, Calls] = {}
        self._store_lost: str | None = None
        self._intervals = Intervals()
        self._tally = Tally(rank=self._rank)
        self._lock = threading.Lock()
        number = next(_numbers)
        self._board = BoundedStore.beside(f"unhang/monitor/{number}") if self._size > 1 else None
        self._outlets: list[SinkWorker] = []
        if self._rank == 0:
            if given is None:
                from unhang.runtime.monitoring.sinks.jsonl import JSONL

                given = [JSONL()]
            self._outlets = [SinkWorker(sink, name=name, patience_s=patience_s) for sink, name in zip(given, named(given), strict=True)]
        self._every_s = every_s
        self._torch: TorchCollectives | None = None
        if torch_collectives:
            from unhang.runtime.monitoring.torch_collectives import TorchCollectives

            self._torch = TorchCollectives(self._size)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="unhang monitor", daemon=True)
        self._thread.start()
        add_observer(self._saw)
        atexit.register(self.close)

    @property
    def step(self) -> int | None:
        """The training's own. What is no whole number, or lies on a device that would have to be waited for, is warned of once, and is None."""
        return self._step

    @step.setter
    def step(self, value: Any) -> None:
        self._step = _whole(value)
        if self._step is None and value is not None and not self._step_refused:
            self._step_refused = True
            what = f"a tensor on {value.device}" if isinstance(value, torch.Tensor) else f"{type(value).__name__}"
            log.warning("monitor.step is a whole number in this process's memory, not %s: the step is told as unknown, the training goes on", what)

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __call__(self, evaluation: Evaluation) -> None:
        """As `monitor` of `unhang.evaluate`, which calls it on the group's first rank."""
        with self._lock:
            self._tally.evaluations += 1
            self._tally.evaluation_failures += not evaluation.ok
            if not evaluation.ok:
                self._tally.evaluation_said = shortened(evaluation.says)
                step = _whole(evaluation.step)
                self._tally.evaluation_failed_at = Moment(time_s=time.time(), step=self._step if step is None else step)

    def close(self) -> None:
        """Tells what is left, mostly at once, and within fifteen seconds. Calls after the first do nothing."""
        if self._closing.is_set():
            return
        self._closing.set()
        atexit.unregister(self.close)
        remove_observer(self._saw)
        if self._torch is not None:
            self._torch.close()
        # What it has not offered to the sinks by then is lost: on a crowded machine one answer of the store was seen to take five seconds.
        self._thread.join(_TELLS_WITHIN_S)
        for outlet in self._outlets:
            outlet.end()
        until = time.monotonic() + _WRITES_WITHIN_S
        for outlet in self._outlets:
            outlet.wait(until)

    def _saw(self, call: Observed) -> None:
        with self._lock:
            self._tally.saw(call, self._size, self._step)

    def _run(self) -> None:
        try:
            # What an attempt before has left in a store that outlives it (torchrun keeps its own): who has told already tells again.
            if self._board is not None and self._rank == 0:
                with contextlib.suppress(StoreLost):
                    self._board.forget([str(rank) for rank in range(1, self._size)])
            while not self._closes_within(self._every_s):
                self._tell()
            self._tell(last=True)
        except Exception:
            log.exception("the monitor of rank %d ends, the training goes on", self._rank)

    def _closes_within(self, seconds: float) -> bool:
        """Looks meanwhile that torch's recorder forgets nothing unread."""
        until = time.monotonic() + seconds
        while self._torch is not None and until - time.monotonic() > LOOK_S:
            if self._closing.wait(LOOK_S):
                return True
            self._torch.look()
        return self._closing.wait(max(0.0, until - time.monotonic()))

    def _tell(self, *, last: bool = False) -> None:
        if self._torch is not None:
            self._torch.read(last=last)
        with self._lock:
            self._tally.closed, self._tally.deadlines_s = last, learned.in_force()
            self._tally.told += 1
            self._tally.told_at_s = time.monotonic()
            packed = msgspec.msgpack.encode(self._tally if self._torch is None else self._torch.beside(self._tally))
        try:
            if self._board is not None:
                self._board.put(str(self._rank), packed)
                if self._rank == 0:
                    self._gather(last=last)
        except StoreLost as e:
            self._board, self._store_lost = None, str(e)
            log.warning("rank %d's monitor knows no other ranks any more, the training goes on: %s", self._rank, e)
        if self._rank == 0:
            # Counts never fall: of who cannot be asked, the last that was heard.
            snapshot = self._snapshot([msgspec.msgpack.decode(packed, type=Tally), *self._others.values()], last=last)
            for outlet in self._outlets:
                outlet.offer(snapshot)

    def _gather(self, *, last: bool) -> None:
        """What the others have told. Raises StoreLost."""
        assert self._board is not None
        until = time.monotonic() + (_OTHERS_WITHIN_S if last else 0)
        while True:
            for rank in range(1, self._size):
                if (found := self._board.look(str(rank))) is not None:
                    self._others[rank] = msgspec.msgpack.decode(found, type=Tally)
            if time.monotonic() >= until or (len(self._others) == self._size - 1 and all(one.closed for one in self._others.values())):
                return
            time.sleep(_LOOK_S)

    def _snapshot(self, tallies: list[Tally], *, last: bool) -> Snapshot:
        silent, old = self._silent(tallies)
        # When all close, none of them has stopped before the others.
        closed, self._closed = self._closed, frozenset(one.rank for one in tallies if one.closed)
        before, self._merged = self._merged, merged(tallies)
        calls, failures, stragglers, deadlines_s = summed(tallies, calls=self._merged, left_out=old | (closed if last else self._closed))
        evaluation_failed_at, evaluation_says = newest_evaluation_failed(tallies)
        interval_s, lately = self._intervals.since(tallies, time.monotonic())
        return Snapshot(
            time_s=time.time(),
            world_size=self._size,
            heard_from=len(tallies),
            restarts=_restarts(),
            calls=calls,
            failures=failures,
            stragglers=stragglers,
            deadlines_s=deadlines_s,
            evaluations=sum(one.evaluations for one in tallies),
            evaluation_failures=sum(one.evaluation_failures for one in tallies),
            evaluation_says=evaluation_says,
            evaluation_time_s=evaluation_failed_at.time_s if evaluation_failed_at else None,
            evaluation_step=evaluation_failed_at.step if evaluation_failed_at else None,
            dropped=sum(outlet.dropped for outlet in self._outlets),
            # In the alphabet the worst comes last.
            torch_collectives=max((one.torch for one in tallies if one.torch is not None), default=None),
            unread=_most(one.unread for one in tallies),
            step=self.step,
            silent=silent,
            store_lost=self._store_lost,
            interval_s=None if interval_s is None else round(interval_s, 3),
            interval_calls=[] if interval_s is None else calls_since(self._merged, before),
            interval_stragglers=lately,
        )

    def _silent(self, tallies: list[Tally]) -> tuple[list[Silent], frozenset[int]]:
        """Ranks whose thread does not run any more: ended without `close`, stopped, or held by code that keeps the interpreter to itself.

        Without the store they are all that have not closed. And those whose counts are too old to be compared with the others'.
        """
        now = time.monotonic()
        told = {one.rank: -1 if one.closed else one.told for one in tallies}
        after_s = max(_TELLINGS_MISSED * self._every_s, _SILENT_AFTER_S)
        found: list[Silent] = []
        old: set[int] = set()
        for rank in range(1, self._size):
            number = told.get(rank, 0)
            if self._heard.get(rank, (-2, 0.0))[0] != number:
                self._heard[rank] = (number, now)
            for_s = now - self._heard[rank][1]
            if number >= 0 and (for_s > after_s or self._store_lost is not None):
                found.append(Silent(rank=rank, for_s=round(for_s, 1)))
                old.add(rank)
            elif for_s > max(_OLD_INTERVALS * self._every_s, _OLD_S):
                old.add(rank)
        return found, frozenset(old)


def _restarts() -> int:
    """By torchrun, and by `unhang run`, which starts it anew."""
    return sum(int(text) for name in (ENV_ATTEMPT, "TORCHELASTIC_RESTART_COUNT") if (text := os.environ.get(name, "")).isdecimal())


def _is_seconds(value: Any) -> bool:
    try:
        return bool(0 < value < float("inf"))
    except TypeError:
        return False


def _whole(value: Any) -> int | None:
    """None for what is no whole number of 64 bits."""
    # Of a tensor elsewhere the number would be waited for; one of a subclass may even ask other ranks.
    if isinstance(value, torch.Tensor) and (type(value) is not torch.Tensor or value.device.type != "cpu"):
        return None
    try:
        found = operator.index(value)
    except Exception:
        return None
    return found if -(2**63) <= found < 2**63 else None


def _most(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """By group: its ranks have made the same calls, and may have missed others of them."""
    found: dict[str, int] = {}
    for one in counts:
        for group, count in one.items():
            found[group] = max(found.get(group, 0), count)
    return found
