"""Logs in which something failed and no cause is recognised: who is missing, what is not over, alarms, grouped, and what to collect next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from unhang.diagnosis.missing_ranks import MissingRanks, absent
from unhang.diagnosis.remains import NATIVE_STACK, NCCL_DEBUG, SUPERVISE, TORCH_DEBUG, TRACE, TRANSPORT, WAITING, WHOLE_LOG, ZERO_BUCKETS
from unhang.diagnosis.unknown import only_symptoms_in_logs
from unhang.frames import Frame, place, user_frame
from unhang.knowledge import catalogue, collective_waits, words
from unhang.knowledge.caught_exceptions import STEPS, that_ended_something
from unhang.knowledge.cause import filled
from unhang.knowledge.words import Text, joined, msg, possible, ranks
from unhang.logs.alarms import CRASHES, FATAL, OF_ONE_PROCESS, TRACEBACK_CUT, WARNINGS, WENT_WELL, at_the_end
from unhang.model import Evidence, Finding, Remedy, frozen
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.diagnosis.assemble import Attempt
    from unhang.knowledge.cause import LogView
    from unhang.logs import Hit, Signature
    from unhang.logs.log_facts import Stack

_SHOWN = 5
# A hang prints nothing after its last words, but other ranks and launchers do.
LAST_LINES = 200
_REMEDIES = {r.id: r for r in (NATIVE_STACK, NCCL_DEBUG, SUPERVISE, WHOLE_LOG)}
_NUMBERS = lazily(r"0x[0-9a-f]+|\d+(?:\.\d+)*")
_WELL = frozenset(WENT_WELL)
_CRASHES = {s: n for n, s in enumerate(CRASHES)}


def unknown_in_logs(
    attempt: Attempt, symptoms: Sequence[Finding], lines: Mapping[str, int], tails: Mapping[str, tuple[bytes, int]]
) -> Finding | None:
    """The primary finding of an attempt in which no root cause is in evidence; None where it seems to have gone well.

    `lines`: how many each log has; `tails`: of each log that may end in it its last bytes, and how many lines it has.
    """
    view = attempt.view
    gave_up = absent(view)
    if gave_up is not None:
        return _gave_up(gave_up, symptoms, attempt)
    begun = unfinished(view)
    # Whether nothing much was printed after it: NCCL's INFO may be cut off, but a training that went on prints steps.
    if begun is not None and all(lines.get(e.source, 0) - (e.line or 0) <= LAST_LINES for e in begun.evidence):
        return _begun(begun)
    if not symptoms and not view.finished and (seen := standing_in_stacks(view)) is not None:
        return seen
    if symptoms:
        return only_symptoms_in_logs(view, symptoms, [h for h in attempt.hits if h.signature == FATAL])
    return _unrecognised(view, attempt.hits) or (None if view.finished else _ends_badly(tails))


def _gave_up(gave_up: MissingRanks, symptoms: Sequence[Finding], attempt: Attempt) -> Finding:
    """A collective that was given up: a consequence, but one that tells whom to look at."""
    first = next((s for s in symptoms if s.cause == "collective-timeout"), None)
    says = gave_up.says
    remedies: tuple[Remedy, ...] = (SUPERVISE, TORCH_DEBUG) if gave_up.on_gloo else (NCCL_DEBUG if gave_up.everybody else TRACE, SUPERVISE)
    if gave_up.at_start and not (gave_up.everybody or gave_up.behind):
        says += msg("; it is one of the first and has one element: most likely a barrier, while another rank still loaded or preprocessed data")
        straggler = catalogue.get("straggler-timeout")
        remedies = (straggler.remedy("work-beforehand"), straggler.remedy("raise-the-timeout"), *remedies)
    if gave_up.carries and any("deepspeed" in h.text.lower() for h in attempt.hits):
        remedies += (ZERO_BUCKETS,)
    says += gave_up.carries + msg("; why is not in evidence") + possible(TRANSPORT if gave_up.everybody else WAITING)
    return Finding(
        cause="collective-timeout" if first is None else first.cause,
        standing="not-established",
        says=says,
        ranks=gave_up.missing,
        evidence=gave_up.evidence,
        remedies=remedies,
    )


def _begun(begun: Unfinished) -> Finding:
    """NCCL's start is not over: somebody is missing, or cannot be reached."""
    return words.unestablished(
        begun.says + possible(WAITING if begun.missing else TRANSPORT),
        ranks=begun.absent if begun.missing else begun.begun,
        evidence=begun.evidence,
        # NCCL's own messages are on: that is how this is known.
        remedies=(SUPERVISE,),
    )


