"""Who never came to the collective that the others gave up on, as far as their watchdogs' words tell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from unhang.frames import place
from unhang.knowledge import words
from unhang.knowledge.cause import LogView, signature
from unhang.knowledge.causes.collective_timeout import BARRIER, DESYNC, GLOO_TIMEOUT
from unhang.knowledge.watchdogs import GaveUpIn, carried, stood
from unhang.knowledge.words import NOTHING, Text, msg, ranks, same
from unhang.logs import Hit
from unhang.logs.log_facts import Call, Timeout
from unhang.model import Evidence, frozen

_SIGTERM = -15
# Frameworks issue a few collectives before they load and preprocess.
_FIRST = 10
# Where nothing tells which.
_SOME = msg("a collective", "missing_ranks")


@frozen
class MissingRanks:
    """One collective that was given up.

    `waiting` entered it. `behind` never did, by their own counters; `named` did not by a check of torch's own, which `by` names; `lagging` issued
    fewer collectives than those who waited, by NCCL's log of all calls; `silent` printed nothing at all, where most ranks printed something;
    `unheard` printed other things, but nothing about this collective, which half of the ranks reported. `everybody`: all ranks of the job entered
    it. `at_start`: it is one of the first collectives and has one element, as barriers do. `stopped` are the missing ones that a launcher then
    ended. `on_gloo`: Gloo told it, whose lines name neither collective nor group. `carries`: what it most likely moved.
    """

    op: Text
    seq: int | None = None
    timeout_ms: int
    waiting: tuple[int, ...]
    behind: tuple[int, ...] = ()
    lagging: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()
    unheard: tuple[int, ...] = ()
    everybody: bool = False
    evidence: tuple[Evidence, ...]
    named: tuple[int, ...] = ()
    by: Text = NOTHING
    stopped: tuple[int, ...] = ()
    on_gloo: bool = False
    at_start: bool = False
    carries: Text = NOTHING

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks to look at: those that are proven to be behind, else those that seem to be, else those that said nothing."""
        return self.behind or self.named or self.lagging or self.silent or self.unheard

    @property
    def says(self) -> Text:
        who = msg(
            "{who} waited {s} in {op}{seq}",
            who=ranks(self.waiting),
            s=words.seconds(self.timeout_ms / 1000),
            op=self.op,
            seq=f" #{self.seq}" if self.seq is not None else "",
        )
        for numbers, how in (
            (self.behind, msg("never entered it by {their} own counters")),
            (self.named, msg("did not come to it ({by})", by=self.by)),
            (self.lagging, msg("had issued fewer collectives by {their} own log of NCCL's calls")),
            (self.silent, msg("printed nothing at all")),
            (
                self.unheard,
                msg("printed nothing about it") if self.on_gloo else msg("did not report it"),
            ),
        ):
            if numbers:
                told = how.fill(their=words.verb(numbers, "its", "their"))
                return who + msg("; {who} {told}", who=ranks(numbers), told=told) + self._end(numbers)
        if self.everybody:
            return who + msg(", and nobody was missing: the code agrees, the data does not arrive")
        return who + msg("; who was missing is not in the logs")

    def _end(self, numbers: tuple[int, ...]) -> Text:
        if not self.stopped:
            return NOTHING
        were = words.verb(self.stopped, "was", "were")
        if self.stopped == numbers:
            return msg(" and {were} ended by the launcher", were=were)
        return msg("; {who} {were} ended by the launcher", who=ranks(self.stopped), were=were)


def absent(view: LogView) -> MissingRanks | None:
    """The first collective that was given up, and who was not there; None where no watchdog says anything."""
    first = next((t for t in view.timeouts if t.at.rank is not None), None)
    if first is None:
        return _of_barrier(view) or _of_statuses(view) or _of_gloo(view)
    # Only a status line names the group, and not every rank's log holds one.
    group = next((t.group for t in view.timeouts if t.group is not None and (t.seq, t.op) == (first.seq, first.op)), None)
    same = [t for t in view.timeouts if (t.seq, t.op) == (first.seq, first.op) and t.group in (group, None)]
    first = replace(first, group=group)
    waiting = tuple(sorted({t.at.rank for t in same if t.at.rank is not None}))
    behind = () if first.seq is None else _behind(view, group, first.seq, waiting)
    # A rank says it more than once: its watchdog, the thread that waits, the exception that ends it.
    each: dict[int | None, Timeout] = {}
    for t in same:
        each.setdefault(t.at.rank, t)
    lagging = () if behind else _lagging(view, waiting)
    if not behind and (told := _of_desync(view, group)) and (named := tuple(r for r in told[0] if r not in waiting)):
        made = _made(view, first, waiting, named, (*_evidence([*each.values()][:1], view, ()), *words.hit_evidence((told[1],))))
        by = msg("torch's own desync report")
        by += NOTHING if group is not None else msg(", in the numbers of the group")
        return replace(made, behind=(), named=named, by=by)
    evidence = (*_evidence([*each.values()][:2], view, behind), *(c.at.evidence() for c in lagging[:1]))
    return _made(view, first, waiting, behind, evidence, tuple(c.at.rank for c in lagging if c.at.rank is not None))


