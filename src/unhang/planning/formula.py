"""The closed form: every part of the memory of one rank, with the formula that gives it and where the formula comes from.

A part is held in some of three moments, and the peak is the worst of them: the loss (all activations are there, no gradient yet), the end of the
backward pass (all gradients, hardly an activation), the optimizer's step. Ranges are what depends on versions and fragmentation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from unhang.facts.units import size
from unhang.planning.shape import Shape
from unhang.planning.training import OPTIMIZERS, Strategy, Training
from unhang.text import Text

MOMENTS = ("loss", "backward", "step")
GIB = 1024**3
# What our own export writes; DeepSpeed's default is 5e8 (deepspeed/runtime/zero/config.py).
BUCKET = 200_000_000
_LIVE = 1_000_000_000

ZERO = "Rajbhandari et al. 2020, ZeRO, arXiv:1910.02054, section 5"
RECOMPUTATION = "Korthikanti et al. 2022, arXiv:2205.05198, section 4; counted in transformers' modeling files"
TORCH_DDP = "https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html (gradient_as_bucket_view)"
TORCH_FSDP = "https://pytorch.org/docs/stable/distributed.fsdp.fully_shard.html"
TORCH_ADAM = "https://pytorch.org/docs/stable/generated/torch.optim.AdamW.html (foreach)"
TORCH_AMP = "https://pytorch.org/docs/stable/amp.html"
DEEPSPEED = "https://www.deepspeed.ai/docs/config-json/#zero-optimizations-for-fp16-training"
TORCH_MEMORY = "https://pytorch.org/docs/stable/notes/cuda.html#memory-management"
NCCL_BUFFERS = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-buffsize"
TORCH_LOADER = "https://pytorch.org/docs/stable/data.html#multi-process-data-loading"
TRACKER = "torch.distributed._tools.mem_tracker, run here on fake tensors"

_FSDP_PARTS = {
    "Sharded Param": Text("parameters (shard)", "参数（分片）"),
    "Unsharded Param": Text("gathered parameters", "聚合的参数"),
    "Sharded Grad": Text("gradients (shard)", "梯度（分片）"),
    "Unsharded Grad": Text("gradients before they are reduced", "归约前的梯度"),
    "OptState": Text("optimizer state", "优化器状态"),
    "Activation": Text("activations", "激活值"),
    "Temp": Text("gradients of activations", "激活梯度"),
    "All Gather": Text("buffers of all_gather", "all_gather 的缓冲区"),
    "Reduce Scatter": Text("buffers of reduce_scatter", "reduce_scatter 的缓冲区"),
    "Buffer": Text("buffers of the model", "模型的缓冲"),
    "Inputs": Text("inputs", "输入"),
}


@dataclass(frozen=True, kw_only=True)
class Term:
    """One part, in bytes. `place` is "device" (of one rank) or "host" (of all ranks of one host); `moments` are those in which it is held."""

    id: str
    name: Text
    formula: Text
    source: str
    low: float
    high: float
    moments: tuple[str, ...] = MOMENTS
    place: str = "device"


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Numbers of parameters: all, trained ones, of the largest tensor, of one block, and of what stands outside the blocks."""

    parameters: int
    trained: int
    largest_tensor: int
    layer: int
    outside: int
    layers: int


