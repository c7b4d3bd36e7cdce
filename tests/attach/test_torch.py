"""Processes that use torch.distributed: who joins, what the counters say, what a launcher announces."""

import os
import pickle
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from unhang import flight as flights
from unhang.records.incident import BESIDE_ACCELERATOR

c10d = pytest.importorskip("torch._C._distributed_c10d")
pytestmark = pytest.mark.torch

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

TWO_RANKS = """
import os
import torch
import torch.distributed as dist

def evaluate():
    dist.barrier()  # rank 0 alone

dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
pair = dist.new_group([0, 1], group_desc="pair")
for _ in range(5):
    dist.all_reduce(torch.ones(2))
    optimizer.step()
dist.all_reduce(torch.ones(2), group=pair)
print(f"rank {rank} says", flush=True)
if rank == 0:
    evaluate()
else:
    import threading
    threading.Event().wait()
"""


# Before 2.5 or so torch has no recorder for Gloo. Built for GPUs it has two recorders, and which one a group stands in is told.
HAS_RECORDER = hasattr(c10d, "_dump_fr_trace")
BESIDE = BESIDE_ACCELERATOR if hasattr(c10d, "_dump_nccl_trace") or hasattr(c10d, "_dump_xccl_trace") else ""
recorded = pytest.mark.skipif(not HAS_RECORDER, reason="this torch has no flight recorder for Gloo")


def counted(**groups):
    return {f"{BESIDE}{name.removeprefix('g')}": counters for name, counters in groups.items()} if HAS_RECORDER else {}


def is_stuck(beats, rank):
    """Not only has it begun its last call: the calls before have ended, and it has got as far into this one as it will."""
    alike = len({b["sig"] for b in beats}) == 1 < len(beats)
    return alike and beats[-1]["step"] == 5 and beats[-1]["groups"] == counted(g0=[6 - rank, 5], g1=[1, 1])


@pytest.fixture(scope="module")
def stuck(shared_listener):
    """Two ranks under torchrun: rank 0 is blocked in a barrier, rank 1 somewhere else."""
    listener = shared_listener
    listener.go.clear()
    script = listener.directory / "two.py"
    script.write_text(TWO_RANKS)
    agent = listener.run([*TORCHRUN, str(script)])
    ranks = [listener.peer(rank=rank) for rank in (0, 1)]
    listener.until(lambda: all(is_stuck(r.of("beat")[-2:], i) for i, r in enumerate(ranks)), "both are stuck")
    return SimpleNamespace(listener=listener, agent=agent, ranks=ranks, script=str(script))


def test_who_joined(stuck):
    for number, rank in enumerate(stuck.ranks):
        joined = rank.of("joined")
        assert len(joined) == 1
        assert {k: joined[0][k] for k in ("rank", "world_size", "backend", "device", "timeout_s")} == {
            "rank": number,
            "world_size": 2,
            "backend": "gloo",
            "device": None,
            "timeout_s": 1800.0,
        }
        stepping = rank.of("stepping")
        assert len(stepping) == 1 and (stepping[0]["device"], stepping[0]["initialized"]) == ("cpu", True)
        assert stepping[0]["torch"] == joined[0]["torch"]
    # The agent initialises nothing.
    assert len(stuck.listener.peers) == 2


def test_beats_go_on_while_a_rank_is_blocked(stuck):
    for number, rank in enumerate(stuck.ranks):
        stuck.listener.await_message(rank, "beat", number=len(rank.of("beat")) + 4)
        beats = rank.of("beat")[-4:]
        assert all(beat["step"] == 5 and beat["groups"] == counted(g0=[6 - number, 5], g1=[1, 1]) for beat in beats)
        assert len({beat["sig"] for beat in beats}) == 1
    assert stuck.ranks[0].of("beat")[-1]["place"] == [stuck.script, 7, "evaluate"]
    assert [rank.of("beat")[-1]["inside"] for rank in stuck.ranks] == ["barrier", None]
    assert stuck.ranks[1].of("beat")[-1]["place"][:2] == [stuck.script, 23]


