"""How a shell reads a command, and what a stranger writes to become more than one word of it."""

from __future__ import annotations

import re
import shlex

HOSTILE = (
    "$(x);x", "`x`", "'", '"', "a\nb", "-oProxyCommand=x", "--x", "a b", "*", "~x", "|x", "&x", ">x", "<x", "\\", "a\\", "#x", "$HOME", "!x", "{a,b}",
    "x'$(x)'x", 'x"$(x)"x', "x\u200b", "\ufeffx", "x\U000e0041", "\x1b[2Jx", "\u202ex", "a\rb", "a\0b", "", "a COMMAND b", "１",
)  # fmt: skip
# In both of these a shell does nothing with what stands there.
_QUOTED = re.compile(r"'[^']*'|\"'\"|\\.")


def shape(command: str) -> tuple[str, tuple[bool, ...]]:
    """What is special in a command to a shell, in order, with "w" for everything else; and which of its words look like options."""
    assert command.isprintable(), command
    bare = re.sub(r"[\w@%+=:,./^-]+", "w", _QUOTED.sub("w", command))
    return re.sub("w+", "w", bare), tuple(word.startswith("-") for word in shlex.split(command, comments=True))
