"""The words in which findings speak: ranks, durations, signals, lines of evidence, and sentences put together from pieces.

A piece is a template with {names}; what is filled in is of the run, and is never read as a template. Names of ranks, calls, groups, files and
variables are the same in all languages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from unhang.frames import without_hook
from unhang.i18n import AND, COMMA, NOTHING, THEN, Text, joined, listed, msg, same
from unhang.model import Evidence, Finding

if TYPE_CHECKING:
    from unhang.flight import Call, CollectiveWait
    from unhang.flight.outcome import Kind
    from unhang.flight.voting import Edit
    from unhang.frames import Frame
    from unhang.logs import Hit
    from unhang.model import Remedy
    from unhang.records.incident_view import ChildView, IncidentView, RankView

__all__ = ["AND", "COMMA", "NOTHING", "THEN", "Text", "joined", "msg", "same"]

_MOST_RANKS = 8
# Linux numbers: a verdict may be drawn on another system than the one that the run died on.
SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    5: "SIGTRAP",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    10: "SIGUSR1",
    11: "SIGSEGV",
    12: "SIGUSR2",
    13: "SIGPIPE",
    14: "SIGALRM",
    15: "SIGTERM",
    24: "SIGXCPU",
    25: "SIGXFSZ",
    31: "SIGSYS",
}


def signal_name(number: int) -> str:
    return SIGNALS.get(abs(number), f"signal {abs(number)}")


def ranks(numbers: Iterable[int]) -> Text:
    """ "rank 1", "ranks 1 and 3", "ranks 0 to 6"."""
    found = sorted(set(numbers))
    if not found:
        return msg("no rank")
    if len(found) == 1:
        return msg("rank {n}", "ranks", n=found[0])
    if len(found) > 2 and found[-1] - found[0] == len(found) - 1:
        return msg("ranks {first} to {last}", first=found[0], last=found[-1])
    if (more := len(found) - _MOST_RANKS) > 0:
        return msg("ranks {some} and {more} more", some=joined(map(str, found[:_MOST_RANKS]), COMMA), more=more, all=len(found))
    return msg("ranks {numbers}", numbers=listed(map(str, found)))


def ranges(numbers: Iterable[int]) -> str:
    """ "0-6, 9"."""
    shown: list[str] = []
    found = sorted(set(numbers))
    start = 0
    for i in range(1, len(found) + 1):
        if i == len(found) or found[i] != found[i - 1] + 1:
            shown.append(str(found[start]) if i - start == 1 else f"{found[start]}{',' if i - start == 2 else '-'}{found[i - 1]}".replace(",", ", "))
            start = i
    return ", ".join(shown)


def verb(numbers: Sequence[int], one: str, many: str) -> str:
    return one if len(set(numbers)) == 1 else many


def seconds(value: float) -> str:
    if value < 10:
        return f"{value:.1f} s"
    return f"{value:.0f} s" if value < 180 else f"{value / 60:.0f} min"


def call(c: Call) -> Text:
    """ "all_reduce of [8] Float"."""
    sizes = ", ".join(str(list(s)) for s in c.input_sizes)
    return worded_call(f"{c.op} of {sizes} {'/'.join(dict.fromkeys(c.dtypes))}".rstrip() if sizes else c.op)


def worded_call(said: str) -> Text:
    """A call that is told as "all_reduce of [8] Float"."""
    op, of, what = said.partition(" of ")
    return msg("{op} of {what}", op=op, what=what) if of else same(op)


def stated(source: str, text: Text, line: int | None = None) -> Evidence:
    """What a source tells, in words of our own."""
    return Evidence(source=source, line=line, text=text)


def of_rank(number: int, said: Text | str) -> Text:
    """ "rank 3: ..."."""
    return msg("rank {n}: {said}", n=number, said=said)


def frame(f: Frame) -> str:
    return f'File "{f.file}", line {f.line}, in {f.name}' + (f": {f.code}" if f.code else "")


def stack_evidence(picture: IncidentView, rank: RankView, *, innermost: bool = True) -> tuple[Evidence, ...]:
    """The user's line of a rank's main thread, and where below it the thread really stands."""
    source = rank.record.stacks if rank.captured else rank.fatal_source if rank.fatal is not None and rank.raised is None else None
    found: list[Evidence] = []
    if rank.place is not None:
        seen = rank.place in rank.frames
        found.append(
            stated(
                (source if seen else None) or picture.incident_source,
                of_rank(rank.number, same(frame(rank.place)) + (NOTHING if seen else msg(" (last heartbeat)"))),
            )
        )
    inner = without_hook(rank.frames)
    if innermost and inner and inner[-1] != rank.place:
        found.append(stated(source or picture.incident_source, of_rank(rank.number, frame(inner[-1]))))
    return tuple(found)


def child_evidence(picture: IncidentView, rank: RankView, child: ChildView) -> Evidence:
    """What a process below a rank was doing, or how it ended."""
    record = child.record
    who = (msg("process {pid} below rank {rank}") if record.worker is None else msg("worker {n} (pid {pid}) of rank {rank}{index}")).fill(
        n=str(record.worker),
        pid=record.pid,
        rank=rank.number,
        index=msg(", asked for index {i}", i=record.index) if record.index else NOTHING,
    )
    says = same(frame(child.place)) if child.place is not None else ended(record.exitcode)
    return stated(record.stacks or picture.incident_source, msg("{who}: {says}", who=who, says=says))


def ended(exitcode: int | None) -> Text:
    """ "ended with exit code 3", "was killed by SIGKILL"."""
    if exitcode is None:
        return msg("ended")
    if exitcode < 0:
        return msg("was killed by {signal}", signal=signal_name(exitcode))
    return msg("ended with exit code {code}", code=exitcode)


def activity_evidence(picture: IncidentView, rank: RankView) -> tuple[Evidence, ...]:
    a = rank.activity
    if a is None:
        return ()
    parts = [
        msg("state {state}", state=a.state),
        msg("CPU {cpu_share:.0%}", cpu_share=a.cpu_share),
        msg("with children {tree_cpu_share:.0%}", tree_cpu_share=a.tree_cpu_share),
        msg("{switches_per_s:.1f} switches/s", switches_per_s=a.switches_per_s),
    ]
    if a.moved_share is not None:
        parts.append(msg("moved at {moved_share:.0%} of heartbeats", moved_share=a.moved_share))
    if a.wchan:
        parts.append(msg("in {wchan}", wchan=a.wchan))
    says = msg("rank {n} (pid {pid}) over {s}: {parts}")
    parted = joined(parts, msg(", ", "words"))
    return (stated(picture.incident_source, says.fill(n=rank.number, pid=rank.record.pid, s=seconds(a.window_s), parts=parted)),)


def waiting_evidence(picture: IncidentView, *, at_most: int = 2) -> tuple[Evidence, ...]:
    """The pending collective of the ranks that wait."""
    found: list[Evidence] = []
    for number in (picture.front.waiting if picture.front else ())[:at_most]:
        wait = picture.waits[number]
        says = msg(
            "rank {n} waits in {what}{at}" if wait.seq is None else "rank {n} waits in {what} #{seq} of group {group}{at}",
            n=number,
            what=call(wait.call) if wait.call is not None else wait.op,
            at=msg(" at {at}", "words", at=picture.place(wait.place)) if wait.place is not None else NOTHING,
            **({} if wait.seq is None else {"seq": wait.seq, "group": wait.group}),
        )
        found.append(stated(wait_source(picture, wait), says))
    return tuple(found)


def wait_source(picture: IncidentView, wait: CollectiveWait) -> str:
    """The file that tells that a rank waits in it: its dump where the call stands there, its stacks where only they do."""
    rank = picture.rank(wait.rank)
    source = rank.record.flight if wait.call is not None else rank.record.stacks if rank.captured and wait.frames else None
    return source or picture.incident_source


def absence_evidence(picture: IncidentView, rank: RankView) -> tuple[Evidence, ...]:
    """The counters that show that a rank never issued the collective that the others wait in."""
    front = picture.front
    if front is None or front.group is None or front.seq is None or rank.number not in front.absent:
        return ()
    counters = rank.record.groups.get(front.group) or (rank.flight.counters.get(front.group) if rank.flight else None)
    if counters is None:
        return ()
    says = msg(
        "rank {n}: group {group}: issued up to #{issued}, completed up to #{completed}",
        n=rank.number,
        group=front.group,
        issued=counters.enqueued,
        completed=counters.completed,
    )
    # Behind its last heartbeat it may have gone on.
    if rank.record.silent(picture.incident.at_s) and rank.flight is None:
        before_s = picture.incident.at_s - (rank.record.last_beat_s or 0.0)
        says += msg(" by its last heartbeat, {s} before", s=seconds(before_s))
    else:
        says += msg("; no #{n}", n=front.seq)
    return (stated(rank.record.flight or picture.incident_source, says),)


def cut(text: str, most: int) -> str:
    """A text of so many characters at most, cut after a sentence or else between words."""
    if len(text) <= most:
        return text
    sentence, end, _ = text[: most + 1].rpartition(". ")
    return f"{sentence}." if end and len(sentence) > most // 4 else f"{text[:most].rpartition(' ')[0] or text[:most]} …"


def hit_evidence(hits: Iterable[Hit], *, at_most: int = 2) -> tuple[Evidence, ...]:
    return tuple(h.evidence() for h in tuple(hits)[:at_most])


def unestablished(
    says: Text,
    *,
    ranks: tuple[int, ...] = (),
    hosts: tuple[str, ...] = (),
    where: str | None = None,
    evidence: tuple[Evidence, ...] = (),
    remedies: tuple[Remedy, ...] = (),
) -> Finding:
    """What is certain where no cause is."""
    return Finding(
        cause="unknown",
        standing="not-established",
        says=says,
        ranks=ranks,
        hosts=hosts,
        where=where,
        evidence=evidence,
        remedies=remedies,
    )


def hosts(picture: IncidentView, numbers: Iterable[int]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(picture.rank(n).record.host for n in sorted(numbers)))


def at(picture: IncidentView, rank: RankView) -> Text:
    """ " at train.py:88 in evaluate", ", last seen at ... 0.2 s before its end" where only a heartbeat tells, NOTHING where nothing does."""
    where = picture.where(rank)
    if where is None:
        return NOTHING
    if not rank.only_last_seen:
        return msg(" at {at}", at=where)
    return msg(", last seen at {at}{before}", at=where, before=before_its_end(rank))


def last_seen(picture: IncidentView, rank: RankView) -> str | None:
    """ "train.py:88 in evaluate (last seen 0.2 s before its end)": where a rank stood, and whether only a heartbeat tells."""
    at = picture.where(rank)
    if at is None or not rank.only_last_seen:
        return at
    if (before_s := _before_its_end_s(rank)) is None:
        return msg("{at} (last seen)", at=at)
    return msg("{at} (last seen {s} before its end)", at=at, s=seconds(before_s))


def _before_its_end_s(rank: RankView) -> float | None:
    ended, beat_s = rank.record.ended, rank.record.last_beat_s
    return None if ended is None or beat_s is None or ended.at_s < beat_s else ended.at_s - beat_s


def before_its_end(rank: RankView) -> Text:
    """ " 0.2 s before its end", by how much a rank that has ended outlived its last heartbeat; NOTHING where that is not known."""
    before_s = _before_its_end_s(rank)
    return NOTHING if before_s is None else msg(" {s} before its end", s=seconds(before_s))


def stall(picture: IncidentView) -> Text:
    """ " for 21 s", NOTHING where it is not known."""
    for_s = picture.incident.stalled_for_s
    return msg(" for {s}", "text", s=seconds(for_s)) if for_s is not None else NOTHING


def waiting(picture: IncidentView) -> Text:
    """ "rank 0 waits in all_reduce (train.py:30 in step)"; NOTHING where nobody waits."""
    front = picture.front
    if front is None or not front.waiting:
        return NOTHING
    first = picture.waits[front.waiting[0]]
    ops = {picture.waits[r].op for r in front.waiting}
    op = same(first.op)
    if len(ops) > 1:
        messages = all(op.startswith(("send", "recv")) for op in ops)
        op = msg("messages") if messages else msg("a collective")
    at = msg(" ({at})", at=picture.place(first.place)) if first.place is not None else NOTHING
    return msg("{who} {waits} in {op}{at}", who=ranks(front.waiting), waits=verb(front.waiting, "waits", "wait"), op=op, at=at)


def while_waiting(picture: IncidentView) -> Text:
    return msg(" while {waiting}", waiting=found) if (found := waiting(picture)) else NOTHING


def possible(causes: Sequence[str]) -> Text:
    """ " (possible: dns-resolution, network-blocked)"."""
    return msg(" (possible: {ids})", ids=", ".join(causes))


def crossed_by(by: str, numbers: Sequence[int], came_to: str, usual: str) -> Text:
    """ "; rank 2 came to group 2 first, where most of the ranks of both came to group 0 first"."""
    how = (
        msg("in earlier rounds it had been group {usual}")
        if by == "history"
        else msg("more than half of the ranks of both came to group {usual} first")
    )
    return msg("; {who} came to group {came_to} first, where {how}", who=ranks(numbers), came_to=came_to, how=how.fill(usual=usual))


def edited(kind: Kind, edit: Edit | None) -> Text:
    """ "; the next two calls are swapped": how the calls of the rank that strayed become those of the others, NOTHING where that is not told."""
    if kind == "order":
        return msg("; the next two calls are swapped")
    if edit is not None and kind in ("extra", "lacking"):
        says = msg("; from there on its calls are those of the others with {many} {how}")
        how = msg("too many") if kind == "extra" else msg("left out")
        return says.fill(many=f"{edit.count} calls" if edit.count > 1 else "one call", n=edit.count, how=how)
    return NOTHING


def slipped(number: int, here: str, there: str) -> Text:
    """Where the calls of a rank that strayed came from other lines already, though they were alike."""
    says = msg("already #{number} came from {here}, where the others were at {there}")
    return says.fill(number=number, here=here, there=there)


def sums(said: str, numbers: Sequence[int]) -> Text:
    """ "rank 1 sends 4 and receives 3 elements", of what was compared of an all_to_all: "all_to_all Float 4>3"."""
    sent, _, got = said.rpartition(" ")[2].partition(">")
    return msg(
        "{who} {sends} {sent} and {receives} {got} elements",
        who=ranks(numbers),
        sends=verb(numbers, "sends", "send"),
        sent=sent,
        receives=verb(numbers, "receives", "receive"),
        got=got,
    )


def sized(said: str) -> Text:
    """ "8 elements Float", of what was compared of a message: "send 8 Float"."""
    _, elements, dtypes = (*said.split(" "), "")[:3]
    return msg("{n} elements{dtypes}", n=elements, dtypes=f" {dtypes}" if dtypes else "")


def continued(finding: Finding, more: Text) -> Finding:
    """The finding with something put behind what it says."""
    return replace(finding, says=finding.says + more)
