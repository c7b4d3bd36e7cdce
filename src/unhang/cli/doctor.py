"""unhang doctor: what is so on this machine, and what of it will hurt."""

from __future__ import annotations

import os
import shlex
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from unhang import fsio
from unhang.cli import json_errors
from unhang.cli.options import Lang, NoColor, duration
from unhang.errors import EXIT_FOUND, EXIT_OK, UnhangError
from unhang.i18n import in_language, msg
from unhang.report import language, screen

if TYPE_CHECKING:
    from unhang.facts.host import Host
    from unhang.facts.snapshot import Snapshot
    from unhang.model import Examination, Live
    from unhang.report.language import Language

Level = Literal["error", "warning", "note", "never"]

# A snapshot has some hundred kilobytes.
_MAX_BYTES = 16 * 1024 * 1024
_NOT_THERE = "not in this snapshot"


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def _complete(begun: str) -> list[str]:
    from unhang.facts import snapshot

    return [id for id in snapshot.subjects() if id.startswith(begun)]


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="What was found as JSON.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="AREA", autocompletion=_complete, help="Look at this area only; several with commas, or given several times."),
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the areas.")] = False,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write what was seen to a file, without credentials; - is standard output.")
    ] = None,
    snapshot: Annotated[Path | None, typer.Option(metavar="FILE", help="Judge what another machine saved.")] = None,
    diff: Annotated[
        tuple[str, str] | None, typer.Option(metavar="A B", help="What differs between two saved snapshots; the word now is this machine.")
    ] = None,
    path: Annotated[
        list[str] | None,
        # A Path would be asked for at once, and a file server that is gone never answers.
        typer.Option(metavar="DIR", help="Look at this directory, too: where checkpoints go; may be given several times."),
    ] = None,
    hosts: Annotated[
        str | None,
        typer.Option(metavar="HOSTS", help="Look at several hosts and the links between them: a file, node[1-8,11], or slurm for this allocation."),
    ] = None,
    ssh: Annotated[
        list[str] | None,
        typer.Option("--ssh", metavar="WORDS", help="With --hosts: options of ssh, for example '-p 2222'; may be given several times."),
    ] = None,
    exclude: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --hosts: write the hosts to leave out, as srun --exclude=FILE takes them.")
    ] = None,
    group: Annotated[bool, typer.Option("--group", help="With --hosts: then run an all_reduce over all of them, one rank on each.")] = False,
    write_speed: Annotated[
        bool, typer.Option("--write-speed", help="Measure how fast it, or else the working directory, takes a file; a gigabyte at most.")
    ] = False,
    live: Annotated[bool, typer.Option("--live", help="Then run small trainings with 1, 2, 4 ... ranks, stage by stage.")] = False,
    python: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="With --live or --hosts: the training's Python.", show_default="ours if it has torch, else the first on PATH"
        ),
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="With --live: at most so many ranks.", show_default="all GPUs; cores without one, 2 to 4")
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Show what can be repaired without a guess, ask, do it, and look again.")] = False,
    fix_limit: Annotated[
        float | None,
        typer.Option(
            "--fix-limit",
            parser=duration(30),
            metavar="TIME",
            help="With --live --fix: how long changes of settings may be tried.",
            show_default="10m",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="With --fix: do it without asking.")] = False,
    fail_on: Annotated[Level, typer.Option(help="From which severity on the exit code is 1.")] = "warning",
    lang: Lang = None,
    no_color: NoColor = False,
) -> None:
    """Look at this machine, and say what of it will make a training fail or slow, and what to do.

    Needs no torch, no GPU and no root; what it could not look at it says, and never calls healthy.

    Exit code: 0 if nothing of that severity was found (with --diff: nothing differs), 1 if something was, or a stage of --live failed, 2 for bad
    input, 3 for our own failure, 130 if interrupted (143 by SIGTERM).
    """
    from dataclasses import replace

    from unhang.facts.host import Host

    chosen = language.chosen(lang)
    only = [area for areas in only or [] for area in areas.split(",") if area]
    if show_list:
        from unhang.facts.snapshot import subjects

        titles = {s.id: in_language(s.title, chosen) for s in subjects().values()}
        if as_json:
            json_errors.print_json([{"id": id, "title": title} for id, title in titles.items()])
        else:
            screen.echo("\n".join(f"{id:14} {title}" for id, title in titles.items()))
        return
    if diff is not None:
        given: dict[str, object] = {"--save": save, "--snapshot": snapshot, "--live": live, "--fix": fix, "--path": path}
        given |= {"--write-speed": write_speed, "--fix-limit": fix_limit}
        if also := [name for name, value in given.items() if value]:
            raise UnhangError(f"--diff compares, and does nothing else: it does not go with {' and '.join(also)}")
        raise typer.Exit(_compare(*diff, only, as_json=as_json, lang=chosen))
    if hosts is not None:
        from unhang.cli import doctor_hosts

        given = {"--only": only, "--save": save, "--snapshot": snapshot, "--live": live, "--fix": fix, "--write-speed": write_speed, "--ranks": ranks}
        if also := [name for name, value in given.items() if value]:
            raise UnhangError(f"--hosts looks at several hosts: it does not go with {' and '.join(also)}")
        code = doctor_hosts.examine(
            hosts, python=python, ssh=ssh or (), places=path or (), exclude=exclude, group=group, as_json=as_json, lang=chosen
        )
        raise typer.Exit(code)
    if ssh or exclude is not None or group:
        raise UnhangError("--ssh, --exclude and --group are for --hosts")
    if (python is not None or ranks is not None) and not live:
        raise UnhangError("--python and --ranks are for --live")
    if live and snapshot is not None:
        raise UnhangError("--live runs on this machine: it does not go with --snapshot")
    if fix and snapshot is not None:
        raise UnhangError("--fix repairs this machine: it does not go with --snapshot")
    if (path or write_speed) and snapshot is not None:
        raise UnhangError("--path and --write-speed look at this machine: they do not go with --snapshot")
    if (path or write_speed) and only and "storage" not in only:
        raise UnhangError("--path and --write-speed are for the area storage, and --only leaves it out", hint="add --only storage")
    if fix_limit is not None and not (live and fix):
        raise UnhangError("--fix-limit is for --live --fix")
    if yes and not fix:
        raise UnhangError("--yes is for --fix")
    to_stdout = save is not None and str(save) == "-"
    if to_stdout and (also := [name for name, value in {"--json": as_json, "--fix": fix}.items() if value]):
        raise UnhangError(f"--save - writes to standard output, and so does {' and '.join(also)}", hint="unhang doctor --save host.json")
    if save is not None and not to_stdout:
        _refuse_what_is_no_snapshot(save)
    if python is not None:
        from unhang.probes.live import find_python

        # Before anything is looked at: nobody wants half of an answer.
        find_python(python)
    here = Host(places=path or [], writes_are_timed=write_speed)
    seen = _seen(snapshot, only, here)
    _refuse_no_directories(seen, path or [])
    examination = _examined(seen, only, quiet=as_json, lang=chosen, elsewhere=snapshot is not None, stderr=to_stdout)
    repair = None
    if fix:
        from unhang.cli import doctor_fix

        dialogue = doctor_fix.Dialogue(yes=yes, quiet=as_json, lang=chosen)
        repair = doctor_fix.repair(seen, examination, dialogue, goes_on=live)
        if repair.changed:
            seen = _seen(None, only, here)
            examination = _examined(seen, only, quiet=as_json, lang=chosen)
    if save is not None:
        _save(seen, save)
        if not to_stdout and not as_json:
            screen.say(
                msg("saved to {file}; on any machine: {command}", file=str(save), command=f"unhang doctor --snapshot {shlex.quote(str(save))}")
            )
    if live:
        examination = replace(examination, live=_run(python, ranks, quiet=as_json, lang=chosen, stderr=to_stdout))
    written = ""
    if examination.live is not None and repair is not None:
        from unhang.remedies import ladder

        found_here = doctor_fix.climb(examination.live, dialogue, limit_s=fix_limit or ladder.LIMIT_S)
        examination = replace(examination, ladder=found_here)
        if wanted := doctor_fix.proposed(found_here):
            written = doctor_fix.write(wanted, repair, dialogue)
    if as_json:
        from unhang import encoding

        found = encoding.plain(examination)
        if written:
            found["written"] = written
        if repair is not None:
            found["repair"] = encoding.plain(repair)
        json_errors.print_json(found)
    raise typer.Exit(_exit_code(examination, fail_on))


