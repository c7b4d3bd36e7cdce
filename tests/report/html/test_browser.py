"""The page in a real browser: what it draws, how it is moved, what it says to who cannot see it, and that nothing keeps it from answering."""

from __future__ import annotations

import base64
import itertools
import os
import pickle
from dataclasses import replace

import pytest
from tests.flight import jobs as dumped
from tests.report.html import chromium, jobs
from tests.report.html.test_of_dumps import crossed
from tests.report.html.test_page import HOSTILE, hostile
from tests.report.html.unpacking import unpacked

from unhang.diagnosis.recorders import examine
from unhang.report.html import render
from unhang.report.html.of_dumps import scene_of
from unhang.report.html.packing import pack
from unhang.report.html.scene import Divergence, Group

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

# Anything that takes longer than this is felt as frozen, on a machine of which others use most, too.
FROZEN_MS = 1000
WATCH = (
    "window.slow = []; new PerformanceObserver((l) => { for (const e of l.getEntries()) slow.push(Math.round(e.duration)); })"
    ".observe({type: 'longtask', buffered: true});"
)
FRAMES = "new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)))"
PAINTED = (
    "(async () => { const t = unhang.timeline; "
    f"do await {FRAMES};"
    " while (t.left > 0 || t.stale || t.overviewDone < t.lanes.rows.length); return true; })()"
)


@pytest.fixture(scope="module")
def browser():
    if chromium.find() is None:
        assert not os.environ.get("CI"), "CI tests in a browser: scripts/apt installs it"
        pytest.skip("there is no chromium here (scripts/apt installs it)")
    with chromium.browser() as running:
        yield running


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "report.html"
    path.write_text(render(*jobs.large()), "utf-8")
    return path


