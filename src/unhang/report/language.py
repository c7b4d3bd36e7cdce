"""The languages that explanations and fixed labels come in.

What a finding says about a run knows how it is told in another language (`unhang.text.Text`); else it stays English.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Literal, cast, get_args

from unhang.errors import UnhangError
from unhang.i18n import Text, Words, sentences

Language = Literal["en", "zh"]

STANDINGS = Words("standings")

LABELS = Words("labels")

# Contexts of sentences in the catalogue that are translated from finished English: {} stands for a value, and a sentence may stand in its place.
#   reason      of things that were not examined, whole
#   refusal     of commands, and what they note
#   unseen      of what could not be looked at on a machine, or is not there: a snapshot brings it in English, from any host
#   unexamined  of what could not be looked at of a run: records and verdicts bring it in English, also those of other machines
BACKWARDS = ("reason", "refusal", "unseen", "unexamined")
_DEEPEST = 3
_asked: Language | None = None


def refusal(said: str, lang: Language | None = None) -> str:
    """An error of a command, its cause or its hint; without a language in the one that the command was asked for, or else the locale's."""
    return _chinese(said) if (lang or spoken()) == "zh" else said


def unseen(said: str, lang: Language) -> str:
    """What of a machine could not be looked at or is not there, and why; as it is where that is what the system said."""
    return _chinese(said, also="unseen") if lang == "zh" else said


def _chinese(said: str, *, also: str = "", piecewise: bool = True) -> str:
    return said.of("zh") if isinstance(said, Text) else _in_chinese(said, also=also, piecewise=piecewise)


def _in_chinese(said: str, depth: int = 0, *, also: str = "", piecewise: bool = True) -> str:
    """`also` is a context beside "refusal"; with `piecewise` what is put together of several sentences, each with where it comes from."""
    # A setting is named by its title.
    if (whole := sentences("reason").get(said) or sentences("setting").get(said)) is not None:
        return whole
    # What says more by itself fits better.
    known = [pair for name in ("refusal", also) if name for pair in sentences(name).items()]
    for english, translated in sorted(known, key=lambda sentence: -len(sentence[0].replace("{}", ""))):
        # Hundreds of patterns would take longer to compile than all else.
        if not all(part in said for part in english.split("{}")):
            continue
        pattern = "(.*?)".join(re.escape(part) for part in english.split("{}"))
        if (found := re.fullmatch(pattern, said, re.DOTALL)) is not None:
            return translated.format(
                *(_in_chinese(value, depth + 1, also=also, piecewise=piecewise) if depth < _DEEPEST else value for value in found.groups())
            )
    if also and piecewise:
        return _piecewise(said, depth + 1, also) if depth < _DEEPEST else said
    parts = [(part, _named(part)) for part in said.split("; ")]
    return "；".join(named or part for part, named in parts) if any(named for _, named in parts) else said


def _piecewise(said: str, depth: int, also: str) -> str:
    """Several reasons, each for itself, and where each comes from: "journalctl: Permission denied; dmesg: it shows nothing"."""
    if len(parts := said.split("; ")) > 1:
        return "；".join(_in_chinese(part, depth, also=also) for part in parts)
    name, colon, why = said.partition(": ")
    return f"{name}：{_in_chinese(why, depth, also=also)}" if colon else said


def _named(said: str) -> str | None:
    """Something that was not examined, with the reason."""
    colons = [found.start() for found in re.finditer(": ", said)]
    return next((f"{said[:at]}：{found}" for at in colons if (found := sentences("reason").get(said[at + 2 :]))), None)


def spoken() -> Language:
    """What was asked for last, for what is said when all else has failed."""
    return _asked or from_locale(os.environ)


def reason(said: str, lang: Language) -> str:
    """What was not examined, or why, in a language; as it is where that is of one run only, or what the system said."""
    return _chinese(said, also="unexamined", piecewise=False) if lang == "zh" else said


def chosen(lang: str | None) -> Language:
    """The language that was asked for, else the locale's. Raises UnhangError for one that does not exist."""
    global _asked
    _asked = None
    if lang is None:
        return from_locale(os.environ)
    if lang not in get_args(Language):
        raise UnhangError(f"--lang {lang}: it is one of {', '.join(get_args(Language))}")
    _asked = cast(Language, lang)
    return _asked


def from_locale(environment: Mapping[str, str]) -> Language:
    value = next((v for name in ("LC_ALL", "LC_MESSAGES", "LANG") if (v := environment.get(name))), "")
    return "zh" if value.lower().startswith("zh") else "en"
