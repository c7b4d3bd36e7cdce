"""How a model is to be trained, and the strategies that divide it among ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from unhang.errors import UnhangError
from unhang.i18n import Text, msg, same
from unhang.model import frozen
from unhang.plan.model_shape import Shape

PRECISIONS = ("fp32", "bf16", "fp16", "pure-bf16")
ATTENTIONS = ("flash", "sdpa", "eager")
OFFLOADS = ("auto", "none", "optimizer", "all")
# Bytes of optimizer state for each trained parameter, where states are float32; None is per row and column (Adafactor).
OPTIMIZERS: Mapping[str, float | None] = {
    "adamw": 8,
    # Two states of one byte, and a float32 scale for each block of 256 (Dettmers et al. 2021, arXiv:2110.02861).
    "adamw-8bit": 2 + 2 * 4 / 256,
    "adafactor": None,
    "momentum": 4,
    "sgd": 0,
}


@dataclass(frozen=True)
class Strategy:
    """How a training is divided. `stage` is ZeRO's: 1 divides the optimizer's state, 2 also gradients, 3 also parameters.

    `runs_on` names the library, "torch" or "deepspeed"; `offload` is what lies in host memory: "", "optimizer" or "all".
    """

    name: str
    title: Text
    stage: int
    runs_on: str = "deepspeed"
    offload: str = ""


# In the order in which they are recommended: less communication first, host memory last.
STRATEGIES = (
    Strategy("ddp", same("DDP"), 0, "torch"),
    Strategy("zero-1", same("ZeRO-1"), 1),
    Strategy("zero-2", same("ZeRO-2"), 2),
    Strategy("zero-redundancy", same("ZeroRedundancyOptimizer"), 1, "torch"),
    Strategy("fsdp2", same("FSDP2"), 3, "torch"),
    Strategy("zero-3", same("ZeRO-3"), 3),
    Strategy("zero-2-offload", msg("ZeRO-2, optimizer in host memory"), 2, offload="optimizer"),
    Strategy("zero-3-offload", msg("ZeRO-3, parameters and optimizer in host memory"), 3, offload="all"),
)
NAMES = tuple(strategy.name for strategy in STRATEGIES)


@frozen
class Lora:
    """Low-rank adapters: their rank, and the linear layers of each block that have one, by what PEFT calls them."""

    rank: int
    targets: tuple[str, ...] = ("q_proj", "v_proj")


@frozen
class Training:
    """`batch` sequences of `sequence` tokens are what one rank takes in one forward pass. `frozen` counts blocks from the bottom that do not train.

    `device` is "cuda" or "cpu". `loader_workers` are those of each rank. Raises UnhangError for what cannot be.
    """

    world_size: int = 1
    per_node: int = 1
    batch: int = 1
    sequence: int = 2048
    accumulation: int = 1
    precision: str = "bf16"
    optimizer: str = "adamw"
    checkpointing: bool = False
    attention: str = "sdpa"
    lora: Lora | None = None
    frozen: int = 0
    device: str = "cuda"
    loader_workers: int = 2

    def __post_init__(self) -> None:
        for name in ("world_size", "per_node", "batch", "sequence", "accumulation"):
            if not 1 <= (value := getattr(self, name)) <= 10**9:
                option = name.replace("_", "-")
                raise UnhangError(msg("--{option} {value}: it is 1 or more, and at most 1e9", option=option, value=value))
        for name, valid in (("precision", PRECISIONS), ("optimizer", tuple(OPTIMIZERS)), ("attention", ATTENTIONS)):
            check_word(f"--{name}", getattr(self, name), valid)
        if self.world_size % self.per_node and self.world_size > self.per_node:
            raise UnhangError(
                msg("{world_size} ranks do not fill hosts with {per_node} each", world_size=self.world_size, per_node=self.per_node),
                hint="--world-size is the number of all ranks, --per-node that of one host",
            )

    @property
    def tokens(self) -> int:
        return self.batch * self.sequence

    @property
    def ranks_here(self) -> int:
        return min(self.per_node, self.world_size)


def check_shape(training: Training, shape: Shape) -> None:
    """Raises UnhangError for more frozen blocks, or longer sequences with learned positions, than the model has."""
    if training.frozen > shape.layers:
        raise UnhangError(msg("--frozen {frozen}: {name} has {layers} blocks", frozen=training.frozen, name=shape.name, layers=shape.layers))
    if shape.longest is not None and shape.family.positions is not None and training.sequence > shape.longest:
        raise UnhangError(
            msg(
                "--sequence {sequence}: {name} has learned positions for {longest} tokens",
                sequence=training.sequence,
                name=shape.name,
                longest=shape.longest,
            )
        )


def check_word(option: str, word: str, valid: Collection[str]) -> None:
    """Raises UnhangError with the words that are valid."""
    if word not in valid:
        raise UnhangError(msg("{option} {word}: it is one of {valid}", option=option, word=word, valid=", ".join(valid)))


def lora(text: str, shape: Shape | None) -> Lora:
    """From RANK, RANK:q_proj,v_proj or RANK:all. Raises UnhangError."""
    number, _, named = text.partition(":")
    known = tuple(shape.linear_layers()) if shape is not None else ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    if not number.isdecimal() or int(number) < 1:
        raise UnhangError(msg("--lora {text}: it begins with the rank", text=text), hint="--lora 16 or --lora 16:q_proj,v_proj")
    targets = known if named == "all" else tuple(named.split(",")) if named else Lora(rank=1).targets
    for target in targets:
        check_word("--lora", target, known)
    return Lora(rank=int(number), targets=targets)


def strategies(training: Training, offload: str = "auto", only: str | None = None) -> tuple[Strategy, ...]:
    """Those that come into question. One rank has nothing to share with another. Raises UnhangError for a name that is none."""
    check_word("--offload", offload, OFFLOADS)
    check_word("--strategy", only or NAMES[0], NAMES)
    found = [s for s in STRATEGIES if only in (None, s.name) and (offload == "auto" or s.offload == offload.replace("none", ""))]
    found = [s for s in found if training.world_size > 1 or s.name == "ddp" or s.offload or only == s.name]
    if not found:
        raise UnhangError(msg("--strategy {only} does not go with --offload {offload}", only=only, offload=offload))
    return tuple(found)
