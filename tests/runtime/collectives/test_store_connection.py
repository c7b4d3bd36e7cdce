"""A store whose server stands still: torch waits for its answer for ever, we do not."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch.distributed as dist

from unhang.errors import StoreLost
from unhang.runtime.collectives import bounded_store
from unhang.runtime.collectives.bounded_store import BoundedStore

pytestmark = pytest.mark.torch

SERVER = """
import time, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
time.sleep(120)
"""


@pytest.fixture
def server():
    """A process of its own that serves a store, and what the default store of a rank is: a client of it, with a prefix."""
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and select.select([process.stdout], [], [], 60)[0]
        yield process, dist.PrefixStore("default", dist.TCPStore("127.0.0.1", int(process.stdout.readline()), None, is_master=False))
    finally:
        os.kill(process.pid, signal.SIGCONT)
        process.kill()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


def stops(process: subprocess.Popen[str]) -> None:
    """And has stopped when this returns."""
    process.send_signal(signal.SIGSTOP)
    assert os.waitid(os.P_PID, process.pid, os.WSTOPPED) is not None


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(bounded_store, "SILENT_S", 1.0)
    monkeypatch.setattr(bounded_store, "_LOOKS_EVERY_S", 0.1)
    monkeypatch.setattr(bounded_store, "_watcher", None)


def test_a_server_that_stands_still_is_given_up(server, soon):
    process, store = server
    board, other = (BoundedStore(bounded_store.connect(store), "unhang") for _ in range(2))
    board.put("k", b"1")
    stops(process)
    for call in (lambda: board.look("k"), lambda: board.count("n"), lambda: other.wait("nothing", 0.5)):
        began = time.monotonic()
        with pytest.raises(StoreLost, match="has said nothing for 1 s"):
            call()
        assert time.monotonic() - began < 10
    # The training's own connection is left alone.
    process.send_signal(signal.SIGCONT)
    assert not store.check(["nothing"])


def test_one_that_takes_its_time_is_not(server, soon):
    process, store = server
    board = BoundedStore(bounded_store.connect(store), "unhang")
    stops(process)
    goes_on = threading.Timer(0.5, lambda: process.send_signal(signal.SIGCONT))
    goes_on.start()
    assert board.look("k") is None
    goes_on.join()
    assert board.wait("k", 2.5) is None


def test_one_that_stands_still_before_anybody_is_connected(server, soon):
    process, store = server
    stops(process)
    with pytest.raises(StoreLost, match=r"no connection to the store of .* within 1 s"):
        bounded_store.connect(store)


def test_a_wait_by_the_training_s_own_connection_is_none_of_ours(server, soon):
    _, store = server
    board = BoundedStore(bounded_store.connect(store), "unhang")
    waiting = threading.Thread(target=lambda: store.get("late"))
    waiting.start()
    assert board.wait("k", 2.5) is None
    board.put("k", b"here")
    assert board.look("k") == b"here"
    dist.PrefixStore("default", dist.TCPStore("127.0.0.1", store.underlying_store.port, None, is_master=False)).set("late", b"1")
    waiting.join(20)
    assert not waiting.is_alive()


def test_a_stopped_process_counts_no_time(server):
    """Ctrl-Z, a debugger, a suspended machine: the clock has gone on, and nobody was asked."""
    _, store = server
    script = f"""
import os, signal, threading, time
import torch.distributed as dist
from unhang.runtime.collectives import bounded_store
from unhang.runtime.collectives.bounded_store import BoundedStore
bounded_store.SILENT_S, bounded_store._LOOKS_EVERY_S = 1.0, 0.1
board = BoundedStore(bounded_store.connect(dist.TCPStore("127.0.0.1", {store.underlying_store.port}, None, is_master=False)), "unhang")
print("ready", flush=True)
while board.look("end") is None:
    pass
print("unharmed", flush=True)
"""
    asking = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env={**os.environ})
    try:
        assert asking.stdout is not None and select.select([asking.stdout], [], [], 60)[0]
        assert asking.stdout.readline() == "ready\n"
        stops(asking)
        time.sleep(1.5)  # the time itself is what is tested
        asking.send_signal(signal.SIGCONT)
        BoundedStore(bounded_store.connect(store.underlying_store), "unhang").put("end", b"1")
        assert asking.communicate(timeout=30)[0] == "unharmed\n"
    finally:
        asking.kill()
        asking.communicate(timeout=10)


RANK = """
import os, signal, sys, time
import torch, torch.distributed as dist
import unhang
from unhang.runtime.collectives import bounded_store
bounded_store.SILENT_S, bounded_store._LOOKS_EVERY_S = 2.0, 0.1
rank, port = map(int, sys.argv[1:])
store = dist.TCPStore("127.0.0.1", port, None, is_master=rank == 0, wait_for_workers=False)
if rank == 0:
    print(store.port, flush=True)
dist.init_process_group("gloo", store=store, rank=rank, world_size=3)
for _ in range(4):
    unhang.all_reduce(torch.ones(2))

def metrics(data, size):
    unhang.all_reduce(torch.ones(2), deadline=1)
    if rank == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    unhang.all_reduce(torch.ones(2), deadline=1)
    return {"loss": 1.0}

try:
    CALL
except unhang.StoreLost as e:
    print("lost:", e, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(
    "call",
    [
        "unhang.evaluate(metrics, {'a': 1}, batch_size=1, deadline=1)",
        pytest.param("metrics(None, 1)", marks=pytest.mark.integration),
        pytest.param("(unhang.barrier(), rank or os.kill(os.getpid(), signal.SIGSTOP), unhang.barrier(deadline=1))", marks=pytest.mark.integration),
        pytest.param("(unhang.agree(1), rank or os.kill(os.getpid(), signal.SIGSTOP), unhang.agree(1))", marks=pytest.mark.integration),
    ],
    ids=["evaluate", "all_reduce", "barrier", "agree"],
)
def test_the_survivors_of_a_rank_that_serves_the_store(call):
    """Without a launcher's store, rank 0 serves it, and takes it along when it stands still."""
    ranks: list[subprocess.Popen[str]] = []
    port = "0"
    try:
        for rank in range(3):
            command = [sys.executable, "-c", RANK.replace("CALL", call), str(rank), port]
            ranks.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"}))
            if rank == 0:
                assert ranks[0].stdout is not None and select.select([ranks[0].stdout], [], [], 60)[0]
                port = ranks[0].stdout.readline().strip()
        for survivor in ranks[1:]:
            said, _ = survivor.communicate(timeout=60)
            assert said.startswith("lost: ") and "has said nothing for 2 s" in said
    finally:
        for process in ranks:
            process.kill()
            process.communicate(timeout=10)
