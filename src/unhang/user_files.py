"""Tells the user's own source files from libraries, by path alone: one rule for readers of records, the supervisor, and every attached process.

The hook loads this file by its path, where unhang need not be installed: standard library only, and nothing that takes long to import.
"""

from __future__ import annotations

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
# Commands that are installed, wherever that is, and where environments lie; a user's own `bin` is called as the environments are not.
_COMMANDS = ("axolotl", "fabric", "horovodrun", "llamafactory-cli", "torchrun", "torchx", "tune", *(name.replace("_", "-") for name in _CHECKED_OUT))
_ENVIRONMENTS = ("env", "venv", ".venv", ".local", "usr", "local")
_ROOMS = frozenset(
    (
        "__init__", "__main__", "attach", "bench", "cache", "cli", "data", "diagnosis", "encoding", "errors", "facts", "files", "flight", "frames",
        "fsio", "hosts", "i18n", "integrations", "kernel_lines", "knowledge", "launch", "logs", "model", "pack", "patterns", "plan", "printable",
        "probes", "ras", "records", "remedies", "report", "runtime", "settings", "testing", "text", "user_files", "variables",
    )
)  # fmt: skip


def is_user_file(path: str) -> bool:
    """Whether a file is the user's own code: not generated, not the standard library, no library wherever it lies, not unhang (its recipes are)."""
    if not path or path.startswith("<"):
        return False
    if "/unhang/recipes/" in path:
        return True
    return not (is_installed(path) or is_stdlib(path) or checked_out(path) or is_unhang(path))


def is_library_file(path: str) -> bool:
    """Whether it is of a library other than torch and unhang: the second best place to point at."""
    return bool(is_installed(path) or checked_out(path)) and "/torch/" not in path and "/unhang/" not in path


def is_installed(path: str) -> bool:
    return "/site-packages/" in path or "/dist-packages/" in path


def is_unhang(path: str) -> bool:
    """Whether it is unhang's own, wherever that is installed or checked out."""
    return any(part.partition("/")[0].partition(".py")[0] in _ROOMS for part in path.split("/unhang/")[1:])


def is_stdlib(path: str) -> bool:
    """Whether it is of the standard library of any Python 3: .../lib/python3.12/, .../lib64/python3.13t/, and python312.zip."""
    if is_installed(path):
        return False
    for part in ("/lib/python3.", "/lib64/python3.", "/lib/python3", "/lib64/python3"):
        _, found, tail = path.partition(part)
        if found and tail.partition("/")[0].rstrip("t").replace(".zip", "").isdigit():
            return True
    return False


def checked_out(path: str) -> str | None:
    """The library that a file belongs to in a checkout or an archive ("vllm" of /srv/vllm-0.9/vllm/engine/llm.py), or the command that it is."""
    parts = path.split("/")
    if parts[-2:-1] == ["bin"] and "." not in parts[-1] and (parts[-1] in _COMMANDS or _is_environment(parts[:-2])):
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


def _is_environment(parts: list[str]) -> bool:
    """Whether a directory is one that programs are installed into: a system's, a virtual environment, one of conda's or pyenv's."""
    return parts[-1:] == [""] or parts[-1] in _ENVIRONMENTS or parts[-2:-1] in (["envs"], ["versions"]) or "conda" in parts[-1]
