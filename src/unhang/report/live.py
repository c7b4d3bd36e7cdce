"""What `unhang run` shows while the training runs: the training's own output, a few lines of ours, and one live line.

The live line stands below the output on a terminal, and only while the training is not itself in the middle of a line
(a progress bar); elsewhere there is none. Everything is written to the file descriptors: a non-blocking one (a parent
that reads with asyncio or node) takes a part of what Python's buffered writers give it and fails on the rest.
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

from unhang.launch import events
from unhang.report import screen, terminal
from unhang.report.folding import cut, fold

_BUFFER_BYTES = 1 << 16
# For a reader that is slow, on a non-blocking stream. What does not go out within it is dropped here; the logs have it.
PATIENCE_S = 5.0
# Of why a change of settings failed; the whole stands in solution.md.
_MOST_SAID = 200


class Live:
    """`output` and `tell` are what the supervisor calls; `close` ends the live line."""

    def __init__(self, *, prefix: bool = False, quiet: bool = False, output_to_stderr: bool = False, console: Console | None = None) -> None:
        self._prefix = prefix
        # A stream that was closed when we started is None.
        out, err = (getattr(stream, "buffer", None) for stream in (sys.stdout, sys.stderr))
        self._targets: dict[str, IO[bytes] | None] = {"out": err if output_to_stderr else out, "err": err}
        if quiet:
            self._targets = {"out": None, "err": None}
        self._console = console or screen.console(stderr=True)
        self._live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._line = b""
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
            data = self._prefixed(rank, stream, data)
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
            rate = f"  {event.steps_per_s:.2f} steps/s" if event.steps_per_s else ""
            self._line = f"unhang: step {event.step}{rate}  {_count(event.ranks)}  {_clock(event.elapsed_s)}".encode()
            self._hide()
            self._show()
            return
        is_skipped = isinstance(event, events.RungTried) and event.outcome == "skipped"
        if self._skipped and not (is_skipped and event.says == self._skipped[0].says):  # type: ignore[union-attr]
            self._say_skipped()
        if isinstance(event, events.RungTried) and is_skipped:
            self._skipped.append(event)
            return
        if isinstance(event, events.Drawn):
            self._print_verdict(event)
            return
        if isinstance(event, events.Finished):
            self._live = False
        text, style = _say(event)
        if text:
            self._say(text, style, indent="  " if isinstance(event, events.RungTried) else "", folds=isinstance(event, events.RungTried))
        if isinstance(event, events.Finished) and event.run_dir:
            self._say(_records(event), "dim")

    def close(self) -> None:
        """Give out what is left and take the live line away."""
        for (rank, stream), rest in list(self._partial.items()):
            if rest:
                self.output(rank, stream, b"\n")  # type: ignore[arg-type]
        self._say_skipped()
        self._line = b""
        self._hide()

    def _say(self, text: str, style: str, *, indent: str = "", folds: bool = False) -> None:
        """`folds`: in lines of the terminal's width. What holds a command, or `diagnosis/proven` reads back, is left to the terminal in one piece."""
        begin = f"unhang: {indent}"
        lines = fold(text, self._console.width, first=begin, deeper=" " * (len(begin) + 2)) if folds and self._console.is_terminal else [begin + text]
        with self._console.capture() as said:
            for line in lines:
                self._console.print(line, style=style, markup=False, soft_wrap=True)
        self._put(said.get())

    def _say_skipped(self) -> None:
        if self._skipped:
            titles = "; ".join(event.title for event in self._skipped)
            self._say(f"{titles}: not tried: {cut(self._skipped[0].says, _MOST_SAID)}", "dim", indent="  ", folds=True)
            self._skipped.clear()

    def _print_verdict(self, event: events.Drawn) -> None:
        with self._console.capture() as said:
            terminal.render(event.verdict, self._console)
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

    def _prefixed(self, rank: int | None, stream: str, data: bytes) -> bytes:
        key = (rank, stream)
        *whole, rest = (self._partial.get(key, b"") + data).split(b"\n")
        if len(rest) > _BUFFER_BYTES:
            whole.append(rest)
            rest = b""
        self._partial[key] = rest
        label = b"[launcher] " if rank is None else b"[rank %d] " % rank
        return b"".join(label + line + b"\n" for line in whole)


