"""Presets: settings that go together, each with its reason. `choosing` adds to some of them what a machine has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unhang import data
from unhang.i18n import msg
from unhang.settings.setting import Choice
from unhang.text import NOTHING, Text


@dataclass(frozen=True, kw_only=True)
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
