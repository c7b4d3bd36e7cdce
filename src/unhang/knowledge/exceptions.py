"""What to do about the exceptions that trainings raise most: the table `exceptions.toml`, a section for each kind."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile

from unhang import data
from unhang.frames import Frame
from unhang.i18n import msg
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
    for known in data.table("knowledge/exceptions")["exceptions"]:
        kind, _, called_by = known.get("of", "").partition("@")
        # To compile every pattern would take longer than all the rest.
        if kind not in ("", name) or called_by not in ("", caller) or not any(needle in text for needle in known.get("needles", ("",))):
            continue
        if (found := re.search(known.get("pattern", ""), text)) is not None:
            groups = {k: v or "" for k, v in found.groupdict().items()}
            says = msg(known["says"])
            for name, value in groups.items():
                says = says.edited(rf"\{{{name}\}}", value) if len(name) == 1 else says
            return Remedy(id=ID, says=says, command=command(known["command"], **groups) if "command" in known else None)
    return None
