"""What `unhang run` does once its options are known."""

from __future__ import annotations

import errno
import io
import os
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import typer

from unhang import encoding
from unhang.attach import protocol
from unhang.cli import own_steps, training_command
from unhang.cli.fallback import Fallback, Mode
from unhang.cli.options import cache_folder
from unhang.diagnosis.rerun_command import RunCommand
from unhang.errors import EXITS_INTERRUPTED, RunDirError, UnhangError
from unhang.i18n import msg
from unhang.launch import command as commands
from unhang.launch import environment, events, patience, supervise
from unhang.launch.attempt import Options
from unhang.model import Verdict, frozen
from unhang.records.rundir import RunDir, not_written
from unhang.remedies import ladder
from unhang.report import language, markdown, screen, terminal
from unhang.report.console import Console
from unhang.report.live_line import Live

if TYPE_CHECKING:
    from unhang.settings.configuration import Configuration
    from unhang.settings.plan import Plan

_TERMINATION_LOG = "/dev/termination-log"
_LATER = "<made at start>"


@frozen
class Request:
    """The options of `unhang run`."""

    words: tuple[str, ...]
    # The long names of our own options, those that were typed as words of a next run, and whether "--" set the command apart from them.
    own_options: frozenset[str] = frozenset()
    own_words: tuple[str, ...] = ()
    set_apart: bool = False
    nproc_per_node: int | None
    module: bool
    on_failure: str
    max_restarts: int
    hang_after_s: float | None
    startup_s: float
    fallback: str | None = None
    fallback_limit_s: float | None = None
    forget: bool = False
    trial_command: str | None = None
    trial_limit_s: float | None = None
    run_dir: Path | None
    prefix: bool
    quiet: bool
    python: str | None
    check_world: bool
    hosts: str | None = None
    ssh: tuple[str, ...] = ()
    preflight: str = "quick"
    nnodes: str | None = None
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    spares: int = 0
    pod: bool = False
    dry_run: bool
    as_json: bool
    preset: str | None = None
    settings: tuple[str, ...] = ()
    timeout: str | None = None
    # None: as unhang.toml says.
    private: bool | None = None


class _Beginning:
    """What there is before the training runs: an interrupt until then leaves nothing of it."""

    def __init__(self) -> None:
        self.over = False
        self.made: Path | None = None

    def undo(self) -> None:
        if self.made is not None:
            shutil.rmtree(self.made, ignore_errors=True)


def run(request: Request) -> None:
    """Run it and leave with its exit code. Raises UnhangError."""
    beginning = _Beginning()
    try:
        _run(request, beginning)
    except SystemExit as e:
        if e.code in EXITS_INTERRUPTED and not beginning.over:
            beginning.undo()
            screen.say(msg("interrupted before the training began"))
        raise


def check_on_failure(request: Request) -> None:
    if request.on_failure not in get_args(supervise.OnFailure):
        raise UnhangError(f"--on-failure {request.on_failure}: it is one of {', '.join(get_args(supervise.OnFailure))}")