@dataclass(frozen=True, kw_only=True)
class Tracked:
    """What torch's tracker counted for `batch` sequences, in bytes: activations at the loss by the library that trains ("torch", "deepspeed" if it
    differs), and the parts of the peak of a rank under FSDP2. `failed` is what did not work.
    """

    counts: Counts
    batch: int
    activations: Mapping[str, int]
    fsdp2: Mapping[str, int] | None = None
    torch: str = ""
    failed: str | None = None


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The terms of one strategy; totals in bytes are those of the moment that needs most."""

    strategy: Strategy
    terms: tuple[Term, ...]

    def _at(self, moment: str, end: str) -> float:
        return sum((t.low if end == "low" else t.high) for t in self.terms if t.place == "device" and moment in t.moments)

    @property
    def peak(self) -> str:
        """The moment that needs most, by the high end."""
        return max(MOMENTS, key=lambda moment: self._at(moment, "high"))

    @property
    def low(self) -> float:
        return max(self._at(moment, "low") for moment in MOMENTS)

    @property
    def high(self) -> float:
        return max(self._at(moment, "high") for moment in MOMENTS)

    @property
    def host_low(self) -> float:
        return sum(t.low for t in self.terms if t.place == "host")

    @property
    def host_high(self) -> float:
        return sum(t.high for t in self.terms if t.place == "host")


def counts(shape: Shape, training: Training) -> Counts:
    """From the shape alone."""
    block, frozen = shape.layer_parameters, min(training.frozen, shape.layers)
    if training.lora is not None:
        adapters = sum(training.lora.rank * sum(shape.linear_layers()[target]) for target in training.lora.targets)
        trained, block = shape.layers * adapters, block + adapters
    elif frozen:
        # The input embedding is below every block; a tied head is the same tensor.
        trained = shape.parameters - frozen * block - shape.vocab * shape.hidden - shape.positions * shape.hidden
    else:
        trained = shape.parameters
    return Counts(
        parameters=shape.parameters + (trained if training.lora is not None else 0),
        trained=max(trained, 0),
        largest_tensor=shape.largest_tensor,
        layer=block,
        outside=shape.embedding_parameters,
        layers=shape.layers,
    )


@dataclass(frozen=True)
class _Widths:
    """Bytes of one number: of weights, gradients, the residual stream and what linear layers compute with."""

    trained: int
    gradient: int
    residual: int
    compute: int

    @classmethod
    def of(cls, precision: str, runs_on: str) -> _Widths:
        if precision == "fp32":
            return cls(4, 4, 4, 4)
        if precision == "pure-bf16" or runs_on == "deepspeed":
            return cls(2, 2, 2, 2)
        # Autocast leaves weights and the residual stream in float32.
        return cls(4, 4, 4, 2)


def layer_activations(shape: Shape, training: Training, runs_on: str = "torch") -> float:
    """Bytes that one block keeps for the backward pass."""
    widths, family = _Widths.of(training.precision, runs_on), shape.family
    targets = set(training.lora.targets) if training.lora is not None else None
    reads_attention = targets is None or targets & {"q_proj", "k_proj", "v_proj"}
    reads_mlp = targets is None or targets & {"gate_proj", "up_proj"}
    # RMSNorm computes in float32 and keeps its input; its result is kept for the weight, and the input of the linear layer for its weight.
    norm = 4 if family.rms_norm else widths.residual
    scaled = widths.residual if family.rms_norm and targets is None else 0
    inputs = shape.hidden * widths.compute * (bool(reads_attention) + bool(reads_mlp))
    attention = (2 * shape.query + 2 * shape.key) * widths.compute + 4 * shape.heads
    if training.attention == "eager":
        # Softmax in float32, and its cast for the product with the values.
        attention += shape.heads * training.sequence * (4 + (widths.compute if widths.compute < 4 else 0))
        attention += 2 * (shape.query - shape.key) * widths.compute
    kept = family.activations - (0 if targets is None or "down_proj" in targets else 1)
    mlp = kept * shape.intermediate * shape.active_experts * widths.compute
    of_lora = sum(training.lora.rank * widths.compute for _ in targets) if training.lora is not None and targets else 0
    return training.tokens * (2 * shape.hidden * (norm + scaled) + inputs + attention + mlp + of_lora)


def estimate(
    shape: Shape | None, training: Training, strategy: Strategy, *, tracked: Tracked | None = None, loss_copies: tuple[int, int] = (3, 4)
) -> Estimate:
    """The terms of one rank. One of `shape` and `tracked` is needed; activations that torch's tracker counted replace those of the closed form."""
    found = tracked.counts if tracked is not None else counts(shape, training) if shape is not None else None
    assert found is not None
    terms: list[Term] = []
    if tracked is not None and tracked.fsdp2 is not None and strategy.name == "fsdp2":
        _tracked_fsdp2(terms, tracked, tracked.fsdp2, training)
    else:
        _states(terms, found, training, strategy)
        # The tracker sees the casts of autocast as activations.
        _exchange(terms, found, training, strategy, is_tracked=tracked is not None)
        if tracked is not None:
            _tracked_activations(terms, tracked, training, strategy)
        elif shape is not None:
            _activations(terms, shape, found, training, strategy, loss_copies)
    if training.device == "cuda":
        _cuda(terms, training, strategy)
    _host(terms, found, training, strategy)
    return Estimate(strategy=strategy, terms=tuple(terms))


