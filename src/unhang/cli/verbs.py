"""The verbs: a name, what the list of them says of it, and a module of that name. Only the one that was asked for is imported and put together."""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from unhang.cli import usage

# In the order of the list.
SAYS = {
    "run": "Run a training: watch it, say why it failed, start it again.",
    "top": "Show how a run stands: its ranks, where they are, who is waited for.",
    "why": "Say why a run failed, and what to do.",
    "doctor": "Say what of this machine will make a training fail.",
    "presets": "Show settings that go together, and what this machine makes of them.",
    "export": "Write settings in the form of a launcher, or check such a file.",
    "plan": "Say what of a training fits this hardware, and how to divide it.",
    "bench": "Measure what a setting costs: compare trainings that differ in it.",
    "pack": "Move an environment to other hosts, and prove that it works there.",
    "vars": "Say which variables are read here, and which are wrong.",
    "explain": "Print what is known of a cause.",
    "demo": "Break a small training in seven ways, and see each found.",
}


class Verbs(TyperGroup):
    """Its `commands` are for the list, for completion and for what somebody may have meant; whoever calls one gets the whole of it."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands.update((name, TyperCommand(name, short_help=says)) for name, says in SAYS.items())

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and whole(command.name or ""), rest

    def make_context(self, *args: Any, **more: Any) -> Any:
        with usage.told():
            return super().make_context(*args, **more)

    def invoke(self, ctx: Any) -> Any:
        with usage.told():
            return super().invoke(ctx)


def whole(name: str) -> Any:
    """One verb with its options, as a command that can be called."""
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    importlib.import_module(f"unhang.cli.{name}").register(alone)
    return typer.main.get_command(alone)
