"""What the presets become on the recipe's own command line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.recipes.rvq.conftest import RECIPE


@pytest.mark.parametrize(
    ("preset", "words"),
    [
        ("basic", "--batch-size 1024 --workers 1"),
        ("gpu_cache", "--batch-size 1024 --workers 1 --gpu-cache 5000"),
        ("prefetch", "--batch-size 1024 --workers 1 --prefetch 2"),
        ("conservative", "--batch-size 512 --workers 0"),
    ],
)
def test_a_preset_reaches_the_script(preset, words):
    asked = ["run", "--preset", preset, "--dry-run", "--json", "--python", sys.executable, "-n", "2", "train.py"]
    done = subprocess.run([sys.executable, "-m", "unhang", *asked], cwd=RECIPE, capture_output=True, text=True, timeout=60, check=True)
    plan = json.loads(done.stdout)
    assert plan["command"][plan["command"].index("train.py") + 1 :] == words.split()
    assert (plan["environment"]["UNHANG_PIN_MEMORY"], plan["environment"]["UNHANG_PERSISTENT_WORKERS"]) == ("0", "0")
