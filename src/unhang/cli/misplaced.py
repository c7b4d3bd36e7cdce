"""Options of `unhang run` that stand behind the script, and so go to it.

Many scripts have a --name or a --timeout of their own, and nobody but they can know: that is only told, and only where the script's text says nothing
of such an option. A --dry-run that starts a training is refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from unhang import files
from unhang.errors import UnhangError

_MAX_BYTES = 1024 * 1024
_STARTS = "--dry-run"


def notes(words: Sequence[str], own: Collection[str], *, meant: bool = False) -> list[str]:
    """What is to be told of them. `own` are the options' names; `meant`: the command stood behind "--". Raises UnhangError for a --dry-run."""
    begin = next((i for i, word in enumerate(words) if word.endswith(".py")), None)
    if begin is None or meant:
        return []
    script = words[begin]
    behind = list(dict.fromkeys(word.partition("=")[0] for word in words[begin + 1 :]))
    found = [name for name in behind if name in own]
    if not found:
        return []
    text = _text(Path(script))
    found = [name for name in found if not _knows(text, name)]
    if _STARTS in found:
        again = files.as_argument(script)
        raise UnhangError(
            f"{_STARTS} stands behind {script} and would go to it: the training would start",
            cause="options of unhang run go before the command",
            hint=f"unhang run {_STARTS} {again} ...; for a script that has one of its own: unhang run -- {again} {_STARTS}",
        )
    return [f"{name} stands behind {script} and goes to it; for unhang run put it before" for name in found]


def _text(script: Path) -> str:
    try:
        return files.bounded_read(script, _MAX_BYTES).decode("utf-8", "replace").lower()
    except OSError:
        return ""


def _knows(text: str, option: str) -> bool:
    words = option.removeprefix("--").split("-")
    return re.search(rf"(?<![a-z0-9_]){'[-_]'.join(map(re.escape, words))}(?![a-z0-9_])", text) is not None
