"""unhang why: the verdict on a run that failed, from its run directory or from logs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from unhang.model import Verdict


def register(app: typer.Typer) -> None:
    app.command("why")(why)


def why(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="A run directory (of several in one place the newest), or log files and directories of them."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="The verdict as JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="The whole verdict as Markdown.")] = False,
    incident: Annotated[int | None, typer.Option(metavar="N", min=1, help="Judge this incident of the run.", show_default="the last one")] = None,
    lang: Annotated[str | None, typer.Option(help="en or zh.", show_default="from the locale")] = None,
    no_color: Annotated[bool, typer.Option("--no-color", help="No colours (NO_COLOR does the same).")] = False,
) -> None:
    """Say why a run failed: cause, rank, line of code, evidence, and what to do.

    Needs no GPU, no torch and no network; a run directory can be judged on another machine.

    Exit code: 0 if nothing was found, 1 if something was found, 2 for bad input.
    """
    from unhang.errors import EXIT_FOUND, EXIT_OK
    from unhang.report import language

    chosen = language.chosen(lang)
    verdict = _judge(paths, incident)
    if as_json:
        import sys

        import msgspec

        sys.stdout.write(msgspec.json.format(msgspec.json.encode(verdict), indent=2).decode() + "\n")
    elif markdown:
        from unhang.report.markdown import render as render_markdown

        typer.echo(render_markdown(verdict, lang=chosen), nl=False)
    else:
        from rich.console import Console

        from unhang.report.terminal import render

        render(verdict, Console(no_color=no_color or None, highlight=False), lang=chosen)
    raise typer.Exit(EXIT_OK if verdict.primary is None else EXIT_FOUND)


def _judge(paths: list[Path], incident: int | None) -> Verdict:
    from unhang.diagnosis.plain_logs import judge_logs
    from unhang.diagnosis.why import judge, runs_in
    from unhang.errors import UnhangError
    from unhang.records.rundir import RunDir

    for path in paths:
        if not path.exists():
            raise UnhangError(f"{path} does not exist")
    rundirs = [p for p in paths if (p / "run.json").is_file()]
    if rundirs and len(paths) > 1:
        raise UnhangError(f"{rundirs[0]} is a run directory: give it alone", hint=f"unhang why {rundirs[0]}")
    if rundirs:
        return judge(RunDir.open(rundirs[0]), number=incident)
    if len(paths) == 1 and (runs := runs_in(paths[0])):
        return _newest(runs, paths[0], incident)
    if incident is not None:
        raise UnhangError(f"--incident {incident}: only a run directory has incidents, and {paths[0]} is none")
    return judge_logs(paths)


def _newest(runs: list[Path], folder: Path, incident: int | None) -> Verdict:
    from dataclasses import replace

    from unhang.diagnosis.why import judge
    from unhang.model import NotExamined
    from unhang.records.rundir import RunDir

    newest, others = runs[-1], len(runs) - 1
    typer.echo(f"unhang: judging {newest}" + (f", the newest of {len(runs)} runs in {folder}" if others else ""), err=True)
    verdict = judge(RunDir.open(newest), number=incident)
    if not others:
        return verdict
    left = NotExamined(what=f"{others} other run{'s' if others > 1 else ''} in {folder}", why=f"only the newest was judged: {newest}")
    return replace(verdict, not_examined=(*verdict.not_examined, left))
