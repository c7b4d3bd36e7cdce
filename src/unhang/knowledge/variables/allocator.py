"""What torch makes of PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF: `key:value,key:[a:b,...]`.

As `AllocatorConfig.h` and `CUDAAllocatorConfig.h` have it, and tried with torch 2.13: words are compared with regard to case, blanks fall away, the
last of a key holds.
"""

from __future__ import annotations

import difflib
import re

from unhang.knowledge.variables.variable import Text
from unhang.model import Severity

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


def wrong(value: str) -> tuple[Severity, Text] | None:
    """The first thing in it that torch refuses; None where it takes all."""
    text = "".join(value.split())
    at = 0
    while at < len(text):
        pair = _PAIR.match(text, at)
        if pair is None or not pair["key"] or not pair["colon"] or not pair["value"]:
            rest = text[at:]
            return _refused(f"{rest!r} is no key:value, separated by commas", f"{rest!r} 不是用逗号分隔的 键:值")
        if (found := _wrong_pair(pair["key"], pair["value"])) is not None:
            return found
        at = pair.end()
    return None


def _wrong_pair(key: str, value: str) -> tuple[Severity, Text] | None:
    if key not in _KEYS:
        meant = next(iter(difflib.get_close_matches(key, _KEYS, 1)), None)
        near, near_zh = (f"; the nearest is {meant}", f"；最接近的是 {meant}") if meant is not None else ("", "")
        return _refused(f"torch has no option {key!r}{near}", f"torch 没有选项 {key!r}{near_zh}")
    if key in _SWITCHES and value not in ("True", "False"):
        return _refused(f"{key} takes True or False, written so, and not {value!r}", f"{key} 只接受 True 或 False（区分大小写），不接受 {value!r}")
    if key in _NUMBERS and not re.match(r"[+-]?\d", value):
        return _refused(f"{key} takes a whole number, and not {value!r}", f"{key} 只接受整数，不接受 {value!r}")
    if key == "max_split_size_mb" and 0 <= int(re.findall(r"[+-]?\d+", value)[0]) < _LEAST_SPLIT_MB:
        return _refused(
            f"max_split_size_mb has to be {_LEAST_SPLIT_MB} or more, and not {value}", f"max_split_size_mb 至少为 {_LEAST_SPLIT_MB}，不能是 {value}"
        )
    if key in _SHARES and not _is_share(value, most_is_one=key == "per_process_memory_fraction"):
        return _refused(f"{key} takes a share between 0 and 1, and not {value!r}", f"{key} 取 0 到 1 之间的比例，不接受 {value!r}")
    if key == "backend" and value not in _BACKENDS:
        return _refused(f"backend is one of {', '.join(_BACKENDS)}, and not {value!r}", f"backend 只能是 {', '.join(_BACKENDS)}，不接受 {value!r}")
    if key == "roundup_power2_divisions":
        for number in re.findall(r"(?::|^)([^:,\]\[]+)(?=[,\]]|$)", value):
            if not number.isdecimal() or int(number) & (int(number) - 1):
                return _refused(
                    f"roundup_power2_divisions takes powers of 2, and not {number!r}", f"roundup_power2_divisions 只接受 2 的幂，不接受 {number!r}"
                )
    return None


def _is_share(value: str, *, most_is_one: bool) -> bool:
    try:
        share = float(value)
    except ValueError:
        return False
    return 0 < share < 1 or (most_is_one and share in (0, 1))


def _refused(en: str, zh: str) -> tuple[Severity, Text]:
    return "error", Text(f"{en}: torch raises when it first uses the GPU", f"{zh}：torch 首次使用 GPU 时会抛出异常")
