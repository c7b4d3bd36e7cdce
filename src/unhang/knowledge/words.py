"""The words in which findings speak: ranks, durations, signals, and lines of evidence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from unhang.frames import without_hook
from unhang.model import Evidence, Finding
from unhang.text import NOTHING, Text, joined, same

if TYPE_CHECKING:
    from unhang.flight import Call, CollectiveWait
    from unhang.frames import Frame
    from unhang.logs import Hit
    from unhang.model import Remedy
    from unhang.records.incident_view import ChildView, IncidentView, RankView

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


def ranks(numbers: Iterable[int]) -> str:
    """ "rank 1", "ranks 1 and 3", "ranks 0 to 6"."""
    found = sorted(set(numbers))
    if not found:
        return "no rank"
    if len(found) == 1:
        return f"rank {found[0]}"
    if len(found) > 2 and found[-1] - found[0] == len(found) - 1:
        return f"ranks {found[0]} to {found[-1]}"
    shown = [str(n) for n in found[:8]] + ([f"{len(found) - 8} more"] if len(found) > 8 else [])
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"


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


def call(c: Call) -> str:
    """ "all_reduce of [8] Float"."""
    sizes = ", ".join(str(list(s)) for s in c.input_sizes)
    return f"{c.op} of {sizes} {'/'.join(dict.fromkeys(c.dtypes))}".rstrip() if sizes else c.op


def called(c: Call) -> Text:
    """ "all_reduce of [8] Float", "all_reduce [8] Float"."""
    return Text(call(c), call(c).replace(" of ", " ", 1))


def stated(source: str, text: Text, line: int | None = None) -> Evidence:
    """What a source tells, in words of our own."""
    return Evidence(source=source, line=line, text=text.en, text_zh=text.zh)


def of_rank(number: int, said: Text | str) -> Text:
    """ "rank 3: ..."."""
    return Text("rank {n}: {said}", "rank {n}：{said}").fill(n=number, said=said)


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
                of_rank(rank.number, same(frame(rank.place)) + (NOTHING if seen else Text(" (last heartbeat)", "（最后的心跳）"))),
            )
        )
    inner = without_hook(rank.frames)
    if innermost and inner and inner[-1] != rank.place:
        found.append(stated(source or picture.incident_source, of_rank(rank.number, frame(inner[-1]))))
    return tuple(found)


def child_evidence(picture: IncidentView, rank: RankView, child: ChildView) -> Evidence:
    """What a process below a rank was doing, or how it ended."""
    record = child.record
    who = (
        Text("process {pid} below rank {rank}", "rank {rank} 之下的进程 {pid}")
        if record.worker is None
        else Text("worker {n} (pid {pid}) of rank {rank}{index}", "rank {rank} 的 worker {n}（pid {pid}）{index}")
    ).fill(
        n=str(record.worker),
        pid=record.pid,
        rank=rank.number,
        index=Text(", asked for index {i}", "，被要求取索引 {i}").fill(i=record.index) if record.index else NOTHING,
    )
    says = same(frame(child.place)) if child.place is not None else ended(record.exitcode)
    return stated(record.stacks or picture.incident_source, Text("{who}: {says}", "{who}：{says}").fill(who=who, says=says))


def ended(exitcode: int | None) -> Text:
    """ "ended with exit code 3", "was killed by SIGKILL"."""
    if exitcode is None:
        return Text("ended", "已结束")
    if exitcode < 0:
        return Text("was killed by {signal}", "被 {signal} 杀死").fill(signal=signal_name(exitcode))
    return Text("ended with exit code {code}", "以退出码 {code} 结束").fill(code=exitcode)


def activity_evidence(picture: IncidentView, rank: RankView) -> tuple[Evidence, ...]:
    a = rank.activity
    if a is None:
        return ()
    parts = [
        Text(f"state {a.state}", f"状态 {a.state}"),
        Text(f"CPU {a.cpu_share:.0%}", f"CPU {a.cpu_share:.0%}"),
        Text(f"with children {a.tree_cpu_share:.0%}", f"连同子进程 {a.tree_cpu_share:.0%}"),
        Text(f"{a.switches_per_s:.1f} switches/s", f"每秒切换 {a.switches_per_s:.1f} 次"),
    ]
    if a.moved_share is not None:
        parts.append(Text(f"moved at {a.moved_share:.0%} of heartbeats", f"{a.moved_share:.0%} 的心跳中位置有变化"))
    if a.wchan:
        parts.append(Text("in {wchan}", "停在 {wchan}").fill(wchan=a.wchan))
    says = Text("rank {n} (pid {pid}) over {s}: {parts}", "rank {n}（pid {pid}）{s} 内：{parts}")
    parted = joined(parts, Text(", ", "，"))
    return (stated(picture.incident_source, says.fill(n=rank.number, pid=rank.record.pid, s=seconds(a.window_s), parts=parted)),)


def waiting_evidence(picture: IncidentView, *, at_most: int = 2) -> tuple[Evidence, ...]:
    """The pending collective of the ranks that wait."""
    found: list[Evidence] = []
    for number in (picture.front.waiting if picture.front else ())[:at_most]:
        wait = picture.waits[number]
        says = Text("rank {n} waits in {what}{seq}{at}", "rank {n} 在{group} {what}{number} 中等待{at}").fill(
            n=number,
            what=called(wait.call) if wait.call is not None else wait.op,
            seq="" if wait.seq is None else f" #{wait.seq} of group {wait.group}",
            group="" if wait.seq is None else f"组 {wait.group} 的",
            number="" if wait.seq is None else f" #{wait.seq}",
            at=Text(" at {at}", "（位于 {at}）").fill(at=picture.place(wait.place)) if wait.place is not None else NOTHING,
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
    says = Text(
        "rank {n}: group {group}: issued up to #{issued}, completed up to #{completed}",
        "rank {n}：组 {group}：已发出到 #{issued}，已完成到 #{completed}",
    ).fill(n=rank.number, group=front.group, issued=counters.enqueued, completed=counters.completed)
    # Behind its last heartbeat it may have gone on.
    if rank.record.silent(picture.incident.at_s) and rank.flight is None:
        before_s = picture.incident.at_s - (rank.record.last_beat_s or 0.0)
        says += Text(" by its last heartbeat, {s} before", "，据最后的心跳（{s} 之前）").fill(s=seconds(before_s))
    else:
        says += Text("; no #{n}", "；没有 #{n}").fill(n=front.seq)
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
        says=says.en,
        says_zh=says.zh,
        ranks=ranks,
        hosts=hosts,
        where=where,
        evidence=evidence,
        remedies=remedies,
    )


def hosts(picture: IncidentView, numbers: Iterable[int]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(picture.rank(n).record.host for n in sorted(numbers)))
