"""Which installed library reads a name: by the table of checked releases, else by what a scan of the installed files found."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from typing import Literal

from unhang.model import frozen

How = Literal["table", "scan", "documentation"]
Answer = Literal["reads", "logs", "in-binary"]

# The file of a library that holds the name, "" where none does; None where there is nothing to look into.
Scan = Callable[[str, str], str | None]


@frozen
class Reader:
    """Who reads a variable: "logs" where it is looked at only to be printed, "in-binary" where a name was found and its use is not known."""

    library: str
    version: str
    how: How
    answer: Answer
    where: str = ""


@frozen
class _Row:
    answer: Answer
    first: int
    last: int


@frozen
class _List:
    """What one look at several releases gave. `all_of` matches the names that it holds all of."""

    library: str
    all_of: re.Pattern[str] | None
    releases: tuple[str, ...]
    rows: Mapping[str, tuple[_Row, ...]]
    prefixes: tuple[str, ...]

    def at(self, name: str, version: str) -> Answer | Literal["no"] | None:
        """What holds at a release: where its neighbours in the list agree, they decide. None: not known here."""
        between = self._between(version)
        if between is None:
            return None
        if name.startswith(self.prefixes) and self.prefixes:
            return "reads"
        low, high = (self._active(name, i) for i in between)
        if low != high:
            return None
        if low is not None:
            return low
        return "no" if name in self.rows or (self.all_of is not None and self.all_of.match(name)) else None

    def _active(self, name: str, release: int) -> Answer | None:
        return next((r.answer for r in self.rows.get(name, ()) if r.first <= release <= r.last), None)

    def _between(self, version: str) -> tuple[int, int] | None:
        v, known = release(version), [release(r) for r in self.releases]
        if is_early(version):
            later = next((i for i, k in enumerate(known) if k >= v), 0)
            return (later - 1, later) if later else None
        if not known[0] <= v:
            return None
        if v > known[-1]:
            # A patch of the newest.
            return (len(known) - 1, len(known) - 1) if v[:2] == known[-1][:2] else None
        low = max(i for i, k in enumerate(known) if k <= v)
        return low, low if known[low] == v else low + 1


# RCCL is NCCL for AMD's GPUs, and reads NCCL's names by NCCL's code.
_FORK_OF = {"rccl": "nccl"}


@frozen
class Table:
    lists: tuple[_List, ...]

    def names(self) -> frozenset[str]:
        """All names that some release reads."""
        return frozenset(name for one in self.lists for name, rows in one.rows.items() if any(r.answer == "reads" for r in rows))

    def span(self, library: str, name: str) -> tuple[str, str] | None:
        """First and last release that was seen to read it; "" for the last where that is the newest."""
        for one in self.lists:
            rows = [r for r in one.rows.get(name, ()) if r.answer == "reads"]
            if one.library == library and rows:
                last = max(r.last for r in rows)
                return one.releases[min(r.first for r in rows)], "" if last == len(one.releases) - 1 else one.releases[last]
        return None

    def readers(self, name: str) -> frozenset[str]:
        """The libraries of which some release reads it."""
        return frozenset(one.library for one in self.lists if any(r.answer == "reads" for r in one.rows.get(name, ())))

    def ever(self, name: str) -> bool:
        return any(name in one.rows or (one.prefixes and name.startswith(one.prefixes)) for one in self.lists)

    def decide(self, library: str, version: str, name: str, scan: Scan) -> Reader | bool | None:
        """The reader; False: that library does not read it; None: that could not be found out."""
        answers = [a for one in self.lists if one.library == library and (a := one.at(name, version)) is not None]
        best = next((a for wanted in ("reads", "logs", "in-binary") for a in answers if a == wanted), None)
        if best == "reads":
            return Reader(library=library, version=version, how="table", answer="reads")
        if answers and best is None:
            return False
        if best is not None:
            return Reader(library=library, version=version, how="table", answer="logs" if best == "logs" else "in-binary")
        where = scan(library, name)
        if where is None:
            return None
        # A name that the newest release that was looked at reads, and that still stands there, is still read.
        answer: Answer = "reads" if self._newest(_FORK_OF.get(library, library), name) else "in-binary"
        return Reader(library=library, version=version, how="scan", answer=answer, where=where) if where else False

    def _newest(self, library: str, name: str) -> bool:
        return any(
            one.library == library and any(r.answer == "reads" and r.last == len(one.releases) - 1 for r in one.rows.get(name, ()))
            for one in self.lists
        )


@cache
def release(version: str) -> tuple[int, ...]:
    """`2.9.1+cu128` as numbers."""
    return tuple(int(n) for n in re.findall(r"\d+", re.split(r"[^0-9.]", version)[0]))


def is_early(version: str) -> bool:
    """Whether it was built before its release, from some state of the sources: `2.8.0a0+5228986`, `2.9.0.dev20250801`."""
    return re.match(r"[\d.]+(?:a|b|rc|\.?dev)\d*", version) is not None


@cache
def table() -> Table:
    heads: dict[str, tuple[str, re.Pattern[str] | None, tuple[str, ...]]] = {}
    rows: dict[str, dict[str, tuple[_Row, ...]]] = {}
    prefixes: dict[str, tuple[str, ...]] = {}
    for line in resources.files(__package__).joinpath("readers.tsv").read_text(encoding="ascii").splitlines():
        if line.startswith("#"):
            continue
        what, id, *rest = line.split("\t")
        if what == "table":
            heads[id] = rest[0], None if rest[1] == "-" else re.compile(rest[1]), tuple(rest[2].split())
            rows[id], prefixes[id] = {}, ()
        elif what == "prefix":
            prefixes[id] += (rest[0],)
        else:
            releases = heads[id][2]
            answer: Answer = "reads" if what == "read" else "logs" if what == "log" else "in-binary"
            row = _Row(answer=answer, first=releases.index(rest[1]), last=releases.index(rest[2]) if rest[2] else len(releases) - 1)
            rows[id][rest[0]] = (*rows[id].get(rest[0], ()), row)
    return Table(lists=tuple(_List(library=h[0], all_of=h[1], releases=h[2], rows=rows[id], prefixes=prefixes[id]) for id, h in heads.items()))
