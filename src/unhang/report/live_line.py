"""What `unhang run` shows while the training runs: the training's own output, a few lines of ours, and one live line.

The live line stands below the output on a terminal, and only while the training is not itself in the middle of a line
(a progress bar); elsewhere there is none. Everything is written to the file descriptors: a non-blocking one (a parent
that reads with asyncio or node) takes a part of what Python's buffered writers give it and fails on the rest.

`diagnosis/proven_in_logs` reads four lines back from logs, in both languages: what is tried, what was taken, what was taken back, and a good end.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import sys
import time
from pathlib import Path
from typing import IO, Any, Literal

from rich.console import Console

from unhang import fsio
from unhang.knowledge import seen
from unhang.knowledge.text import NOTHING, Text, same
from unhang.launch import events
from unhang.model import Finding
from unhang.report import language, screen, stall_line, terminal
from unhang.report.folding import cut, fold
from unhang.report.stall_line import clock

_BUFFER_BYTES = 1 << 16
# For a reader that is slow, on a non-blocking stream. What does not go out within it is dropped here; the logs have it.
PATIENCE_S = 5.0
# Of why a change of settings failed; the whole stands in solution.md.
_MOST_SAID = 200


class Live:
    """`output` and `tell` are what the supervisor calls; `close` ends the live line."""

    def __init__(
        self, *, prefix: bool = False, quiet: bool = False, output_to_stderr: bool = False, run_dir: str = "", console: Console | None = None
    ) -> None:
        self._run_dir = run_dir
        self._lang = language.spoken()
        self._prefix = prefix
        # A stream that was closed when we started is None.
        out, err = (getattr(stream, "buffer", None) for stream in (sys.stdout, sys.stderr))
        self._targets: dict[str, IO[bytes] | None] = {"out": err if output_to_stderr else out, "err": err}
        if quiet:
            self._targets = {"out": None, "err": None}
        self._console = console or screen.console(stderr=True)
        self._live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._line = b""
        # What was last shown in this attempt.
        self._shown_last: Finding | None = None
        self._shown = 0
        self._at_start = True
        self._patience: dict[int, float] = {}
        self._partial: dict[tuple[int | None, str], bytes] = {}
        # Changes that were not tried for one reason: a line for all of them.
        self._skipped: list[events.RungTried] = []

    def is_terminal(self, stream: Literal["out", "err"]) -> bool:
        """Whether the training's stream ends on a terminal; with prefixes it does not, lines are cut then."""
        target = self._targets[stream]
        return not self._prefix and target is not None and target.isatty()

    def output(self, rank: int | None, stream: Literal["out", "err"], data: bytes) -> None:
        """Pass on what the training wrote."""
        if self._prefix:
            key = (rank, stream)
            *whole, rest = (self._partial.get(key, b"") + data).split(b"\n")
            if len(rest) > _BUFFER_BYTES:
                whole.append(rest)
                rest = b""
            self._partial[key] = rest
            label = b"[launcher] " if rank is None else b"[rank %d] " % rank
            data = b"".join(label + line + b"\n" for line in whole)
        target = self._targets[stream]
        if target is None or not data:
            return
        self._hide()
        try:
            self._write(target, data)
        except OSError:
            # Whoever read our output has gone; the training goes on, its logs are kept.
            self._targets[stream] = None
            return
        self._at_start = data.endswith(b"\n")
        self._show()

    def tell(self, event: events.Event) -> None:
        """Say what has happened, where it is worth a line."""
        if isinstance(event, events.Pace):
            self._line = f"unhang: {_pace(event).of(self._lang)}".encode()
            self._hide()
            self._show()
            return
        is_skipped = isinstance(event, events.RungTried) and event.outcome == "skipped"
        if self._skipped and not (is_skipped and event.says == self._skipped[0].says):  # type: ignore[union-attr]
            self._say_skipped()
        if isinstance(event, events.RungTried) and is_skipped:
            self._skipped.append(event)
            return
        if isinstance(event, (events.Started, events.CaughtUp)):
            self._shown_last = None
        if isinstance(event, events.Drawn):
            self._print_verdict(event)
            return
        if isinstance(event, events.Finished):
            self._live = False
        said, style = _say(event)
        if text := said.of(self._lang):
            self._say(text, style, indent="  " if isinstance(event, events.RungTried) else "", folds=isinstance(event, events.RungTried))
        if isinstance(event, events.Finished) and event.run_dir:
            self._say(_records(event).of(self._lang), "dim")

    def close(self) -> None:
        """Give out what is left and take the live line away."""
        for (rank, stream), rest in list(self._partial.items()):
            if rest:
                self.output(rank, stream, b"\n")  # type: ignore[arg-type]
        self._say_skipped()
        self._line = b""
        self._hide()

    def _say(self, text: str, style: str, *, indent: str = "", folds: bool = False) -> None:
        """`folds`: in lines of the terminal's width. A command, and what `diagnosis/proven_in_logs` reads back, stay in one piece."""
        begin = f"unhang: {indent}"
        lines = fold(text, self._console.width, first=begin, deeper=" " * (len(begin) + 2)) if folds and self._console.is_terminal else [begin + text]
        with self._console.capture() as said:
            for line in lines:
                self._console.print(line, style=style, markup=False, soft_wrap=True)
        self._put(said.get())

    def _say_skipped(self) -> None:
        if self._skipped:
            titles = Text("; ".join(event.title for event in self._skipped), "；".join(event.title_zh or event.title for event in self._skipped))
            said = Text("{titles}: not tried: {why}", "{titles}：未测试：{why}").fill(titles=titles, why=_why(self._skipped[0]))
            self._say(said.of(self._lang), "dim", indent="  ", folds=True)
            self._skipped.clear()

    def _print_verdict(self, event: events.Drawn) -> None:
        """Print a verdict whole, and in one line if it is the one before with newer evidence."""
        primary, known = event.verdict.primary, self._shown_last
        self._shown_last = primary
        if primary is not None and known is not None and (primary.cause, primary.ranks, primary.where) == (known.cause, known.ranks, known.where):
            still = Text("still {cause}: {says}", "仍是 {cause}：{says}")
            self._say(still.fill(cause=primary.cause, says=Text(primary.says, primary.says_zh or primary.says)).of(self._lang), "yellow")
            return
        with self._console.capture() as said:
            again = f"unhang why --all --incident {event.incident} {_called(self._run_dir)}" if self._run_dir else "unhang why --all"
            terminal.render(event.verdict, self._console, lang=self._lang, again=again, brief=True)
        self._put(said.get())

    def _put(self, text: str) -> None:
        """Lines of ours, on a line of their own."""
        self._hide()
        if not self._at_start:
            text = "\n" + text
            self._at_start = True
        with contextlib.suppress(OSError):
            self._write(self._console.file, text)
        self._show()

    def _show(self) -> None:
        if self._live and self._line and self._at_start:
            line = self._line[: max(self._console.width - 1, 10)]
            self._raw(line if self._console.color_system is None else b"\x1b[2m" + line + b"\x1b[0m")
            self._shown = len(line)

    def _hide(self) -> None:
        if self._shown:
            self._raw(b"\r" + b" " * self._shown + b"\r")
            self._shown = 0

    def _raw(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self._console.file.fileno(), data)

    def _write(self, target: IO[Any], data: str | bytes) -> None:
        """Write all of it, or drop the rest where nobody takes it within PATIENCE_S. Raises OSError for a reader that is gone."""
        try:
            fd = target.fileno()
        except OSError:
            target.write(data)
            target.flush()
            return
        if isinstance(data, str):
            data = data.encode(getattr(target, "encoding", None) or "utf-8", "replace")
        left = memoryview(data)
        deadline = time.monotonic() + self._patience.get(fd, PATIENCE_S)
        while left:
            try:
                left = left[os.write(fd, left) :]
                self._patience[fd] = PATIENCE_S
            except BlockingIOError:
                poller = select.poll()
                poller.register(fd, select.POLLOUT)
                if not poller.poll(max(deadline - time.monotonic(), 0) * 1000):
                    # The training is watched from this thread: a reader that stays away is waited for once.
                    self._patience[fd] = 0.0
                    return


