"""The closed form: every part of the memory of one rank. What each is called, its formula in words and its source stand in `terms.tsv`.

A part is held in some of three moments, and the peak is the worst of them: the loss (all activations are there, no gradient yet), the end of the
backward pass (all gradients, hardly an activation), the optimizer's step. Ranges are what depends on versions and fragmentation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from unhang.i18n import msg
from unhang.model import frozen
from unhang.plan.model_shape import MLP, Shape
from unhang.plan.training import OPTIMIZERS, Strategy, Training
from unhang.text import Text

MOMENTS = ("loss", "backward", "step")
GIB = 1024**3
# What our own export writes; DeepSpeed's default is 5e8 (deepspeed/runtime/zero/config.py).
BUCKET = 200_000_000
# stage3_max_live_parameters, and sub_group_size.
_LIVE = 1_000_000_000
# float32 copies of the logits at the worst moment: the result of log_softmax and two gradients; the logits themselves if the script keeps them.
_LOGITS = (3, 4)


@frozen
class Term:
    """One part, in bytes. `place` is "device" (of one rank) or "host" (of all ranks of one host); `moments` are those in which it is held."""

    id: str
    name: Text
    formula: Text
    source: str
    low: float
    high: float
    moments: tuple[str, ...]
    place: str


@frozen
class Counts:
    """Numbers of parameters: all, trained ones, of the largest tensor, of one block, and of what stands outside the blocks."""

    parameters: int
    trained: int
    largest_tensor: int
    layer: int
    outside: int
    layers: int


States = Sequence[Mapping[str, tuple[float, float]]]


@frozen
class Tracked:
    """What torch built, and what its tracker counted, in bytes that are always there and of each sample: activations by the library that trains
    ("torch", "deepspeed" if it differs; none if the tracker failed), and parts of a rank's memory under FSDP2. `sample` has kind ("tokens", "image",
    "numbers") and shape of each input, `attention` is the model's, `dropped` are attention dropouts that were left out, `failed` what did not work.
    """

    counts: Counts
    activations: Mapping[str, States]
    fsdp2: States | None = None
    sample: Sequence[tuple[str, Sequence[int]]] = ()
    sample_bytes: float = 0
    attention: str | None = None
    dropped: Sequence[str] = ()
    failed: str | None = None


@frozen
class Estimate:
    """The terms of one strategy. Totals are in bytes: of one rank at the moment that needs most (`peak`, by the high end), and of one host."""

    strategy: Strategy
    low: float
    high: float
    host_low: float
    host_high: float
    peak: str
    terms: tuple[Term, ...]


def total(strategy: Strategy, terms: Sequence[Term]) -> Estimate:
    """Add them up."""
    low, high = ({m: sum(getattr(t, end) for t in terms if t.place == "device" and m in t.moments) for m in MOMENTS} for end in ("low", "high"))
    host_low, host_high = (sum(getattr(t, end) for t in terms if t.place == "host") for end in ("low", "high"))
    most = {"low": max(low.values()), "high": max(high.values()), "peak": max(MOMENTS, key=lambda moment: high[moment])}
    return Estimate(strategy=strategy, terms=tuple(terms), host_low=host_low, host_high=host_high, **most)


def counts(shape: Shape | None, training: Training, tracked: Tracked | None = None) -> Counts:
    """What torch counted, or from the shape alone."""
    if tracked is not None:
        return tracked.counts
    assert shape is not None
    block, trained, added = shape.layer_parameters, shape.parameters, 0
    if training.lora is not None:
        adapters = sum(training.lora.rank * sum(shape.linear_layers()[t]) * (shape.experts if t in MLP else 1) for t in training.lora.targets)
        trained = added = shape.layers * adapters
        block += adapters
    elif training.frozen:
        # The input embedding is below every block; a tied head is the same tensor.
        trained -= min(training.frozen, shape.layers) * block + (shape.vocab + shape.positions) * shape.hidden
    return Counts(
        parameters=shape.parameters + added,
        trained=max(trained, 0),
        largest_tensor=shape.largest_tensor,
        layer=block,
        outside=shape.embedding_parameters,
        layers=shape.layers,
    )


def estimate(shape: Shape | None, training: Training, strategy: Strategy, *, tracked: Tracked | None = None) -> Estimate:
    """The terms of one rank. A `shape` or activations of `tracked` are needed; what the tracker counted at the loss replaces the closed form's."""
    made = _Terms(counts(shape, training, tracked), training, strategy)
    is_tracked = tracked is not None and bool(tracked.activations)
    made.add_states()
    made.add_exchange(casts=not is_tracked)
    if shape is not None:
        made.add_activations(shape)
    if tracked is not None and is_tracked:
        made.add_tracked_activations(tracked, has_last=shape is not None)
    if tracked is not None and tracked.fsdp2 is not None and strategy.name == "fsdp2":
        made.add_tracked_fsdp2(tracked.fsdp2)
    made.add_overheads(training.sequence * 8 if tracked is None else tracked.sample_bytes)
    return total(strategy, made.terms)


