"""torch's private trackers, pinned: what they count on fake tensors agrees with the closed form, which knows nothing of them."""

import dataclasses
import json
from functools import partial

import pytest

from unhang.plan.memory_model import Tracked, counts, estimate, layer_activations
from unhang.plan.model_shape import from_config
from unhang.plan.training import STRATEGIES, Lora, Training
from unhang.probes import memory

pytestmark = [pytest.mark.torch, pytest.mark.integration]
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
    "eager, checkpointing": ({**LLAMA, "vocab_size": 500}, {"attention": "eager", "checkpointing": True, "batch": 2, "sequence": 1024}),
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


def counted_for(batch, states):
    return max(sum(fixed + each * batch for fixed, each in state.values()) for state in states)


def of_loss(found):
    return [sum(getattr(t, end) for t in found.terms if t.id in ("activations", "block-inputs", "logits", "casts")) for end in ("low", "high")]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")
def test_activations(name):
    config, options = CASES[name]
    asked, shape = training(**options), from_config(name, config)
    counted = counted_for(asked.batch, memory.worst_states(partial(memory.trace, runs_on="torch"), request(config, asked)))
    assert memory.described(request(config, asked))["counts"] == dataclasses.asdict(counts(shape, asked))
    low, high = of_loss(estimate(shape, asked, BY_NAME["ddp"]))
    assert 0.9 * counted <= low <= high * 1.001 and low <= 1.1 * counted, (counted, low, high)


PLAIN = {"hidden_size": 256, "num_attention_heads": 4, "vocab_size": 500, "tie_word_embeddings": False, "eos_token_id": 0}
GATED = {**PLAIN, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 704}
OF_FAMILIES = {
    **dict.fromkeys(("llama", "qwen3", "olmo2"), GATED),
    "opt": {**PLAIN, "ffn_dim": 1024, "max_position_embeddings": 512, "dropout": 0.0, "word_embed_proj_dim": 256},
    "gpt_neox": {**PLAIN, "intermediate_size": 1024},
    "mixtral": {**GATED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {**GATED, "moe_intermediate_size": 96, "num_experts": 16, "num_experts_per_tok": 4},
}


# Whether autocast reaches the kernels of experts depends on the release of transformers.
@pytest.mark.parametrize(("kind", "precision"), [*((k, "fp32") for k in OF_FAMILIES), *((k, "bf16") for k in [*OF_FAMILIES][:5])])
@pytest.mark.filterwarnings("ignore")
def test_what_a_block_of_each_family_keeps(kind, precision):
    """Real tensors, since models of experts run on no fake ones."""
    import torch

    config, asked = {**OF_FAMILIES[kind], "model_type": kind}, training(batch=4, precision=precision)

    def saved(layers):
        """Bytes that autograd holds, without weights and, with autocast, their casts."""
        model, loss, blocks = memory.built(request({**config, "num_hidden_layers": layers}, asked))
        found = {}

        def pack(tensor):
            found.setdefault(tensor.untyped_storage().data_ptr(), tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), memory.computing(precision, "torch"):
            loss()
        own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
        casts = sum(2 * p.numel() for block in blocks for p in block.parameters() if p.dim() > 1) if precision == "bf16" else 0
        return sum(t.untyped_storage().nbytes() for where, t in found.items() if where not in own) - casts

    one = (saved(4) - saved(2)) / 2
    assert 0.95 * one <= layer_activations(from_config(kind, {**config, "num_hidden_layers": 4}), asked, "torch") <= 1.15 * one


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("config", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_fsdp2(config):
    asked, shape = training(), from_config("model", config)
    states = memory.worst_states(memory.trace_fsdp2, request(config, asked))
    found = estimate(shape, asked, BY_NAME["fsdp2"])
    optimizer = next(t.low for t in found.terms if t.id == "optimizer")
    assert 0.9 * (counted_for(8, states) + optimizer) <= found.low <= 1.1 * (counted_for(8, states) + optimizer)
    # Every part of it is a term, whatever the batch is, and what is foretold for a batch is what is counted with that one.
    tracked = Tracked(counts=counts(shape, asked), activations={"torch": [{"Activation": (0, 1)}]}, fsdp2=states)
    for batch in (1, 64):
        made = estimate(None, dataclasses.replace(asked, batch=batch), BY_NAME["fsdp2"], tracked=tracked)
        terms = sum(t.low for t in made.terms if t.place == "device" and "loss" in t.moments)
        real = max(sum(state.values()) for state in memory.trace_fsdp2({**request(config, asked), "batch": batch}))
        assert terms - optimizer == pytest.approx(counted_for(batch, states)) == real


@pytest.mark.parametrize(("options", "left"), [({}, 0.1), ({"device": "cuda"}, 0.0), ({"device": "cuda", "attention": "eager"}, 0.1)])
def test_kernels_of_gpus_keep_no_scores_for_dropout(options, left):
    config, dropped = memory.configured(request({"model_type": "gpt2", "n_layer": 2}, training(**options)))
    assert (config.attn_pdrop, config.resid_pdrop, dropped) == (left, 0.1, [] if left else ["attn_pdrop"])


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")
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
        "def own():\n"
        "    return Net(), torch.zeros(64, 512)\n"
        "def number():\n"
        "    return 7\n"
        "def broken():\n"
        "    raise RuntimeError('no such weights')\n"
    )
    monkeypatch.chdir(tmp_path)

    def plan(*words):
        return CliRunner().invoke(app.app, ["plan", *words])

    found = json.loads(plan("mine:build", "--batch", "64", "--strategy", "ddp", "--json").stdout)
    assert (found["counts"]["parameters"], found["base"]) == (6 * 512 * 512, "tracker")
    # The input of each layer, which is the result of the ReLU before it, that of the last one, and the gradient of one weight.
    (term,) = [t for t in found["rows"][0]["estimate"]["terms"] if t["id"] == "counted"]
    assert term["low"] == pytest.approx((7 * 64 + 512) * 512 * 4, rel=0.01)
    # Inputs that the model brings are those of --batch sequences.
    monkeypatch.syspath_prepend(tmp_path)
    asked, trace = dataclasses.asdict(training(batch=64)), partial(memory.trace, runs_on="torch")
    (state,) = memory.worst_states(trace, {"callable": "mine:own", **asked})
    assert state == {"Activation": (0, pytest.approx(term["low"] / 64))}
    with pytest.raises(TypeError, match=r"mine:number returned int, and no torch\.nn\.Module"):
        trace({"callable": "mine:number", **asked})
    assert f"RuntimeError: no such weights ({tmp_path / 'mine.py'}:18)" in str(plan("mine:broken").exception)
    assert f"No module named 'nowhere' (looked for in {tmp_path}" in str(plan("nowhere:build").exception)


SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 500}
EXPERTS = {**SMALL, "num_key_value_heads": 4, "moe_intermediate_size": 48, "num_experts_per_tok": 2, "n_routed_experts": 8, "n_shared_experts": 2,
           "first_k_dense_replace": 1, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "n_group": 2,
           "topk_group": 1}  # fmt: skip
