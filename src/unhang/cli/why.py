"""unhang why: the verdict on a run that failed, from its run directory, from logs, from flight-recorder dumps."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unhang import fsio
from unhang.cli import json_errors, unpacking
from unhang.cli.options import Causes, Lang, NoColor, cache_folder
from unhang.cli.why_outputs import Beside, check_bundle, check_report, write_report
from unhang.errors import EXIT_FOUND, EXIT_OK, EXIT_USER, UnhangError
from unhang.i18n import NOTHING, Text, msg
from unhang.printable import one_line
from unhang.report import language, screen
from unhang.report.screen import reading

if TYPE_CHECKING:
    from unhang.cli.unpacking import Given
    from unhang.diagnosis.kernel_log_scope import Recorded
    from unhang.diagnosis.logs import Judged
    from unhang.logs.discovery import Discovered
    from unhang.model import Verdict
    from unhang.records.packed import Unpacked
    from unhang.report.language import Language


def register(app: typer.Typer) -> None:
    app.command("why")(why)


def why(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH...",
            help="A run directory, packed or not (of several in one place the newest); or logs, flight-recorder dumps and digests of them: files, "
            "directories, globs, - for standard input (also what is piped in without a PATH). Packed ones (.gz .xz .zst .bz2 .tar.* .zip) are read "
            "as they are.",
        ),
    ] = None,
    ras: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="Ask a job that still runs, through NCCL's RAS socket; or files with its answers, the older first."),
    ] = None,
    apart_s: Annotated[
        float | None, typer.Option("--apart", metavar="S", min=0, help="Ask it a second time after S seconds; 0: only once.", show_default="10")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The verdict as JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="The whole verdict as Markdown.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="The whole verdict, then the timeline of what was found, in order.")] = False,
    incident: Annotated[int | None, typer.Option(metavar="N", min=1, help="Judge this incident of the run.", show_default="the last one")] = None,
    attempt: Annotated[int | None, typer.Option(metavar="N", min=1, help="Judge this attempt in the logs.", show_default="the last one")] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE.html", help="Write the verdict with a timeline as one HTML file, too.")
    ] = None,
    digest: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Judge nothing: sum up the flight-recorder dumps of this host, some kilobytes for each rank, into a file in DIR. Do so on each host "
            "(srun, ssh, ...): `unhang why DIR` says of these files what it would say of all dumps.",
        ),
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle",
            metavar="FILE.tar.gz",
            help="Write what the verdict rests on, without credentials, as one archive for a bug report, too. unhang why reads it.",
        ),
    ] = None,
    causes: Causes = None,
    lang: Lang = None,
    no_color: NoColor = False,
) -> None:
    """Say why a run failed: cause, rank, line of code, evidence, and what to do.

    Needs no GPU, no torch and no network; a run directory and logs can be judged on another machine.

    Exit code: 0 if nothing was found, or the run went on after it and finished, 1 if something was found, 2 for bad input (also where nothing was
    found and a part of it could not be read, or no log was in it), 3 for our own failure, 130 if interrupted (143 by SIGTERM). A reader that goes
    early (| head) changes none of them.
    """
    from unhang.knowledge import site

    if as_json and markdown:
        raise UnhangError("--json and --markdown: choose one")
    chosen = language.chosen(lang)
    if not paths and not ras and _is_fed():
        screen.say(msg("reading standard input"))
        paths = ["-"]
    if bool(paths) == bool(ras):
        raise UnhangError("give either PATH... or --ras HOST:PORT", hint=f"unhang why {'runs' if fsio.is_dir('runs') else 'train.log'}")
    if digest is not None:
        if ras or markdown or everything or incident is not None or attempt is not None or report is not None or bundle is not None:
            raise UnhangError("--digest only sums up dumps: it goes with --json alone")
        from unhang.cli import digest as summing

        raise typer.Exit(summing.write(paths or [], digest, as_json=as_json))
    if not all(paths or ["-"]):
        raise UnhangError("one PATH is empty", cause="the variable that stood there has no value")
    if ras and not all(r.strip() for r in ras):
        raise UnhangError("--ras is empty", cause="the variable that stood there has no value", hint="of this machine: unhang why --ras localhost")
    if ras and (incident is not None or attempt is not None):
        raise UnhangError("--incident and --attempt are for what has ended; --ras asks a job that runs")
    if apart_s is not None and not ras:
        raise UnhangError("--apart is for --ras: only a job that runs is asked twice", hint="unhang why --ras HOST:PORT --apart 60")
    if bundle is not None:
        check_bundle(bundle, ras)
    if report is not None:
        check_report(report)
    for problem in site.load()[1]:
        screen.say(msg("a cause of yours is not used: {problem}", problem=problem))
    beside = Beside(drawn=report is not None, stacks=everything and not (as_json or markdown), bundle=bundle, quiet=as_json)
    verdict, judged = (_running(ras, apart_s, quiet=as_json), None) if ras else _judge(paths or [], incident, attempt, quiet=as_json, beside=beside)
    if verdict.primary is None and judged is not None:
        _refuse_no_logs(verdict)
    if as_json:
        json_errors.answers(given=True)
        json_errors.print_json(verdict)
    elif markdown:
        from unhang.report.markdown import render as render_markdown

        screen.echo(render_markdown(verdict, lang=chosen), end="")
    else:
        options = [word for name, n in (("--incident", incident), ("--attempt", attempt)) if n is not None for word in (name, str(n))]
        given = [word for r in ras or () for word in ("--ras", fsio.as_argument(r))] + [fsio.as_argument(p) if p != "-" else p for p in paths or ()]
        again = " ".join(["unhang why --all", *options, *given])
        _show(verdict, judged if everything else None, beside, chosen, everything=everything, again=again)
    # The verdict is told by now, whatever becomes of the files.
    if report is not None:
        sys.stdout.flush()
        write_report(report, verdict, beside.scene, chosen)
    if beside.failed is not None:
        raise beside.failed
    # What could not be read is not called healthy.
    unread = any(n.unread for n in verdict.not_examined)
    raise typer.Exit(EXIT_FOUND if verdict.primary is not None and not verdict.recovered else EXIT_USER if unread else EXIT_OK)


def _refuse_no_logs(verdict: Verdict) -> None:
    """Where not one line of a log was read, nothing can be said: a script must not take that for healthy."""
    from unhang.logs.discovery import EMPTY
    from unhang.logs.kinds import no_log

    why = {i.source: EMPTY if not i.bytes else f"no log: {kind}" if (kind := no_log(i.source)) else "" for i in verdict.inputs}
    if why and all(why.values()) and not any(n.unread for n in verdict.not_examined):
        said = "; ".join(f"{source}: {reason}" for source, reason in list(why.items())[:3])
        raise UnhangError("nothing was read: no log was given", cause=said)


def _is_fed() -> bool:
    """Whether a pipe or a file is on standard input: `cat train.log | unhang why`."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _show(verdict: Verdict, judged: Judged | None, beside: Beside, lang: Language, *, everything: bool, again: str) -> None:
    from unhang.report import terminal

    console = screen.console()
    terminal.render(verdict, console, lang=lang, whole=everything, again=again)
    if beside.trunk is not None:
        from unhang.report.details import render_stacks

        render_stacks(beside.trunk, beside.cwd, console, lang=lang, label="stacks" if judged is None else "stacks_in_logs")
    for said in beside.untold:
        console.print(f"  {said}")
    if judged is not None:
        from unhang.report.details import render_timeline

        render_timeline(judged, console, lang=lang)


