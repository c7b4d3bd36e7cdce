"""What the user asks for over the script's head: real ranks that ask for NCCL, on CPU."""

import json
import sys
from pathlib import Path

import pytest
from tests.tables import for_each

from unhang.attach import overrides, protocol, start

dist = pytest.importorskip("torch.distributed")
pytestmark = pytest.mark.torch

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
TIMEOUT_S = 77.0

ASKS_FOR_NCCL = """
import json, os, sys, warnings
from datetime import timedelta
import torch
import torch.distributed as dist
warnings.simplefilter("ignore")
store = dist.FileStore(sys.argv[1] + ".store", 2)
# torch refuses a device that is no accelerator: this one is to be dropped.
dist.init_process_group(
    "nccl", timeout=timedelta(seconds=600), store=store, rank=int(os.environ["RANK"]), world_size=2, device_id=torch.device("cpu"))
# Every tensor is taken for one on a GPU.
sys.modules["_unhang_attach.gloo_stand_in"].away = lambda tensor: True
rank, R = dist.get_rank(), dist.ReduceOp
seen = {}

def timeout_of(group=None):
    group = group or dist.group.WORLD
    return group._get_backend(torch.device("cpu")).options._timeout.total_seconds()

def note(name, *tensors):
    seen[name] = [tensor.tolist() for tensor in tensors]

groups = {"nccl": dist.new_group([0, 1], backend="nccl"), "mixed": dist.new_group([0, 1], backend="cpu:gloo,cuda:nccl"),
          "short": dist.new_group([0, 1], timeout=timedelta(seconds=5))}
# Not in torch 2.4.
if hasattr(dist, "split_group"):
    groups["split"] = dist.split_group(split_ranks=[[0], [1]])
seen["groups"] = {name: [dist.get_backend(group), timeout_of(group), group.size()] for name, group in groups.items()}
seen["world"] = [dist.get_backend(), timeout_of(), store.timeout.total_seconds()]
seen["bound"] = dist.group.WORLD.bound_device_id is None
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (2,))
seen["mesh"] = dist.get_backend(mesh.get_group())

x = torch.full((2,), rank + 1.0)
dist.all_reduce(x, R.AVG)
note("avg", x)
x = torch.full((2,), 2 * rank + 1)
work = dist.all_reduce(x, op=R.AVG, async_op=True)
work.wait()
note("avg of integers", x)
x = torch.full((2,), rank + 1.0)
dist.reduce(x, 1, R.AVG)
note("reduce", x)
wide = torch.zeros(2, 2)
dist.reduce_scatter_tensor(wide[:, 0], torch.arange(4.0).view(2, 2) * (rank + 1), R.MAX)
note("reduce_scatter_tensor", wide)
out = torch.empty(2)
work = dist.reduce_scatter(out, [torch.ones(2) * (rank + 1), torch.ones(2) * 10 * (rank + 1)], R.MAX, async_op=True)
work.wait()
note("reduce_scatter", out)
out = torch.empty(2, 2, 1)
dist.all_gather_into_tensor(out, torch.full((2, 1), float(rank)))
note("all_gather_into_tensor", out)
# Rank 0 gives (1, 3) elements and takes (1, 2); rank 1 gives (2, 4) and takes (3, 4).
outs = [torch.zeros(1), torch.zeros(1, 2)] if rank == 0 else [torch.zeros(3), torch.zeros(4, 2)[:, 0]]
ins = [torch.full((1,), 1.0), torch.full((3,), 2.0)] if rank == 0 else [torch.full((1, 2), 3.0), torch.arange(8.0).view(4, 2)[:, 1]]
work = dist.all_to_all(outs, ins, async_op=True)
assert isinstance(work, dist.Work)
before = [tensor.clone() for tensor in outs]
assert work.wait() and work.wait() and work.is_completed()
note("all_to_all", *outs)
seen["copied back by wait"] = all(bool((tensor == 0).all()) for tensor in before)
dist.barrier(device_ids=[0])
outs = [torch.zeros(1), torch.zeros(2, 2)]
dist.all_gather(outs, torch.full((1,), 1.0) if rank == 0 else torch.full((2, 2), 2.0), async_op=True).wait()
note("all_gather of unequal sizes", *outs)
outs = [torch.zeros(2, 2), torch.zeros(4, 2)[:, 0]]
dist.all_gather(outs, torch.arange(4.0) + 10 * rank)
note("all_gather of other shapes", *outs)
outs = [torch.zeros(4), torch.zeros(2, 2, 2)]
dist.all_gather(outs, torch.ones(2, 2) if rank == 0 else torch.full((8,), 2.0))
note("all_gather of other and unequal shapes", *outs)
class Named(torch.Tensor):
    pass
x = torch.full((2,), rank + 1.0).as_subclass(Named)
dist.all_reduce(x, R.AVG)
note("a subclass with memory of its own", x)
try:
    from torch.distributed.tensor import DTensor, Replicate
except ImportError:  # torch 2.4
    from torch.distributed._tensor import DTensor, Replicate
wrapped = DTensor.from_local(torch.ones(2), mesh, [Replicate()], run_check=False)
seen["refused"] = []
calls = {"isend": lambda: dist.isend(wrapped, 1 - rank), "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(torch.ones(1), wrapped)}
for name, call in calls.items():
    try:
        call()
    except TypeError as error:
        seen["refused"].append(f"{error}".startswith(f"{name} of a DTensor"))
y = torch.full((2,), rank + 1.0)
# As DDP does with what a communication hook returns: nobody calls wait in Python.
reduced = dist.all_reduce(y, R.AVG, async_op=True).get_future()
torch.futures.wait_all([reduced.then(lambda done: done.value())])
note("a future", y)
tensors = [torch.full((2,), rank + 1.0), torch.ones(3)]
with dist.distributed_c10d._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
    for tensor in tensors:
        dist.all_reduce(tensor, async_op=True)
manager.wait()
note("coalesced", *tensors)
# As DeepSpeed does: the last one stands for all.
outs, works = [torch.zeros(2) for _ in range(500)], []
with dist.distributed_c10d._coalescing_manager(device=torch.device("cpu"), async_ops=True):
    for out in outs:
        works.append(dist.all_gather_into_tensor(out, torch.full((1,), rank + 1.0), async_op=True))
works[-1].wait()
note("the last of a block", sum(outs))
block = torch.full((2,), rank + 1.0)
with dist.distributed_c10d._coalescing_manager(async_ops=True):
    dist.all_reduce(block)
    dist.irecv(taken := torch.zeros(2), 1 - rank)
    last = dist.isend(block, 1 - rank)
last.wait()
note("a mixed block", block, taken)
scattered, swapped = torch.zeros(1), [torch.zeros(1), torch.zeros(1)]
with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
    dist.reduce_scatter_tensor(scattered, torch.tensor([2.0, 4.0]) * (rank + 1), op=dist.ReduceOp.AVG, async_op=True)
    dist.all_to_all(swapped, [torch.full((1,), rank + 1.0), torch.full((1,), rank + 5.0)], async_op=True)
manager.wait()
note("stand-ins in a block", scattered, *swapped)
# Nobody receives before all have been sent.
many = [torch.zeros(1) for _ in range(300)]
operations = [dist.P2POp(dist.isend, torch.full((1,), float(n)), 1 - rank) for n in range(300)]
for work in dist.batch_isend_irecv(operations + [dist.P2POp(dist.irecv, one, 1 - rank) for one in many]):
    work.wait()
seen["many sends"] = [float(sum(many)), len(sys.modules["_unhang_attach.gloo_stand_in"]._left)]
first = dist.new_group([0])
done = dist.reduce_scatter_tensor(torch.zeros(1), torch.zeros(1 + rank), dist.ReduceOp.SUM, first)
seen["not of the group"] = done is None
grid = torch.zeros(2, 2)
given = torch.arange(4.0)[::2] + 10 * rank
for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, given, 1 - rank), dist.P2POp(dist.irecv, grid[:, 1], 1 - rank)]):
    work.wait()
note("batch_isend_irecv", grid)
if rank == 0:
    dist.send(torch.arange(4.0).view(2, 2).t(), 1, tag=3)
else:
    x = torch.zeros(2, 2)
    seen["source"] = dist.recv(x, tag=3)
    note("recv", x)
tensors = [torch.full((1,), rank + 1.0), torch.ones(2)]
dist.all_reduce_coalesced(tensors, async_op=True).wait()
note("all_reduce_coalesced", *tensors)
lists = [[torch.empty(1), torch.empty(2)] for _ in range(2)]
dist.all_gather_coalesced(lists, [torch.full((1,), rank + 1.0), torch.full((2,), rank + 5.0)])
note("all_gather_coalesced", *lists[0], *lists[1])
import torch.distributed._functional_collectives as functional
sys.modules["_unhang_attach.functional"].register(dist.distributed_c10d, "CPU")
note("functional gather", functional.all_gather_tensor(torch.full((1,), rank + 1.0), 0, dist.group.WORLD))
arrived = functional.all_gather_tensor(torch.full((1,), rank + 1.0), 0, dist.group.WORLD)
note("an arrived one", sum((dist.all_gather_into_tensor(out := torch.zeros(4), arrived), out)[1:]))
note("functional scatter", functional.reduce_scatter_tensor(torch.arange(2.0) * (rank + 1), "avg", 0, dist.group.WORLD))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.full((1, 2), rank + 1.0)).sum().backward()
note("gradient", model.module.weight.grad)
optimizer.step()
with open(f"{sys.argv[1]}.{rank}", "w") as file:
    json.dump(seen, file)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def ranks(shared_listener):
    """What two ranks saw, and what they said to the supervisor."""
    listener = shared_listener
    script, result = listener.directory / "nccl.py", listener.directory / "seen"
    script.write_text(ASKS_FOR_NCCL)
    env = listener.env(**{protocol.ENV_BACKEND: "gloo", protocol.ENV_TIMEOUT: "77", protocol.ENV_PREFETCH: "many"})
    code, _, err = listener.finish(listener.run([*TORCHRUN, str(script), str(result)], env=env))
    assert code == 0, err[-4000:]
    return [(json.loads(Path(f"{result}.{rank}").read_text()), listener.peer(rank=rank)) for rank in (0, 1)]


def test_every_group_is_gloo_with_the_timeout(ranks):
    for seen, peer in ranks:
        assert seen["world"] == ["gloo", TIMEOUT_S, TIMEOUT_S] and seen["bound"] and seen["mesh"] == "gloo"
        split = {"split": ["gloo", TIMEOUT_S, 1]} if hasattr(dist, "split_group") else {}
        assert seen["groups"] == {name: ["gloo", TIMEOUT_S, 2] for name in ("nccl", "mixed", "short")} | split
        (joined,) = peer.of("joined")
        assert (joined["backend"], joined["timeout_s"]) == ("gloo", TIMEOUT_S)


@for_each(
    ("name", "of_0", "of_1"),
    [
        ("avg", [[1.5, 1.5]], [[1.5, 1.5]]),
        ("avg of integers", [[2, 2]], [[2, 2]]),
        ("reduce", [[1, 1]], [[1.5, 1.5]]),
        ("reduce_scatter_tensor", [[[0, 0], [2, 0]]], [[[4, 0], [6, 0]]]),
        ("reduce_scatter", [[2, 2]], [[20, 20]]),
        ("all_gather_into_tensor", [[[[0], [0]], [[1], [1]]]], [[[[0], [0]], [[1], [1]]]]),
        ("all_to_all", [[1], [[3, 3]]], [[2, 2, 2], [1, 3, 5, 7]]),
        ("all_gather of unequal sizes", [[1], [[2, 2], [2, 2]]], [[1], [[2, 2], [2, 2]]]),
        ("all_gather of other shapes", *[[[[0, 1], [2, 3]], [10, 11, 12, 13]]] * 2),
        ("all_gather of other and unequal shapes", *[[[1, 1, 1, 1], [[[2, 2], [2, 2]], [[2, 2], [2, 2]]]]] * 2),
        ("a subclass with memory of its own", [[1.5, 1.5]], [[1.5, 1.5]]),
        ("a future", [[1.5, 1.5]], [[1.5, 1.5]]),
        ("an arrived one", [[1, 2, 1, 2]], [[1, 2, 1, 2]]),
        ("coalesced", [[3, 3], [2, 2, 2]], [[3, 3], [2, 2, 2]]),
        ("the last of a block", [[500, 1000]], [[500, 1000]]),
        ("a mixed block", [[3, 3], [3, 3]], [[3, 3], [3, 3]]),
        ("stand-ins in a block", [[3], [1], [2]], [[6], [5], [6]]),
        ("batch_isend_irecv", [[[0, 10], [0, 12]]], [[[0, 0], [0, 2]]]),
        ("all_reduce_coalesced", [[3], [2, 2]], [[3], [2, 2]]),
        ("all_gather_coalesced", [[1], [5, 5], [2], [6, 6]], [[1], [5, 5], [2], [6, 6]]),
        ("functional gather", [[1, 2]], [[1, 2]]),
        ("functional scatter", [[0]], [[1.5]]),
        ("gradient", [[[1.5, 1.5]]], [[[1.5, 1.5]]]),
    ],
)
def test_what_stands_in_gives_the_same_numbers(ranks, name, of_0, of_1):
    assert [seen[name] for seen, _ in ranks] == [of_0, of_1]


def test_tensors_that_only_wrap_others_are_refused_by_name(ranks):
    assert [seen["refused"] for seen, _ in ranks] == [[True, True]] * 2


def test_sends_wait_for_nobody_and_are_kept_no_longer_than_they_last(ranks):
    assert [seen["many sends"] for seen, _ in ranks] == [[44850.0, 0], [44850.0, 0]]


def test_who_is_not_of_the_group_does_nothing(ranks):
    assert all(seen["not of the group"] for seen, _ in ranks)


def test_a_receiver_learns_who_sent(ranks):
    seen, _ = ranks[1]
    assert seen["source"] == 0 and seen["recv"] == [[[0, 2], [1, 3]]]


def test_in_the_background_is_copied_back_by_wait(ranks):
    assert all(seen["copied back by wait"] for seen, _ in ranks)


def test_each_change_is_told_once_with_its_line(ranks):
    line = 1 + ASKS_FOR_NCCL.splitlines().index("dist.init_process_group(")
    for _, peer in ranks:
        told = {(m["what"], m["was"], m["now"]): m["place"] for m in peer.of("overridden")}
        assert len(told) == len(peer.of("overridden"))
        assert told["backend", "nccl", "gloo"][0].endswith("nccl.py") and told["backend", "nccl", "gloo"][1] == line
        assert told["timeout", "600 s", "77 s"][1] == line
        assert ("timeout", "5 s", "77 s") in told and ("backend", "cpu:gloo,cuda:nccl", "gloo") in told
        assert {what for what, _, _ in told} >= {"send", "recv", "all_to_all", "reduce_scatter", "ReduceOp.AVG", "functional all_gather_into_tensor"}


# Whose code every function is, of each module and class that anything of ours could replace.
WHOSE_CODE = """
import json, sys
import torch, torch.distributed as dist, torch.utils.data
import torch.distributed._functional_collectives as functional
import torch._dynamo.trace_rules as trace_rules
places = {"c10d": vars(dist.distributed_c10d), "dist": vars(dist), "functional": vars(functional), "loader": vars(torch.utils.data.DataLoader)}
files = {f"{place} {name}": member.__code__.co_filename
         for place, members in places.items() for name, member in members.items() if hasattr(member, "__code__")}
