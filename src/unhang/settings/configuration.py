"""`unhang.toml`: a project's own presets, what its runs begin with, and its script's flags. The nearest one counts, from the directory upwards.

[run]                       # settings of every `unhang run` here
preset = "conservative"
timeout = "30m"
fallback = "off"            # as --fallback and --fallback-limit
fallback-limit = "5m"
private = true              # as --private, also for unhang bench

[presets.small]             # presets of one's own
title = "for the small machine"
base = "basic"
batch = 256

[arguments]                 # the flags by which the script takes settings
batch = "--batch-size"

[knowledge]                 # directories of causes of one's own (`knowledge.site`)
causes = ["causes"]
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from unhang import fsio
from unhang.errors import UnhangError, unknown_name
from unhang.model import frozen
from unhang.settings import catalogue
from unhang.settings.setting import Choice, Value, flag, seconds, worded
from unhang.text import NOTHING, Text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = "unhang.toml"
_MOST_DOTS = 256
_TABLES = ("run", "presets", "arguments", "knowledge")
FALLBACKS = ("auto", "ask", "off")
# A trial imports torch, and what passes has to pass once more.
LEAST_FALLBACK_S = 30
# Of [run], beside settings.
_OF_A_RUN = ("preset", "fallback", "fallback-limit", "private")
_OF_A_PRESET = ("title", "base")
_MAX_BYTES = 1024 * 1024


@frozen
class Own:
    """A preset of the user's. `base` is the preset whose settings it begins with, "" for none."""

    name: str
    title: str
    base: str
    settings: Choice


@frozen
class Configuration:
    """What a file says; `path` is "" where there is none. `preset` and `fallback` are those of [run], "" for none."""

    path: str = ""
    preset: str = ""
    fallback: str = ""
    fallback_limit_s: float | None = None
    private: bool = False
    settings: Choice = field(default_factory=dict)
    presets: Mapping[str, Own] = field(default_factory=dict)
    arguments: Mapping[str, str] = field(default_factory=dict)
    # Why an existing file was ignored.
    ignored: Text = NOTHING


def find(start: Path) -> Path | None:
    """The nearest one, from a directory upwards, whatever it is: what cannot be read must not be passed over."""
    for directory in (start, *start.parents):
        path = directory / FILE
        try:
            path.lstat()
        except OSError:
            continue
        return path
    return None


def load(start: Path) -> Configuration:
    """Raises UnhangError that names the file and the key of what is wrong. A file that others can control is ignored."""
    path = find(start)
    if path is None:
        return Configuration()
    try:
        wrong = fsio.check_owner(path)
    except OSError as e:
        raise UnhangError(f"cannot read {path}: {e.strerror}") from e
    return read(path) if wrong is None else Configuration(ignored=wrong)


