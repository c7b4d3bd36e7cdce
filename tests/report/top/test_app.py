"""The application on Textual's own pilot, on a small and on a large screen."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

pytest.importorskip("textual", reason="comes with the extra top")

from tests.report.top.pictures import TOLD, TROUBLE, picture, rank, thousand
from textual.pilot import Pilot

from unhang.errors import EXIT_INTERRUPTED, RunDirError
from unhang.report.top.app import Ranks, Top
from unhang.report.top.words import HELP

SIZES = [(80, 24), (160, 50)]
CALM = picture(*(rank(n, step=500 + n) for n in range(8)), monitored=True)
WRONG = picture(*(rank(n, "failed" if n == 5 else "waiting", waits_s=12.0) for n in range(8)), phase="wrong", verdict=TOLD, trouble=TROUBLE)


def drive(app: Top, keys: Callable[[Pilot], Awaitable[None]], size=(80, 24)) -> Top:
    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await keys(pilot)

    asyncio.run(run())
    return app


def text(app: Top) -> list[str]:
    return ["".join(segment.text for segment in strip).rstrip() for strip in app.screen._compositor.render_strips()]


def shown_ranks(app: Top) -> list[int]:
    return [r.rank for r in app.query_one(Ranks)._chosen.shown]


async def until(pilot: Pilot, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "\n".join(text(pilot.app))
        await pilot.pause(0.01)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("of", [CALM, WRONG, thousand(), picture()], ids=["calm", "wrong", "thousand", "empty"])
def test_everything_has_its_place(of, size):
    async def look(pilot):
        lines = text(pilot.app)
        assert len(lines) == size[1] and "train-20261121-031500" in lines[0]
        assert any(line.startswith(("rank state", "  rank")) or " state " in line for line in lines) or not of.ranks
        assert any("last events" in line for line in lines) and lines[-1].lstrip().startswith("q quit")
        if of.ranks:
            assert any(f"rank {shown_ranks(pilot.app)[0]}  node" in line for line in lines)
        both = any("last events" in line and "collectives" in line for line in lines)
        assert both == (size[0] >= 120)

    drive(Top(lambda: of, first=of), look, size)


def test_of_a_thousand_ranks_those_that_matter_come_first():
    async def look(pilot):
        app = pilot.app
        lines = text(app)
        at = next(i for i, line in enumerate(lines) if " state" in line)
        assert [line.split()[2] for line in lines[at + 1 : at + 4]] == ["failed", "silent", "late"]
        assert "... 1021 running, steps 500 to 502, slowest rank 0" in lines[at + 4]
        await pilot.press("a", "end")
        await pilot.pause()
        assert app.query_one(Ranks).at.rank == 1023 and any(line.strip().startswith("1023") for line in text(app))
        await pilot.press("home")
        await pilot.pause()
        assert app.query_one(Ranks).at.rank == 513 and any(" state" in line for line in text(app))

    drive(Top(thousand, first=thousand()), look)


def test_moving_sorting_filtering():
    async def look(pilot):
        app = pilot.app
        await pilot.press("down", "down", "up")
        assert app.query_one(Ranks).at.rank == 1
        await until(pilot, lambda: any("rank 1  node1" in line for line in text(app)))
        await pilot.press("s", "s")
        assert shown_ranks(app) == list(range(8)) and "sorted by step" in text(app)[-1]
        await pilot.press("slash", *"2-3")
        await pilot.pause()
        assert shown_ranks(app) == [2, 3]
        await pilot.press("enter", "q")
        assert app.return_code == 0

    async def leave_filter(pilot):
        await pilot.press("slash", *"xyz q", "escape")
        await pilot.pause()
        assert len(shown_ranks(pilot.app)) == 8 and pilot.app.is_running and "filter" not in text(pilot.app)[-1].partition("q quit")[0]

    drive(Top(lambda: CALM, first=CALM), look)
    drive(Top(lambda: CALM, first=CALM), leave_filter)


def test_the_cursor_stays_on_its_rank():
    pictures = [CALM]

    async def look(pilot):
        await pilot.press("down", "down", "down")
        pictures.append(replace(CALM, ranks=(*CALM.ranks[:6], replace(CALM.ranks[6], state="failed"), CALM.ranks[7])))
        await until(pilot, lambda: shown_ranks(pilot.app)[0] == 6)
        assert pilot.app.query_one(Ranks).at.rank == 3

    drive(Top(lambda: pictures[-1], first=CALM, every_s=0.02), look)


def test_pausing_holds_what_is_shown():
    pictures = [CALM]

    async def look(pilot):
        await pilot.press("p")
        pictures.append(WRONG)
        await pilot.pause(0.2)
        assert pilot.app.picture is CALM and "PAUSED" in text(pilot.app)[-1]
        await pilot.press("space")
        await until(pilot, lambda: pilot.app.picture is WRONG)

    drive(Top(lambda: pictures[-1], first=CALM, every_s=0.02), look)


def test_a_look_that_was_under_way_changes_nothing_that_is_held():
    begun, comes_back = threading.Event(), threading.Event()

    def slowly():
        begun.set()
        comes_back.wait(30)
        return WRONG

    async def look(pilot):
        await until(pilot, begun.is_set)
        await pilot.press("p")
        comes_back.set()
        await until(pilot, lambda: pilot.app._since is None)
        assert pilot.app.picture is CALM
        await pilot.press("p")
        await until(pilot, lambda: pilot.app.picture is WRONG)

    drive(Top(slowly, first=CALM, every_s=0.02), look)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_help_comes_whole_and_goes(lang):
    async def look(pilot):
        await pilot.press("question_mark")
        await pilot.pause()
        seen = "\n".join(text(pilot.app))
        # What lies below goes on.
        await until(pilot, lambda: pilot.app.picture is WRONG)
        assert all(line.strip() in seen for line in HELP.of(lang).splitlines())
        await pilot.press("x")
        await pilot.pause()
        assert HELP.of(lang).splitlines()[0] not in "\n".join(text(pilot.app))
        await pilot.press("v")
        await pilot.pause()
        assert any(line.startswith(("collectives", "集合通信")) for line in text(pilot.app))

    drive(Top(lambda: WRONG, first=CALM, lang=lang, every_s=0.02), look)


def test_a_directory_that_is_gone_is_said_and_what_was_seen_stays():
    def gone():
        raise RunDirError("there is no run directory here")

    async def look(pilot):
        await until(pilot, lambda: "there is no run directory here" in text(pilot.app)[-1])
        assert shown_ranks(pilot.app) == list(range(8))

    drive(Top(gone, first=CALM, every_s=0.02), look)


def test_reading_that_hangs_leaves_the_keys_alone(monkeypatch):
    monkeypatch.setattr("unhang.report.top.app._SLOW_S", 0.1)
    looks, comes_back = [], threading.Event()

    def hang():
        looks.append(1)
        comes_back.wait(30)
        return CALM

    async def look(pilot):
        await until(pilot, lambda: "reading takes" in text(pilot.app)[-1])
        await pilot.press("down", "q")
        assert len(looks) == 1

    assert drive(Top(hang, first=CALM, every_s=0.02), look).return_code == 0
    comes_back.set()


def test_ctrl_c_ends_it_from_everywhere():
    for keys in ([], ["slash", "a", "shift+home"], ["question_mark"]):

        async def look(pilot, keys=keys):
            await pilot.press(*keys, "ctrl+c")

        assert drive(Top(lambda: CALM, first=CALM), look).return_code == EXIT_INTERRUPTED


def test_a_fault_of_our_own_is_handed_on():
    def fault():
        raise ZeroDivisionError

    async def look(pilot):
        await until(pilot, lambda: pilot.app.failure is not None)

    assert isinstance(drive(Top(fault, first=CALM, every_s=0.02), look).failure, ZeroDivisionError)


@pytest.mark.parametrize("size", [(20, 5), (40, 10), (80, 13)])
def test_screens_that_are_too_small_show_what_fits(size):
    async def look(pilot):
        assert len(text(pilot.app)) == size[1]
        await pilot.resize_terminal(100, 30)
        await until(pilot, lambda: any("last events" in line for line in text(pilot.app)))

    drive(Top(lambda: WRONG, first=WRONG), look, size)
