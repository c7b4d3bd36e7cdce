"""filesystem-shared: a path is missing or differs on a node, or a shared file system lost it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from unhang.knowledge import words
from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, Findings, Found, HostView, LogView
from unhang.logs import Traceback
from unhang.model import Evidence
from unhang.patterns import lazily

CAUSE = cause("filesystem-shared")

_QUOTED = lazily(r"No such file or directory: b?'(?P<path>[^']{1,200})'")
_MISSING_TYPES = ("FileNotFoundError", "NotADirectoryError", "HFValidationError")
# pdsh and ssh put the host in front of what a node printed. Without one it is the user's own shell, and a mistyped path.
_SCRIPT = "can't open file '/"


def in_logs(view: LogView) -> Answer:
    hits = [h for h in view.hits_of(CAUSE.id) if h.signature.needle != _SCRIPT or h.host is not None]
    return CAUSE.of_hits(hits, view) or _of_one_host(view) or _of_one_rank(view)


def _of_one_host(view: LogView) -> Found | None:
    """The ranks of one host miss a path that nobody else misses."""
    known = {(h.source, h.line) for hits in view.hits.values() for h in hits}
    missing = [t for t in view.tracebacks if t.type.rpartition(".")[2] in _MISSING_TYPES and (t.source, t.end) not in known]
    ranks = sorted({t.rank for t in missing if t.rank is not None})
    others = sorted(view.printed - set(ranks))
    if not _a_whole_host(ranks, others) or len({t.text for t in missing}) > 1 or any(t.rank is None for t in missing):
        return None
    first = missing[0]
    return Found(
        "one-host",
        ranks=ranks,
        evidence=(first, *_frame(first)),
        hosts=missing,
        others=others,
        said=first.text.strip()[:200],
    )


def _of_one_rank(view: LogView) -> Found | None:
    """One rank misses a path, and the others passed the same line: likely where they then waited in a collective.

    Rank 0 alone reads and writes much; samples differ by rank; a name with the rank's number in it is the script's own.
    """
    known = {(h.source, h.line) for hits in view.hits.values() for h in hits}
    missing = [t for t in view.tracebacks if t.type.rpartition(".")[2] == "FileNotFoundError" and not t.ignored and not t.chained]
    if len(missing) != 1 or (missing[0].source, missing[0].end) in known or not (rank := missing[0].rank):
        return None
    first, others = missing[0], view.printed - {rank}
    path = _QUOTED.search(first.text)
    if not others or (view.world_size or 2) < 2 or path is None or re.search(rf"(?<!\d)0*{rank}(?!\d)", path["path"]):
        return None
    if any("torch/utils/data/" in f.file or f.name in ("__getitem__", "__iter__", "__next__") for f in first.frames):
        return None
    waiting = {t.at.rank for t in view.timeouts} | {h.rank for hits in view.hits.values() for h in hits if h.signature.role == "symptom"}
    return Found(
        "one-rank",
        ranks=(rank,),
        standing="likely" if waiting & others else "possible",
        evidence=(first, *_frame(first)),
        hosts=(first,),
        rank=rank,
        path=path,
        others=others,
    )


def _frame(back: Traceback) -> tuple[Evidence, ...]:
    return (Evidence(source=back.source, line=back.line, text=words.frame(back.frames[-1])),) if back.frames else ()


def _a_whole_host(ranks: Sequence[int], others: Sequence[int]) -> bool:
    """Ranks are numbered host by host: a block of two or more that begins at a multiple of its length, while other ranks are well."""
    if len(ranks) < 2 or not others:
        return False
    whole = list(ranks) == list(range(ranks[0], ranks[0] + len(ranks)))
    return whole and ranks[0] > 0 and ranks[0] % len(ranks) == 0


def on_host(host: HostView) -> Findings:
    from unhang.facts import storage

    for place in host.storage.places:
        shown: dict[str, Any] = {
            "place": place,
            "purpose": storage.purpose(place.purpose),
            "network": place.kind in storage.NETWORK,
            "at": place.mount or place.path,
            "options": ",".join(place.options),
        }
        if place.problem is not None:
            yield Found("trouble", severity="error" if place.purpose != "Triton cache" else "warning", **shown)
        elif place.writable is False:
            working = any(p in place.purpose for p in ("working", "checkpoints", "temporary"))
            yield Found("read-only" if working else "cache-read-only", read_only="ro" in place.options, **shown)
        elif place.kind in storage.NETWORK and ("Triton" in place.purpose or "Inductor" in place.purpose):
            yield Found("shared-cache", **shown)
