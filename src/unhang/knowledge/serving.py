"""Serving engines (vLLM, SGLang) and the memory of a GPU: which of their settings the numbers of an error ask for.

An engine takes a fixed share of the GPU: first the weights, then what a forward pass needs at its peak, and all the rest for the KV cache.
A share that is too small leaves no room for the cache; one that is too large leaves none for CUDA graphs and samplers, which come after the
cache. The weights need the same under any share. Remedies are ids of the cause gpu-oom.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import field
from typing import TYPE_CHECKING

from unhang.knowledge.commands import Command, command
from unhang.model import frozen
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.frames import Frame
    from unhang.logs import Hit

# Their own files, or one of their options in the message itself.
_FILE = lazily(r"-packages/(?:vllm|vllm_ascend|sglang)/|/vllm/(?:v1|worker|engine|executor|model_executor|device_allocator)/|/sglang/srt/")
_OPTION = lazily(r"gpu[-_]memory[-_]utilization|max[-_]model[-_]len|mem[-_]fraction[-_]static|cumem_allocator\.cpp")
_LOADING = lazily(r"^(?:load_model|load_weights|initialize_model|make_layers|create_weights)$")
_MEASURING = lazily(r"^(?:profile_run|determine_available_memory|determine_num_available_blocks)$")

# Where this much of a GPU is free, a desktop or a driver holds the rest, and nothing is there to be ended.
_FREE_ENOUGH = 0.75
# What the free memory may still shrink by before the engine looks.
_MARGIN = 0.02
# Less than this of any GPU holds no model.
_SMALLEST_SHARE = 0.1
# A larger share gives the cache this much more, not many times as much.
_NEARLY = 1.1
# Of one host.
_MOST_GPUS = 8


@frozen
class Asked:
    """What to do, first things first, and the commands with values of this error."""

    remedies: tuple[str, ...]
    commands: dict[str, Command | None] = field(default_factory=dict)


def is_engine(text: str, frames: Iterable[Frame] = ()) -> bool:
    """Whether an allocation failed in an engine, by the message and the frames under it."""
    return _OPTION.search(text) is not None or any(_FILE.search(f.file) for f in frames)


def where_it_ran_out(text: str, frames: Iterable[Frame]) -> Asked:
    """For an allocation of torch's that failed in an engine."""
    names = [f.name for f in frames]
    if "Failed to load model" in text or any(_LOADING.match(n) for n in names):
        return Asked(remedies=("split-the-model", "smaller-weights"))
    if any(_MEASURING.match(n) for n in names):
        # The peak of one pass, before there is a cache: the share does not matter yet.
        return Asked(remedies=("fewer-requests", "shorter-context", "split-the-model"))
    return Asked(remedies=("smaller-share", "fewer-requests", "split-the-model"))


def by_the_numbers(hit: Hit) -> Asked | None:
    """For an engine's own message with numbers; None for every other one."""
    told = {name: float(value) for name, value in hit.groups.items() if value is not None and re.fullmatch(r"\d+(?:\.\d+)?", value)}
    if "share" in told:
        if told.get("total"):
            free = told["free"] / told["total"]
            share = int((free - _MARGIN) * 100) / 100
            if share < _SMALLEST_SHARE:
                return Asked(remedies=("free-the-gpu",))
            commands = {"smaller-share": command("vllm serve MODEL --gpu-memory-utilization {share:number}", share=f"{share:.2f}")}
            return Asked(remedies=("smaller-share", "free-the-gpu") if free >= _FREE_ENOUGH else ("free-the-gpu", "smaller-share"), commands=commands)
        return None
    if "length" in told:
        return _too_long(told)
    return None


def _too_long(told: dict[str, float]) -> Asked:
    """One request of the greatest length does not fit into the cache."""
    length, fits = told["length"], told.get("fits")
    needed, available = told.get("needed"), told.get("available")
    if fits is None and needed and available:
        # The cache grows with the length; where it grows more slowly (sliding windows), this is too careful.
        fits = length * available / needed
    if not fits:
        return Asked(remedies=("shorter-context", "split-the-model", "larger-share"))
    times = needed / available if needed and available else length / fits
    commands = {"shorter-context": command("vllm serve MODEL --max-model-len {most:number}", most=int(fits))}
    gpus = 2
    while gpus < times:
        gpus *= 2
    if gpus > _MOST_GPUS:
        return Asked(remedies=("shorter-context",), commands=commands)
    commands["split-the-model"] = command("vllm serve MODEL --tensor-parallel-size {gpus:number}", gpus=gpus)
    order = ("larger-share", "shorter-context", "split-the-model") if times <= _NEARLY else ("shorter-context", "split-the-model", "larger-share")
    return Asked(remedies=order, commands=commands)
