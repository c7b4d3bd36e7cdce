"""All settings by key, and presets: settings that go together, each with its reason. `choosing` adds to some presets what a machine has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from unhang import data
from unhang.errors import UnhangError, unknown_name
from unhang.i18n import msg
from unhang.model import frozen
from unhang.settings import spellings, support
from unhang.settings.setting import Choice, Installed, Setting, Spell, Spelled, Value, parser, typed, worded
from unhang.text import NOTHING, Text


def _spelling(key: str, known: Mapping[str, Any]) -> Spell:
    if "hook" in known:
        return spellings.by_hook(known["hook"])
    if "variable" not in known:
        return spellings.SPELLINGS.get(key) or spellings.by_script(known.get("llamafactory"))

    def spell(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
        return support.by_variable(installed, "nccl", known["variable"], known.get("written", {}).get(typed(value), str(value)))

    return spell


def _setting(key: str, known: Mapping[str, Any]) -> Setting:
    texts: dict[str, Any] = {name: msg(known[name], "setting") for name in ("title", "cost", "forms")}
    texts |= {name: known[name] for name in ("layer", "example", "flag", "instead") if name in known}
    return Setting(key=key, parse=parser(known["values"]), spelling=_spelling(key, known), **texts)


SETTINGS: Mapping[str, Setting] = {key: _setting(key, known) for key, known in data.table("settings/settings").items()}


def named(key: str) -> Setting:
    """The setting of that name; _ may stand for -. Raises UnhangError with the names that there are."""
    found = SETTINGS.get(key.strip().lower().replace("_", "-"))
    if found is None:
        raise unknown_name(f"there is no setting {key!r}", key.lower(), SETTINGS, "settings")
    return found


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


@frozen
class Preset:
    """`why` has the reason of each key. `origin` is the file that a preset of the user's stands in, "" for ours.

    `unfit` says why it does not suit this machine, NOTHING where it does or where nobody looked.
    """

    name: str
    title: Text
    cost: Text
    settings: Choice
    why: Mapping[str, Text] = field(default_factory=dict)
    origin: str = ""
    unfit: Text = NOTHING


# What belongs to the model and its data: a starting point for a script that names its flag, never in the place of what LLaMA-Factory's file says.
OF_THE_SCRIPT = ("batch", "gpu-cache")


def _presets() -> Mapping[str, Preset]:
    found: dict[str, Preset] = {}
    for name, known in data.table("settings/presets").items():
        like = found.get(known.get("like", ""))
        found[name] = Preset(
            name=name,
            title=msg(known["title"], "preset"),
            cost=msg(known["cost"], "preset"),
            settings={**(like.settings if like else {}), **known["settings"]},
            why={**(like.why if like else {}), **{key: msg(reason, "preset") for key, reason in known["why"].items()}},
        )
    return found


PRESETS = _presets()