def _say(event: events.Event) -> tuple[Text, str]:
    """One line for an event and its style; an empty line for what is not worth one."""
    if isinstance(event, events.FirstStep):
        where = ", ".join(event.devices) + (f" ({event.backend})" if event.backend else "")
        said = Text("{ranks} on {where}; first step {after} s after the start", "{ranks}，位于 {where}；启动后 {after} 秒完成第一步")
        return said.fill(ranks=_count(event.ranks), where=where, after=f"{event.after_s:.1f}"), "green"
    if isinstance(event, events.Overridden):
        where = f" ({Path(event.place[0]).name}:{event.place[1]})" if event.place else ""
        said = Text("{what} in {ranks}{where}", "{ranks} 上 {what}{where}")
        return said.fill(what=f"{event.what} {event.was} -> {event.now}", ranks=_count(len(event.ranks)), where=where), "cyan"
    if isinstance(event, events.Ignored):
        return Text("{what} in {ranks}", "{what}（{ranks}）").fill(what=_not_done(event), ranks=_count(len(event.ranks))), "yellow"
    if isinstance(event, events.Stalled):
        return stall_line.says(event), "yellow"
    if isinstance(event, events.CaughtUp):
        return Text("moving again after {s} s", "{s} 秒后又有进展").fill(s=f"{event.after_s:.0f}"), "green"
    if isinstance(event, events.Opened):
        if event.kind == "interrupted":
            return NOTHING, ""
        return _OPENED[event.kind] + Text("; taking evidence", "；正在采集证据"), "yellow"
    if isinstance(event, events.Abandoned):
        return Text("that was none; the training goes on", "并非如此；训练继续"), "green"
    if isinstance(event, events.Restarting):
        return Text("starting again (restart {n} of {of})", "重新启动（第 {n} 次，共 {of} 次）").fill(n=event.attempt, of=event.of), "cyan"
    if isinstance(event, events.Climbing):
        share = Text(", {time} of it for your answer", "，其中 {time} 留给您回答").fill(time=clock(event.answer_s)) if event.answer_s else NOTHING
        said = Text(
            "{cause}: settings may answer it; trying them on this machine with {ranks}, {time} at most{share}",
            "{cause}：更改设置也许能解决；正在本机用 {ranks} 测试，最多 {time}{share}",
        )
        return said.fill(cause=event.cause, ranks=_count(event.ranks), time=clock(event.limit_s), share=share), "cyan"
    if isinstance(event, events.RungTried):
        marks = {"passed": (Text("works", "可行"), "green"), "failed": (Text("fails", "失败"), "yellow")}
        mark, style = marks.get(event.outcome, (Text("not decided", "未定"), "yellow"))
        measured = f", {event.busbw_gbps:.3g} GB/s" if event.busbw_gbps is not None else ""
        took = f" ({event.seconds:.1f} s{measured})" if event.seconds else ""
        title = Text(event.title, event.title_zh or event.title)
        said = Text("{title}: {mark}{took}", "{title}：{mark}{took}").fill(title=title, mark=mark, took=took)
        return said if event.outcome == "passed" else said + Text(": {why}", "：{why}").fill(why=_why(event)), style
    if isinstance(event, events.Asking):
        return Text(
            "an answer is waited for {time} at most; without one it starts again as it is", "最多等待回答 {time}；没有回答则按原样重新启动"
        ).fill(time=clock(event.within_s)), "cyan"
    if isinstance(event, events.FellBack):
        set_to = [f"{name}={shlex.quote(value)}" if value else f"{name} unset" for name, value in event.environment.items()]
        what = " ".join([*set_to, *map(shlex.quote, event.arguments)])
        says = Text(event.says, event.says_zh or event.says)
        return Text("{says}: from here on {what}", "{says}；从现在起使用 {what}").fill(says=says, what=what), "green"
    if isinstance(event, events.GaveUp):
        return Text("not starting again: {why}", "不再重新启动：{why}").fill(why=_told(event.why)), "red"
    if isinstance(event, events.Note):
        return _told(event.text, event.text_zh), "yellow"
    if isinstance(event, events.LastSeen):
        return seen.before_signal(event.signal, event.seen, event.still_s), "yellow"
    if isinstance(event, events.Forced):
        return seen.by_force(event.seen, event.after_s, by_us=event.by_us), "yellow"
    if isinstance(event, events.Finished):
        return _finished(event)
    return NOTHING, ""


