"""host-oom-or-killed: a process was ended by SIGKILL, or host memory ran out."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from unhang.knowledge import srun_ranges, words
from unhang.knowledge.caught_exceptions import passed_over
from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, Findings, Found, HostView, LogView, RunView
from unhang.knowledge.kernel_pids import KILLED, is_of_a_rank
from unhang.knowledge.words import msg
from unhang.logs import Hit
from unhang.logs.log_facts import At
from unhang.model import Evidence, Finding
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.facts.kernel_log import Event
    from unhang.records.incident_view import RankView

CAUSE = cause("host-oom-or-killed")

_SIGKILL = -9
_SHELL = lazily(r"^Killed$|line \d+: +\S{1,20} Killed ")
_MEMORY = ("less-memory", "more-memory", "watch-memory")
_KILLED = ("find-the-killer", "watch-memory", "less-memory")
# What a rank of a training is called in a kernel log: 15 characters of the command or of the thread.
_OURS = lazily(r"py|torch|pt_|ray|vllm|sglang|deepspeed|accelerate|train|trtllm|nccl|mpi", re.IGNORECASE)
# What a rank takes of the host before it has loaded anything: torch alone some 300 MiB, with CUDA's context and NCCL 2 to 4 GiB.
_TINY_BYTES = 512 * 1024 * 1024
_WITH_CUDA_BYTES = 4 * 1024**3


def on_host(host: HostView) -> Findings:
    from unhang.facts import kernel_log, numa

    yield from _faulty_memory(host.events)
    seen = host.memory
    nodes = host.get(numa.SUBJECT)
    on_gpu = nodes is not None and bool(nodes.gpus)
    left = seen.left_bytes
    if left is not None and left < (_WITH_CUDA_BYTES if on_gpu else 2 * _TINY_BYTES):
        limited = seen.available_bytes is None or left < seen.available_bytes
        yield Found(
            "little-left-of-limit" if limited else "little-left",
            severity="error" if left < _TINY_BYTES else "warning",
            gib=max(64, 2 * (seen.cgroup_limit_bytes or 0) >> 30),
            left=left,
            seen=seen,
            on_gpu=on_gpu,
        )
    if seen.cgroup is not None and seen.oom_kills:
        yield Found("group-has-killed", count=seen.oom_kills, seen=seen)
    elif seen.host_oom_kills:
        killed = [e for e in host.events if e.kind == "oom-kill"]
        # Of a whole machine it may be anybody's; in a container nobody's that is here.
        last = next((e for e in reversed(killed) if _OURS.search(e.process or "")), killed[-1] if killed else None)
        ours = host.kind in ("bare", "systemd") and last is not None and kernel_log.recent(last) and _OURS.search(last.process or "")
        yield Found(
            "has-killed",
            severity="warning" if ours else "note",
            evidence=(Evidence(source="kernel log", text=last.text),) if last is not None else (),
            count=seen.host_oom_kills,
            last=last,
        )
    available, limit, committed = seen.available_bytes, seen.commit_limit_bytes, seen.committed_bytes
    if seen.overcommit == 2 and available is not None and limit is not None and committed is not None:
        promised = max(0, limit - committed)
        if promised < available // 2:
            yield Found("overcommit", promised=promised, available=available, limit=limit, committed=committed)


def _faulty_memory(events: Iterable[Event]) -> Findings:
    """What a machine tells of its last crash it tells while it starts: that is a note as soon as it has run for some hours."""
    faults = [e for e in events if e.kind == "memory"]
    for last in faults[-1:]:
        yield Found("faulty-memory", last=last, each=faults[-3:])


def in_run(picture: RunView) -> Answer:
    reported = _reported(picture)
    killed = [
        r
        for r in picture.gone
        # One with an exception was on its way out: a launcher that lost patience with it is not what ended the training.
        if r.ended and (r.ended.exitcode == _SIGKILL or (r.ended.exitcode is None and r.raised is None and not r.ended.announced and r in reported))
    ]
    if not killed:
        return _worker_killed(picture)
    first = killed[0]
    who, evidence = _killer(picture, killed)
    hits = [h for h in picture.hits_of(CAUSE.id) if h.source != picture.incident_source]
    return Found(
        "killed",
        ranks=[r.number for r in killed],
        evidence=(*evidence, *words.stack_evidence(picture, first, innermost=False), *hits[:1]),
        remedies=_MEMORY if who != "nobody" else ("find-the-killer", "watch-memory"),
        where=words.last_seen(picture, first),
        at=words.at(picture, first),
        who=who,
        somebody=picture.oom_kills_of_somebody[-1:],
        unread=picture.kernel is None,
        uncounted=picture.incident.oom_kills is None,
        picture=picture,
        first=first,
    )


def _worker_killed(picture: RunView) -> Finding | None:
    """A rank raises when a worker of its data loader was killed; the kernel log may tell by whom."""
    found = CAUSE.of_raised(picture)
    if found is None:
        return None
    pids = {int(pid) for r in picture.raised for h in r.raised_hits if (pid := h.groups.get("worker", "")).isdecimal()}
    told = [e for e in picture.kernel or () if e.kind == "oom-kill" and e.pid in pids and picture.incident.host_pids is not False]
    evidence = (Evidence(source=str(picture.kernel_source), line=e.line, text=e.text) for e in told[:1])
    return replace(found, evidence=(*found.evidence, *evidence), remedies=tuple(map(CAUSE.remedy, _MEMORY)) if told else found.remedies)


def in_logs(view: LogView) -> Answer:
    """Lines that say who did it speak before those that say only that it was SIGKILL; a launcher's exit code alone is enough for the latter."""
    hits = tuple(h for h in view.hits_of(CAUSE.id) if _is_ours(h, view) and not ("llocator" in h.signature.needle and passed_over(view, h)))
    # A launcher kills what does not leave after its SIGTERM.
    forced = {h.groups["pid"] for h in view.hits_of("launcher-teardown") if "forcefully exiting" in h.text and "pid" in h.groups}
    hits = tuple(h for h in hits if h.signature.remedies != _KILLED or h.groups.get("pid") not in forced)
    in_teardown = _in_teardown(view)
    hits = tuple(h for h in hits if h.signature.remedies != _KILLED or not in_teardown(h))
    killed = tuple(e for e in view.exits if e.code == _SIGKILL and str(e.at.pid) not in forced and not in_teardown(e.at))
    if hits:
        told = [h for h in hits if h.signature.remedies != _KILLED] or hits
        # Which task it was stands in srun's line; slurmstepd, which may print first, names none.
        told = sorted(told, key=lambda h: "tasks" not in h.groups)
        return srun_ranges.named(CAUSE.of_hits(srun_ranges.shortened(told), view), told[0], view)
    if not killed:
        return None
    return Found(
        "exit-code",
        ranks=[e.at for e in killed],
        evidence=[e.at for e in killed[:2]],
        hosts=[e.at for e in killed],
        first=killed[0],
    )


