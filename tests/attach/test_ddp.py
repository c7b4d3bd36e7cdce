"""DistributedDataParallel gets the bucket size, and cuDNN the mode, that the user asked for."""

import pytest

from unhang.attach import protocol, start

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.integration]

SCRIPT = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + os.environ["MEET"], rank=0, world_size=1)
layer = torch.nn.Linear(2, 2)
DDP = torch.nn.parallel.DistributedDataParallel
made = [DDP(layer), DDP(layer, None, bucket_cap_mb=4), DDP(layer, bucket_cap_mb=7)]
print(*(one.bucket_bytes_cap // 2**20 for one in made))
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
print(torch.backends.cudnn.benchmark)
optimizer.step()
print(torch.backends.cudnn.benchmark)
try:
    DDP(layer, nonsense=1)
except TypeError as e:
    print(e)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("wanted", "benchmark", "sizes", "changes"),
    [
        ("4", "1", "4 4 4", {("DDP bucket_cap_mb", "25", "4"), ("DDP bucket_cap_mb", "7", "4"), ("cuDNN benchmark", "False", "True")}),
        (None, None, "25 4 7", set()),
    ],
)
def test_it_is_as_asked_for(listener, wanted, benchmark, sizes, changes):
    asked = {protocol.ENV_BUCKET: wanted, protocol.ENV_CUDNN_BENCHMARK: benchmark}
    env = listener.env(MEET=str(listener.directory / "meet"), **{name: value for name, value in asked.items() if value is not None})
    code, out, err = listener.finish(listener.python(SCRIPT, env=env))
    assert code == 0, err
    first, before, after, refused = out.splitlines()
    assert (first, before, after) == (sizes, "False", str(benchmark is not None)) and "nonsense" in refused
    (peer,) = listener.peers
    assert {(m["what"], m["was"], m["now"]) for m in peer.of("overridden")} == changes


def test_the_name_is_the_same_on_both_sides():
    assert start.BUCKET == protocol.ENV_BUCKET
