"""What keeps a rank from the collective that the others wait in: the one question that several causes share the answer to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from unhang.frames import LOADER, Frame, inside, user_frame
from unhang.user_files import is_user_file

if TYPE_CHECKING:
    from unhang.records.incident import ThreadStack
    from unhang.records.incident_view import ChildView, IncidentView, RankView

State = Literal["stopped", "uninterruptible", "kept", "gil", "loader", "repeats", "busy", "idle", "unknown"]

_WAIT_FOR_PROCESSES = ("multiprocessing", "concurrent/futures", "subprocess")


def standstill(picture: IncidentView) -> bool:
    """Whether the incident is about waiting: the supervisor saw no progress, or a rank has waited so long that its collective timed out."""
    return picture.incident.kind in ("hang", "straggler", "interrupted") or any("collective-timeout" in picture.raised_as(r) for r in picture.raised)


def held_back(picture: IncidentView) -> tuple[tuple[RankView, State], ...]:
    """The ranks that keep the others waiting, and what each of them is doing."""
    if not standstill(picture):
        return ()
    stopped = [r for r in picture.ranks if r.stopped]
    return tuple((r, state_of(picture, r)) for r in (*stopped, *(m for m in picture.missing if not m.stopped)))


def state_of(picture: IncidentView, rank: RankView) -> State:
    if rank.stopped:
        return "stopped"
    if keeping(rank):
        return "kept"
    if rank.activity is None:
        return "loader" if in_loader(rank) else "unknown"
    if rank.uninterruptible:
        return "uninterruptible"
    if rank.busy and not (polls_a_lock(rank) and not rank.activity.computes):
        # Neither depends on how long it lasts: what is said at the first look still holds at the last.
        if rank.record.silent(picture.incident.at_s):
            return "gil"
        return "repeats" if rank.activity.repeats and rank.place is not None and rank.place.endless else "busy"
    return "loader" if in_loader(rank) else "idle"


def keeping(rank: RankView) -> tuple[ThreadStack, ...]:
    """The threads without whose end the process of a script that is over does not end."""
    over = any(f.name == "_shutdown" and inside(f, "threading") for f in rank.captured)
    return tuple(t for t in rank.stacks.threads if t.keeps and not t.main) if over and rank.stacks is not None else ()


def in_loader(rank: RankView) -> bool:
    return any(inside(f, LOADER) for f in rank.frames)


def polls_a_lock(rank: RankView) -> bool:
    """Whether it looks ten times a second for the lock file of an extension's build to vanish: it wakes up often, and does nothing."""
    return any(inside(f, "torch/utils/file_baton") and f.name == "wait" for f in rank.frames[-2:])


def workers_at_work(rank: RankView) -> tuple[ChildView, ...]:
    """The workers of a rank's data loader that have been asked for something and have not delivered it; () if the rank itself reads its data."""
    return tuple(c for c in rank.children if c.record.worker is not None and c.place is not None) if line_in_data_set(rank) is None else ()


def children_waited_for(rank: RankView) -> tuple[ChildView, ...]:
    """The processes below a rank that waits for one by multiprocessing or subprocess: those that have failed, else those at work."""
    user = max((i for i, f in enumerate(rank.frames) if is_user_file(f.file)), default=-1)
    if not any(inside(f, package) for f in rank.frames[user + 1 :] for package in _WAIT_FOR_PROCESSES):
        return ()
    failed = tuple(c for c in rank.children if c.record.exitcode is not None)
    return failed or tuple(c for c in rank.children if c.place is not None)


def line_in_data_set(rank: RankView) -> Frame | None:
    """The user's line below the data loader; None where the loader waits for another process."""
    last = max((i for i, f in enumerate(rank.frames) if inside(f, LOADER)), default=-1)
    return user_frame(rank.frames[last + 1 :]) if last >= 0 else None