_OPENED = {
    "hang": Text("nothing moves any more", "不再有任何进展"),
    "straggler": Text("waiting for a slow rank", "正在等待较慢的 rank"),
    "failure": Text("a rank has failed", "有 rank 失败"),
    "world-size": Text("this is not the training that was asked for", "这不是所要求的训练"),
}
_NOT_DONE = {
    "value": Text("{what}={value} is no value for it; ignored", "{what}={value}：值无效，已忽略"),
    "tensors": Text("{what} {value} left as it is: Gloo does not take its tensors", "{what} {value} 保持原样：Gloo 不接受它的张量"),
    "unknown": Text("{what} was not told of the {value}: this version is not known", "没有把 {value} 告诉 {what}：不认识这个版本"),
    "iterable": Text(
        "{what}={value} not applied: each worker would give out the whole iterable dataset",
        "未应用 {what}={value}：每个 worker 都会给出整个可迭代数据集",
    ),
    "workers": Text("{what}={value} not applied: the loader has no workers", "未应用 {what}={value}：该 DataLoader 没有 worker"),
}


def _told(text: str, text_zh: str = "") -> Text:
    """What was noted, with its Chinese: beside it, or where the table of sentences has it."""
    return Text(text, text_zh or language.refusal(text))


def _pace(event: events.Pace) -> Text:
    rate = Text("  {rate} steps/s", "  {rate} 步/秒").fill(rate=f"{event.steps_per_s:.2f}") if event.steps_per_s else NOTHING
    said = Text("step {step}{rate}  {ranks}  {time}", "第 {step} 步{rate}  {ranks}  {time}")
    return said.fill(step=event.step, rate=rate, ranks=_count(event.ranks), time=clock(event.elapsed_s))


