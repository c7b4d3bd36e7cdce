"""What programs outside rely on changes only on purpose: `scripts/promises.py` writes it down, and the diff shows it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_documents_and_the_library_are_as_promised():
    spec = importlib.util.spec_from_file_location("promises", ROOT / "scripts" / "promises.py")
    promises = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(promises)
    written = {p.name: p.read_text() for p in (ROOT / "docs" / "schemas").glob("*.json")}
    assert promises.schemas() == written
    assert promises.library() == (ROOT / "tests" / "conformance" / "library.txt").read_text()
