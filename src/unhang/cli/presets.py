"""unhang presets: settings that go together, and what this machine makes of each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unhang.cli import json_errors
from unhang.cli.options import Lang, NoColor
from unhang.errors import UnhangError
from unhang.report import language, screen


def register(app: typer.Typer) -> None:
    app.command("presets")(presets)


def _complete(begun: str) -> list[str]:
    from unhang.settings.choosing import NAMES

    return [name for name in NAMES if name.startswith(begun)]


def presets(
    name: Annotated[str | None, typer.Argument(metavar="NAME", autocompletion=_complete, help="One preset, key by key.", show_default="all")] = None,
    settings: Annotated[bool, typer.Option("--settings", help="List the settings that --set takes instead.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    python: Annotated[
        str | None, typer.Option(metavar="PATH", help="The training's Python.", show_default="ours if it has torch, else the first on PATH")
    ] = None,
    lang: Lang = None,
    no_color: NoColor = False,
) -> None:
    """Show what each preset sets, why, what it costs, and what of it this machine would reject.

    Presets of your own stand in unhang.toml. Start with one by `unhang run --preset NAME`; change a part of it by --set KEY=VALUE.
    """
    from unhang.cli import settings as asked
    from unhang.launch import command as commands
    from unhang.report import settings as report
    from unhang.settings import plan
    from unhang.settings.catalogue import SETTINGS

    chosen = language.chosen(lang)
    console = screen.console()
    if settings:
        if name is not None:
            raise UnhangError(f"--settings lists all settings: it takes no preset ({name})")
        if as_json:
            listed = [
                {
                    "key": s.key,
                    "layer": s.layer,
                    "title": s.title.of(chosen),
                    "values": s.forms,
                    "cost": s.cost.of(chosen),
                }
                for s in SETTINGS.values()
            ]
            json_errors.print_json({"schema": report.PRESETS_SCHEMA, "settings": listed})
            return
        console.print_all(report.catalogue(SETTINGS.values(), screen.width(console), chosen))
        return
    configured = asked.configured(Path.cwd())
    here = asked.here(python or commands.training_python(), looks=True)
    found = [plan.preset(n, here, configured) for n in ((name,) if name is not None else plan.names(configured))]
    judged = [(p, plan.of_preset(p, here, configured)) for p in found]
    if as_json:
        listed = [report.of_preset(p, a, SETTINGS, chosen) for p, a in judged]
        json_errors.print_json({"schema": report.PRESETS_SCHEMA, "here": here.installed, "presets": listed})
        return
    width = screen.width(console)
    if name is not None:
        lines = report.page(*judged[0], SETTINGS, here.installed, width, chosen)
    else:
        lines = report.overview(judged, here.installed, width, chosen)
    console.print_all(lines)
