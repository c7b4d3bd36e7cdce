"""The page of a comparison: all numbers without a script, nothing from elsewhere, no text that becomes markup; charts looked at in a browser."""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
from dataclasses import replace

import pytest
from tests.bench.trainings import Trainings
from tests.report.html import chromium
from tests.report.html.test_page import HOSTILE, Read
from tests.report.test_bench import ranking, report

from unhang.report.html import HEAD_BYTES, is_page, of_bench


@pytest.fixture
def trainings(tmp_path, monkeypatch):
    return Trainings(tmp_path, monkeypatch)


@pytest.fixture
def compared(trainings):
    trainings.parts_s = {"a": (0.01, 0.02, 0.004), "b": (0.01, 0.03, 0.004)}
    trainings.step_s["b"], trainings.noise = 0.104, 0.02
    return report(trainings, budget_s=24.0)


def test_all_of_it_is_there_without_a_script(compared):
    page = of_bench.render(compared, ("torchrun", "train.py", "--api-key", "s3cr3t-0123456789abcdef"))
    read = Read(page)
    assert read.open == [] and not read.scripts and read.text.count(next(compared.verdicts()).en) == 2
    (policy,) = read.attribute("meta", http_equiv="Content-Security-Policy")
    style = base64.b64encode(hashlib.sha256(read.styles[0].encode()).digest()).decode()
    assert policy["content"] == f"default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'"
    assert is_page(page.encode()[:HEAD_BYTES]) and "s3cr3t" not in page
    for says in (*itertools.chain(*compared.rows(), *compared.metric_rows()), *compared.verdicts(), *compared.explanation(), *compared.notes()):
        assert says.en in read.text
    # Of each round a point, its number, and the interval once there is one.
    views = compared.state.views["b"]
    assert len(views) == 12 and len(read.attribute("circle", **{"class": "point"})) == 12
    assert len(read.attribute("rect", **{"class": "interval"})) == sum(view.after.low is not None for view in views) == 10
    assert all(f"{view.change * 100:+.1f} %" in read.text for view in views)
    assert "NCCL_SHM_DISABLE" in read.text and "Did the arms differ?" in read.text and "cores" in read.text
    # Told once, in the table.
    assert not any(says.en in read.text for says in compared.differences())
    assert not {name for _, attributes in read.elements for name in attributes if name in ("src", "href", "style") or name[:2] == "on"}


def test_a_ranking_has_a_chart_of_each_arm_that_was_compared_and_no_text_becomes_markup(trainings):
    made = ranking(trainings)
    read = Read(of_bench.render(replace(made, again=HOSTILE, arms=[replace(arm, asked=HOSTILE) for arm in made.arms]), (HOSTILE,)))
    assert [one["id"] for one in read.attribute("section") if one["id"].startswith("rounds-")] == ["rounds-b", "rounds-c", "rounds-d"]
    # A column for each of many arms would not fit.
    assert "Where the time goes" not in read.text
    assert "ib: no adapter" in read.text and read.open == [] and not read.scripts and not read.attribute("img") and HOSTILE[:40] in read.text


@pytest.mark.integration
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("width", "scheme", "lang"), [(1280, "light", "en"), (390, "dark", "zh")])
def test_it_is_drawn(compared, tmp_path, width, scheme, lang):
    if chromium.find() is None:
        assert not os.environ.get("CI"), "CI tests in a browser: scripts/apt installs it"
        pytest.skip("there is no chromium here (scripts/apt installs it)")
    path = tmp_path / "bench.html"
    path.write_text(of_bench.render(replace(compared, lang=lang), ("train.py",)), "utf-8")
    with chromium.browser() as browser:
        page = browser.page()
        page.size(width, 900)
        page.media(prefers_color_scheme=scheme)
        page.open(path, ready="document.readyState === 'complete'")
        assert page.console == [] and {r for r in page.requests if r != "about:blank"} == {path.as_uri()}
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        # Every mark lies inside of its chart, and has a colour that is not the card's.
        assert page.evaluate(
            "[...document.querySelectorAll('svg')].every((svg) => { const b = svg.getBoundingClientRect(); return b.width > 300 && "
            "[...svg.children].every((e) => { const c = e.getBoundingClientRect(); "
            "return c.left >= b.left - 1 && c.right <= b.right + 1 && c.top >= b.top - 1 && c.bottom <= b.bottom + 1; }); })"
        )
        fills = "['.point', '.bar', '.interval', '.margin'].map((c) => getComputedStyle(document.querySelector('svg ' + c)).fill)"
        assert len(colours := set(page.evaluate(fills))) == 4 and "rgb(0, 0, 0)" not in colours
