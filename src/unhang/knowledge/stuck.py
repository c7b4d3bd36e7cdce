"""What keeps a rank from the collective that the others wait in: the one question that several causes share the answer to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from unhang.records.frames import Frame, inside, user_frame

if TYPE_CHECKING:
    from unhang.records.picture import Picture, RankView

State = Literal["stopped", "uninterruptible", "gil", "loader", "busy", "idle", "unknown"]

LOADER = "torch/utils/data"


def standstill(picture: Picture) -> bool:
    """Whether the incident is about waiting: the supervisor saw no progress, or a rank has waited so long that its collective timed out."""
    return picture.incident.kind in ("hang", "straggler", "interrupted") or any("collective-timeout" in picture.raised_as(r) for r in picture.raised)


def held_back(picture: Picture) -> tuple[tuple[RankView, State], ...]:
    """The ranks that keep the others waiting, and what each of them is doing."""
    if not standstill(picture):
        return ()
    stopped = [r for r in picture.ranks if r.stopped]
    return tuple((r, state_of(picture, r)) for r in (*stopped, *(m for m in picture.missing if not m.stopped)))


def state_of(picture: Picture, rank: RankView) -> State:
    if rank.stopped:
        return "stopped"
    if rank.activity is None:
        return "loader" if in_loader(rank) else "unknown"
    if rank.uninterruptible:
        return "uninterruptible"
    if rank.busy and not (polls_a_lock(rank) and not rank.activity.computes):
        silent = not rank.record.answered and rank.record.last_beat_s is not None
        return "gil" if silent and picture.incident.kind not in ("straggler", "interrupted") else "busy"
    return "loader" if in_loader(rank) else "idle"


def in_loader(rank: RankView) -> bool:
    return any(inside(f, LOADER) for f in rank.frames)


def polls_a_lock(rank: RankView) -> bool:
    """Whether it looks ten times a second for the lock file of an extension's build to vanish: it wakes up often, and does nothing."""
    return any(inside(f, "torch/utils/file_baton") and f.name == "wait" for f in rank.frames[-2:])


def line_in_data_set(rank: RankView) -> Frame | None:
    """The user's line below the data loader; None where the loader waits for another process."""
    last = max((i for i, f in enumerate(rank.frames) if inside(f, LOADER)), default=-1)
    return user_frame(rank.frames[last + 1 :]) if last >= 0 else None
