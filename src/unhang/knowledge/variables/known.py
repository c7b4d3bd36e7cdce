"""All entries by name, and the real name that is nearest to one that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache

from unhang.facts import variables
from unhang.knowledge.variables.families import foreign
from unhang.knowledge.variables.readers import table
from unhang.knowledge.variables.variable import Variable

# Edits that a slip of the finger takes: two letters swapped count as one.
_SLIPS = 2
# Nobody else names variables so.
_OWNED = ("NCCL_", "TORCH_", "TORCHELASTIC_", "PYTORCH_", "CUDA_", "GLOO_", "ACCELERATE_", "DEEPSPEED_", "OMP_", "TOKENIZERS_")
_LIKE = 0.84


@cache
def entries() -> Mapping[str, Variable]:
    from unhang.knowledge.variables import of_launchers, of_nccl, of_torch

    return {v.name: v for v in (*of_nccl.VARIABLES, *of_torch.VARIABLES, *of_launchers.VARIABLES, *of_launchers.NOBODY)}


def is_known(name: str) -> bool:
    """Whether `unhang vars` has anything to say of a variable of this name."""
    return variables.touches(name) or name in entries()


def nearest(name: str) -> str | None:
    """The real name that was probably meant; None where none is near."""
    real = sorted(_current() | table().names())
    near = [(d, n) for n in real if n != name and (d := _slips(name, n)) <= _SLIPS]
    if near:
        return min(near)[1]
    return next(iter(difflib.get_close_matches(name, [n for n in real if n != name], 1, _LIKE)), None)


@cache
def _current() -> frozenset[str]:
    return frozenset(n for n, v in entries().items() if v.owner != "nobody" and not v.removed)


@cache
def _by_ends() -> tuple[Mapping[str, tuple[str, ...]], Mapping[str, tuple[str, ...]]]:
    """Names by the letters that they begin with, and by those that they end with."""
    names = sorted(_current())
    begin, end = ({n[part] for n in names} for part in (slice(5), slice(-5, None)))
    return {b: tuple(n for n in names if n[:5] == b) for b in begin}, {e: tuple(n for n in names if n[-5:] == e) for e in end}


def misspelt(name: str) -> str | None:
    """The known name that a name which is not about communication is a slip away from: `WOLRD_SIZE`, `CUDA_VISIBLE_DEVICE`.

    A user's own program may read any name that is in no library's family, so that there it must be one slip and no other word: not `MASTER_HOST`.
    """
    if name in entries() or "_" not in name or len(name) < 8 or foreign(name):
        return None
    most = _SLIPS if owned(name) else 1
    # Where both begin and end differ there are more slips.
    begin, end = _by_ends()
    alike = {*begin.get(name[:5], ()), *end.get(name[-5:], ())}
    near = [(d, n) for n in alike if (d := _slips(name, n)) <= most and (owned(name) or not _other_word(name, n))]
    return min(near)[1] if near else None


def owned(name: str) -> bool:
    """Whether the name begins as those of one library do."""
    return name.startswith(_OWNED)


def _other_word(name: str, real: str) -> bool:
    """Whether what differs is a word of its own: the names of variables consist of a few words, of which some are alike."""
    return any({w, f"{w}S", w.removesuffix("S")} & _words() for w in set(name.split("_")) - set(real.split("_")))


@cache
def _words() -> frozenset[str]:
    return frozenset(word for name in entries().keys() | table().names() for word in name.split("_"))


def _slips(a: str, b: str) -> int:
    """The optimal string alignment distance, or something above _SLIPS."""
    alike = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    a, b = a[alike:], b[alike:]
    if abs(len(a) - len(b)) > _SLIPS:
        return _SLIPS + 1
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, last, row = row, before, [i]
        for j, y in enumerate(b, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
        if min(row) > _SLIPS:
            return _SLIPS + 1
    return row[-1]
