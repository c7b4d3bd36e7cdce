"""Shapes from files: headers of safetensors, directories, and files that are none."""

import json
import struct

import pytest
from tests.tables import for_each

from unhang.errors import UnhangError
from unhang.plan import model_file

H, V, W, L = 64, 1000, 160, 3
TENSORS = {
    "model.embed_tokens.weight": [V, H],
    "lm_head.weight": [V, H],
    "model.norm.weight": [H],
    **{
        f"model.layers.{i}.{name}.weight": shape
        for i in range(L)
        for name, shape in {
            "self_attn.q_proj": [H, H], "self_attn.k_proj": [H // 2, H], "self_attn.v_proj": [H // 2, H], "self_attn.o_proj": [H, H],
            "mlp.gate_proj": [W, H], "mlp.up_proj": [W, H], "mlp.down_proj": [H, W], "input_layernorm": [H], "post_attention_layernorm": [H],
        }.items()
    },
}  # fmt: skip
COUNT = 2 * V * H + H + L * (3 * H * H + 3 * H * W + 2 * H)


def safetensors(path, tensors):
    header = json.dumps({"__metadata__": {"format": "pt"}, **{n: {"dtype": "BF16", "shape": s, "data_offsets": [0, 0]} for n, s in tensors.items()}})
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode())
    return path


def test_a_header_tells_the_shape_and_counts_exactly(tmp_path):
    shape = model_file.read(safetensors(tmp_path / "m.safetensors", TENSORS))
    assert (shape.layers, shape.hidden, shape.vocab, shape.intermediate, shape.tied, shape.parameters) == (L, H, V, W, False, COUNT)


def test_parts_by_their_index_are_one_model(tmp_path):
    names = list(TENSORS)
    safetensors(tmp_path / "1.safetensors", {n: TENSORS[n] for n in names[:9]})
    safetensors(tmp_path / "2.safetensors", {n: TENSORS[n] for n in names[9:]})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {n: "1.safetensors" if i < 9 else "2.safetensors" for i, n in enumerate(names)}}))
    assert model_file.read(index).parameters == COUNT == model_file.read(tmp_path).parameters


def test_weights_that_lie_in_a_directory_twice_or_packed_are_not_counted(tmp_path):
    safetensors(tmp_path / "model.safetensors", TENSORS)
    safetensors(tmp_path / "consolidated.safetensors", {f"again.{n}": s for n, s in TENSORS.items()})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(TENSORS, "../model.safetensors")}))
    assert model_file.read(tmp_path).parameters == COUNT
    config = {"model_type": "llama", "num_hidden_layers": L, "hidden_size": H, "num_attention_heads": 2, "num_key_value_heads": 1,
              "intermediate_size": W, "vocab_size": V}  # fmt: skip
    safetensors(tmp_path / "model.safetensors", {n: [*s[:-1], s[-1] // 8] for n, s in TENSORS.items()})
    for fields, counts in ({}, False), ({"quantization_config": {"bits": 4}}, True):
        (tmp_path / "config.json").write_text(json.dumps({**config, **fields}))
        assert (model_file.read(tmp_path).parameters == COUNT) is counts


@for_each(
    ("name", "data", "says"),
    [
        ("config.json", b"{", "is no JSON"),
        ("config.json", b"[]", "is no config.json"),
        ("config.json", b'{"model_type": "llama"}', r"layers \(num_hidden_layers in config.json\) is missing"),
        ("config.json", b'{"num_hidden_layers": "x"}', "no whole number"),
        ("config.json", b'{"model_type": "llama", "num_hidden_layers": 0, "hidden_size": 8, "vocab_size": 8}', "at least 1"),
        ("config.json", b'{"model_type": "t5", "is_encoder_decoder": true}', "encoder-decoder"),
        ("config.json", b'{"model_type": "t5", "num_layers": 12, "d_model": 768, "vocab_size": 32128}', "encoder-decoder"),
        (
            "config.json",
            b'{"model_type": "gpt2", "n_embd": 768, "n_head": 10, "n_layer": 12, "vocab_size": 9}',
            "10 heads do not divide the hidden size 768",
        ),
        ("config.json", b'{"model_type": "vit", "hidden_size": 768, "num_attention_heads": 10, "image_size": 224}', "10 heads do not divide"),
        ("config.json", b'{"model_type": "x", "vision_config": {"hidden_size": 768, "num_attention_heads": 10}}', "10 heads do not divide"),
        ("config.json", b'{"model_type": "llama", "hidden_size": 768, "num_attention_heads": 12, "num_key_value_heads": 5}', "5 heads of keys"),
        ("config.json", b'{"model_type": "vit", "hidden_size": 768, "num_attention_heads": 12, "image_size": 224}', "vision model"),
        ("m.safetensors", b"\xff" * 9, "no header"),
        ("m.safetensors", struct.pack("<Q", 2) + b"[]", "no header"),
        ("m.safetensors", b"ab", "no header"),
        ("i.json", b'{"weight_map": 1}', "no index"),
        ("config.json", b'{"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 8, "vocab_size": %d}' % 10**400, "at most 1e15"),
        ("m.safetensors", struct.pack("<Q", 2) + b"{}", "tell no decoder"),
    ],
)
def test_what_is_no_model_is_refused_with_its_reason(tmp_path, name, data, says):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UnhangError, match=says):
        model_file.read(tmp_path / name)


def test_an_empty_directory(tmp_path):
    with pytest.raises(UnhangError, match="neither"):
        model_file.read(tmp_path)