def _unrecognised(view: LogView, hits: Sequence[Hit]) -> Finding | None:
    """What says that something failed, where nothing says why: exceptions, ends of processes, alarms. None for a log without any."""
    raised = that_ended_something(view.tracebacks, view)
    alarms = _grouped(_alarms(view, hits))
    ended = [e for e in view.exits if e.code not in (0, -15)]
    evidence = [t.evidence() for t in raised]
    evidence += [h.evidence() for h in alarms[: _SHOWN - 1]]
    evidence += [e.at.evidence() for e in ended]
    if not evidence:
        return None
    says = msg("something failed, and no signature known here names the cause")
    if len(evidence) == len(raised) and {t.type for t in raised} == {"KeyboardInterrupt"}:
        says = msg("it was ended by the user: Ctrl-C (SIGINT)")
    elif alarms and not raised and not ended:
        said = words.cut(alarms[0].text.strip(), 200)
        says += msg(": {said}", said=filled(alarms[0]) or said)
    cut = _in_order(alarms, TRACEBACK_CUT)
    frames = [Frame(file=h.groups["file"], line=int(h.groups["at"]), name=h.groups["name"]) for h in cut]
    frame = user_frame(frames)
    # What to collect next; NCCL's own messages only if they are not on.
    wanted = dict.fromkeys((*(r for h in alarms[:1] for r in h.signature.remedies or ()), SUPERVISE.id))
    if view.nccl.inits or view.nccl.interfaces or view.nccl.transports or view.nccl.traces:
        wanted.pop(NCCL_DEBUG.id, None)
    return words.unestablished(
        says,
        ranks=tuple(sorted({rank for rank in (*(e.at.rank for e in ended), *(h.rank for h in cut)) if rank is not None})),
        hosts=(alarms[0].host,) if alarms and alarms[0].host is not None and alarms[0].signature in _CRASHES else (),
        where=None if frame is None else place(frame, ""),
        evidence=tuple({(e.source, e.line): e for e in evidence}.values())[:_SHOWN],
        remedies=tuple(_REMEDIES[r] for r in wanted),
    )


def _ends_badly(tails: Mapping[str, tuple[bytes, int]]) -> Finding | None:
    """What the last lines say where no line was recognised at all. `tails`: of each log its last bytes, and how many lines it has."""
    found = [(source, line) for source, (tail, lines) in tails.items() for line in at_the_end(tail, lines)]
    if not found:
        return None
    says = msg("the log ends in words of a failure or of waiting that nothing here recognises")
    says += msg(": {said}", said=words.cut(found[-1][1].text.strip(), 200))
    return words.unestablished(
        says,
        evidence=tuple(Evidence(source=source, line=line.number, text=words.cut(line.text.strip(), 500)) for source, line in found[-_SHOWN:]),
        remedies=(WHOLE_LOG, SUPERVISE),
    )


def _alarms(view: LogView, hits: Sequence[Hit]) -> list[Hit]:
    """The gravest hit of each line, none of those that the job went on after, or that a traceback explains which was caught."""
    well: dict[str, list[Hit]] = {}
    for h in hits:
        if h.signature in _WELL:
            well.setdefault(h.source, []).append(h)
    # The record that a logger puts over a traceback belongs to it.
    inside: dict[str, list[tuple[int, int]]] = {}
    for t in view.tracebacks:
        inside.setdefault(t.source, []).append((t.line - 1, t.end))
    found: dict[tuple[str, int | None], Hit] = {}
    alarms = [h for h in hits if h.signature.role == "alarm"]
    survived = {_kind(h) for h in alarms if len(h.steps) >= STEPS}
    for h in alarms:
        if h.signature not in _CRASHES:
            if (
                (h.steps and _kind(h) in survived)
                or any(h.place < w.place and _may_be_one(h, w) for w in well.get(h.source, ()))
                or (view.finished and h.signature in WARNINGS)
            ):
                continue
            if any(line <= (h.line or 0) <= end for line, end in inside.get(h.source, ())):
                continue
        known = found.get((h.source, h.line))
        if known is None or _rank(h) < _rank(known):
            found[h.source, h.line] = h
    return list(found.values())


def _may_be_one(alarm: Hit, well: Hit) -> bool:
    """Whether the good news may be of who reported trouble: of one process, or of the whole job."""
    return well.signature not in OF_ONE_PROCESS or None in (alarm.rank, well.rank) or alarm.rank == well.rank


def _grouped(alarms: Iterable[Hit]) -> list[Hit]:
    """The newest of each kind, which texts that differ in numbers alone have in common: crashes first, then the rarest, then the newest."""
    kinds: dict[str, list[Hit]] = {}
    for h in alarms:
        kinds.setdefault(_kind(h), []).append(h)
    order = sorted(kinds.values(), key=lambda kind: (_rank(kind[-1])[0], len(kind), -kind[-1].place))
    return [kind[-1] for kind in order]


def _kind(hit: Hit) -> str:
    return _NUMBERS.sub("#", hit.text)


def _rank(hit: Hit) -> tuple[int, bool]:
    """Crashes in the order of their table before others; of equal ones those with a sentence of their own."""
    return _CRASHES.get(hit.signature, len(_CRASHES)), not hit.signature.says


