"""A verdict as one HTML file that opens anywhere: offline, from a disk, in a mail.

The verdict, stacks and facts are plain elements and need no script. The timeline and the table of ranks are drawn by the page's own script from
packed columns. A content security policy allows exactly that script and that style, by their hashes, and nothing from elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources

import unhang
from unhang.i18n import Words
from unhang.model import Verdict
from unhang.printable import strip_unprintable
from unhang.report.html import sections
from unhang.report.html.markup import Markup, column, data, element, many
from unhang.report.html.packing import MAX_BARS, pack
from unhang.report.html.scene import Scene
from unhang.report.html.sections import PAGE
from unhang.report.language import Language
from unhang.report.terminal import nothing, title

_SCRIPTS = ("data.js", "painter.js", "view.js", "timeline.js", "search.js", "steering.js", "table.js", "boot.js")
# What a page of ours begins with, of any version and language.
HEAD_BYTES = 4096
_OURS = re.compile("<!doctype html>.{0,2000} · unhang</title>".encode(), re.DOTALL)
_PLACE = re.compile(r"\{\{(\w+)\}\}")
_STATIC = Words("page-static", "page")


def render(verdict: Verdict, scene: Scene | None = None, *, lang: Language = "en", max_bars: int = MAX_BARS) -> str:
    """The page. Without a scene it has no timeline and no ranks, and says so."""
    words = {**PAGE[lang], **_STATIC[lang]}
    style, script = _static("page.css"), "\n".join(map(_static, _SCRIPTS))
    scene = scene or Scene()
    words["ranks_caption"] = words["ranks_caption"].format(n=f"{len(scene.ranks):,}")
    words["made_by"] = words["made_by"].format(version=unhang.__version__)
    words |= {"title": f"{_headline(verdict, lang)} · unhang", "run": scene.title, "taken": scene.taken, "rows": str(len(scene.ranks) + 1)}
    texts = {name: Markup(html.escape(word)) for name, word in words.items()}
    parts = {
        "lang": Markup("zh-CN" if lang == "zh" else "en"),
        "policy": Markup(f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; base-uri 'none'; form-action 'none'"),
        "style": Markup(style),
        "verdict": many(sections.verdict_section(verdict, lang), sections.contradictions(verdict, lang), sections.not_examined(verdict, lang)),
        "divergence": many(sections.divergences(scene, lang)),
        "lanes": _filled("timeline.html", texts) if scene.tracks else element("p", words["no_timeline"], class_="quiet"),
        "ranks": _filled("ranks.html", texts) if scene.ranks else many(),
        "stacks": many(sections.stacks(scene, lang)),
        "others": sections.others(verdict, lang),
        "facts": many(sections.facts(scene, lang), sections.inputs(verdict, lang)),
        "data": _data(scene, lang, max_bars),
        "script": Markup(script),
    }
    return strip_unprintable(_filled("page.html", {**texts, **parts}))


def is_page(head: bytes) -> bool:
    """Whether a file that begins so (HEAD_BYTES of it) is such a page."""
    return _OURS.match(head) is not None


def _headline(verdict: Verdict, lang: Language) -> str:
    return title(verdict.primary, lang) if verdict.primary is not None else nothing(verdict, lang)


def _filled(name: str, parts: Mapping[str, Markup]) -> Markup:
    return Markup(_PLACE.sub(lambda found: parts[found[1]], _static(name)))


def _data(scene: Scene, lang: Language, max_bars: int) -> Markup:
    packed = pack(scene, max_bars=max_bars)
    value = {
        "labels": PAGE[lang],
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
