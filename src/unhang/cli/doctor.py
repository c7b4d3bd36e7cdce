"""unhang doctor: what is so on this machine, and what of it will hurt."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from unhang.cli.options import NoColor

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot
    from unhang.model import Examination

Level = Literal["error", "warning", "note", "never"]


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def _complete(begun: str) -> list[str]:
    from unhang.facts import snapshot

    return [id for id in snapshot.subjects() if id.startswith(begun)]


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="What was found as JSON.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="AREA", autocompletion=_complete, help="Look at this area only; may be given several times.")
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", "-l", help="List the areas.")] = False,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Write what was seen to a file, without credentials.")] = None,
    snapshot: Annotated[Path | None, typer.Option(metavar="FILE", help="Judge what another machine saved.")] = None,
    fail_on: Annotated[Level, typer.Option(help="From which severity on the exit code is 1.")] = "warning",
    lang: Annotated[str | None, typer.Option(help="en or zh.", show_default="from the locale")] = None,
    no_color: NoColor = False,
) -> None:
    """Look at this machine, and say what of it will make a training fail or slow, and what to do.

    Needs no torch, no GPU and no root; what it could not look at it says, and never calls healthy.

    Exit code: 0 if nothing of that severity was found, 1 if something was, 2 for bad input, 3 for our own failure, 130 if interrupted.
    """
    from unhang.diagnosis.doctor import examine
    from unhang.report import language, screen

    chosen = language.chosen(lang)
    if show_list:
        from unhang.facts.snapshot import subjects

        for s in subjects().values():
            typer.echo(f"{s.id:14} {s.title_zh if chosen == 'zh' else s.title}")
        return
    seen = _seen(snapshot, only or [])
    if save is not None:
        _save(seen, save)
    examination = examine(seen)
    if as_json:
        import msgspec

        sys.stdout.write(msgspec.json.format(msgspec.json.encode(examination), indent=2).decode() + "\n")
    else:
        from unhang.report.doctor import render

        render(examination, screen.console(), lang=chosen)
    raise typer.Exit(_exit_code(examination, fail_on))


def _seen(path: Path | None, only: list[str]) -> Snapshot:
    from dataclasses import replace

    from unhang.errors import UnhangError
    from unhang.facts import snapshot
    from unhang.facts.host import Host

    if path is None:
        return snapshot.take(Host(), only=only)
    try:
        seen = snapshot.decode(path.read_bytes(), name=str(path))
    except OSError as e:
        raise UnhangError(f"cannot read {path}: {e.strerror}") from e
    kept = {s.id for s in snapshot.chosen(only)}
    return replace(seen, parts={id: part for id, part in seen.parts.items() if id in kept})


def _save(seen: Snapshot, path: Path) -> None:
    from unhang.diagnosis.redact import redact
    from unhang.errors import UnhangError
    from unhang.facts import snapshot

    try:
        path.write_text(redact(snapshot.encode(seen).decode()) + "\n")
    except OSError as e:
        raise UnhangError(f"cannot write {path}: {e.strerror}") from e


def _exit_code(examination: Examination, fail_on: Level) -> int:
    from unhang.diagnosis.doctor import SEVERITIES
    from unhang.errors import EXIT_FOUND, EXIT_OK

    if fail_on == "never":
        return EXIT_OK
    counted = SEVERITIES[: SEVERITIES.index(fail_on) + 1]
    return EXIT_FOUND if any(f.severity in counted for f in examination.findings) else EXIT_OK
