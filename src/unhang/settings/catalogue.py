"""All settings by key."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from unhang.errors import UnhangError
from unhang.settings import communication, runtime, timeouts
from unhang.settings.setting import Setting, Value, worded

SETTINGS: Mapping[str, Setting] = {s.key: s for s in (*communication.SETTINGS, *timeouts.SETTINGS, *runtime.SETTINGS)}


def named(key: str) -> Setting:
    """The setting of that name; _ may stand for -. Raises UnhangError with the names that there are."""
    found = SETTINGS.get(key.strip().lower().replace("_", "-"))
    if found is not None:
        return found
    near = difflib.get_close_matches(key.lower(), SETTINGS, 1)
    raise UnhangError(f"there is no setting {key!r}", cause=f"did you mean {near[0]}?" if near else None, hint=f"settings: {', '.join(SETTINGS)}")


def parse(key: str, text: str) -> Value:
    """A value as it was typed. Raises UnhangError for a key that does not exist, or a value that is none of that setting's."""
    setting = named(key)
    try:
        return setting.parse(text)
    except ValueError as e:
        raise UnhangError(f"{setting.key}={text}: {e}", hint=f"unhang presets --settings shows every setting; {setting.key}: {setting.title}") from e


def of_value(key: str, value: object) -> Value:
    """The same of a value that TOML or JSON has read."""
    if not isinstance(value, (bool, int, float, str)):
        raise UnhangError(f"{key} = {value!r}: a setting is a word, a number, true or false")
    return parse(key, worded(value))