def _run(request: Request, beginning: _Beginning) -> None:
    check_on_failure(request)
    if request.fallback is not None and request.fallback not in get_args(Mode):
        raise UnhangError(f"--fallback {request.fallback}: it is one of {', '.join(get_args(Mode))}")
    configured = _configured(request)
    mode = request.fallback or (configured.fallback if configured is not None else "") or "auto"
    _check_together(request, "--fallback off" if request.fallback else "[run] fallback of unhang.toml, which is off", mode)
    words = request.words[1:] if request.words[:1] == ("--",) else request.words
    for line in training_command.notes(words, request.own_options, meant=request.set_apart):
        screen.say(line)
    command = training_command.resolve(
        words,
        module=request.module,
        nproc_per_node=request.nproc_per_node,
        python=request.python,
        typed=(*_own(request), *(("--",) if request.set_apart else ())),
    )

    if request.trial_command is not None:
        own_steps.words(request.trial_command, python=command.python, environ=os.environ)

    def path() -> Path:
        return (request.run_dir or supervise.run_path(Path("runs"), command.name)).absolute()

    plan = _plan(command, request, configured, words)
    if plan is not None:
        command = commands.with_settings(command, options=plan.applied.options, arguments=plan.applied.arguments)
    # What only a preset asks for is no reason to start nothing: it is without effect on all hosts alike.
    typed = [plan.applied.spelled[c.key].env for c in plan.chosen if c.is_typed and c.key in plan.applied.spelled] if plan is not None else []
    commands.check_reach(command, {**os.environ, **{name: value for env in typed for name, value in env.items()}})
    lang = language.chosen(None)
    if left := commands.left_behind(command, {**os.environ, **(plan.applied.env if plan is not None else {})}):
        screen.echo("\n    ".join((f"unhang: {language.refusal(left[0])}", *left[1])), stderr=True)

    typed_words = RunCommand(options=(*request.own_words, *(("--",) if request.set_apart else ())), command=words)

    def fallback_of(rundir: RunDir) -> Fallback:
        return Fallback(
            command,
            rundir=rundir,
            words=words,
            options=typed_words.options,
            environ={**os.environ, **(plan.applied.env if plan is not None else {})},
            mode=mode,  # type: ignore[arg-type]
            limit_s=request.fallback_limit_s or (configured.fallback_limit_s if configured is not None else None) or ladder.LIMIT_S,
            forgets=request.forget,
            own_steps=request.trial_command,
            own_limit_s=request.trial_limit_s or own_steps.LIMIT_S,
            typed=() if plan is None else [c.key for c in plan.chosen if c.is_typed],
        )

    if request.dry_run:
        rundir = RunDir(path())
        _dry_run(command, rundir, plan, fallback_of(rundir), as_json=request.as_json, lang=lang)
        return
    described = None
    if plan is not None:
        from unhang.report import settings

        described = settings.described(plan)
        for line in settings.notes(plan, lang):
            screen.say(line)
    # One that a batch script has made stays.
    there = request.run_dir is not None and request.run_dir.exists()
    private = request.private if request.private is not None else configured is not None and configured.private
    rundir = RunDir.create(path, private=private)
    beginning.made = None if there else rundir.path
    live = Live(prefix=request.prefix, quiet=request.quiet, output_to_stderr=request.as_json, run_dir=str(rundir.path))

    fallback = fallback_of(rundir)

    def tell(event: events.Event) -> None:
        beginning.over = beginning.over or isinstance(event, events.Started)
        live.tell(event)
        fallback.saw(event)
        if isinstance(event, (events.Drawn, events.Revised)):
            try:
                rundir.write_bytes(rundir.report, markdown.render(event.verdict).encode("utf-8", "replace"))
            except OSError as e:
                live.tell(events.Note(text=not_written(rundir.report, e)))

    supervisor = supervise.Supervisor(
        command,
        rundir=rundir,
        options=Options(
            hang_after_s=request.hang_after_s,
            startup_s=request.startup_s,
            pauses=None if (folder := cache_folder()) is None else folder / patience.FILE,
            leave_hung=request.on_failure == "report",
            check_world=request.check_world,
            terminal_out=live.is_terminal("out"),
            terminal_err=live.is_terminal("err"),
        ),
        policy=supervise.Policy(on_failure=request.on_failure, max_restarts=request.max_restarts, pod=request.pod),  # type: ignore[arg-type]
        tell=tell,
        sink=live.output,
        remedying=fallback,
        settings=plan.applied.env if plan is not None else {},
        described=described,
        typed=typed_words,
    )
    try:
        outcome = supervisor.run()
    except OSError as e:
        if not _is_about(e, rundir.path):
            raise
        raise RunDirError(f"cannot write to {rundir.path}: {e.strerror}", hint="name another place with --run-dir DIR") from e
    finally:
        live.close()
    if outcome.verdict is not None and not outcome.interrupted:
        write_report(rundir, outcome.verdict)
    if request.pod:
        write_verdict_for_pod(outcome)
    if request.as_json:
        found = encoding.plain(outcome) | {"fallback": encoding.plain(fallback.outcome)}
        sys.stdout.buffer.write(encoding.encode(found) + b"\n")
    raise typer.Exit(outcome.exitcode)


def _check_together(request: Request, off: str, mode: str) -> None:
    """Options of trials where nothing is ever tried. --fallback auto is none of them: it also uses what is remembered."""
    given = {"--fallback-limit": request.fallback_limit_s, "--trial-command": request.trial_command, "--trial-limit": request.trial_limit_s}
    typed = [name for name, value in given.items() if value is not None]
    if request.fallback == "ask":
        typed.insert(0, "--fallback ask")
    why = None
    if mode == "off":
        why = off
    elif request.on_failure != "restart":
        why = f"--on-failure {request.on_failure}"
    elif request.max_restarts == 0:
        why = "--max-restarts 0"
    if typed and why is not None:
        raise UnhangError(f"{typed[0]} has no effect with {why}", cause="settings are tried only before a restart", hint="leave one of them out")
    if request.trial_limit_s is not None and request.trial_command is None:
        raise UnhangError("--trial-limit has no effect without --trial-command")


def _configured(request: Request) -> Configuration | None:
    """What unhang.toml says. Where nothing asks for settings and there is none, a quarter of a second of imports is saved."""
    asked = request.preset is not None or request.settings or request.timeout is not None
    here = Path.cwd()
    if not asked and not any(os.path.lexists(directory / "unhang.toml") for directory in (here, *here.parents)):
        return None
    from unhang.cli import settings

    return settings.configured(here)


