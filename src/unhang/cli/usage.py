"""Options and arguments that do not exist, are missing or have no such value: what typer says of them, in Chinese where that is spoken."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import IO, Any

import typer

from unhang.cli import refused

_BEGINS = "Usage: "


@contextlib.contextmanager
def told() -> Iterator[None]:
    try:
        yield
    except Exception as e:
        # Its class has a home of its own in each version of typer. Help that is shown for want of arguments is no error.
        if hasattr(e, "format_message") and type(e).__name__ != "NoArgsIsHelpError":
            _translate(e)
            _tell(e)
        raise


def _tell(error: Any) -> None:
    hint = f"{error.ctx.command_path} -h" if error.ctx is not None else None
    refused.tell(error.format_message(), exitcode=error.exit_code, hint=hint, misread=True)


def _translate(error: Any) -> None:
    from unhang.report import language

    as_it_is = error.show
    # Its own way to standard error would go around ours where that is no UTF-8.
    error.show = lambda file=None: as_it_is(file or sys.stderr)
    if language.spoken() != "zh":
        return
    said = language.refusal(error.format_message())

    def show(file: IO[Any] | None = None) -> None:
        file = file or sys.stderr
        if (context := getattr(error, "ctx", None)) is not None:
            typer.echo(f"用法：{context.get_usage().removeprefix(_BEGINS)}", file=file)
            for name in context.help_option_names[:1]:
                typer.echo(f"用 {context.command_path} {name} 查看帮助。\n", file=file)
        typer.echo(f"错误：{said}", file=file)

    error.show = show