def _worst(states: States, batch: int) -> Mapping[str, tuple[float, float]]:
    return max(states, key=lambda state: sum(fixed + each * batch for fixed, each in state.values()))


@lru_cache(maxsize=1)
def _table() -> Mapping[str, list[str]]:
    lines = Path(__file__).with_name("terms.tsv").read_text("utf-8").splitlines()[1:]
    return {id: rest for id, *rest in (line.split("\t") for line in lines)}


@dataclass(frozen=True)
class Widths:
    """Bytes of one number: of weights, gradients, the residual stream and what linear layers compute with."""

    weight: int
    gradient: int
    residual: int
    compute: int

    @classmethod
    def of(cls, precision: str, runs_on: str) -> Widths:
        if precision == "fp32":
            return cls(4, 4, 4, 4)
        if precision == "pure-bf16" or runs_on == "deepspeed":
            return cls(2, 2, 2, 2)
        # Autocast leaves weights and the residual stream in float32.
        return cls(4, 4, 4, 2)


def layer_activations(shape: Shape, training: Training, runs_on: str) -> float:
    """Bytes that one block keeps for the backward pass."""
    widths, family = Widths.of(training.precision, runs_on), shape.family
    targets = set(shape.linear_layers() if training.lora is None else training.lora.targets)
    # RMSNorm computes in float32 and keeps its input; its result is kept for its weight, the input of a linear layer for that one's.
    norm = (4 if family.rms_norm else widths.residual) + (widths.residual if family.rms_norm and training.lora is None else 0)
    readers = [len(targets & {"q_proj", "k_proj", "v_proj"}), len(targets & {"gate_proj", "up_proj"})]
    if widths.residual == widths.compute or family.fused:
        # Only autocast makes a copy of the same input for each linear layer.
        readers = [min(n, 1) for n in readers]
    inputs = shape.hidden * widths.compute * sum(readers)
    attention = (2 * shape.query + 2 * shape.key) * widths.compute + 4 * shape.heads
    if family.head_norms:
        attention += (shape.query + shape.key) * (4 + (widths.compute if training.lora is None else 0))
    if training.attention == "eager":
        # Softmax in float32, its cast for the product with the values, and keys and values repeated for each head.
        attention += shape.heads * training.sequence * (4 + widths.compute % 4) + 2 * (shape.query - shape.key) * widths.compute
    kept = family.activations - ("down_proj" not in targets)
    mlp = kept * (shape.intermediate * shape.active_experts + shape.shared) * widths.compute
    if shape.experts > 1:
        # Each expert's input, result, and result times its weight: transformers' own loop; its grouped kernels keep two of the three.
        mlp += 3 * shape.hidden * shape.active_experts * widths.compute
    ran = sum(shape.active_experts if target in MLP else 1 for target in targets)
    adapters = 0 if training.lora is None else training.lora.rank * ran * widths.compute
    return training.tokens * (2 * shape.hidden * norm + inputs + attention + mlp + adapters)