@recorded
def test_evidence_of_a_blocked_rank(stuck):
    flight = stuck.listener.directory / "flight"
    for number, rank in enumerate(stuck.ranks):
        rank.send("evidence", id=number, flight=str(flight / f"rank_{number}"))
    for number, rank in enumerate(stuck.ranks):
        answer = stuck.listener.await_message(rank, "evidence")
        assert (answer["id"], answer["step"]) == (number, 5)
        dumped = stuck.listener.await_message(rank, "dumped")
        assert (dumped["id"], dumped["flight"], dumped["error"]) == (number, True, None)
        entries = pickle.loads((flight / f"rank_{number}").read_bytes())["entries"]
        assert len(entries) == 7 - number
        # Its groups go by the names that stand in the entries.
        read = flights.load(flight / f"rank_{number}")
        assert {name: group.members for name, group in read.groups.items()} == {"0": (0, 1), "1": (0, 1)}
        assert set(read.calls) == {"0", "1"}
    last = pickle.loads((flight / "rank_0").read_bytes())["entries"][-1]
    assert last["profiling_name"] == "gloo:barrier" and not last["retired"]
    assert any(frame["filename"] == stuck.script and frame["line"] == 7 for frame in last["frames"])
    frames = stuck.ranks[0].of("evidence")[0]["threads"][0]["frames"]
    assert [stuck.script, 7, "evaluate", "dist.barrier()  # rank 0 alone", ""] in frames
    assert sorted(path.name for path in flight.iterdir()) == ["rank_0", "rank_1"]


@recorded
def test_a_dump_that_cannot_be_written(stuck):
    rank = stuck.ranks[1]
    before = len(rank.of("dumped"))
    rank.send("evidence", id=9, flight="/proc/nowhere/rank_1")
    dumped = stuck.listener.await_message(rank, "dumped", number=before + 1)
    assert dumped["flight"] is False and "nowhere" in dumped["error"]
    assert rank.of("evidence")[-1]["id"] == 9 and rank.of("evidence")[-1]["threads"][0]["main"]


@pytest.mark.integration
def test_ended_while_blocked(stuck):
    """The last one: a SIGTERM ends rank 0 inside the barrier; the agent announces it before it ends rank 1."""
    listener = stuck.listener
    victim, survivor = (rank.hello["pid"] for rank in stuck.ranks)
    os.kill(victim, signal.SIGTERM)
    stopping = listener.until(lambda: next((p for p in listener.peers if p.of("stopping")), None), "stopping")
    assert stopping.of("stopping")[0]["workers"] == [
        {"local_rank": 0, "pid": victim, "exitcode": -signal.SIGTERM},
        {"local_rank": 1, "pid": survivor, "exitcode": None},
    ]
    assert stopping.hello["pid"] == stuck.agent.pid and stopping.hello["rank"] is None
    assert f'File "{stuck.script}", line 7 in evaluate' in (listener.fatal / "rank0.txt").read_text()
    # The survivor lives until we say go, and still answers.
    before = len(stuck.ranks[1].of("dumped"))
    stuck.ranks[1].send("evidence", id=10, flight=str(listener.directory / "late"))
    # As unhang does: the signal comes after the dump. faulthandler may crash over the frames of a thread that runs meanwhile.
    listener.await_message(stuck.ranks[1], "dumped", number=before + 1)
    assert stuck.ranks[1].of("evidence")[-1]["id"] == 10
    assert (listener.fatal / "rank1.txt").read_text() == ""
    stopping.send("go")
    code, out, err = listener.finish(stuck.agent)
    assert code == 1 and "SIGTERM" in err
    # Both ranks write to one pipe here: whole words, not whole lines, where Python does not buffer.
    assert out.count("rank 0 says") == out.count("rank 1 says") == 1
    assert "line 23 in <module>" in (listener.fatal / "rank1.txt").read_text()
    assert all(rank.of("leaving") == [] for rank in stuck.ranks)
    assert len(listener.peers) == 3


