"""The line that says who is waited for, why, and until when."""

from __future__ import annotations

from unhang.launch import events
from unhang.model import Wait
from unhang.text import NOTHING, Text, same

_WAITS = {
    "sleep": Text("sleeps", "在睡眠"),
    "socket": Text("waits for the network{of_what}", "在等待网络{of_what}"),
    "pipe": Text("waits for a pipe{of_what}{from_whom}", "在等待管道{of_what}{from_whom}"),
    "fifo": Text("waits for somebody to open the FIFO{of_what}", "在等待别的进程打开 FIFO{of_what}"),
    "file-lock": Text("waits for the file lock{of_what}{held}", "在等待文件锁{of_what}{held}"),
    "mutex": Text("waits for a lock or queue of its own process", "在等待自身进程内的锁或队列"),
    "semaphore": Text("waits for a lock or queue that it shares with other processes", "在等待与其他进程共享的锁或队列"),
    "child": Text("waits for its child process{from_whom}", "在等待子进程{from_whom}"),
    "terminal": Text("waits for input at a terminal", "在等待终端输入"),
    "file": Text("waits for the file system{of_what}", "在等待文件系统{of_what}"),
    "poll": Text("waits for an event", "在等待某个事件"),
}
_DOES = {
    "stuck": Text("waits for something that nothing can release any more", "在等待再也没有什么能够释放的东西"),
    "stopped": Text("is stopped by a signal", "被信号暂停"),
    "waits": Text("does not execute", "没有在执行"),
    "repeats": Text(
        "executes the same few lines (a very long call or loop, or one without end)", "反复执行同样的几行（极长的调用或循环，或没有尽头）"
    ),
    "works": Text("works", "在工作"),
    "user": Text("is held by a debugger or waits at a terminal", "被调试器暂停，或在等待终端输入"),
    "remote": Text("wait for ranks of other hosts", "在等待其他主机上的 rank"),
    "joined": Text("all wait in collectives, and no data moves", "都在集合通信里等待，没有数据流动"),
}


def says(event: events.Stalled) -> Text:
    """One sentence, with the time that is left."""
    one = len(event.ranks) == 1
    doing = _DOES[event.kind]
    if event.wait is not None and event.kind in ("stuck", "waits", "user"):
        doing = _of(event.wait)
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


def _of(wait: Wait) -> Text:
    holder = Text("pid {pid}", "pid {pid}") if wait.command is None else Text("pid {pid}, {command}", "pid {pid}，{command}")
    holder = NOTHING if wait.holder is None else holder.fill(pid=wait.holder, command=wait.command or "")
    return _WAITS[wait.kind].fill(
        of_what=Text(" {what}", " {what}").fill(what=wait.what) if wait.what else NOTHING,
        from_whom=Text(" ({holder})", "（{holder}）").fill(holder=holder) if holder else NOTHING,
        held=Text(", which {holder} holds", "，持有者为 {holder}").fill(holder=holder) if holder else NOTHING,
    )


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
