"""dataloader-deadlock: a data loader, or a worker of it, is stuck."""

from __future__ import annotations

from unhang.knowledge import collective_waits, waits, words
from unhang.knowledge.blocked_threads import held_back, line_in_data_set, workers_at_work
from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, Found, LogView, RunView

CAUSE = cause("dataloader-deadlock")

# Workers that the evidence names.
_SHOWN = 3
_FOR_WORKERS = ("loader-timeout", "start-method", "threads-in-workers")


def in_run(picture: RunView) -> Answer:
    if picture.incident.kind == "straggler":
        return None
    found = [r for r, state in held_back(picture) if state == "loader"]
    if not found:
        return CAUSE.of_raised(picture)
    first = found[0]
    inner = line_in_data_set(first)
    workers = workers_at_work(first)
    frame = inner or (workers[0].place if workers else first.place)
    wait = first.wait if inner else workers[0].record.wait if workers else None
    # What a line of the data set waits in; bound-the-read is this cause's own name for bound-the-wait.
    of_wait = tuple(r for r in waits.remedies(wait) if r != "bound-the-wait") if wait is not None else ()
    stack = words.stack_evidence(picture, first)
    if inner is not None and first.record.stacks is not None:
        stack = (words.stated(first.record.stacks, words.of_rank(first.number, words.frame(inner))), *stack[1:])
    return Found(
        "stuck",
        standing="established" if any(w is not None and not w.ends for w in (wait, first.wait)) else "likely",
        ranks=[r.number for r in found],
        where=picture.place(frame) if frame is not None else None,
        evidence=(
            *(words.child_evidence(picture, first, worker) for worker in workers[:_SHOWN]),
            *stack,
            *words.activity_evidence(picture, first),
            *words.waiting_evidence(picture, at_most=1),
            *words.absence_evidence(picture, first),
        ),
        remedies=(*of_wait, *(("bound-the-read",) if inner else ("bound-the-read", "start-method", "loader-timeout") if workers else _FOR_WORKERS)),
        commands=waits.commands(wait),
        picture=picture,
        first=first,
        what="inner" if inner else "worker" if workers else "workers",
        worker=next(iter(workers), None),
        described=waits.described(picture, wait),
        since=words.stall(picture) + words.while_waiting(picture),
    )


def in_logs(view: LogView) -> Answer:
    return CAUSE.of_hits(view.hits_of(CAUSE.id), view) or collective_waits.held(view, CAUSE, "loader", _FOR_WORKERS)
