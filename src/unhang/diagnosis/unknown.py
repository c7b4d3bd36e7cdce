"""What to say where nothing names a cause: what is certain, which causes remain possible, and what to collect next."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from unhang.diagnosis.remains import (
    CRASH,
    CUDA_CALL,
    FIND_EXIT,
    KERNEL_LOG,
    LOOK_UP,
    LOST,
    NATIVE_STACK,
    NCCL_DEBUG,
    OTHER_RANKS,
    READ_DUMPS,
    READ_LOG,
    STARTING,
    SUPERVISE,
    TORCH_DEBUG,
    TRACE,
    TRANSPORT,
    TRY_THE_MACHINE,
    WAITING,
)
from unhang.frames import Frame, place, user_frame
from unhang.knowledge import other_libraries, words
from unhang.knowledge.cause import named
from unhang.knowledge.causes.collective_timeout import NCCL2, blamed
from unhang.knowledge.causes.store_disconnect import NOT_ALL_CAME, is_wait
from unhang.knowledge.causes.unhandled_generic import words as nccls_words
from unhang.knowledge.words import NOTHING, THEN, Text, joined, msg
from unhang.model import Evidence, Finding, Remedy
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.knowledge.cause import LogView
    from unhang.logs import Hit, Line
    from unhang.records.incident_view import IncidentView, RankView

_SIGINT, _SIGTERM = 2, 15
_ABSENT_SHOWN = 4
# Nobody sends these to a training, and no launcher, but itself.
_CRASHES = (-4, -7, -8, -11)
# How launchers tell that they were told to end.
_ASKED = lazily(r"death signal, shutting down|got signal: (?:1|2|15)\b|CANCELLED AT|Received SIGTERM")
# torch 2.13 tells the number alone.
_TYPED = lazily(r"SIGINT|got signal: 2\b|Received 2 death signal")
_FAULT_FRAME = lazily(r'^ *File "([^"\n]+)", line (\d{1,9}) in (.+)$', re.MULTILINE)
_WARNING = lazily(r"\S.{0,300}:\d+: \w*Warning: ")

_SIGNALS_TELL = {
    4: msg("an instruction that this CPU does not have: a library built for another one"),
    7: msg("memory that could not be backed: usually /dev/shm is full, or a mapped file was cut short"),
    11: msg("an invalid memory access in native code"),
    6: msg("a library gave up by itself; its last words stand in the log"),
}


def unknown_in_run(view: IncidentView, symptoms: Sequence[Finding]) -> Finding | None:
    """The primary finding of an incident in which no root cause is in evidence."""
    kind = view.incident.kind
    own = [r for r in view.gone if r.ended and r.ended.exitcode != 0]
    for rank in own:
        if rank.ended and rank.ended.exitcode is not None and rank.ended.exitcode < 0:
            return _signalled(view, rank)
    for rank in own:
        if rank.raised is None:
            return _left(view, rank)
    if kind in ("hang", "straggler", "interrupted") and view.front is not None and not view.front.absent:
        return _all_joined(view)
    if symptoms:
        return only_symptoms(symptoms, remains=WAITING, remedies=(_say_more(view),), hits=view.hits_of("collective-timeout"))
    if kind in ("hang", "straggler", "interrupted"):
        return _silent(view)
    code = view.incident.exitcode
    if code is None:
        how = msg("failed", "unknown")
    elif code < 0:
        how = msg("ended by {signal}", signal=words.signal_name(code))
    else:
        how = msg("ended with exit code {code}", code=code)
    says = msg(
        "the command {how}{none}, and nothing recognised says why",
        how=how,
        none=NOTHING if view.ranks else msg("; no process of it initialised torch.distributed"),
    )
    return words.unestablished(
        says,
        ranks=tuple(r.number for r in view.ranks),
        evidence=(
            *_last_words(view, None),
            words.stated(view.incident_source, msg("{command}: {how}", command=" ".join(view.incident.command), how=how)),
        ),
        remedies=(READ_LOG,),
    )


def _say_more(view: IncidentView) -> Remedy:
    return NCCL_DEBUG if view.on_nccl else TORCH_DEBUG


def only_symptoms(symptoms: Sequence[Finding], *, remains: Sequence[str], remedies: tuple[Remedy, ...], hits: Sequence[Hit] = ()) -> Finding:
    """A symptom in the place of a cause: somebody else failed or was late, and nothing says who. `hits` are those of collective-timeout."""
    if symptoms[0].cause == "collective-timeout" and not any(blamed(h) or other_libraries.library(h) for h in hits):
        # Who waited is told, and is not to blame; of other libraries the sentence says for whom.
        symptoms = [replace(symptoms[0], ranks=(), hosts=()), *symptoms[1:]]
    more = msg("; this is a consequence, and its cause is not in evidence") + words.possible(remains)
    return replace(words.continued(symptoms[0], more), standing="not-established", remedies=remedies)


def only_symptoms_in_logs(view: LogView, symptoms: Sequence[Finding], fatal: Sequence[Hit]) -> Finding:
    """The same for logs: a process that crashed or left by itself, a job that was ended from outside, or nothing but consequences."""
    if (found := _crashed(view, symptoms, fatal) or _from_outside(view, symptoms)) is not None:
        return found
    told = {s.cause for s in symptoms}
    if symptoms[0].cause == "unhandled-generic" and nccls_words(view) is not None:
        more = msg("; no cause known here explains these words")
        return replace(words.continued(symptoms[0], more), standing="not-established", remedies=(LOOK_UP, SUPERVISE))
    if symptoms[0].cause == "peer-lost" and all(h.signature in named("peer-lost", "broken-pool") for h in view.hits_of("peer-lost")):
        return only_symptoms(symptoms, remains=("host-oom-or-killed", *CRASH), remedies=(KERNEL_LOG, NATIVE_STACK))
    more_messages = say_more_in_logs(view)
    # What is there already comes before another run.
    remedies = (more_messages, SUPERVISE) if more_messages is READ_DUMPS else (SUPERVISE, more_messages)
    if any(h.signature == NOT_ALL_CAME for h in view.hits_of(symptoms[0].cause)):
        return only_symptoms(symptoms, remains=STARTING, remedies=(TRY_THE_MACHINE, *remedies))
    if "collective-timeout" in told or view.timeouts or is_wait(view.hits_of(symptoms[0].cause)):
        return only_symptoms(symptoms, remains=WAITING, remedies=remedies, hits=view.hits_of("collective-timeout"))
    if symptoms[0].cause != "unhandled-generic":
        return only_symptoms(symptoms, remains=LOST, remedies=remedies)
    if any("cuda error" in e.text or "UnhandledCuda" in e.text for e in symptoms[0].evidence):
        return only_symptoms(symptoms, remains=CUDA_CALL, remedies=(more_messages, TRY_THE_MACHINE, SUPERVISE))
    return only_symptoms(symptoms, remains=TRANSPORT, remedies=remedies)


def say_more_in_logs(view: LogView) -> Remedy:
    """The messages of whoever gave up: those of another library, Gloo's, NCCL's, or where these are on the flight recorder."""
    if (of_library := other_libraries.say_more(view.hits_of("collective-timeout"))) is not None and not view.timeouts:
        return of_library
    texts = [h.text for hits in view.hits.values() for h in hits]
    if any(h.signature in NCCL2 for h in view.hits_of("collective-timeout")):
        return READ_DUMPS
    if view.nccl.informs:
        return TRACE if view.timeouts or view.hits_of("collective-timeout") else OTHER_RANKS
    on_nccl = bool(view.nccl.inits or view.nccl.calls or view.timeouts or view.statuses) or any("nccl" in t.lower() for t in texts)
    return TORCH_DEBUG if not on_nccl and any("gloo" in t.lower() for t in texts) else NCCL_DEBUG


def _crashed(view: LogView, symptoms: Sequence[Finding], fatal: Sequence[Hit]) -> Finding | None:
    """A process that ended with a code that nobody sent it. `fatal` are the stacks that Python's fault handler printed."""
    ended = [e for e in view.exits if e.code not in (0, -_SIGINT, -_SIGTERM)]
    crashed = [e for e in ended if e.code in _CRASHES]
    # torch's watchdog aborts, and victims of others leave with any code.
    alone = all(s.cause == "launcher-teardown" for s in symptoms)
    first = next(iter(crashed), next(iter(ended), None) if alone else None)
    if first is None:
        return None
    ranks = tuple(sorted({e.at.rank for e in ended if e.code == first.code and e.at.rank is not None}))
    who = words.ranks(ranks) if ranks else msg("a process") if first.local_rank is None else msg("local rank {n}", n=first.local_rank)
    count = ranks or (0,)
    stacks = [h for h in fatal if h.rank is None or h.rank in ranks]
    frames = [Frame(file=m[1], line=int(m[2]), name=m[3]) for h in stacks[:1] for m in _FAULT_FRAME.finditer(h.groups["stack"])][::-1]
    frame = user_frame(frames)
    where = "" if frame is None else place(frame, "")
    if first.code < 0:
        number = -first.code
        says = msg(
            "{who} {were} ended by {signal}{at}{tells}; why is not in evidence",
            who=who,
            were=words.verb(count, "was", "were"),
            signal=words.signal_name(number),
            at=msg(" at {at}", at=where) if where else NOTHING,
            tells=msg(": {what}", what=_SIGNALS_TELL[number]) if number in _SIGNALS_TELL else NOTHING,
        )
        says += words.possible(CRASH)
    else:
        says = msg(
            "{who} ended by {themselves} with exit code {code}, and no exception is in the logs",
            who=who,
            themselves=words.verb(count, "itself", "themselves"),
            code=first.code,
        )
    shown = [Evidence(source=h.source, line=h.line, text=f"{h.text.strip()} {place(frame, '')}") for h in stacks[:1] if frame is not None]
    return words.unestablished(
        says,
        ranks=ranks,
        hosts=tuple(dict.fromkeys(e.at.host for e in ended if e.code == first.code and e.at.host is not None)),
        where=where or None,
        evidence=(first.at.evidence(), *shown),
        remedies=(NATIVE_STACK, SUPERVISE) if first.code < 0 else (READ_LOG, SUPERVISE),
    )


