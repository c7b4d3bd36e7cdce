"""What a program makes of the text of a value: each parser as its program has it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from unhang.facts.variables import half_read, visible_gpus
from unhang.model import Severity
from unhang.variables.variable import Kind, Text, Trap, Variable

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


def judge(variable: Variable, value: str) -> list[tuple[Severity, Text]]:
    """What is to be said of a value: first whether it is one at all, then what it brings about."""
    if not is_known(value):
        return []
    wrong = _wrong(variable.kind, value)
    if wrong is not None:
        return [wrong]
    return [(t.severity, t.says) for t in variable.traps if _matches(t, value)]


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
        return "warning", Text(
            f"OpenMP takes whole numbers from 1 here, refuses {value!r} and takes all cores, in each process",
            f"OpenMP 此处只接受不小于 1 的整数，会拒绝 {value!r}，每个进程都使用全部核心",
        )
    text = value.strip()
    if kind.parser == "hosts":
        return (
            None
            if hosts(text) is not None
            else ("error", Text(f"{text!r} is neither a number of hosts nor MIN:MAX", f"{text!r} 既不是主机数，也不是 最少:最多"))
        )
    if kind.parser == "python-int":
        try:
            n = int(text)
        except ValueError:
            return "error", Text(f"{text!r} is no whole number: the program that reads it fails", f"{text!r} 不是整数：读取它的程序会失败")
        return _outside(kind, n)
    if kind.parser == "float":
        try:
            float(text)
        except ValueError:
            return "warning", Text(f"{text!r} is no number", f"{text!r} 不是数字")
    choices = {c.lower() for c in kind.choices}
    if kind.parser == "choice" and kind.refused and value.lower() not in choices:
        return "error", Text(
            f"{value!r} is none of {', '.join(kind.choices)}: torch raises ValueError, and the start fails",
            f"{value!r} 不在可取值之内（{', '.join(kind.choices)}）：torch 抛出 ValueError，启动失败",
        )
    if kind.parser == "choice" and text and text.lower() not in choices:
        return "warning", Text(f"{text!r} is none of {', '.join(kind.choices)}", f"{text!r} 不在可取值之内：{', '.join(kind.choices)}")
    if kind.parser == "choices":
        known = {c.lower() for c in kind.choices}
        odd = [w for w in text.lstrip("^").split(",") if w.strip().lower() not in known and w.strip()]
        if odd:
            return "warning", Text(
                f"{', '.join(odd)}: none of {', '.join(kind.choices)}", f"{', '.join(odd)}：不在可取值之内（{', '.join(kind.choices)}）"
            )
    return None


def _wrong_for_nccl(kind: Kind, value: str) -> tuple[Severity, Text] | None:
    if not value.strip():
        return None
    n = number(value)
    if n is None:
        meant = " the opposite of what it says" if value.strip().lower() in _TRUE and kind.most == 1 else ""
        zh = "，与字面意思相反" if meant else ""
        return "warning", Text(
            f"NCCL reads a number, and of {value.strip()!r} it makes 0{',' if meant else ''}{meant}",
            f"NCCL 按数字解析，{value.strip()!r} 会变成 0{zh}",
        )
    if number(value) is not None and _STRTOLL.fullmatch(value.strip()) is None:
        return "warning", Text(
            f"NCCL reads {n} and passes over the rest of {value.strip()!r}", f"NCCL 只读出 {n}，{value.strip()!r} 的其余部分被忽略"
        )
    if abs(n) >= 2**63:
        return "warning", Text("too large: NCCL goes on with the default", "数值过大：NCCL 使用默认值")
    return _outside(kind, n)


def _wrong_for_torch(kind: Kind, value: str) -> tuple[Severity, Text] | None:
    if kind.parser == "torch-bool":
        if value.lower() in _TORCH_TRUE | _TORCH_FALSE:
            return None
        return "error", Text(
            f"torch takes 1 or 0 here, and raises at {value!r}: the run aborts, or hangs where only one rank has it",
            f"torch 此处只接受 1 或 0，遇到 {value!r} 会抛出异常：运行中止；若只有某个 rank 这样设置则会挂起",
        )
    found = _STOI.match(value)
    if found is None or abs(int(found[0])) > _INT32:
        return "error", Text(
            f"torch takes a whole number here, and raises at {value!r}: the run aborts, or hangs where only one rank has it",
            f"torch 此处只接受整数，遇到 {value!r} 会抛出异常：运行中止；若只有某个 rank 这样设置则会挂起",
        )
    if found[0].strip() != value.strip():
        return "warning", Text(
            f"torch reads {int(found[0])} and passes over the rest of {value!r}", f"torch 只读出 {int(found[0])}，{value!r} 的其余部分被忽略"
        )
    return _outside(kind, int(found[0]))


def _wrong_for_cuda(value: str) -> tuple[Severity, Text] | None:
    shown, end = visible_gpus(value)
    half = half_read(value)
    if half is not None and (shown or not end):
        entry, number, rest = half
        return "warning", Text(
            f"CUDA reads {number} of {entry!r} and drops {rest!r}: it shows {', '.join(shown)}; entries are separated by commas, and no ranges",
            f"{entry!r} 中 CUDA 只读出 {number}，{rest!r} 被丢弃：只显示 {', '.join(shown)}；编号之间用逗号分隔，不支持范围",
        )
    if not end or end.startswith("-") or hides_gpus(value):
        return None
    if shown:
        return "warning", Text(
            f"{end!r} names no GPU: CUDA shows those before it only ({', '.join(shown)})",
            f"{end!r} 不是 GPU：CUDA 只显示它之前的 {', '.join(shown)}",
        )
    if visible_gpus(end)[0]:
        return "error", Text(f"{end} stands there twice: CUDA then shows no GPU at all", f"{end} 重复出现：CUDA 会因此不显示任何 GPU")
    return "error", Text(f"{end!r} names no GPU: CUDA shows none at all", f"{end!r} 不是 GPU：CUDA 不显示任何 GPU")


def _outside(kind: Kind, n: int) -> tuple[Severity, Text] | None:
    if (kind.least is None or n >= kind.least) and (kind.most is None or n <= kind.most):
        return None
    if kind.refused:
        return "error", Text(
            f"{n} is outside of its range, {kind.text()}: torch raises ValueError, and the start fails",
            f"{n} 超出取值范围（{kind.text()}）：torch 抛出 ValueError，启动失败",
        )
    return "warning", Text(f"{n} is outside of its range: {kind.text()}", f"{n} 超出取值范围：{kind.text()}")


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
            return "error", Text(
                f"{part!r} names no collective, which only the first part may leave out: since 2.24 NCCL refuses all of it, and the start fails",
                f"{part!r} 没有写明集合操作，只有第一段可以省略：2.24 起 NCCL 拒绝整个值，启动失败",
            )
        for word in (rest if colon else part).removeprefix("^").split(","):
            if word and word.lower() not in {w.lower() for w in words}:
                return _unknown(word, words)
    return None


def _unknown(word: str, words: Sequence[str]) -> tuple[Severity, Text]:
    shown = ", ".join(words)
    return "error", Text(
        f"{word!r} is none of {shown}: since 2.24 the start fails, before it is passed over",
        f"{word!r} 不在可取值之内（{shown}）：2.24 起启动失败，此前被忽略",
    )
