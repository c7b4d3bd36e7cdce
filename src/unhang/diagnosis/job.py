"""What the logs tell of the job itself, in words: its size, NCCL's versions, ways and settings, how its processes ended, where they stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from unhang.diagnosis.unknown import SUPERVISE, TRANSPORT, WAITING
from unhang.frames import place
from unhang.knowledge import collective_waits, words
from unhang.knowledge.cause import LogView
from unhang.knowledge.text import Text, joined, msg, possible, ranks
from unhang.logs.log_facts import At, Stack
from unhang.logs.nccl_lines import RESULTS
from unhang.model import Evidence, Finding

MAX_VALUES = 12


def told(view: LogView) -> Iterator[tuple[str, str]]:
    """(what, said), a few lines; nothing where the logs tell nothing."""
    if view.world_size is not None:
        silent = sorted(set(range(view.world_size)) - view.printed) if view.printed else []
        # Ranks whose lines carry no prefix cannot be told apart.
        heard = "" if not silent or len(silent) == view.world_size else f"; no line is known to be of {words.ranks(silent)}"
        yield "world size", f"{view.world_size}{heard}"
    for what, values in (
        ("NCCL version", view.nccl.versions),
        ("NCCL interfaces", view.nccl.interfaces),
        ("NCCL transports", view.nccl.transports),
        ("NCCL settings", view.nccl.settings),
    ):
        if values:
            yield what, _values(values)
    traces = dict.fromkeys(t.text.rsplit("NCCL INFO ", 1)[-1].strip() for t in view.nccl.traces)
    for trace in islice(traces, MAX_VALUES):
        yield "NCCL returned", f"{trace} ({_result(trace)})"
    ends: dict[int, list[int]] = {}
    for e in view.exits:
        ends.setdefault(e.code, []).extend([e.at.rank] if e.at.rank is not None else [])
    for code, numbers in sorted(ends.items()):
        name = words.signal_name(code) if code < 0 else f"exit code {code}"
        yield "ended", f"{name}{f': {words.ranks(numbers)}' if numbers else ''}"


def _result(trace: str) -> str:
    number = trace.rpartition("-> ")[2][:1]
    return RESULTS.get(int(number), "unknown") if number.isdigit() else "unknown"


def _values(values: Mapping[str, Sequence[At]]) -> str:
    """Each value with whose it is, where not everybody has it."""
    parts = []
    for value, places in sorted(values.items(), key=lambda item: -len(item[1]))[:MAX_VALUES]:
        numbers = sorted({p.rank for p in places if p.rank is not None})
        hosts = sorted({p.host for p in places if p.host is not None})
        who = words.ranks(numbers) if numbers else ", ".join(hosts[:4])
        parts.append(f"{value} ({who})" if who and len(values) > 1 else value)
    more = len(values) - len(parts)
    return "; ".join(parts) + (f"; {more} more" if more > 0 else "")


# Communicators that were begun and never completed: which ranks began, and which never did.
@dataclass(frozen=True, kw_only=True)
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
_SHOWN = 4
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
        says = joined((collective_waits.stands(s) for s in alone[:_SHOWN]), msg(", ", "stack_summary"))
        if len(alone) > _SHOWN:
            says += msg(", and {n} more", n=len(alone) - _SHOWN)
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
        evidence=collective_waits.evidence(shown[:_SHOWN]),
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