@pytest.fixture
def opened(browser, tmp_path):
    """Opens a page made of a verdict and a scene; it must have asked for nothing else, and complained of nothing."""
    pages = []

    def open_(made, *, lang="en", width=1280, height=900, **media):
        path = made
        if isinstance(made, tuple):
            path = tmp_path / f"report{len(pages)}.html"
            path.write_text(render(*made, lang=lang), "utf-8")
        page = browser.page()
        pages.append((page, path))
        page.size(width, height)
        page.media(**media)
        page.send("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        page.open(path)
        if page.evaluate("unhang.timeline !== null"):
            page.evaluate(PAINTED)
        return page

    yield open_
    for page, path in pages:
        page.evaluate(FRAMES)
        assert page.console == []
        assert {r for r in page.requests if r != "about:blank"} == {path.as_uri()}
        page.close()


def pixels(page, name: str, canvas: str = "unhang.timeline.surface") -> int:
    """How many pixels of a canvas have a colour of the style sheet."""
    return page.evaluate(
        f"(() => {{ const hex = getComputedStyle(document.documentElement).getPropertyValue('--{name}').trim();"
        " const want = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));"
        f" const c = {canvas}, copy = new OffscreenCanvas(c.width, c.height).getContext('2d', {{willReadFrequently: true}}); copy.drawImage(c, 0, 0);"
        " const data = copy.getImageData(0, 0, c.width, c.height).data;"
        " let found = 0; for (let i = 0; i < data.length; i += 4) if (want.every((v, k) => data[i + k] === v)) found++; return found; })()"
    )


def selected(page) -> dict | None:
    return page.evaluate("unhang.timeline.selected && (({rank, number, group, lane}) => ({rank, number, group, lane}))(unhang.timeline.selected)")


def shown(page, selector: str) -> str:
    return " ".join(page.evaluate(f"document.querySelector({selector!r}).innerText").split())


def test_it_opens_with_the_verdict_and_the_divergence_in_view(opened):
    page = opened(jobs.small())
    assert page.evaluate("document.title") == "Ranks issue different collectives, or different numbers of them · unhang"
    assert "rank 3 issued broadcast" in shown(page, "#verdict") and "broadcast" in shown(page, "#divergence")
    assert selected(page) == {"rank": 3, "number": 241, "group": 0, "lane": 3}
    assert "rank 3" in shown(page, "#details").lower() and "7 ranks: 0-2, 4-7" in shown(page, "#details")
    assert pixels(page, "odd") > 0 and pixels(page, "completed") > 0 and pixels(page, "waiting") > 0 and pixels(page, "missing-2") == 0
    assert shown(page, "#legend") == "issued something else waiting, not finished completed end not recorded: drawn to the next start"


@pytest.mark.parametrize("made", [jobs.small, jobs.gloo, lambda: jobs.large(20, 300)], ids=["small", "gloo", "missing"])
def test_the_page_reads_what_python_packed(opened, made):
    verdict, scene = made()
    page = opened((verdict, scene))
    back = unpacked(pack(scene))
    packed = pack(scene)
    for name, value in {
        "ops": [n for t in back for n in t.ops],
        "lines": [n for t in back for n in t.sites],
        "states": [n for t in back for n in t.states],
        "starts": [(s - packed.t0_ns) // packed.unit_ns for t in back for s in t.starts_ns],
    }.items():
        assert page.evaluate(f"Array.from(unhang.scene.{name})") == value, name


def test_the_worst_state_wins_every_pixel(opened, large):
    page = opened(large)
    for axis, height in itertools.product(("number", "time"), (1, 4, 30)):
        page.evaluate(
            f"unhang.timeline.onAxis('{axis}'), unhang.timeline.fit(), unhang.timeline.grow({height}), unhang.timeline.show(unhang.timeline.selected)"
        )
        page.evaluate(PAINTED)
        assert pixels(page, "missing-2") > 0, (axis, height)
    # The whole in one line, above the lanes.
    assert pixels(page, "missing-2", "unhang.timeline.overview") > 0


def test_single_odd_operations_are_seen_wherever_they_are(opened):
    """Two ranks to a pixel, and more than one operation: each of those that are odd is drawn, whichever of its pixel it is."""
    verdict, scene = jobs.mismatch(), jobs.job(1, 1500)
    tracks = tuple(replace(scene.tracks[0], rank=rank) for rank in range(1040))
    odd = [(5 + 13 * i, 700 + 3 * i) for i in range(79)]
    parted = tuple(Divergence(group=0, number=number, odd=(rank,)) for rank, number in odd)
    groups = (Group(name="0", members=tuple(range(1040))),)
    page = opened((verdict, replace(scene, tracks=tracks, groups=groups, divergences=parted)))
    for axis in ("number", "time"):
        page.evaluate(f"unhang.timeline.onAxis('{axis}'), unhang.timeline.fit()")
        page.evaluate(PAINTED)
        assert page.evaluate("[unhang.timeline.laneHeight, unhang.timeline.scale < 1]") == [0.5, True]
        rows = page.evaluate(
            "(() => { const t = unhang.timeline, found = new Set(), want = t.palette.plain[8][2];"
            " t.pixels.forEach((p, i) => { if (p === want) found.add(Math.floor(i / t.width)); }); return found.size; })()"
        )
        assert rows == len(odd), axis
    assert selected(page)["rank"] == 5


def test_1024_ranks_of_2000_operations_do_not_freeze_it(opened, large):
    page = opened(large)
    paints = page.evaluate("performance.getEntriesByType('paint').map((e) => e.name)")
    assert "first-contentful-paint" in paints
    assert page.evaluate("unhang.scene.total") == 1016 * 2000
    box = page.box("#lanes")
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.evaluate("unhang.timeline.fit(), document.querySelector('#lanes').focus()")
    page.evaluate(PAINTED)
    page.evaluate(
        "(() => { const t = unhang.timeline, draw = t.draw.bind(t); window.views = new Set();"
        " t.draw = () => { draw(); views.add([t.axis, t.x0, t.scale, t.y0, t.laneHeight].join()); }; })()"
    )
    for i in range(20):
        page.mouse("mouseWheel", x, y, deltaX=0, deltaY=-120 if i % 10 < 6 else 120, modifiers=2)
        page.mouse("mouseWheel", x, y, deltaX=0, deltaY=60 if i % 2 else -90)
        page.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
        page.mouse("mouseMoved", x - 60 + 13 * (i % 9), y - 40, button="left", buttons=1)
        page.mouse("mouseReleased", x - 60, y - 40, button="left", buttons=0, clickCount=1)
        page.evaluate(FRAMES)
        page.key("ArrowLeft", shift=True)
        page.key(("t", "+", "]", "-", "n", "+", "[")[i % 7])
        page.evaluate(FRAMES)
    page.evaluate("document.querySelector('#search').focus()")
    page.type("all_reduce")
    page.wait("unhang.timeline.searching")
    page.evaluate(PAINTED)
    print("long tasks:", page.evaluate("slow"), "views:", page.evaluate("views.size"))
    assert page.evaluate("views.size") > 30
    assert max(page.evaluate("slow"), default=0) < FROZEN_MS


def test_keys(opened):
    page = opened(jobs.small())
    page.evaluate("document.querySelector('#lanes').focus()")
    page.key("ArrowUp")
    page.key("ArrowLeft")
    assert selected(page) == {"rank": 2, "number": 240, "group": 0, "lane": 2}
    page.wait("document.querySelector('#said').textContent.includes('rank 2')")
    assert shown(page, "#said").startswith("rank 2 · default_pg (0) #240 · all_reduce 1 × Float · completed · train.py:219")
    page.key("Home")
    assert selected(page)["number"] == 1
    page.key("End")
    page.key("ArrowRight")
    assert selected(page)["number"] == 241
    page.key("ArrowDown")
    assert selected(page)["rank"] == 3
    for key in ("n", "p"):
        page.key(key)
        assert selected(page) == {"rank": 3, "number": 241, "group": 0, "lane": 3}
    before = page.evaluate("unhang.timeline.scale")
    page.key("+")
    assert page.evaluate("unhang.timeline.scale") > before
    page.key("0")
    assert page.evaluate("unhang.timeline.scale") < before
    page.key("t")
    assert page.evaluate("[unhang.timeline.axis, document.querySelector('input[name=axis]:checked').value]") == ["time", "time"]
    page.key("ArrowLeft")
    assert selected(page)["number"] == 240
    page.key("?")
    assert page.evaluate("document.querySelector('#keys').open")
    page.key("Escape")
    assert not page.evaluate("document.querySelector('#keys').open")
    page.key("Escape")
    assert selected(page) is None
    page.key("/")
    assert page.evaluate("document.activeElement.id") == "search"


def test_every_control_can_be_reached_by_the_tab_key(opened):
    page = opened(jobs.small())
    page.evaluate("document.body.focus()")
    reached = []
    for _ in range(40):
        page.key("Tab")
        reached.append(
            page.evaluate(
                "document.activeElement.id || document.activeElement.name || document.activeElement.className || document.activeElement.tagName"
            )
        )
    wanted = ("skip", "theme", "axis", "search", "to-divergence", "zoom-out", "zoom-in", "flatter", "taller", "fit", "help", "lanes", "ranks-rows")
    places = [reached.index(name) for name in wanted]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("text", "hits", "first"),
    [
        ("rank 3", 241, (3, 1)),
        ("#7", 8, (0, 7)),
        ("state:odd", 1, (3, 241)),
        ("BROADCAST", 1, (3, 241)),
        ("train.py:219", 8 * 48, (0, 5)),
        ("state:missing", 0, None),
        ("no such thing", 0, None),
    ],
)
def test_search(opened, text, hits, first):
    page = opened(jobs.small())
    page.evaluate("unhang.timeline.select(null), document.querySelector('#search').focus()")
    page.type(text)
    page.key("Enter")
    assert shown(page, "#hits") == (f"{hits} found" if hits else "nothing found")
    found = selected(page)
    assert (found and (found["rank"], found["number"])) == first
    if hits > 1:
        page.key("Enter")
        after = selected(page)
        page.key("Enter", shift=True)
        assert after != found and selected(page) == found
    page.key("Escape")
    assert page.evaluate("[unhang.timeline.searching, document.activeElement.id]") == [False, "lanes"]


def test_mouse(opened):
    page = opened(jobs.small())
    box = page.box("#lanes")
    gutter, lane = page.evaluate("[unhang.timeline.gutter, unhang.timeline.laneHeight]")
    x, y = box["x"] + gutter + 40, box["y"] + 26 + lane * 5.5
    page.click(x, y)
    found = selected(page)
    assert found["rank"] == 5
    page.mouse("mouseMoved", x, y)
    page.evaluate(FRAMES)
    assert f"rank 5 · default_pg (0) #{found['number']}" in shown(page, "#tip")
    before = page.evaluate("unhang.timeline.x0")
    page.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
    page.mouse("mouseMoved", x + 30, y, button="left", buttons=1)
    page.mouse("mouseMoved", x + 120, y, button="left", buttons=1)
    page.mouse("mouseReleased", x + 120, y, button="left", clickCount=1)
    assert page.evaluate("unhang.timeline.x0") < before and selected(page) == found
    scale, top = page.evaluate("[unhang.timeline.scale, scrollY]")
    page.mouse("mouseWheel", x, y, deltaX=0, deltaY=-200, modifiers=2)
    page.evaluate(FRAMES)
    assert page.evaluate("unhang.timeline.scale") > scale and page.evaluate("scrollY") == top


def test_the_table_of_ranks_has_all_and_draws_few(opened, large):
    page = opened(large)
    page.box("#ranks")
    assert page.evaluate("document.querySelector('#ranks-table').getAttribute('aria-rowcount')") == "1025"
    rows = "[...document.querySelectorAll('#ranks-table tbody tr:not(.spacer) th')].map((e) => Number(e.innerText))"
    assert page.evaluate(rows)[0] == 713 and len(page.evaluate(rows)) < 60
    page.evaluate("document.querySelector('th[data-column=rank] button').click()")
    assert page.evaluate(rows)[:3] == [0, 1, 2]
    page.evaluate("document.querySelector('th[data-column=rank] button').click()")
    assert page.evaluate(rows)[0] == 1023
    assert page.evaluate("[...document.querySelectorAll('[aria-sort]')].map((e) => [e.dataset.column, e.getAttribute('aria-sort')])") == [
        ["rank", "descending"]
    ]
    page.evaluate("document.querySelector('#ranks-rows').scrollTop = 1e9")
    page.wait(f"{rows}.at(-1) === 0")
    assert len(page.evaluate(rows)) < 60
    page.evaluate("document.querySelector('#ranks-table button[data-rank=\"4\"]').click()")
    assert selected(page) == {"rank": 4, "number": 2000, "group": 0, "lane": 4} and page.evaluate("document.activeElement.id") == "lanes"


def test_a_rank_without_a_recorder_is_never_shown_as_fine(opened):
    page = opened(jobs.large(200, 100))
    lane = page.evaluate("unhang.timeline.lanes.index.get(100)")
    page.evaluate(
        f"unhang.timeline.select(unhang.timeline.at(100, 0, 100)), unhang.timeline.grow(50), unhang.timeline.y0 = {lane}, unhang.timeline.clamp()"
    )
    page.evaluate(PAINTED)
    assert "no recorder: not known" in shown(page, "#details") and "8 ranks: 96-103" in shown(page, "#details")
    assert pixels(page, "unseen-2") > 0
    assert "no recorder: not known" in shown(page, "#legend")


def test_several_groups(opened):
    verdict, scene = jobs.small()
    second = [replace(t, group=1, first=1) for t in scene.tracks[:4]]
    groups = (*scene.groups, Group(name="1", desc="undefined", members=(0, 1, 2, 3)))
    page = opened((verdict, replace(scene, groups=groups, tracks=(*scene.tracks, *second))))
    assert page.evaluate("[...document.querySelector('#group').options].map((o) => o.text)") == ["all groups", "default_pg (0)", "group 1"]
    page.evaluate("(() => { const g = document.querySelector('#group'); g.value = 1; g.dispatchEvent(new Event('change')); })()")
    page.evaluate(PAINTED)
    assert page.evaluate("unhang.timeline.lanes.rows.length") == 4
    page.evaluate("(() => { const g = document.querySelector('#group'); g.value = -1; g.dispatchEvent(new Event('change')); })()")
    page.evaluate(PAINTED)
    assert page.evaluate("[unhang.timeline.axis, unhang.timeline.lanes.rows.length]") == ["time", 8]
    page.evaluate("document.querySelector('#to-divergence').click()")
    assert selected(page)["rank"] == 3


def test_what_it_says_to_who_cannot_see_it(opened):
    page = opened(jobs.small())
    tree = page.accessible()
    named = {(n["role"], n["name"]) for n in tree}
    assert ("heading", "Ranks issue different collectives, or different numbers of them") in named
    regions = {name.capitalize() for role, name in named if role == "region"}
    assert regions >= {
        "Ranks issue different collectives, or different numbers of them",
        "Not examined (1)",
        "Where the ranks parted",
        "Timeline",
        "Ranks",
        "Stacks",
        "Symptoms",
    }
    (canvas,) = (n for n in tree if n["role"] == "application")
    assert canvas["name"].startswith("Timeline of 8 ranks and 1,928 operations") and canvas["focusable"]
    assert [n for n in tree if n.get("live") == "polite"]
    assert sum(n["role"] == "rowheader" for n in tree) >= 8 and sum(n["role"] == "columnheader" for n in tree) >= 8
    unnamed = [n for n in tree if n["role"] in ("button", "searchbox", "combobox", "radio", "application", "region", "dialog") and not n["name"]]
    assert not unnamed
    levels = [n["level"] for n in tree if n["role"] == "heading"]
    assert levels[0] == 1 and levels.count(1) == 1 and all(b - a <= 1 for a, b in itertools.pairwise(levels))


def test_dark_and_light(opened):
    page = opened(jobs.small(), prefers_color_scheme="dark")
    back = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(back) == "rgb(15, 19, 24)" and pixels(page, "odd") > 0 and pixels(page, "canvas") > 0
    page.evaluate("document.querySelector('#theme').click()")
    page.evaluate(PAINTED)
    assert page.evaluate(back) == "rgb(244, 245, 247)" and pixels(page, "odd") > 0 and pixels(page, "canvas") > 0
    page.media(prefers_color_scheme="light")
    assert page.evaluate(back) == "rgb(244, 245, 247)"


@pytest.mark.parametrize("width", [320, 375, 768, 1280, 2200])
@pytest.mark.parametrize("made", [jobs.small, hostile], ids=["small", "hostile"])
def test_nothing_is_wider_than_the_window(opened, made, width):
    page = opened(made(), width=width)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate("document.querySelector('#lanes').clientWidth") <= width
    page.size(width + 200, 900)
    page.wait("unhang.timeline.width + unhang.timeline.gutter === document.querySelector('#view').clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth") == width + 200


def test_hostile_text_stays_text(opened):
    page = opened(hostile())
    assert page.evaluate("document.querySelectorAll('img, b, iframe').length") == 0
    assert "".join(HOSTILE.split()) in "".join(shown(page, "#verdict").split())
    assert "".join(HOSTILE.split()) in "".join(shown(page, "#details").split()) and "".join(HOSTILE.split()) in "".join(shown(page, "#ranks").split())
    box = page.box("#lanes")
    page.mouse("mouseMoved", box["x"] + 200, box["y"] + 60)
    page.evaluate(FRAMES)
    assert "".join(HOSTILE.split()) in "".join(shown(page, "#tip").split())


def test_no_other_script_is_run(browser, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(
        render(*jobs.small()).replace("</main>", "<script>window.foreign = 1</script><p onclick='window.foreign = 2' id=p>x</p></main>"), "utf-8"
    )
    page = browser.page()
    page.open(path)
    page.evaluate("document.querySelector('#p').click()")
    assert page.evaluate("window.foreign") is None
    assert any("Content Security Policy" in said for said in page.console)
    page.close()


def test_chinese(opened):
    page = opened(jobs.small(), lang="zh")
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    assert "已确定" in shown(page, "#verdict") and "在等待，未完成" in shown(page, "#legend") and "发出了别的操作" in shown(page, "#ranks")


def test_gloo_is_never_called_completed(opened):
    page = opened(jobs.gloo())
    said = shown(page, "#legend")
    assert "over, result not told" in said and "completed" not in said and "end not recorded" in said and "not kept by the recorder" in said
    assert pixels(page, "completed") == 0


def test_without_scripts_the_verdict_can_be_read(browser, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(render(*jobs.small()), "utf-8")
    page = browser.page()
    page.send("Emulation.setScriptExecutionDisabled", value=True)
    page.open(path, ready="document.readyState === 'complete'")
    text = shown(page, "body")
    assert "rank 3 issued broadcast" in text and "need JavaScript" in text and "evaluate.py:61 in sync_sampler" in text
    page.close()


def test_printing(opened):
    page = opened(jobs.large(300, 50), prefers_color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.querySelectorAll('#ranks-table tbody tr').length") == 200 and "and 100 more" in shown(page, "#ranks-more")
    assert page.evaluate("[document.documentElement.dataset.theme, document.querySelectorAll('details:not([open])').length]") == ["light", 0]
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("[document.documentElement.dataset.theme ?? null, document.querySelectorAll('#ranks-table tbody tr').length < 60]") == [
        None,
        True,
    ]
    paper = base64.b64decode(page.send("Page.printToPDF", printBackground=True)["data"])
    assert paper.startswith(b"%PDF") and paper.count(b"/Type /Page") > 3


def test_dumps_alone(opened, tmp_path):
    """Which host each is of, and when they were taken, nobody tells."""
    plan = dumped.Plan(world=16, tp=4, steps=12)
    (tmp_path / "dumps").mkdir()
    for rank, raw in dumped.run(plan, {5: [*plan.calls(5)[:60], None]}, ahead=2).items():
        if rank != 9:
            (tmp_path / "dumps" / f"rank_{rank}").write_bytes(pickle.dumps(raw, protocol=2))
    examined = examine(sorted((tmp_path / "dumps").iterdir()), drawn=True)
    page = opened((examined.verdict, scene_of(examined)))
    number = examined.outcome.number
    assert selected(page)["rank"] == 5 and f"#{number}" in shown(page, "#details") and "never came" in shown(page, "#details")
    assert (
        "no recorder: not known" in shown(page, "#details")
        and pixels(page, "unseen-2") > 0
        and "clocks of the hosts may differ" in shown(page, "#notes")
    )
    page.evaluate(f"unhang.timeline.select(unhang.timeline.at(0, unhang.timeline.selected.group, {number}))")
    page.evaluate(PAINTED)
    said = shown(page, "#details")
    assert "issued, not finished" in said and "/home/user/train.py:50 in step" in said and "START" in said.upper()
    assert "FOR" not in said.upper().split()
    assert page.evaluate("slow.every((ms) => ms < 1000)")


def test_it_opens_on_the_group_in_which_ranks_wait(opened, tmp_path):
    """Crossed groups: the default group has more calls, and nothing is wrong in it."""
    for rank, group in enumerate("xxy"):
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(crossed(rank, group), protocol=2))
    examined = examine(sorted(tmp_path.glob("rank_*")), drawn=True)
    page = opened((examined.verdict, scene_of(examined)))
    at = selected(page)
    assert page.evaluate("unhang.timeline.scene.groups[unhang.timeline.group].title").endswith("x")
    assert (at["rank"], at["number"]) == (0, 1) and "train.py:40" in shown(page, "#details")


def test_a_verdict_alone(opened):
    page = opened((jobs.mismatch(), None))
    assert "No call of a flight recorder was read" in shown(page, "#timeline")


def test_a_damaged_page_says_so_and_keeps_the_verdict(browser, tmp_path):
    path = tmp_path / "report.html"
    whole = render(*jobs.small())
    path.write_text(whole.replace('id="column-ops">', 'id="column-ops">AAAA', 1), "utf-8")
    page = browser.page()
    page.open(path, ready="document.querySelector('#loading').textContent.startsWith('The timeline cannot be shown')")
    assert "rank 3 issued broadcast" in shown(page, "#verdict") and page.evaluate("document.querySelector('#stage').hidden")
    page.close()
