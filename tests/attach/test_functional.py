"""The operators of functional collectives on Gloo, eager and compiled, on real ranks on CPU whose tensors are taken for some on GPUs."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from unhang.attach import protocol

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.integration, pytest.mark.timeout(300)]

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
BACKENDS = ("eager", "aot_eager", *(["inductor"] if shutil.which("g++") else []))

START = """
import json, sys, warnings
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
warnings.simplefilter("ignore")
dist.init_process_group("nccl")
sys.modules["_unhang_attach.gloo_stand_in"].away = lambda tensor: True
# That of CPU tensors is away, too: whoever goes past the stand-ins fails.
sys.modules["_unhang_attach.functional"].register(dist.distributed_c10d, "CPU")
rank, world, ops = dist.get_rank(), dist.group.WORLD, torch.ops._c10d_functional
x, seen = torch.full((2,), rank + 1.0), {}
"""
END = """
with open(f"{sys.argv[1]}.{rank}", "w") as file:
    json.dump(seen, file)
dist.destroy_process_group()
"""

COMPILED = """
told = sys.modules["_unhang_attach.overrides"]._said

def operators(x):
    gathered = ops.wait_tensor(ops.all_gather_into_tensor(x * 2, 2, world.group_name))
    scattered = ops.wait_tensor(ops.reduce_scatter_tensor(gathered * (rank + 1), "avg", 2, world.group_name))
    averaged = ops.wait_tensor(ops.all_reduce(scattered + 1, "avg", world.group_name))
    given = ops.wait_tensor(ops.broadcast(averaged + rank, 1, world.group_name))
    exchanged = ops.wait_tensor(ops.all_to_all_single(gathered, [1, 3] if rank == 0 else [3, 1], [1, 3] if rank == 0 else [3, 1], world.group_name))
    several = ops.all_gather_into_tensor_coalesced([x, x[:1] * 3], 2, world.group_name)
    parts = ops.reduce_scatter_tensor_coalesced([x, x * 3], "max", 2, world.group_name)
    sums = ops.all_reduce_coalesced([x + 0, x * 3], "sum", world.group_name)
    return [gathered * 1, scattered * 1, averaged * 1, given * 1, exchanged * 1, *(ops.wait_tensor(one) * 1 for one in [*several, *parts, *sums])]

def remapped(x):
    y, out, part = x * 2, torch.empty(4), torch.empty(2)
    dist.all_reduce(y, op=dist.ReduceOp.AVG)
    # torch 2.4 compiles it only where the group is named, with unhang or without.
    dist.all_gather_into_tensor(out, y + rank, group=world)
    dist.reduce_scatter_tensor(part, out * (rank + 1), op=dist.ReduceOp.AVG)
    return y, out, part

def between_graphs(x):
    y, taken, parts = x * 2, torch.zeros(2), [torch.zeros(1), torch.zeros(1)]
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, y, 1 - rank), dist.P2POp(dist.irecv, taken, 1 - rank)]):
        work.wait()
    dist.all_to_all(parts, [y[:1], y[1:] + 1])
    return taken + 1, parts[0] + 0, parts[1] + 0

for function in (operators, remapped, between_graphs):
    for backend in (None, *sys.argv[2].split(",")):
        torch._dynamo.reset()
        told.clear()
        run = function if backend is None else torch.compile(function, backend=backend, fullgraph=function is not between_graphs)
        result = [tensor.tolist() for tensor in run(x)]
        seen[f"{function.__name__} {backend}"] = [result, sorted({what for what, _, _ in told})]
"""


def two_ranks(listener, code, *args):
    script, result = listener.directory / "train.py", listener.directory / "seen"
    script.write_text(START + code + END)
    # Inductor calls g++ in both ranks; its pools of compilers would each import torch once more, for a handful of kernels.
    env = listener.env(**{protocol.ENV_BACKEND: "gloo", "TORCHINDUCTOR_COMPILE_THREADS": "1"})
    status, _, err = listener.finish(listener.run([*TORCHRUN, str(script), str(result), *args], env=env), wait_s=240)
    assert status == 0, err[-4000:]
    return [json.loads(Path(f"{result}.{rank}").read_text()) for rank in (0, 1)]


@pytest.fixture(scope="module")
def compiled(shared_listener):
    return two_ranks(shared_listener, COMPILED, ",".join(BACKENDS))


OPERATORS = [
    [[2, 2, 4, 4], [3, 3], [5.5, 5.5], [6.5, 6.5], [2, 2, 2, 4], [1, 1, 2, 2], [3, 6], [2], [6], [3, 3], [9, 9]],
    [[2, 2, 4, 4], [6, 6], [5.5, 5.5], [6.5, 6.5], [2, 4, 4, 4], [1, 1, 2, 2], [3, 6], [2], [6], [3, 3], [9, 9]],
]


@pytest.mark.parametrize("backend", [None, *BACKENDS])
def test_operators_give_the_numbers_of_nccl_wherever_they_are_called(compiled, backend):
    assert [seen[f"operators {backend}"][0] for seen in compiled] == OPERATORS
    for seen in compiled:
        told = seen[f"operators {backend}"][1]
        assert {"functional all_gather_into_tensor", "functional reduce_scatter_tensor", "functional all_to_all_single"} <= set(told)


@pytest.mark.parametrize("backend", [None, *BACKENDS])
def test_collectives_that_the_compiler_takes_into_its_graph(compiled, backend):
    """With `fullgraph`: there is nothing in between that could save them."""
    assert [seen[f"remapped {backend}"][0] for seen in compiled] == [
        [[3, 3], [3, 3, 4, 4], [4.5, 4.5]],
        [[3, 3], [3, 3, 4, 4], [6, 6]],
    ]
    if backend is not None:
        assert all("functional reduce_scatter_tensor" in seen[f"remapped {backend}"][1] for seen in compiled)


@pytest.mark.parametrize("backend", [None, *BACKENDS])
def test_collectives_that_it_cannot_take_stand_in_between_graphs(compiled, backend):
    assert [seen[f"between_graphs {backend}"][0] for seen in compiled] == [[[5, 5], [2], [4]], [[3, 3], [3], [5]]]
    assert all({"send", "recv", "all_to_all"} <= set(seen[f"between_graphs {backend}"][1]) for seen in compiled)


REFUSED = """
for name, args in {"isend": (x, 0, 0), "irecv": (x, 0, 0), "batch_p2p_ops": (["isend"], [0], [0], [x])}.items():
    if hasattr(ops, name):
        try:
            getattr(ops, name)(*args, world.group_name)
        except NotImplementedError as error:
            seen[name] = str(error)
    else:
        seen[name] = name
"""


def test_operators_that_have_no_stand_in_are_refused_by_name(listener):
    for seen in two_ranks(listener, REFUSED):
        assert set(seen) == {"isend", "irecv", "batch_p2p_ops"} and all(name in text for name, text in seen.items())


def test_groups_that_are_not_gloo_keep_what_torch_does(listener):
    code = """
import sys, torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
sys.modules["_unhang_attach.functional"].register(dist.distributed_c10d, "CPU")
gathered = torch.ops._c10d_functional.all_gather_into_tensor(torch.ones(2), 4, dist.group.WORLD.group_name)
reduced = functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD)
print(gathered.shape[0], reduced.tolist(), [what for what, _, _ in sys.modules["_unhang_attach.overrides"]._said if "functional" in what])
"""
    process = listener.python(code, env=listener.env(**{protocol.ENV_BACKEND: "gloo"}))
    status, out, err = listener.finish(process)
    assert (status, out) == (0, "8 [1.0, 1.0] []\n"), err[-2000:]
