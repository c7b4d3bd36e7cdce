"""gpu-oom: a GPU had no memory left for what was asked of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from unhang.frames import Frame, user_frame
from unhang.knowledge import serving, words
from unhang.knowledge.caught_exceptions import surely_caught, went_on
from unhang.knowledge.cause import STANDINGS, cause
from unhang.knowledge.judge import Answer, Findings, Found, HostView, LogView, RunView
from unhang.knowledge.words import continued, msg
from unhang.logs import Hit, Traceback
from unhang.model import Finding, frozen
from unhang.patterns import lazily

CAUSE = cause("gpu-oom")

# As Trainer, Lightning, accelerate's examples and most loops of one's own call what evaluates; unhang.evaluate, too.
_EVALUATES = lazily(r"(?:^|_)(?:eval|evaluat\w*|valid|validat\w*)(?:_|$)")
_SIZE = r"\b(\d{1,15}(?:\.\d{1,9})?) ?([KMGT]i?B|bytes|B)\b"
_UNITS = {"b": 1, "bytes": 1, "kb": 2**10, "kib": 2**10, "mb": 2**20, "mib": 2**20, "gb": 2**30, "gib": 2**30, "tb": 2**40, "tib": 2**40}
# The wording of torch up to 2.0 stands in brackets, of 2.1 and later in sentences (2.1 wrote "capacty").
_WANTED = lazily(rf"Tried to allocate {_SIZE}")
_DEVICE = lazily(r"\b(?:GPU|NPU|XPU|MLU) (\d+)(?:;| has a total)")
_TOTAL = lazily(rf"{_SIZE} total capacity|has a total capac\w+ of {_SIZE}")
_FREE = lazily(rf"{_SIZE} (?:is )?free\b")
_ALLOCATED = lazily(rf"{_SIZE} already allocated|Of the allocated memory {_SIZE} is allocated by PyTorch")
_RESERVED = lazily(rf"{_SIZE} (?:reserved in total by PyTorch|cached)")
_UNALLOCATED = lazily(rf"{_SIZE} is reserved by PyTorch but unallocated")
_OWN = lazily(rf"this process has {_SIZE} memory in use")
_OTHERS = lazily(rf"Process (\d+) has {_SIZE} memory in use")


@frozen
class _Memory:
    """What torch says of the GPU when an allocation fails; None where its version does not say it."""

    wanted_bytes: float
    device: str | None
    total_bytes: float | None
    free_bytes: float | None
    allocated_bytes: float | None
    unallocated_bytes: float | None
    others: tuple[tuple[str, float], ...]
    others_bytes: float


def _memory(text: str) -> _Memory | None:
    wanted = _bytes(_WANTED, text)
    if wanted is None:
        return None
    device = _DEVICE.search(text)
    total, free, allocated, reserved = (_bytes(p, text) for p in (_TOTAL, _FREE, _ALLOCATED, _RESERVED))
    unallocated = _bytes(_UNALLOCATED, text)
    # Up to torch 1.3 "cached" was what lies unused beside what is allocated.
    if "cached" in text and reserved is not None and allocated is not None and reserved < allocated:
        reserved += allocated
    if unallocated is None and reserved is not None and allocated is not None:
        unallocated = max(0.0, reserved - allocated)
    # Up to 2.0 nothing names the other processes: what is neither free nor torch's belongs to them, to the CUDA context and to NCCL.
    others = tuple((m[1], _size(m[2], m[3])) for m in _OTHERS.finditer(text))
    elsewhere = sum(size for _, size in others)
    own_bytes = _bytes(_OWN, text)
    if others and (own_bytes is None or (total is not None and own_bytes > total)):
        # In a container torch cannot tell its own pid: the process that is listed alone is itself.
        own = max(others, key=lambda o: o[1])
        others = tuple(o for o in others if o is not own)
        elsewhere -= own[1]
    if not others and reserved is not None and total is not None and free is not None:
        elsewhere = max(0.0, total - free - reserved)
    return _Memory(
        wanted_bytes=wanted,
        device=device[1] if device else None,
        total_bytes=total,
        free_bytes=free,
        allocated_bytes=allocated,
        unallocated_bytes=unallocated,
        others=others,
        others_bytes=elsewhere,
    )


def _bytes(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.search(text)
    if found is None:
        return None
    number, unit = [g for g in found.groups() if g is not None][:2]
    return _size(number, unit)


def _size(number: str, unit: str) -> float:
    return float(number) * _UNITS[unit.lower()]


def _gib(size: float) -> str:
    if size >= 2**30:
        return f"{size / 2**30:.2f} GiB"
    return f"{size / 2**20:.0f} MiB" if size >= 2**20 else f"{size / 2**10:.0f} KiB"


def _crowded(m: _Memory) -> bool:
    """Whether others hold so much that it matters: without them the allocation would have fitted, and PyTorch itself does not fill the GPU.

    Up to torch 2.0 the rank's own CUDA context and NCCL's buffers, one to three GiB, count as others.
    """
    if m.total_bytes is not None and (m.allocated_bytes or 0.0) + (m.unallocated_bytes or 0.0) >= 0.85 * m.total_bytes:
        return False
    if m.others:
        return m.others_bytes >= 2**30 and (m.free_bytes or 0.0) + m.others_bytes >= m.wanted_bytes
    return m.total_bytes is not None and m.others_bytes >= max(4 * 2**30, 0.15 * m.total_bytes)


def _remedies(m: _Memory, text: str, frames: Sequence[Frame]) -> tuple[str, ...]:
    chosen = []
    if _crowded(m):
        chosen.append("free-the-gpu")
    # Enough lies there unused, only not in one piece.
    if m.unallocated_bytes is not None and m.unallocated_bytes >= max(m.wanted_bytes, 2**28):
        chosen.append("expandable-segments")
    if serving.is_engine(text, frames):
        return (*chosen, *serving.where_it_ran_out(text, frames).remedies)
    if any(_EVALUATES.search(f.name) for f in frames):
        return (*chosen, "smaller-evaluation", "guard-the-evaluation")
    return (*chosen, "smaller-step", "shard")


def _of_hits(hits: Sequence[Hit], view: LogView | None, backs: Sequence[Traceback], raised: tuple[Frame, ...] = ()) -> Finding | None:
    """`raised`: the frames of the exception, where no log tells them."""
    ordered = sorted(hits, key=lambda h: STANDINGS.index(h.signature.standing))
    if not ordered:
        return None
    # The line with the numbers says most, whoever printed first: NCCL and cuBLAS fail where torch has filled the GPU.
    told = [(h, m) for h in ordered if (m := _memory(h.whole)) is not None]
    if not told:
        asked = serving.by_the_numbers(ordered[0])
        return CAUSE.of_hits(hits, view) if asked is None else CAUSE.of_hits(hits, view, remedies=asked.remedies, commands=asked.commands)
    first, memory = told[0]
    same = [first, *(h for h, _ in told[1:] if h.signature == first.signature), *(h for h in ordered if h.signature != first.signature)]
    chosen = _remedies(memory, first.whole, _frames(first, backs) or raised)
    sizes = {name: _gib(size) if isinstance(size, float) else size for name, size in vars(memory).items()}
    held = [(pid, _gib(size)) for pid, size in memory.others[:3]]
    return CAUSE.of_hits(same, view, Found("full", remedies=chosen, m=sizes, held=held, crowded=_crowded(memory)))


def _frames(hit: Hit, backs: Sequence[Traceback]) -> tuple[Frame, ...]:
    """Where it was raised."""
    return next((t.frames for t in backs if t.source == hit.source and hit.line is not None and t.line <= hit.line <= t.end), ())


def in_run(picture: RunView) -> Answer:
    hits = picture.hits_of(CAUSE.id)
    first = next((r for r in picture.raised if any(h in hits for h in r.raised_hits)), None)
    frames = first.raised.frames if first is not None and first.raised is not None else ()
    found = _of_hits(hits, None, picture.tracebacks, frames)
    if found is None or first is None or first.number not in found.ranks:
        return found
    known = {r.number for r in picture.ranks}
    found = replace(found, hosts=found.hosts or words.hosts(picture, (n for n in found.ranks if n in known)))
    if found.where is not None or (frame := user_frame(frames)) is None:
        return found
    at = picture.place(frame)
    seen = words.stated(picture.incident_source, words.of_rank(first.number, words.frame(frame)))
    return replace(continued(found, msg(", at {at}", at=at)), where=at, evidence=(*found.evidence, seen))


def in_logs(view: LogView) -> Answer:
    hits = [h for h in view.hits_of(CAUSE.id) if not surely_caught(view, h)]
    found = _of_hits(hits, view, view.tracebacks)
    if found is None or not all(went_on(view, h) for h in hits):
        return found
    more = msg("; the log goes on, so it may have been caught")
    return replace(continued(found, more), standing="possible")


def on_host(host: HostView) -> Findings:
    from unhang.text import size

    for g in host.gpu.gpus:
        used, total = g.memory_used_bytes, g.memory_total_bytes
        if used is None or not total:
            continue
        much = used > total // 10 and used > 1 << 30
        computing = [p for p in g.processes or () if p.kind == "compute"]
        if not much and not computing:
            # A desktop, or what the driver keeps for itself.
            continue
        listed = (g.processes or ())[:4]
        told = [f"process {p.pid} {p.name or ''}".strip() + (f": {size(p.used_bytes)}" if p.used_bytes else "") for p in listed]
        yield Found(
            "in-use",
            much=much,
            g=g,
            used=used,
            total=total,
            listed=bool(listed),
            who=[f"{p.pid} ({p.name.rpartition('/')[2]})" if p.name else str(p.pid) for p in listed],
            at=g.utilization_percent or None,
            pids=[p.pid for p in g.processes or ()],
            each=told or [f"{size(used)} of {size(total)} used, no process listed"],
        )
