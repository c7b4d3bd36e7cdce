"""Writes the documentation that is made from code: the index of causes and docs/settings. With --check, reports what is out of date and exits with 1.

`--pages DIR` writes a page for each cause in both languages, which belong to a release and are not kept in git.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from unhang.facts.snapshot import Snapshot
from unhang.knowledge import catalogue
from unhang.knowledge.cause import Cause
from unhang.report.cause_page import part
from unhang.report.settings import spelt
from unhang.settings import choosing
from unhang.settings.catalogue import SETTINGS
from unhang.settings.choosing import Here
from unhang.settings.setting import Installed, Setting, Spelled, typed

ROOT = Path(__file__).resolve().parent.parent
MADE = "<!-- made by scripts/generate_docs.py; do not edit -->"
# What an example is spelt for: releases that the tables of readers hold.
FOR = Installed(
    torch=(2, 13),
    nccl=(2, 30, 7),
    packages={"accelerate": "1.15.0", "deepspeed": "0.19.8", "lightning": "2.6.6", "transformers": "5.23.0", "llamafactory": "0.9.5"},
    gpus=8,
)
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "llamafactory")


def page(cause: Cause) -> str:
    """The page of a release, English first."""
    return f"# {cause.id}\n\n{part(cause, 'en')}\n---\n\n{part(cause, 'zh')}"


def index(causes: Iterable[Cause]) -> str:
    """The table of all causes."""
    lines = [
        MADE,
        "# Causes",
        "",
        "Every verdict names one of these. A root can be the primary cause; a symptom only says that somebody else failed or was late.",
        "`unhang explain CAUSE` prints all that is known of one: why it happens, how it looks, what to do, what it is mistaken for.",
        "",
        "| cause | role | what it means | 含义 |",
        "|---|---|---|---|",
    ]
    lines += [f"| {c.id} | {c.role} | {c.title} | {c.title.of('zh')} |" for c in causes]
    return "\n".join(lines) + "\n"


def settings_table() -> str:
    """One row for each setting."""
    lines = [
        MADE,
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
        f"| `{s.key}` | {s.forms} | {s.title} | {s.title.of('zh')} | {s.cost} | {s.cost.of('zh')} | {'; '.join(examples(s)) or '–'} |"
        for s in SETTINGS.values()
    ]
    return "\n".join(lines) + "\n"


def examples(setting: Setting) -> Iterator[str]:
    value = setting.parse(setting.example)
    of_torchrun = setting.spell(value, FOR, LAUNCHERS[0])
    if isinstance(of_torchrun, Spelled):
        yield f"`{setting.key}={setting.example}`: `{spelt(of_torchrun)}`"
    for launcher in LAUNCHERS[1:]:
        other = setting.spell(value, FOR, launcher)
        if isinstance(other, Spelled) and other != of_torchrun:
            yield f"{launcher}: `{spelt(other)}`"


def presets_table() -> str:
    """One section for each preset. Those that are chosen from facts are shown with what they set on every machine."""
    lines = [MADE, "# Presets", ""]
    here = Here(snapshot=Snapshot(host="", taken=""), installed=FOR)
    for name in choosing.NAMES:
        one = choosing.preset(name, here)
        lines += [f"## {name}", "", f"{one.title}. Cost: {one.cost}.", "", f"{one.title.of('zh')}。代价：{one.cost.of('zh')}。", ""]
        if one.settings:
            lines += ["| setting | why | 原因 |", "|---|---|---|"]
            lines += [f"| `{key}={typed(value)}` | {one.why[key]} | {one.why[key].of('zh')} |" for key, value in one.settings.items()]
            lines.append("")
    return "\n".join(lines)


def kept() -> dict[Path, str]:
    """Every generated file that git keeps, and what it has to hold."""
    of_settings = ROOT / "docs" / "settings"
    return {
        ROOT / "docs" / "causes" / "index.md": index(catalogue.load().values()),
        of_settings / "settings.md": settings_table(),
        of_settings / "presets.md": presets_table(),
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--pages", type=Path, metavar="DIR")
    asked = parser.parse_args(arguments)
    wanted = kept() if asked.pages is None else {asked.pages / f"{cause.id}.md": page(cause) for cause in catalogue.load().values()}
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text("utf-8") != text]
    if asked.check:
        for path in stale:
            sys.stderr.write(f"{path} is out of date\n")
        if stale:
            sys.stderr.write("Try: python scripts/generate_docs.py\n")
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path], "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
