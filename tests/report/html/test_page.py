"""The page: all of the verdict, nothing from elsewhere, no text that becomes markup, colours that can be told apart."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources

import pytest
from tests.chinese import both
from tests.report.html import jobs

from unhang.knowledge import words
from unhang.model import Evidence, Finding, Input, NotExamined, Remedy, Verdict
from unhang.report import markdown
from unhang.report.html import PAGE, _json, _static, render
from unhang.report.html.scene import Fact, Facts, Group, Operation, RankRow, Scene, Side, StackGroup, StackLine

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'><b>&lt;{{script}}]]><!--\u2028\U0001f680"


class Read(HTMLParser):
    """What a browser without scripts makes of it: elements, their attributes, and the text that is shown."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.shown: list[str] = []
        self.scripts: dict[str, str] = {}
        self.styles: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "input", "br", "hr"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"{tag} closes what it did not open"

    def handle_data(self, text):
        if self.open[-1:] == ["script"]:
            attributes = self.elements[-1][1]
            self.scripts[attributes.get("id") or attributes["type"]] = text
        elif self.open[-1:] == ["style"]:
            self.styles.append(text)
        else:
            self.shown.append(text)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.shown).split())

    def attribute(self, tag: str, **wanted: str) -> list[dict[str, str | None]]:
        return [a for t, a in self.elements if t == tag and all(a.get(k.replace("_", "-")) == v for k, v in wanted.items())]


def hostile() -> tuple[Verdict, Scene]:
    finding = Finding(
        cause=HOSTILE,
        standing="possible",
        says=HOSTILE,
        ranks=(1,),
        hosts=(HOSTILE,),
        where=HOSTILE,
        evidence=(Evidence(source=HOSTILE, text=HOSTILE, line=3),),
        remedies=(Remedy(id="a", says=both(HOSTILE, HOSTILE), command=HOSTILE, verify=HOSTILE, env={"A": HOSTILE}),),
    )
    verdict = Verdict(
        primary=finding,
        contributing=(finding,),
        symptoms=(finding,),
        not_examined=(NotExamined(what=HOSTILE, why=HOSTILE),),
        inputs=(Input(source=HOSTILE, kind="log", bytes=1),),
    )
    _, made = jobs.small()
    line = StackLine(file=HOSTILE, line=1, name=HOSTILE, code=HOSTILE, own=True)
    side = Side(ranks=(3,), operation=HOSTILE, says=HOSTILE, site=HOSTILE, doing="odd")
    scene = replace(
        made,
        title=HOSTILE,
        taken=HOSTILE,
        groups=(Group(name=HOSTILE, desc=HOSTILE + "x", members=made.groups[0].members),),
        operations=tuple(Operation(name=HOSTILE if o.name else "", says=HOSTILE) for o in made.operations),
        sites=tuple(HOSTILE if s else "" for s in made.sites),
        ranks=tuple(RankRow(rank=r.rank, concern=r.concern, host=HOSTILE, says=HOSTILE, where=HOSTILE) for r in made.ranks),
        divergences=(replace(made.divergences[0], sides=(side,)),),
        stacks=(StackGroup(ranks=(0,), lines=(line,)),),
        facts=(Facts(title="run", facts=(Fact(name=HOSTILE, value=HOSTILE),)),),
    )
    return verdict, scene


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("made", [jobs.small, jobs.gloo, hostile], ids=["small", "gloo", "hostile"])
def test_no_text_becomes_markup(made, lang):
    page = Read(render(*made(), lang=lang))
    assert not page.open
    plain = Read(render(*jobs.small(), lang=lang))
    tags = {tag for tag, _ in page.elements}
    assert tags <= {tag for tag, _ in plain.elements} | {"article", "h4"} and not tags & {"img", "b", "iframe", "object", "svg", "link", "base"}
    assert len(page.attribute("script")) == 6 and set(page.scripts) == set(plain.scripts)
    assert not [
        (t, a) for t, attributes in page.elements for a in attributes if a.startswith("on") or a in ("style", "srcdoc", "action", "formaction")
    ]


