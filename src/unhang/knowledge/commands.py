"""Puts values into the commands that people paste, quoted for the shell; refuses invalid ones.

Values come from untrusted logs, dumps, run directories and hosts, and suggested commands are pasted unread, often as root.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from string import Formatter
from typing import NewType, cast

from unhang import fsio
from unhang.patterns import lazily

# A shell command. Only `command` makes one, so mypy rejects any other str.
Command = NewType("Command", str)

_HOST = r"(?=.{1,253}\Z)[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?"
_IPV4 = r"(?:[0-9]{1,3}\.){3}[0-9]{1,3}"
_IPV6 = rf"[0-9A-Fa-f]{{0,4}}(?::[0-9A-Fa-f]{{0,4}}){{1,7}}:(?:[0-9A-Fa-f]{{0,4}}|{_IPV4})"
_PORT = r"[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
# Valid values of each kind. ASCII only, against look-alikes.
_KINDS = {
    "host": lazily(rf"{_HOST}|{_IPV6}(?:%[A-Za-z0-9_.-]{{1,15}})?"),
    "login": lazily(rf"(?:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,63}}@)?{_HOST}|{_IPV6}"),
    "network": lazily(rf"(?:{_IPV4}|{_IPV6})(?:/[0-9]{{1,3}})?"),
    "port": lazily(_PORT),
    # At most 4194304 on Linux (PID_MAX_LIMIT).
    "pid": lazily(r"[1-9][0-9]{0,6}"),
    "number": lazily(r"[0-9]{1,18}(?:\.[0-9]{1,9})?"),
    "interface": lazily(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,14}"),
    "pci": lazily(r"(?:[0-9A-Fa-f]{1,8}:)?[0-9A-Fa-f]{1,2}:[0-9A-Fa-f]{1,2}(?:\.[0-7])?"),
    "variable": lazily(r"[A-Za-z_][A-Za-z0-9_]{0,127}"),
    # A device, module, package or release.
    "name": lazily(r"[A-Za-z0-9_][A-Za-z0-9_.:+,-]{0,127}"),
    "requirement": lazily(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}==[0-9][A-Za-z0-9_.+!*-]{0,63}"),
}
_MOST_CHARS = 4096
# Placeholders that the run's own words replace later; inside quotes they would end them.
PYTHON = "/path/to/env/bin/python"
_PLACEHOLDERS = ("COMMAND", PYTHON)
# Where anybody may put a program, and what may lead there: a log that names one has it run by whoever pastes the command.
_ANYBODYS = lazily(r"[/.]+(?:(?:usr|var)[/.]+)?(?:tmp|lock|crash|dev|proc|run)/|(?:.*/)?\.\.(?:/|$)")
_BETWEEN = {"*": " ", ",": ","}


def command(template: str, /, **values: object) -> Command | None:
    """Fill in a template; None if a value is None or invalid for its kind.

    Each field names its kind, one of `_KINDS`, `path` or `text` (any single word): `{host:host}`. `{pids:pid,}` joins several values with commas,
    `{files:path*}` with blanks. Paths, programs (paths that are run) and texts may be quoted, so a template must not have these within quotes.
    """
    parts = []
    for literal, name, kind, _ in Formatter().parse(template):
        parts.append(literal)
        if name is not None and kind is not None:
            word = _word(kind, Formatter().get_field(name, (), values)[0])
            if word is None:
                return None
            parts.append(word)
    return Command("".join(parts))


def _is_ours(path: str, begin: int) -> bool:
    """Whether only we can change what stands at a path, from the name behind `begin` on: an environment in /tmp may be the user's own."""
    if not path.startswith(("/tmp/", "/var/tmp/")) or ".." in path:
        return False
    ends = [i for i in range(begin + 1, len(path)) if path[i] == "/"] + [len(path)]
    try:
        return not any(fsio.check_owner(path[:end]) for end in ends)
    except (OSError, ValueError):
        return False


def _word(kind: str, value: object) -> str | None:
    if value is None:
        return None
    if (between := _BETWEEN.get(kind[-1])) is not None:
        words = [_word(kind[:-1], one) for one in cast(Iterable[object], value)]
        return None if not words or None in words else between.join(filter(None, words))
    text = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    if any(word in text for word in _PLACEHOLDERS):
        return None
    if kind not in ("path", "program", "text"):
        return shlex.quote(text) if _KINDS[kind].fullmatch(text) else None
    # A line break would end a comment, and invisible characters deceive the reader.
    if not text.isprintable() or len(text) > _MOST_CHARS or (kind != "text" and not text):
        return None
    if kind == "program" and (found := _ANYBODYS.match(text)) is not None and not _is_ours(text, found.end()):
        return None
    return shlex.quote(f"./{text}" if kind != "text" and text.startswith("-") else text)
