"""A verdict as one HTML file that opens anywhere: offline, from a disk, in a mail.

The verdict, stacks and facts are plain elements and need no script. The timeline and the table of ranks are drawn by the page's own script from
packed columns. A content security policy allows exactly that script and that style, by their hashes, and nothing from elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

import unhang
from unhang.i18n import Words
from unhang.knowledge import catalogue
from unhang.knowledge.words import ranges
from unhang.model import Verdict
from unhang.printable import strip_unprintable
from unhang.report import terminal
from unhang.report.html.packing import MAX_BARS, Packed, pack
from unhang.report.html.scene import Group, Scene
from unhang.report.language import LABELS, STANDINGS, Language

PAGE = Words("page", "page")
# What the page's script does not need.
_STATIC = Words("page-static", "page")
_SCRIPTS = ("data.js", "painter.js", "view.js", "timeline.js", "search.js", "steering.js", "table.js", "boot.js")
# What a page of ours begins with, of any version and language.
HEAD_BYTES = 4096
_OURS = re.compile("<!doctype html>.{0,2000} · unhang</title>".encode(), re.DOTALL)


def render(verdict: Verdict, scene: Scene | None = None, *, lang: Language = "en", max_bars: int = MAX_BARS) -> str:
    """The page. Without a scene it has no timeline and no ranks, and says so."""
    style, script = _static("page.css"), "\n".join(map(_static, _SCRIPTS))
    scene, primary = scene or Scene(), verdict.primary
    packed = pack(scene, max_bars=max_bars)
    cause = catalogue.load().get(primary.cause) if primary is not None else None
    text = (
        _environment()
        .get_template("page.html")
        .render(
            PAGE[lang],
            **_STATIC[lang],
            words=PAGE[lang],
            labels=LABELS[lang],
            standings=STANDINGS[lang],
            lang=lang,
            policy=f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; base-uri 'none'; form-action 'none'",
            style=style,
            script=script,
            version=unhang.__version__,
            title=terminal.title(primary, lang) if primary is not None else terminal.nothing(verdict, lang),
            verdict=verdict,
            fine=terminal.went_well(verdict),
            explained=cause.explain[lang] if cause is not None else "",
            scene=scene,
            stack_groups=sorted(scene.stacks, key=lambda g: (len(g.ranks), g.ranks)),
            data=_json(_drawn(scene, packed, lang)),
            columns=packed.blocks,
        )
    )
    return strip_unprintable(text)


@cache
def _environment() -> Environment:
    """Every text and every attribute comes out as text: nothing that stood in a log can become markup."""
    made = Environment(autoescape=True, undefined=StrictUndefined, loader=FunctionLoader(_static), trim_blocks=True, lstrip_blocks=True)
    made.filters.update(ranges=ranges, **{name: getattr(terminal, name) for name in ("ran", "says", "source", "stood", "unseen", "where")})
    made.globals["called"] = called
    return made


def is_page(head: bytes) -> bool:
    """Whether a file that begins so (HEAD_BYTES of it) is such a page."""
    return _OURS.match(head) is not None


def called(group: Group, lang: Language) -> tuple[str, str]:
    """What a group is called, in full and in short. torch names groups by number, and describes those that it was told nothing of as "undefined"."""
    if group.desc in ("", "undefined", group.name):
        name = f"{PAGE[lang]['group']} {group.name}" if group.name.isdigit() else group.name
        return name, name
    return f"{group.desc} ({group.name})", group.desc


def _drawn(scene: Scene, packed: Packed, lang: Language) -> dict[str, Any]:
    """What the page's script draws, without the columns."""
    return {
        "labels": PAGE[lang],
        "ranks": [[r.rank, r.concern, r.host, r.says, r.where, r.step, r.exitcode, int(r.unseen)] for r in scene.ranks],
        "groups": [[*called(g, lang), _spans(g.members), int(g.point_to_point)] for g in scene.groups],
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


def _json(value: object) -> str:
    """JSON in which no text can end the element that it stands in."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


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
