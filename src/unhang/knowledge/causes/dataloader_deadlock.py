"""dataloader-deadlock: a data loader, or a worker of it, is stuck."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.knowledge import collective_waits, text, waits, words
from unhang.knowledge.blocked_threads import held_back, line_in_data_set, workers_at_work
from unhang.knowledge.cause import LogView, cause
from unhang.knowledge.text import NOTHING, Text
from unhang.model import Finding

if TYPE_CHECKING:
    from unhang.records.incident_view import IncidentView

# Workers that the evidence names.
_SHOWN = 3
_FOR_WORKERS = ("loader-timeout", "start-method", "threads-in-workers")


def _in_run(picture: IncidentView) -> Finding | None:
    if picture.incident.kind == "straggler":
        return None
    found = [r for r, state in held_back(picture) if state == "loader"]
    if not found:
        return CAUSE.of_raised(picture)
    first, numbers = found[0], [r.number for r in found]
    inner = line_in_data_set(first)
    workers = workers_at_work(first)
    frame = inner or (workers[0].place if workers else first.place)
    at = picture.place(frame) if frame is not None else None
    if inner:
        what = Text("stuck in its data loader{at}", "卡在自己的 DataLoader 里{at}").fill(
            at=Text(" at {at}", "（{at}）").fill(at=at) if at else NOTHING
        )
    elif workers:
        index = workers[0].record.index
        what = Text(
            "waiting for worker {n} (pid {pid}) of its data loader, stuck at {at}{index}",
            "在等待自己 DataLoader 的 worker {n}（pid {pid}），后者卡在 {at}{index}",
        ).fill(
            n=str(workers[0].record.worker),
            pid=workers[0].record.pid,
            at=str(at),
            index=Text(" (index {index})", "（索引 {index}）").fill(index=index) if index else NOTHING,
        )
    else:
        seen = Text("last seen at ", "最后见于 ") if first.only_last_seen else NOTHING
        place = Text(" ({seen}{at})", "（{seen}{at}）").fill(seen=seen, at=at) if at else NOTHING
        what = Text("waiting for a worker of its data loader{place}", "在等待自己 DataLoader 的 worker{place}").fill(place=place)
    idle = Text(", without using CPU" if workers else " without using CPU", "，不占用 CPU") if first.activity is not None else NOTHING
    wait = first.wait if inner else workers[0].record.wait if workers else None
    # What a line of the data set waits in; bound-the-read is this cause's own name for bound-the-wait.
    of_wait = tuple(r for r in waits.remedies(wait) if r != "bound-the-wait") if wait is not None else ()
    if doing := waits.described(picture, wait):
        idle = Text(", ", "，") + doing + (Text(",", "") if workers else NOTHING)
    stack = words.stack_evidence(picture, first)
    if inner is not None and first.record.stacks is not None:
        stack = (words.stated(first.record.stacks, words.of_rank(first.number, words.frame(inner))), *stack[1:])
    return CAUSE.finding(
        standing="established" if any(w is not None and not w.ends for w in (wait, first.wait)) else "likely",
        says=Text("{who} {are} {what}{since}", "{who} {what}{since}").fill(
            who=text.ranks(numbers),
            are=words.verb(numbers, "is", "are"),
            what=what,
            since=idle + text.stall(picture) + text.while_waiting(picture),
        ),
        ranks=tuple(numbers),
        hosts=words.hosts(picture, numbers),
        where=at,
        evidence=(
            *(words.child_evidence(picture, first, worker) for worker in workers[:_SHOWN]),
            *stack,
            *words.activity_evidence(picture, first),
            *words.waiting_evidence(picture, at_most=1),
            *words.absence_evidence(picture, first),
        ),
        remedies=(*of_wait, *(("bound-the-read",) if inner else ("bound-the-read", "start-method", "loader-timeout") if workers else _FOR_WORKERS)),
        commands=waits.commands(wait),
    )


def _in_logs(view: LogView) -> Finding | None:
    return CAUSE.of_hits(view.hits_of(CAUSE.id), view) or collective_waits.held(view, CAUSE, "loader", _FOR_WORKERS)


CAUSE = cause("dataloader-deadlock", in_run=_in_run, in_logs=_in_logs)
