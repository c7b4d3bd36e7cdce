"""The parts of the page that need no script: the verdict with all that Markdown has of it, the divergence, stacks, facts and inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from unhang.i18n import Words
from unhang.knowledge import catalogue
from unhang.knowledge.words import ranges
from unhang.model import Evidence, Finding, Remedy, Verdict
from unhang.report.html.markup import Markup, element, many
from unhang.report.html.scene import Divergence, Group, Scene, StackGroup
from unhang.report.language import LABELS, STANDINGS, Language
from unhang.report.terminal import nothing, ran, says, stood, title, unseen, went_well, where

PAGE = Words("page", "page")
MAX_STACKS = 64
_MAX_SIDES = 32


def called(group: Group, lang: Language) -> tuple[str, str]:
    """What a group is called, in full and in short. torch names groups by number, and describes those that it was told nothing of as "undefined"."""
    if group.desc in ("", "undefined", group.name):
        name = f"{PAGE[lang]['group']} {group.name}" if group.name.isdigit() else group.name
        return name, name
    return f"{group.desc} ({group.name})", group.desc


def verdict_section(verdict: Verdict, lang: Language) -> Markup:
    """The headline, the primary finding, what to do."""
    finding = verdict.primary
    if finding is None:
        fine = went_well(verdict)
        return element(
            "section",
            element("p", element("span", "✓" if fine else "?", class_="mark", aria_hidden="true"), class_="standing"),
            element("h1", nothing(verdict, lang), id="verdict-title"),
            class_=f"card verdict {'fine' if fine else 'open'}",
            id="verdict",
            aria_labelledby="verdict-title",
        )
    return element(
        "section",
        element(
            "p",
            element("span", "✓" if verdict.recovered else "✗", class_="mark", aria_hidden="true"),
            element("code", finding.cause),
            element("span", STANDINGS[lang][finding.standing], class_="chip"),
            class_="standing",
        ),
        element("h1", title(finding, lang), id="verdict-title"),
        element("p", says(finding, lang), class_="says"),
        _who(finding, lang),
        _remedies(finding.remedies, lang, heading="h2"),
        _evidence(finding.evidence, lang, heading="h2"),
        _explained(finding, lang),
        class_=f"card verdict {'fine' if verdict.recovered else finding.standing}",
        id="verdict",
        aria_labelledby="verdict-title",
    )


def contradictions(verdict: Verdict, lang: Language) -> Markup | None:
    """Where sources disagree: above what was not examined, because it bounds what the evidence is worth."""
    found = verdict.contradictions
    if not found:
        return None
    items = [element("li", element("p", says(c, lang)), _stated(c.statements, lang)) for c in found]
    more = element("details", element("summary", LABELS[lang]["more"].format(n=len(items) - 4)), element("ul", items[4:])) if items[4:] else None
    return section("contradictions", f"{LABELS[lang]['contradictions']} ({len(items)})", element("ul", items[:4]), more, class_="card warn")


def not_examined(verdict: Verdict, lang: Language) -> Markup | None:
    """What could not be looked at: directly below the verdict, because it bounds what the verdict is worth."""
    if not verdict.not_examined:
        return None
    left = sorted(verdict.not_examined, key=lambda n: not n.unread)
    items = [
        element("li", element("strong", what), " ", element("span", why), class_="unread" if n.unread else None)
        for n in left
        for what, why in (unseen(n, lang),)
    ]
    shown, folded = (items, []) if len(items) <= 6 else (items[:4], items[4:])
    more = element("details", element("summary", LABELS[lang]["more"].format(n=len(folded))), element("ul", folded)) if folded else None
    return section("not-examined", f"{LABELS[lang]['not_examined']} ({len(items)})", element("ul", shown), more, class_="card warn")


def others(verdict: Verdict, lang: Language) -> Markup:
    """Further causes, and what only follows from them."""
    parts = []
    for id, label, findings in (("also", "also", verdict.contributing), ("symptoms", "symptoms", verdict.symptoms)):
        if findings:
            parts.append(section(id, LABELS[lang][label], [_finding(f, lang) for f in findings], class_="card"))
    return many(parts)


def divergences(scene: Scene, lang: Language) -> Markup | None:
    """Who did what at the numbers where the ranks parted: the picture's centre in words."""
    tables = [_divergence(scene, d, lang) for d in scene.divergences if d.sides]
    return section("divergence", PAGE[lang]["divergence"], tables, class_="card") if tables else None


