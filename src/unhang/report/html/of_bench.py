"""A comparison of arms as one HTML file: charts are SVG elements, so that the page needs no script."""

from __future__ import annotations

import math
import os
import platform
import shlex
from collections.abc import Iterable, Sequence

from unhang.bench.in_force import OBSERVED
from unhang.bench.race import Look
from unhang.diagnosis.redact import redact_command
from unhang.records.rundir import RunDir
from unhang.report.bench import Report, duration, percent
from unhang.report.html import of_run, sections, without_script
from unhang.report.html.markup import Child, Markup, element
from unhang.report.html.scene import Fact, Facts, Scene
from unhang.text import Text

_WIDTH, _LEFT, _RIGHT, _TOP = 900, 76, 16, 10
_BINS = 60
# The slowest step of a hundred would push all others into one bar.
_SHOWN = 0.99
_OF_RUN = ("torch", "world size", "python", "started")
_TIMES = Text("Step times", "每步时间")
_TIMES_ABOUT = Text(
    "Steps of all runs without the warm-up; all arms on one scale. The last bar holds what is slower.",
    "所有运行中去掉预热后的步；各组用同一刻度。最后一条包含更慢的步。",
)
_BY_ROUND = Text("Differences by round: {arm} against {baseline}", "逐轮差别：{arm} 与 {baseline}")
_BY_ROUND_ABOUT = Text(
    "Each point is one round. The line is the mean of all rounds so far; the bars are its interval, which holds at all rounds at once (what is wider "
    "is cut off). Within the grey strip, the margin, arms are the same.",
    "每个点为一轮。线为到该轮为止的平均值，条为其区间，对所有轮次同时成立（更宽的部分被截去）。灰色带为界限，其内视为相同。",
)
_RESULT = Text("Result", "结果")
_PARTS = Text("Where the time goes", "时间用在哪里")
_DIFFER = Text("Did the arms differ?", "各组确实不同吗？")
_HEADS = Text("arm|what|in {baseline}|in the arm|asked for", "组|项目|{baseline} 中|该组中|是否要求")
_YES, _NO, _NOT_SET = Text("yes", "是"), Text("no", "否"), Text("not set", "未设置")
_NOTHING_YET = Text("Nothing was measured yet.", "尚未测得任何数据。")


def render(report: Report, command: Sequence[str]) -> str:
    """The page. Machine and versions are those of the first run."""
    lang = report.lang
    verdicts = [says.of(lang) for says in report.verdicts()] or [_NOTHING_YET.of(lang)]
    runs = report.result.runs
    parts: list[Child] = [_verdict(report, verdicts)]
    if runs:
        parts.append(card("result", _RESULT.of(lang), table(*_in(lang, report.rows()))))
        parts.append(card("parts", _PARTS.of(lang), table(*_in(lang, report.metric_rows()))))
        parts.append(card("times", _TIMES.of(lang), element("p", _TIMES_ABOUT.of(lang), class_="quiet"), _histograms(report)))
        parts += [_rounds(report, arm, looks) for arm, looks in report.looks().items() if looks]
        parts.append(_differences(report))
    parts.append(_facts(report, command))
    return without_script(verdicts[0], report.run_dir.name, runs[-1].ended.replace("T", " ") if runs else "", *parts, style="bench.css", lang=lang)


def _verdict(report: Report, verdicts: Sequence[str]) -> Markup:
    is_open = report.result.stopped != "decided"
    return element(
        "section",
        element("h1", verdicts[0], id="verdict-title"),
        (element("p", says, class_="says") for says in verdicts[1:]),
        (element("p", says.of(report.lang)) for says in report.explanation()),
        (element("p", says.of(report.lang), class_="quiet") for says in report.notes()),
        class_=f"card verdict {'open' if is_open else 'fine'}",
        id="verdict",
        aria_labelledby="verdict-title",
    )


def card(id: str, heading: str, *children: Child) -> Markup:
    return element("section", element("h2", heading, id=f"{id}-title"), *children, class_="card", id=id, aria_labelledby=f"{id}-title")


def _in(lang: str, rows: Iterable[Sequence[Text]]) -> tuple[list[str], list[list[str]]]:
    heads, *others = ([text.of(lang) for text in row] for row in rows)
    return heads, others


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    head = element("tr", (element("th", text, scope="col") for text in heads))
    body = (element("tr", element("th", row[0], scope="row"), (element("td", text) for text in row[1:])) for row in rows)
    return element("div", element("table", element("thead", head), element("tbody", body)), class_="scroll")


def _histograms(report: Report) -> Markup:
    times = {
        arm.name: sorted(t / ((arm.samples if report.rules.is_per_sample else None) or 1) for run in report.result.runs if run.arm == arm.name
                         for t in run.steps.times_s[run.steps.dropped :])
        for arm in report.arms
    }  # fmt: skip
    times = {name: of_arm for name, of_arm in times.items() if of_arm}
    low = min(of_arm[0] for of_arm in times.values())
    high = max(of_arm[int((len(of_arm) - 1) * _SHOWN)] for of_arm in times.values())
    room = (high - low) or high or 1.0
    height, width = 70, (_WIDTH - _LEFT - _RIGHT) / _BINS
    drawn: list[Child] = []
    for i, (name, of_arm) in enumerate(times.items()):
        counts = [0] * _BINS
        for t in of_arm:
            counts[min(int((t - low) / room * _BINS), _BINS - 1)] += 1
        base = _TOP + (i + 1) * height
        drawn += [_text(_LEFT - 10, base - 4, name, "end"), _line(_LEFT, base, _WIDTH - _RIGHT, base, "grid")]
        for at, count in enumerate(counts):
            tall = count / max(counts) * (height - 12)
            if count:
                drawn.append(_rect(_LEFT + at * width, base - tall, width - 1, tall, "bar"))
    bottom = _TOP + len(times) * height
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        class_ = "end" if share == 1 else "middle"
        drawn.append(_text(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), bottom + 16, duration(low + share * room), class_))
    return svg(bottom + 26, _TIMES.of(report.lang), drawn)