def _in_teardown(view: LogView) -> Callable[[Hit | At], bool]:
    """Whether Slurm or a shell tells of it behind what explains it: the step was cancelled, another task failed, a collective was given up."""
    cancelled = (h for h in view.hits_of("launcher-teardown") if " CANCELLED AT " in h.text)
    ended = _first_lines((*cancelled, *(e.at for e in view.exits if e.code not in (0, _SIGKILL, -signal.SIGTERM))))
    given_up = _first_lines(view.hits_of("collective-timeout"))

    def is_behind(killed: Hit | At) -> bool:
        before = ended if killed.text.lstrip().startswith("srun: error: ") else given_up if _SHELL.search(killed.text) else {}
        return killed.line is not None and before.get(killed.source, killed.line) < killed.line

    return is_behind


def _first_lines(told: Iterable[Hit | At]) -> dict[str, int]:
    """By source. A line may tell of thousands of tasks: each is not compared with each."""
    return {one.source: one.line or 0 for one in sorted(told, key=lambda one: one.line or 0, reverse=True) if one.line is not None}


def _is_ours(hit: Hit, view: LogView) -> bool:
    """Whether a line of the kernel is about a process of this training: by its name, or by the pid of one that a launcher saw killed."""
    name = hit.groups.get("name")
    if name is None or _OURS.search(name):
        return True
    pid = hit.groups.get("pid")
    return is_of_a_rank(hit, view) and any(e.code in KILLED and str(e.at.pid) == pid for e in view.exits)


def _reported(picture: RunView) -> list[RankView]:
    """Ranks of which a launcher wrote that SIGKILL ended them."""
    pids = {h.groups.get("pid") for h in picture.hits_of(CAUSE.id)}
    return [r for r in picture.ranks if str(r.record.pid) in pids]


def _killer(picture: RunView, killed: list[RankView]) -> tuple[str, list[Evidence]]:
    """Who did it, as far as the evidence goes, and the lines that say so."""
    events = [event for rank in killed if (event := picture.oom_kill_of(rank)) is not None]
    lines = [Evidence(source=picture.kernel_source or "", line=e.line, text=e.text) for e in (events[:1] or picture.oom_kills_of_somebody[-1:])]
    if events:
        return "kernel", lines
    if kills := picture.incident.oom_kills:
        # Inside a container the kernel's log shows other pids, or cannot be read at all; the counter of the cgroup is ours.
        took = msg("the OOM killer took {n} process{es} of this memory cgroup", n=kills, es="es" if kills > 1 else "")
        return "counted", [words.stated(picture.incident_source, took)]
    return "nobody", lines
