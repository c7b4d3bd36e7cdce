"""Documents for contributors name only modules and folders that exist."""

import re

import pytest
from tests.conformance.test_import_map import PACKAGE

ROOT = PACKAGE.parents[1]
# `room/module` and `room/module.py`; also `tests/conformance` and other paths of the repository.
PATH = re.compile(r"`((?:[a-z_]+/)+[\w.]+)/?`")


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_paths_in_documents_exist(name):
    paths = PATH.findall((ROOT / name).read_text())
    assert paths and [p for p in paths if not any((top / f"{p}{end}").exists() for top in (PACKAGE, ROOT) for end in ("", ".py"))] == []
