"""The line that says who is waited for, why, and until when."""

from __future__ import annotations

from unhang.knowledge import waits
from unhang.launch import events
from unhang.text import NOTHING, Text, same

_DOES = {
    "stuck": Text("waits for something that nothing can release any more", "在等待再也没有什么能够释放的东西"),
    "stopped": Text("is stopped by a signal", "被信号暂停"),
    "sleep": Text("sleeps", "在睡眠"),
    "waits": Text("does not execute", "没有在执行"),
    "repeats": Text(
        "executes the same few lines (a very long call or loop, or one without end)", "反复执行同样的几行（极长的调用或循环，或没有尽头）"
    ),
    "works": Text("works", "在工作"),
    "user": Text("is held by a debugger or waits at a terminal", "被调试器暂停，或在等待终端输入"),
    "remote": Text("{wait} for ranks of other hosts", "在等待其他主机上的 rank"),
    "joined": Text("all wait in collectives, and no data moves", "都在集合通信里等待，没有数据流动"),
}


def says(event: events.Stalled) -> Text:
    """One sentence, with the time that is left."""
    one = len(event.ranks) == 1
    doing = _DOES[event.kind].fill(wait="waits" if one else "wait")
    if event.wait is not None and event.kind in ("stuck", "waits", "user"):
        waits_in = waits.described(None, event.wait)
        doing = Text("is {it}", "{it}").fill(it=waits_in) if waits_in else _DOES.get(event.wait.kind, doing)
    said = Text("{who} {doing}{place}{for_s}{others}{fate}", "{who} {doing}{place}{for_s}{others}{fate}")
    return said.fill(
        who=_ranks(event.ranks),
        doing=doing,
        place=Text(" at {it}", "（{it}）").fill(it=event.place) if event.place and one else NOTHING,
        for_s=Text(" for {s}", "，已 {s}").fill(s=clock(event.for_s)),
        others=Text("; {others} {wait}", "；{others} 在等待").fill(others=_ranks(event.waiting), wait="waits" if len(event.waiting) == 1 else "wait")
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
    said = Text("; the training is ended in {left} unless it goes on (--hang-after)", "；若无进展，{left} 后结束训练（--hang-after）")
    said = said.fill(left=clock(event.left_s))
    if event.met_before:
        said += Text("; unhang ended it here before", "；此前曾在此处被结束")
    if event.met_before and event.longer_s is not None:
        meant = Text(": if this pause is intended, use --hang-after {minutes}m", "：若这段停顿是有意的，请用 --hang-after {minutes}m")
        said += meant.fill(minutes=event.longer_s // 60)
    return said


def _ranks(ranks: tuple[int, ...]) -> Text:
    if len(ranks) == 1:
        return same(f"rank {ranks[0]}")
    shown = f"{', '.join(map(str, ranks[:8]))}{' ...' if len(ranks) > 8 else ''}"
    return Text(f"ranks {shown}", f"rank {shown}")