def test_the_agent_tells_exit_codes_and_waits_for_nobody_in_the_end(listener):
    script = listener.directory / "kill.py"
    script.write_text("import os, signal, threading\nif os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\nthreading.Event().wait()\n")
    # Kubeflow gives every pod a RANK; the agent is none for all that.
    agent = listener.run([*TORCHRUN, str(script)], env=listener.env(RANK="1"))
    announcer = listener.until(lambda: next((p for p in listener.peers if p.of("stopping")), None), "stopping")
    assert (announcer.hello["rank"], announcer.hello["local_rank"]) == (None, None)
    stopping = announcer.of("stopping")[0]
    assert [(w["local_rank"], w["exitcode"]) for w in stopping["workers"]] == [(0, None), (1, -signal.SIGKILL)]
    assert listener.finish(agent)[0] == 1
    assert sum(len(p.of("stopping")) for p in listener.peers) == 1


def test_a_good_end_is_not_announced(listener):
    listener.go.clear()
    script = listener.directory / "good.py"
    script.write_text("")
    agent = listener.run([*TORCHRUN, str(script)])
    assert listener.finish(agent)[0] == 0
    assert [p.of("stopping") for p in listener.peers] == [[], []]


PLAIN = """
import inspect, pickle, sys, datetime
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
assert dist.init_process_group is c10d.init_process_group
assert "timeout" in inspect.signature(dist.init_process_group).parameters and "default" in dist.init_process_group.__doc__
pickle.loads(pickle.dumps(dist.init_process_group))
print("before", flush=True)
sys.stdin.readline()
for life in range(2):
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}{life}", rank=0, world_size=1, timeout=datetime.timedelta(seconds=77))
    dist.all_reduce(torch.ones(1))
    one, two = (torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))]) for _ in range(2))
    for i in range(3):
        one.step()
        two.step()
    sys.stdin.readline()
    dist.destroy_process_group()
    sys.stdin.readline()
"""


def test_a_process_that_joins_by_itself(listener):
    script = listener.directory / "plain.py"
    script.write_text(PLAIN)
    process = listener.run([sys.executable, str(script), str(listener.directory / "store")], stdin=subprocess.PIPE, stdout=None)

    def next_line():
        process.stdin.write("\n")
        process.stdin.flush()

    next_line()
    peer = listener.peer(pid=process.pid)
    assert peer.hello["rank"] is None and peer.hello["wants_stdio"] is False
    joined = listener.await_message(peer, "joined")
    assert (joined["rank"], joined["world_size"], joined["timeout_s"]) == (0, 1, 77.0)
    listener.await_message(peer, "stepping")
    listener.until(lambda: peer.of("beat") and peer.of("beat")[-1]["groups"] == counted(g0=[1, 1]) and peer.of("beat")[-1]["step"] == 3)
    next_line()
    listener.await_message(peer, "left")
    listener.until(lambda: peer.of("beat")[-1]["groups"] == {})
    next_line()
    # A second life: the counters of the first one are gone.
    listener.await_message(peer, "joined", number=2)
    listener.until(lambda: peer.of("beat")[-1]["groups"] == counted(g0=[1, 1]))
    next_line()
    listener.await_message(peer, "left", number=2)
    next_line()
    code, _, err = listener.finish(process)
    assert code == 0, err
    listener.await_message(peer, "leaving")
    assert len(peer.of("hello")) == len(peer.of("stepping")) == len(peer.of("leaving")) == 1


