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

from unhang import fsio
from unhang.i18n import in_language
from unhang.knowledge import seen
from unhang.knowledge.words import NOTHING, Text, joined, msg, same
from unhang.launch import events
from unhang.model import Finding
from unhang.report import language, screen, stall_line, terminal
from unhang.report.console import Console, cut, fold
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
                self._console.print(line, style=style)
        self._put(said.get())

    def _say_skipped(self) -> None:
        if self._skipped:
            titles = joined(event.title for event in self._skipped)
            said = msg("{titles}: not tried: {why}", titles=titles, why=_why(self._skipped[0]))
            self._say(said.of(self._lang), "dim", indent="  ", folds=True)
            self._skipped.clear()

    def _print_verdict(self, event: events.Drawn) -> None:
        """Print a verdict whole, and in one line if it is the one before with newer evidence."""
        primary, known = event.verdict.primary, self._shown_last
        self._shown_last = primary
        if primary is not None and known is not None and (primary.cause, primary.ranks, primary.where) == (known.cause, known.ranks, known.where):
            self._say(msg("still {cause}: {says}", cause=primary.cause, says=primary.says).of(self._lang), "yellow")
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
        return msg(
            "{ranks} on {where}; first step {after} s after the start", ranks=_count(event.ranks), where=where, after=f"{event.after_s:.1f}"
        ), "green"
    if isinstance(event, events.Overridden):
        where = f" ({Path(event.place[0]).name}:{event.place[1]})" if event.place else ""
        return msg("{what} in {ranks}{where}", what=f"{event.what} {event.was} -> {event.now}", ranks=_count(len(event.ranks)), where=where), "cyan"
    if isinstance(event, events.Ignored):
        return msg("{what} in {ranks}", what=_not_done(event), ranks=_count(len(event.ranks))), "yellow"
    if isinstance(event, events.Stalled):
        return stall_line.says(event), "yellow"
    if isinstance(event, events.CaughtUp):
        return msg("moving again after {s} s", s=f"{event.after_s:.0f}"), "green"
    if isinstance(event, events.Opened):
        if event.kind == "interrupted":
            return NOTHING, ""
        return _OPENED[event.kind] + msg("; taking evidence"), "yellow"
    if isinstance(event, events.Abandoned):
        return msg("that was none; the training goes on"), "green"
    if isinstance(event, events.Restarting):
        return msg("starting again (restart {n} of {of})", n=event.attempt, of=event.of), "cyan"
    if isinstance(event, events.Climbing):
        share = msg(", {time} of it for your answer", time=clock(event.answer_s)) if event.answer_s else NOTHING
        return msg(
            "{cause}: settings may answer it; trying them on this machine with {ranks}, {time} at most{share}",
            cause=event.cause,
            ranks=_count(event.ranks),
            time=clock(event.limit_s),
            share=share,
        ), "cyan"
    if isinstance(event, events.RungTried):
        marks = {"passed": (msg("works"), "green"), "failed": (msg("fails", "live_line"), "yellow")}
        mark, style = marks.get(event.outcome, (msg("not decided", "live_line"), "yellow"))
        measured = f", {event.busbw_gbps:.3g} GB/s" if event.busbw_gbps is not None else ""
        took = f" ({event.seconds:.1f} s{measured})" if event.seconds else ""
        title = same(event.title)
        said = msg("{title}: {mark}{took}", title=title, mark=mark, took=took)
        return said if event.outcome == "passed" else said + msg(": {why}", why=_why(event)), style
    if isinstance(event, events.Asking):
        return msg("an answer is waited for {time} at most; without one it starts again as it is", time=clock(event.within_s)), "cyan"
    if isinstance(event, events.FellBack):
        set_to = [f"{name}={shlex.quote(value)}" if value else f"{name} unset" for name, value in event.environment.items()]
        what = " ".join([*set_to, *map(shlex.quote, event.arguments)])
        says = same(event.says)
        return msg("{says}: from here on {what}", says=says, what=what), "green"
    if isinstance(event, events.GaveUp):
        return msg("not starting again: {why}", "live_line", why=_told(event.why)), "red"
    if isinstance(event, events.Note):
        return _told(event.text), "yellow"
    if isinstance(event, events.LastSeen):
        return seen.before_signal(event.signal, event.seen, event.still_s), "yellow"
    if isinstance(event, events.Forced):
        return seen.by_force(event.seen, event.after_s, by_us=event.by_us), "yellow"
    if isinstance(event, events.Finished):
        return _finished(event)
    return NOTHING, ""


_OPENED = {
    "hang": msg("nothing moves any more"),
    "straggler": msg("waiting for a slow rank"),
    "failure": msg("a rank has failed"),
    "world-size": msg("this is not the training that was asked for"),
}
_NOT_DONE = {
    "value": msg("{what}={value} is no value for it; ignored"),
    "tensors": msg("{what} {value} left as it is: Gloo does not take its tensors"),
    "unknown": msg("{what} was not told of the {value}: this version is not known"),
    "iterable": msg("{what}={value} not applied: each worker would give out the whole iterable dataset"),
    "workers": msg("{what}={value} not applied: the loader has no workers"),
}


def _told(text: str) -> Text:
    """What was noted, with its Chinese: its own, or where the table of sentences has it."""
    return text if isinstance(text, Text) else same(language.refusal(text))


def _pace(event: events.Pace) -> Text:
    rate = msg("  {rate} steps/s", rate=f"{event.steps_per_s:.2f}") if event.steps_per_s else NOTHING
    return msg("step {step}{rate}  {ranks}  {time}", step=event.step, rate=rate, ranks=_count(event.ranks), time=clock(event.elapsed_s))


def _why(event: events.RungTried) -> Text:
    return same(cut(in_language(event.says, language.spoken()), _MOST_SAID))


def _not_done(event: events.Ignored) -> Text:
    said = _NOT_DONE.get(event.why) or msg("{what}={value} not applied: {why}", "live_line")
    return said.fill(what=event.what, value=event.value, why=event.why)


def _finished(event: events.Finished) -> tuple[Text, str]:
    times = NOTHING if event.attempts == 1 else msg(", {n} attempts", n=event.attempts)
    if event.exitcode == 0:
        said = msg("training finished after {time}", time=clock(event.elapsed_s))
        return said + times, "green"
    said = msg("ended with exit code {code} after {time}", code=event.exitcode, time=clock(event.elapsed_s))
    return said + times, "red"


def _records(event: events.Finished) -> Text:
    """Where it can all be read again."""
    name = _called(event.run_dir)
    said = msg("records in {name}", name=name)
    if event.incidents:
        return said + same(f"; unhang why {name}")
    if event.interrupted:
        # In other words: whoever reads the log takes those for a verdict's.
        return said + msg(" (where its ranks were: unhang why {name})", name=name)
    return said


def _count(ranks: int) -> Text:
    return msg("1 rank") if ranks == 1 else msg("{n} ranks", n=ranks)


def _called(run_dir: str) -> str:
    """A run directory as a word of a command that is typed here."""
    path = Path(run_dir)
    with contextlib.suppress(ValueError, OSError):
        path = path.relative_to(Path.cwd())
    return fsio.as_argument(path)
