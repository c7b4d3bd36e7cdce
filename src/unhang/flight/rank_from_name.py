"""Which rank a dump is of: from the names of all dumps of one folder together, because one name alone may hold several numbers.

torch appends the rank to a prefix that anybody may choose: `nccl_trace_rank_3`, `comm_lib_trace_rank_3`, `/shared/job17_node2_3`. Where a word before
a number says "rank" in every name, that is it, though several have the same: a copy, another format, another attempt. Else it is the number that is
another one in every name.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from os.path import commonpath

from unhang.model import frozen
from unhang.patterns import lazily

_ENDING = lazily(r"\.(?:gz|zst|zstd|xz|bz2|json|jsonl|pkl|pickle|trace|dump|bin)$", re.IGNORECASE)
_SECOND = lazily(r"(^|/)cpu/(?=[^/]+$)")
_NUMBER = lazily(r"\d+")
# A local rank is another one on every host.
_RANK = lazily(r"(?:^|[^a-z])(?<!local[_\-. ])(?:global_?)?ranks?[_\-.= ]?$|(?:^|[^a-z])r$", re.IGNORECASE)


# No job has as many; a number from a file or its name must not ask for memory.
_MOST_RANKS = 1 << 20


@frozen
class Named:
    """The rank of each name. `guessed`: those that were numbered in order of name, because they do not tell; `said`: each name alone says its
    rank."""

    ranks: Mapping[str, int]
    guessed: frozenset[str] = frozenset()
    said: bool = False

    @property
    def unsure(self) -> bool:
        return bool(self.guessed)


def is_second(name: str) -> bool:
    """Whether a dump is that of a rank's second recorder, which unhang writes to `cpu/` beside the first."""
    return _SECOND.search(name) is not None


def is_rank(number: int) -> bool:
    """Whether any job may have a rank of this number."""
    return 0 <= number < _MOST_RANKS


def closed_ranks(closed: Sequence[str], names: Sequence[str]) -> dict[int, str]:
    """The files that could not be opened and lie beside dumps as another rank's, by rank; `names` are those of the dumps."""
    alike = {_NUMBER.sub("#", name) for name in names}
    beside = [name for name in closed if _NUMBER.sub("#", name) in alike and not is_second(name)]
    if not beside or (named := ranks_of([*names, *beside])).unsure:
        return {}
    taken = {named.ranks[name] for name in names}
    return {rank: name for name in sorted(beside) if (rank := named.ranks[name]) not in taken}


def ranks_of(names: Sequence[str]) -> Named:
    """The ranks of dumps by their paths, which are different from each other; both of a rank's recorders are its own."""
    first = {name: _SECOND.sub(r"\1", name) for name in names}
    named = _ranks(sorted(set(first.values())))
    return Named(
        ranks={name: named.ranks[key] for name, key in first.items()},
        guessed=frozenset(name for name, key in first.items() if key in named.guessed),
        said=named.said,
    )


def _ranks(names: Sequence[str]) -> Named:
    # Numbers of the folders that all are in tell nothing apart, and that of one name would stand for the missing one of another.
    folders = {name.rpartition("/")[0] for name in names}
    common = len(commonpath(folders)) if len(folders) > 1 and len({f.startswith("/") for f in folders}) == 1 else max(map(len, folders), default=0)
    plain = {name: _without_ending(name[common:]) for name in names}
    numbers = {name: list(_NUMBER.finditer(text)) for name, text in plain.items()}
    by_word = {name: n for name, text in plain.items() if (n := _said(text, numbers[name])) is not None}
    if len(by_word) == len(names):
        return Named(ranks=by_word, said=True)
    if (by_place := _different(numbers)) is not None:
        return Named(ranks=by_place)
    taken = set(by_word.values())
    free = (n for n in itertools.count() if n not in taken)
    others = sorted((name for name in names if name not in by_word), key=_natural)
    return Named(ranks={**by_word, **dict(zip(others, free, strict=False))}, guessed=frozenset(others))


def _without_ending(name: str) -> str:
    while (shorter := _ENDING.sub("", name)) != name:
        name = shorter
    return name


def _said(text: str, numbers: Sequence[re.Match[str]]) -> int | None:
    """The last number of the file's name that "rank" stands before."""
    folder = text.rfind("/") + 1
    return next((int(m[0]) for m in reversed(numbers) if m.start() >= folder and len(m[0]) < 10 and _RANK.search(text[folder : m.start()])), None)


def _different(numbers: Mapping[str, Sequence[re.Match[str]]]) -> dict[str, int] | None:
    """The number, counted from the end, that is another one in every name; of several the one whose numbers lie closest together.

    Of one name alone any number may be a date or a job's.
    """
    if len(numbers) < 2:
        return None
    found: list[tuple[int, int, dict[str, int]]] = []
    for place in range(1, min((len(n) for n in numbers.values()), default=0) + 1):
        ranks = {name: rank for name, n in numbers.items() if len(n[-place][0]) < 10 and is_rank(rank := int(n[-place][0]))}
        if len(ranks) == len(set(ranks.values())) == len(numbers):
            found.append((max(ranks.values()) - min(ranks.values()), place, ranks))
    return min(found, key=lambda f: f[:2])[2] if found else None


def _natural(name: str) -> tuple[str | int, ...]:
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name))
