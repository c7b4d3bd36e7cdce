from __future__ import annotations

import subprocess
import sys

import pytest

SAYS = "from unhang.runtime import log; log.warning('%d is switched off', 7)"


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("", "unhang: 7 is switched off\n"),
        ("import logging; logging.basicConfig(format='%(name)s says: %(message)s'); ", "unhang says: 7 is switched off\n"),
    ],
)
def test_what_the_library_says_has_its_name(before, said):
    done = subprocess.run([sys.executable, "-c", before + SAYS], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("", said)