def _of_statuses(view: LogView) -> MissingRanks | None:
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
    given_up = Timeout(at=first.at, group=group, seq=seq, op=_SOME, numel_in=None, numel_out=None, timeout_ms=0, ran_ms=None)
    return _made(view, given_up, waiting, behind, tuple(_evidence([given_up], view, behind)))


def _of_desync(view: LogView, group: str | None) -> tuple[tuple[int, ...], Hit] | None:
    """Whom a report of TORCH_NCCL_DESYNC_DEBUG=1 calls late, and its line; None of groups beside the first: the numbers count within the group."""
    if group is not None and not group.startswith("0"):
        return None
    hits = [h for h in view.hits_of("collective-timeout") if h.signature in DESYNC]
    return None if not hits else (tuple(sorted({int(n) for n in re.findall(r"\d{1,9}", hits[0].groups["missing"])})), hits[0])


def _of_barrier(view: LogView) -> MissingRanks | None:
    """What rank 0 prints of torch's monitored barrier, alone or before each collective under TORCH_DISTRIBUTED_DEBUG=DETAIL.

    Without `wait_all_ranks` the first missing rank alone is named. Its numbers count within the group: they are those of the job where another rank
    that came prints its own number in both, or where they are all of the job.
    """
    hits = [h for h in view.hits_of("collective-timeout") if h.signature == BARRIER and h.rank in (0, None)]
    if not hits:
        return None
    reached = [
        h for h in view.hits_of("peer-lost") if h.signature == signature("peer-lost", "left-at-barrier") and h.rank is not None and "came" in h.groups
    ]
    first = max(hits, key=lambda h: len(h.groups["missing"]))
    numbers = tuple(sorted({int(n) for n in re.findall(r"\d{1,9}", first.groups["missing"])}))
    came = {0, *(int(h.groups["came"]) for h in reached)}
    size = view.world_size or max({*view.printed, *numbers, *came}) + 1
    if {h.rank for h in reached} != came - {0} or not (reached or len({*numbers, *came}) == size):
        return None
    where = {s.rank: s for s in stood(view)}
    # Who was called missing and speaks of the same barrier came after all, too late.
    missing = tuple(n for n in numbers if n not in came)
    stand = where.get(0)
    if not missing:
        return None
    return MissingRanks(
        op=msg("a monitored barrier") if stand is None else _at(stand),
        timeout_ms=int(first.groups["timeout_ms"]),
        waiting=tuple(sorted(came)),
        evidence=words.hit_evidence((first, *reached)),
        named=missing,
        by=msg("torch's own monitored barrier"),
        stopped=_ended_by_launcher(view, missing),
        on_gloo=True,
    )


def _at(stand: GaveUpIn) -> Text:
    return msg("{call} ({at})", call=stand.call, at=place(stand.frame, ""))


def _ended_by_launcher(view: LogView, numbers: tuple[int, ...]) -> tuple[int, ...]:
    ended = {e.at.rank: e.code for e in view.exits if e.at.rank is not None}
    return tuple(r for r in numbers if ended.get(r) == _SIGTERM)


def _of_gloo(view: LogView) -> MissingRanks | None:
    """Gloo's timeouts, which are the exceptions of those who waited.

    Who lost a peer there had come as well, and who ended by himself is no riddle. Where fewer than half of the ranks spoke, the others may have
    waited too: a launcher ends them as soon as the first one has left.
    """
    hits = [h for h in view.hits_of("collective-timeout") if h.signature == GLOO_TIMEOUT and h.rank is not None]
    if not hits:
        return None
    first = hits[0]
    where = {s.rank: s for s in stood(view)}
    waiting = tuple(sorted({h.rank for h in hits if h.rank is not None}))
    came = set(waiting) | where.keys() | {h.rank for h in view.hits_of("peer-lost")} | {t.rank for t in view.tracebacks}
    ended = {e.at.rank: e.code for e in view.exits if e.at.rank is not None}
    size = view.world_size or max({*view.printed, *waiting, *ended}) + 1
    missing = tuple(r for r in range(size) if r not in came and ended.get(r, _SIGTERM) in (0, _SIGTERM))
    stand = next((where[r] for r in waiting if r in where), None)
    return MissingRanks(
        op=_SOME if stand is None else _at(stand),
        timeout_ms=int(first.groups["timeout_ms"]),
        waiting=waiting,
        unheard=missing if 2 * len(came - {None}) >= size else (),
        everybody=view.world_size is not None and len(came - {None}) >= view.world_size,
        evidence=words.hit_evidence([next(h for h in hits if h.rank == r) for r in waiting]),
        stopped=_ended_by_launcher(view, missing) if 2 * len(came - {None}) >= size else (),
        on_gloo=True,
    )