def _rounds(report: Report, arm: str, looks: Sequence[Look]) -> Markup:
    """Rounds from left to right, changes of the time upwards: points of each round, the mean and the interval after it."""
    asked = {one.name: f"{one.name} ({one.asked})" for one in report.arms}
    title = _BY_ROUND.fill(arm=asked[arm], baseline=asked[report.arms[0].name]).of(report.lang)
    height, margin, final = 240, report.rules.margin, looks[-1].after
    right, bottom = _WIDTH - _RIGHT, _TOP + height
    step = (right - _LEFT) / (len(looks) + 1)
    values = [-margin, margin, *(look.change for look in looks), *(end for end in (final.low, final.high) if end is not None)]
    pad = (max(values) - min(values)) * 0.1
    low, high = min(values) - pad, max(values) + pad

    def x(number: int) -> float:
        return _LEFT + number * step

    def y(change: float) -> float:
        return _TOP + height * (high - min(max(change, low), high)) / (high - low)

    drawn: list[Child] = [_rect(_LEFT, y(margin), right - _LEFT, y(-margin) - y(margin), "margin")]
    for tick in _ticks(low, high):
        label = f"{tick * 100:+.3g} %" if tick else "0 %"
        drawn += [_line(_LEFT, y(tick), right, y(tick), "grid" if tick else "zero"), _text(_LEFT - 8, y(tick) + 4, label, "end")]
    for n, look in enumerate(looks, 1):
        if look.after.low is not None:
            top = y(high if look.after.high is None else look.after.high)
            drawn.append(_rect(x(n) - step * 0.4, top, step * 0.8, y(look.after.low) - top, "interval"))
        drawn.append(element("circle", element("title", percent(look.change)), cx=_at(x(n)), cy=_at(y(look.change)), r="4", class_="point"))
        if n % math.ceil(len(looks) / 20) == 0:
            drawn.append(_text(x(n), bottom + 16, str(n), "middle"))
    drawn.append(element("polyline", points=" ".join(f"{_at(x(n))},{_at(y(look.after.change))}" for n, look in enumerate(looks, 1)), class_="mean"))
    return card(f"rounds-{arm}", title, element("p", _BY_ROUND_ABOUT.of(report.lang), class_="quiet"), svg(bottom + 24, title, drawn))


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers from `low` to `high`, zero included."""
    room = high - low
    size: float = 10 ** math.floor(math.log10(room))
    step = next(size * part for part in (0.2, 0.5, 1.0, 2.0) if room / (size * part) <= 7)
    return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _differences(report: Report) -> Markup | None:
    if report.result.proof is None:
        return None
    lang, baseline = report.lang, report.arms[0].name
    unset, yes, no = (text.of(lang) for text in (_NOT_SET, _YES, _NO))
    heads = _HEADS.fill(baseline=baseline).of(lang).split("|")
    found = report.result.proof.differences
    rows = [
        [d.arm, d.name, *(unset if value is None else value for value in d.values), "" if d.name in OBSERVED else yes if d.is_asked else no]
        for d in found
    ]
    return card("differ", _DIFFER.of(lang), table(heads, rows))


def _facts(report: Report, command: Sequence[str]) -> Markup | None:
    here = (
        Fact(name="machine", value=f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, {platform.system()} {platform.release()}"),
        Fact(name="Python of unhang", value=platform.python_version()),
    )
    first = next(iter(report.result.runs), None)
    seen = {part.title: part.facts for part in of_run.gather(RunDir(report.run_dir / first.run_dir)).facts} if first is not None else {}
    run = (Fact(name="command", value=shlex.join(redact_command(command))), *(f for f in seen.get("run", ()) if f.name in _OF_RUN))
    # What the environments differ in is told above.
    parts = (Facts(title="run", facts=run), Facts(title="host", facts=(*here, *seen.get("host", ()))))
    return sections.facts(Scene(facts=parts), report.lang)


def svg(height: float, label: str, drawn: Sequence[Child]) -> Markup:
    return element("div", element("svg", *drawn, viewBox=f"0 0 {_WIDTH} {_at(height)}", role="img", aria_label=label), class_="scroll")


def _text(x: float, y: float, text: str, class_: str) -> Markup:
    return element("text", text, x=_at(x), y=_at(y), class_=class_)


def _line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return element("line", x1=_at(x1), y1=_at(y1), x2=_at(x2), y2=_at(y2), class_=class_)


def _rect(x: float, y: float, width: float, height: float, class_: str) -> Markup:
    return element("rect", x=_at(x), y=_at(y), width=_at(width), height=_at(height), class_=class_)


def _at(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
