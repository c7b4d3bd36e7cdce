"""`make bench`: every benchmark is run, its last line becomes a table, and the page holds the tables of the results that are kept."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def loaded():
    spec = importlib.util.spec_from_file_location("benchmarks_script", ROOT / "scripts" / "benchmarks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def bench(tmp_path, monkeypatch):
    module = loaded()
    for folder in ("benchmarks", "docs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "docs" / "benchmarks.md").write_text(
        "# One\n<!-- results: one -->\nold\n<!-- end -->\nText 17.\n<!-- results: two -->\n<!-- end -->\n"
    )
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "BENCHMARKS", {"one": ("--n 2", "--n 1"), "two": ("", "")})
    told = {
        "benchmark": "one", "unit": "s", "median": 2.5, "min": 1, "max": 3.25, "starts": [3, 1, 2],
        "large": {"s": {"median": 1.0, "min": 0.5, "max": 2.0}, "peak_mb": 7},
        "small": {"s": {"median": 0.1, "min": 0.1, "max": 0.1}, "peak_mb": None},
    }  # fmt: skip
    (tmp_path / "benchmarks" / "one.py").write_text(f"import sys, json\nprint('noise', sys.argv)\nprint(json.dumps({told!r}))\n")
    (tmp_path / "benchmarks" / "two.py").write_text("raise SystemExit('it broke')\n")
    module.folder = tmp_path
    return module


def test_results_are_kept_and_become_tables(bench, capfd):
    assert bench.main([]) == 1 and "two printed no result and ended with 1" in capfd.readouterr().err
    kept = json.loads((bench.folder / "benchmarks" / "results.json").read_text())
    assert kept.keys() == {"one"} and kept["one"]["options"] == ["--n", "2"] and kept["one"]["machine"]["cores"] >= 1
    page = (bench.folder / "docs" / "benchmarks.md").read_text()
    assert "old" not in page and "Text 17." in page and page.count("Not measured yet") == 1 and "Measured on 20" in page
    assert "| value | 2.5 (1 to 3.25) |\n| starts | 1 to 3 |" in page
    assert "| what | s | peak mb |\n|---|---|---|\n| large | 1 (0.5 to 2) | 7 |\n| small | 0.1 |  |" in page
    assert socket.gethostname() not in json.dumps(kept["one"]["machine"]).split('"')
    assert bench.main(["--check"]) == 0
    (bench.folder / "docs" / "benchmarks.md").write_text(page.replace("2.5", "2.4"))
    assert bench.main(["--check"]) == 1 and "out of date" in capfd.readouterr().err
    assert bench.main(["--docs"]) == 0 and (bench.folder / "docs" / "benchmarks.md").read_text() == page
    assert bench.main(["--quick", "one"]) == 0 and (bench.folder / "docs" / "benchmarks.md").read_text() == page
    assert "`--n 1`" in (bench.folder / "build" / "benchmarks.md").read_text()


def test_every_benchmark_is_run_and_has_its_place_on_the_page():
    script = loaded()
    named = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text()}
    # It looks for the slowest of thousands of inputs, by hand.
    named.remove("hostile")
    assert named == script.BENCHMARKS.keys()
    assert {name for _, name, _ in script._MARKED.findall((ROOT / "docs" / "benchmarks.md").read_text("utf-8"))} == named


@pytest.mark.integration
@pytest.mark.timeout(900)
def test_all_of_them_run():
    done = subprocess.run([sys.executable, "scripts/benchmarks.py", "--quick"], cwd=ROOT, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads((ROOT / "build" / "benchmarks.json").read_text())
    page = (ROOT / "build" / "benchmarks.md").read_text()
    assert len(results) == page.count("Measured on ") == page.count("<!-- results: ") and "Not measured yet" not in page
