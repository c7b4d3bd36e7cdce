"""What a monitor tells of torch's own collectives: of real ranks over Gloo, and of NCCL's entries as torch writes them."""

from __future__ import annotations

import json
import logging
import pickle
import sys
import threading
import time
import types
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.runtime.collectives.world import world_of

import unhang
from unhang.runtime.monitoring import torch_collectives
from unhang.runtime.monitoring.counters import Tally, cause_of_text, summed
from unhang.runtime.monitoring.torch_collectives import TorchCollectives

pytestmark = pytest.mark.torch

recorded = pytest.mark.skipif(not hasattr(torch._C._distributed_c10d, "_dump_fr_trace"), reason="this torch records nothing of Gloo")


def told_in(path):
    told = json.loads(path.read_text().splitlines()[-1])
    return told, {(one["group"], one["collective"]): one for one in told["calls"]}


def made(rank, path):
    import torch.nn.parallel

    tensor, last = torch.ones(1000), dist.new_group([1, 2])
    dist.all_reduce(tensor)
    with unhang.Monitor([unhang.JSONL(path)], every_s=60, torch_collectives=True):
        for _ in range(4):
            dist.all_reduce(tensor)
            unhang.all_reduce(tensor)
        dist.all_reduce(tensor, async_op=True).wait()
        if rank:
            dist.broadcast(torch.ones(10, dtype=torch.float64), 1, group=last)
        ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1, bias=False))
        ddp(torch.ones(1, 3)).sum().backward()
        dist.barrier()
    dist.all_reduce(tensor)


@recorded
def test_all_are_counted_once_from_the_monitors_making_to_its_end(tmp_path):
    path = tmp_path / "monitor.jsonl"
    with world_of(3, tmp_path / "ranks") as world:
        world(made, path)
    told, calls = told_in(path)
    assert (told["torch_collectives"], told["unread"], told["failures"]) == ("counted", {}, [])
    # What the library sends itself is counted as its own calls alone.
    assert {group for group, _ in calls} == {"world", "ranks 1,2"}
    # Five of 4,000 bytes, and what DDP reduces from C++.
    assert (calls["world", "gloo:all_reduce"]["count"], calls["world", "gloo:all_reduce"]["bytes"]) == (6, 5 * 4000 + 3 * 4)
    assert (calls["ranks 1,2", "gloo:broadcast"]["count"], calls["ranks 1,2", "gloo:broadcast"]["bytes"]) == (1, 80)
    assert (calls["world", "all_reduce"]["count"], calls["world", "all_reduce"]["bytes"], calls["world", "all_reduce"]["timed"]) == (4, 16_000, 4)
    assert calls["world", "gloo:barrier"]["count"] == 1
    # Gloo's entries tell no times.
    assert calls["world", "gloo:all_reduce"]["timed"] == 0 and calls["world", "gloo:all_reduce"]["latency_p50_s"] is None


def more_than_the_ring_holds(rank, path, calls):
    tensor = torch.ones(1)
    dist.barrier()
    with unhang.Monitor([unhang.JSONL(path)], every_s=60, torch_collectives=True):
        for _ in range(calls):
            dist.all_reduce(tensor)


@recorded
def test_what_the_recorder_has_forgotten_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "40")
    path = tmp_path / "monitor.jsonl"
    with world_of(2, tmp_path / "ranks", ends=True) as world:
        world(more_than_the_ring_holds, path, 100)
    told, calls = told_in(path)
    assert calls["world", "gloo:all_reduce"]["count"] == 40 and told["unread"] == {"world": 60}


def in_two_halves(rank, path):
    tensor = torch.ones(1)
    with unhang.Monitor([unhang.JSONL(path)], every_s=60, torch_collectives=True) as monitor:
        for _ in range(2):
            for _ in range(30):
                dist.all_reduce(tensor)
            monitor._torch._not_before = 0.0
            monitor._torch.look()


@recorded
def test_it_is_read_before_it_forgets(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "40")
    path = tmp_path / "monitor.jsonl"
    with world_of(2, tmp_path / "ranks", ends=True) as world:
        world(in_two_halves, path)
    told, calls = told_in(path)
    # Without the look half-way 20 would be lost. Of one that Gloo's thread has not written the end of by then, on a busy machine, nobody sees it.
    assert calls["world", "gloo:all_reduce"]["count"] >= 59 and told["unread"].get("world", 0) <= 1