def test_hostile_text_is_shown_as_it_is():
    page = Read(render(*hostile()))
    shown = HOSTILE.replace("\u2028", "")
    assert page.text.count(shown) >= 15
    assert {b["data-copy"] for b in page.attribute("button") if "data-copy" in b} == {f"A={shown} {shown}"}
    assert json.loads(page.scripts["scene"])["operations"][1] == [HOSTILE, HOSTILE]


@pytest.mark.parametrize("made", [jobs.small, lambda: (jobs.mismatch(), None)], ids=["whole", "verdict alone"])
def test_nothing_is_fetched_and_only_its_own_script_and_style_are_allowed(made):
    text = render(*made())
    page = Read(text)
    attributes = [(t, a, v) for t, attrs in page.elements for a, v in attrs.items()]
    assert not [x for x in attributes if x[1] in ("src", "srcset", "poster", "background")]
    assert {v for _, a, v in attributes if a == "href"} == {"#timeline"}
    (style,) = page.styles
    script = page.scripts["module"]
    assert not re.search(r"url\(|@import|@font-face", style)
    assert not re.search(r"\bfetch\(|XMLHttpRequest|WebSocket|sendBeacon|import\(|\bimport\b.*from|https?:", script)
    (policy,) = (a["content"] for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    hashes = {f"'sha256-{base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()}'" for part in (style, script)}
    assert policy.startswith("default-src 'none'; ") and hashes == set(re.findall(r"'sha256-[^']+'", policy))
    assert "unsafe" not in policy and "*" not in policy


def test_scripts_make_texts_and_no_markup():
    folder = resources.files("unhang.report.html")
    code = "".join(f.read_text("utf-8") for f in folder.iterdir() if f.name.endswith(".js"))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|DOMParser|createContextualFragment|\beval\b|new Function|setHTML", code)
    assert "</script" not in code.lower() and "<!--" not in code
    # Each label that they ask for is there.
    asked = {*re.findall(r"labels\.(\w+)", code), *re.findall(r'word\(\w+(?:\.\w+)?, "(\w+)"', code)}
    sent = json.loads(Read(render(*jobs.small())).scripts["scene"])["labels"]
    assert len(asked) > 15 and asked <= set(sent)


def test_every_static_file_is_used_and_in_the_package():
    names = {f.name for f in resources.files("unhang.report.html").iterdir() if f.name.endswith((".js", ".css", ".html"))}
    text = render(*jobs.small())
    asked = {*re.findall(r'(?:include|from) "(\w+\.html)"', "".join(map(_static, sorted(n for n in names if n.endswith(".html"))))), "page.html"}
    assert asked == {n for n in names if n.endswith(".html")}
    for name in (n for n in names if not n.endswith(".html")):
        assert resources.files("unhang.report.html").joinpath(name).read_text("utf-8") in text, name
    assert not re.search(r"\{[{%#]", render(*jobs.small()))


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("verdict", [jobs.mismatch(), jobs.stuck(713, (96, 97)), hostile()[0], Verdict(primary=None)])
def test_it_holds_all_that_markdown_holds(verdict, lang):
    page = Read(render(verdict, lang=lang)).text.replace(" ", "")
    plain = re.sub(r"\\(.)", r"\1", markdown.render(verdict, lang=lang)) if verdict.primary is None or verdict.primary.cause != HOSTILE else ""
    for line in plain.splitlines():
        for part in re.split(r"`+ ?| ?`+|\*\*|: |:$|^#+ |^ *- |\(|\)|, ", line):
            part = part.replace(" bytes", "").replace(" ", "")
            assert part in page or (part.isdigit() and f"{int(part):,}" in page), part
    for finding in filter(None, (verdict.primary, *verdict.contributing, *verdict.symptoms)):
        for text in (finding.says, *(e.text for e in finding.evidence), finding.where or ""):
            assert "".join(text.split()) in "".join(page.split())


def test_without_a_recorder_it_says_so_and_shows_no_table():
    page = Read(render(jobs.mismatch()))
    assert PAGE["en"]["no_timeline"] in page.text
    assert not page.attribute("canvas") and not page.attribute("table", id="ranks-table")
    whole = Read(render(*jobs.small()))
    assert PAGE["en"]["no_timeline"] not in whole.text and len(whole.attribute("canvas")) == 2


def test_what_was_not_examined_stands_below_the_verdict_and_none_is_lost():
    left = tuple(NotExamined(what=f"thing {i}", why=f"reason {i}.", unread=i == 19) for i in range(20))
    page = Read(render(replace(jobs.mismatch(), not_examined=left), jobs.small()[1])).text
    assert all(f"thing {i} reason {i}." in page for i in range(20))
    assert page.index("thing 19") < page.index("thing 0")
    assert page.index("rank 3 issued broadcast") < page.index("thing 0") < page.index(PAGE["en"]["divergence"]) < page.index("One lane for each rank")


def test_sizes():
    """Room for a whole job in a mail; a page without a timeline is small."""
    assert len(render(*jobs.small())) < 140_000
    assert len(render(jobs.mismatch())) < 110_000
    assert len(render(*jobs.large(256, 1000))) < 1_400_000


def test_left_out_is_told():
    text = render(*jobs.small(), max_bars=800)
    assert json.loads(Read(text).scripts["scene"])["left_out"] == 8 * 241 - 800
    assert "{n}" in PAGE["en"]["left_out"] and "{n}" in PAGE["zh"]["left_out"]


def test_both_languages_have_every_word():
    assert PAGE["en"].keys() == PAGE["zh"].keys()
    fields = re.compile(r"\{\w+\}")
    assert all(set(fields.findall(v)) == set(fields.findall(PAGE["zh"][k])) for k, v in PAGE["en"].items())


def test_ranges():
    assert words.ranges([]) == "" and words.ranges([4]) == "4"
    assert words.ranges([1, 0]) == "0, 1" and words.ranges([5, 0, 1, 2, 3, 7, 8]) == "0-3, 5, 7, 8"


def test_no_text_ends_a_block_of_json():
    assert json.loads(_json(HOSTILE)) == HOSTILE and not re.search("[<>&\u2028]", _json(HOSTILE))


def colours(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))


