"""torch's private trackers, pinned: what they count on fake tensors agrees with the closed form, which knows nothing of them."""

import dataclasses
import json

import pytest

from unhang.planning.formula import Tracked, counts, estimate
from unhang.planning.shape import from_config
from unhang.planning.training import STRATEGIES, Lora, Training
from unhang.probes import memory

pytestmark = pytest.mark.torch
pytest.importorskip("transformers")

LLAMA = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4,
         "intermediate_size": 704, "vocab_size": 8000, "tie_word_embeddings": False}  # fmt: skip
QWEN = {**LLAMA, "model_type": "qwen2", "num_key_value_heads": 2, "tie_word_embeddings": True}
GPT2 = {"model_type": "gpt2", "n_embd": 256, "n_layer": 4, "n_head": 4, "vocab_size": 8000, "n_positions": 512,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}  # fmt: skip
BY_NAME = {s.name: s for s in STRATEGIES}
CASES = {
    "llama": (LLAMA, {}),
    "gpt2": (GPT2, {}),
    "grouped queries, tied": (QWEN, {}),
    "few words": ({**LLAMA, "vocab_size": 500}, {}),
    "eager": (LLAMA, {"attention": "eager"}),
    "checkpointing": ({**LLAMA, "num_hidden_layers": 12, "vocab_size": 500}, {"checkpointing": True}),
    "adapters": (LLAMA, {"lora": Lora(rank=8)}),
    "frozen": (LLAMA, {"frozen": 2}),
    "autocast": (LLAMA, {"precision": "bf16"}),
    "half": (LLAMA, {"precision": "pure-bf16"}),
}


def training(**options):
    return Training(**{"world_size": 2, "per_node": 2, "batch": 8, "sequence": 128, "precision": "fp32", "device": "cpu", **options})


def request(config, asked):
    return {"config": config, **dataclasses.asdict(asked)}


def of_loss(found):
    return [sum(getattr(t, end) for t in found.terms if t.id in ("activations", "block-inputs", "logits", "casts")) for end in ("low", "high")]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")
def test_activations(name):
    config, options = CASES[name]
    asked, shape = training(**options), from_config(name, config)
    counted, numbers = memory.activations(request(config, asked), "torch")
    assert numbers == dataclasses.asdict(counts(shape, asked))
    low, high = of_loss(estimate(shape, asked, BY_NAME["ddp"]))
    assert 0.9 * counted <= low <= high * 1.001 and low <= 1.1 * counted, (counted, low, high)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("config", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_fsdp2(config):
    asked, shape = training(), from_config("model", config)
    parts = memory.fsdp2(request(config, asked))
    found = estimate(shape, asked, BY_NAME["fsdp2"])
    assert 0.9 * parts["Total"] <= found.low <= 1.1 * parts["Total"]
    # Every part of it is a term.
    numbers = counts(shape, asked)
    made = estimate(None, asked, BY_NAME["fsdp2"], tracked=Tracked(counts=numbers, batch=8, activations={"torch": 1}, fsdp2=parts))
    counted = sum(t.low for t in made.terms if t.place == "device" and "loss" in t.moments)
    assert counted == parts["Total"] and made.low == max(counted, sum(t.low for t in made.terms if t.place == "device" and "backward" in t.moments))
    # What was counted at one moment says nothing of a batch whose activations are the most.
    larger = dataclasses.replace(asked, batch=64)
    tracked = Tracked(counts=numbers, batch=8, activations={"torch": memory.activations(request(config, asked), "torch")[0]}, fsdp2=parts)
    again = memory.fsdp2(request(config, larger))
    assert 0.9 * again["Total"] <= estimate(None, larger, BY_NAME["fsdp2"], tracked=tracked).low <= 1.1 * again["Total"]


def test_a_callable_is_counted_through_the_command(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from unhang.cli import app

    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layers = torch.nn.ModuleList(torch.nn.Linear(512, 512, bias=False) for _ in range(6))\n"
        "    def forward(self, x):\n"
        "        for layer in self.layers:\n"
        "            x = torch.relu(layer(x))\n"
        "        return x\n"
        "def build(batch):\n"
        "    print('building')\n"
        "    return Net(), torch.zeros(batch, 512)\n"
        "def broken():\n"
        "    raise RuntimeError('no such weights')\n"
    )
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke(app.app, ["plan", "mine:build", "--batch", "64", "--strategy", "ddp", "--json"])
    found = json.loads(run.stdout)
    assert (found["counts"]["parameters"], found["base"]) == (6 * 512 * 512, "tracker")
    # The input of each layer, which is the result of the ReLU before it, that of the last one, and the gradient of one weight.
    (term,) = [t for t in found["rows"][0]["estimate"]["terms"] if t["id"] == "counted"]
    assert term["low"] == pytest.approx((7 * 64 + 512) * 512 * 4, rel=0.01)
    error = CliRunner().invoke(app.app, ["plan", "mine:broken"]).exception
    assert "RuntimeError: no such weights" in str(error)