def stacks(scene: Scene, lang: Language) -> Markup | None:
    """One fold for each place where main threads stand; those with the fewest ranks open."""
    if not scene.stacks:
        return None
    words = PAGE[lang]
    groups = sorted(scene.stacks, key=lambda g: (len(g.ranks), g.ranks))
    shown = [_stack(g, lang, open_=i < 2) for i, g in enumerate(groups[:MAX_STACKS])]
    rest = element("p", words["more_stacks"].format(n=len(groups) - MAX_STACKS), class_="quiet") if len(groups) > MAX_STACKS else None
    return section("stacks", words["stacks"], element("p", words["stacks_about"], class_="quiet"), shown, rest, class_="card")


def facts(scene: Scene, lang: Language) -> Markup | None:
    """The run, its settings, its machine."""
    words = PAGE[lang]
    headings = {"run": words["run"], "environment": words["environment"], "host": words["machine"]}
    parts = [
        element(
            "details",
            element("summary", element("h2", headings[part.title], id=f"facts-{part.title}")),
            element("dl", ((element("dt", f.name), element("dd", element("code", f.value))) for f in part.facts), class_="facts"),
            open=part.title == "run",
        )
        for part in scene.facts
        if part.facts
    ]
    return element("div", parts, class_="card", id="facts") if parts else None


def inputs(verdict: Verdict, lang: Language) -> Markup | None:
    """What the verdict rests on."""
    if not verdict.inputs:
        return None
    words = PAGE[lang]
    rows = [
        element("tr", element("th", element("code", i.source), scope="row"), element("td", i.kind), element("td", f"{i.bytes:,}", class_="number"))
        for i in verdict.inputs
    ]
    head = element(
        "tr",
        element("th", words["file"], scope="col"),
        element("th", words["kind"], scope="col"),
        element("th", words["bytes"], scope="col", class_="number"),
    )
    table = element("div", element("table", element("thead", head), element("tbody", rows)), class_="scroll")
    total = f"{words['inputs']} ({len(rows)})"
    if len(rows) > 12:
        return element("section", element("details", element("summary", element("h2", total, id="inputs-title")), table), class_="card", id="inputs")
    return section("inputs", total, table, class_="card")


def section(id: str, heading: str, *children: Markup | Sequence[Markup] | None, class_: str) -> Markup:
    return element("section", element("h2", heading, id=f"{id}-title"), *children, class_=class_, id=id, aria_labelledby=f"{id}-title")


def _finding(finding: Finding, lang: Language) -> Markup:
    return element(
        "article",
        element(
            "h3",
            element("code", finding.cause),
            element("span", STANDINGS[lang][finding.standing], class_="chip"),
            class_=f"standing {finding.standing}",
        ),
        element("p", says(finding, lang)),
        _who(finding, lang),
        _remedies(finding.remedies, lang, heading="h4"),
        _evidence(finding.evidence, lang, heading="h4"),
        class_="finding",
    )


def _who(finding: Finding, lang: Language) -> Markup | None:
    labels = LABELS[lang]
    pairs: list[Markup] = []
    if finding.ranks:
        hosts = [element("code", h) for h in finding.hosts]
        on = (f" {labels['on']} ", *_joined(hosts)) if hosts else ()
        word = labels["rank"] if len(finding.ranks) == 1 else labels["ranks"]
        pairs += (element("dt", labels["who"]), element("dd", f"{word} {ranges(finding.ranks)}", *on))
    if finding.where is not None:
        pairs += (element("dt", labels["where"]), element("dd", element("code", where(finding, lang))))
    return element("dl", pairs, class_="who") if pairs else None