def _running(asked: list[str], apart_s: float | None, *, quiet: bool) -> Verdict:
    from unhang.cli import ras

    return ras.judge(asked, apart_s=apart_s, quiet=quiet)


def _judge(paths: list[str], incident: int | None, attempt: int | None, *, quiet: bool, beside: Beside) -> tuple[Verdict, Judged | None]:
    from unhang.records.rundir import RunDir, runs_in

    alone = Path(paths[0]) if len(paths) == 1 else None
    holding = RunDir.holding(alone) if alone is not None and fsio.exists(alone) and not RunDir.is_one(alone) else None
    if holding is not None and alone is not None and not holding.is_log(alone):
        screen.say(msg("{path} is part of the run directory {run}: judging that", path=one_line(str(alone)), run=_shortest(holding.path)))
        incident = incident or holding.incident_of(alone)
        paths, alone = [str(holding.path)], holding.path
    rundirs = [p for p in paths if RunDir.is_one(Path(p))]
    if rundirs and len(paths) > 1:
        raise UnhangError(f"{rundirs[0]} is a run directory: give it alone", hint=f"unhang why {fsio.as_argument(rundirs[0])}")
    runs = [] if rundirs or alone is None or not fsio.is_dir(alone) else runs_in(alone)
    if rundirs or runs:
        _refuse_attempt(attempt, paths[0])
    if rundirs:
        from unhang.diagnosis.why import judge

        rundir = RunDir.open(Path(rundirs[0]))
        if rundir.path != Path(rundirs[0]):
            screen.say(msg("{run} was full: judging what was kept in {there}", run=one_line(rundirs[0]), there=one_line(str(rundir.path))))
        verdict = judge(rundir, number=incident)
        beside.take_run(rundir, verdict, incident)
        return verdict, None
    if runs:
        return _newest(runs, paths[0], incident, beside), None
    if "-" in paths and sys.stdin.isatty():
        screen.say(msg("reading standard input; end it with Ctrl-D"))
    from unhang.logs.discovery import find

    found = find(paths)
    with unpacking.taken_out(found, runs=alone is not None and not fsio.is_dir(alone)) as given:
        if given.runs is not None:
            return _packed(given.runs, paths[0], incident, attempt, beside), None
        if incident is not None:
            raise UnhangError(f"--incident {incident}: only a run directory has incidents, and {paths[0]} is none")
        if holding is not None:
            run = _shortest(holding.path)
            # Of one without incidents these logs may be all there is: whoever comes from there is not sent back.
            more = msg(", which has no record of an incident")
            if holding.incident_numbers():
                more = msg(", which knows more: {again}", again=f"unhang why {fsio.as_argument(run)}")
            screen.say(msg("{path} is part of the run directory {run}{more}", path=one_line(paths[0]), run=run, more=more))
        verdict, judged = _judge_found(given, paths, attempt, quiet=quiet, beside=beside)
        if holding is not None and alone is not None:
            from unhang.diagnosis.interrupted import ended_by_us

            verdict = ended_by_us(verdict, holding, alone, called=_shortest(holding.path))
        return verdict, judged


