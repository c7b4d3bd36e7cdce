"""Every cause keeps what a cause promises: its lines hit, near misses do not, it is explained twice, sourced, and documented."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from unhang.knowledge import catalogue
from unhang.knowledge import causes as room
from unhang.records.logs import clean, match

ROOT = Path(__file__).resolve().parents[2]
CAUSES = catalogue.load()
SIGNATURES = catalogue.signatures()
# What CAUSES of the project's vocabulary look like; ids are never reused.
ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
BY_ID = [pytest.param(c, id=c.id) for c in CAUSES.values()]


def recognised(line: str) -> dict[str, set[str]]:
    """Cause id to roles, for a line as it would be read from a log."""
    found: dict[str, set[str]] = {}
    for hit in match(clean(line)[0], SIGNATURES, source="test"):
        found.setdefault(SIGNATURES[hit.signature], set()).add(hit.signature.role)
    return found


def test_the_catalogue_is_whole():
    needed = {
        "process-stuck", "straggler-timeout", "host-oom-or-killed", "rank-exception", "collective-mismatch", "rank0-guarded-collective",
        "premature-exit", "dataloader-deadlock", "port-in-use", "rendezvous-misconfig",
        "collective-timeout", "peer-lost", "store-disconnect", "launcher-teardown", "unhandled-generic",
    }  # fmt: skip
    assert needed <= set(CAUSES)
    files = {p.stem.replace("_", "-") for p in Path(room.__path__[0]).glob("*.py")} - {"--init--"}
    assert files == set(CAUSES)
    assert list(CAUSES) == list(catalogue.load())


@pytest.mark.parametrize("cause", BY_ID)
def test_it_is_told_completely(cause):
    assert ID.fullmatch(cause.id) and cause.role in ("root", "symptom")
    assert cause.title and cause.what and cause.why and not cause.title.endswith(".")
    assert set(cause.explain) == {"en", "zh"}
    assert re.search(r"[一-鿿]", cause.explain["zh"]) and re.search(r"[一-鿿]", cause.title_zh)
    assert not re.search(r"[一-鿿]", cause.explain["en"] + cause.title + cause.what + cause.why)
    assert cause.sources and all(s.startswith("https://") for s in cause.sources)
    if cause.role == "root":
        assert cause.remedies
    ids = [r.id for r in cause.remedies]
    assert len(ids) == len(set(ids)) and all(ID.fullmatch(i) for i in ids) and all(r.says for r in cause.remedies)
    assert cause.signatures or cause.in_run, "nothing would ever find it"


@pytest.mark.parametrize("cause", BY_ID)
def test_its_lines_hit_and_its_near_misses_do_not(cause):
    assert bool(cause.hits) == bool(cause.near_misses) == bool(cause.signatures)
    for line in cause.hits:
        assert cause.id in recognised(line), line
    for line in cause.near_misses:
        assert cause.id not in recognised(line), line


@pytest.mark.parametrize("cause", BY_ID)
def test_every_signature_has_a_line_and_its_own_role(cause):
    for signature in cause.signatures:
        assert signature.role == cause.role
        assert any(match(clean(line)[0], [signature], source="test") for line in cause.hits), signature
        assert SIGNATURES[signature] == cause.id, "another cause has the same signature"
        # A needle that is a word of everyday language would make every log be read line by line.
        assert len(signature.needle) >= 8


@pytest.mark.parametrize("cause", BY_ID)
def test_no_other_root_fires_on_its_lines(cause):
    for line in cause.hits:
        others = {c for c, roles in recognised(line).items() if "root" in roles and c != cause.id}
        assert others <= set(cause.mistaken_for), line
    for line in (*cause.hits, *cause.near_misses):
        for other in recognised(line).keys() - {cause.id}:
            assert other in CAUSES


@pytest.mark.parametrize("cause", BY_ID)
def test_victims_are_never_roots(cause):
    if cause.role == "symptom":
        for line in cause.hits:
            assert "root" not in set().union(*recognised(line).values()), line


@pytest.mark.parametrize("cause", BY_ID)
def test_patterns_take_no_time_on_hostile_lines(cause):
    for signature in cause.signatures:
        for filler in ("a", " ", "[", "(", "0", "Rank 1 ", "pid: "):
            match(signature.needle + filler * 20_000, [signature], source="test")


def test_the_file_reads_in_order():
    order = [
        "id",
        "role",
        "title",
        "title_zh",
        "what",
        "why",
        "signatures",
        "in_run",
        "in_logs",
        "remedies",
        "mistaken_for",
        "sources",
        "hits",
        "near_misses",
        "explain",
    ]
    for path in Path(room.__path__[0]).glob("[a-z]*.py"):
        calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "Cause"]
        (call,) = calls
        names = [k.arg for k in call.keywords]
        assert names == [n for n in order if n in names], path.name


def test_the_documentation_is_generated():
    ran = subprocess.run([sys.executable, str(ROOT / "scripts" / "generate_docs.py"), "--check"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr


def test_the_documentation_notices_a_change(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "scripts" / "generate_docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    assert module.main(["--check"]) == 1
    assert module.main([]) == 0 and module.main(["--check"]) == 0
    orphan = tmp_path / "docs" / "causes" / "gone.md"
    orphan.write_text("x")
    assert module.main(["--check"]) == 1
    assert module.main([]) == 0 and not orphan.exists()
