"""What is wrong with a job that still runs: judged from what NCCL's RAS says of it, once or twice.

RAS counts operations that were launched, not those that ended. Counts that differ prove nothing while they move, and a hang in which every rank has
joined shows nothing but counts that stand still: what cannot be concluded is said, and never taken for health.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from unhang.diagnosis.redact import redact_data
from unhang.diagnosis.unknown import LOST, SUPERVISE, TRANSPORT, WAITING
from unhang.knowledge import catalogue, words
from unhang.model import Evidence, Finding, Input, NotExamined, Remedy, Verdict
from unhang.records.ras import Communicator, Member, Missing, Process, Report, standstill

# So many communicators, processes and ranks are named one by one.
_NAMED = 4

STACKS = Remedy(
    id="stacks",
    says="Look where such a process stands, on its host.",
    says_zh="在该进程所在的主机上，查看它停在哪里。",
    command="py-spy dump --pid PID",
)
ASK_TWICE = Remedy(
    id="ask-twice",
    says="Ask again: counts that differ and do not move are a hang; in a healthy job they differ for a moment only.",
    says_zh="再问一次：计数不同且不再变化才是卡住；健康的任务里计数只会短暂不同。",
    command="unhang why --ras HOST:PORT",
)


@dataclass(frozen=True, kw_only=True)
class Told:
    """One answer of RAS, and how many bytes it had."""

    report: Report
    bytes: int


def judge(told: Sequence[Told], *, apart_s: float | None = None) -> Verdict:
    """The verdict on a running job from one answer, or from two, the older first, taken `apart_s` seconds apart.

    `primary` is None only where nothing is conspicuous and launches go on. Raises ValueError without an answer.
    """
    if not told:
        raise ValueError("no answer to judge")
    now = told[-1].report
    scene = _Scene(now, standstill(told[0].report, now) if len(told) > 1 else None, apart_s)
    found = scene.blames()
    if (still := scene.still()) is not None:
        found.append(still)
    return redact_data(
        Verdict(
            primary=found[0] if found else None,
            contributing=tuple(found[1:]),
            not_examined=tuple(scene.not_examined()),
            inputs=tuple(Input(source=t.report.source, kind="ras", bytes=t.bytes) for t in told),
        )
    )


def blames(report: Report, *, stands_for_s: float | None) -> list[Finding]:
    """Whom one answer names in a job that is known to stand still for that long; the surest first."""
    return _Scene(report, report.communicators, stands_for_s).blames()


class _Scene:
    """The newest report, and which of its communicators stand still; None where it was asked once."""

    def __init__(self, report: Report, standing: Sequence[Communicator] | None, apart_s: float | None) -> None:
        self.report = report
        self.standing = None if standing is None else {(c.hash, c.secondary) for c in standing}
        self.apart = "" if apart_s is None else f" for {words.seconds(apart_s)}"
        # Only in a communicator of all are ranks numbered as the job numbers them.
        most = max((c.size for c in report.communicators), default=0)
        self.of_all = most if most == report.gpus and sum(c.size == most for c in report.communicators) == 1 else None

    def blames(self) -> list[Finding]:
        return [f for f in (self.failed(), self.lost(), self.parted(), self.behind()) if f is not None]

    def failed(self) -> Finding | None:
        """Ranks on which NCCL itself reports an error."""
        found = [(c, f) for c in self.report.communicators for f in c.failures]
        if not found:
            return None
        c, failure = found[0]
        during = "while it was set up" if failure.phase == "initialization" else "while it was used"
        return self._finding(
            f"NCCL reports {failure.says!r} on {_who(failure.ranks, failure.ranks_count)} of {_named(c)} {during}; what led to it is in their logs"
            f" (possible: {', '.join(LOST)})",
            c,
            failure.ranks,
            (f"{_named(c)}: {f.says} on {_who(f.ranks, f.ranks_count)} ({f.phase})" for c, f in found),
            (SUPERVISE,),
        )

    def lost(self) -> Finding | None:
        """Processes that do not answer."""
        report = self.report
        count = report.silent_count + report.dead_count
        missing = [(c, c.missing_count) for c in report.communicators if "INCOMPLETE" in c.problems and c.missing_count]
        if not count and not missing:
            return None
        first = next(iter((*report.dead, *report.silent)), None)
        how = "and is given up as dead" if report.dead and first in report.dead else "now"
        who = (
            f"{_many(count, 'process', 'processes')} of the job {'does' if count == 1 else 'do'} not answer {how}" if count else "ranks do not answer"
        )
        named = f": {_process(first)}" if first is not None and count == 1 else ""
        c = missing[0][0] if missing else None
        gone = () if c is None else tuple(m.rank for m in c.missing if m.unresponsive is not False)
        return self._finding(
            f"{who}{named}; whether it ended, is stopped, or its host is gone is not in evidence (possible: process-stuck, {', '.join(LOST)})",
            c,
            gone,
            (
                *(f"no answer: {_process(p)}{' (given up)' if p in report.dead else ''}" for p in (*report.dead, *report.silent)),
                *(f"{_named(c)}: {n} of {c.size} ranks missing: {_members(c.missing)}" for c, n in missing),
            ),
            (STACKS, SUPERVISE),
            hosts=_hosts((*report.dead, *report.silent)),
        )

    def parted(self) -> Finding | None:
        """Ranks that have launched as many operations as the others, of other kinds: another collective was called in the place of one."""
        for c in self._standing():
            totals = {m.rank: sum(m.counts.values()) for m in c.members if m.counts}
            if len(totals) < c.size or len(set(totals.values())) > 1:
                continue
            kinds = Counter(_counts(m) for m in c.members).most_common()
            if len(kinds) < 2:
                continue
            odd = [m for m in c.members if _counts(m) != kinds[0][0]]
            even = len(kinds) == 2 and kinds[0][1] == kinds[1][1]
            usual = next(m for m in c.members if m not in odd)
            number = next(iter(totals.values()))
            cause = catalogue.load()["collective-mismatch"]
            who = "which of them is wrong is not in evidence" if even else f"{words.ranks(m.rank for m in odd)} called something else than the others"
            return cause.finding(
                standing="possible" if even else "likely",
                says=f"all ranks of {_named(c)} have launched {number} operations, but not the same ones, and none{self.apart or ' since'}: {who}",
                ranks=() if even else self._ranks(c, tuple(m.rank for m in odd)),
                hosts=() if even else _hosts(odd),
                evidence=self._evidence(f"{_named(c)}: {_member(m)}: {_kinds(m)}" for m in (usual, *odd[: _NAMED - 1])),
                remedies=("same-order", "check-each-call"),
            )
        return None

    def behind(self) -> Finding | None:
        """Ranks that have launched fewer operations than others."""
        found = [(c, b) for c in self._standing() for b in c.behind]
        if not found:
            return None
        # Ranks that wait in one communicator are behind in the others: the one with most ranks ahead tells of those who are waited for.
        c, b = min(found, key=lambda f: (f[1].ranks_count / f[0].size, f[1].ranks_count))
        ahead = next(g for g in c.launched if g.op == b.op and g.count == b.most)
        op = "operations" if b.op == "collective" else b.op
        more = b.ranks_count > ahead.ranks_count
        few, many = (ahead, b) if more else (b, ahead)
        odd = self._ranks(c, few.ranks)
        launched = b.most if more else b.launched
        says = f"{_who(few.ranks, few.ranks_count)} of {_named(c)} {'has' if few.ranks_count == 1 else 'have'} launched {launched} {op}"
        says += f", {b.launched if more else b.most} by {many.ranks_count} others"
        if self.standing is None:
            says += "; asked once, that may be the moment"
        else:
            says += f", and nobody launched anything{self.apart}: "
            says += "they wait for the others there" if more else "the others wait for them"
        return self._finding(
            f"{says} (possible: {', '.join(WAITING)})",
            c,
            () if self.standing is None else odd,
            (f"{_named(c)}: {g.count} {g.op} launched by {_who(g.ranks, g.ranks_count)}{_at(c, g.ranks)}" for g in c.launched if g.op == b.op),
            (ASK_TWICE, STACKS) if self.standing is None else (STACKS, SUPERVISE),
        )

    def still(self) -> Finding | None:
        """Nobody is behind, and nobody launches anything."""
        used = [c for c in self.report.communicators if c.hash and any(g.count for g in c.launched)]
        if self.standing is None or not used or any((c.hash, c.secondary) not in self.standing for c in used):
            return None
        c = max(used, key=lambda c: c.size)
        return self._finding(
            f"no rank of any communicator has launched an operation{self.apart}, and all have launched equally many: either they wait in the newest"
            f" one, whose data does not arrive (possible: {', '.join(TRANSPORT)}), or the job is busy elsewhere (a checkpoint, an evaluation, data);"
            " RAS does not count what has ended",
            c,
            (),
            (f"{_named(c)}: {', '.join(f'{g.count} {g.op}' for g in c.launched)}, launched by all {c.size} ranks" for c in used),
            (STACKS, SUPERVISE),
        )

    def not_examined(self) -> Iterable[NotExamined]:
        report = self.report
        if report.cut:
            yield NotExamined(what=f"the rest of the answer of {report.source}", why=report.cut, unread=True)
        if report.timeouts:
            yield NotExamined(what="processes that RAS gave up on while it asked", why=f"{report.timeouts} connections timed out")
        if self.standing is None:
            yield NotExamined(what="whether launches go on", why="RAS was asked once", unread=True)
        elif not any(c.hash and c.launched for c in report.communicators):
            version = report.nccl_version or "of unknown version"
            why = f"the answer of {report.source} has no counts (NCCL {version}; the JSON of 2.28.7 and later has)"
            yield NotExamined(what="whether launches go on", why=why, unread=True)
        yield NotExamined(what="whether the launched operations have ended", why="RAS counts launches only; the flight recorder knows more")

    def _standing(self) -> list[Communicator]:
        """The communicators whose differences count: those that stand still; asked once, all."""
        return [c for c in self.report.communicators if self.standing is None or not c.hash or (c.hash, c.secondary) in self.standing]

    def _ranks(self, c: Communicator, ranks: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted(ranks)) if c.size == self.of_all else ()

    def _finding(
        self,
        says: str,
        c: Communicator | None,
        ranks: Sequence[int],
        evidence: Iterable[str],
        remedies: tuple[Remedy, ...],
        hosts: tuple[str, ...] = (),
    ) -> Finding:
        known = () if c is None else tuple(m for r in ranks if (m := c.member(r)) is not None)
        return Finding(
            cause="unknown",
            standing="not-established",
            says=says,
            ranks=() if c is None else self._ranks(c, ranks),
            hosts=hosts or _hosts(known),
            evidence=self._evidence(evidence),
            remedies=remedies,
        )

    def _evidence(self, texts: Iterable[str]) -> tuple[Evidence, ...]:
        return tuple(Evidence(source=self.report.source, text=t) for t in list(texts)[: 2 * _NAMED])


def _counts(m: Member) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((op, n) for op, n in m.counts.items() if n))


def _kinds(m: Member) -> str:
    return ", ".join(f"{n} {op}" for op, n in _counts(m))


def _named(c: Communicator) -> str:
    return f"communicator {c.name} ({c.size} ranks)" if c.name else f"the communicator of {c.size} ranks"


def _who(ranks: Sequence[int], count: int) -> str:
    return words.ranks(ranks) if len(ranks) == count else _many(count, "rank", "ranks")


def _many(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _process(p: Process) -> str:
    devices = f", GPU {', '.join(map(str, p.nvml_devs))}" if p.nvml_devs else ""
    return f"pid {'?' if p.pid is None else p.pid} on {p.host or 'an unknown host'}{devices}"


def _member(m: Member | Missing) -> str:
    where = f" (pid {m.pid} on {m.host})" if m.pid is not None and m.host else ""
    return f"rank {m.rank}{where}"


def _members(found: Sequence[Member | Missing]) -> str:
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return ", ".join(map(_member, found[:_NAMED])) + more


def _at(c: Communicator, ranks: Sequence[int]) -> str:
    """Who a few ranks are."""
    known = [m for r in ranks if (m := c.member(r)) is not None and m.pid is not None]
    return f": {_members(known)}" if known and len(ranks) <= _NAMED else ""


def _hosts(found: Iterable[Member | Missing | Process]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(p.host for p in found if p.host is not None))
