"""The application of `unhang top`: the job above, the ranks in the middle, what stands below by choice. Textual is imported here alone.

Files are read in a thread: a file system that hangs stops the clock on the screen, not the keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.geometry import Region, Size
from textual.message import Message
from textual.screen import ModalScreen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Input, Static

from unhang.errors import EXIT_OK, UnhangError, interrupted_by
from unhang.records.run_snapshot import Rank, RunSnapshot
from unhang.report.language import Language, refusal
from unhang.report.top import lines
from unhang.report.top.choosing import Chosen, choose
from unhang.report.top.words import HELP, LABELS, SORT_WORDS, SORTS, duration

# Reading that takes longer is said: a network file system, or a disk in need.
_SLOW_S = 2.0
# Whoever interrupts is not kept waiting by a loop that does not end, or by a terminal that takes nothing any more.
_ENDS_WITHIN_S = 3.0
# The other screen, the cursor, and what tells of the mouse, of the focus, of what is pasted and of keys.
_AS_FOUND = b"\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1004l\x1b[?2004l\x1b[<u"
# Below these heights first the panel, then the line on the rank under the cursor, is left out.
_LEAST_FOR_PANEL, _LEAST_FOR_DETAIL = 18, 12
# From this width on both panels stand side by side.
_BOTH_FROM = 120


class Ranks(ScrollView, can_focus=True):
    """The table. Only the lines on the screen are made: a thousand ranks cost as much as ten."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "move(-1000000000)", show=False),
        Binding("end", "move(1000000000)", show=False),
    ]

    def __init__(self, lang: Language, moved: Callable[[], None]) -> None:
        super().__init__()
        self._lang = lang
        self._moved = moved
        self._chosen = Chosen((), {})
        self._folded: list[Text] = []
        self._columns: tuple[lines.Column, ...] = ()
        # The cursor stays on its rank, wherever that one goes; on top it stays on top.
        self._on: int | None = None
        self._at = 0

    @property
    def at(self) -> Rank | None:
        """The rank under the cursor."""
        return self._chosen.shown[self._at] if self._at < len(self._chosen.shown) else None

    def show(self, chosen: Chosen) -> None:
        self._chosen = chosen
        place = {rank.rank: i for i, rank in enumerate(chosen.shown)}
        if self._on in place:
            self._at = place[self._on] if self._on is not None else 0
        else:
            self._at = min(self._at, max(len(chosen.shown) - 1, 0))
        self._lay_out()

    def _lay_out(self) -> None:
        width = max(self.size.width - 1, 20)
        self._columns = lines.columns(self._chosen.shown, width)
        self._folded = lines.folded(self._chosen, width, self._lang)
        self.virtual_size = Size(width, 1 + len(self._chosen.shown) + len(self._folded))
        self.refresh()

    def on_resize(self) -> None:
        self._lay_out()

    def action_move(self, by: int) -> None:
        self._at = max(0, min(self._at + by, len(self._chosen.shown) - 1))
        self._on = self.at.rank if self.at is not None and self._at > 0 else None
        below = self._at == len(self._chosen.shown) - 1
        # The heading stays in sight with the first rank, and what is folded with the last.
        first = 0 if self._at == 0 else self._at + 1
        self.scroll_to_region(Region(0, first, 1, 1 + (len(self._folded) if below else 0) + (1 if self._at == 0 else 0)), animate=False)
        self.refresh()
        self._moved()

    def action_page(self, by: int) -> None:
        self.action_move(by * max(self.size.height - 2, 1))

    def render_line(self, y: int) -> Strip:
        line = y + int(self.scroll_offset.y)
        width = self.size.width
        style = self.rich_style
        text: Text | None = None
        if line == 0:
            text = lines.heading(self._columns, self._lang) if self._columns else None
        elif line <= len(self._chosen.shown):
            text = lines.row(self._chosen.shown[line - 1], self._columns, self._lang)
            if line - 1 == self._at and self.has_focus:
                # Without colours it is seen as well.
                style += Style(reverse=True)
        elif line - 1 - len(self._chosen.shown) < len(self._folded):
            text = self._folded[line - 1 - len(self._chosen.shown)]
        if text is None:
            return Strip.blank(width, style)
        segments = list(text.render(self.app.console, end=""))
        return Strip(Segment.apply_style(segments, style)).adjust_cell_length(width, style)


class Help(ModalScreen[None]):
    """Any key leads back."""

    CSS = "Help { align: center middle; } Help > VerticalScroll { width: 78; max-width: 100%; height: auto; max-height: 100%; border: round; }"

    def __init__(self, lang: Language) -> None:
        super().__init__()
        self._lang: Language = lang

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(Text(HELP.of(self._lang)))

    def on_key(self, event: object) -> None:
        if getattr(event, "key", "") not in ("up", "down", "pageup", "pagedown"):
            self.dismiss()


