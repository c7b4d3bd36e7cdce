"""Names that programs know, from known/*.yaml, and the one that was meant by a name that they do not know."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from functools import cache
from importlib import resources

from unhang.knowledge.text import NOTHING, Text, same


@cache
def known(program: str) -> Mapping[str, frozenset[str]]:
    """Names by section; those of nested sections by their dotted path."""
    import yaml

    read = yaml.safe_load(resources.files(__package__).joinpath("known").joinpath(f"{program}.yaml").read_text("utf-8"))
    return {path: frozenset(words.split()) for path, words in read.items()}


def nearest(name: str, among: Collection[str]) -> Text:
    """What to write instead; nothing where none is near."""
    small = name.lower()
    near = next(iter(difflib.get_close_matches(small, sorted(among), 1, 0.6)), None)
    if near is None and len(small) > 2:
        near = next((one for one in sorted(among) if one.startswith(small)), None)
    return same(near) if near else NOTHING
