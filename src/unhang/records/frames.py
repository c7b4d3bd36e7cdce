"""Python frames, and whose they are: the user's, a library's, torch's, our own.

`is_user_file` is the one rule for "the user's own code". The hook that runs inside the training keeps a copy of it, because it must
work where unhang is not installed; a conformance test holds the two equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from unhang.patterns import lazily

_C10D = "torch/distributed/distributed_c10d"
OURS = "unhang."
LOADER = "torch/utils/data"
# unhang's own collectives, and the evaluations that end with them.
_GUARDED = ("unhang/runtime/collectives", "unhang/runtime/evaluation", "unhang/runtime/sync_check")


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One Python frame. `code` is the source line where it could be read; `guards` are the `if` tests around it."""

    file: str
    line: int
    name: str
    code: str = ""
    guards: tuple[str, ...] = ()


_STDLIB = lazily(r"/lib(?:64)?/python3\.?\d+t?(?:\.zip)?/")
_INSTALLED = lazily(r"/(?:site|dist)-packages/")
_TO_PACKAGE = lazily(r".*/(?:site|dist)-packages/")
_UNHANG = lazily(
    r"/unhang/(?:__init__|__main__|model|errors|encoding|facts|records|knowledge|diagnosis|probes|remedies|runtime|launch|bench|plan|pack|report|cli|testing)(?:/|\.py)"
)
_TORCH = lazily(r"(?:^|/)torch/")
# Libraries that are often run from a checkout, with what such a directory is called in lower case without "-" and "_", whatever follows.
_CHECKED_OUT = {
    "torch": ("pytorch", "torch"),
    "flash_attn": ("flashattention", "flashattn"),
    "lightning": ("pytorchlightning", "lightning"),
    "swift": ("msswift", "swift"),
} | {
    name: (name.replace("_", ""),)
    for name in (
        "accelerate", "apex", "axolotl", "bitsandbytes", "colossalai", "composer", "datasets", "deep_ep", "deepspeed", "diffusers", "fairseq",
        "llamafactory", "megatron", "nemo", "openrlhf", "peft", "pytorch_lightning", "ray", "sglang", "torch_npu", "torch_xla", "torchao",
        "torchtitan", "torchtune", "transformer_engine", "transformers", "trl", "unsloth", "verl", "vllm", "xformers", "xtuner",
    )
}  # fmt: skip
_ARCHIVES = (".egg", ".par", ".pex", ".pyz", ".whl", ".zip")
# Inside of torch, wherever it lies, and hardly in a directory of somebody who calls his own so.
_IN_TORCH = ("nn", "autograd", "_dynamo", "_functorch", "_inductor", "_tensor.py", "_ops.py")


def is_user_file(path: str) -> bool:
    """Whether a file is the user's own code: not interactive, not the standard library, no library wherever it lies, not unhang (its recipes are)."""
    if not path or path.startswith("<"):
        return False
    if "/unhang/recipes/" in path:
        return True
    return not (_INSTALLED.search(path) or _STDLIB.search(path) or checked_out(path) or _UNHANG.search(path))


def checked_out(path: str) -> str | None:
    """The library that a file belongs to in a checkout or an archive ("vllm" of /srv/vllm-0.9/vllm/engine/llm.py), or the command that it is."""
    parts = path.split("/")
    if parts[-2:-1] == ["bin"] and "." not in parts[-1]:
        # A command that was installed: torchrun, accelerate.
        return parts[-1]
    for at in range(1, len(parts) - 1):
        names = _CHECKED_OUT.get(parts[at])
        if names is None:
            continue
        above = parts[at - 2] if parts[at - 1] in ("python", "src") and at > 1 else parts[at - 1]
        if above.endswith(_ARCHIVES) or above.lower().replace("-", "").replace("_", "").startswith(names):
            return parts[at]
        if parts[at] == "torch" and parts[at + 1] in _IN_TORCH:
            return "torch"
    return None


def without_hook(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The frames above which unhang's own hook (or a fault of unhang.testing) stands and waits, with whatever of the standard library it called."""
    end = len(frames)
    for i in range(len(frames) - 1, -1, -1):
        file = frames[i].file
        if "/unhang/recipes/" not in file and _UNHANG.search(file):
            end = i
        elif not (_STDLIB.search(file) and not _INSTALLED.search(file)):
            break
    return tuple(frames[:end]) or tuple(frames)


def user_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame of the user's code; failing that, the innermost one of a library that is neither Python, torch nor unhang."""
    for frame in reversed(frames):
        if is_user_file(frame.file):
            return frame
    for frame in reversed(frames):
        library = _INSTALLED.search(frame.file)
        if library and not _TORCH.match(frame.file[library.end() :]) and not _UNHANG.search(frame.file):
            return frame
        if not library and checked_out(frame.file) not in (None, "torch"):
            return frame
    return None


def inside(frame: Frame, package: str) -> bool:
    """Whether the frame's file lies in a package, given as a path: `torch/utils/data`."""
    return f"/{package}/" in frame.file or f"/{package}.py" in frame.file


def shown_path(file: str, cwd: str) -> str:
    """The path relative to the working directory of the training when it lies inside, else as it is."""
    root = cwd.rstrip("/") + "/"
    return file[len(root) :] if len(root) > 1 and file.startswith(root) else file


def short_path(file: str, cwd: str) -> str:
    """The same; of what is installed, from the name of its package on."""
    return _TO_PACKAGE.sub("", shown_path(file, cwd))


def place(frame: Frame, cwd: str) -> str:
    """ "train.py:88 in evaluate"."""
    return f"{shown_path(frame.file, cwd)}:{frame.line} in {frame.name}"


def other_line(one: Frame | None, other: Frame | None) -> bool:
    """Whether two places are known and not the same."""
    return one is not None and other is not None and (one.file, one.line) != (other.file, other.line)


def op_of_stack(frames: Iterable[Frame]) -> str:
    """The collective whose function the innermost frames are in, "" where they are in none."""
    op = ""
    for frame in reversed(tuple(frames)):
        guarded = any(inside(frame, part) for part in _GUARDED)
        if not (guarded or inside(frame, "torch") or inside(frame, "contextlib") or frame.file.startswith("<")):
            break
        if guarded or inside(frame, _C10D):
            # A call of the same name is another one.
            op = f"{OURS}{frame.name}" if guarded else frame.name
    return op