def _refuse_no_directories(seen: Snapshot, given: list[str]) -> None:
    """What was asked for, and is not there; a file server that does not answer is a finding, and was waited for no longer than others."""
    from unhang.facts import storage

    places = {p.path: p for p in (seen.get(storage.SUBJECT) or storage.Storage(places=())).places}
    for path in given:
        # Following links would ask the file server, for as long as it likes.
        place = places.get(os.path.abspath(path))  # noqa: PTH100
        if place is not None and place.problem is None and place.is_directory is False:
            raise UnhangError(f"--path {path}: {'it is no directory' if place.exists else 'there is no such directory'}")


def _with_context(only: list[str] | None) -> list[str]:
    from unhang.diagnosis.doctor import CONTEXT

    return [*only, *CONTEXT] if only else []


def _examined(seen: Snapshot, only: list[str], *, quiet: bool, lang: Language, elsewhere: bool = False, stderr: bool = False) -> Examination:
    from unhang.diagnosis.doctor import examine

    examination = examine(seen, only=only)
    if not quiet:
        from unhang.report.doctor import render

        render(examination, screen.console(stderr=stderr), lang=lang, details=bool(only), elsewhere=elsewhere)
    return examination


def _seen(path: Path | None, only: list[str], here: Host) -> Snapshot:
    """This machine, or what was saved, with what the judgement rests on. What was asked for and not saved is unknown. Raises UnhangError."""
    from dataclasses import replace

    from unhang.facts import snapshot

    if path is None:
        return snapshot.take(here, only=_with_context(only))
    whole = _opened(path)
    asked = _holding(whole, path, only).parts
    context = _with_context(only)
    parts = {}
    for id in snapshot.subjects():
        if id in whole.parts and (id in asked or id in context):
            parts[id] = whole.parts[id]
        elif id in only:
            parts[id] = snapshot.Part(state="unknown", why=_NOT_THERE)
    return replace(whole, parts=parts)


