"""What to do about the exceptions that trainings raise most: the table `exceptions.tsv`, a line for each kind."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path

from unhang.frames import Frame
from unhang.knowledge.commands import command
from unhang.model import Remedy
from unhang.patterns import lazily
from unhang.user_files import is_user_file

ID = "for-this-exception"
# Of the text of an exception, which may hold a whole configuration.
_MOST_CHARS = 4000
# What called behind the user's own lines, by its files: a loader starts processes, and a checkpoint meets in collectives.
CALLERS = {
    "checkpoint": lazily(r"torch/(?:serialization|distributed/checkpoint/\w+)\.py$"),
    "loader": lazily(r"torch/utils/data/"),
    "collective": lazily(r"torch/distributed/distributed_c10d\.py$"),
    "start": lazily(r"torch/multiprocessing/spawn\.py$|multiprocessing/(?:process|context|popen_\w+)\.py$"),
}


def remedy(type: str, text: str, frames: Sequence[Frame] = ()) -> Remedy | None:
    """For an exception of this type with this text, raised in these frames; None where the table has none."""
    name, text = type.rpartition(".")[2], text[:_MOST_CHARS]
    inner = [f.file for f in takewhile(lambda f: not is_user_file(f.file), reversed(frames))]
    caller = next((caller for caller, files in CALLERS.items() if any(files.search(file) for file in inner)), "")
    for kinds, needles, pattern, says, says_zh, line in _lines():
        kind, _, called_by = kinds.partition("@")
        # To compile every pattern would take longer than all the rest.
        if kind not in ("-", name) or called_by not in ("", caller) or (needles != "-" and not any(needle in text for needle in needles.split("|"))):
            continue
        found = None if pattern == "-" else re.search(pattern, text)
        if pattern != "-" and found is None:
            continue
        groups = {k: v or "" for k, v in found.groupdict().items()} if found is not None else {}
        return Remedy(
            id=ID,
            says=_filled(says, groups),
            says_zh=_filled(says_zh, groups),
            command=None if line == "-" else command(line, **groups),
        )
    return None


def _lines() -> Iterator[list[str]]:
    for line in Path(__file__).with_name("exceptions.tsv").read_text("utf-8").splitlines():
        if not line.startswith("#"):
            yield line.split("\t")


def _filled(template: str, groups: dict[str, str]) -> str:
    """Braces of code, and those of what was captured, stay as they are."""
    return re.sub(r"\{([a-z])\}", lambda m: groups.get(m[1], m[0]), template)