def _say(event: events.Event) -> tuple[str, str]:
    """One line for an event and its style; an empty line for what is not worth one."""
    if isinstance(event, events.Started):
        return "", ""
    if isinstance(event, events.FirstStep):
        where = ", ".join(event.devices)
        backend = f" ({event.backend})" if event.backend else ""
        return f"{_count(event.ranks)} on {where}{backend}; first step {event.after_s:.1f} s after the start", "green"
    if isinstance(event, events.Overridden):
        where = f" ({Path(event.place[0]).name}:{event.place[1]})" if event.place else ""
        return f"{event.what} {event.was} -> {event.now} in {_count(len(event.ranks))}{where}", "cyan"
    if isinstance(event, events.Ignored):
        return f"{_not_done(event)} in {_count(len(event.ranks))}", "yellow"
    if isinstance(event, events.Straggling):
        return (
            f"{_ranks(event.ranks)} slow but alive: {_ranks(event.waiting)} waiting for {event.for_s:.0f} s; giving it time",
            "yellow",
        )
    if isinstance(event, events.CaughtUp):
        return f"moving again after {event.after_s:.0f} s", "green"
    if isinstance(event, events.Opened):
        if event.kind == "interrupted":
            return "", ""
        said = {
            "hang": "nothing moves any more",
            "straggler": "waiting for a slow rank",
            "failure": "a rank has failed",
            "world-size": "this is not the training that was asked for",
        }
        return f"{said[event.kind]}; taking evidence", "yellow"
    if isinstance(event, events.Abandoned):
        return "that was none; the training goes on", "green"
    if isinstance(event, events.Restarting):
        return f"starting again (restart {event.attempt} of {event.of})", "cyan"
    if isinstance(event, events.Climbing):
        return (
            f"{event.cause}: settings may answer it; trying them on this machine with {_count(event.ranks)}, {_clock(event.limit_s)} at most",
            "cyan",
        )
    if isinstance(event, events.RungTried):
        return _tried(event)
    if isinstance(event, events.Asking):
        return f"an answer is waited for {_clock(event.within_s)} at most; without one it starts again as it is", "cyan"
    if isinstance(event, events.FellBack):
        return _fell_back(event), "green"
    if isinstance(event, events.GaveUp):
        return f"not starting again: {event.why}", "red"
    if isinstance(event, events.Note):
        return event.text, "yellow"
    if isinstance(event, events.Finished):
        return _finished(event)
    return "", ""


def _tried(event: events.RungTried) -> tuple[str, str]:
    mark, style = {"passed": ("works", "green"), "failed": ("fails", "yellow")}.get(event.outcome, ("not decided", "yellow"))
    measured = f", {event.busbw_gbps:.3g} GB/s" if event.busbw_gbps is not None else ""
    took = f" ({event.seconds:.1f} s{measured})" if event.seconds else ""
    why = "" if event.outcome == "passed" else f": {cut(event.says, _MOST_SAID)}"
    return f"{event.title}: {mark}{took}{why}", style


def _fell_back(event: events.FellBack) -> str:
    set_to = [f"{name}={shlex.quote(value)}" if value else f"{name} unset" for name, value in event.environment.items()]
    what = " ".join([*set_to, *map(shlex.quote, event.arguments)])
    return f"{event.says}: from here on {what}"


def _not_done(event: events.Ignored) -> str:
    said = {
        "value": f"{event.what}={event.value} is no value for it; ignored",
        "tensors": f"{event.what} {event.value} left as it is: Gloo does not take its tensors",
        "unknown": f"{event.what} was not told of the {event.value}: this version is not known",
        "iterable": f"{event.what}={event.value} not applied: each worker would give out the whole iterable dataset",
        "workers": f"{event.what}={event.value} not applied: the loader has no workers",
    }
    return said.get(event.why, f"{event.what}={event.value} not applied: {event.why}")


def _finished(event: events.Finished) -> tuple[str, str]:
    times = "" if event.attempts == 1 else f", {event.attempts} attempts"
    if event.exitcode == 0:
        return f"training finished after {_clock(event.elapsed_s)}{times}", "green"
    return f"ended with exit code {event.exitcode} after {_clock(event.elapsed_s)}{times}", "red"


def _records(event: events.Finished) -> str:
    """Where it can all be read again."""
    path = Path(event.run_dir)
    with contextlib.suppress(ValueError, OSError):
        path = path.relative_to(Path.cwd())
    name = shlex.quote(str(path))
    return f"records in {name}; unhang why {name}" if event.incidents else f"records in {name}"


def _count(ranks: int) -> str:
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


def _ranks(ranks: tuple[int, ...]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} is"
    return f"ranks {', '.join(map(str, ranks[:8]))}{' ...' if len(ranks) > 8 else ''} are"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
