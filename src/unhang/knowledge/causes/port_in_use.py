"""port-in-use: the address that the job wants to listen on is taken."""

from __future__ import annotations

from collections.abc import Sequence

from unhang.knowledge.caught_exceptions import passed_over
from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, Findings, Found, HostView, LogView, RunView
from unhang.logs import Hit

CAUSE = cause("port-in-use")


def in_run(picture: RunView) -> Answer:
    return _of_hits(picture.hits_of(CAUSE.id)) if picture.incident.kind == "failure" else None


def in_logs(view: LogView) -> Answer:
    return _of_hits([h for h in view.hits_of(CAUSE.id) if not passed_over(view, h)])


def _of_hits(hits: Sequence[Hit]) -> Found | None:
    if not hits:
        return None
    port = next((p for h in hits if (p := h.groups.get("port"))), None)
    # Below 1024 are services of the system, sshd first of all: nobody ends those for a training.
    chosen = ("port-of-its-own",) if port is not None and int(port) < 1024 else ("another-port", "who-has-it", "once-per-host")
    # The line that names the port says most.
    best = sorted(hits, key=lambda h: "port" not in h.groups)
    return Found("in-use", ranks=hits, evidence=best[:2], remedies=chosen, by="here" if port else "", port=port)


# A large job takes thousands: each pair of ranks has several connections.
_FEW_PORTS = 4096


def on_host(host: HostView) -> Findings:
    from unhang.facts import ports

    seen = host.ports
    # In a worker of torchrun the store that stands there is the job's own; hosts that are not the first start none.
    starts = not seen.job.torchrun_worker and seen.job.first is not False
    holder = next((h for h in (*seen.listeners, *seen.connections) if starts and h.port == seen.store_port), None)
    if holder is not None:
        asked = seen.job.master_port is not None
        yield Found(
            "taken",
            severity="error" if asked and seen.job.first else "warning",
            remedies=("who-has-it", "another-port", *(("once-per-host",) if host.kind == "slurm" else ())),
            by="unknown" if holder.pid is None else "",
            seen=seen,
            asked=asked,
            holder=holder,
            command=holder.command or "unknown",
        )
    if seen.range_first is None or seen.range_last is None:
        return
    size = max(0, seen.range_last - seen.range_first + 1)
    if seen.range_first <= seen.store_port <= seen.range_last and not ports.is_reserved(seen, seen.store_port):
        yield Found("store-port-in-range", seen=seen, reserved=(*seen.reserved, seen.store_port))
    if seen.in_range is not None and size and seen.in_range > 0.8 * size:
        yield Found("nearly-used", seen=seen, size=size)
    elif size < _FEW_PORTS:
        yield Found("few-ports", size=size, seen=seen)
