"""What fits, which strategy to take and why, the largest batch, what a step sends, and how many processes may prepare the data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from unhang.i18n import NOTHING, Text, joined, msg
from unhang.model import frozen
from unhang.plan.memory_model import GIB, Counts, Estimate, Tracked, Widths, counts, estimate
from unhang.plan.model_shape import Shape
from unhang.plan.training import Strategy, Training
from unhang.text import size

MOST_BATCH = 4096
FITS = {"fits": msg("fits"), "tight": msg("tight"), "no": msg("does not fit"), "unknown": msg("not known", "recommend")}


@frozen
class Machine:
    """What there is: bytes of one rank's device and of one host's memory, processors of a host, and the links' GB/s (1e9 bytes) one way.

    None is not known. `links` says which links those are, `origin` where the size of the device comes from.
    """

    device_bytes: int | None
    host_bytes: int | None
    cpus: float | None
    link_gbps: float | None
    links: str | None
    origin: Text


@frozen
class Row:
    """One strategy. `fits` is "fits" (even the high end does), "tight" (the low end), "no" or "unknown"; `host_fits` is that of the host's memory.

    `largest_batch` fits by its high end; 0 if no batch does, None if not known. `sent_bytes` is what one rank sends in a step, in `sent_s` seconds.
    """

    estimate: Estimate
    fits: str
    host_fits: str
    largest_batch: int | None
    sent_bytes: float
    sent_s: float | None

    @property
    def strategy(self) -> Strategy:
        return self.estimate.strategy

    @property
    def is_usable(self) -> bool:
        return self.fits in ("fits", "tight") and self.host_fits != "no"


@frozen
class Preparation:
    """Processes that tokenize (None: not known), the loader's workers of one rank, and how long the other ranks must be able to wait."""

    processes: int | None
    loader_workers: int
    timeout_s: int
    why: Text


@frozen
class Plan:
    """All of it. `base` is what counted activations, `sample` what one of a batch is; `notes` are what was assumed or could not be found out."""

    name: str
    counts: Counts
    training: Training
    machine: Machine
    rows: tuple[Row, ...]
    recommended: str | None
    why: Text
    preparation: Preparation
    base: str
    sample: Text
    notes: tuple[Text, ...]

    def row(self, name: str | None) -> Row:
        """That of a strategy; without a name, the one to show."""
        wanted = name or self.recommended
        return next((row for row in self.rows if row.strategy.name == wanted), self.rows[-1])


def plan(
    shape: Shape | None,
    training: Training,
    strategies: Sequence[Strategy],
    machine: Machine,
    *,
    name: str,
    tracked: Tracked | None = None,
    data_rows: int | None = None,
    notes: Sequence[Text] = (),
) -> Plan:
    """Estimate each strategy on this machine and choose one."""
    rows = tuple(_row(shape, training, strategy, machine, tracked) for strategy in strategies)
    chosen, why = recommend(rows, machine)
    return Plan(
        name=name,
        counts=counts(shape, training, tracked),
        training=training,
        machine=machine,
        rows=rows,
        recommended=chosen,
        why=why,
        preparation=prepare(training, machine, data_rows),
        base="closed form" if tracked is None else "tracker" if tracked.activations else "built",
        sample=_sample([("tokens", [training.sequence])] if tracked is None else tracked.sample),
        notes=(*notes, *(msg("assumed: {one}", one=one) for one in (shape.assumed if shape is not None else ()))),
    )


_SAMPLES = {"tokens": msg("{shape} tokens"), "image": msg("an image of {shape}")}


def _sample(inputs: Sequence[tuple[str, Sequence[int]]]) -> Text:
    numbers = msg("{shape} numbers")
    return joined((_SAMPLES.get(kind, numbers).fill(shape=" x ".join(map(str, sides))) for kind, sides in inputs), msg(" and ", "recommend"))


def _row(shape: Shape | None, training: Training, strategy: Strategy, machine: Machine, tracked: Tracked | None) -> Row:
    made = estimate(shape, training, strategy, tracked=tracked)
    sent = sent_bytes(counts(shape, training, tracked), training, strategy)

    def high(batch: int) -> float:
        return estimate(shape, replace(training, batch=batch), strategy, tracked=tracked).high

    return Row(
        estimate=made,
        fits=fits(made.low, made.high, machine.device_bytes),
        host_fits=fits(made.host_low, made.host_high, machine.host_bytes) if training.device == "cuda" else "unknown",
        largest_batch=None if machine.device_bytes is None else _largest(high, machine.device_bytes),
        sent_bytes=sent,
        sent_s=None if machine.link_gbps is None else sent / machine.link_gbps / 1e9,
    )


def fits(low: float, high: float, room: int | None) -> str:
    """ "fits", "tight", "no", or "unknown" without a size."""
    return "unknown" if room is None else "fits" if high <= room else "tight" if low <= room else "no"


def _largest(high: Callable[[int], float], room: int) -> int:
    """Memory grows with the batch: the last that fits, by halving."""
    if high(1) > room:
        return 0
    least, most = 1, MOST_BATCH
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if high(middle) <= room else (least, middle - 1)
    return least