class Top(App[None]):
    """`look` gives a new picture, and may raise UnhangError. Leave with `until_the_end`."""

    CSS = """
    Screen { layout: vertical; }
    #head { height: auto; max-height: 60%; }
    Ranks { height: 1fr; min-height: 3; }
    #detail { height: 2; }
    #panels { height: 6; }
    #panels > Static { width: 1fr; }
    #foot { height: 1; }
    #filter, #filter:focus { height: 1; border: none; padding: 0; display: none; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "interrupt", show=False, priority=True),
        Binding("q", "leave", show=False),
        Binding("s", "sort", show=False),
        Binding("slash", "filter", show=False),
        Binding("escape", "unfilter", show=False, priority=True),
        Binding("a", "everything", show=False),
        Binding("v", "view", show=False),
        Binding("p,space", "pause", show=False),
        Binding("question_mark,h,f1", "help", show=False),
    ]

    class Looked(Message):
        """A look has come back: with a picture, or with why there is none."""

        def __init__(self, picture: RunSnapshot | None, lost: str | None) -> None:
            super().__init__()
            self.picture, self.lost = picture, lost

    def __init__(
        self,
        look: Callable[[], RunSnapshot],
        *,
        first: RunSnapshot,
        every_s: float = 1.0,
        everything: bool = False,
        lang: Language = "en",
        plain: bool = False,
    ) -> None:
        super().__init__()
        self._look = look
        self.picture = first
        self._every_s = every_s
        self._everything = everything
        self._lang: Language = lang
        self._plain = plain
        self._sort = SORTS[0]
        self._pattern = ""
        self._paused = False
        self._shows_calls = False
        self._since: float | None = None
        self._lost: str | None = None
        self._taken = time.monotonic()
        self.failure: BaseException | None = None
        self._loop_of_app: asyncio.AbstractEventLoop | None = None
        self._number: int | None = None
        self._force: threading.Timer | None = None
        # How the terminal was.
        self._found: list[Any] | None = None
        # Kept, not looked for: while the page of help is on top, queries would look there.
        self._head, self._detail, self._foot = Static(id="head"), Static(id="detail"), Static(id="foot")
        self._events, self._calls, self._panels = Static(), Static(), Horizontal(id="panels")
        self._ranks = Ranks(lang, self._show_detail)
        self._filter = Input(id="filter")

    def until_the_end(self) -> int:
        """Run it; returns the exit code. Raises what `look` should not have raised."""
        with self._answers_signals():
            self.run()
        if self.failure is not None:
            raise self.failure
        return self.return_code or EXIT_OK

    # -- signals

    @contextlib.contextmanager
    def _answers_signals(self) -> Iterator[None]:
        """Also before there is a loop that could: what is raised by a handler may be lost in whatever runs then."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._early) for number in numbers}
        with contextlib.suppress(OSError, termios.error):
            self._found = termios.tcgetattr(sys.__stdin__.fileno()) if sys.__stdin__ is not None else None
        try:
            yield
        finally:
            if self._force is not None:
                self._force.cancel()
            for number, answer in before.items():
                signal.signal(number, answer)

    def _early(self, number: int, frame: FrameType | None) -> None:
        self._number = number
        if self._loop_of_app is not None:
            with contextlib.suppress(RuntimeError):
                self._loop_of_app.call_soon_threadsafe(self._interrupted, number)
        self._ends_anyway(number)

    def _signalled(self, number: int) -> None:
        self._ends_anyway(number)
        self._interrupted(number)

    def _ends_anyway(self, number: int) -> None:
        if self._force is None:
            self._force = threading.Timer(_ENDS_WITHIN_S, self._end_now, (number,))
            self._force.daemon = True
            self._force.start()

    def _end_now(self, number: int) -> None:
        """From another thread, with a terminal that may take nothing."""
        with contextlib.suppress(Exception):
            for stream in (sys.__stdin__, sys.__stderr__):
                if stream is not None and self._found is not None and stream.isatty():
                    termios.tcsetattr(stream.fileno(), termios.TCSANOW, self._found)
            if sys.__stderr__ is not None and select.select([], [sys.__stderr__], [], 0)[1]:
                os.write(sys.__stderr__.fileno(), _AS_FOUND)
        os._exit(interrupted_by(number))

    # -- what it consists of

    def compose(self) -> ComposeResult:
        yield self._head
        yield self._ranks
        yield self._detail
        with self._panels:
            yield self._events
            yield self._calls
        yield self._foot
        yield self._filter

    def on_mount(self) -> None:
        if self._plain and not self.no_color:
            from textual.filter import Monochrome

            self._filters.append(Monochrome())
        self._loop_of_app = asyncio.get_running_loop()
        if not self.is_headless and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._loop_of_app.add_signal_handler(number, self._signalled, number)
            if self._number is not None:
                self._interrupted(self._number)
        self._ranks.focus()
        self._draw()
        self.set_interval(self._every_s, self._again)

    def on_resize(self) -> None:
        self._draw()

    # -- looking

    def _again(self) -> None:
        """Time for another look, unless the last one is still under way."""
        if self._paused:
            return
        if self._since is None:
            self._since = time.monotonic()
            threading.Thread(target=self._read, name="unhang top", daemon=True).start()
        else:
            self._draw_foot()

    def _read(self) -> None:
        picture: RunSnapshot | None = None
        lost: str | None = None
        try:
            picture = self._look()
        except UnhangError as e:
            lost = str(e)
        except Exception as e:
            self.failure = e
        # The application may have ended meanwhile.
        with contextlib.suppress(RuntimeError):
            if self._loop_of_app is not None:
                self._loop_of_app.call_soon_threadsafe(self.post_message, self.Looked(picture, lost))

    def on_top_looked(self, looked: Looked) -> None:
        if not self._foot.is_attached:
            # It is being taken down.
            return
        picture, lost = looked.picture, looked.lost
        self._since = None
        if self.failure is not None:
            self.exit()
            return
        self._lost = lost
        if picture is not None:
            self._taken = time.monotonic()
            if not self._paused:
                self.picture = picture
        self._draw()

    # -- drawing

    def _draw(self) -> None:
        width, height = self.size
        both = width >= _BOTH_FROM
        self._panels.display = height >= _LEAST_FOR_PANEL
        self._panels.styles.height = rows = max(5, height // 4)
        self._calls.display, self._events.display = both or self._shows_calls, both or not self._shows_calls
        self._detail.display = height >= _LEAST_FOR_DETAIL
        self._put(self._head, lines.head(self.picture, width, self._lang)[: max(height // 2, 2)])
        chosen = choose(self.picture.ranks, by=self._sort, pattern=self._pattern, everything=self._everything)
        self._ranks.show(chosen)
        of_panel = width // 2 - 1 if both else width
        for place, name, made in ((self._events, "events", lines.events), (self._calls, "collectives", lines.collectives)):
            self._put(place, [Text(LABELS[self._lang][name], style="bold"), *made(self.picture, of_panel, rows - 1, self._lang)])
        self._show_detail()
        self._draw_foot()

    def _show_detail(self) -> None:
        at = self._ranks.at
        labels = LABELS[self._lang]
        nothing = [Text(labels["nothing_matches"] if self.picture.ranks else labels["no_ranks"], style="dim")]
        self._put(self._detail, lines.detail(at, self.size.width, self._lang) if at is not None else nothing)

    def _draw_foot(self) -> None:
        labels = LABELS[self._lang]
        now = time.monotonic()
        said = []
        if self._paused:
            said.append(labels["paused"])
        if self._lost is not None:
            said.append(labels["lost"].format(why=refusal(self._lost), t=duration(now - self._taken)))
        elif self._since is not None and now - self._since > _SLOW_S:
            said.append(labels["late"].format(t=duration(now - self._since)))
        if self._pattern:
            said.append(labels["filtered"].format(text=self._pattern))
        if self._sort != SORTS[0]:
            said.append(labels["sorted"].format(by=SORT_WORDS[self._lang][self._sort]))
        told = Text("  ".join(said), style="bold reverse" if said else "")
        line = Text.assemble(told, "  " if said else "", (labels["keys"], "dim"))
        self._put(self._foot, [line])

    @staticmethod
    def _put(place: Static, text: list[Text]) -> None:
        place.update(Text("\n", no_wrap=True, overflow="ellipsis").join(text))

    # -- keys

    def action_leave(self) -> None:
        self.exit()

    def action_interrupt(self) -> None:
        self._interrupted(signal.SIGINT)

    def _interrupted(self, number: int) -> None:
        self.exit(return_code=interrupted_by(number))

    def action_sort(self) -> None:
        self._sort = SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)]
        self._draw()

    def action_everything(self) -> None:
        self._everything = not self._everything
        self._draw()

    def action_view(self) -> None:
        self._shows_calls = not self._shows_calls
        self._draw()

    def action_pause(self) -> None:
        self._paused = not self._paused
        self._draw_foot()

    def action_help(self) -> None:
        self.push_screen(Help(self._lang))

    def action_filter(self) -> None:
        self._filter.display, self._filter.value = True, self._pattern
        self._foot.display = False
        self._filter.focus()

    def action_unfilter(self) -> None:
        if isinstance(self.screen, Help):
            self.pop_screen()
            return
        self._pattern = ""
        self._end_filter()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._pattern = event.value
        self._draw()

    def on_input_submitted(self) -> None:
        self._end_filter()

    def _end_filter(self) -> None:
        self._filter.display, self._foot.display = False, True
        self._ranks.focus()
        self._draw()