def _from_outside(view: LogView, symptoms: Sequence[Finding]) -> Finding | None:
    """A job in which nobody had failed when it was told to end."""
    if symptoms[0].cause != "launcher-teardown" or view.timeouts or any(e.code not in (0, -_SIGINT, -_SIGTERM) for e in view.exits):
        return None
    asked = [h for h in view.hits_of("launcher-teardown") if _ASKED.search(h.text)]
    typed = any(_TYPED.search(h.text) for h in asked) or any(t.type == "KeyboardInterrupt" for t in view.tracebacks)
    if not asked:
        return None
    how = msg("by the user: Ctrl-C (SIGINT)") if typed else msg("from outside: by scancel, a scheduler, or whoever sent SIGTERM")
    says = msg("the job was ended {how}; nobody had failed before, as far as the logs tell")
    says = says.fill(how=how)
    return Finding(
        cause=symptoms[0].cause,
        standing="not-established",
        says=says,
        evidence=words.hit_evidence(asked, at_most=3),
        remedies=(SUPERVISE,),
    )


def _signalled(view: IncidentView, rank: RankView) -> Finding:
    assert rank.ended is not None and rank.ended.exitcode is not None
    number = -rank.ended.exitcode
    tells = msg(": {what}", what=_SIGNALS_TELL[number]) if number in _SIGNALS_TELL else NOTHING
    ended = msg("rank {n} (pid {pid}) ended with exit code {code}")
    evidence = [words.stated(view.incident_source, ended.fill(n=rank.number, pid=rank.record.pid, code=-number))]
    if rank.fatal_source is not None and rank.fatal_signal:
        evidence.append(Evidence(source=rank.fatal_source, line=1, text=rank.fatal_signal))
    crash = view.kernel_told("segfault", rank)
    if crash is not None and view.kernel_source is not None:
        evidence.append(Evidence(source=view.kernel_source, line=crash.line, text=crash.text))
    return _finding(
        view,
        rank,
        says=msg(
            "{who} was ended by {signal}{at}{tells}; why is not in evidence",
            who=words.ranks([rank.number]),
            signal=words.signal_name(number),
            at=words.at(view, rank),
            tells=tells,
        )
        + words.possible(CRASH),
        evidence=(*evidence, *words.stack_evidence(view, rank)),
        remedies=(NATIVE_STACK,),
    )