@recorded
def test_a_recorder_that_is_off_has_recorded_none(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "0")
    path = tmp_path / "monitor.jsonl"
    with world_of(2, tmp_path / "ranks", ends=True) as world:
        world(more_than_the_ring_holds, path, 3)
    told, calls = told_in(path)
    assert (told["torch_collectives"], calls) == ("none recorded", {})


def failing(rank, path):
    tensor, others = torch.ones(4), dist.new_group([0, 1], timeout=timedelta(seconds=1))
    dist.all_reduce(tensor, group=others)
    logger = torch_collectives._logger_of_torch()
    before = len(logger.handlers)
    with unhang.Monitor([unhang.JSONL(path)], every_s=60, torch_collectives=True):
        # Complete, and nobody waits for it.
        work = dist.all_reduce(tensor, group=others, async_op=True)
        while not work.is_completed():
            time.sleep(0.01)
        if rank == 0:
            with pytest.raises(RuntimeError):
                dist.all_gather_object([None, None], 1, group=others)
            with pytest.raises(RuntimeError):
                dist.all_reduce(tensor, group=others)
            unhang.barrier()
        else:
            unhang.barrier()
    return len(logger.handlers) - before


@recorded
def test_what_fails_is_told_by_group_collective_and_cause(tmp_path):
    path = tmp_path / "monitor.jsonl"
    with world_of(3, tmp_path / "ranks") as world:
        assert world(failing_or_waiting, path) == [0, 0, 0]
    told, _ = told_in(path)
    # What an all_gather_object is made of: the one up to torch 2.13, the other in 2.15.
    gathered = next(name for name in ("gloo:all_gather", "gloo:all_gather_single") if name == told["failures"][0]["collective"])
    assert [(one["group"], one["collective"], one["cause"], one["count"]) for one in told["failures"]] == [
        ("ranks 0,1", gathered, "timeout", 1),
        ("ranks 0,1", "gloo:all_reduce", "broken connection", 1),
    ]


def failing_or_waiting(rank, path):
    if rank < 2:
        return failing(rank, path)
    dist.new_group([0, 1], timeout=timedelta(seconds=1))
    with unhang.Monitor([unhang.JSONL(path)], every_s=60, torch_collectives=True):
        unhang.barrier()
    return 0


