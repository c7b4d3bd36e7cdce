"""A builder of run directories: ranks, stacks, recorders and logs as a supervisor would have left them."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from unhang import encoding, logs
from unhang.diagnosis.assemble import CONTEXT
from unhang.diagnosis.why import judge
from unhang.frames import Frame
from unhang.knowledge import catalogue
from unhang.logs import Needles
from unhang.model import Counters, Verdict, Wait
from unhang.records.incident import Activity, ChildRecord, Ended, Incident, IncidentKind, LogRef, Missed, Raised, RankRecord, Stacks, ThreadStack
from unhang.records.rundir import RunDir

CWD = "/home/user/project"
SITE = "/opt/venv/lib/python3.11/site-packages"

IDLE = Activity(window_s=2.0, state="S", cpu_share=0.0, tree_cpu_share=0.0, switches_per_s=0.1, moved_share=0.0)
BUSY = Activity(window_s=2.0, state="R", cpu_share=0.97, tree_cpu_share=0.98, switches_per_s=9.0, moved_share=0.8)
STOPPED = Activity(window_s=2.0, state="T", cpu_share=0.0, tree_cpu_share=0.0, switches_per_s=0.0)
IN_IO = Activity(window_s=2.0, state="D", cpu_share=0.0, tree_cpu_share=0.0, switches_per_s=0.0, wchan="nfs_wait_bit_killable")


def blocked(kind: str, **told: object) -> Activity:
    """An idle rank whose main thread waits in something, by the kernel."""
    return dataclasses.replace(IDLE, wait=Wait(kind=kind, **told))  # type: ignore[arg-type]


def user(line: int, name: str, *, file: str = "train.py", code: str = "", guards: tuple[str, ...] = ()) -> Frame:
    return Frame(file=f"{CWD}/{file}", line=line, name=name, code=code, guards=guards)


def torch(file: str, line: int, name: str) -> Frame:
    return Frame(file=f"{SITE}/torch/{file}", line=line, name=name)


def in_collective(op: str, *frames: Frame) -> tuple[Frame, ...]:
    """A main thread that is blocked inside `op`."""
    return (*frames, torch("distributed/c10d_logger.py", 83, "wrapper"), torch("distributed/distributed_c10d.py", 3252, op))


def in_loader(*frames: Frame, inner: Frame | None = None) -> tuple[Frame, ...]:
    loader = (torch("utils/data/dataloader.py", 732, "__next__"), torch("utils/data/_utils/fetch.py", 54, "fetch"))
    return (*frames, *loader, *((inner,) if inner else ()))


def std(file: str, name: str) -> Frame:
    return Frame(file=f"/usr/lib/python3.11/{file}", line=1, name=name)


def forked(*own: Frame) -> tuple[Frame, ...]:
    """A process that multiprocessing has forked: above its own frames stand those of the line that forked it."""
    return (user(12, "<module>"), std("multiprocessing/popen_fork.py", "_launch"), std("multiprocessing/process.py", "_bootstrap"), *own)


def worker(*inner: Frame) -> tuple[Frame, ...]:
    """A worker of a data loader."""
    return forked(torch("utils/data/_utils/worker.py", 374, "_worker_loop"), *inner)


@dataclasses.dataclass(kw_only=True)
class Entry:
    """One recorded collective, as the builder is asked for it."""

    seq: int
    op: str = "all_reduce"
    sizes: Sequence[Sequence[int]] = ((4,),)
    dtype: str = "Float"
    done: bool = True
    frames: tuple[Frame, ...] = ()


def steps(upto: int, *, line: int = 20, sizes: Sequence[Sequence[int]] = ((4,),)) -> list[Entry]:
    """A history of equal, finished all_reduces issued by one line."""
    return [Entry(seq=s, sizes=sizes, frames=in_collective("all_reduce", user(40, "main"), user(line, "step"))) for s in range(1, upto + 1)]


def dump(entries: Sequence[Entry], *, backend: str = "gloo", group: str = "0", world: int = 2) -> bytes:
    """A pickle as torch 2.13 writes it."""
    raw = []
    for i, e in enumerate(entries):
        nccl_state = "completed" if e.done else "started"
        raw.append(
            {
                "record_id": i,
                "pg_id": 0,
                "process_group": (group, "default_pg"),
                "collective_seq_id": e.seq,
                "p2p_seq_id": 0,
                "op_id": e.seq,
                "profiling_name": f"{backend}:{e.op}",
                "time_created_ns": 1_795_000_000_000_000_000 + e.seq * 1_000_000,
                "input_sizes": [list(s) for s in e.sizes],
                "input_dtypes": [e.dtype for _ in e.sizes],
                "output_sizes": [list(s) for s in e.sizes],
                "output_dtypes": [e.dtype for _ in e.sizes],
                "state": "scheduled" if backend == "gloo" else nccl_state,
                "retired": e.done,
                "timeout_ms": 600_000,
                "is_p2p": False,
                "frames": [{"name": f.name, "filename": f.file, "line": f.line} for f in reversed(e.frames)],
            }
        )
    config = (
        {"": {"name": "", "desc": "", "ranks": "[]"}}
        if backend == "gloo"
        else {group: {"name": group, "desc": "default_pg", "ranks": str(list(range(world)))}}
    )
    last = max((e.seq for e in entries), default=-1)
    done = max((e.seq for e in entries if e.done), default=-1)
    status = {"0": {"last_enqueued_collective": last, "last_started_collective": -1, "last_completed_collective": done}}
    return pickle.dumps({"version": "2.10", "pg_config": config, "pg_status": status, "entries": raw})


class Builder:
    """Puts a run directory together, one rank at a time, and judges it."""

    def __init__(self, path: Path) -> None:
        self.rundir = RunDir.create(path)
        self.rundir.write(self.rundir.run, {"schema": "unhang/run/1"})
        self.ranks: list[RankRecord] = []
        self.logs: list[LogRef] = []
        self.kernel: str | None = None

    def rank(
        self,
        number: int,
        *,
        frames: tuple[Frame, ...] = (),
        entries: Sequence[Entry] | None = None,
        backend: str = "gloo",
        activity: Activity | None = IDLE,
        answered: bool = True,
        enqueued: int | None = None,
        completed: int | None = None,
        raised: Raised | None = None,
        ended: Ended | None = None,
        last_place: Frame | None = None,
        world: int = 2,
        pid: int | None = None,
        last_beat_s: float | None = 10.0,
        gpu: str | None = None,
        children: Sequence[tuple[ChildRecord, tuple[Frame, ...]]] = (),
    ) -> Builder:
        stacks = flight = None
        if frames:
            path = self.rundir.stacks(1, number)
            main = ThreadStack(name="MainThread", main=True, frames=frames)
            other = ThreadStack(name="Thread-1", main=False, frames=(Frame(file="/usr/lib/python3.11/threading.py", line=1, name="run"),))
            self.rundir.write(path, Stacks(source="process" if answered else "py-spy", threads=(main, other)))
            stacks = self.rundir.relative(path)
        if entries is not None:
            path = self.rundir.flight(1, number)
            self.rundir.write_bytes(path, dump(entries, backend=backend, world=world))
            flight = self.rundir.relative(path)
            enqueued = max((e.seq for e in entries), default=-1) if enqueued is None else enqueued
            completed = max((e.seq for e in entries if e.done), default=-1) if completed is None else completed
        counters = {} if enqueued is None else {"0": Counters(enqueued=enqueued, completed=enqueued if completed is None else completed)}
        self.ranks.append(
            RankRecord(
                rank=number,
                pid=pid or 4000 + number,
                host="node0",
                local_rank=number,
                world_size=world,
                backend=backend,
                gpu=gpu,
                groups=counters,
                last_beat_s=last_beat_s,
                last_progress_s=10.0,
                last_place=last_place,
                answered=answered and ended is None,
                activity=None if ended is not None else activity,
                raised=raised,
                ended=ended,
                stacks=stacks,
                flight=flight,
                children=tuple(self._child(number, record, frames) for record, frames in children),
            )
        )
        return self

    def _child(self, rank: int, record: ChildRecord, frames: tuple[Frame, ...]) -> ChildRecord:
        if not frames:
            return record
        path = self.rundir.stacks(1, rank, child=record.pid)
        self.rundir.write(path, Stacks(source="py-spy", threads=(ThreadStack(name="MainThread", main=True, frames=frames),)))
        return dataclasses.replace(record, stacks=self.rundir.relative(path))

    def log(self, rank: int | None, text: str, *, stream: str = "err") -> Builder:
        path = self.rundir.log(0, rank=rank, stream=stream)
        self.rundir.write_bytes(path, text.encode())
        self.logs.append(LogRef(path=self.rundir.relative(path), bytes=len(text.encode()), rank=rank))
        return self

    def fatal(self, rank: int, text: str) -> Builder:
        self.rundir.write_bytes(self.rundir.fatal_of(0, rank), text.encode())
        return self

    def dmesg(self, text: str) -> Builder:
        path = self.rundir.kernel(1)
        self.rundir.write_bytes(path, text.encode())
        self.kernel = self.rundir.relative(path)
        return self

    def write(self, kind: IncidentKind = "hang", **changes: object) -> RunDir:
        stalled = 21.0 if kind in ("hang", "straggler") else None
        incident = Incident(
            number=1,
            attempt=0,
            kind=kind,
            at_s=31.0,
            at="2026-11-03T10:00:00.000+00:00",
            cwd=CWD,
            command=("python", "train.py"),
            expected_world=len(self.ranks),
            stalled_for_s=stalled,
            kernel=self.kernel,
            ranks=tuple(self.ranks),
            logs=tuple(self.logs),
            missed=() if self.kernel else (Missed(what="kernel log", why="dmesg: not permitted"),),
        )
        incident = dataclasses.replace(incident, **changes)  # type: ignore[arg-type]
        self.rundir.write(self.rundir.incident(1), incident)
        return self.rundir

    def judge(self, kind: IncidentKind = "hang", **changes: object) -> Verdict:
        verdict = judge(self.write(kind, **changes))
        for n in verdict.not_examined:
            assert "its check is broken" not in n.why, n
        # What is promised of every verdict: it survives its own interface.
        assert msgspec.json.decode(encoding.encode(verdict), type=Verdict) == verdict
        return verdict


@pytest.fixture
def lab() -> SimpleNamespace:
    """Everything in this file, for tests that build their own situation."""
    return SimpleNamespace(**globals())


@pytest.fixture
def build(tmp_path: Path) -> Callable[[], Builder]:
    count = itertools.count()
    return lambda: Builder(tmp_path / f"run{next(count)}")


PEER_RESET = (
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:20200: Connection reset by peer. "
    "This is typically caused by a remote worker hanging or bugs in the application."
)
PEER_CLOSED = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:47492."
GLOO_TIMEOUT = "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 20000ms for recv operation to complete"
GLOO_SIZE = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    "  what():  [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 8 vs 4. "
    "Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?\n"
)


def lost(text: str = PEER_RESET, *, at_s: float = 30.5, line: int = 20) -> Raised:
    """What a healthy rank raises when its peer is gone."""
    return Raised(type="RuntimeError", text=text, frames=in_collective("all_reduce", user(40, "main"), user(line, "step")), at_s=at_s)


@pytest.fixture(scope="session")
def needles():
    return Needles((*catalogue.signatures(), *CONTEXT))


@pytest.fixture
def reads(tmp_path, needles, monkeypatch):
    """Logs given by name, read with relative names: the directory of a test is nobody's."""
    monkeypatch.chdir(tmp_path)

    def reads(files):
        found = []
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            found.append(logs.read(path, needles, source=name, latest_s=1_794_000_000.0))
        return found

    return reads
