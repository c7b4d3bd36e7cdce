"""The closed form against numbers made by hand, and what must hold for every model."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tables import for_each

from unhang.errors import UnhangError
from unhang.plan.memory_model import MOMENTS, counts, estimate, layer_activations
from unhang.plan.model_shape import FAMILIES, from_config, from_count
from unhang.plan.training import STRATEGIES, Lora, Training, check_shape, strategies

BY_NAME = {s.name: s for s in STRATEGIES}
LLAMA_7B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 32000,
}
# As their authors publish them.
PUBLISHED = {
    "Llama-2-7B": (LLAMA_7B, 6_738_415_616),
    "Llama-3-8B": ({**LLAMA_7B, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}, 8_030_261_248),
    "GPT-2": ({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}, 124_439_808),
    "Qwen2.5-0.5B": (
        {"model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
         "intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": True},
        494_032_768,
    ),
    "Qwen3-8B": (
        {"model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
         "intermediate_size": 12288, "vocab_size": 151936},
        8_190_735_360,
    ),
    "Mixtral-8x7B": (
        {**LLAMA_7B, "model_type": "mixtral", "num_key_value_heads": 8, "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2},
        46_702_792_704,
    ),
    # But for the weights of the shared expert's gate, 2048 in each of 24 blocks.
    "Qwen1.5-MoE-A2.7B": (
        {"model_type": "qwen2_moe", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 5632,
         "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "num_experts": 60, "num_experts_per_tok": 4, "vocab_size": 151936},
        14_315_784_192 - 2048 * 24,
    ),
    "OPT-125M": (
        {"model_type": "opt", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "ffn_dim": 3072, "vocab_size": 50272,
         "max_position_embeddings": 2048},
        125_239_296,
    ),
    "Pythia-160M": (
        {"model_type": "gpt_neox", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
         "vocab_size": 50304},
        162_322_944,
    ),
    "BERT-base": (
        {"model_type": "bert", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
         "vocab_size": 30522, "max_position_embeddings": 512},
        109_514_298,
    ),
}  # fmt: skip


@for_each("name", PUBLISHED)
def test_parameters_are_those_that_the_authors_publish(name):
    config, parameters = PUBLISHED[name]
    assert from_config(name, config).parameters == parameters


def states(training, name, shape=None):
    """Bytes of what ZeRO shards, for each trained parameter."""
    shape = shape or from_config("7B", LLAMA_7B)
    terms = estimate(shape, training, BY_NAME[name]).terms
    of_states = {"parameters", "gradients", "optimizer", "master"}
    return sum(t.low for t in terms if t.id in of_states) / counts(shape, training).trained


# By hand, 8 ranks, AdamW: (2 + 2 + 4 + 8 bytes of the ZeRO paper); autocast keeps float32 weights and gradients.
@for_each(
    ("name", "precision", "each"),
    [
        ("ddp", "bf16", 4 + 4 + 8),
        ("ddp", "fp32", 16),
        ("ddp", "pure-bf16", 2 + 2 + 4),
        ("zero-1", "bf16", 2 + 2 + 12 / 8),
        ("zero-1", "pure-bf16", 2 + 2 + 12 / 8),
        ("zero-2", "bf16", 2 + 2 / 8 + 12 / 8),
        ("zero-3", "bf16", 16 / 8),
        ("fsdp2", "bf16", 16 / 8),
        ("zero-2-offload", "bf16", 2),
        ("zero-3-offload", "bf16", 0),
    ],
)
def test_what_each_stage_shards(name, precision, each):
    assert states(Training(world_size=8, per_node=8, precision=precision), name) == pytest.approx(each)


def test_buckets_and_what_stage_3_gathers():
    shape, training = from_config("7B", LLAMA_7B), Training(world_size=8, per_node=8)
    by_id = {name: {t.id: t for t in estimate(shape, training, BY_NAME[name]).terms} for name in ("ddp", "zero-2", "zero-3", "fsdp2")}
    assert by_id["ddp"]["ddp-buckets"].low == 4 * shape.parameters, "a second copy of the gradients"
    assert (by_id["zero-2"]["buckets"].low, by_id["zero-2"]["buckets"].high) == (2 * 2e8, 4 * 2e8)
    assert by_id["zero-2"]["unreduced"].high == 2 * 32000 * 4096 and by_id["zero-3"]["gradients"].moments == MOMENTS
    # DeepSpeed allocates a whole bucket for few gradients, and on one rank; its stage 1 joins those that there are.
    few = Training(lora=Lora(rank=8))
    low = {name: next(t.low for t in estimate(shape, few, BY_NAME[name]).terms if t.id == "buckets") for name in ("zero-1", "zero-2")}
    assert low == {"zero-1": 2 * counts(shape, few).trained, "zero-2": 2 * 2e8}
    assert (by_id["zero-3"]["live"].low, by_id["zero-3"]["live"].high) == (2 * shape.layer_parameters, 2e9)
    outside, block = 2 * 32000 * 4096 + 4096, shape.layer_parameters
    assert by_id["fsdp2"]["gathered"].low == 2 * (outside + block) and by_id["fsdp2"]["gathered-end"].low == 2 * outside + 4 * outside


def test_lora_and_frozen_blocks_train_what_they_say():
    shape = from_config("7B", LLAMA_7B)
    lora = counts(shape, Training(lora=Lora(rank=16)))
    assert lora.trained == 32 * 2 * 16 * (4096 + 4096) == 8_388_608 and lora.parameters == 6_738_415_616 + 8_388_608
    # Each of Mixtral's 8 experts has an adapter of its own.
    experts = counts(from_config("8x7B", PUBLISHED["Mixtral-8x7B"][0]), Training(lora=Lora(rank=16, targets=("gate_proj",))))
    assert experts.trained == 32 * 8 * 16 * (4096 + 14336)
    frozen = counts(shape, Training(frozen=30))
    assert frozen.trained == 2 * shape.layer_parameters + 32000 * 4096 + 4096
    # All of the optimizer's and the gradients' memory goes with it.
    by_id = {t.id: t.low for t in estimate(shape, Training(lora=Lora(rank=16)), BY_NAME["ddp"]).terms}
    assert by_id["gradients"] == 4 * lora.trained and by_id["optimizer"] == 8 * lora.trained and by_id["parameters"] < 2.01 * shape.parameters


@pytest.mark.parametrize(("options", "says"), [({"frozen": 13}, "has 12 blocks"), ({"sequence": 1025}, "learned positions for 1024 tokens")])
def test_more_than_the_model_has_is_refused(options, says):
    with pytest.raises(UnhangError, match=says):
        check_shape(Training(**options), from_config("GPT-2", PUBLISHED["GPT-2"][0]))


def test_activations_of_llama_by_hand():
    """fp32, one block: two norms keep input and result (4h), two inputs of linear layers (2h), q, k, v and the result (4h), four of the MLP."""
    training = Training(batch=2, sequence=128, precision="fp32", device="cpu")
    (term,) = [t for t in estimate(from_config("7B", LLAMA_7B), training, BY_NAME["ddp"]).terms if t.id == "activations"]
    assert term.low == 32 * 2 * 128 * 4 * (10 * 4096 + 4 * 11008 + 32)


models = st.builds(
    lambda kind, layers, hidden, vocab: from_config("any", {
        "model_type": kind, "num_hidden_layers": layers, "hidden_size": hidden * 64, "num_attention_heads": hidden, "vocab_size": vocab,
        "intermediate_size": 256 * hidden, "max_position_embeddings": 2048,
    }),
    st.sampled_from(sorted(FAMILIES)), st.integers(1, 80), st.integers(1, 128), st.integers(256, 200_000),
)  # fmt: skip
trainings = st.builds(
    dict, batch=st.integers(1, 16), sequence=st.sampled_from([128, 2048]), accumulation=st.integers(1, 2), checkpointing=st.booleans(),
    precision=st.sampled_from(["fp32", "bf16", "pure-bf16"]), optimizer=st.sampled_from(["adamw", "adamw-8bit", "adafactor", "sgd"]),
    attention=st.sampled_from(["sdpa", "eager"]), lora=st.sampled_from([None, Lora(rank=8)]), frozen=st.integers(0, 2),
    device=st.sampled_from(["cuda", "cpu"]),
)  # fmt: skip


@given(models, trainings, st.sampled_from(sorted(BY_NAME)))
def test_more_ranks_never_need_more_and_every_number_says_where_it_comes_from(shape, options, name):
    before = None
    for ranks in (2, 4, 8, 64, 1024):
        found = estimate(shape, Training(world_size=ranks, per_node=min(ranks, 8), **options), BY_NAME[name])
        assert all(0 <= t.low <= t.high and t.source and t.formula and t.formula.of("zh") for t in found.terms)
        assert before is None or (found.low <= before.low * (1 + 1e-9) and found.high <= before.high * (1 + 1e-9))
        before = found


@given(models, trainings, st.sampled_from([2, 8, 64]))
def test_a_higher_stage_never_shards_less(shape, options, ranks):
    training = Training(world_size=ranks, per_node=2, **options)
    of_stages = [states(training, name, shape) for name in ("zero-1", "zero-2", "zero-3", "zero-3-offload")]
    assert all(a >= b * (1 - 1e-9) for a, b in itertools.pairwise(of_stages))


@for_each("ranks", [4, 8, 64])
@for_each("billions", [7, 13, 70])
def test_stages_need_less_and_less_where_a_model_is_larger_than_what_stage_3_gathers(billions, ranks):
    training = Training(world_size=ranks, per_node=2)
    totals = [estimate(from_count(int(billions * 1e9), {}), training, BY_NAME[name]) for name in ("ddp", "zero-1", "zero-2", "zero-3")]
    assert all(a.low >= b.low and a.high >= b.high for a, b in itertools.pairwise(totals))


def test_adafactor_factors_no_flat_partition():
    shape, training = from_config("7B", LLAMA_7B), Training(world_size=8, per_node=8, optimizer="adafactor")
    each = {name: next(t.low for t in estimate(shape, training, BY_NAME[name]).terms if t.id == "optimizer") for name in ("ddp", "zero-1")}
    assert each["ddp"] < 0.001 * shape.parameters and each["zero-1"] == 4 * shape.parameters / 8


def test_one_rank_has_nothing_to_share():
    assert [s.name for s in strategies(Training())] == ["ddp", "zero-2-offload", "zero-3-offload"]
    assert not {"ddp-buckets", "communicator"} & {t.id for t in estimate(from_count(10**9, {}), Training(), BY_NAME["ddp"]).terms}


def test_a_width_of_its_own_needs_no_division_and_shared_experts_are_passed_by_every_token():
    assert from_config("own", {**LLAMA_7B, "num_attention_heads": 30, "num_key_value_heads": 10, "head_dim": 128}).query == 30 * 128
    experts = {**LLAMA_7B, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 512}
    shapes = [from_config("V3", {**experts, "n_shared_experts": shared}) for shared in (1, 2)]
    more = [layer_activations(shape, Training(precision="fp32"), "torch") for shape in shapes]
    assert shapes[1].layer_parameters - shapes[0].layer_parameters == 3 * 4096 * 512 and more[1] - more[0] == 4 * 512 * 4 * 2048


@pytest.mark.parametrize(("device", "name", "most"), [("cpu", "ddp", 0.4), ("cpu", "fsdp2", 0.8), ("cuda", "ddp", None)])
def test_what_malloc_keeps_is_in_the_range_of_processors(device, name, most):
    found = estimate(from_config("7B", LLAMA_7B), Training(world_size=2, per_node=2, device=device), BY_NAME[name])
    kept = [t for t in found.terms if t.id == "malloc"]
    assert len(kept) == (most is not None) and all(found.high == pytest.approx(kept[0].high * (1 + 1 / most)) for _ in kept)