class Recorder:
    """NCCL's, of a torch with CUDA: what its dump has of each call."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.reads = 0

    def call(self, name: str, seq: int, *, p2p: bool = False, **more: Any) -> dict[str, Any]:
        entry = {
            "record_id": len(self.entries),
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "profiling_name": f"nccl:{name}",
            "collective_seq_id": seq,
            "is_p2p": p2p,
            "input_sizes": [[250_000_000]],
            "input_dtypes": ["Float"],
            "time_created_ns": time.time_ns(),
            "timeout_ms": 600_000,
            "retired": True,
            "state": "scheduled" if more.get("retired") is False else "completed",
            **more,
        }
        self.entries.append(entry)
        return entry

    def dump(self, collectives: bool, stacks: bool, active: bool) -> bytes:
        assert not stacks
        enqueued = max((entry["collective_seq_id"] for entry in self.entries), default=-1)
        found: dict[str, Any] = {"version": "2.10", "pg_status": {"0": {"last_enqueued_collective": enqueued}} if self.entries else {}}
        if collectives:
            self.reads += 1
            found["entries"] = self.entries
        return pickle.dumps(found)


@pytest.fixture
def nccl(monkeypatch):
    recorder = Recorder()
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", types.SimpleNamespace(_dump_nccl_trace=recorder.dump))
    return recorder


@pytest.fixture
def collectives(nccl):
    found = TorchCollectives(4)
    found._groups["0"] = (0, 1, 2, 3)
    yield found
    found.close()


def calls_of(collectives):
    calls, failures, _, _ = summed([collectives.beside(Tally(rank=0))])
    return {one.collective: one for one in calls}, [(one.collective, one.cause, one.count) for one in failures]


def test_times_of_nccl_are_told_where_its_events_have_them(nccl, collectives):
    nccl.call("all_reduce", 1, duration_ms=1000.0)
    nccl.call("all_reduce", 2)
    pending = nccl.call("_all_gather_base", 3, retired=False)
    collectives.read(last=True)
    calls, _ = calls_of(collectives)
    assert (calls["nccl:all_reduce"].count, calls["nccl:all_reduce"].timed) == (2, 1)
    assert calls["nccl:all_reduce"].latency_p50_s == pytest.approx(1, rel=0.06)
    # A gigabyte each, among four: nccl-tests' formula.
    assert calls["nccl:all_reduce"].busbw_p50_gbps == pytest.approx(1.5, rel=0.06)
    assert "nccl:_all_gather_base" not in calls
    pending |= {"retired": True, "state": "completed", "duration_ms": 500.0}
    collectives.read(last=True)
    calls, failures = calls_of(collectives)
    assert (calls["nccl:_all_gather_base"].count, calls["nccl:_all_gather_base"].timed) == (1, 1)
    assert calls["nccl:_all_gather_base"].busbw_p50_gbps == pytest.approx(6, rel=0.06)
    assert failures == []


def test_what_is_past_its_timeout_is_a_failure_once(nccl, collectives):
    nccl.call("all_reduce", 1, retired=False, time_created_ns=time.time_ns() - 601 * 10**9)
    nccl.call("all_reduce", 2, retired=False)
    collectives.read(last=True)
    collectives.read(last=True)
    assert calls_of(collectives)[1] == [("nccl:all_reduce", "timeout", 1)]


def test_what_nccl_has_given_up_is_a_failure_once(nccl, collectives):
    late = nccl.call("all_reduce", 1, retired=False, time_created_ns=time.time_ns() - 601 * 10**9)
    nccl.call("all_reduce", 2, state="started")
    collectives.read(last=True)
    late |= {"retired": True, "state": "started"}
    collectives.read(last=True)
    assert calls_of(collectives) == ({}, [("nccl:all_reduce", "timeout", 2)])


def launched_together(nccl, seq, **of_last):
    for name in ("send 0->1", "recv 0<-1"):
        nccl.call(name, 1, p2p=True, p2p_seq_id=seq, retired=False, time_created_ns=of_last["time_created_ns"])
    return nccl.call("coalesced", 1, p2p=True, p2p_seq_id=seq, **of_last)


def test_messages_that_are_launched_together_have_ended_where_the_last_entry_has(nccl, collectives):
    old_ns = time.time_ns() - 700 * 10**9
    launched_together(nccl, 1, time_created_ns=old_ns)
    last = launched_together(nccl, 2, time_created_ns=time.time_ns(), retired=False)
    collectives.read(last=True)
    calls, failures = calls_of(collectives)
    assert ({name: one.count for name, one in calls.items()}, failures) == ({"nccl:send": 1, "nccl:recv": 1, "nccl:coalesced": 1}, [])
    last |= {"retired": True, "state": "completed"}
    collectives.read(last=True)
    assert {one.count for one in calls_of(collectives)[0].values()} == {2} and collectives.unread == {}


def test_messages_that_were_launched_together_and_hang_are_one_failure(nccl, collectives):
    launched_together(nccl, 1, time_created_ns=time.time_ns() - 700 * 10**9, retired=False)
    collectives.read(last=True)
    assert calls_of(collectives) == ({}, [("nccl:coalesced", "timeout", 1)])


def test_messages_of_a_recorder_that_never_tells_their_end_are_no_failures(nccl, collectives):
    nccl.call("send 0->1", 1, p2p=True, p2p_seq_id=1, profiling_name="xccl:send 0->1", retired=False, time_created_ns=time.time_ns() - 700 * 10**9)
    collectives.read(last=True)
    assert calls_of(collectives) == ({}, [])


def test_what_is_forgotten_before_its_end_was_seen_is_unread(nccl, collectives):
    nccl.call("all_reduce", 1, retired=False)
    collectives.read(last=True)
    nccl.entries[0] = {**nccl.entries[0], "record_id": 1, "collective_seq_id": 2, "retired": True, "state": "completed"}
    collectives.read(last=True)
    assert collectives.unread == {"world": 1} and calls_of(collectives)[0]["nccl:all_reduce"].count == 1


def test_messages_and_calls_that_are_launched_together_are_no_gap(nccl, collectives):
    nccl.call("send 0->1", 0, p2p=True)
    nccl.call("send 0->2", 0, p2p=True)
    for _ in range(2):
        nccl.call("all_reduce", 1)
    nccl.call("all_reduce", 2)
    collectives.read(last=True)
    calls, _ = calls_of(collectives)
    assert {name: one.count for name, one in calls.items()} == {"nccl:all_reduce": 3, "nccl:send": 2}
    assert collectives.unread == {}
    nccl.call("all_reduce", 6)
    collectives.read(last=True)
    assert collectives.unread == {"world": 3}


def test_entries_that_begin_anew_are_new(nccl, collectives):
    for seq in (1, 2, 3):
        nccl.call("all_reduce", seq)
    collectives.read(last=True)
    nccl.entries.clear()
    nccl.call("all_reduce", 1)
    collectives.read(last=True)
    assert calls_of(collectives)[0]["nccl:all_reduce"].count == 4 and collectives.unread == {}


def test_nothing_is_read_where_nothing_is_new_or_it_costs_too_much(nccl, collectives):
    nccl.call("all_reduce", 1)
    collectives.read(last=True)
    collectives.read(last=True)
    assert nccl.reads == 1
    nccl.call("all_reduce", 2)
    collectives._not_before = time.monotonic() + 60
    collectives.read()
    assert nccl.reads == 1
    collectives.read(last=True)
    assert nccl.reads == 2


def test_names_without_end_are_bounded(nccl, collectives):
    for number in range(2 * torch_collectives._MOST_KEYS):
        nccl.call(f"op{number}", number + 1)
    collectives.read(last=True)
    assert len(collectives.calls) == torch_collectives._MOST_KEYS + 1
    assert sum(one.count for one in collectives.calls.values()) == 2 * torch_collectives._MOST_KEYS


def test_a_recorder_of_another_form_is_given_up_and_said(nccl, collectives, caplog):
    nccl.call("all_reduce", 1)
    del nccl.entries[0]["profiling_name"]
    with caplog.at_level(logging.WARNING, logger="unhang"):
        collectives.read(last=True)
        collectives.read(last=True)
    assert collectives.standing == "not read: KeyError: 'profiling_name'"
    assert caplog.text.count("does not see torch's own collectives, the training goes on") == 1


def test_a_torch_without_a_recorder_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", types.SimpleNamespace())
    found = TorchCollectives(2)
    found.close()
    assert found.standing == "not read: this torch has no flight recorder"


def test_nothing_is_asked_of_cuda_events_where_a_capture_could_be_spoilt(nccl, collectives, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    nccl.call("all_reduce", 1)

    def absent(name):
        raise OSError(name)

    monkeypatch.setattr(torch_collectives.ctypes, "CDLL", absent)
    collectives.read(last=True)
    assert (nccl.reads, collectives.calls) == (0, {}) and collectives.standing.startswith("not read: asking about NCCL's calls")

    modes = []

    def exchange(mode):
        modes.append((threading.get_ident(), mode._obj.value))
        mode._obj.value = 1
        return 0

    monkeypatch.setattr(torch_collectives.ctypes, "CDLL", lambda name: types.SimpleNamespace(cuThreadExchangeStreamCaptureMode=exchange))
    nccl.call("all_reduce", 2)
    collectives.read(last=True)
    # Relaxed while it reads, and what it was before afterwards.
    assert modes == [(threading.get_ident(), 2), (threading.get_ident(), 1)] and collectives.calls["world|nccl:all_reduce"].count == 2


@pytest.mark.parametrize(
    ("says", "cause"),
    [
        ("[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1000ms for recv operation to complete", "timeout"),
        ("Application timeout caused pair closure", "broken connection"),
        ("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711", "broken connection"),
        ("Tensors must be contiguous", "error"),
    ],
)
def test_causes_of_what_torch_says(says, cause):
    assert cause_of_text(says) == cause