def read(path: Path) -> Configuration:
    """Raises UnhangError as `load` does."""
    try:
        data = fsio.bounded_read(path, _MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise UnhangError(f"{path} is larger than {_MAX_BYTES >> 20} MiB: no file of settings")
        # Some editors of Windows write a mark in front.
        # Of a key of so many parts each costs as much as all before it.
        if max(line.count(b".") for line in data.split(b"\n")) > _MOST_DOTS:
            raise UnhangError(f"{path} has a line with more than {_MOST_DOTS} dots: no file of settings")
        tables = tomllib.loads(data.decode("utf-8-sig"))
    except OSError as e:
        raise UnhangError(f"cannot read {path}: {e.strerror}") from e
    except ValueError as e:
        raise UnhangError(f"{path} is no TOML: {e}") from e
    except RecursionError as e:
        raise UnhangError(f"{path} is no TOML of settings: it is nested too deeply") from e
    for name in tables:
        if name not in _TABLES:
            raise _unknown(path, f"[{name}]", name, _TABLES, "tables")
    _once(path, "[run] ", _table(path, tables, "run"))
    _once(path, "presets.", _table(path, tables, "presets"))
    run = {_name(key) if _name(key) in _OF_A_RUN else key: value for key, value in _table(path, tables, "run").items()}
    table = _table(path, tables, "arguments")
    _once(path, "[arguments] ", table)
    found = {}
    for key, template in table.items():
        canonical = _setting(path, "[arguments]", key, ())
        text = _text(path, f"[arguments] {key}", template)
        if not text.strip():
            raise UnhangError(f"{path}: [arguments] {key} is empty, where the script's flag should stand", hint=f'{key} = "--{canonical}"')
        example = catalogue.SETTINGS[canonical].parse(catalogue.SETTINGS[canonical].example)
        try:
            words = [word for value in ((True, False) if isinstance(example, bool) else (example,)) for word in flag(text, value)]
        except ValueError as e:
            raise UnhangError(f"{path}: [arguments] {key} = {text!r}: {e}", hint=f'{key} = "--{canonical}"') from e
        if any("\0" in word for word in words):
            raise UnhangError(f"{path}: [arguments] {key} = {text!r} holds a NUL, which no program can be given", hint=f'{key} = "--{canonical}"')
        found[canonical] = text
    return Configuration(
        path=str(path),
        preset=_text(path, "[run] preset", run["preset"]) if "preset" in run else "",
        fallback=_word(path, "[run] fallback", run["fallback"], FALLBACKS) if "fallback" in run else "",
        fallback_limit_s=_seconds(path, "[run] fallback-limit", run["fallback-limit"], LEAST_FALLBACK_S) if "fallback-limit" in run else None,
        private=_bool(path, "[run] private", run.get("private", False)),
        settings=_settings(path, "[run]", run, _OF_A_RUN),
        presets={_name(n): _own(path, n, t) for n, t in _table(path, tables, "presets").items()},
        arguments=found,
    )


def _own(path: Path, name: str, table: object) -> Own:
    where = f"[presets.{name}]"
    if not isinstance(table, dict):
        raise UnhangError(f"{path}: presets.{name} is {table!r}, where a table of settings should stand", hint=f"{where} and below it key = value")
    return Own(
        name=_name(name),
        title=_text(path, f"{where} title", table["title"]) if "title" in table else "",
        base=_name(_text(path, f"{where} base", table["base"])) if "base" in table else "",
        settings=_settings(path, where, table, _OF_A_PRESET),
    )


def _settings(path: Path, where: str, table: Mapping[str, Any], besides: tuple[str, ...]) -> dict[str, Value]:
    _once(path, f"{where} ", table)
    found: dict[str, Value] = {}
    for key, value in table.items():
        if key in besides:
            continue
        canonical = _setting(path, where, key, besides)
        try:
            found[canonical] = catalogue.of_value(key, value)
        except UnhangError as e:
            raise UnhangError(f"{path}: {where} {e}", cause=e.cause, hint=e.hint) from e
    return found


def _once(path: Path, where: str, names: Iterable[str]) -> None:
    """TOML refuses a name that stands twice; ours may be spelt in several ways."""
    first: dict[str, str] = {}
    for name in names:
        if (other := first.setdefault(_name(name), name)) != name:
            raise UnhangError(f"{path}: {where}{other} and {where}{name} are one name in two spellings", hint="leave one of them out")


def _table(path: Path, tables: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = tables.get(name, {})
    if not isinstance(table, dict):
        raise UnhangError(f"{path}: {name} is {table!r}, where a table should stand", hint=f"[{name}] and below it key = value")
    return table


def _text(path: Path, where: str, value: object) -> str:
    if not isinstance(value, str):
        raise UnhangError(f"{path}: {where} = {value!r}: it is a text in quotes")
    return value


def _bool(path: Path, where: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise UnhangError(f"{path}: {where} = {value!r}: expected true or false")
    return value


def _word(path: Path, where: str, value: object, valid: tuple[str, ...]) -> str:
    # A bare word such as off is no TOML; false is the nearest to it.
    word = "off" if value is False else _text(path, where, value).strip().lower()
    if word not in valid:
        raise UnhangError(f"{path}: {where} = {value!r}: it is one of {', '.join(valid)}")
    return word


def _seconds(path: Path, where: str, value: object, least_s: float) -> float:
    try:
        return seconds(worded(round(value, 6)) if isinstance(value, (int, float)) else _text(path, where, value), least_s)
    except ValueError as e:
        raise UnhangError(f"{path}: {where} = {value!r}: {e}") from e


def _setting(path: Path, where: str, key: str, besides: tuple[str, ...]) -> str:
    if _name(key) not in catalogue.SETTINGS:
        raise _unknown(path, f"{where} {key}", key, (*besides, *catalogue.SETTINGS), "settings")
    return _name(key)


def _name(name: str) -> str:
    return name.strip().lower().replace("_", "-")


def _unknown(path: Path, where: str, name: str, valid: tuple[str, ...], what: str) -> UnhangError:
    return unknown_name(f"{path}: there is no {where}", name.lower().replace("_", "-"), valid, what)
