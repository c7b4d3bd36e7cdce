"""How a model is to be trained, and the strategies that divide it among ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unhang.errors import UnhangError
from unhang.planning.shape import Shape
from unhang.text import Text

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


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """How parameters, gradients and optimizer state are divided. `runs_on` names the library; `offload` is "", "optimizer" or "all"."""

    name: str
    title: Text
    runs_on: str = "deepspeed"
    shards_optimizer: bool = False
    shards_gradients: bool = False
    shards_parameters: bool = False
    offload: str = ""


# In the order in which they are recommended: less communication first, host memory last.
STRATEGIES = (
    Strategy(name="ddp", title=Text("DDP", "DDP"), runs_on="torch"),
    Strategy(name="zero-1", title=Text("ZeRO-1", "ZeRO-1"), shards_optimizer=True),
    Strategy(name="zero-2", title=Text("ZeRO-2", "ZeRO-2"), shards_optimizer=True, shards_gradients=True),
    Strategy(name="zero-redundancy", title=Text("ZeroRedundancyOptimizer", "ZeroRedundancyOptimizer"), runs_on="torch", shards_optimizer=True),
    Strategy(name="fsdp2", title=Text("FSDP2", "FSDP2"), runs_on="torch", shards_optimizer=True, shards_gradients=True, shards_parameters=True),
    Strategy(name="zero-3", title=Text("ZeRO-3", "ZeRO-3"), shards_optimizer=True, shards_gradients=True, shards_parameters=True),
    Strategy(
        name="zero-2-offload",
        title=Text("ZeRO-2, optimizer in host memory", "ZeRO-2，优化器放在主机内存"),
        shards_optimizer=True,
        shards_gradients=True,
        offload="optimizer",
    ),
    Strategy(
        name="zero-3-offload",
        title=Text("ZeRO-3, parameters and optimizer in host memory", "ZeRO-3，参数与优化器放在主机内存"),
        shards_optimizer=True,
        shards_gradients=True,
        shards_parameters=True,
        offload="all",
    ),
)
NAMES = tuple(strategy.name for strategy in STRATEGIES)


@dataclass(frozen=True, kw_only=True)
class Lora:
    """Low-rank adapters: their rank, and the linear layers of each block that have one, by what PEFT calls them."""

    rank: int
    targets: tuple[str, ...] = ("q_proj", "v_proj")


@dataclass(frozen=True, kw_only=True)
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
            if (value := getattr(self, name)) < 1:
                option = name.replace("_", "-")
                raise UnhangError(f"--{option} {value}: it is 1 or more", says_zh=f"--{option} {value}：至少为 1")
        for name, valid in (("precision", PRECISIONS), ("optimizer", tuple(OPTIMIZERS)), ("attention", ATTENTIONS)):
            if (word := getattr(self, name)) not in valid:
                raise UnhangError(f"--{name} {word}: it is one of {', '.join(valid)}", says_zh=f"--{name} {word}：可选的有 {', '.join(valid)}")
        if self.world_size % self.per_node and self.world_size > self.per_node:
            raise UnhangError(
                f"{self.world_size} ranks do not fill hosts with {self.per_node} each",
                says_zh=f"{self.world_size} 个 rank 无法平均分到每台 {self.per_node} 个的主机上",
                hint="--world-size is the number of all ranks, --per-node that of one host",
            )

    @property
    def tokens(self) -> int:
        return self.batch * self.sequence

    @property
    def ranks_here(self) -> int:
        return min(self.per_node, self.world_size)


def lora(text: str, shape: Shape | None) -> Lora:
    """From RANK, RANK:q_proj,v_proj or RANK:all. Raises UnhangError."""
    number, _, named = text.partition(":")
    known = tuple(shape.linear_layers()) if shape is not None else ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    if not number.isdecimal() or int(number) < 1:
        raise UnhangError(
            f"--lora {text}: it begins with the rank", says_zh=f"--lora {text}：应以秩开头", hint="--lora 16 or --lora 16:q_proj,v_proj"
        )
    targets = known if named == "all" else tuple(named.split(",")) if named else Lora(rank=1).targets
    if wrong := [target for target in targets if target not in known]:
        raise UnhangError(
            f"--lora: there is no linear layer {wrong[0]}; it is one of {', '.join(known)}",
            says_zh=f"--lora：没有线性层 {wrong[0]}；可选的有 {', '.join(known)}",
        )
    return Lora(rank=int(number), targets=targets)


def strategies(training: Training, offload: str = "auto", only: str | None = None) -> tuple[Strategy, ...]:
    """Those that come into question. One rank has nothing to share with another. Raises UnhangError for a name that is none."""
    if offload not in OFFLOADS:
        raise UnhangError(f"--offload {offload}: it is one of {', '.join(OFFLOADS)}", says_zh=f"--offload {offload}：可选的有 {', '.join(OFFLOADS)}")
    if only is not None and only not in NAMES:
        raise UnhangError(f"--strategy {only}: it is one of {', '.join(NAMES)}", says_zh=f"--strategy {only}：可选的有 {', '.join(NAMES)}")
    found = [s for s in STRATEGIES if only in (None, s.name) and (offload == "auto" or s.offload == offload.replace("none", ""))]
    found = [s for s in found if training.world_size > 1 or s.name == "ddp" or s.offload or only == s.name]
    if not found:
        raise UnhangError(f"--strategy {only} does not go with --offload {offload}", says_zh=f"--strategy {only} 不能与 --offload {offload} 一起使用")
    return tuple(found)
