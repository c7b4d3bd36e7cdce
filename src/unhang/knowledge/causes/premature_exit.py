"""premature-exit: a rank left in order while others still needed it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.knowledge import words
from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, Found, LogView, RunView
from unhang.knowledge.rank_guards import guard_of_wait

if TYPE_CHECKING:
    from unhang.records.incident_view import RankView

CAUSE = cause("premature-exit")


def in_run(picture: RunView) -> Answer:
    from unhang.records.incident import silent

    left = sorted((r for r in picture.ranks if _left_in_order(picture, r)), key=picture.onset)
    if not left or guard_of_wait(picture) is not None:
        return None
    first = left[0]
    assert first.ended is not None
    when = first.ended.at_s
    harmed = [r for r in picture.ranks if r not in left and _needed(picture, r, left)]
    if not harmed:
        return None
    return Found(
        "left",
        ranks=[r.number for r in left],
        evidence=(
            *words.stack_evidence(picture, first, innermost=False),
            *words.waiting_evidence(picture),
            *[h for r in harmed for h in r.raised_hits][:1],
        ),
        where=None if first.only_last_seen and silent(first.record.last_beat_s, when) else picture.where(first),
        first=first,
        how="by-itself"
        if first.record.exit_frames and first.place is not None and first.place.code
        else "in-order"
        if first.ended.announced or first.record.done
        else "exit-code-0",
        when=when,
        at=words.at(picture, first),
        waiting=words.waiting(picture) if any(r.number in picture.waits for r in harmed) else None,
        others=[r.number for r in harmed],
        picture=picture,
        code=first.ended.exitcode if first.ended.announced else None,
    )


def in_logs(view: LogView) -> Answer:
    """A process that a launcher saw end in order, and others that then lost their peer: both are needed, for every training ends in order at last."""
    lost = (*view.hits_of("peer-lost"), *view.hits_of("store-disconnect"), *view.hits_of("collective-timeout"))
    failed = [e for e in view.exits if e.code not in (0, -15)]
    left = [e for e in view.exits if e.code == 0]
    said = view.hits_of(CAUSE.id)
    if not lost or not (left or said) or any(e.code < 0 for e in failed):
        return None
    pids = [str(e.at.pid) for e in left if e.at.pid is not None] + [p for h in said if (p := h.groups.get("pid"))]
    return Found(
        "in-logs",
        ranks=[e.at for e in left],
        standing="likely" if failed else "possible",
        evidence=(*([e.at for e in left] or said)[:1], lost[0]),
        pids=pids,
    )


def _left_in_order(picture: RunView, rank: RankView) -> bool:
    """Whether a rank came to the end of its script, left its process group, or ended by itself with exit code 0, whatever ended it then."""
    ended = rank.ended
    if ended is None or rank.raised is not None or (ended.exitcode and not ended.by_launcher):
        return False
    if rank.record.done:
        return True
    # os._exit(0) announces nothing: there the exit code itself has to be known.
    if not (ended.exitcode == 0 or (ended.announced and ended.exitcode is None)):
        return False
    # What a launcher is blamed for happens only after another process has ended.
    others = [r.ended.at_s for r in picture.ranks if r.ended and (r.raised is not None or r.ended.exitcode not in (0, None))]
    return not ended.by_launcher or (bool(others) and ended.at_s <= min(others))


def _needed(picture: RunView, rank: RankView, left: list[RankView]) -> bool:
    """Whether a rank still counted on those that left: it waits in a collective, or it failed only because of them."""
    if rank.raised is None:
        return rank.number in picture.waits
    if not rank.raised_symptom:
        return False
    # A process may end seconds after its connections, on a busy machine even after its peers have failed: the call says for whom they waited.
    front = picture.front
    absent = set(front.absent) if front is not None and rank.number in front.waiting else set()
    return (bool(absent) and absent <= {r.number for r in left}) or any(r.ended is not None and rank.raised.at_s >= r.ended.at_s for r in left)
