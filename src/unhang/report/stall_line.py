"""The line that says who is waited for, why, and until when."""

from __future__ import annotations

from unhang.i18n import NOTHING, Text, msg, same
from unhang.knowledge import waits
from unhang.launch import events

_DOES = {
    "stuck": msg("waits for something that nothing can release any more"),
    "stopped": msg("is stopped by a signal"),
    "sleep": msg("sleeps"),
    "waits": msg("does not execute"),
    "repeats": msg("executes the same few lines (a very long call or loop, or one without end)"),
    "works": msg("works", "stall_line"),
    "user": msg("is held by a debugger or waits at a terminal"),
    "remote": msg("{wait} for ranks of other hosts"),
    "joined": msg("all wait in collectives, and no data moves"),
}


def says(event: events.Stalled) -> Text:
    """One sentence, with the time that is left."""
    one = len(event.ranks) == 1
    doing = _DOES[event.kind].fill(wait="waits" if one else "wait")
    if event.wait is not None and event.kind in ("stuck", "waits", "user"):
        waits_in = waits.described(None, event.wait)
        doing = msg("is {it}", it=waits_in) if waits_in else _DOES.get(event.wait.kind, doing)
    return msg(
        "{who} {doing}{place}{for_s}{others}{fate}",
        who=_ranks(event.ranks),
        doing=doing,
        place=msg(" at {it}", it=event.place) if event.place and one else NOTHING,
        for_s=msg(" for {s}", s=clock(event.for_s)),
        others=msg("; {others} {wait}", others=_ranks(event.waiting), wait="waits" if len(event.waiting) == 1 else "wait")
        if event.waiting
        else NOTHING,
        fate=_fate(event),
    )


def clock(seconds: float) -> str:
    """Seconds as 0:08, 4:20 or 1:02:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _fate(event: events.Stalled) -> Text:
    if event.left_s is None:
        return NOTHING
    said = msg("; the training is ended in {left} unless it goes on (--hang-after)", left=clock(event.left_s))
    if event.met_before:
        said += msg("; unhang ended it here before")
    if event.met_before and event.longer_s is not None:
        said += msg(": if this pause is intended, use --hang-after {minutes}m", minutes=event.longer_s // 60)
    return said


def _ranks(ranks: tuple[int, ...]) -> Text:
    if len(ranks) == 1:
        return same(f"rank {ranks[0]}")
    shown = f"{', '.join(map(str, ranks[:8]))}{' ...' if len(ranks) > 8 else ''}"
    return msg("ranks {shown}", shown=shown)
