"""Where shell starts launchers, by words: behind `env`, `srun`, variables and arrays, as a path, as `python -m`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_SEGMENT = re.compile(r"[^;&|\n]+")
_ASSIGNED = re.compile(
    r"(?:^|[\s;])(?:export[ \t]+)?(?P<name>[A-Za-z_]\w*)=(?:\((?P<array>[^)]*)\)|\"(?P<double>[^\"]*)\"|'(?P<single>[^']*)'|(?P<bare>[^\s;&|]*))"
)
_VARIABLE = re.compile(r"\$\{?(?P<name>[A-Za-z_]\w*)(?:\[[@*]\])?\}?")
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
    "accelerate.commands.launch": "accelerate launch",
    "accelerate.commands.accelerate_cli": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed.launcher.launch": "deepspeed",
}
_SECOND = {"accelerate": "launch", "llamafactory-cli": "train", "lmf": "train"}
# Launchers' options that take no value; behind any other one a launcher's name is a value.
_FLAGS = frozenset(
    {"--standalone", "--no-python", "--no_python", "--module", "-m", "--run-path", "--run_path", "--use-env", "--use_env", "--no_ssh", "--"}
    | {"--multi-gpu", "--multi_gpu", "--use-deepspeed", "--use_deepspeed", "--use-fsdp", "--use_fsdp", "--cpu", "--quiet", "-q", "-c"}
)
_START_NOTHING = frozenset(
    {"cd", "pip", "pip3", "uv", "conda", "git", "echo", "printf", "ls", "mkdir", "which", "source", ".", "cat", "grep", "rm", "apt"}
)
_MAX_DEPTH = 4


@dataclass(frozen=True, kw_only=True)
class Start:
    """`names` are those of the launchers, outer one first; `words` is the whole command, variables filled in."""

    names: tuple[str, ...]
    words: tuple[str, ...]
    offset: int


def assigned(plain: str) -> Mapping[str, str]:
    """What shell variables were set to last."""
    return {m["name"]: next((v for v in (m["array"], m["double"], m["single"], m["bare"]) if v is not None), "") for m in _ASSIGNED.finditer(plain)}


def starts(plain: str) -> Iterator[Start]:
    """`plain` has no comments, and each command on one line."""
    variables = assigned(plain)
    for segment in _SEGMENT.finditer(plain):
        found = [(m.start() + segment.start(), m[0]) for m in re.finditer(r"\S+", segment[0])]
        words = tuple(w for _, word in found for w in _filled(word, variables, 0))
        if not words or words[0] in _START_NOTHING or "pip" in words[:3]:
            continue
        names = tuple(_launchers(words))
        if names:
            own = (
                o for o, word in found if any(part in word for part in ("torchrun", "torch.distributed", "accelerate", "deepspeed", "llamafactory"))
            )
            yield Start(names=names, words=words, offset=next(own, found[0][0]))


def _filled(word: str, variables: Mapping[str, str], depth: int) -> Iterator[str]:
    bare = re.sub(r"^[A-Za-z_]\w*=(?=[\"'(])", "", word).strip("\"'(),[]`")
    if (m := _VARIABLE.fullmatch(bare + ("]" if bare.endswith(("@", "*")) else ""))) or (m := _VARIABLE.fullmatch(bare)):
        value = variables.get(m["name"])
        if value and depth < _MAX_DEPTH:
            for one in value.split():
                yield from _filled(one, variables, depth + 1)
            return
    yield bare


def _launchers(words: tuple[str, ...]) -> Iterator[str]:
    """Strict with options from the first one on; before, they are those of srun, env and the like."""
    inside = False
    for i, word in enumerate(words):
        before, after = words[i - 1] if i else "", words[i + 1] if i + 1 < len(words) else ""
        base = word.rsplit("/", 1)[-1] if "/bin/" in word or "/" not in word else word
        name = None
        if before == "-m":
            name = _MODULES.get(word)
        elif not inside or not before.startswith("-") or "=" in before or before in _FLAGS:
            if base in ("torchrun", "deepspeed"):
                name = base
            elif _SECOND.get(base) == after:
                name = f"{base} {after}"
        if name is not None:
            inside = True
            yield name
        elif word.endswith(".py") or (inside and before == "-m"):
            return