def _left(view: IncidentView, rank: RankView) -> Finding:
    assert rank.ended is not None
    code = rank.ended.exitcode
    how = msg("ended (its exit code is not known)")
    if code is not None:
        how = msg("ended itself with exit code {code}", code=code)
    own = sorted((r for r in view.incident.logs if r.rank == rank.number and r.bytes), key=lambda r: not r.path.endswith(".err"))
    log = own[0].path if own else None
    last = _last_words(view, rank.number)
    wordless = log is not None and not any(e.source == log for e in last)
    silent = log is None and any(r.rank == rank.number for r in view.incident.logs)
    return _finding(
        view,
        rank,
        says=msg(
            "{who} {how} without an exception that anything saw{at}{left}",
            who=words.ranks([rank.number]),
            how=how,
            at=words.at(view, rank),
            left=msg("; its log ends without a word about it") if wordless else msg("; it printed nothing") if silent else NOTHING,
        ),
        evidence=(
            words.stated(
                view.incident_source,
                msg("rank {n} (pid {pid}) {how} at {s}", n=rank.number, pid=rank.record.pid, how=how, s=words.seconds(rank.ended.at_s)),
            ),
            *words.stack_evidence(view, rank, innermost=False),
            *last,
        ),
        remedies=(
            FIND_EXIT
            if silent
            else READ_LOG
            if log is None
            else replace(
                READ_LOG,
                says=msg("Read the end of {log}: what ended the process may have said why.", log=log),
            ),
        ),
    )