def sent_bytes(found: Counts, training: Training, strategy: Strategy) -> float:
    """Bytes that one rank sends in one step, by rings: an all-reduce is a reduce_scatter and an all_gather of (N-1)/N each (ZeRO, section 7)."""
    if training.world_size < 2:
        return 0.0
    part = (training.world_size - 1) / training.world_size
    widths = Widths.of(training.precision, strategy.runs_on)
    gradients, weights = found.trained * widths.gradient, found.trained * widths.weight
    if strategy.stage == 3:
        # Gathered once for each forward and each backward pass; every micro-batch is reduced.
        return part * training.accumulation * (2 * found.parameters * widths.compute + gradients)
    if strategy.runs_on == "deepspeed":
        return part * (gradients * (training.accumulation if strategy.stage == 2 else 1) + weights)
    return part * 2 * gradients + (part * weights if strategy.stage else 0)


def recommend(rows: Sequence[Row], machine: Machine) -> tuple[str | None, Text]:
    """The first strategy that fits, and why not the ones before it; else the tight one with most room."""
    if machine.device_bytes is None:
        return None, msg("nothing is recommended: the memory of the device is not known; --gpu-memory 80GiB names it")
    room = size(machine.device_bytes)
    usable = [row for row in rows if row.is_usable]
    chosen = next((row for row in usable if row.fits == "fits"), None) or min(usable, key=lambda row: row.estimate.high, default=None)
    if chosen is None:
        least = min(rows, key=lambda row: row.estimate.low)
        found, host = _range(least.estimate), f"{size(least.estimate.host_low)} to {size(least.estimate.host_high)}"
        free = "?" if machine.host_bytes is None else size(machine.host_bytes)
        return None, msg(
            "nothing fits: {title} needs {found} of {room} a rank and {host} of {free} host memory (--host-memory). More ranks, "
            "a shorter sequence, --checkpointing, --lora 16 or a smaller batch need less.",
            title=least.strategy.title,
            found=found,
            room=room,
            host=host,
            free=free,
        )
    before = [row for row in rows[: rows.index(chosen)] if row.strategy.name != "zero-redundancy"]
    why = msg("{estimate} of {room}", estimate=_range(chosen.estimate), room=room)
    if chosen.fits == "tight":
        why += msg("; whether it fits is not certain: measure one step with --calibrate")
    if before:
        listed = joined((msg("{title} ({range})", title=row.strategy.title, range=_range(row.estimate)) for row in before), msg(", ", "plan"))
        why += msg("; not enough room for {listed}", listed=listed)
    second = next((row for row in rows if row.strategy.name == "zero-2"), chosen)
    if chosen.strategy.name == "zero-1" and second is not chosen:
        why += msg(
            "; ZeRO-2 ({estimate}) sends no less, and with --accumulation more: it reduces after every forward pass", estimate=_range(second.estimate)
        )
    others = [row for row in rows[rows.index(chosen) + 1 :] if row.strategy.stage == 3]
    later = next((row for row in others if row.sent_bytes > chosen.sent_bytes * 1.05), None)
    if later is not None and chosen.sent_bytes and chosen.fits == "fits":
        times = later.sent_bytes / chosen.sent_bytes
        why += msg(
            "; {strategy} would send {times} times as much in each step for memory that is not needed",
            strategy=later.strategy.title,
            times=f"{times:.{int(times < 10)}f}",
        )
    return chosen.strategy.name, why


def _range(found: Estimate) -> str:
    return f"{size(found.low)} to {size(found.high)}"


# Tokenizers take a few thousand texts a second on a core; long ones, images and templates a few dozen. Not measured here.
_SLOW_ROWS_PER_S = 50
_PROCESS_BYTES = 1.5 * GIB


def prepare(training: Training, machine: Machine, rows: int | None) -> Preparation:
    """Processes by cores and memory, and a timeout: other ranks wait in a collective while one rank of each host prepares the data."""
    cpus = max(1, int(machine.cpus or 1))
    by_memory = max(1, int(machine.host_bytes * 0.5 / _PROCESS_BYTES)) if machine.host_bytes is not None else cpus
    processes = max(1, min(cpus, by_memory, 64))
    workers = max(0, min(8, (cpus - training.ranks_here) // training.ranks_here)) if machine.cpus is not None else training.loader_workers
    needed = 3 * 3600 if rows is None else max(1800, round(2 * rows / (processes * _SLOW_ROWS_PER_S) / 60) * 60)
    why = msg("{cpus} processors", cpus=cpus) if machine.cpus is not None else msg("processors not known")
    why += msg(", {host_bytes} of memory", host_bytes=size(machine.host_bytes)) if machine.host_bytes is not None else NOTHING
    why += msg("; 1.5 GiB for each process, more than 64 gain little; timeout: ")
    if rows is None:
        why += msg("the number of rows is not known (--data-rows N)")
    else:
        why += msg("twice {rows:,} rows at {SLOW_ROWS_PER_S} a second and process (assumed)", rows=rows, SLOW_ROWS_PER_S=_SLOW_ROWS_PER_S)
    return Preparation(processes=processes if machine.cpus is not None else None, loader_workers=workers, timeout_s=needed, why=why)
