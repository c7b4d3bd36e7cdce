"""Loaders get the settings that the user asked for, as far as each of them can have them."""

import json

import pytest

from unhang.attach import protocol

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

# One line for each loader: what it was built with.
SCRIPT = """
import json, os
from torch.utils.data import DataLoader, IterableDataset

class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))

class Own(DataLoader):
    def __init__(self, *args, mine, **kwargs):
        super().__init__(*args, **kwargs)

def loader(kind, *args, **kwargs):
    made = kind(*args, **kwargs)
    print(json.dumps([made.num_workers, made.prefetch_factor, made.persistent_workers, made.pin_memory, made.timeout, sorted(int(x) for x in made)]))

loader(DataLoader, [1, 2, 3], num_workers=1, prefetch_factor=4, persistent_workers=True, timeout=30, multiprocessing_context="fork")
loader(DataLoader, [1, 2, 3])
loader(Own, [1, 2, 3], 1, False, None, None, 1, mine=1)
loader(DataLoader, Stream())
import torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + os.environ["MEET"], rank=0, world_size=1)
dist.destroy_process_group()
"""


def run(listener, **env):
    code, out, err = listener.finish(listener.python(SCRIPT, env=listener.env(MEET=str(listener.directory / "meet"), **env)))
    assert code == 0, err
    (peer,) = listener.peers
    return [json.loads(line) for line in out.splitlines()], peer


def test_no_workers(listener):
    loaders, peer = run(listener, **{protocol.ENV_LOADER_WORKERS: "0", protocol.ENV_PREFETCH: "3", protocol.ENV_PERSISTENT_WORKERS: "1"})
    assert loaders == [[0, None, False, False, 0, [1, 2, 3]]] * 3 + [[0, None, False, False, 0, [0, 1, 2]]]
    assert [(m["what"], m["was"], m["now"]) for m in peer.of("overridden")] == [("loader num_workers", "1", "0")]
    assert {(m["what"], m["why"]) for m in peer.of("ignored")} == {("loader prefetch_factor", "workers"), ("loader persistent_workers", "workers")}


def test_more_workers(listener):
    loaders, peer = run(listener, **{protocol.ENV_LOADER_WORKERS: "2", protocol.ENV_PREFETCH: "3", protocol.ENV_PERSISTENT_WORKERS: "0"})
    assert [loader[:3] for loader in loaders] == [[2, 3, False]] * 3 + [[0, None, False]]
    assert [loader[-1] for loader in loaders] == [[1, 2, 3]] * 3 + [[0, 1, 2]]
    # The whole stream would come twice.
    assert ("loader num_workers", "2", "iterable") in {(m["what"], m["value"], m["why"]) for m in peer.of("ignored")}


def test_what_is_no_value_changes_nothing(listener):
    loaders, peer = run(listener, **{protocol.ENV_LOADER_WORKERS: "-1", protocol.ENV_PREFETCH: "0", protocol.ENV_PIN_MEMORY: "yes"})
    assert [loader[0] for loader in loaders] == [1, 0, 1, 0]
    assert {m["what"] for m in peer.of("ignored")} == {protocol.ENV_LOADER_WORKERS, protocol.ENV_PREFETCH, protocol.ENV_PIN_MEMORY}
    assert peer.of("overridden") == []


def test_a_preset_takes_workers_away_and_gives_none(listener):
    env = {protocol.ENV_LOADER_WORKERS_MOST: "0", protocol.ENV_PREFETCH: "3"}
    assert [loader[0] for loader in run(listener, **env)[0]] == [0, 0, 0, 0]


def test_a_preset_leaves_loaders_alone_that_have_fewer(listener):
    loaders, peer = run(listener, **{protocol.ENV_LOADER_WORKERS_MOST: "1", protocol.ENV_PREFETCH: "3"})
    assert [loader[:2] for loader in loaders] == [[1, 3], [0, None], [1, 3], [0, None]]
    assert not [m for m in peer.of("overridden") if "num_workers" in m["what"]]


def test_who_says_how_many_wins_over_a_preset(listener):
    loaders, _ = run(listener, **{protocol.ENV_LOADER_WORKERS_MOST: "0", protocol.ENV_LOADER_WORKERS: "1"})
    assert [loader[0] for loader in loaders] == [1, 1, 1, 0]