def _add(terms: list[Term], place: str, id: str, name: Text, formula: Text, source: str, low: float, high: float | None = None,
         moments: Sequence[str] = MOMENTS) -> None:  # fmt: skip
    if max(low, high or 0) > 0:
        low, high = (low, low if high is None else high)
        terms.append(Term(id=id, name=name, formula=formula, source=source, low=low, high=high, moments=tuple(moments), place=place))


def _states(terms: list[Term], found: Counts, training: Training, strategy: Strategy) -> None:
    """Parameters, gradients, optimizer state and master weights: what ZeRO shards."""
    widths, ranks = _Widths.of(training.precision, strategy.runs_on), training.world_size
    add: Callable[..., None] = partial(_add, terms, "device")
    frozen = found.parameters - found.trained
    # Weights below adapters are loaded in half precision.
    width = 2 if training.lora is not None and training.precision != "fp32" else widths.trained
    share = (1 / ranks if strategy.shards_parameters else 1.0) * (strategy.offload != "all")
    _, of_ranks = Text("", ""), Text(f" / {ranks} ranks", f" / {ranks} 个 rank")
    divided = of_ranks if strategy.shards_parameters else Text("", "")
    if share:
        add("parameters", Text("parameters", "参数"),
            Text(f"{found.trained:,} trained x {widths.trained} bytes + {frozen:,} frozen x {width} bytes",
                 f"{found.trained:,} 个可训练参数 x {widths.trained} 字节 + {frozen:,} 个冻结参数 x {width} 字节") + divided,
            ZERO, (found.trained * widths.trained + frozen * width) * share)  # fmt: skip
    # With several micro-batches for a step, gradients are there while activations are.
    held = MOMENTS if training.accumulation > 1 else ("backward", "step")
    divided = of_ranks if strategy.shards_gradients else Text("", "")
    share = 1 / ranks if strategy.shards_gradients else 1.0
    if strategy.offload != "" and strategy.runs_on == "deepspeed":
        # They go to the host bucket by bucket.
        share = 0.0
    add("gradients", Text("gradients", "梯度"),
        Text(f"{found.trained:,} x {widths.gradient} bytes", f"{found.trained:,} x {widths.gradient} 字节") + divided,
        ZERO, found.trained * widths.gradient * share, moments=held)  # fmt: skip
    # Tensors are not cut where torch's ZeroRedundancyOptimizer divides them.
    share = 1 / ranks if strategy.shards_optimizer else 1.0
    if strategy.name == "zero-redundancy":
        share = max(share, min(1.0, found.largest_tensor / found.trained)) if found.trained else share
    if strategy.offload:
        return
    divided = of_ranks if strategy.shards_optimizer else Text("", "")
    each = _optimizer_bytes(training, found, strategy)
    add("optimizer", Text("optimizer state", "优化器状态"),
        Text(f"{training.optimizer}: {found.trained:,} x {each:.3g} bytes", f"{training.optimizer}：{found.trained:,} x {each:.3g} 字节") + divided,
        ZERO, found.trained * each * share)  # fmt: skip
    if strategy.runs_on == "deepspeed" and training.precision != "pure-bf16":
        add("master", Text("float32 master weights", "float32 主权重"),
            Text(f"{found.trained:,} x 4 bytes", f"{found.trained:,} x 4 字节") + divided, ZERO, found.trained * 4 * share)  # fmt: skip
        add("master-gradients", Text("float32 gradients of the step", "更新时的 float32 梯度"),
            Text(f"{found.trained:,} x 4 bytes", f"{found.trained:,} x 4 字节") + divided,
            DEEPSPEED, 0 if training.precision != "fp32" else found.trained * 4 * share, found.trained * 4 * share, moments=("step",))  # fmt: skip
    elif training.device == "cuda" and training.optimizer == "adamw":
        add("step", Text("temporaries of the step", "更新时的临时张量"),
            Text("foreach: as much as the parameters of this rank", "foreach：与本 rank 的参数一样多"),
            TORCH_ADAM, 0, found.trained * widths.trained * share, moments=("step",))  # fmt: skip
    elif training.optimizer == "adamw":
        largest = min(found.largest_tensor, found.trained) * (1 / ranks if strategy.shards_parameters else 1)
        add("step", Text("temporaries of the step", "更新时的临时张量"),
            Text(f"one after the other: 2 x {largest:,.0f} x 4 bytes of the largest tensor", f"逐个更新：最大张量 2 x {largest:,.0f} x 4 字节"),
            TORCH_ADAM, 2 * largest * 4, moments=("step",))  # fmt: skip


