"""Why did it fail, from flight-recorder dumps alone: those that somebody collected of a job that nobody watched.

The recorders tell who is missing or went astray, never why a rank is missing. Frames are read again of the few ranks that are quoted. Long because
every kind of outcome has words of its own, from the same few calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path

from unhang.diagnosis import contradictions
from unhang.diagnosis.logs import ONLY_LOGS
from unhang.diagnosis.redact import redact_data
from unhang.diagnosis.unknown import NCCL_DEBUG, SUPERVISE, TRACE, TRANSPORT, WAITING
from unhang.errors import UnhangError
from unhang.knowledge import catalogue, words
from unhang.model import Contradiction, Evidence, Finding, Input, NotExamined, Remedy, Standing, Verdict
from unhang.records.flight import Call, Flight
from unhang.records.flight.recordings import Recorded, flight, record_all
from unhang.records.frames import Frame, place, user_frame
from unhang.records.logs.said import Status
from unhang.records.match.front import Parting, parting_at
from unhang.records.match.messages import settled
from unhang.records.match.outcome import Outcome, Step, judge

# Of how many ranks the frames are read.
_QUOTED = 6
# Of how many reasons beside the first is told.
_ALSO = 16
_MISMATCHES = ("op", "shape", "dtype", "order", "extra", "lacking", "p2p-size", "p2p-both-send", "groups-crossed")
# What keeps others waiting, and is told beside another one that does.
_ROOTS = (*_MISMATCHES, "missing", "p2p-alone")
_STACKS = "stacks, process states"
_NO_STACKS = NotExamined(what=_STACKS, why="only logs and flight-recorder dumps were given; unhang run takes these before anything is ended")
_LARGER_RING = replace(
    TRACE,
    id="larger-ring",
    says="Let the recorder keep more: its ring has overwritten what would have to be compared.",
    says_zh="让 flight recorder 保留更多记录：需要比较的那一段已被它的环形缓冲区覆盖。",
)
_ALL_DUMPS = Remedy(
    id="all-dumps",
    says="Collect the dumps of all ranks: they are often written inside the container, or to a directory of each host.",
    says_zh="收集所有 rank 的转储：它们往往写在容器内部，或各主机自己的目录里。",
    env={"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/shared/nccl_trace_rank_", "TORCH_FR_DUMP_TEMP_FILE": "/shared/nccl_trace_rank_"},
)


def judge_dumps(paths: Sequence[Path], *, progress: Callable[[int, int], None] = lambda done, total: None) -> Verdict:
    """The verdict on dumps, one file for each rank or host. Raises UnhangError where none of them can be read."""
    recorded = record_all(paths, progress=progress)
    if not recorded.recordings:
        told = "; ".join(f"{n.what}: {n.why}" for n in recorded.not_examined[:3])
        raise UnhangError("none of the flight-recorder dumps could be read", cause=told)
    return _judged(recorded)


def judge_with_logs(
    paths: Sequence[Path], of_logs: Verdict, statuses: Sequence[Status], *, progress: Callable[[int, int], None] = lambda done, total: None
) -> Verdict:
    """The verdict on dumps and on logs of the same job; `statuses` are what the watchdogs printed. Dumps that cannot be read are told."""
    recorded = record_all(paths, progress=progress)
    if not recorded.recordings:
        return with_logs(of_logs, redact_data(Verdict(primary=None, not_examined=recorded.not_examined)))
    of_dumps = _judged(recorded)
    disagreeing = redact_data(contradictions.of_logs_and_dumps(statuses, recorded.recordings))
    return with_logs(_weighed(of_logs, disagreeing), replace(_weighed(of_dumps, disagreeing), contradictions=disagreeing))


def _weighed(verdict: Verdict, disagreeing: Sequence[Contradiction]) -> Verdict:
    def less(finding: Finding) -> Finding:
        return contradictions.lowered(finding, disagreeing)

    primary = None if verdict.primary is None else less(verdict.primary)
    return replace(verdict, primary=primary, contributing=tuple(map(less, verdict.contributing)), symptoms=tuple(map(less, verdict.symptoms)))


def _judged(recorded: Recorded) -> Verdict:
    told_nothing = not any(r.entries for r in recorded.recordings.values())
    read = cache(lambda rank: flight(recorded.recordings[rank]) if rank in recorded.recordings else None)
    found = judge(recorded.recordings)
    outcome = replace(settled(found, read), also=tuple(settled(o, read) for o in found.also[:_ALSO]))
    teller = _Teller(recorded, outcome)
    others = [o for o in outcome.also if o.kind in _ROOTS and (o.kind != outcome.kind or o.kind in _MISMATCHES)]
    beside = [_Teller(recorded, replace(o, left_out=outcome.left_out, older=outcome.older)).finding() for o in others]
    not_examined = [*recorded.not_examined, *_left(recorded, outcome, told_nothing=told_nothing), *teller.left()]
    inputs = {r.source: r.bytes for r in recorded.recordings.values()}
    return redact_data(
        Verdict(
            primary=teller.finding(),
            contributing=tuple(f for f in beside if f is not None),
            not_examined=tuple(not_examined),
            inputs=tuple(Input(source=source, kind="flight", bytes=size) for source, size in sorted(inputs.items())),
        )
    )


def with_logs(of_logs: Verdict, of_dumps: Verdict) -> Verdict:
    """Both in one: a root cause that the logs name comes first, then what the recorders tell; what only follows from it stands behind."""
    causes = catalogue.load()
    findings = [f for f in (of_logs.primary, of_dumps.primary) if f is not None]
    roots = [f for f in findings if f.cause in causes and causes[f.cause].role == "root" and f.standing in ("established", "likely")]
    if len(roots) == 2 and roots[1].standing == "established" and roots[0].standing != "established":
        roots.reverse()
    ordered = [*roots, *(f for f in reversed(findings) if f not in roots)]
    # What the dumps say of stacks says more.
    stacks = () if any(n.what == _STACKS for n in of_dumps.not_examined) else (_NO_STACKS,)
    return Verdict(
        primary=ordered[0] if ordered else None,
        contributing=(*roots[1:], *of_logs.contributing),
        symptoms=(*(f for f in ordered[1:] if f not in roots), *of_logs.symptoms),
        contradictions=(*of_logs.contradictions, *of_dumps.contradictions),
        not_examined=(*(m for n in of_logs.not_examined for m in (stacks if n == ONLY_LOGS else (n,))), *of_dumps.not_examined),
        inputs=(*of_logs.inputs, *of_dumps.inputs),
    )


def _left(recorded: Recorded, outcome: Outcome, *, told_nothing: bool) -> list[NotExamined]:
    found = []
    if outcome.left_out:
        ranks = [rank for rank, _ in outcome.left_out]
        where = recorded.recordings[ranks[0]].source + (f" and {len(ranks) - 1} more" if len(ranks) > 1 else "")
        of = f"of another run than the dump of rank {outcome.left_out[0][1]}"
        why = f"{words.verb(ranks, 'it is', 'they are')} {of}: of another world, or of another time"
        found.append(NotExamined(what=f"the dump of {words.ranks(ranks)} ({where})", why=why))
    if outcome.older:
        why = f"{words.verb(outcome.older, 'it lacks', 'they lack')} or {words.verb(outcome.older, 'has', 'have')} pending what others have completed"
        what = f"what {words.ranks(outcome.older)} did after {words.verb(outcome.older, 'its dump was', 'their dumps were')} taken"
        found.append(NotExamined(what=what, why=f"the others' dumps are newer: {why}"))
    absent = sorted(r for r in {*outcome.unseen, *outcome.members} if r not in recorded.recordings)
    if absent:
        found.append(NotExamined(what=f"the flight recorder of {words.ranks(absent)}", why="no dump of it was given"))
    if recorded.unsure:
        found.append(NotExamined(what="which dump is of which rank", why="their names do not tell: they were numbered in order of name"))
    if told_nothing:
        found.append(NotExamined(what="the calls of all ranks", why="the dumps hold none: the flight recorder was not on", unread=True))
    return found


def _named(call: str) -> str:
    """The operation of a call, or what is sent or received."""
    return f"a {call}" if _is_message(call) else call.split("+")[0].split(" ")[0] or "a call"


def _step(step: Step) -> str:
    """ "rank 4 waits in all_reduce #2 of group tp2 for rank 5"."""
    waits = f"{words.ranks(step.waiting)} {words.verb(step.waiting, 'waits', 'wait')} in {_named(step.call)}"
    return waits if _is_message(step.call) else f"{waits} #{step.number} of group {step.group} for {words.ranks(step.lacking)}"


def _there(step: Step) -> str:
    return f"in {_named(step.call)}" if _is_message(step.call) else f"in {_named(step.call)} #{step.number} of group {step.group}"


def _this(step: Step) -> str:
    return _there(step).removeprefix("in ")


def _is_message(call: str) -> bool:
    return call.startswith(("send to", "receive from"))


class _Teller:
    """Puts an outcome into words."""

    def __init__(self, recorded: Recorded, outcome: Outcome) -> None:
        of_another_run = dict(outcome.left_out)
        self.recordings = {r: recording for r, recording in recorded.recordings.items() if r not in of_another_run}
        self.outcome = outcome
        self.unsure = recorded.unsure
        self._flights: dict[int, Flight | None] = {}

    def finding(self) -> Finding | None:
        """None where nothing is wrong. Of ranks that names of files do not tell nobody is more than possible."""
        found = self._finding()
        if found is None or not self.unsure or not found.ranks:
            return found
        files = "; ".join(f"rank {r} is {self._file(r)}" for r in found.ranks[:_QUOTED] if r in self.recordings)
        standing: Standing = "possible" if found.standing in ("established", "likely") else found.standing
        return replace(found, standing=standing, says=f"{found.says}; names of files do not tell ranks here: {files}")

    def _file(self, rank: int) -> str:
        """The name of a rank's file, with its folder where another one has the same name."""
        path = Path(self.recordings[rank].source)
        alone = all(Path(r.source).name != path.name for n, r in self.recordings.items() if n != rank)
        return path.name if alone else f"{path.parent.name}/{path.name}"

    def _finding(self) -> Finding | None:
        o = self.outcome
        if o.kind == "nothing-wrong":
            return None
        if o.kind in _MISMATCHES:
            return self._mismatch()
        if o.kind in ("missing", "p2p-alone"):
            return self._missing()
        if o.kind in ("transport", "finished-on-some"):
            return self._joined()
        return self._untold()

    def left(self) -> list[NotExamined]:
        """What no recorder tells of this outcome."""
        o = self.outcome
        if o.kind in ("nothing-wrong", "cannot-tell") and not o.waiting:
            if not any(r.entries for r in self.recordings.values()):
                return []
            why = "only flight-recorder dumps were given"
            found = [NotExamined(what=_STACKS, why=f"{why}, and {self._nobody_waits()}" if o.kind == "nothing-wrong" else why)]
            gloo = any(t.gloo for r in self.recordings.values() for t in r.tracks)
            return [*found, NotExamined(what="sends and receives", why="Gloo's flight recorder does not hold them")] if gloo else found
        return [NotExamined(what=_this(s), why=f"{self._beside(s, 'it')}: whether that is meant is in no dump") for s in o.aside[:3]]

    def _nobody_waits(self) -> str:
        """ "none of the 2 ranks with a dump waits in a recorded call; the last call of group 0, all_reduce #3, is over on all of them"."""
        o, given = self.outcome, sorted(self.recordings)
        alone = len(given) == 1
        what = "its newest recorded calls" if o.aside else "a recorded call"
        says = f"rank {given[0]} does not wait in {what}" if alone else f"none of the {len(given)} ranks with a dump waits in {what}"
        for s in o.last[:3]:
            where = "" if alone else " on all of them" if s.waiting == tuple(given) else f" on {words.ranks(s.waiting)}"
            says += f"; {'its' if alone else 'the'} last call of group {s.group}, {_named(s.call)} #{s.number}, is over{where}"
        return f"{says}; of {len(o.last) - 3} more groups, too" if len(o.last) > 3 else says

    def _beside(self, step: Step, what: str) -> str:
        """ "rank 1 has had broadcast #1 of group 2 pending for over 30 s and went on with other calls; rank 0 has not recorded it"."""
        one = words.verb(step.waiting, "has", "have")
        says = f"{words.ranks(step.waiting)} {one} had {what} pending for over 30 s and went on with other calls"
        if not step.lacking:
            return says
        says += f"; {words.ranks(step.lacking)} {words.verb(step.lacking, 'has', 'have')} not recorded it"
        last = self._last(step.lacking[0])
        return f"{says} (the last call of rank {step.lacking[0]} is {last.op} #{last.seq} of group {last.group})" if last is not None else says

    def _blind(self, ranks: Sequence[int]) -> str:
        """Why dumps do not tell what these ranks have done."""
        why: dict[str, list[int]] = {}
        for rank in ranks:
            r = self.recordings.get(rank)
            if r is None and rank in dict(self.outcome.left_out):
                reason = "what is there of {} is of another run"
            elif r is None:
                reason = "of {} there is no dump"
            elif r.skipped:
                reason = "the dump of {} has entries that could not be understood"
            elif r.cut:
                reason = "the dump of {} is cut off"
            elif rank in self.outcome.older:
                reason = "the dump of {} is older than the others'"
            elif not r.entries:
                reason = "the recorder of {} holds no call: none was made, or it was off, or kept only what was pending"
            elif r.lost:
                reason = "the ring of {} has lost that time"
            else:
                reason = "the dump of {} holds only what was pending"
            why.setdefault(reason, []).append(rank)
        return "; ".join(reason.format(words.ranks(found)) for reason, found in why.items())

    def _flight(self, rank: int) -> Flight | None:
        if rank not in self._flights:
            recording = self.recordings.get(rank)
            self._flights[rank] = flight(recording) if recording is not None and len(self._flights) < 4 * _QUOTED else None
        return self._flights[rank]

    def _calls(self, rank: int) -> Mapping[int, Call]:
        """The calls of a rank in the group, by number; of several launched together the first."""
        found = self._flight(rank)
        calls = found.calls.get(self.outcome.group_name, ()) if found is not None else ()
        return {c.seq: c for c in reversed(calls) if not c.is_p2p}

    def _call(self, rank: int) -> Call | None:
        return None if self.outcome.number is None else self._calls(rank).get(self.outcome.number)

    def _message(self, rank: int) -> Call | None:
        found = self._flight(rank)
        calls = found.calls.get(self.outcome.group_name, ()) if found is not None else ()
        side = next((s for s in self.outcome.sides if s.ranks == (rank,)), None)
        number, kind = (self.outcome.number, "") if side is None or side.number is None else (side.number, side.call.split(" ")[0])
        there = [c for c in calls if c.is_p2p and c.seq == number and c.op.startswith(kind) and c.op != "coalesced"]
        return next((c for c in there if not c.done), there[0] if side is not None and there else None)

    def _waited(self, rank: int) -> Call | None:
        """The call that the outcome is about, as this rank issued it."""
        return self._message(rank) if _is_message(self.outcome.call) or self.outcome.kind == "p2p-size" else self._call(rank)

    def _last(self, rank: int) -> Call | None:
        """The newest call of a rank, in any group."""
        found = self._flight(rank)
        calls = [c for of_group in found.calls.values() for c in of_group] if found is not None else []
        return max(calls, key=lambda c: c.created_ns, default=None)

    @cached_property
    def parting(self) -> Parting | None:
        """Two sides of one size: whose line issued something else before may still tell."""
        o = self.outcome
        ranks = [r for s in o.sides for r in s.ranks]
        if o.by != "nothing" or o.number is None or not o.sides or len(ranks) > 2 * _QUOTED:
            return None
        dumps = {r: f for r in ranks if (f := self._flight(r)) is not None}
        return parting_at(o.group_name, o.number, dumps) if len(dumps) == len(ranks) else None

    def _mismatch(self) -> Finding:
        o = self.outcome
        if o.kind == "groups-crossed" or o.kind == "p2p-both-send":
            return self._crossed()
        odd = o.ranks
        standing: Standing = "established" if o.by != "nothing" and o.known and not (o.unseen or o.ahead) else "likely"
        how = ""
        if o.kind == "p2p-size":
            standing = "established" if o.by == "pairs" else "likely"
        elif o.by == "majority":
            total = sum(len(s.ranks) for s in o.sides)
            how = f" ({total - len(odd)} of {total} ranks agree)"
        elif o.by == "nothing" and self.parting is not None and self.parting.by == "history" and not (o.unseen or o.ahead):
            odd, how = self.parting.odd, " (the same line issued something else before)"
        elif o.by == "nothing":
            how = "; which of them went astray cannot be told from this"
        strayed = [s for s in o.sides if set(s.ranks) <= set(odd)]
        usual = [s for s in o.sides if s not in strayed]
        sides = [*strayed[:1], *usual[:1], *strayed[1:]] if strayed and usual and o.kind != "p2p-size" else list(o.sides)
        said = [self._did(s.ranks) for s in sides[:3]]
        if o.by == "sums":
            says = f"what is sent in {self._seq()} is not what is received: {'; '.join(self._sums(s.call, s.ranks) for s in sides[:3])}"
        elif o.kind == "p2p-size":
            says = f"a message of {self._sized(0)} is received as {self._sized(1)}"
        else:
            says = f"{said[0]} as {self._seq()}, where {' and '.join(said[1:])}" if not usual else f"{said[0]} as {self._seq()}, where {said[1]}"
            says += "".join(f", and {more}" for more in said[2:]) if usual else ""
        says += self._edit() + how
        shown = self._place(sides[0].ranks[0]) if o.by != "nothing" or how.startswith(" (the same") or o.kind == "p2p-size" else None
        for rank, newest in o.late[:_QUOTED]:
            says += f"; rank {rank} has issued nothing {f'after #{newest}' if newest else 'in it'}"
        # The calls that differ first: the rest is cut where there is little room.
        around = [self._around(s.ranks[0]) for s in sides[:3]]
        evidence = [*(e for here, _ in around for e in here), *(e for _, more in around for e in more)]
        evidence += [e for rank, _ in o.late[:2] for e in self._newest(rank)]
        if o.by == "majority" and (earlier := self._earlier(odd, sides[1].ranks)) is not None:
            says += earlier[0]
            evidence.append(earlier[1])
        remedy = {"shape": "same-size", "p2p-size": "same-size", "dtype": "same-dtype"}.get(o.kind, "same-order")
        return catalogue.load()["collective-mismatch"].finding(
            standing=standing, says=says, ranks=odd, where=shown, evidence=tuple(evidence), remedies=(remedy, "check-each-call")
        )

    def _sized(self, n: int) -> str:
        _, elements, dtypes = (*self.outcome.sides[n].call.split(" "), "")[:3]
        rank = self.outcome.sides[n].ranks[0]
        return f"{elements} elements {dtypes}".rstrip() + f" (rank {rank}{self._at(self._message(rank))})"

    @staticmethod
    def _sums(call: str, ranks: Sequence[int]) -> str:
        sent, _, got = call.rpartition(" ")[2].partition(">")
        return f"{words.ranks(ranks)} {words.verb(ranks, 'sends', 'send')} {sent} and {words.verb(ranks, 'receives', 'receive')} {got} elements"

    def _edit(self) -> str:
        o = self.outcome
        if o.kind == "order":
            return "; the next two calls are swapped"
        if o.edit is not None and o.kind in ("extra", "lacking"):
            many = f"{o.edit.count} calls" if o.edit.count > 1 else "one call"
            return f"; from there on its calls are those of the others with {many} {'too many' if o.kind == 'extra' else 'left out'}"
        return ""

    def _earlier(self, odd: Sequence[int], usual: Sequence[int]) -> tuple[str, Evidence] | None:
        """An equal call from another line before the ranks parted: the one too many, where it was of the usual kind."""
        o = self.outcome
        if not odd or not usual or o.number is None:
            return None
        theirs, ours = self._calls(odd[0]), self._calls(usual[0])
        for number in sorted(n for n in theirs.keys() & ours.keys() if n < o.number):
            a, b = user_frame(theirs[number].frames), user_frame(ours[number].frames)
            if a is not None and b is not None and (a.file, a.line) != (b.file, b.line):
                text = f"rank {odd[0]}: #{number} {words.call(theirs[number])}, {words.frame(a)}; rank {usual[0]}: {words.frame(b)}"
                return f"; already #{number} came from {place(a, '')}, where the others were at {place(b, '')}", self._evidence(odd[0], text)
        return None

    def _crossed(self) -> Finding:
        o = self.outcome
        told = "; ".join(_step(s) for s in o.path[:4])
        if o.kind == "p2p-both-send":
            says = f"ranks send to each other, and none of them receives: {told}"
        else:
            says = f"ranks wait for each other in a circle, each in another call: {told}"
        evidence = [e for s in o.path[:4] if s.waiting for e in self._pending(s.waiting[0])]
        return catalogue.load()["collective-mismatch"].finding(
            standing="likely", says=says, ranks=o.ranks, evidence=tuple(evidence), remedies=("same-order", "check-each-call")
        )

    def _missing(self) -> Finding:
        o = self.outcome
        waiting, absent = o.waiting, o.ranks
        first = waiting[0]
        at = self._at(self._waited(first))
        here = self._seq() if o.kind == "missing" else _named(o.call)
        last = {r: self._last(r) for r in absent[:_QUOTED]}
        shown = next((c for c in last.values() if c is not None), None)
        verb = words.verb(waiting, "waits", "wait")
        never = "never came to" if o.kind == "missing" else "posted nothing that fits"
        says = f"{words.ranks(absent)} {never} {here}, in which {words.ranks(waiting)} {'gave up' if o.gave_up else verb}{at}"
        if shown is not None:
            says += f"; {words.verb(absent, 'its', 'their')} last call was {shown.op} #{shown.seq} of group {shown.group}{self._at(shown)}"
        elif not last or all(r in self.recordings and not self.recordings[r].entries for r in absent):
            says += f"; no call of {words.verb(absent, 'it', 'them')} is recorded"
        if len(absent) > len(waiting) and o.kind == "missing":
            says += f"; or {words.ranks(waiting)} {words.verb(waiting, 'has', 'have')} made a call too many"
            if (earlier := self._earlier(waiting, absent)) is not None:
                says += f": {earlier[0].removeprefix('; ')}"
        says += self._path() + self._likewise()
        others = "" if o.known else "; whether more ranks belong to the group is not in the dumps"
        evidence = [
            *(self._evidence(r, f"rank {r}: last call #{c.seq} {words.call(c)} of group {c.group}{self._line(c)}") for r, c in last.items() if c),
            *(e for r in waiting[:2] for e in self._pending(r)),
        ]
        where = user_frame(shown.frames) if shown is not None and len(self._alike()) == 1 else None
        return Finding(
            cause="collective-timeout",
            standing="not-established",
            says=f"{says}{others}; why is not in evidence (possible: {', '.join(WAITING)})",
            ranks=self._alike(),
            where=place(where, "") if where is not None else None,
            evidence=tuple(evidence),
            remedies=(SUPERVISE,),
        )

    def _joined(self) -> Finding:
        o = self.outcome
        at = self._at(self._waited(o.waiting[0]))
        here = _named(o.call) if _is_message(o.call) else self._seq()
        if o.finished and _is_message(o.call):
            says = (
                f"both sides of {here}{at} were posted, and it is over on {words.ranks(o.finished)} only: {words.ranks(o.waiting)} waits; "
                f"look at the link between them"
            )
        elif o.finished:
            says = (
                f"all have come to {here}{at}, and it is over on {words.ranks(o.finished)} only: {words.ranks(o.waiting)} "
                f"{words.verb(o.waiting, 'waits', 'wait')} for data; look at the links from {words.ranks(o.finished)} to the others"
            )
        elif o.unstarted:
            started = [r for r in o.waiting if r not in o.unstarted]
            says = f"{words.ranks(o.unstarted)} {words.verb(o.unstarted, 'has', 'have')} issued {here}{at}, and not started it, as "
            says += f"{words.ranks(started)} {words.verb(started, 'has', 'have')}: likely "
            says += words.verb(o.unstarted, "its GPU is still in earlier work", "their GPUs are still in earlier work")
        else:
            says = f"{words.ranks(o.waiting)} {words.verb(o.waiting, 'waits', 'wait')} in {here}{at} and nobody is missing: the code agrees, "
            says += "the data does not arrive"
        if not o.known:
            says += "; whether more ranks belong to the group is not in the dumps"
        return Finding(
            cause="unknown",
            standing="not-established",
            says=f"{says}{self._path()}{self._likewise()} (possible: {', '.join(WAITING if o.unstarted else TRANSPORT)})",
            ranks=self._alike(),
            where=self._place(o.waiting[0]),
            evidence=tuple(e for r in (*o.finished[:1], *o.waiting[:2]) for e in self._pending(r)),
            remedies=(NCCL_DEBUG, SUPERVISE),
        )

    def _same(self) -> list[Outcome]:
        """The other ends that are of the same kind."""
        return [a for a in self.outcome.also if a.kind == self.outcome.kind and a.kind not in _MISMATCHES]

    def _alike(self) -> tuple[int, ...]:
        return tuple(sorted({r for o in (self.outcome, *self._same()) for r in o.ranks}))

    def _likewise(self) -> str:
        """ "; likewise rank 5 never came to all_reduce #1 of group dp1 (dp), in which rank 1 waits"."""
        told = []
        for o in (same := self._same())[:_QUOTED]:
            here = _named(o.call) if _is_message(o.call) else f"{_named(o.call)} #{o.number} of group {o.group}"
            waiting = f"{words.ranks(o.waiting)} {words.verb(o.waiting, 'waits', 'wait')}"
            if o.kind in ("missing", "p2p-alone"):
                never = "never came to" if o.kind == "missing" else "posted nothing that fits"
                told.append(f"{words.ranks(o.ranks)} {never} {here}, in which {waiting}")
            else:
                told.append(f"{waiting} in {here}")
        if not told:
            return ""
        more = f"; {len(same) - _QUOTED} more like that" if len(same) > _QUOTED else ""
        return f"; likewise {'; '.join(told)}{more}"

    def _untold(self) -> Finding | None:
        o = self.outcome
        if not o.waiting:
            # Nobody waits in anything: what was not seen is said under not_examined.
            return self._quiet() if any(r.entries for r in self.recordings.values()) else None
        at = self._at(self._waited(o.waiting[0]))
        why = [self._blind(o.waiting)] if set(o.waiting) <= set(o.older) else []
        if o.unseen:
            why.append(self._blind(o.unseen))
        awaited = {r for s in o.path[-1:] for r in s.lacking}
        why += [f"{self._beside(s, _this(s))}: what goes on there now is in no dump" for s in o.aside[:2] if awaited & set(s.waiting)]
        if o.ahead and _is_message(o.call):
            why.append(f"the rings have overwritten what went before it, and unequally many are pending on {words.ranks((*o.waiting, *o.ahead))}")
        elif o.ahead:
            why.append(f"the ring of {words.ranks(o.ahead)} has overwritten #{o.number}")
        if o.outside:
            why.append(f"who belongs to group {o.group} is not in the dumps, and {words.ranks(o.outside)} may")
        elif not o.known:
            why.append(f"who belongs to group {o.group} is not in the dumps, and there may be more ranks")
        if not why:
            why.append(f"{words.ranks(o.ranks)} {words.verb(o.ranks, 'has', 'have')} not recorded it, and need not have to")
        if o.elsewhere:
            told = "; ".join(f"{words.ranks(s.waiting)} {words.verb(s.waiting, 'waits', 'wait')} {_there(s)}" for s in o.elsewhere[:3])
            why.append(f"{told}: if these belong to both groups, they were called in different orders")
        here = _named(o.call) if _is_message(o.call) else self._seq()
        evidence = [e for r in (*o.waiting[:2], *(s.waiting[0] for s in o.elsewhere[:3])) for e in self._pending(r)]
        return Finding(
            cause="unknown",
            standing="not-established",
            says=f"{words.ranks(o.waiting)} {words.verb(o.waiting, 'waits', 'wait')} in {here}{at}; whether anybody is missing cannot be told: "
            f"{'; '.join(why)}{self._path()} (possible: {', '.join(WAITING)})",
            ranks=o.waiting,
            where=self._place(o.waiting[0]),
            evidence=tuple(evidence),
            remedies=(self._remedy(),),
        )

    def _remedy(self) -> Remedy:
        """How more would be told."""
        o = self.outcome
        given = [self.recordings.get(r) for r in o.unseen]
        if any(r is None or r.cut or r.skipped for r in given):
            return _ALL_DUMPS
        if any(r is not None and not r.entries for r in given):
            return TRACE
        return _LARGER_RING if o.ahead or any(r is not None and r.lost for r in given) else SUPERVISE

    def _quiet(self) -> Finding:
        o = self.outcome
        parts = [self._blind(o.unseen)] if o.unseen else []
        if o.ahead:
            parts.append(f"the ring of {words.ranks(o.ahead)} has overwritten all that the others still have")
        parts += [self._beside(s, _this(s)) for s in o.aside[:2]]
        for s in o.last:
            if s.lacking and len(parts) < 3:
                had = words.verb(s.lacking, "has", "have")
                parts.append(
                    f"{words.ranks(s.lacking)} {had} not issued {_named(s.call)} #{s.number} of group {s.group}, and may have been wanted in it"
                )
        if o.unproven:
            parts.append("Gloo's recorder calls over what has failed, too")
        if not o.known:
            parts.append("how many ranks there are is not in the dumps")
        shown = [r for s in (o.aside or o.last)[:2] for r in (s.waiting[0], *s.lacking[:1])]
        whether = "whether others wait" if len(self.recordings) == 1 else "whether all is well"
        return Finding(
            cause="unknown",
            standing="not-established",
            ranks=tuple(sorted({r for s in o.aside[:2] for r in s.lacking})),
            says=f"{self._nobody_waits()}; {whether} cannot be told: {'; '.join(parts)}",
            evidence=tuple(e for r in dict.fromkeys(shown) for e in (self._pending(r) or self._newest(r))),
            remedies=(self._remedy(),),
        )

    def _newest(self, rank: int) -> list[Evidence]:
        c = self._last(rank)
        return [] if c is None else [self._evidence(rank, f"rank {rank}: last call #{c.seq} {words.call(c)} of group {c.group}{self._line(c)}")]

    def _path(self) -> str:
        """How the chain led there, where it has more than one place."""
        steps = self.outcome.path
        if len(steps) < 2:
            return ""
        told = [_step(s) for s in steps if s.lacking]
        return f" ({'; '.join(told)})" if told else ""

    def _seq(self) -> str:
        o = self.outcome
        return f"{'call' if o.kind in _MISMATCHES else _named(o.call)} #{o.number} of group {o.group}"

    def _did(self, ranks: Sequence[int]) -> str:
        call = self._call(ranks[0])
        side = next(s for s in self.outcome.sides if s.ranks == tuple(ranks))
        return f"{words.ranks(ranks)} issued {words.call(call) if call is not None and '+' not in side.call else side.call}{self._at(call)}"

    @staticmethod
    def _at(call: Call | None) -> str:
        frame = user_frame(call.frames) if call is not None else None
        return f" at {place(frame, '')}" if frame is not None else ""

    @staticmethod
    def _line(call: Call) -> str:
        frame: Frame | None = user_frame(call.frames)
        return f", {words.frame(frame)}" if frame is not None else ""

    def _place(self, rank: int) -> str | None:
        call = self._waited(rank)
        frame = user_frame(call.frames) if call is not None else None
        return place(frame, "") if frame is not None else None

    def _evidence(self, rank: int, text: str) -> Evidence:
        return Evidence(source=self.recordings[rank].source if rank in self.recordings else "", text=text)

    def _around(self, rank: int) -> tuple[list[Evidence], list[Evidence]]:
        """What a rank issued at the number; the calls before and behind it."""
        o = self.outcome
        if o.number is None or o.kind == "p2p-size":
            call = self._message(rank)
            return [self._evidence(rank, f"rank {rank}: {words.call(call)}{self._line(call)}")] if call is not None else [], []
        calls, found = self._calls(rank), dict[str, Evidence]()
        for number, word in ((o.number, ""), (o.number - 1, "before: "), (o.number + 1, "behind: ")):
            if (call := calls.get(number)) is not None:
                state = "done" if call.done else "not finished"
                found[word] = self._evidence(rank, f"rank {rank}: {word}#{number} {words.call(call)} ({state}){self._line(call)}")
        return [e for word, e in found.items() if not word], [e for word, e in found.items() if word]

    def _pending(self, rank: int) -> list[Evidence]:
        """What a rank waits in."""
        found = self._flight(rank)
        calls = [c for of_group in found.calls.values() for c in of_group] if found is not None else []
        here = None if self.outcome.kind in _MISMATCHES else self._waited(rank)
        oldest = here or min((c for c in calls if not c.done), key=lambda c: c.created_ns, default=None)
        if oldest is None:
            return []
        state = "done" if oldest.done else "waits"
        return [self._evidence(rank, f"rank {rank}: #{oldest.seq} {words.call(oldest)} of group {oldest.group} ({state}){self._line(oldest)}")]
