"""Who never came to the collective that the others gave up on, as far as their watchdogs' words tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from unhang.knowledge import words
from unhang.knowledge.cause import LogView
from unhang.model import Evidence
from unhang.records.logs.said import At, Status, Timeout


@dataclass(frozen=True, kw_only=True)
class Absent:
    """One collective that was given up.

    `waiting` entered it. `behind` never did, by their own counters; `silent` printed nothing at all; `unheard` printed other things, but nothing
    about this collective. `everybody`: all ranks of the job entered it.
    """

    op: str
    seq: int | None
    group: str | None
    timeout_ms: int
    waiting: tuple[int, ...]
    behind: tuple[int, ...]
    silent: tuple[int, ...]
    unheard: tuple[int, ...]
    everybody: bool
    evidence: tuple[Evidence, ...]

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks to look at: those that are proven to be behind, else those that said nothing."""
        return self.behind or self.silent or self.unheard

    @property
    def says(self) -> str:
        what = f"{self.op}{f' #{self.seq}' if self.seq is not None else ''}"
        who = f"{words.ranks(self.waiting)} waited {words.seconds(self.timeout_ms / 1000)} in {what}"
        for numbers, how in (
            (self.behind, "never entered it by {} own counters"),
            (self.silent, "printed nothing at all"),
            (self.unheard, "did not report it"),
        ):
            if numbers:
                return f"{who}; {words.ranks(numbers)} {how.format(words.verb(numbers, 'its', 'their'))}"
        if self.everybody:
            return f"{who}, and nobody was missing: the code agrees, the data does not arrive"
        return f"{who}; who was missing is not in the logs"


def absent(view: LogView) -> Absent | None:
    """The first collective that was given up, and who was not there; None where no watchdog says anything."""
    first = next((t for t in view.timeouts if t.at.rank is not None), None)
    if first is None:
        return _of_statuses(view)
    # Only a status line names the group, and not every rank's log holds one.
    group = next((t.group for t in view.timeouts if t.group is not None and (t.seq, t.op) == (first.seq, first.op)), None)
    same = [t for t in view.timeouts if (t.seq, t.op) == (first.seq, first.op) and t.group in (group, None)]
    first = replace(first, group=group)
    waiting = tuple(sorted({t.at.rank for t in same if t.at.rank is not None}))
    behind = () if first.seq is None else _behind(view, group, first.seq, waiting)
    return _made(view, first, waiting, behind, tuple(_evidence(same[:2], view, behind)))


def _of_statuses(view: LogView) -> Absent | None:
    """Status lines without the timeouts that they belong to: the log was cut, or filtered."""
    if not view.statuses:
        return None
    seq = max(s.failed for s in view.statuses)
    group = next(s.group for s in view.statuses if s.failed == seq)
    waiting = tuple(sorted({s.at.rank for s in view.statuses if s.group == group and s.enqueued >= seq and s.at.rank is not None}))
    behind = _behind(view, group, seq, waiting)
    if not waiting or not behind:
        return None
    first = next(s for s in view.statuses if s.group == group and s.at.rank in waiting)
    given_up = Timeout(at=first.at, group=group, seq=seq, op="a collective", numel_in=None, numel_out=None, timeout_ms=0, ran_ms=None)
    return _made(view, given_up, waiting, behind, tuple(_evidence([given_up], view, behind)))


def _made(view: LogView, first: Timeout, waiting: tuple[int, ...], behind: tuple[int, ...], evidence: tuple[Evidence, ...]) -> Absent:
    rest: set[int] = set()
    # Members of other groups than the default one are not in any log.
    default = first.group is not None and first.group.startswith("0")
    # Up to torch 2.2 no group is named: one that half of the job waits in is taken for the default one.
    # Where nothing tells the size of the job, it has at least the ranks below the highest that printed.
    size = view.world_size or max(view.printed | set(waiting), default=-1) + 1
    if default or (first.group is None and 2 * len(waiting) >= size):
        rest = set(range(size)) - set(waiting) - set(behind)
    return Absent(
        op=first.op,
        seq=first.seq,
        group=first.group,
        timeout_ms=first.timeout_ms,
        waiting=waiting,
        behind=behind,
        silent=tuple(sorted(rest - view.printed)),
        unheard=tuple(sorted(rest & view.printed)),
        everybody=view.world_size is not None and len(waiting) >= view.world_size,
        evidence=evidence,
    )


def _behind(view: LogView, group: str | None, seq: int, waiting: tuple[int, ...]) -> tuple[int, ...]:
    """Ranks whose counters of the same group stand before `seq`: everything that they issued is completed, and this was not issued."""
    return tuple(sorted({s.at.rank for s in _stopped_before(view, group, seq) if s.at.rank is not None and s.at.rank not in waiting}))


def _stopped_before(view: LogView, group: str | None, seq: int) -> Iterator[Status]:
    return (s for s in view.statuses if (group is None or s.group == group) and s.enqueued < seq and s.enqueued == s.completed)


def _evidence(timeouts: list[Timeout], view: LogView, behind: tuple[int, ...]) -> Iterator[Evidence]:
    for t in timeouts:
        yield _quoted(t.at)
    for s in view.statuses:
        if s.at.rank in behind:
            yield _quoted(s.at)
            return


def _quoted(at: At) -> Evidence:
    return Evidence(source=at.source, line=at.line, text=at.text)
