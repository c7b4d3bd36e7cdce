"""A verdict as one HTML file that opens anywhere: offline, from a disk, in a mail.

The verdict, stacks and facts are plain elements and need no script. The timeline and the table of ranks are drawn by the page's own script from
packed columns. A content security policy allows exactly that script and that style, by their hashes, and nothing from elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources

import unhang
from unhang.model import Verdict
from unhang.printable import strip_unprintable
from unhang.report.html import sections
from unhang.report.html.labels import PAGE
from unhang.report.html.markup import Markup, column, data, element, many
from unhang.report.html.packing import MAX_BARS, pack
from unhang.report.html.scene import Scene
from unhang.report.language import Language
from unhang.report.terminal import nothing, title

_SCRIPTS = ("data.js", "painter.js", "view.js", "timeline.js", "search.js", "steering.js", "table.js", "boot.js")
# What a page of ours begins with, of any version and language.
HEAD_BYTES = 4096
_OURS = re.compile("<!doctype html>.{0,2000} · unhang</title>".encode(), re.DOTALL)
_PLACE = re.compile(r"\{\{(\w+)\}\}")
# Words that only the static parts have need not travel twice.
_NO_SCRIPT = ("divergence_caption", "divergence", "stacks_about", "no_script")


def render(verdict: Verdict, scene: Scene | None = None, *, lang: Language = "en", max_bars: int = MAX_BARS) -> str:
    """The page. Without a scene it has no timeline and no ranks, and says so."""
    words = PAGE[lang]
    style, script = _static("page.css"), "\n".join(map(_static, _SCRIPTS))
    scene = scene or Scene()
    drawn = bool(scene.tracks)
    parts = {
        "lang": Markup("zh-CN" if lang == "zh" else "en"),
        "policy": Markup(f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; base-uri 'none'; form-action 'none'"),
        "title": many(f"{_headline(verdict, lang)} · unhang"),
        "style": Markup(style),
        "skip": many(words["skip"]),
        "head": many(
            element("span", "unhang", class_="brand"), element("span", words["report"], class_="quiet"), element("span", scene.title, class_="run")
        ),
        "taken": many(scene.taken),
        "theme": many(words["theme"]),
        "verdict": many(sections.verdict_section(verdict, lang), sections.contradictions(verdict, lang), sections.not_examined(verdict, lang)),
        "divergence": many(sections.divergences(scene, lang)),
        "timeline": _timeline(lang) if drawn else many(element("p", words["no_timeline"], class_="quiet")),
        "timeline_title": many(words["timeline"]),
        "ranks": _ranks(scene, lang),
        "stacks": many(sections.stacks(scene, lang)),
        "others": sections.others(verdict, lang),
        "facts": many(sections.facts(scene, lang), sections.inputs(verdict, lang)),
        "made_by": many(words["made_by"].format(version=unhang.__version__)),
        "data": _data(scene, lang, max_bars),
        "script": Markup(script),
    }
    return strip_unprintable(_PLACE.sub(lambda found: parts[found[1]], _static("page.html")))


def is_page(head: bytes) -> bool:
    """Whether a file that begins so (HEAD_BYTES of it) is such a page."""
    return _OURS.match(head) is not None


def _headline(verdict: Verdict, lang: Language) -> str:
    return title(verdict.primary, lang) if verdict.primary is not None else nothing(verdict, lang)


def _timeline(lang: Language) -> Markup:
    words = PAGE[lang]

    def button(id: str, sign: str, label: str) -> Markup:
        return element("button", sign, type="button", id=id, aria_label=words[label], title=words[label])

    axis = element(
        "fieldset",
        element("legend", words["axis"]),
        (element("label", element("input", type="radio", name="axis", value=v), element("span", words[f"by_{v}"])) for v in ("number", "time")),
        class_="switch",
    )
    search = element(
        "div",
        element(
            "input", type="search", id="search", placeholder=words["search_hint"], aria_label=words["search"], autocomplete="off", spellcheck="false"
        ),
        element("output", id="hits", for_="search"),
        class_="search",
    )
    tools = element(
        "div",
        element("label", element("span", words["group"]), element("select", id="group"), class_="group"),
        axis,
        search,
        element(
            "div",
            element("button", words["to_divergence"], type="button", id="to-divergence"),
            button("zoom-out", "−", "zoom_out"),
            button("zoom-in", "+", "zoom_in"),
            button("flatter", "≡", "flatter"),
            button("taller", "☰", "taller"),
            element("button", words["fit"], type="button", id="fit"),
            button("help", "?", "help"),
            class_="buttons",
        ),
        class_="tools",
    )
    view = element(
        "div",
        element("canvas", id="overview", aria_hidden="true"),
        element(
            "canvas", id="lanes", role="application", tabindex="0", aria_describedby="said", aria_label=words["canvas"].format(ranks="", bars="")
        ),
        element("div", id="tip", hidden=True, aria_hidden="true"),
        class_="view",
        id="view",
    )
    return many(
        element("p", words["timeline_about"], class_="quiet"),
        element("noscript", element("p", words["no_script"], class_="quiet")),
        element("p", words["loading"], id="loading", class_="quiet", role="status"),
        element("p", id="notes", class_="quiet", hidden=True),
        element(
            "div",
            tools,
            view,
            element("ul", id="legend", aria_label=words["legend"]),
            element("p", id="said", class_="visually-hidden", aria_live="polite"),
            element("div", element("p", words["nothing_selected"], class_="quiet"), id="details", role="group", aria_label=words["selected"]),
            id="stage",
            hidden=True,
        ),
        element(
            "dialog",
            element("h2", words["help"], id="keys-title"),
            sections.keys(lang),
            element("form", element("button", words["close"]), method="dialog"),
            id="keys",
            aria_labelledby="keys-title",
        ),
    )


def _ranks(scene: Scene, lang: Language) -> Markup:
    if not scene.ranks:
        return many()
    words = PAGE[lang]
    names = ("rank", "state", "details", "last", "where", "host", "step", "exit")
    heads = (element("th", element("button", words[n], type="button"), scope="col", data_column=n, class_=f"c-{n}") for n in names)
    table = element(
        "table",
        element("caption", words["ranks_caption"].format(n=f"{len(scene.ranks):,}")),
        element("thead", element("tr", heads)),
        element("tbody"),
        aria_rowcount=len(scene.ranks) + 1,
        id="ranks-table",
    )
    return element(
        "section",
        element("h2", words["ranks"], id="ranks-title"),
        element("div", table, class_="scroll rows", id="ranks-rows", tabindex="0", role="region", aria_labelledby="ranks-title"),
        element("p", id="ranks-more", class_="quiet", hidden=True),
        class_="card",
        id="ranks",
        aria_labelledby="ranks-title",
    )


def _data(scene: Scene, lang: Language, max_bars: int) -> Markup:
    packed = pack(scene, max_bars=max_bars)
    value = {
        "labels": {k: v for k, v in PAGE[lang].items() if k not in _NO_SCRIPT and not k.startswith("key_")},
        "ranks": [[r.rank, r.concern, r.host, r.says, r.where, r.step, r.exitcode, int(r.unseen)] for r in scene.ranks],
        "groups": [[*sections.called(g, lang), _spans(g.members), int(g.point_to_point)] for g in scene.groups],
        "operations": [[o.name, o.says] for o in scene.operations],
        "sites": list(scene.sites),
        "tracks": packed.tracks,
        "divergences": [[d.group, d.number, list(d.odd), list(d.missing)] for d in scene.divergences],
        "focus": [scene.focus.group, scene.focus.number, scene.focus.rank] if scene.focus is not None else None,
        "t0_ms": packed.t0_ns // 1_000_000,
        "unit_ms": packed.unit_ns / 1e6,
        "until": packed.until,
        "until_told": scene.until_ns > 0,
        "left_out": packed.left_out,
        "hosts_differ": scene.hosts_differ,
    }
    return many(data("scene", value), (column(f"column-{name}", text) for name, text in packed.blocks.items()))


def _spans(members: tuple[int, ...]) -> list[int]:
    """Runs of ranks: first and last of each."""
    spans: list[int] = []
    for rank in sorted(set(members)):
        if spans and rank == spans[-1] + 1:
            spans[-1] = rank
        else:
            spans += (rank, rank)
    return spans


@cache
def _static(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text("utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