def _opened(path: Path) -> Snapshot:
    # Raises UnhangError for what is no regular file: a pipe may never end, and neither does a device.
    from unhang.facts import snapshot_file

    try:
        data = fsio.bounded_read(path, _MAX_BYTES + 1)
    except (fsio.NotRegular, IsADirectoryError) as e:
        raise UnhangError(f"{path} is no regular file: a snapshot is read from one", hint="unhang doctor --save host.json") from e
    except (OSError, ValueError) as e:
        raise UnhangError(f"cannot read {path}: {getattr(e, 'strerror', None) or e}") from e
    if len(data) > _MAX_BYTES:
        raise UnhangError(f"{path} is larger than {_MAX_BYTES >> 20} MiB: no snapshot of a host", hint="unhang doctor --save host.json")
    return snapshot_file.decode(data, name=str(path))


def _holding(seen: Snapshot, path: Path, only: list[str]) -> Snapshot:
    """What was asked for of it. Raises UnhangError where that is nothing."""
    from dataclasses import replace

    from unhang.facts import snapshot

    asked = {s.id for s in snapshot.chosen(only)}
    parts = {id: part for id, part in seen.parts.items() if id in asked}
    if not parts:
        holds = f"it holds {', '.join(seen.parts)}" if seen.parts else None
        raise UnhangError(f"{path} holds nothing of what is asked for", cause=holds, hint="unhang doctor --save host.json")
    return replace(seen, parts=parts)


def _run(python: str | None, ranks: int | None, *, quiet: bool, lang: Language, stderr: bool = False) -> Live:
    from unhang.probes.live import examine
    from unhang.report.probing import Progress, render_end

    if quiet:
        return examine(python=python, ranks=ranks)
    console = screen.console(stderr=stderr)
    with Progress(console, lang=lang) as progress:
        found = examine(python=python, ranks=ranks, begun=progress.begun, ended=progress.ended)
    render_end(found, console, lang=lang)
    return found


def _compare(a: str, b: str, only: list[str], *, as_json: bool, lang: Language) -> int:
    """Raises UnhangError. As diff does: 0 where nothing differs, 1 where something does."""
    from unhang.diagnosis.differences import between
    from unhang.diagnosis.doctor import handed_on
    from unhang.facts import snapshot
    from unhang.facts.host import Host

    def seen(which: str) -> Snapshot:
        return snapshot.take(Host(), only=only) if which == "now" else _holding(_opened(Path(which)), Path(which), only)

    # What was saved is without credentials: else they would differ, and be shown.
    differences = between(*(handed_on(seen(which)) for which in (a, b)))
    if as_json:
        json_errors.print_json({"schema": "unhang/diff/1", "a": a, "b": b, "differences": differences})
    else:
        from unhang.report.doctor import render_differences

        render_differences(differences, a, b, screen.console(), lang=lang)
    return EXIT_FOUND if differences else EXIT_OK


def _save(seen: Snapshot, path: Path) -> None:
    from unhang.diagnosis.doctor import handed_on
    from unhang.facts import snapshot_file

    # Text by text: what is taken out of the JSON as a whole may take its quotes along.
    data = snapshot_file.encode(handed_on(seen)) + b"\n"
    try:
        _write(path, data)
    except OSError as e:
        raise UnhangError(f"cannot write {path}: {e.strerror}") from e


def _refuse_what_is_no_snapshot(path: Path) -> None:
    """A log, say, whose name stands where that of the new file should. An empty file holds nothing that could be lost."""
    try:
        there = path.stat()
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(there.st_mode) or not there.st_size:
        return
    try:
        _opened(path)
    except UnhangError as e:
        raise UnhangError(f"--save {path}: that is there, and no snapshot of ours; it would be lost", cause=str(e), hint="choose another name") from e


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all. Raises OSError."""
    if str(path) == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        return
    fsio.write_named(path, data)


def _exit_code(examination: Examination, fail_on: Level) -> int:
    from unhang.diagnosis.doctor import SEVERITIES

    if fail_on == "never":
        return EXIT_OK
    if examination.live is not None and any(r.state == "failed" for r in examination.live.stages):
        return EXIT_FOUND
    counted = SEVERITIES[: SEVERITIES.index(fail_on) + 1]
    return EXIT_FOUND if any(f.severity in counted for f in examination.findings) else EXIT_OK