def _joined(items: Sequence[Markup]) -> Iterator[str]:
    for i, item in enumerate(items):
        if i:
            yield ", "
        yield item


def _evidence(evidence: tuple[Evidence, ...], lang: Language, *, heading: str) -> Markup | None:
    if not evidence:
        return None
    return element("div", element(heading, LABELS[lang]["evidence"], class_="minor"), _stated(evidence, lang))


def _stated(evidence: Sequence[Evidence], lang: Language) -> Markup:
    items = (
        element("li", element("span", f"{e.source}{f':{e.line}' if e.line is not None else ''}", class_="source"), element("code", stood(e, lang)))
        for e in evidence
    )
    return element("ul", items, class_="evidence")


def _remedies(remedies: tuple[Remedy, ...], lang: Language, *, heading: str) -> Markup | None:
    if not remedies:
        return None
    labels = LABELS[lang]
    items = []
    for r in remedies:
        line = ran(r)
        command = (
            element("div", element("code", line), element("button", PAGE[lang]["copy"], type="button", data_copy=line), class_="command")
            if line
            else None
        )
        notes: list[Markup] = []
        if r.verify:
            notes.append(element("p", f"{labels['verify']}: ", element("code", r.verify), class_="quiet"))
        if r.trial != "untried":
            notes.append(element("p", f"{labels['trial']}: {r.trial}", class_="quiet"))
        items.append(element("li", element("p", says(r, lang)), command, notes))
    return element("div", element(heading, labels["remedy"], class_="minor"), element("ol", items, class_="remedies"))


def _explained(finding: Finding, lang: Language) -> Markup | None:
    cause = catalogue.load().get(finding.cause)
    if cause is None:
        return None
    parts = [element("p", p) for p in cause.explain[lang].split("\n\n") if p.strip()]
    return element("details", element("summary", LABELS[lang]["what"]), parts, class_="explained")


def _divergence(scene: Scene, divergence: Divergence, lang: Language) -> Markup:
    words = PAGE[lang]
    name, _ = called(scene.groups[divergence.group], lang)
    head = element("tr", (element("th", words[k], scope="col") for k in ("ranks_did", "doing", "operation", "line")))
    rows = [
        element(
            "tr",
            element("th", ranges(s.ranks), scope="row"),
            element("td", element("span", words[s.doing], class_=f"state {s.doing}")),
            element("td", element("code", s.operation) if s.operation else words["never"], " ", element("span", s.says, class_="quiet")),
            element("td", element("code", s.site) if s.site else "—"),
        )
        for s in divergence.sides[:_MAX_SIDES]
    ]
    caption = element("caption", words["divergence_caption"].format(group=name, number=divergence.number))
    return element("div", element("table", caption, element("thead", head), element("tbody", rows)), class_="scroll")


def _stack(group: StackGroup, lang: Language, *, open_: bool) -> Markup:
    words = PAGE[lang]
    own = next((line for line in reversed(group.lines) if line.own), group.lines[-1] if group.lines else None)
    place = element("code", f"{own.file}:{own.line} {own.name}") if own is not None else None
    count = words["members"].format(n=len(group.ranks))
    label = LABELS[lang]["rank" if len(group.ranks) == 1 else "ranks"]
    frames = [
        element(
            "li",
            element("span", f"{line.file}:{line.line}", class_="source"),
            element("span", line.name, class_="name"),
            element("code", line.code) if line.code else None,
            class_="own" if line.own else None,
        )
        for line in reversed(group.lines[group.shared :])
    ]
    shared = element("li", words["shared"].format(n=group.shared), class_="quiet") if group.shared else None
    tally = element("span", count, class_="quiet") if len(group.ranks) > 1 else None
    summary = element("summary", element("strong", f"{label} {ranges(group.ranks)}"), " ", tally, " ", place)
    return element("details", summary, element("ol", frames, shared, class_="frames"), open=open_)