class _Terms:
    def __init__(self, found: Counts, training: Training, strategy: Strategy) -> None:
        self.terms: list[Term] = []
        self.found, self.training, self.strategy = found, training, strategy
        self.widths, self.ranks = Widths.of(training.precision, strategy.runs_on), training.world_size
        self.on_torch = strategy.runs_on == "torch"

    def add(self, id: str, low: float, high: float | None = None, /, *, moments: tuple[str, ...] = (), **values: float | str) -> None:
        """One term of the table, with the values of its formula; what takes nothing is left out."""
        if max(low, high or 0) <= 0:
            return
        place, usual, name, formula, source = _table()[id]
        texts = {key: value if isinstance(value, str) else f"{value:,.6g}" if value % 1 else f"{value:,.0f}" for key, value in values.items()}
        self.terms.append(
            Term(
                id=id,
                name=msg(name, "memory"),
                formula=msg(formula, "memory", **texts),
                source=source,
                low=low,
                high=low if high is None else high,
                moments=moments or tuple(usual.split()) or MOMENTS,
                place=place,
            )
        )

    def _shares(self, stage: int) -> int:
        return self.ranks if self.strategy.stage >= stage else 1

    def _optimizer_bytes(self) -> float:
        each = OPTIMIZERS[self.training.optimizer]
        if each is None:
            # A row and a column of float32 for each matrix: of a square one with as many numbers as the largest tensor. ZeRO's are flat.
            return 8 / math.sqrt(self.found.largest_tensor) if self.on_torch else 4
        return each / 2 if self.on_torch and self.training.precision == "pure-bf16" and self.training.optimizer in ("adamw", "momentum") else each

    def add_states(self) -> None:
        """Parameters, gradients, optimizer state and master weights: what ZeRO shards."""
        found, training, strategy, widths = self.found, self.training, self.strategy, self.widths
        trained, frozen = found.trained, found.parameters - found.trained
        # Weights below adapters are loaded in half precision.
        width = 2 if training.lora is not None and training.precision != "fp32" else widths.weight
        if strategy.offload != "all":
            shards = self._shares(3)
            held = (trained * widths.weight + frozen * width) / shards
            self.add("parameters", held, trained=trained, width=widths.weight, frozen=frozen, frozen_width=width, shards=shards)
        if not strategy.offload:
            # Offloaded gradients go to the host bucket by bucket. With several micro-batches for a step they are there while activations are,
            # and ZeRO-3's partition always (stage3.py, grad_partitions_flat_buffer). Stages 1 and 2 drop them for the step's float32 copy.
            shards = self._shares(2)
            at_loss = training.accumulation > 1 or strategy.name == "zero-3"
            at_step = self.on_torch or strategy.stage == 3
            moments = tuple(m for m, is_there in zip(MOMENTS, (at_loss, True, at_step), strict=True) if is_there)
            self.add("gradients", trained * widths.gradient / shards, moments=moments, trained=trained, width=widths.gradient, shards=shards)
            self._add_optimizer(trained)

    def _add_optimizer(self, trained: int) -> None:
        found, training, strategy = self.found, self.training, self.strategy
        shards = self._shares(1)
        share = 1 / shards
        if strategy.name == "zero-redundancy" and trained:
            # It does not cut tensors.
            share = max(share, min(1.0, found.largest_tensor / trained))
        each = self._optimizer_bytes()
        self.add("optimizer", trained * each * share, optimizer=training.optimizer, trained=trained, each=each, percent=f"{share:.1%}"[:-1])
        at_once = trained * share
        if not self.on_torch:
            # Whatever the weights' precision is (deepspeed/runtime/zero/stage_1_and_2.py, stage3.py).
            self.add("master", trained * 4 * share, trained=trained, shards=shards)
            at_once = min(at_once, _LIVE) if strategy.stage == 3 else at_once
            self.add("master-gradients", at_once * 4, numbers=at_once)
        if training.optimizer == "adamw":
            cut = self._shares(3)
            largest = 2 * 4 * min(found.largest_tensor, trained) / cut
            of_rank = at_once * (self.widths.weight if self.on_torch else 4)
            low, high = (largest, largest) if self.on_torch and training.device == "cpu" else (0, of_rank)
            self.add("step", low, high, largest=largest / 8)

    def add_exchange(self, *, casts: bool) -> None:
        """Buckets, gathered parameters, and copies in the precision of the computation. Torch's tracker sees `casts` as activations."""
        found, strategy, widths = self.found, self.strategy, self.widths
        if self.on_torch and strategy.stage < 3:
            if casts and self.training.precision in ("bf16", "fp16"):
                numbers = max(found.trained - found.outside // 2, 0)
                self.add("casts", numbers * 2, casts=numbers)
            if self.ranks > 1:
                self.add("ddp-buckets", found.trained * widths.gradient, trained=found.trained, width=widths.gradient)
        elif self.on_torch:
            outside, one, trained = found.outside * widths.compute, found.layer * widths.compute, min(found.outside, found.trained)
            self.add("gathered", outside + one, outside + 3 * one, outside=found.outside, layer=found.layer, width=widths.compute)
            unreduced = max(trained, min(found.layer, found.trained)) * widths.gradient
            texts: dict[str, Any] = {"outside": found.outside, "width": widths.compute, "trained": trained, "gradient": widths.gradient}
            self.add("gathered-end", outside + unreduced, outside + 2 * unreduced + one, **texts)
        else:
            # Stage 1 joins the gradients that there are; the others allocate the whole bucket.
            bucket = min(BUCKET, found.trained) if strategy.stage == 1 else BUCKET
            self.add("buckets", bucket * widths.gradient, 2 * bucket * widths.gradient, bucket=bucket, width=widths.gradient)
            if strategy.stage > 1:
                largest = min(found.largest_tensor, found.trained)
                self.add("unreduced", 0, largest * widths.gradient, largest=largest, width=widths.gradient)
        if not self.on_torch and strategy.stage == 3:
            least = max(found.layer, found.largest_tensor)
            most = max(least, min(_LIVE, found.parameters))
            self.add("live", least * widths.compute, most * widths.compute, least=least, width=widths.compute)

    def add_activations(self, shape: Shape) -> None:
        """By the shape: what blocks keep, the loss, and the blocks that run backward first and last."""
        training, widths, tokens = self.training, self.widths, self.training.tokens
        kept = shape.layers - min(training.frozen, shape.layers)
        one = layer_activations(shape, training, self.strategy.runs_on)
        mlp = (shape.intermediate * shape.active_experts + shape.shared) * widths.compute
        # Softmax's two gradients in float32; the MLP's activations and the scores' cast are gone by then.
        scores = shape.heads * training.sequence * (8 - widths.compute % 4) - shape.family.activations * mlp if training.attention == "eager" else 0
        flowing = tokens * max(2 * mlp + shape.hidden * widths.compute, scores)
        if training.checkpointing:
            each = shape.hidden * widths.residual
            self.add("block-inputs", kept * tokens * each, blocks=kept, tokens=tokens, each=each)
        else:
            self.add("activations", kept * one, blocks=kept, tokens=tokens, each=one / tokens, attention=training.attention)
        embedding = shape.vocab * shape.hidden * widths.gradient
        head = embedding if training.lora is None and not (training.frozen and shape.tied) else 0
        logits, ending = tokens * shape.vocab * 4, tokens * shape.hidden * (2 * widths.residual + widths.compute)
        inner = flowing + head + (one if training.checkpointing else 0)
        # FSDP2 holds one block's gradients twice while it reduces them: whole, and as the input of reduce_scatter.
        is_reduced = self.on_torch and self.strategy.stage == 3
        unreduced = min(self.found.layer, self.found.trained) * (widths.compute + widths.gradient) if is_reduced else 0
        low, high = (max(n * logits + ending, logits + head + ending, inner + more) for n, more in zip(_LOGITS, (0, unreduced), strict=True))
        self.add("logits", low, high, low=_LOGITS[0], high=_LOGITS[1], tokens=tokens, vocab=shape.vocab)
        again = embedding if shape.tied and training.lora is None and not training.frozen else 0
        self.add("last-block", max(one * 0.5 + flowing, again), max(one + flowing, again))

    def add_tracked_activations(self, tracked: Tracked, *, has_last: bool) -> None:
        """In place of the closed form's. The block that runs backward last is its own unless `has_last`: all of it is there with checkpointing."""
        self.terms = [t for t in self.terms if t.id not in ("activations", "block-inputs", "logits")]
        batch, blocks = self.training.batch, max(tracked.counts.layers, 1)
        ((fixed, each),) = _worst(tracked.activations.get(self.strategy.runs_on, tracked.activations["torch"]), batch).values()
        counted = fixed + each * batch
        self.add("counted", counted, fixed=fixed, batch=batch, each=each)
        if not has_last:
            self.add("counted-last", counted / blocks / 2, counted / blocks, blocks=blocks)

    def add_tracked_fsdp2(self, states: States) -> None:
        """At the loss, by the names of torch's tracker; it misses the input of the last reduce_scatter (measured). Optimizers are not traced."""
        kept = ("optimizer", "gradients")
        terms = (replace(t, moments=tuple(m for m in t.moments if m != "loss" or t.id in kept)) for t in self.terms)
        self.terms, batch = [t for t in terms if t.moments], self.training.batch
        for id, (fixed, each) in _worst(states, batch).items():
            found = fixed + each * batch
            # With CUDA the next blocks are gathered while one computes.
            most = found * (3 if id == "All Gather" and self.training.device == "cuda" else 1)
            self.add(id, found, most, fixed=fixed, batch=batch, each=each)

    def add_overheads(self, sample_bytes: float) -> None:
        """Of the device, and of all ranks of one host together."""
        training, strategy, here = self.training, self.strategy, self.training.ranks_here
        is_cuda = training.device == "cuda"
        if is_cuda:
            tensors = total(strategy, self.terms)
            self.add("slack", 0.02 * tensors.low, 0.10 * tensors.high)
            self.add("context", 0.4 * GIB, 0.9 * GIB)
            if self.ranks > 1:
                self.add("communicator", 0.2 * GIB, 0.8 * GIB)
        else:
            # FSDP2 allocates and frees what it gathers, in sizes below those that malloc maps by themselves.
            self.add("malloc", 0, (0.8 if self.on_torch and strategy.stage == 3 else 0.4) * total(strategy, self.terms).high)
        low, high = (1.5, 3.5) if is_cuda else (0.3, 0.8)
        self.add("processes", here * low * GIB, here * high * GIB, ranks=here, low=low, high=high)
        workers = here * training.loader_workers
        self.add("workers", workers * 0.1 * GIB, workers * 0.5 * GIB, ranks=here, workers=training.loader_workers)
        self.add("pinned", 0, max(workers, here) * 2 * training.batch * 3 * sample_bytes, ranks=here, batch=training.batch, each=sample_bytes)
        if strategy.offload:
            # Master weights and float32 gradients beside the optimizer's states.
            each, gathered = 8 + self._optimizer_bytes(), self.found.parameters if strategy.offload == "all" else 0
            states = (self.found.trained * each + gathered * self.widths.compute) * here / self.ranks
            texts: dict[str, Any] = {"trained": self.found.trained, "each": each, "gathered": gathered, "width": self.widths.compute}
            self.add("offload", states, 1.5 * states, ranks=here, shards=self.ranks, **texts)