files |= {op: torch._C._dispatch_dump(op) for op in torch._C._dispatch_get_all_op_names() if op.startswith("_c10d_functional::")}
files["remaps"] = sorted(f.__name__ for f in functional.traceable_collective_remaps)
files["skipped"] = list(trace_rules.SKIP_DIRS)
print(json.dumps(files))
"""


@pytest.mark.integration
def test_without_the_variables_nothing_is_touched(listener):
    def looked(**more):
        code, out, err = listener.finish(listener.python(WHOSE_CODE, env=listener.env(**more)))
        assert code == 0, err
        return json.loads(out)

    bare = looked(UNHANG_ATTACH="0")

    def differs(seen):
        return {name for name in bare.keys() | seen.keys() if bare.get(name) != seen.get(name)}

    ours = {f"{place} {name}" for place in ("c10d", "dist") for name in ("init_process_group", "destroy_process_group")}
    assert differs(looked()) == ours
    # It would be seen: each of these by one variable.
    made = {"c10d new_group", "dist new_group", *(["c10d split_group"] if hasattr(dist, "split_group") else [])}
    assert differs(looked(UNHANG_TIMEOUT_S="60")) > ours | made
    assert differs(looked(UNHANG_PREFETCH="3")) == ours | {"loader __init__"}
    gloo = differs(looked(UNHANG_BACKEND="gloo"))
    # The compiler of torch 2.4 has no operators for messages that it would have to be kept from.
    remapped = {"remaps"} if {"isend", "irecv", "batch_isend_irecv"}.intersection(bare["remaps"]) else set()
    assert gloo > ours | {"c10d send", "dist all_to_all", "_c10d_functional::all_reduce", "skipped"} | remapped


def test_backends_that_gloo_cannot_stand_in_for(listener):
    code = """
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
print(dist.get_backend(), dist.get_world_size())
"""
    env = listener.env(**{protocol.ENV_BACKEND: "gloo", protocol.ENV_TIMEOUT: "-3"})
    assert listener.finish(listener.python(code, env=env))[:2] == (0, "fake 4\n")
    (peer,) = listener.peers
    assert {(m["what"], m["value"], m["why"]) for m in peer.of("ignored")} == {("backend", "fake", "tensors"), (protocol.ENV_TIMEOUT, "-3", "value")}


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "ten", "1e99", "1_0x"])
def test_timeouts_that_are_none(monkeypatch, text):
    monkeypatch.setattr(overrides, "_said", set())
    monkeypatch.setattr(overrides, "_unsent", [])
    monkeypatch.setenv(protocol.ENV_TIMEOUT, text)
    assert overrides.timeout_s() is None and overrides.timeout_s() is None
    assert overrides._unsent == [("ignored", {"what": protocol.ENV_TIMEOUT, "value": text, "why": "value"})]


def test_the_names_that_start_repeats():
    assert start.BACKEND == protocol.ENV_BACKEND
    assert start.LOADER == (
        protocol.ENV_LOADER_WORKERS,
        protocol.ENV_LOADER_WORKERS_MOST,
        protocol.ENV_PIN_MEMORY,
        protocol.ENV_PERSISTENT_WORKERS,
        protocol.ENV_PREFETCH,
    )


# Rank 1 takes them only after all have been sent; the last ones it never takes.
NOBODY_WAITS = """
import gc, sys
import torch, torch.distributed as dist
dist.init_process_group("nccl")
sys.modules["_unhang_attach.gloo_stand_in"].away = lambda tensor: True
sends, rank, taken = sys.modules["_unhang_attach.gloo_stand_in"], dist.get_rank(), torch.zeros(1000)
kept = []
for block in range(3):
    if rank == 0:
        for n in range(50):
            dist.isend(torch.full((1000,), float(n)), 1)
        gc.collect()
        kept.append(len(sends._left) + len(sends._abandoned))
    dist.barrier()
    if rank == 1:
        total = 0.0
        for n in range(50):
            dist.recv(taken, 0)
            total += float(taken[-1])
    dist.barrier()
    # More than are on the way at a time.
    sends.MOST_BYTES = (4_000 * 60, 4_000 * 55)[block % 2]
