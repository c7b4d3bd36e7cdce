"""device-mapping: a rank asks for a GPU that it does not have, or works on another one than its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from unhang.knowledge.cause import cause, command
from unhang.knowledge.judge import Answer, Findings, Found, HostView, LogView
from unhang.logs import Hit

if TYPE_CHECKING:
    from unhang.facts.gpu import Gpus

CAUSE = cause("device-mapping")


# A log that ends so soon behind a line of somebody who still asks Ray for more: nothing more came, as it seems.
_LAST_LINES = 2
# A barrier over NCCL is an all-reduce of one element, and here one of the first collectives.
_FIRST_COLLECTIVES = 3
# What the others raise when a collective does not end.
_CONSEQUENCES = frozenset(("DistBackendError", "DistNetworkError", "DistStoreError", "ChildFailedError", "SignalException"))


def in_logs(view: LogView) -> Answer:
    hits = view.hits_of(CAUSE.id)
    real = [h for h in hits if "guessed" not in h.groups]
    if real:
        gpus = _gpus(real, view)
        start = command("nvidia-smi -L; torchrun --standalone --nproc-per-node {gpus:number} train.py", gpus=gpus)
        last = max(real, key=lambda h: h.place)
        ended = all(h.signature.standing == "possible" for h in real) and view.lines.get(last.source, 0) - (last.line or 0) <= _LAST_LINES
        return CAUSE.of_hits(real, view, standing="likely" if ended else None, commands={"fewer-ranks": start} if gpus else None)
    return CAUSE.of_hits(hits, view) if hits and _hung_at_a_barrier(view) else None


def _gpus(hits: Sequence[Hit], view: LogView) -> int | None:
    """How many GPUs a host has, where lines tell: by number, or because the ranks from that one on all asked for one that is not there."""
    told = next((count for h in hits if (count := h.groups.get("count", "")).isdigit() and "wanted" in h.groups), None)
    if told is not None:
        return int(told) or None
    beyond = {h.rank for h in hits if h.rank is not None and "ordinal" in h.text}
    first = min(beyond, default=0)
    one_host = len({h.host for h in hits if h.host is not None}) < 2
    return first if first and one_host and view.world_size is not None and beyond == set(range(first, view.world_size)) else None


def _hung_at_a_barrier(view: LogView) -> bool:
    """Several ranks hang in one and the same early barrier, or in the start of its communicator, and nothing else is in evidence.

    Healthy jobs print torch's guess too, and a lone watchdog tells that somebody else is missing.
    """
    if any(h.signature.role == "root" for cause, hits in view.hits.items() if cause != CAUSE.id for h in hits):
        return False
    if any(t.type.rpartition(".")[2] not in _CONSEQUENCES for t in view.tracebacks):
        return False
    if view.timeouts:
        calls = {(t.group, t.seq, t.op, t.numel_in) for t in view.timeouts}
        barrier = any(0 < (t.seq or 0) <= _FIRST_COLLECTIVES and (t.op == "BARRIER" or t.numel_in == 1) for t in view.timeouts)
        return barrier and len(calls) == 1 and len({t.at.rank for t in view.timeouts}) > 1
    return len({i.rank for i in view.nccl.inits if not i.completed}) > 1


def on_host(host: HostView) -> Findings:

    seen = host.gpu
    yield from _visible(seen)
    kind = host.kind
    confined = kind not in ("bare", "slurm", "systemd", "wsl")
    around = getattr(host, "container", None)
    closed = [d.path for d in around.devices if d.path.startswith("/dev/nvidia") and not d.usable] if around is not None else []
    # In a container those are the container's own affair (container-capability).
    closed = [path for path in closed if not confined and re.fullmatch(r"/dev/nvidia(?:ctl|-uvm|\d+)", path)]
    if closed:
        yield Found("not-permitted", closed=closed[:4])
    # The device control group refuses what the file's own rights allow.
    if confined and seen.driver and seen.nvml_error in ("Unknown Error", "Insufficient Permissions"):
        yield Found("lost-gpus", seen=seen)


def _visible(seen: Gpus) -> Findings:
    """CUDA takes the GPUs of CUDA_VISIBLE_DEVICES up to the first that does not exist."""
    if seen.visible is None or seen.nvml_error is not None or not seen.gpus:
        return
    named = [n.strip() for n in seen.visible.split(",") if n.strip()]
    if not named or named[0] in ("-1", "NoDevFiles"):
        yield Found("hides-all", seen=seen)
        return
    if any(n.startswith("MIG-") for n in named) or any(g.mig for g in seen.gpus):
        return
    uuids = [g.uuid for g in seen.gpus]
    for place, name in enumerate(named):
        by_uuid = name.startswith("GPU-")
        if by_uuid and None in uuids:
            return
        beyond = name.startswith("-") or (name.isdecimal() and int(name) >= len(uuids))
        if beyond or (by_uuid and not any((u or "").startswith(name) for u in uuids)):
            yield Found("no-such-gpu", seen=seen, name=name, place=place)
            return
    if named[0].startswith("GPU-"):
        yield Found("by-uuid", seen=seen)
