"""Settings and presets as tables of the documentation (Markdown, both languages)."""

from __future__ import annotations

from collections.abc import Iterator

from unhang.facts.snapshot import Snapshot
from unhang.report.settings import spelt
from unhang.settings import choosing
from unhang.settings.catalogue import SETTINGS
from unhang.settings.choosing import Here
from unhang.settings.setting import Installed, Setting, Spelled, typed

_MADE = "<!-- made by scripts/generate_docs.py; do not edit -->"
# What an example is spelt for: releases that the tables of readers hold.
_FOR = Installed(
    torch=(2, 13),
    nccl=(2, 30, 7),
    packages={"accelerate": "1.15.0", "deepspeed": "0.19.8", "lightning": "2.6.6", "transformers": "5.23.0", "llamafactory": "0.9.5"},
    gpus=8,
)
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "llamafactory")


def settings() -> str:
    """One row for each setting."""
    lines = [
        _MADE,
        "# Settings",
        "",
        "What `--set KEY=VALUE`, presets and `unhang.toml` take. The last column is what the example becomes for torch 2.13 with NCCL 2.30.7,",
        "accelerate 1.15.0, DeepSpeed 0.19.8 and LLaMA-Factory 0.9.5 under torchrun, or under another launcher where that differs;",
        "`unhang run --dry-run` shows it for what is installed. A dash: only the script can, `[arguments]` of unhang.toml.",
        "",
        "| key | values | what it is | 含义 | what it costs | 代价 | example |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| `{s.key}` | {s.forms} | {s.title} | {s.title.of('zh')} | {s.cost} | {s.cost.of('zh')} | {'; '.join(_examples(s)) or '–'} |"
        for s in SETTINGS.values()
    ]
    return "\n".join(lines) + "\n"


def _examples(setting: Setting) -> Iterator[str]:
    value = setting.parse(setting.example)
    of_torchrun = setting.spell(value, _FOR, _LAUNCHERS[0])
    if isinstance(of_torchrun, Spelled):
        yield f"`{setting.key}={setting.example}`: `{spelt(of_torchrun)}`"
    for launcher in _LAUNCHERS[1:]:
        other = setting.spell(value, _FOR, launcher)
        if isinstance(other, Spelled) and other != of_torchrun:
            yield f"{launcher}: `{spelt(other)}`"


def presets() -> str:
    """One section for each preset. Those that are chosen from facts are shown with what they set on every machine."""
    lines = [_MADE, "# Presets", ""]
    here = Here(snapshot=Snapshot(host="", taken=""), installed=_FOR)
    for name in choosing.NAMES:
        one = choosing.preset(name, here)
        lines += [f"## {name}", "", f"{one.title}. Cost: {one.cost}.", "", f"{one.title.of('zh')}。代价：{one.cost.of('zh')}。", ""]
        if one.settings:
            lines += ["| setting | why | 原因 |", "|---|---|---|"]
            lines += [f"| `{key}={typed(value)}` | {one.why[key]} | {one.why[key].of('zh')} |" for key, value in one.settings.items()]
            lines.append("")
    return "\n".join(lines)
