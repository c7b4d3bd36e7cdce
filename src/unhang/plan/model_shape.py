"""The shape of a decoder transformer, and how many parameters follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from unhang.errors import UnhangError
from unhang.i18n import msg
from unhang.model import frozen


@frozen
class Family:
    """How an architecture differs from LLaMA's. `biases`: "", "qkv" or "all". `positions`: if they are learned, the rows beside those of the config.

    `activations` are tensors of the MLP's width that one token keeps for the backward pass: inputs of the activation function, its intermediate
    results, and the input of the last linear layer. `fused`: q, k and v are one linear layer. `transformed`: linear layer and norm before the head.
    """

    gated: bool = True
    biases: str = ""
    rms_norm: bool = True
    positions: int | None = None
    activations: float = 4
    head_norms: bool = False
    fused: bool = False
    tied: bool = False
    transformed: bool = False


class Unshaped(UnhangError):
    """No decoder's shape follows from a configuration. What torch can build may be counted all the same."""


_LLAMA = Family()
# `model_type` of config.json (transformers, src/transformers/models/*/modeling_*.py). gelu_new is computed in five kept steps.
FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": _LLAMA,
    "olmo2": Family(head_norms=True),
    "qwen2": Family(biases="qkv"),
    "qwen2_moe": Family(biases="qkv"),
    "qwen3": Family(head_norms=True),
    "qwen3_moe": Family(head_norms=True),
    "gpt2": Family(gated=False, biases="all", rms_norm=False, positions=0, activations=5, tied=True, fused=True),
    # Two positions of its own (OPTLearnedPositionalEmbedding). ReLU keeps its result, which is the input of the last linear layer.
    "opt": Family(gated=False, biases="all", rms_norm=False, positions=2, activations=1, tied=True),
    # The value is a view of the fused q, k and v, which keeps all three: half the MLP's width more.
    "gpt_neox": Family(gated=False, biases="all", rms_norm=False, activations=2.5, fused=True),
    # Two types of tokens.
    "bert": Family(gated=False, biases="all", rms_norm=False, positions=2, activations=2.5, tied=True, transformed=True),
}
# The largest numbers; each layer is gone through.
_MOST, _MOST_OTHERS = {"layers": "1e5"}, "1e15"
# Encoder-decoders whose config.json may leave `is_encoder_decoder` to their class.
_ENCODER_DECODERS = ("num_decoder_layers", "decoder_layers")
# Of heads whose width does not follow from their number.
_OWN_WIDTHS = ("head_dim", "d_kv", "d_head", "kv_channels")
MLP = ("gate_proj", "up_proj", "down_proj")
# Each of what the shape needs, by the names that config.json has for it.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "intermediate": ("intermediate_size", "n_inner", "ffn_dim", "d_ff"),
    "vocab": ("vocab_size",),
    "positions": ("max_position_embeddings", "n_positions"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "shared_experts": ("n_shared_experts",),
    "shared_intermediate": ("shared_expert_intermediate_size",),
    "active_experts": ("num_experts_per_tok",),
    "expert_intermediate": ("moe_intermediate_size",),
}


