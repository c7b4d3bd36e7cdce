"""The recipe's modules import each other as siblings, so its directory has to be on the path."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

RECIPE = Path(__file__).parents[3] / "recipes" / "rvq"

sys.path.insert(0, str(RECIPE))

for needed in ("torch", "numpy"):
    pytest.importorskip(needed, reason=f"the recipe needs {needed}")