def _in_order(alarms: Iterable[Hit], signature: Signature) -> list[Hit]:
    return sorted((h for h in alarms if h.signature == signature), key=lambda h: h.place)


# Communicators that were begun and never completed: which ranks began, and which never did.
@frozen
class Unfinished:
    """One communicator. `begun` are the ranks (of the communicator) that printed "Init START", `missing` those that did not."""

    nranks: int
    begun: tuple[int, ...]
    missing: tuple[int, ...]
    evidence: tuple[Evidence, ...]

    @property
    def absent(self) -> tuple[int, ...]:
        """Those to look at: where most are missing, it is their logs that are not here."""
        return self.missing if 2 * len(self.missing) < self.nranks else ()

    @property
    def says(self) -> Text:
        began = msg("{who} began a communicator of {n} and none completed it")
        began = began.fill(who=ranks(self.begun), n=self.nranks)
        if not self.missing:
            return began + msg(": all of them came, the connection between them did not")
        if not self.absent:
            return began + msg("; of the others nothing is in the logs")
        return began + msg("; {who} never began", who=ranks(self.missing))


def unfinished(view: LogView) -> Unfinished | None:
    """The first communicator that nobody completed; None where every one was completed by somebody, or none was begun."""
    ids: dict[object, list[tuple[int, int, Evidence, bool]]] = {}
    for i in view.nccl.inits:
        evidence = i.at.evidence()
        ids.setdefault((i.comm_id, i.nranks), []).append((i.rank, i.nranks, evidence, i.completed))
    for members in ids.values():
        if any(completed for *_, completed in members):
            continue
        begun = tuple(sorted({rank for rank, *_ in members}))
        nranks = members[0][1]
        missing = tuple(sorted(set(range(nranks)) - set(begun)))
        return Unfinished(nranks=nranks, begun=begun, missing=missing, evidence=tuple(e for _, _, e, _ in members[:3]))
    return None


# Where everybody stands by the stacks in the logs, if no cause speaks.
_STACKS_SHOWN = 4
_MISMATCHED = ("collective-mismatch", "rank0-guarded-collective")


def standing_in_stacks(view: LogView) -> Finding | None:
    """Where the processes stand, and no blame: all in one collective, in several, or in none. None without stacks near the ends of their logs."""
    shown = collective_waits.recent(view)
    if not shown:
        return None
    found = collective_waits.scene(view)
    alone = [s for s in shown if not collective_waits.op_of(s)]
    nobodys = _of_nobody([s for s in shown if s.rank is None and collective_waits.op_of(s)])
    if len(found.inside) == 1 and not (alone or nobodys):
        op, frame, stacks = found.inside[0]
        numbers = [s.rank for s in stacks if s.rank is not None]
        where = op if frame is None else f"{op} ({place(frame, '')})"
        says = msg("{who} stand in {op}", who=ranks(numbers), op=where)
        if len(numbers) == 1:
            says = msg("{who} stands in {op}", who=ranks(numbers), op=where)
        unseen = sorted(set(range(view.world_size)) - set(numbers)) if view.world_size is not None else []
        if len(numbers) == 1 and view.world_size is None:
            says += msg("; of no other rank there is a stack") + possible(WAITING)
        elif unseen:
            says += msg("; of {who} there is no stack", who=ranks(unseen)) + possible(WAITING)
        else:
            says += msg("; by these stacks nobody is missing") + possible((*TRANSPORT, *WAITING[:1]))
    elif len(found.inside) > 1 and not (alone or nobodys):
        says = collective_waits.within(found) + msg("; whether these belong to one group is not in the stacks") + possible(_MISMATCHED)
    else:
        says = joined((collective_waits.stands(s) for s in alone[:_STACKS_SHOWN]), msg(", ", "stack_summary"))
        if len(alone) > _STACKS_SHOWN:
            says += msg(", and {n} more", n=len(alone) - _STACKS_SHOWN)
        inside = [t for t in (collective_waits.within(found), *nobodys) if t]
        says = joined(t for t in (says, *inside) if t)
        if not inside:
            says += msg(", and none of them is in a collective")
        says += msg("; whether they stay there is not in evidence")
    return Finding(
        cause="unknown",
        standing="not-established",
        says=says,
        ranks=tuple(sorted({s.rank for s in shown if s.rank is not None})),
        evidence=collective_waits.evidence(shown[:_STACKS_SHOWN]),
        remedies=(SUPERVISE,),
    )


def _of_nobody(stacks: Sequence[Stack]) -> list[Text]:
    """ "2 stacks of ranks that are not told are in all_reduce": they may be of one process, seen twice."""
    counts: dict[str, int] = {}
    for stack in stacks:
        op = collective_waits.op_of(stack)
        counts[op] = counts.get(op, 0) + 1
    return [
        msg("{n} whose rank is not told {are} in {op}", n=f"{n} stack{'' if n == 1 else 's'}", are="is" if n == 1 else "are", zh=n, op=op)
        for op, n in counts.items()
    ]
