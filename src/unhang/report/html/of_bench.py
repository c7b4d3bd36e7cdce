"""A comparison of arms as one HTML file: charts are SVG elements, so that the page needs no script."""

from __future__ import annotations

import math
import os
import platform
import shlex
from collections.abc import Sequence

from unhang.bench.effective_settings import OBSERVED
from unhang.bench.elimination import RoundView, work
from unhang.diagnosis.redact import redact_command
from unhang.records.rundir import RunDir
from unhang.report.bench import Report, duration, in_language, percent
from unhang.report.html import of_run, sections, without_script
from unhang.report.html.markup import WIDTH, Child, Markup, draw, element, number, svg, table
from unhang.report.html.scene import Fact, Facts, Scene
from unhang.text import Text

_LEFT, _RIGHT, _TOP = 76, 16, 10
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
    runs = report.state.runs
    parts: list[Child] = [_verdict(report, verdicts)]
    if runs:
        parts.append(sections.section("result", _RESULT.of(lang), table(*in_language(report.rows(), lang)), class_="card"))
        if not report.rules.is_race:
            parts.append(sections.section("parts", _PARTS.of(lang), table(*in_language(report.metric_rows(), lang)), class_="card"))
        about = element("p", _TIMES_ABOUT.of(lang), class_="quiet")
        parts.append(sections.section("times", _TIMES.of(lang), about, _histograms(report), class_="card"))
        parts += [_rounds(report, arm, views) for arm, views in report.state.views.items() if views[-1].after.is_useful]
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


def _histograms(report: Report) -> Markup:
    times: dict[str, list[float]] = {}
    for arm in report.arms:
        for run in (run for run in report.state.runs if run.arm == arm.name):
            samples = work(run, arm, report.rules)
            times.setdefault(arm.name, []).extend(t / samples for t in run.steps.times_s[run.steps.dropped :])
    times = {name: sorted(of_arm) for name, of_arm in times.items()}
    low = min(of_arm[0] for of_arm in times.values())
    high = max(of_arm[int((len(of_arm) - 1) * _SHOWN)] for of_arm in times.values())
    room = (high - low) or high or 1.0
    height, width = 70, (WIDTH - _LEFT - _RIGHT) / _BINS
    drawn: list[Child] = []
    for i, (name, of_arm) in enumerate(times.items()):
        counts = [0] * _BINS
        for t in of_arm:
            counts[min(int((t - low) / room * _BINS), _BINS - 1)] += 1
        base = _TOP + (i + 1) * height
        drawn += [draw("text", "end", name, x=_LEFT - 10, y=base - 4), draw("line", "grid", x1=_LEFT, y1=base, x2=WIDTH - _RIGHT, y2=base)]
        for at, count in enumerate(counts):
            tall = count / max(counts) * (height - 12)
            if count:
                drawn.append(draw("rect", "bar", x=_LEFT + at * width, y=base - tall, width=width - 1, height=tall))
    bottom = _TOP + len(times) * height
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        class_ = "end" if share == 1 else "middle"
        drawn.append(draw("text", class_, duration(low + share * room), x=_LEFT + share * (WIDTH - _LEFT - _RIGHT), y=bottom + 16))
    return svg(bottom + 26, _TIMES.of(report.lang), drawn)


def _rounds(report: Report, arm: str, views: Sequence[RoundView]) -> Markup:
    """Rounds from left to right, changes of the time upwards: points of each round, the mean and the interval after it."""
    asked = {one.name: f"{one.name} ({one.asked})" for one in report.arms}
    title = _BY_ROUND.fill(arm=asked[arm], baseline=asked[report.arms[0].name]).of(report.lang)
    height, margin, final = 240, report.rules.margin, views[-1].after
    right, bottom = WIDTH - _RIGHT, _TOP + height
    step = (right - _LEFT) / (len(views) + 1)
    values = [-margin, margin, *(view.change for view in views), *(end for end in (final.low, final.high) if end is not None)]
    pad = (max(values) - min(values)) * 0.1
    low, high = min(values) - pad, max(values) + pad

    def x(number: int) -> float:
        return _LEFT + number * step

    def y(change: float) -> float:
        return _TOP + height * (high - min(max(change, low), high)) / (high - low)

    drawn: list[Child] = [draw("rect", "margin", x=_LEFT, y=y(margin), width=right - _LEFT, height=y(-margin) - y(margin))]
    for tick in _ticks(low, high):
        label = f"{tick * 100:+.3g} %" if tick else "0 %"
        drawn.append(draw("line", "grid" if tick else "zero", x1=_LEFT, y1=y(tick), x2=right, y2=y(tick)))
        drawn.append(draw("text", "end", label, x=_LEFT - 8, y=y(tick) + 4))
    for n, view in enumerate(views, 1):
        if (view.after.low, view.after.high) != (None, None):
            top, end = y(high if view.after.high is None else view.after.high), y(low if view.after.low is None else view.after.low)
            drawn.append(draw("rect", "interval", x=x(n) - step * 0.4, y=top, width=step * 0.8, height=end - top))
        drawn.append(draw("circle", "point", element("title", percent(view.change)), cx=x(n), cy=y(view.change), r=4))
        if n % math.ceil(len(views) / 20) == 0:
            drawn.append(draw("text", "middle", str(n), x=x(n), y=bottom + 16))
    drawn.append(
        element("polyline", points=" ".join(f"{number(x(n))},{number(y(view.after.change))}" for n, view in enumerate(views, 1)), class_="mean")
    )
    about = element("p", _BY_ROUND_ABOUT.of(report.lang), class_="quiet")
    return sections.section(f"rounds-{arm}", title, about, svg(bottom + 24, title, drawn), class_="card")


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers from `low` to `high`, zero included."""
    room = high - low
    size: float = 10 ** math.floor(math.log10(room))
    step = next(size * part for part in (0.2, 0.5, 1.0, 2.0) if room / (size * part) <= 7)
    return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _differences(report: Report) -> Markup | None:
    if report.state.proof is None:
        return None
    lang, baseline = report.lang, report.arms[0].name
    unset, yes, no = (text.of(lang) for text in (_NOT_SET, _YES, _NO))
    heads = _HEADS.fill(baseline=baseline).of(lang).split("|")
    found = report.state.proof.differences
    rows = [
        [d.arm, d.name, *(unset if value is None else value for value in d.values), "" if d.name in OBSERVED else yes if d.is_asked else no]
        for d in found
    ]
    return sections.section("differ", _DIFFER.of(lang), table(heads, rows), class_="card")


def _facts(report: Report, command: Sequence[str]) -> Markup | None:
    here = (
        Fact(name="machine", value=f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, {platform.system()} {platform.release()}"),
        Fact(name="Python of unhang", value=platform.python_version()),
    )
    first = next(iter(report.state.runs), None)
    seen = {part.title: part.facts for part in of_run.gather(RunDir(report.run_dir / first.run_dir)).facts} if first is not None else {}
    run = (Fact(name="command", value=shlex.join(redact_command(command))), *(f for f in seen.get("run", ()) if f.name in _OF_RUN))
    # What the environments differ in is told above.
    parts = (Facts(title="run", facts=run), Facts(title="host", facts=(*here, *seen.get("host", ()))))
    return sections.facts(Scene(facts=parts), report.lang)