IMAGES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "image_size": 32, "patch_size": 8}
TEXT = [("tokens", [16])]
# By model_type: the class, the fields, and what a sample is.
BUILT = {
    "qwen2_moe": ("Qwen2MoeForCausalLM", {**SMALL, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 96, "num_experts": 8}, TEXT),
    "deepseek_v2": ("DeepseekV2ForCausalLM", {**EXPERTS, "q_lora_rank": None, "topk_method": "greedy"}, TEXT),
    "deepseek_v3": ("DeepseekV3ForCausalLM", {**EXPERTS, "q_lora_rank": 32, "torch_dtype": "bfloat16"}, TEXT),
    "gemma2": ("Gemma2ForCausalLM", {**SMALL, "head_dim": 16}, TEXT),
    "t5": ("T5ForConditionalGeneration", {"d_model": 64, "d_ff": 96, "d_kv": 16, "num_layers": 2, "num_heads": 4, "vocab_size": 500,
                                          "decoder_start_token_id": 0}, TEXT),
    "bert": ("BertForSequenceClassification", {**SMALL, "max_position_embeddings": 64}, TEXT),
    "vit": ("ViTForImageClassification", IMAGES, [("image", [3, 32, 32])]),
    "dinov2": ("Dinov2Model", IMAGES, [("image", [3, 32, 32])]),
    "clip": ("CLIPModel", {"text_config": {**SMALL, "max_position_embeddings": 77}, "vision_config": IMAGES}, [*TEXT, ("image", [3, 32, 32])]),
}  # fmt: skip


# Whether autocast reaches experts is the only thing that precision decides here.
@pytest.mark.parametrize(("kind", "precision"), [*((kind, "fp32") for kind in BUILT), ("qwen2_moe", "bf16")])
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")
def test_models_of_every_kind_are_counted_as_they_are_built(kind, precision):
    import torch
    import transformers

    name, fields, sample = BUILT[kind]
    config = {**fields, "model_type": kind}
    with torch.device("meta"):
        built = getattr(transformers, name)(transformers.AutoConfig.for_model(**config))
    asked = request({**config, "architectures": [name]}, training(batch=2, sequence=16, precision=precision))
    found = memory.described(asked)
    assert (found["counts"]["parameters"], found["sample"]) == (sum(p.numel() for p in built.parameters()), sample)
    assert found["attention"] == {"gemma2": "eager", "clip": None}.get(kind, "sdpa")
    (state, *_) = memory.worst_states(partial(memory.trace, runs_on="torch"), asked)
    assert state["Activation"][1] > 0


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")
def test_images_are_made_up_for_a_callable_without_words(tmp_path, monkeypatch):
    """torchvision's, timm's and transformers' vision transformers alike."""
    (tmp_path / "vision.py").write_text(
        "import torch, transformers\n"
        "class Net(torch.nn.Module):\n"
        "    image_size = 32\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.patches, self.head = torch.nn.Conv2d(3, 8, 8, 8), torch.nn.Linear(8, 4)\n"
        "        torch.nn.init.trunc_normal_(self.head.weight)\n"
        "    def forward(self, x):\n"
        "        return self.head(self.patches(x).flatten(2).mean(2))\n"
        "def of_transformers():\n"
        f"    return transformers.ViTForImageClassification(transformers.ViTConfig(**{IMAGES!r}))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("Net", "of_transformers"):
        asked = {"callable": f"vision:{name}", **dataclasses.asdict(training(batch=2))}
        assert memory.described(asked)["sample"] == [("image", [3, 32, 32])]
        assert memory.worst_states(partial(memory.trace, runs_on="torch"), asked)[0]["Activation"][1] > 0
