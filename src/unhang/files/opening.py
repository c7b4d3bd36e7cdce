"""Which format a file has, by its name, else by how it begins."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath

from unhang.errors import UnhangError
from unhang.files import dockerfile, python_file, shell, yaml_file
from unhang.files.found import Found, Item, Parsed, Said, Unclosed

_SHEBANG_OF_PYTHON = re.compile(r"#!.*\bpython")
# Files written by hand are far smaller; larger ones take seconds and much memory to parse.
MAX_BYTES = 256 * 1024
MOST_SETTINGS = 2000
OTHER_SHELLS = (".csh", ".tcsh", ".fish")
_SHEBANG_OF_OTHERS = re.compile(r"#!.*\b(?:t?csh|fish)\b")
_DOCKER = re.compile(r"(?:[\w.-]*\.)?(?:dockerfile|containerfile)(?:\.[\w.-]+)?", re.IGNORECASE)
_FROM = re.compile(r"(?:[ \t\r]*(?:#.*|ARG[ \t].*)?\n)*FROM\s+\S", re.IGNORECASE)


def parse(name: str, text: str) -> Parsed:
    """Raises UnhangError where the text is not what its name says, and for scripts of csh and fish."""
    items = list(_items(name, text))
    return Parsed(
        settings=tuple(one for one in items if isinstance(one, Found)),
        options=tuple(one for one in items if isinstance(one, Said)),
        unclosed=tuple(one for one in items if isinstance(one, Unclosed)),
    )


def _items(name: str, text: str) -> Iterable[Item]:
    suffix = PurePath(name).suffix.lower()
    if suffix in OTHER_SHELLS or _SHEBANG_OF_OTHERS.match(text):
        raise UnhangError(f"{name} is a script of csh or fish, which is not read")
    if suffix == ".py" or _SHEBANG_OF_PYTHON.match(text):
        return python_file.parse(text, name=name)
    if suffix in (".yaml", ".yml", ".json"):
        return yaml_file.parse(text, name=name, is_json=suffix == ".json")
    if _DOCKER.fullmatch(PurePath(name).name) or _FROM.match(text):
        return dockerfile.parse(text)
    return shell.parse(text, for_others=name.endswith(".env"))


def check_number(settings: int) -> None:
    """Raises UnhangError for more settings than can be judged in a second or two."""
    if settings > MOST_SETTINGS:
        raise UnhangError(f"more than {MOST_SETTINGS} variables are set in it: that is no file of a launcher")