def themes() -> dict[str, dict[str, str]]:
    style = resources.files("unhang.report.html").joinpath("page.css").read_text("utf-8")
    light, system, chosen = (
        style.split(start, 1)[1].split("}", 1)[0] for start in (":root {", ':root:not([data-theme="light"]) {', ':root[data-theme="dark"] {')
    )
    assert colours(system) == colours(chosen)
    return {"light": colours(light), "dark": colours(light) | colours(system)}


def contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    a, b = sorted((luminance(one), luminance(other)), reverse=True)
    return (a + 0.05) / (b + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_and_bars_stand_out(theme):
    found = themes()[theme]
    for ink, paper in itertools.product(("text", "quiet", "accent", "bad", "doubt", "good", "odd-2", "missing-2"), ("card", "canvas")):
        assert contrast(found[ink], found[paper]) >= 4.5, (ink, paper)
    for ink, paper in (
        ("text", "page"),
        ("quiet", "page"),
        ("text", "soft"),
        ("quiet", "soft"),
        ("text", "warn-back"),
        ("quiet", "warn-back"),
        ("doubt", "warn-back"),
    ):
        assert contrast(found[ink], found[paper]) >= 4.5, (ink, paper)
    for bar in ("completed", "ended", "waiting-2", "missing-2", "odd", "unseen-2"):
        assert contrast(found[bar], found["canvas"]) >= 3.0, bar
    assert contrast(found["on-odd"], found["odd"]) >= 4.5
    assert contrast(found["on-bar"], found["completed"]) >= 4.5 and contrast(found["on-bar"], found["waiting"]) >= 4.5


def seen_without_green(colour: str) -> tuple[float, float, float]:
    """As somebody with deuteranopia sees it (Machado, Oliveira and Fernandes 2009, severity 1.0; applied to sRGB as is usual)."""
    r, g, b = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return (0.367322 * r + 0.860646 * g - 0.227968 * b, 0.280085 * r + 0.672501 * g + 0.047413 * b, -0.011820 * r + 0.042940 * g + 0.968881 * b)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_states_can_be_told_apart_without_green(theme):
    found = themes()[theme]
    for one, other in itertools.combinations(("completed", "waiting", "missing-2", "odd"), 2):
        a, b = seen_without_green(found[one]), seen_without_green(found[other])
        assert sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5 > 0.2, (one, other)