def _why(event: events.RungTried) -> Text:
    return Text(cut(event.says, _MOST_SAID), cut(event.says_zh or event.says, _MOST_SAID))


def _not_done(event: events.Ignored) -> Text:
    said = _NOT_DONE.get(event.why) or Text("{what}={value} not applied: {why}", "未应用 {what}={value}：{why}")
    return said.fill(what=event.what, value=event.value, why=event.why)


def _finished(event: events.Finished) -> tuple[Text, str]:
    times = NOTHING if event.attempts == 1 else Text(", {n} attempts", "，共 {n} 次尝试").fill(n=event.attempts)
    if event.exitcode == 0:
        said = Text("training finished after {time}", "训练正常结束，用时 {time}").fill(time=clock(event.elapsed_s))
        return said + times, "green"
    said = Text("ended with exit code {code} after {time}", "以退出码 {code} 结束，用时 {time}").fill(
        code=event.exitcode, time=clock(event.elapsed_s)
    )
    return said + times, "red"


def _records(event: events.Finished) -> Text:
    """Where it can all be read again."""
    name = _called(event.run_dir)
    said = Text("records in {name}", "记录在 {name}").fill(name=name)
    if event.incidents:
        return said + same(f"; unhang why {name}")
    if event.interrupted:
        # In other words: whoever reads the log takes those for a verdict's.
        return said + Text(" (where its ranks were: unhang why {name})", "（当时各 rank 所在位置：unhang why {name}）").fill(name=name)
    return said


def _count(ranks: int) -> Text:
    return Text("1 rank" if ranks == 1 else f"{ranks} ranks", f"{ranks} 个 rank")


def _called(run_dir: str) -> str:
    """A run directory as a word of a command that is typed here."""
    path = Path(run_dir)
    with contextlib.suppress(ValueError, OSError):
        path = path.relative_to(Path.cwd())
    return fsio.as_argument(path)
