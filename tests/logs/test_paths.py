"""Names from the command line: how they are named there again."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from unhang import fsio


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("runs/a", "runs/a"),
        ("runs/a b", "'runs/a b'"),
        ("-x", "./-x"),
        ("-", "./-"),
        ("-x/logs/attempt-0", "./-x/logs/attempt-0"),
        ("--json a", "'./--json a'"),
        (Path("./-x"), "./-x"),
        ("/-x", "/-x"),
    ],
)
def test_a_path_is_no_option(path, word):
    assert fsio.as_argument(path) == word
    assert Path(shlex.split(word)[0]) == Path(path)