def _plan(command: commands.Command, request: Request, configured: Configuration | None, words: tuple[str, ...]) -> Plan | None:
    """What settings come to."""
    if configured is None:
        return None
    from unhang.cli import settings

    # The command that starts it in another environment: --python puts none in the place of what the command names.
    own = _own(request)
    at = own.index("--python") if "--python" in own else len(own)
    apart = ("--",) if request.set_apart else ()
    program = "interpreter" if commands.is_python(words[0]) else "launcher"
    there = request.python and (request.python if program == "interpreter" else training_command.launcher_beside(request.python, words[0]))
    path = there or f"/path/to/{Path(words[0]).name}"
    by_path = f"give the {program} by its path: {shlex.join(('unhang', 'run', *own[:at], *own[at + 2 :], *apart, path, *words[1:]))}"
    return settings.plan(command, configured, preset=request.preset, settings=request.settings, timeout=request.timeout, by_path=by_path)


def _own(request: Request) -> tuple[str, ...]:
    """The options of a run that was refused: it has used no directory yet."""
    directory = ("--run-dir", str(request.run_dir)) if request.run_dir is not None else ()
    return (*request.own_words, *directory, *(("--forget",) if request.forget else ()))


def write_report(rundir: RunDir, verdict: Verdict) -> None:
    """The page for a browser. The training is over and its exit code known: nothing that goes wrong here may change that."""
    try:
        from unhang.diagnosis import run_history
        from unhang.report import html
        from unhang.report.html.of_run import gather

        verdict = replace(verdict, recovered=run_history.read(rundir.events, source="").recovered)
        rundir.write_bytes(rundir.report_html, html.render(verdict, gather(rundir)).encode("utf-8", "replace"))
    except KeyboardInterrupt:
        return
    except Exception as e:
        screen.say(msg("no {file}: {error}", file=str(rundir.report_html), error=f"{type(e).__name__}: {e}"))


def write_verdict_for_pod(outcome: supervise.Outcome) -> None:
    """What `kubectl describe pod` shows."""
    if outcome.verdict is not None and outcome.exitcode and not outcome.interrupted:
        plain = io.StringIO()
        terminal.render(outcome.verdict, Console(plain, width=100, color_system=None))
        write_termination_log(plain.getvalue())


def write_termination_log(text: str) -> None:
    """Kubernetes makes the file, and takes 4096 bytes of it."""
    path = os.environ.get("UNHANG_TERMINATION_LOG", _TERMINATION_LOG)
    try:
        # Do not create the file outside a pod, and do not block on a FIFO.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NONBLOCK), "wb") as file:
            file.write(text.encode("utf-8", "replace")[:4096].decode("utf-8", "ignore").encode())
    except OSError as e:
        if path != _TERMINATION_LOG or e.errno != errno.ENOENT:
            screen.say(language.refusal(not_written(Path(path), e)))


def _is_about(error: OSError, directory: Path) -> bool:
    """Whether an error comes from writing below `directory`. A disk that fills up while a file is written names no file."""
    if isinstance(error.filename, (str, os.PathLike)):
        return Path(error.filename).absolute().is_relative_to(directory)
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _dry_run(command: commands.Command, rundir: RunDir, plan: Plan | None, fallback: Fallback, *, as_json: bool, lang: language.Language) -> None:
    """Print what would be set and started, as a shell would take it (where each setting comes from is a comment) or as JSON."""
    version = environment.torch_version(command.python)
    listener = {protocol.ENV_SWITCH: "1", protocol.ENV_SOCKET: _LATER, protocol.ENV_TOKEN: _LATER, protocol.ENV_SUPERVISOR: _LATER}
    chosen = dict(plan.applied.env) if plan is not None else {}
    environ = {**os.environ, **chosen}
    said: list[events.Event] = []
    if (changed := fallback.at_start(said.append, looks_only=True)) is not None:
        chosen |= {name: value for name, value in changed.environ.items() if environ.get(name) != value}
        environ, command = dict(changed.environ), changed.command
    variables = environment.evidence(version, environ, dumps=rundir.flight_of_torch(0)) | chosen
    variables |= environment.attached(listener, environ, run=rundir.path, fatal=rundir.fatal(0), attempt=0, stdio=_LATER)
    described: dict[str, object] = {}
    if plan is not None:
        from unhang.report import settings

        described = {"settings": settings.described(plan)}
        for line in settings.of_plan(plan, lang) if not as_json else ():
            screen.echo(f"# {line}")
    if changed is not None and fallback.outcome is not None:
        described["remembered"] = fallback.outcome.chosen
    for event in said if not as_json else ():
        if isinstance(event, (events.Note, events.FellBack)):
            screen.echo(f"# {event.text if isinstance(event, events.Note) else event.says}")
    if as_json:
        screen.echo(encoding.encode({"environment": dict(sorted(variables.items())), "command": command.argv, **described}).decode())
        return
    for name, value in sorted(variables.items()):
        screen.echo(f"{name}={shlex.quote(value)}")
    screen.echo(shlex.join(command.argv))