def _made(
    view: LogView, first: Timeout, waiting: tuple[int, ...], behind: tuple[int, ...], evidence: tuple[Evidence, ...], lagging: tuple[int, ...] = ()
) -> MissingRanks:
    rest: set[int] = set()
    # Members of other groups than the default one are not in any log.
    default = first.group is not None and first.group.startswith("0")
    # Up to torch 2.2 no group is named: one that half of the job waits in is taken for the default one.
    # Where nothing tells the size of the job, it has at least the ranks below the highest that printed.
    size = view.world_size or max(view.printed | set(waiting), default=-1) + 1
    if default or (first.group is None and 2 * len(waiting) >= size):
        # Who gave up a later one of the group had come to this one.
        later = {t.at.rank for t in view.timeouts if t.group in (first.group, None) and (t.seq or 0) > (first.seq or 0)}
        rest = set(range(size)) - {*waiting, *behind, *lagging, *later}
    # Where few ranks are heard of, the logs of the others are missing; where few reported it, the others may have been ended before they could.
    silent, unheard = rest - view.printed, rest & view.printed
    return MissingRanks(
        op=same(first.op),
        seq=first.seq,
        timeout_ms=first.timeout_ms,
        waiting=waiting,
        behind=behind,
        lagging=lagging,
        silent=tuple(sorted(silent)) if 2 * len(silent) < size else (),
        unheard=tuple(sorted(unheard)) if 2 * len(unheard) <= size else (),
        everybody=view.world_size is not None and len(waiting) >= view.world_size,
        evidence=evidence,
        at_start=first.seq is not None and first.seq <= _FIRST and _has_one_element(first),
        carries=carried(first),
    )


def _has_one_element(given_up: Timeout) -> bool:
    return given_up.op == "BARRIER" or given_up.numel_in == 1 or "TensorShape=[1]" in given_up.at.text


def _behind(view: LogView, group: str | None, seq: int, waiting: tuple[int, ...]) -> tuple[int, ...]:
    """Ranks whose counters of the same group stand before `seq`: everything that they issued is completed, and this was not issued."""
    stopped = (s for s in view.statuses if (group is None or s.group == group) and s.enqueued < seq and s.enqueued == s.completed)
    return tuple(sorted({s.at.rank for s in stopped if s.at.rank is not None and s.at.rank not in waiting}))


def _lagging(view: LogView, waiting: tuple[int, ...]) -> tuple[Call, ...]:
    """The last calls of ranks that gave up nothing, and are behind all who waited on a communicator that these have; () where two differ in that.

    A rank without a call may be further behind than all: its log may be missing, or hold so many lines of others that its last one was not kept.
    """
    communicators: dict[object, dict[int, Call]] = {}
    twice: set[object] = set()
    for call in view.nccl.calls:
        # Of communicators whose beginning is not in the logs, those of the whole job are one where each rank has one.
        key = call.comm_id or (call.nranks if call.nranks == view.world_size else None)
        if key is None or call.at.rank is None:
            continue
        if call.at.rank in communicators.setdefault(key, {}):
            twice.add(key)
        communicators[key][call.at.rank] = call
    gave_up = {t.at.rank for t in view.timeouts}
    found: dict[tuple[int, ...], tuple[Call, ...]] = {}
    for communicator, calls in communicators.items():
        whole = {c.nranks for c in calls.values()} == {len(calls)}
        if whole and communicator not in twice and calls.keys() >= set(waiting):
            front = min(calls[r].count for r in waiting)
            late = [r for r in sorted(calls) if r not in gave_up and calls[r].count < front]
            if late:
                found[tuple(late)] = tuple(calls[r] for r in late)
    return next(iter(found.values())) if len(found) == 1 else ()


def _evidence(timeouts: list[Timeout], view: LogView, behind: tuple[int, ...]) -> Iterator[Evidence]:
    for t in timeouts:
        yield t.at.evidence()
    for s in view.statuses:
        if s.at.rank in behind:
            yield s.at.evidence()
            return