def _all_joined(view: IncidentView) -> Finding:
    from unhang.flight.operations import ROOTED

    assert view.front is not None
    waiting = view.front.waiting
    first = view.waits[waiting[0]]
    says = words.waiting(view) + words.stall(view)
    remains: tuple[str, ...] = WAITING
    if view.front.finished:
        remains = TRANSPORT
        says += msg(
            ", which all have come to and which is over on {over} only: look at the links from {over} to the others",
            over=words.ranks(view.front.finished),
        )
    elif view.front.complete:
        remains = TRANSPORT
        says += msg(" and nobody is missing: the code agrees, the data does not arrive")
    else:
        not_seen = _not_seen(view)
        says += _elsewhere(view, waiting) if not_seen else NOTHING
        says += msg("; whether anybody is missing is not in evidence")
        says += msg(": {not_seen}", not_seen=not_seen) if not_seen else NOTHING
    if remains is TRANSPORT and first.op in ROOTED and not all(any(f.arguments for f in view.waits[r].frames) for r in waiting):
        remains = ("collective-mismatch", *TRANSPORT)
        says += msg("; or ranks gave different roots, which no recorder holds")
    says += words.possible(remains)
    return words.unestablished(
        says,
        ranks=waiting,
        hosts=words.hosts(view, waiting),
        where=view.place(first.place) if first.place is not None else None,
        evidence=words.waiting_evidence(view, at_most=3),
        remedies=(_say_more(view),),
    )


