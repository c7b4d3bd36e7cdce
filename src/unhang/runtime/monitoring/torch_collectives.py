"""What goes through torch's own collectives, DDP's and FSDP's too: from torch's flight recorder, and from what torch logs of those that raise.

The recorder is the one place that sees all of them: DDP calls its collectives from C++, past all of torch.distributed's Python. It tells how many and
of which sizes. How long one took it tells of NCCL alone, by CUDA events, and only under TORCH_NCCL_ENABLE_TIMING=1; Gloo's entries have no such times
(2.13), and the time inside of a function that may only enqueue would be no latency: there it stays unknown.

There is no reading of what is new: all entries are read, under the GIL, 10 to 25 microseconds each (2,000 by default). So it is done seldom.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import math
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch.distributed import c10d_logger
from torch.distributed import distributed_c10d as c10d

from unhang.flight import operations
from unhang.flight.coalesced import COALESCED, is_message, marks_batches, told_as_usual
from unhang.records.incident import OWN_GROUPS
from unhang.runtime import log
from unhang.runtime.monitoring.counters import Calls, Tally, cause_of_text, group_name

# As the recorder has it.
Entry = Mapping[str, Any]

_RING = 2000
_RING_NAMES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
# Of all time, no more than this goes into reading.
_SHARE = 0.01
_ENDS_WITHIN_S = 0.2
_ACCELERATORS = ("nccl", "xccl")
_GENERIC = "fr"
# Names of groups and operations are the training's: a training that makes groups without end must not fill this rank.
_MOST_KEYS = 500
_CU_STREAM_CAPTURE_MODE_RELAXED = 2
_TYPES = {
    1: "Bool Byte Char",
    2: "Half BFloat16 Short UInt16",
    4: "Int UInt32 Float ComplexHalf",
    8: "Double Long UInt64 ComplexFloat",
    16: "ComplexDouble",
}
_BYTES = {name: size for size, names in _TYPES.items() for name in names.split()}


@dataclass
class _Recorder:
    """How far one of them has been read. `pending` are calls that had not ended, by record: (group, operation, ranks, bytes)."""

    kind: str
    last: int = -1
    seq: dict[int, int] = field(default_factory=dict)
    pending: dict[int, tuple[str, str, int, int]] = field(default_factory=dict)
    overdue: set[int] = field(default_factory=set)
    enqueued: int = 0


class TorchCollectives:
    """Counts from its making on what has ended. `calls`, `failures` and `unread` only grow; keys are those of a Tally."""

    def __init__(self, world_size: int) -> None:
        extension: Any = sys.modules["torch._C._distributed_c10d"]
        self.calls: dict[str, Calls] = {}
        self.failures: dict[str, int] = {}
        # By group: calls that the recorder did not hold any more when it was read.
        self.unread: dict[str, int] = {}
        self.standing = "none recorded"
        self._extension, self._world_size = extension, world_size
        self._recorders = [_Recorder(kind) for kind in (*_ACCELERATORS, _GENERIC) if hasattr(extension, f"_dump_{kind}_trace")]
        if not self._recorders:
            self.standing = "not read: this torch has no flight recorder"
        self._ring = next((int(text) for name in _RING_NAMES if (text := os.environ.get(name, "")).isdecimal()), _RING)
        self._groups: dict[str, tuple[int, ...]] = {}
        self._not_before = 0.0
        self._lock = threading.Lock()
        # What one thread has asked for is older than what another one has read meanwhile, and would look like a recorder that was reset.
        self._reading = threading.Lock()
        with self._given_up_if_it_raises():
            for recorder in self._recorders:
                self._begin(recorder)
        self._logger = _logger_of_torch()
        self._raised = _Raised(self._failed)
        if self._logger is not None:
            self._logger.addHandler(self._raised)

    def close(self) -> None:
        if self._logger is not None:
            self._logger.removeHandler(self._raised)

    def beside(self, tally: Tally) -> Tally:
        """`tally` with what was counted here."""
        with self._lock:
            return msgspec.structs.replace(
                tally,
                calls={**tally.calls, **{key: msgspec.structs.replace(one) for key, one in self.calls.items()}},
                failures={**tally.failures, **self.failures},
                unread=dict(self.unread),
                torch=self.standing,
            )

    def look(self) -> None:
        """Reads where the recorder would soon forget what has not been read; else a few microseconds."""
        with self._given_up_if_it_raises():
            if any(self._enqueued(one) - one.enqueued >= self._ring // 2 for one in self._recorders):
                self.read()

    def read(self, *, last: bool = False) -> None:
        """Counts what is new; nothing where that has cost too much lately, unless it is the `last` time."""
        if not last and time.monotonic() < self._not_before:
            return
        began = time.monotonic()
        self._read_all()
        # Gloo's thread writes down that a call has ended when whoever waited for it may have gone on.
        while last and any(recorder.pending for recorder in self._recorders) and time.monotonic() < began + _ENDS_WITHIN_S:
            time.sleep(_ENDS_WITHIN_S / 10)
            self._read_all()
        now = time.monotonic()
        self._not_before = now + (now - began) / _SHARE

    def _read_all(self) -> None:
        with self._reading, self._given_up_if_it_raises():
            for recorder in self._recorders:
                enqueued = self._enqueued(recorder)
                if enqueued != recorder.enqueued or recorder.pending:
                    recorder.enqueued = enqueued
                    self._read(recorder)

    @contextlib.contextmanager
    def _given_up_if_it_raises(self) -> Iterator[None]:
        """A recorder of another form than any that is known: what it holds is unknown from now on, and everything else is counted as ever."""
        try:
            yield
        except Exception as e:
            self._recorders, self.standing = [], f"not read: {type(e).__name__}: {e}"
            log.warning("the monitor does not see torch's own collectives, the training goes on: %s: %s", type(e).__name__, e)

    def _begin(self, recorder: _Recorder) -> None:
        status = self._status(recorder)
        recorder.enqueued = self._enqueued(recorder)
        if not status:
            return
        recorder.seq = {int(of): max(0, int(found.get("last_enqueued_collective", 0))) for of, found in status.items()}
        entries = self._entries(recorder) or []
        recorder.last = max((int(entry["record_id"]) for entry in entries), default=-1)

    def _read(self, recorder: _Recorder) -> None:
        entries = self._entries(recorder)
        if entries is None:
            return
        newest = max((int(entry["record_id"]) for entry in entries), default=-1)
        if newest < recorder.last:
            # It has been reset.
            recorder.last, recorder.seq, recorder.pending, recorder.overdue = -1, {}, {}, set()
        # torch keeps them so; a group that is gone is remembered, as long as there are not too many.
        world: Any = c10d._world
        with contextlib.suppress(AttributeError, KeyError, RuntimeError):
            names = dict(world.pg_names)
            if len(self._groups) > _MOST_KEYS:
                self._groups.clear()
            self._groups |= {str(names[pg]): tuple(sorted(ranks)) for pg, ranks in dict(world.pg_group_ranks).items() if pg in names}
        held = set()
        now_ns = time.time_ns()
        # Of calls that were launched together none ends but this one, which is the last.
        last_of = {_launch(entry): entry for entry in entries if str(entry["profiling_name"]).endswith(f":{COALESCED}")}
        with self._lock:
            for entry in entries:
                number = int(entry["record_id"])
                held.add(number)
                if number > recorder.last:
                    self._begun(recorder, number, entry)
                if number in recorder.pending:
                    self._followed(recorder, number, entry, last_of.get(_launch(entry), entry), now_ns)
            for number, (group, _, _, _) in recorder.pending.items():
                if number not in held:
                    # How it ended nobody has seen.
                    self.unread[group] = self.unread.get(group, 0) + 1
        recorder.last = newest
        recorder.pending = {number: of for number, of in recorder.pending.items() if number in held}
        recorder.overdue &= held

    def _begun(self, recorder: _Recorder, number: int, entry: Entry) -> None:
        name = str(entry["process_group"][0])
        # Those of unhang are counted by the calls that they are made for; in older torch, and over NCCL, they have no name.
        if not name or name.startswith(OWN_GROUPS):
            return
        ranks = self._groups.get(name, ())
        group = group_name(ranks, self._world_size) if ranks else f"group {name}"
        self.standing = "counted"
        self._gap(recorder, int(entry["pg_id"]), int(entry.get("collective_seq_id", -1)), group)
        recorder.pending[number] = (group, str(entry["profiling_name"]).partition(" ")[0], len(ranks), _size(entry))

    def _gap(self, recorder: _Recorder, pg_id: int, seq: int, group: str) -> None:
        before = recorder.seq.get(pg_id, 0)
        # Calls that are launched together have one number, and messages that of the collective before them.
        if seq > before + 1:
            self.unread[group] = self.unread.get(group, 0) + seq - before - 1
        recorder.seq[pg_id] = max(before, seq)

    def _followed(self, recorder: _Recorder, number: int, entry: Entry, last: Entry, now_ns: int) -> None:
        """`last`: the entry that ends with it: its own, or that of all that was launched together, which alone is told of where it fails."""
        group, name, ranks, given = recorder.pending[number]
        failed = False
        if last.get("retired"):
            del recorder.pending[number]
            # Gloo never moves the state of an entry. NCCL's is retired without it when its watchdog has given it up.
            failed = name.partition(":")[0] in _ACCELERATORS and last.get("state") != "completed"
            if not failed:
                self._ended(f"{group}|{name}", ranks, given, entry.get("duration_ms"))
        elif not _is_endless(entry):
            failed = now_ns - int(entry["time_created_ns"]) > int(entry.get("timeout_ms") or sys.maxsize) * 1_000_000
        if failed and last is entry and number not in recorder.overdue:
            recorder.overdue.add(number)
            self._add_failure(f"{group}|{name}|timeout")

    def _ended(self, key: str, ranks: int, given: int, took_ms: Any) -> None:
        if key not in self.calls and len(self.calls) >= _MOST_KEYS:
            key = "other groups|torch:other"
        calls = self.calls.setdefault(key, Calls())
        collective = operations.spelling(operations.split(key.partition("|")[2])[1])
        calls.ended(collective, ranks, given, float(took_ms or 0) / 1e3)

    def _failed(self, group: Any, function: str, error: BaseException) -> None:
        group = c10d._get_default_group() if group is None else group
        if dist.get_rank(group) < 0:
            return
        of = group_name(tuple(dist.get_process_group_ranks(group)), self._world_size)
        with self._lock:
            self._add_failure(f"{of}|{dist.get_backend(group)}:{function}|{cause_of_text(str(error))}")

    def _add_failure(self, key: str) -> None:
        if key in self.failures or len(self.failures) < _MOST_KEYS:
            self.failures[key] = self.failures.get(key, 0) + 1

    def _status(self, recorder: _Recorder) -> Mapping[Any, Entry]:
        # includeCollectives, includeStackTraces, onlyActive
        dump: Any = getattr(self._extension, f"_dump_{recorder.kind}_trace")
        return dict(pickle.loads(dump(False, False, False)).get("pg_status") or {})

    def _enqueued(self, recorder: _Recorder) -> int:
        return sum(max(0, int(found.get("last_enqueued_collective", 0))) for found in self._status(recorder).values())

    def _entries(self, recorder: _Recorder) -> list[dict[str, Any]] | None:
        with _beside_captures(recorder.kind) as allowed:
            if not allowed:
                self.standing = "not read: asking about NCCL's calls could spoil a CUDA graph that is being captured"
                return None
            dump: Any = getattr(self._extension, f"_dump_{recorder.kind}_trace")
            # Without stacks: those would be put into words, which takes seconds.
            raw: Entry = pickle.loads(dump(True, False, False))
            if not marks_batches(raw.get("version")):
                raw = told_as_usual(raw).raw
            return list(raw.get("entries") or [])


class _Raised(logging.Handler):
    """Torch logs what its collectives raise, to a logger of its own, before it goes on to whoever called."""

    def __init__(self, failed: Callable[[Any, str, BaseException], None]) -> None:
        super().__init__(logging.DEBUG)
        self._failed = failed

    def emit(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if error is None or not isinstance(record.msg, dict) or record.msg.get("error") != str(error):
            return
        with contextlib.suppress(Exception):
            name, group = _innermost(error)
            # One that is made of others is told of as well, as the error passes it.
            if name == record.msg.get("func_name"):
                self._failed(group, name, error)


def _innermost(error: BaseException) -> tuple[str, Any]:
    """The collective that was called last on the way to the error, and its group; None for the default one."""
    name, group, trace = "", None, error.__traceback__
    while trace is not None:
        code, here = trace.tb_frame.f_code, trace.tb_frame.f_locals
        if code.co_filename == c10d_logger.__file__:
            name, group = here["func"].__name__, None
        elif code.co_name == name and "group" in here:
            group = here["group"]
        trace = trace.tb_next
    return name, group


def _logger_of_torch() -> logging.Logger | None:
    found = getattr(c10d_logger, "_c10d_logger", None)
    return found if isinstance(found, logging.Logger) else None


@contextlib.contextmanager
def _beside_captures(kind: str) -> Iterator[bool]:
    """Whether entries may be read. NCCL's recorder asks CUDA whether events have happened, which ends the capture of a graph in any other thread,
    but for threads whose mode says that they mind themselves."""
    if kind not in _ACCELERATORS or not torch.cuda.is_initialized():
        yield True
        return
    try:
        exchange = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    except (OSError, AttributeError):
        yield False
        return
    mode = ctypes.c_int(_CU_STREAM_CAPTURE_MODE_RELAXED)
    allowed = exchange(ctypes.byref(mode)) == 0
    try:
        yield allowed
    finally:
        if allowed:
            exchange(ctypes.byref(mode))


def _launch(entry: Entry) -> tuple[int, bool, int]:
    """Equal for calls that were launched together."""
    message = is_message(operations.split(str(entry["profiling_name"]))[1], entry.get("is_p2p"))
    number = entry.get("p2p_seq_id" if message else "collective_seq_id")
    return int(entry["pg_id"]), message, -1 if number is None else int(number)


def _is_endless(entry: Entry) -> bool:
    """XCCL never tells that a message is over."""
    backend, op = operations.split(str(entry["profiling_name"]))
    return backend == "xccl" and is_message(op, entry.get("is_p2p"))


def _size(entry: Entry) -> int:
    """Bytes that this rank gives."""
    dtypes = entry.get("input_dtypes") or ()
    return sum(math.prod(size) * _BYTES.get(str(dtype), 1) for size, dtype in zip(entry.get("input_sizes") or (), dtypes, strict=False))