def test_a_step_attaches_a_training_without_distributed(listener):
    code = (
        "import torch, sys\n"
        "o = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)\n"
        "o.step()\nsys.stdin.readline()\nraise torch.OutOfMemoryError('full')\n"
    )
    process = listener.python(code, stdin=subprocess.PIPE)
    peer = listener.peer(pid=process.pid)
    stepping = listener.await_message(peer, "stepping")
    assert (stepping["device"], stepping["initialized"]) == ("cpu", False)
    listener.until(lambda: peer.of("beat") and peer.of("beat")[-1]["step"] == 1)
    code, _, err = listener.finish(process)
    assert code == 1 and "OutOfMemoryError: full" in err
    assert listener.await_message(peer, "raised")["type"] == "torch.OutOfMemoryError"


def test_forked_workers_that_join_attach_anew(listener):
    code = (
        "import multiprocessing, sys\n"
        "import torch, torch.distributed as dist\n"
        "def work(rank, store):\n"
        "    dist.init_process_group('gloo', init_method=f'file://{store}', rank=rank, world_size=2)\n"
        "    dist.barrier()\n"
        "    dist.destroy_process_group()\n"
        "torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1).step()\n"
        "context = multiprocessing.get_context('fork')\n"
        "workers = [context.Process(target=work, args=(rank, __file__ + '.store')) for rank in range(2)]\n"
        "for w in workers: w.start()\n"
        "for w in workers: w.join()\n"
        "sys.exit(sum(w.exitcode for w in workers))\n"
    )
    process = listener.python(code)
    assert listener.finish(process)[0] == 0
    parent = listener.peer(pid=process.pid)
    assert parent.of("joined") == [] and parent.of("stepping")
    joined = listener.until(lambda: (found := [m for p in listener.peers for m in p.of("joined")]) and len(found) == 2 and found)
    assert sorted(m["rank"] for m in joined) == [0, 1]
    assert len({p.hello["pid"] for p in listener.peers}) == 3
    listener.until(lambda: sum(len(p.of("leaving")) for p in listener.peers) == 3)


@pytest.mark.integration
def test_a_spawned_worker_that_fails(listener):
    code = (
        "import sys\n"
        "import torch.multiprocessing as mp, torch.distributed as dist\n"
        "def work(rank, store):\n"
        "    dist.init_process_group('gloo', init_method=f'file://{store}', rank=rank, world_size=2)\n"
        "    dist.barrier()\n"
        "    if rank == 1:\n"
        "        raise RuntimeError('one')\n"
        "if __name__ == '__main__':\n"
        "    mp.spawn(work, args=(__file__ + '.store',), nprocs=2)\n"
    )
    listener.go.clear()
    process = listener.python(code)
    failed = listener.until(lambda: next((p for p in listener.peers if p.of("raised")), None), "raised")
    raised = failed.of("raised")[0]
    assert (raised["type"], raised["text"]) == ("RuntimeError", "one")
    assert [frame[1:4] for frame in raised["frames"]] == [[7, "work", "raise RuntimeError('one')"]]
    assert failed.of("joined")[0]["rank"] == 1
    failed.send("go")
    code, _, err = listener.finish(process)
    assert code == 1 and "RuntimeError: one" in err
    listener.until(lambda: failed.of("leaving"))
    assert len(failed.of("leaving")) == 1


@pytest.mark.parametrize(("backend", "seconds"), [("gloo", 5.0), ("fake", 77.0)])
def test_the_timeout_is_that_of_the_group_rather_than_what_was_asked_for(listener, backend, seconds):
    """It comes too late for the hook here. The fake group has no options that would tell."""
    code = f"""
import os
from datetime import timedelta
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
os.environ["UNHANG_TIMEOUT_S"] = "77"
store = FakeStore() if "{backend}" == "fake" else dist.HashStore()
dist.init_process_group("{backend}", timeout=timedelta(seconds=5), store=store, rank=0, world_size=1)
"""
    assert listener.finish(listener.python(code))[0] == 0
    (peer,) = listener.peers
    assert peer.of("joined")[0]["timeout_s"] == seconds
