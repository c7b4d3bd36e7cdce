"""What the logs tell of the job itself, in words: its size, NCCL's versions, ways and settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from unhang.knowledge import words
from unhang.knowledge.cause import LogView
from unhang.logs.log_facts import At
from unhang.logs.nccl_lines import RESULTS

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
