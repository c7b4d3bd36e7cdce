"""Logs in which something failed and no cause is recognised: their alarms, grouped, and what to collect next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from unhang.diagnosis.unknown import NATIVE_STACK, NCCL_DEBUG, SUPERVISE, WHOLE_LOG
from unhang.frames import Frame, place, user_frame
from unhang.knowledge import words
from unhang.knowledge.caught_exceptions import STEPS, that_ended_something
from unhang.knowledge.cause import filled
from unhang.knowledge.text import msg
from unhang.logs.alarms import CRASHES, OF_ONE_PROCESS, TRACEBACK_CUT, WARNINGS, WENT_WELL, at_the_end
from unhang.model import Evidence, Finding
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.knowledge.cause import LogView
    from unhang.logs import Hit, Signature

_SHOWN = 5
_REMEDIES = {r.id: r for r in (NATIVE_STACK, NCCL_DEBUG, SUPERVISE, WHOLE_LOG)}
_NUMBERS = lazily(r"0x[0-9a-f]+|\d+(?:\.\d+)*")
_WELL = frozenset(WENT_WELL)
_CRASHES = {s: n for n, s in enumerate(CRASHES)}


def unrecognised(view: LogView, hits: Sequence[Hit]) -> Finding | None:
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


def ends_badly(tails: Mapping[str, tuple[bytes, int]]) -> Finding | None:
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