@frozen
class Shape:
    """A decoder. `counted` is the number of parameters if a file has it, `longest` the most tokens of a sequence; `assumed`: what was not given.

    `shared` is the width of the experts that every token passes; `is_known`: the architecture is in our table.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    family: Family = _LLAMA
    tied: bool = False
    positions: int = 0
    experts: int = 1
    active_experts: int = 1
    shared: int = 0
    is_known: bool = True
    counted: int | None = None
    longest: int | None = None
    assumed: tuple[str, ...] = ()

    @property
    def query(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def key(self) -> int:
        """Width of all key heads together, which is that of the values."""
        return self.kv_heads * self.head_dim

    def linear_layers(self) -> Mapping[str, tuple[int, int]]:
        """Inputs and outputs of each linear layer of a block, by what PEFT calls it; MLPs of experts count once."""
        mlp = {"gate_proj": (self.hidden, self.intermediate)} if self.family.gated else {}
        return {
            "q_proj": (self.hidden, self.query),
            "k_proj": (self.hidden, self.key),
            "v_proj": (self.hidden, self.key),
            "o_proj": (self.query, self.hidden),
            **mlp,
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }

    @property
    def layer_parameters(self) -> int:
        """Those of one block."""
        family, total = self.family, 0
        for name, (inputs, outputs) in self.linear_layers().items():
            has_bias = family.biases == "all" or (family.biases == "qkv" and name in ("q_proj", "k_proj", "v_proj"))
            total += (inputs * outputs + (outputs if has_bias else 0)) * (self.experts if name in MLP else 1)
        norms = 2 * self.hidden * (1 if family.rms_norm else 2) + (2 * self.head_dim if family.head_norms else 0)
        shared = (3 if family.gated else 2) * self.shared
        return total + norms + (self.hidden * (self.experts + shared) if self.experts > 1 else 0)

    @property
    def embedding_parameters(self) -> int:
        """Embeddings, head and the last norm: what stands outside the blocks."""
        norm = self.hidden * (1 if self.family.rms_norm else 2)
        head = self.hidden**2 + 3 * self.hidden + self.vocab if self.family.transformed else 0
        return self.vocab * self.hidden * (1 if self.tied else 2) + self.positions * self.hidden + norm + head

    @property
    def parameters(self) -> int:
        return self.counted if self.counted is not None else self.layers * self.layer_parameters + self.embedding_parameters

    @property
    def largest_tensor(self) -> int:
        """Elements of the largest parameter."""
        widest = max(inputs * outputs for inputs, outputs in self.linear_layers().values())
        return min(max(self.vocab * self.hidden, widest * self.experts), self.parameters)


def from_config(name: str, config: Mapping[str, object]) -> Shape:
    """From the fields of a Hugging Face config.json. Raises Unshaped for what is no decoder, UnhangError for heads that do not divide its width."""
    for part in (config, *config.values()):
        if isinstance(part, Mapping):
            _check_heads(name, part)
    if isinstance(inner := config.get("text_config"), Mapping):
        config = {**config, **inner}
    kind = str(config.get("model_type", ""))
    is_double = config.get("is_encoder_decoder", any(key in config for key in _ENCODER_DECODERS) or "t5" in kind)
    if is_double or ("vocab_size" not in config and any(key in config for key in ("image_size", "num_channels", "vision_config"))):
        what = msg("an encoder-decoder") if is_double else msg("a vision model")
        raise Unshaped(
            msg("{name} is {what} ({kind}): the closed form knows decoders only", name=name, what=what, kind=kind),
            hint="a Python with torch and transformers counts it (--python); unhang plan MODULE:CALLABLE counts any model that torch can build",
        )
    found = {field: value for field, names in _NAMES.items() if (value := _number(name, config, names)) is not None}
    activation = str(config.get("hidden_act") or config.get("activation_function") or "")
    assumed: list[str] = []
    family = FAMILIES.get(kind)
    if family is None:
        gated = activation in ("silu", "swish", "") or kind.startswith(("gemma", "phi3"))
        family = _LLAMA if gated else Family(gated=False, biases="all", rms_norm=False, activations=5 if activation == "gelu_new" else 2.5)
        assumed.append(f"model_type {kind or 'missing'} is not in our table: counted as {'LLaMA' if gated else 'GPT-NeoX'}")
    # transformers ties them by default (PretrainedConfig), LLaMA's relatives do not.
    tied = bool(config.get("tie_word_embeddings", family.tied or kind not in FAMILIES))
    return replace(from_numbers(name, found, family=family, tied=tied, assumed=assumed), is_known=kind in FAMILIES)


def from_numbers(name: str, found: Mapping[str, int], *, family: Family = _LLAMA, tied: bool = False, assumed: list[str] | None = None) -> Shape:
    """From numbers by the names of `Shape`. What is missing and has a usual value is assumed; raises UnhangError for the rest."""
    assumed = assumed if assumed is not None else []
    _check_heads(name, found)
    for needed in ("layers", "hidden", "vocab"):
        if needed not in found:
            lacks = f"{needed} ({_NAMES[needed][0]} in config.json)"
            raise Unshaped(msg("{name}: {lacks} is missing", name=name, lacks=lacks), hint="unhang plan --layers N --hidden N --vocab N")
    if wrong := next((key for key, value in found.items() if not 1 <= value <= float(_MOST.get(key, _MOST_OTHERS))), None):
        most = _MOST.get(wrong, _MOST_OTHERS)
        raise UnhangError(
            msg("{name}: {wrong} is {found}: it is at least 1, and at most {most}", name=name, wrong=wrong, found=found[wrong], most=most)
        )
    hidden = found["hidden"]

    def usual(field: str, value: int, why: str) -> int:
        if field not in found:
            assumed.append(f"{field} {value} ({why})")
        return found.get(field, value)

    heads = usual("heads", max(1, hidden // 128), "128 numbers a head")
    intermediate = found.get("expert_intermediate") or usual("intermediate", 4 * hidden if not family.gated else 8 * hidden // 3, "the usual ratio")
    return Shape(
        name=name,
        layers=found["layers"],
        hidden=hidden,
        heads=heads,
        kv_heads=found.get("kv_heads", heads),
        head_dim=found.get("head_dim") or max(1, hidden // heads),
        intermediate=intermediate,
        vocab=found["vocab"],
        family=family,
        tied=tied,
        positions=found.get("positions", 0) + family.positions if family.positions is not None else 0,
        longest=found.get("positions"),
        experts=found.get("experts", 1),
        active_experts=min(found.get("active_experts", 1), found.get("experts", 1)),
        shared=found.get("shared_intermediate") or found.get("shared_experts", 0) * intermediate,
        counted=found.get("parameters"),
        assumed=tuple(assumed),
    )


def _check_heads(name: str, fields: Mapping[str, object]) -> None:
    """Raises UnhangError where heads do not divide the width, or those of keys the heads; fields by the names of `Shape` or of config.json."""
    found = ((fields.get(key) for key in (field, *_NAMES[field])) for field in ("kv_heads", "heads", "hidden"))
    of_keys, heads, hidden = (next((n for n in numbers if isinstance(n, int) and n > 0), None) for numbers in found)
    has_width = any(own in key for key in fields for own in _OWN_WIDTHS)
    for part, whole, what in (
        (heads, None if has_width else hidden, msg("heads do not divide the hidden size")),
        (of_keys, heads, msg("heads of keys and values do not divide the number of heads")),
    ):
        if part and whole and whole % part:
            hint = "head_dim gives heads a width of their own" if "hidden" in what else None
            raise UnhangError(msg("{name}: {part} {what} {whole}", name=name, part=part, what=what, whole=whole), hint=hint)


def from_count(parameters: int, found: Mapping[str, int]) -> Shape:
    """A decoder of so many parameters: 12 * layers * hidden^2 of them with hidden = 128 * layers (Kaplan et al. 2020, arXiv:2001.08361, 2.1)."""
    layers = found.get("layers") or max(1, round((parameters / (12 * 128**2)) ** (1 / 3)))
    unit = found.get("heads", 64)
    hidden = found.get("hidden") or max(unit, round((parameters / (12 * layers)) ** 0.5 / unit) * unit)
    vocab = found.get("vocab", 32000)
    assumed = [f"{field} {value}" for field, value in {"layers": layers, "hidden": hidden, "vocab": vocab}.items() if field not in found]
    return from_numbers(
        f"{parameters / 1e9:.3g} B parameters",
        {**found, "layers": layers, "hidden": hidden, "vocab": vocab, "parameters": parameters},
        assumed=[f"{', '.join(assumed)} (from the number of parameters)"] if assumed else [],
    )


def _number(name: str, config: Mapping[str, object], names: tuple[str, ...]) -> int | None:
    key = next((key for key in names if config.get(key) is not None), None)
    value = config.get(key) if key is not None else None
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise Unshaped(msg("{name}: {key} is {value!r}, and no whole number", name=name, key=key, value=value))
    return value
