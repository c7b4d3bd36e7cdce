"""What a program makes of the text of a value: each parser as its program has it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Literal

from unhang.facts.variables import half_read, visible_gpus
from unhang.i18n import NOTHING, msg
from unhang.model import Severity
from unhang.variables.known import Kind, Text, Trap, Variable

_STRTOLL = re.compile(r"\s*[+-]?(?:0[xX][0-9a-fA-F]+|\d+)")
_STOI = re.compile(r"\s*[+-]?\d+")
_TORCH_TRUE = frozenset(("y", "yes", "1", "t", "true"))
_TORCH_FALSE = frozenset(("n", "no", "0", "f", "false"))
_TRUE = _TORCH_TRUE | {"on", "enable", "enabled"}
_INT32 = 2**31 - 1
_UINT64 = 2**64 - 1
_HOSTS = re.compile(r"(\d+)(?::(\d+))?")
_WHOLE = re.compile(r"[+-]?\d+")
_THREADS = re.compile(r"\s*\+?\d+\s*")
# Some batch systems write words.
_NO_GPU = re.compile(r"|-\d+(?:,.*)?|none|nodevfiles|void", re.IGNORECASE)
# A shell, make or Kubernetes fills it in.
_LATER = re.compile(r"[$`]|\{\{|<[A-Za-z_ ]+>")


def is_known(value: str | None) -> bool:
    """Whether the value stands there, and is not left to a shell or a template."""
    return value is not None and _LATER.search(value) is None


def number(value: str) -> int | None:
    """What strtoll reads; None where there is nothing to read."""
    found = _STRTOLL.match(value)
    if found is None:
        return None
    digits = found[0].strip()
    return int(digits, 16) if "x" in digits.lower() else int(digits)


def hosts(value: str) -> tuple[int, int] | None:
    """The least and the most of a number of hosts, "4" or "1:4" as torchrun takes it; None for anything else."""
    found = _HOSTS.fullmatch(value.strip())
    if found is None:
        return None
    least, most = int(found[1]), int(found[2] or found[1])
    return (least, most) if 1 <= least <= most else None


def whole(value: str) -> int | None:
    """The number that the whole text is; None where it says more, as "1:4" does."""
    return int(value) if _WHOLE.fullmatch(value.strip()) else None


def is_legal(kind: Kind, value: str) -> bool:
    """Whether a value that is known is one of this kind."""
    return is_known(value) and _wrong(kind, value) is None


def is_on(value: str | None) -> bool:
    """Whether a switch of torch is on."""
    return value is not None and value.strip().lower() in _TORCH_TRUE


def hides_gpus(value: str) -> bool:
    """Whether CUDA_VISIBLE_DEVICES says that there be none."""
    return _NO_GPU.fullmatch(value.strip()) is not None


def judge(variable: Variable, value: str) -> list[tuple[Literal["value", "effect"], Severity, Text]]:
    """What is to be said of a value: first whether it is one at all, then what it brings about."""
    if not is_known(value):
        return []
    wrong = _wrong(variable.kind, value)
    if wrong is not None:
        return [("value", *wrong)]
    return [("effect", t.severity, t.says) for t in variable.traps if _matches(t, value)]


def _matches(trap: Trap, value: str) -> bool:
    return re.fullmatch(trap.when, value.strip(), re.IGNORECASE) is not None


def _wrong(kind: Kind, value: str) -> tuple[Severity, Text] | None:
    if kind.parser == "nccl-int":
        return _wrong_for_nccl(kind, value)
    if kind.parser in ("torch-int", "torch-bool"):
        return _wrong_for_torch(kind, value)
    if kind.parser == "nccl-tuning":
        return wrong_for_tuning(value.strip(), kind.choices)
    if kind.parser == "torch-allocator":
        return wrong_for_allocator(value)
    if kind.parser == "gpus":
        return _wrong_for_cuda(value)
    if kind.parser == "threads":
        if all(_THREADS.fullmatch(n) and 1 <= int(n) <= _UINT64 for n in value.split(",")):
            return None
        return "warning", msg("OpenMP takes whole numbers from 1 here, refuses {value!r} and takes all cores, in each process", value=value)
    text = value.strip()
    if kind.parser == "hosts":
        return None if hosts(text) is not None else ("error", msg("{text!r} is neither a number of hosts nor MIN:MAX", text=text))
    if kind.parser == "python-int":
        try:
            n = int(text)
        except ValueError:
            return "error", msg("{text!r} is no whole number: the program that reads it fails", text=text)
        return _outside(kind, n)
    if kind.parser == "float":
        try:
            float(text)
        except ValueError:
            return "warning", msg("{text!r} is no number", text=text)
    choices = {c.lower() for c in kind.choices}
    if kind.parser == "choice" and kind.refused and value.lower() not in choices:
        return "error", msg(
            "{value!r} is none of {choices}: torch raises ValueError, and the start fails", value=value, choices=", ".join(kind.choices)
        )
    if kind.parser == "choice" and text and text.lower() not in choices:
        return "warning", msg("{text!r} is none of {choices}", text=text, choices=", ".join(kind.choices))
    if kind.parser == "choices":
        odd = [w for w in text.lstrip("^").split(",") if w.strip().lower() not in choices and w.strip()]
        if odd:
            return "warning", msg("{odd}: none of {choices}", odd=", ".join(odd), choices=", ".join(kind.choices))
    return None


def _wrong_for_nccl(kind: Kind, value: str) -> tuple[Severity, Text] | None:
    if not value.strip():
        return None
    n = number(value)
    if n is None:
        meant = msg(", the opposite of what it says") if value.strip().lower() in _TRUE and kind.most == 1 else NOTHING
        return "warning", msg("NCCL reads a number, and of {value!r} it makes 0{meant}", value=value.strip(), meant=meant)
    if _STRTOLL.fullmatch(value.strip()) is None:
        return "warning", msg("NCCL reads {n} and passes over the rest of {value!r}", n=n, value=value.strip())
    if abs(n) >= 2**63:
        return "warning", msg("too large: NCCL goes on with the default")
    return _outside(kind, n)


def _wrong_for_torch(kind: Kind, value: str) -> tuple[Severity, Text] | None:
    if kind.parser == "torch-bool":
        if value.lower() in _TORCH_TRUE | _TORCH_FALSE:
            return None
        return "error", msg("torch takes 1 or 0 here, and raises at {value!r}: the run aborts, or hangs where only one rank has it", value=value)
    found = _STOI.match(value)
    if found is None or abs(int(found[0])) > _INT32:
        return "error", msg(
            "torch takes a whole number here, and raises at {value!r}: the run aborts, or hangs where only one rank has it", value=value
        )
    if found[0].strip() != value.strip():
        return "warning", msg("torch reads {found} and passes over the rest of {value!r}", found=int(found[0]), value=value)
    return _outside(kind, int(found[0]))


def _wrong_for_cuda(value: str) -> tuple[Severity, Text] | None:
    shown, end = visible_gpus(value)
    half = half_read(value)
    if half is not None and (shown or not end):
        entry, number, rest = half
        return "warning", msg(
            "CUDA reads {number} of {entry!r} and drops {rest!r}: it shows {shown}; entries are separated by commas, and no ranges",
            number=number,
            entry=entry,
            rest=rest,
            shown=", ".join(shown),
        )
    if not end or end.startswith("-") or hides_gpus(value):
        return None
    if shown:
        return "warning", msg("{end!r} names no GPU: CUDA shows those before it only ({shown})", end=end, shown=", ".join(shown))
    if visible_gpus(end)[0]:
        return "error", msg("{end} stands there twice: CUDA then shows no GPU at all", end=end)
    return "error", msg("{end!r} names no GPU: CUDA shows none at all", end=end)


def _outside(kind: Kind, n: int) -> tuple[Severity, Text] | None:
    if (kind.least is None or n >= kind.least) and (kind.most is None or n <= kind.most):
        return None
    if kind.refused:
        return "error", msg("{n} is outside of its range, {text}: torch raises ValueError, and the start fails", n=n, text=kind.text())
    return "warning", msg("{n} is outside of its range: {text}", n=n, text=kind.text())


# What torch makes of PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF, `key:value,key:[a:b,...]`, as `AllocatorConfig.h` and `CUDAAllocatorConfig.h`
# have it, and tried with torch 2.13: words are compared with regard to case, blanks fall away, the last of a key holds.
_SWITCHES = frozenset(
    (
        "expandable_segments",
        "release_lock_on_cudamalloc",
        "release_lock_on_hipmalloc",
        "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register",
        "pinned_use_background_threads",
        "pinned_free_catch_all",
        "graph_capture_record_stream_reuse",
        "throw_on_cudamalloc_oom",
    )
)
_NUMBERS = frozenset(
    (
        "max_split_size_mb",
        "max_non_split_rounding_mb",
        "large_segment_size_mb",
        "pinned_num_register_threads",
        "pinned_reserve_segment_size_mb",
        "pinned_max_round_threshold_mb",
        "pinned_max_cached_size_mb",
    )
)
_SHARES = frozenset(("garbage_collection_threshold", "per_process_memory_fraction"))
_BACKENDS = ("native", "cudaMallocAsync", "hipMallocAsync")
_KEYS = (*sorted(_SWITCHES | _NUMBERS | _SHARES), "backend", "roundup_power2_divisions")
# Blocks of this size and below are cut from segments of it.
_LEAST_SPLIT_MB = 20
_PAIR = re.compile(r"(?P<key>[^:,\[\]]*)(?P<colon>:?)(?P<value>\[[^\]]*\]|[^,:\[\]]*)(?P<end>,|$)")


def wrong_for_allocator(value: str) -> tuple[Severity, Text] | None:
    """The first thing in it that torch refuses; None where it takes all."""
    text = "".join(value.split())
    at = 0
    while at < len(text):
        pair = _PAIR.match(text, at)
        if pair is None or not pair["key"] or not pair["colon"] or not pair["value"]:
            rest = text[at:]
            return _refused(msg("{rest!r} is no key:value, separated by commas", rest=rest))
        if (found := _wrong_pair(pair["key"], pair["value"])) is not None:
            return found
        at = pair.end()
    return None


def _wrong_pair(key: str, value: str) -> tuple[Severity, Text] | None:
    if key not in _KEYS:
        meant = next(iter(difflib.get_close_matches(key, _KEYS, 1)), None)
        near = msg("; the nearest is {meant}", meant=meant) if meant is not None else NOTHING
        return _refused(msg("torch has no option {key!r}{near}", key=key, near=near))
    if key in _SWITCHES and value not in ("True", "False"):
        return _refused(msg("{key} takes True or False, written so, and not {value!r}", key=key, value=value))
    if key in _NUMBERS and not re.match(r"[+-]?\d", value):
        return _refused(msg("{key} takes a whole number, and not {value!r}", key=key, value=value))
    if key == "max_split_size_mb" and 0 <= int(re.findall(r"[+-]?\d+", value)[0]) < _LEAST_SPLIT_MB:
        return _refused(msg("max_split_size_mb has to be {least} or more, and not {value}", least=_LEAST_SPLIT_MB, value=value))
    if key in _SHARES and not _is_share(value, most_is_one=key == "per_process_memory_fraction"):
        return _refused(msg("{key} takes a share between 0 and 1, and not {value!r}", key=key, value=value))
    if key == "backend" and value not in _BACKENDS:
        return _refused(msg("backend is one of {backends}, and not {value!r}", backends=", ".join(_BACKENDS), value=value))
    if key == "roundup_power2_divisions":
        for number in re.findall(r"(?::|^)([^:,\]\[]+)(?=[,\]]|$)", value):
            if not number.isdecimal() or int(number) & (int(number) - 1):
                return _refused(msg("roundup_power2_divisions takes powers of 2, and not {number!r}", number=number))
    return None


def _is_share(value: str, *, most_is_one: bool) -> bool:
    try:
        share = float(value)
    except ValueError:
        return False
    return 0 < share < 1 or (most_is_one and share in (0, 1))


def _refused(says: Text) -> tuple[Severity, Text]:
    return "error", says + msg(": torch raises when it first uses the GPU")


# NCCL_ALGO and NCCL_PROTO: words, separated by commas; since 2.24 also for one collective each, `ring;allreduce:tree,ring;broadcast:^ll128`.
# `parseList` of NCCL's tuning.cc: without regard to case, blanks are a part of a word, `^` excludes, only the first part may be without a
# collective.
# The last two only in newer releases.
_COLLECTIVES = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv", "AlltoAll")


def wrong_for_tuning(value: str, words: Sequence[str]) -> tuple[Severity, Text] | None:
    """The first thing in it that NCCL does not know; None where it knows all."""
    for n, part in enumerate(p for p in value.split(";") if p):
        collective, colon, rest = part.partition(":")
        if colon and collective.lower() not in {c.lower() for c in _COLLECTIVES}:
            return _unknown(collective, _COLLECTIVES)
        if n and not colon:
            return "error", msg(
                "{part!r} names no collective, which only the first part may leave out: since 2.24 NCCL refuses all of it, and the start fails",
                part=part,
            )
        for word in (rest if colon else part).removeprefix("^").split(","):
            if word and word.lower() not in {w.lower() for w in words}:
                return _unknown(word, words)
    return None


def _unknown(word: str, words: Sequence[str]) -> tuple[Severity, Text]:
    return "error", msg("{word!r} is none of {shown}: since 2.24 the start fails, before it is passed over", word=word, shown=", ".join(words))