def _optimizer_bytes(training: Training, found: Counts, strategy: Strategy) -> float:
    each = OPTIMIZERS[training.optimizer]
    if each is None:
        # A row and a column of float32 for each matrix: of a square one with as many numbers as the largest tensor.
        each = 8 / max(found.largest_tensor, 1) ** 0.5
    return each / 2 if training.precision == "pure-bf16" and training.optimizer in ("adamw", "momentum") else each


def _exchange(terms: list[Term], found: Counts, training: Training, strategy: Strategy, *, is_tracked: bool) -> None:
    """Buckets, gathered parameters, and copies in the precision of the computation."""
    widths, ranks = _Widths.of(training.precision, strategy.runs_on), training.world_size
    add: Callable[..., None] = partial(_add, terms, "device")
    mixed = training.precision in ("bf16", "fp16")
    if strategy.runs_on == "torch" and mixed and not strategy.shards_parameters and not is_tracked:
        casts = max(found.trained - found.outside // 2, 0)
        add("casts", Text("copies of the weights in half precision", "权重的半精度副本"),
            Text(f"autocast keeps {casts:,} x 2 bytes until the backward pass has used them", f"autocast 保留 {casts:,} x 2 字节，直到反向用完"),
            TORCH_AMP, casts * 2, moments=("loss",))  # fmt: skip
    if strategy.runs_on == "torch" and not strategy.shards_parameters and ranks > 1:
        add("buckets", Text("DDP's buckets", "DDP 的桶"),
            Text(f"a second copy of the gradients: {found.trained:,} x {widths.gradient} bytes; 0 with gradient_as_bucket_view=True",
                 f"梯度的第二份：{found.trained:,} x {widths.gradient} 字节；gradient_as_bucket_view=True 时为 0"),
            TORCH_DDP, found.trained * widths.gradient)  # fmt: skip
    if strategy.runs_on == "deepspeed" and ranks > 1:
        bucket = min(BUCKET, found.trained) * widths.gradient
        add("buckets", Text("buckets of the reduction", "归约的桶"),
            Text(f"reduce_bucket_size {min(BUCKET, found.trained):,} x {widths.gradient} bytes, twice with overlap_comm",
                 f"reduce_bucket_size {min(BUCKET, found.trained):,} x {widths.gradient} 字节，overlap_comm 时为两倍"),
            DEEPSPEED, bucket, 2 * bucket, moments=("loss", "backward"))  # fmt: skip
    if not strategy.shards_parameters:
        return
    if strategy.runs_on == "deepspeed":
        least = max(found.layer, found.largest_tensor) * widths.compute
        add("gathered", Text("gathered parameters", "聚合的参数"),
            Text(f"from the largest block ({least / widths.compute:,.0f} x {widths.compute} bytes) to stage3_max_live_parameters (1e9)",
                 f"从最大的块（{least / widths.compute:,.0f} x {widths.compute} 字节）到 stage3_max_live_parameters（1e9）"),
            DEEPSPEED, least, max(least, min(_LIVE, found.parameters) * widths.compute), moments=("loss", "backward"))  # fmt: skip
        return
    outside = found.outside * widths.compute
    one = found.layer * widths.compute
    add("gathered", Text("gathered parameters", "聚合的参数"),
        Text(f"what stands outside the blocks ({found.outside:,}) and one to three blocks ({found.layer:,} each) x {widths.compute} bytes",
             f"块以外的参数（{found.outside:,}）与一到三个块（每个 {found.layer:,}）x {widths.compute} 字节"),
        TORCH_FSDP, outside + one, outside + 3 * one, moments=("loss",))  # fmt: skip
    trained = min(found.outside, found.trained)
    unreduced = max(trained, min(found.layer, found.trained)) * widths.gradient
    add("gathered-end", Text("gathered parameters and gradients at the end", "末尾聚合的参数与梯度"),
        Text(f"what stands outside the blocks: parameters {found.outside:,} x {widths.compute} bytes, gradients {trained:,} x {widths.gradient} "
             "bytes and once more as input of reduce_scatter",
             f"块以外：参数 {found.outside:,} x {widths.compute} 字节，梯度 {trained:,} x {widths.gradient} 字节，作为 reduce_scatter 的输入再一份"),
        TORCH_FSDP, outside + unreduced, outside + 2 * unreduced + one, moments=("backward",))  # fmt: skip


def _activations(terms: list[Term], shape: Shape, found: Counts, training: Training, strategy: Strategy, copies: tuple[int, int]) -> None:
    widths, tokens = _Widths.of(training.precision, strategy.runs_on), training.tokens
    add: Callable[..., None] = partial(_add, terms, "device")
    kept = shape.layers - min(training.frozen, shape.layers)
    one = layer_activations(shape, training, strategy.runs_on)
    flowing = tokens * (2 * shape.intermediate * shape.active_experts + shape.hidden) * widths.compute
    text = Text(f"{training.batch} x {training.sequence} tokens", f"{training.batch} x {training.sequence} 个 token")
    if training.checkpointing:
        stored = kept * tokens * shape.hidden * widths.residual
        add("activations", Text("inputs of the blocks (checkpointing)", "各块的输入（重计算）"),
            Text(f"{kept} blocks x ", f"{kept} 个块 x ") + text + Text(f" x {shape.hidden} x {widths.residual} bytes",
                                                                       f" x {shape.hidden} x {widths.residual} 字节"),
            RECOMPUTATION, stored, moments=("loss",))  # fmt: skip
    else:
        add("activations", Text("activations", "激活值"),
            Text(f"{kept} blocks x ", f"{kept} 个块 x ") + text
            + Text(f" x {one / tokens:,.0f} bytes ({training.attention} attention)", f" x {one / tokens:,.0f} 字节（{training.attention} 注意力）"),
            RECOMPUTATION, kept * one, moments=("loss",))  # fmt: skip
    head = shape.vocab * shape.hidden * widths.gradient if not (training.lora or (training.frozen and shape.tied)) else 0
    logits = tokens * shape.vocab * 4
    ending = tokens * shape.hidden * (2 * widths.residual + widths.compute)
    inner = flowing + head + (one if training.checkpointing else 0)
    low, high = (max(n * logits + ending, logits + head + ending, inner) for n in copies)
    add("logits", Text("logits, or the block that runs backward first", "logits，或最先反向的块"),
        Text(f"the larger of {copies[0]} to {copies[1]} float32 copies of ", f"取较大者：{copies[0]} 到 {copies[1]} 份 float32 的 ") + text
        + Text(f" x {shape.vocab} words, and one block's gradients of activations with the gradient of the head",
               f" x {shape.vocab} 个词，或一个块的激活梯度加输出层梯度"),
        "torch.nn.functional.cross_entropy: log_softmax, its gradient and that of its input are float32", low, high, moments=("loss",))  # fmt: skip
    again = shape.vocab * shape.hidden * widths.gradient if shape.tied and not training.lora and not training.frozen else 0
    add("last-block", Text("the last block that runs backward", "最后反向的块"),
        Text("its activations and their gradients, or the second gradient of a tied embedding, which is added to the first",
             "其激活值与激活梯度，或绑定词嵌入的第二份梯度（加到第一份上）"),
        RECOMPUTATION, max(one * 0.5 + flowing, again), max(one + flowing, again), moments=("backward",))  # fmt: skip


def _tracked_fsdp2(terms: list[Term], tracked: Tracked, parts: Mapping[str, int], training: Training) -> None:
    add: Callable[..., None] = partial(_add, terms, "device")
    for name, title in _FSDP_PARTS.items():
        of_batch = training.batch / tracked.batch if name in ("Activation", "Temp", "Inputs") else 1.0
        found = parts.get(name, 0) * of_batch
        # With CUDA the next blocks are gathered while one computes.
        more = 2 * found if name == "All Gather" and training.device == "cuda" else 0
        add(name.lower().replace(" ", "-"), title, Text(f"counted for {tracked.batch} sequences", f"按 {tracked.batch} 条序列统计"),
            f"{TRACKER} (torch {tracked.torch}, FSDPMemTracker)", found, found + more)  # fmt: skip


def _tracked_activations(terms: list[Term], tracked: Tracked, training: Training, strategy: Strategy) -> None:
    counted = tracked.activations.get(strategy.runs_on, tracked.activations["torch"])
    loss = counted * training.batch / tracked.batch
    add: Callable[..., None] = partial(_add, terms, "device")
    layers = tracked.counts.layers
    about = Text(f"counted for {tracked.batch} sequences: {size(counted)}", f"按 {tracked.batch} 条序列统计：{size(counted)}")
    add("activations", Text("activations, logits and their gradients", "激活值、logits 及其梯度"), about, f"{TRACKER} (torch {tracked.torch})",
        loss, moments=("loss",))  # fmt: skip
    last = loss / max(layers, 1)
    add("last-block", Text("the last block that runs backward", "最后反向的块"),
        Text(f"activations of {layers} blocks / {layers}", f"{layers} 个块的激活值 / {layers}"),
        RECOMPUTATION, last * 0.5, last, moments=("backward",))  # fmt: skip


def _cuda(terms: list[Term], training: Training, strategy: Strategy) -> None:
    tensors = Estimate(strategy=strategy, terms=tuple(terms))
    add: Callable[..., None] = partial(_add, terms, "device")
    add("slack", Text("slack of the allocator", "分配器的余量"),
        Text("2 to 10 % of the tensors: blocks that are cut or cached", "张量的 2 % 到 10 %：被切分或缓存的块"),
        TORCH_MEMORY, 0.02 * tensors.low, 0.10 * tensors.high)  # fmt: skip
    add("context", Text("CUDA context and libraries", "CUDA 上下文与库"),
        Text("0.4 to 0.9 GiB: kernels, cuBLAS workspaces; depends on driver and GPU", "0.4 到 0.9 GiB：内核与 cuBLAS 工作区，取决于驱动与 GPU"),
        TORCH_MEMORY, 0.4 * GIB, 0.9 * GIB)  # fmt: skip
    if training.world_size > 1:
        add("communicator", Text("buffers of NCCL", "NCCL 的缓冲区"),
            Text("0.2 to 0.8 GiB: NCCL_BUFFSIZE (4 MiB) for each channel, protocol and peer",
                 "0.2 到 0.8 GiB：每个通道、协议与对端 NCCL_BUFFSIZE（4 MiB）"),
            NCCL_BUFFERS, 0.2 * GIB, 0.8 * GIB)  # fmt: skip


def _host(terms: list[Term], found: Counts, training: Training, strategy: Strategy) -> None:
    """Of all ranks of one host together."""
    add: Callable[..., None] = partial(_add, terms, "host")
    here = training.ranks_here
    low, high = (1.5, 3.5) if training.device == "cuda" else (0.3, 0.8)
    add("processes", Text("processes of the ranks", "各 rank 的进程"),
        Text(f"{here} ranks x {low} to {high} GiB: Python, torch and its libraries", f"{here} 个 rank x {low} 到 {high} GiB：Python、torch 与库"),
        "range of what torch 2.x processes take; not measured here", here * low * GIB, here * high * GIB)  # fmt: skip
    add("workers", Text("loader workers", "数据加载进程"),
        Text(f"{here} ranks x {training.loader_workers} workers x 0.1 to 0.5 GiB, and what the data set copies",
             f"{here} 个 rank x {training.loader_workers} 个 worker x 0.1 到 0.5 GiB，另加数据集的副本"),
        TORCH_LOADER, here * training.loader_workers * 0.1 * GIB, here * training.loader_workers * 0.5 * GIB)  # fmt: skip
    pinned = here * max(training.loader_workers, 1) * 2 * training.tokens * 3 * 8
    add("pinned", Text("batches in pinned memory", "锁页内存中的批次"),
        Text(f"{here} ranks x workers x 2 batches x {training.tokens:,} tokens x 3 int64",
             f"{here} 个 rank x worker x 2 批 x {training.tokens:,} 个 token x 3 个 int64"),
        TORCH_LOADER, 0, pinned)  # fmt: skip
    if not strategy.offload:
        return
    widths, ranks = _Widths.of(training.precision, strategy.runs_on), training.world_size
    each = 4 + 4 + _optimizer_bytes(training, found, strategy)
    states = found.trained * each * here / ranks
    if strategy.offload == "all":
        states += found.parameters * widths.compute * here / ranks
    add("offload", Text("offloaded states", "卸载的状态"),
        Text(f"{here} of {ranks} shares of {found.trained:,} x {each:.3g} bytes"
             + (f" and of {found.parameters:,} x {widths.compute} bytes" if strategy.offload == "all" else "") + "; pinned copies: up to half of it",
             f"{ranks} 份中的 {here} 份：{found.trained:,} x {each:.3g} 字节"
             + (f" 与 {found.parameters:,} x {widths.compute} 字节" if strategy.offload == "all" else "") + "；锁页副本另需一半"),
        "https://www.deepspeed.ai/tutorials/zero-offload/", states, 1.5 * states)  # fmt: skip