def _not_seen(view: IncidentView) -> Text:
    """Of whom it cannot be told whether they are in the collective that the others wait in, and why; NOTHING where there is nobody."""
    front = view.front
    if front is None:
        return NOTHING
    parts = []
    if front.unseen:
        parts.append(msg("of {who} there is no record of it", who=words.ranks(front.unseen)))
    if front.disputed:
        parts.append(
            msg(
                "what {who} did is told differently by {their} recorder and by a heartbeat or stack",
                who=words.ranks(front.disputed),
                their=words.verb(front.disputed, "its", "their"),
            )
        )
    if front.lost:
        said = msg("the recorder of {who} has overwritten its call #{n}")
        parts.append(said.fill(who=words.ranks(front.lost), n=str(front.seq)))
    return joined(parts)


def _elsewhere(view: IncidentView, waiting: Sequence[int]) -> Text:
    """ "; ranks 0 and 1 stand at train.py:51 in step", of those that do not wait in that collective."""
    by_place: dict[str, list[int]] = {}
    for rank in view.ranks:
        if rank.number not in waiting and rank.record.ended is None and (where := view.where(rank)) is not None:
            by_place.setdefault(where, []).append(rank.number)
    places = list(by_place.items())[:_ABSENT_SHOWN]
    each = msg("; {who} {stand} at {at}")
    return joined((each.fill(who=words.ranks(n), stand=words.verb(n, "stands", "stand"), at=where) for where, n in places), NOTHING)


def _silent(view: IncidentView) -> Finding:
    numbers = [r.number for r in view.ranks]
    waiting = words.waiting(view)
    # Some that wait elsewhere, in unhang's library for instance, count as absent here, and no cause that is known speaks of them.
    absent = [r for r in view.ranks if view.front is not None and r.number in view.front.absent][:_ABSENT_SHOWN]
    says = msg("no progress{stall}", stall=words.stall(view))
    says = joined((t for t in (says, waiting) if t), THEN)
    for rank in absent:
        says += msg("; {who} has not come to it", who=words.ranks([rank.number]))
        if (where := view.where(rank)) is not None:
            says += msg(", and stands at {at}", at=where)
    unknown = msg("; what the ranks are doing is not in evidence")
    says += (msg("; why is not in evidence") if absent else unknown) + words.possible(WAITING)
    shown = [*absent, *(r for r in view.ranks if r not in absent)][: max(2, len(absent))]
    return words.unestablished(
        says,
        ranks=tuple(numbers),
        evidence=(
            *words.waiting_evidence(view),
            *(e for r in shown for e in (*words.activity_evidence(view, r), *words.stack_evidence(view, r, innermost=r not in absent))),
        ),
        remedies=(_say_more(view),),
    )


def _last_words(view: IncidentView, rank: int | None) -> tuple[Evidence, ...]:
    """The end of a rank's error log; of the launcher's where the rank is None or said nothing. A warning ends no process."""
    for owner in dict.fromkeys((rank, None)):
        for log in view.incident.logs:
            if log.rank == owner and log.path.endswith(".err") and (lines := _without_warnings(view.last_lines.get(log.path, ()))):
                return tuple(Evidence(source=log.path, line=line.number, text=line.text.strip()) for line in lines[-2:])
    return ()


def _without_warnings(lines: Sequence[Line]) -> list[Line]:
    """What stands behind the last of Python's warnings: two lines each, the second one the source, indented."""
    kept = list(lines)
    for n, line in enumerate(lines, 1):
        if _WARNING.match(line.text):
            kept = [later for later in lines[n:] if later.number > line.number + 1 or not later.text.startswith(" ")]
    return kept


def _finding(view: IncidentView, rank: RankView, *, says: Text, evidence: tuple[Evidence, ...], remedies: tuple[Remedy, ...]) -> Finding:
    return words.unestablished(
        says,
        ranks=(rank.number,),
        hosts=words.hosts(view, (rank.number,)),
        where=view.where(rank),
        evidence=evidence,
        remedies=remedies,
    )
