"""unhandled-generic: NCCL failed, and what it says of it, if anything, is the mark of no cause known here."""

from __future__ import annotations

from dataclasses import replace

from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, LogView, RunView
from unhang.knowledge.words import Text, msg
from unhang.logs.log_facts import At
from unhang.model import Evidence
from unhang.patterns import lazily

CAUSE = cause("unhandled-generic")

_LAST_ERROR = lazily(r"Last [Ee]rror:\s*(?P<said>\S[^\n]{0,500})")


def words(view: LogView) -> tuple[str, At] | None:
    """NCCL's own words about the first failure, and where they stand: behind "Last error:", else in the last warning before it."""
    first = next(iter(view.hits_of(CAUSE.id)), None)
    if first is None:
        return None
    quoted = [(said, at) for said, places in view.nccl.last_errors.items() for at in places]
    if quoted:
        return next(((said, at) for said, at in quoted if at.rank == first.rank), quoted[0])
    warned = [(said, at) for said, places in view.nccl.warnings.items() for at in places]
    before = [w for w in warned if w[1].source == first.source and (w[1].line or 0) < (first.line or 0)]
    return max(before, key=lambda w: w[1].line or 0, default=None)


_NONE = msg("NCCL failed and names no cause")


def _quoted(said: str | None) -> Text:
    return _NONE if said is None else msg("NCCL: {said}", said=said)


def in_run(picture: RunView) -> Answer:
    # What a rank raised is one text, with all its lines.
    hits = picture.hits_of(CAUSE.id)
    return CAUSE.of_hits(hits, says=_quoted(next((m["said"] for h in hits if (m := _LAST_ERROR.search(h.text)) is not None), None)))


def in_logs(view: LogView) -> Answer:
    hits = view.hits_of(CAUSE.id)
    said = words(view)
    if said is None:
        return CAUSE.of_hits(hits, view, says=_NONE)
    # Ranks of which other words are quoted did not meet this.
    others = {at.rank for words, places in view.nccl.last_errors.items() if words != said[0] for at in places} - {None, said[1].rank}
    found = CAUSE.of_hits([h for h in hits if h.rank not in others], view, says=_quoted(said[0]))
    if found is None:
        return None
    # torch puts the words on the line behind "Last error:"; NCCL's own warning says more of whom they are.
    at = view.nccl.warnings.get(said[0], (said[1],))[0]
    stands_there = said[0] in at.text
    quoted = Evidence(source=at.source, line=at.line if stands_there or at.line is None else at.line + 1, text=at.text if stands_there else said[0])
    return replace(found, evidence=(quoted, *found.evidence[:2]))