if rank == 0:
    dist.isend(torch.ones(1), 1, tag=9)
    held = dist.isend(torch.ones(1), 1, tag=9)
# In one piece: both write to one pipe.
print(f"{kept if rank == 0 else total}\\n", end="")
"""


@pytest.mark.integration
def test_sends_that_nobody_waits_for_arrive_and_only_so_many_are_kept(listener):
    script = listener.directory / "sends.py"
    script.write_text(NOBODY_WAITS)
    code, out, err = listener.finish(listener.run([*TORCHRUN, str(script)], env=listener.env(**{protocol.ENV_BACKEND: "gloo"})))
    assert code == 0, err[-4000:]
    assert sorted(out.splitlines()) == ["1225.0", "[50, 61, 56]"]


def test_what_was_changed_is_told_where_the_start_fails(listener):
    """As under Lightning: no launcher has named the rank, and nothing is attached before it joins."""
    code = """
from datetime import timedelta
import torch.distributed as dist
dist.init_process_group("nccl", init_method="tcp://127.0.0.1:1", rank=1, world_size=2, timeout=timedelta(seconds=600))
"""
    env = listener.env(**{protocol.ENV_BACKEND: "gloo", protocol.ENV_TIMEOUT: "1", "RANK": None})
    code, _, err = listener.finish(listener.python(code, env=env))
    assert code == 1, err
    (peer,) = listener.peers
    assert peer.hello["rank"] == 1
    assert [(m["what"], m["now"]) for m in peer.of("overridden")] == [("backend", "gloo"), ("timeout", "1 s")]
    assert len(peer.of("raised")) == 1 and peer.of("joined") == []