def _refuse_attempt(attempt: int | None, path: str) -> None:
    if attempt is not None:
        raise UnhangError(f"--attempt {attempt} is for logs; a run directory has incidents", hint=f"unhang why --incident N {fsio.as_argument(path)}")


def _packed(unpacked: Unpacked, name: str, incident: int | None, attempt: int | None, beside: Beside) -> Verdict:
    """The verdict on the newest run directory in an archive."""
    from unhang.diagnosis.why import judge_packed
    from unhang.logs.discovery import STDIN
    from unhang.records.rundir import RunDir

    _refuse_attempt(attempt, name)
    archive = STDIN if name == "-" else name
    newest = unpacked.runs[-1]
    screen.say(msg("judging the run directory {run}{others}", run=newest.name, others=_of_several(len(unpacked.runs), one_line(archive))))
    verdict = judge_packed(unpacked, archive, number=incident)
    beside.take_run(RunDir(newest.path), verdict, incident)
    return verdict


def _of_several(count: int, where: str) -> Text:
    """ ", the newest of 3 runs in runs", NOTHING of a single one."""
    return msg(", the newest of {n} runs in {where}", n=count, where=where) if count > 1 else NOTHING


def _shortest(path: Path) -> str:
    """A path as somebody would type it here."""
    return one_line(min(str(path), os.path.relpath(path), key=len))


def _judge_found(given: Given, paths: list[str], attempt: int | None, *, quiet: bool, beside: Beside) -> tuple[Verdict, Judged | None]:
    """Logs, flight-recorder dumps, or both."""
    try:
        verdict, judged = _verdict_on(given.found, paths, attempt, quiet=quiet, beside=beside)
    except UnhangError as e:
        raise UnhangError(given.called(str(e)), cause=e.cause and given.called(e.cause), hint=e.hint) from e
    beside.take_files(given.found, verdict, judged, given.called)
    return given.told(verdict), judged


def _verdict_on(found: Discovered, paths: list[str], attempt: int | None, *, quiet: bool, beside: Beside) -> tuple[Verdict, Judged | None]:
    if not found.dumps:
        judged = _judge_logs(paths, found, attempt, quiet=quiet)
        return judged.verdict, judged
    if attempt is not None and not found.sources:
        raise UnhangError(f"--attempt {attempt} is for logs; flight-recorder dumps have none")

    from unhang.diagnosis.recorders import examine, examine_with_logs, explained, times
    from unhang.flight.read_all import record_all

    found, blank = unpacking.set_apart(found)
    if not found.sources:
        with reading(quiet=quiet) as progress:
            examined = examine(found.dumps, drawn=beside.drawn, closed=found.closed, blank=blank, progress=progress)
        beside.take_dumps(examined, _title(paths))
        of_dumps = examined.verdict
        return replace(of_dumps, not_examined=(*of_dumps.not_examined, *found.not_examined)), None
    with reading(quiet=quiet) as progress:
        recorded = record_all(found.dumps, drawn=beside.drawn, closed=found.closed, blank=blank, progress=progress)
    judged = _judge_logs(paths, found, attempt, quiet=quiet, recorded=times(recorded))
    # What was dumped is of the last attempt.
    statuses = judged.chosen.view.statuses if judged.attempt == judged.attempts else ()
    examined = examine_with_logs(recorded, judged.verdict, statuses)
    beside.take_dumps(examined, _title(paths))
    return explained(examined.verdict, judged.chosen.view, unsure=examined.recorded.unsure), judged


def _title(paths: list[str]) -> str:
    """What was given, where it has one name."""
    return one_line(Path(paths[0]).resolve().name) if len(paths) == 1 and paths[0] != "-" else ""


def _judge_logs(paths: list[str], found: Discovered, attempt: int | None, *, quiet: bool, recorded: Recorded | None = None) -> Judged:
    from unhang.diagnosis.logs import judge_logs

    with reading(quiet=quiet) as progress:
        judged = judge_logs(paths, attempt=attempt, cache=cache_folder(), progress=progress, found=found, recorded=recorded)
    if judged.attempts > 1 and not quiet:
        screen.say(msg("attempt {n} of {all} (--attempt N for another one)", n=judged.attempt, all=judged.attempts))
    return judged


def _newest(runs: list[Path], folder: str, incident: int | None, beside: Beside) -> Verdict:
    from unhang.diagnosis.why import judge_newest
    from unhang.records.rundir import RunDir

    screen.say(msg("judging {run}{others}", run=one_line(str(runs[-1])), others=_of_several(len(runs), one_line(folder))))
    verdict = judge_newest(runs, Path(folder), number=incident)
    beside.take_run(RunDir(runs[-1]), verdict, incident)
    return verdict
