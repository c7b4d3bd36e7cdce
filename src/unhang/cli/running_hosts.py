"""What `unhang run --hosts` does once its options are known."""

from __future__ import annotations

import datetime
import fcntl
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, get_args

import typer

from unhang import encoding
from unhang.cli import doctor_hosts, running
from unhang.cli.options import cache_folder
from unhang.diagnosis.redact import redact_command
from unhang.diagnosis.rerun_command import RunCommand
from unhang.errors import RunDirError, UnhangError
from unhang.facts import processes
from unhang.facts.host import Host
from unhang.hosts import hostlist, join, preflight, training
from unhang.hosts.attempt import LAUNCHERS, Job
from unhang.launch import command as commands
from unhang.launch import events, patience, supervise
from unhang.model import ProcessId, frozen
from unhang.records.rundir import RUN_SCHEMA, RunDir, not_written
from unhang.report import hosts as report
from unhang.report import language, markdown, screen
from unhang.report.live_line import Live

# Of what is written each second.
_FRESH_S = 15.0
# The last event has the verdict's sentence at most.
_LAST_CHARACTERS = 2000


def run(request: running.Request) -> NoReturn:
    """Run it and leave with its exit code. Raises UnhangError."""
    running.check_on_failure(request)
    alone = {
        "--dry-run": request.dry_run,
        "--fallback": request.fallback not in (None, "off"),
        "--fallback-limit": request.fallback_limit_s,
        "--trial-command": request.trial_command,
        "--trial-limit": request.trial_limit_s,
        "--forget": request.forget,
    }
    for option in (option for option, given in alone.items() if given):
        raise UnhangError(f"{option} does not go with several hosts", hint="leave it out")
    words = request.words[1:] if request.words[:1] == ("--",) else request.words
    if not words:
        raise UnhangError("there is no command behind --", hint="unhang run --hosts FILE -n 8 train.py")
    if not (request.module or commands.is_script(words[0]) or Path(words[0]).name in LAUNCHERS):
        raise UnhangError(
            f"on several hosts a Python script or module is started; {words[0]} is a command of its own", hint="unhang run --hosts FILE -n 8 train.py"
        )
    if request.preflight not in get_args(training.Preflight):
        raise UnhangError(f"--preflight {request.preflight}: it is one of {', '.join(get_args(training.Preflight))}")
    member = _member(request) if request.hosts is None else None
    if member is not None and member.node_rank > 0:
        _take_part(request, member)
    hosts, by = doctor_hosts.named(request.hosts) if request.hosts is not None else ((), "join")
    if member is not None:
        least, most = member.least, member.most
    else:
        least, most = _nodes(request, len(hosts))
    python, environ = request.python or sys.executable, doctor_hosts.handed_on(by)
    slots = {host.slots or 1 for host in hosts} or {1}
    if len(slots) > 1 and request.nproc_per_node is None:
        raise UnhangError(f"{request.hosts} gives its hosts different numbers of slots", hint="give one for all: -n 8")
    per_host = request.nproc_per_node or slots.pop()
    rundir = RunDir.create(
        lambda: (request.run_dir or supervise.run_path(Path("runs"), Path(words[0]).stem)).absolute(), private=bool(request.private)
    )
    rundir.write(
        rundir.run,
        {
            "schema": RUN_SCHEMA,
            "command": redact_command(words),
            "typed": supervise.redacted(RunCommand(options=(*request.own_words, *(("--",) if request.set_apart else ())), command=words)),
            "cwd": str(Path.cwd()),
            "python": python,
            "world_size": per_host * most,
            "supervisor": processes.identity(Host(), os.getpid()),
            "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        },
    )
    _hold(rundir)
    asked = training.Asked(
        looked_at=preflight.Asked(
            hosts=hosts,
            python=python,
            ssh=tuple(word for given in request.ssh for word in shlex.split(given)),
            by=by,
            environ=environ,
            places=(str(Path.cwd()),),
            master=None if member is None else member.address,
            port=0,
        ),
        job=Job(
            words=words,
            module=request.module,
            per_host=per_host,
            python=python,
            cwd=str(Path.cwd()),
            environ=environ,
            options=_options(request),
            hang_after_s=request.hang_after_s,
            startup_s=request.startup_s,
        ),
        policy=supervise.Policy(on_failure=request.on_failure, max_restarts=request.max_restarts, pod=request.pod),  # type: ignore[arg-type]
        preflight=request.preflight,  # type: ignore[arg-type]
        least=least,
        most=most,
    )
    _go(
        asked,
        rundir,
        lambda t: t.run(),
        rendezvous=None if member is None else lambda tell: join.Rendezvous(member.address, member.port, member.most, python=python, tell=tell),
        prefix=request.prefix,
        quiet=request.quiet,
        as_json=request.as_json,
    )


@frozen
class _Member:
    """One of several hosts that were started one by one: where they meet, which one this is, and how many there are at least and at most."""

    address: str
    port: int
    node_rank: int
    least: int
    most: int


def _member(request: running.Request) -> _Member:
    """From options, and what launchers, operators and schedulers set on each host. Raises UnhangError."""
    rank = _given(request.node_rank, "NODE_RANK", "PET_NODE_RANK", "JOB_COMPLETION_INDEX", "SLURM_NODEID")
    address = _given(request.master_addr, "MASTER_ADDR", "PET_MASTER_ADDR")
    port = _given(request.master_port, "MASTER_PORT", "PET_MASTER_PORT") or str(preflight.STORE_PORT)
    nodes = _range(request.nnodes or "")
    if nodes is None or nodes[1] > hostlist.MOST:
        raise UnhangError(f"--nnodes {request.nnodes} is no number of hosts", hint="--nnodes 8, or --nnodes 6:8")
    if rank is None or not rank.isdecimal() or int(rank) >= nodes[1]:
        why = "--node-rank is missing" if rank is None else f"--node-rank {rank} is not between 0 and {nodes[1] - 1}"
        raise UnhangError(why, hint="each host has a number of its own; the first one is 0")
    if address is None:
        raise UnhangError("--master-addr is missing", hint="a name or address of the first host, at which the others reach it")
    if not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise UnhangError(f"MASTER_PORT={port} is no port", hint="--master-port 29500")
    join.secret()
    return _Member(address=address, port=int(port), node_rank=int(rank), least=nodes[0], most=nodes[1])


def _take_part(request: running.Request, member: _Member) -> NoReturn:
    """Be one of the hosts that the first one starts the training on, and leave with its exit code. Raises UnhangError."""
    exitcode, says = join.join(member.address, member.port, member.node_rank, python=request.python or sys.executable, say=screen.say)
    screen.say(says or f"the training has ended with exit code {exitcode}")
    if request.pod and exitcode:
        running.write_termination_log(says)
    if request.as_json:
        screen.echo(encoding.encode({"exitcode": exitcode, "node_rank": member.node_rank, "says": says}).decode())
    raise typer.Exit(exitcode)


def _given(option: object, *names: str) -> str | None:
    return str(option) if option is not None else next((os.environ[name] for name in names if os.environ.get(name)), None)


def attach(folder: Path, *, prefix: bool, quiet: bool, as_json: bool) -> NoReturn:
    """Go on with what another `unhang run` has left, and leave with its exit code. Raises UnhangError."""
    rundir = RunDir.open(folder.absolute())
    if not rundir.is_trusted:
        # It names options of ssh, and a Python.
        raise RunDirError(f"{folder} belongs to another user, or anybody may write to it")
    if not rundir.hosts.exists():
        raise RunDirError(f"{folder} is no run over several hosts: it has no {rundir.hosts.name}")
    left = rundir.read(rundir.hosts, training.Resumable)
    if left.asked.looked_at.by != "ssh":
        raise RunDirError(f"the hosts of {folder} were not reached over ssh: there is no way back to them")
    run = rundir.read(rundir.run, _Run)
    if rundir.events.exists() and '"event":"Finished"' in rundir.events.read_text(errors="replace")[-_LAST_CHARACTERS:]:
        raise RunDirError(f"the run of {folder} is over: nothing is left to follow")
    lives = run.supervisor is not None and processes.is_alive(Host(), run.supervisor)
    if run.supervisor is not None and (lives or (lives is None and rundir.now.exists() and time.time() - rundir.now.stat().st_mtime < _FRESH_S)):
        raise RunDirError(f"its unhang run still lives: process {run.supervisor.pid} of {run.supervisor.host}")
    _hold(rundir)
    rundir.write(rundir.run, {**rundir.read(rundir.run, dict), "supervisor": processes.identity(Host(), os.getpid())})
    asked, environ = left.asked, doctor_hosts.handed_on()
    asked = replace(asked, job=replace(asked.job, environ=environ), looked_at=replace(asked.looked_at, environ=environ))
    if not left.can_restart:
        # Its words are not known any more: a credential was among them.
        asked = replace(asked, policy=replace(asked.policy, max_restarts=0))
    since = datetime.datetime.now(datetime.timezone.utc) - datetime.datetime.fromisoformat(run.started)
    _go(asked, rundir, lambda t: t.attach(left, elapsed_s=since.total_seconds()), prefix=prefix, quiet=quiet, as_json=as_json)


def _hold(rundir: RunDir) -> None:
    """For as long as this process lives: of two that attach at once the second one is refused, where the file system knows of locks."""
    folder = os.open(rundir.path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunDirError(f"another unhang run has {rundir.path}") from None
    except OSError:
        os.close(folder)


@frozen
class _Run:
    started: str
    supervisor: ProcessId | None = None


def _go(
    asked: training.Asked,
    rundir: RunDir,
    way: Callable[[training.Training], supervise.Outcome],
    *,
    rendezvous: Callable[[Callable[[str], None]], join.Rendezvous] | None = None,
    prefix: bool,
    quiet: bool,
    as_json: bool,
) -> NoReturn:
    live = Live(prefix=prefix, quiet=quiet, output_to_stderr=as_json, run_dir=str(rundir.path))

    def tell(event: events.Event) -> None:
        live.tell(event)
        if isinstance(event, events.Drawn):
            try:
                rundir.write_bytes(rundir.report, markdown.render(event.verdict).encode("utf-8", "replace"))
            except OSError as e:
                live.tell(events.Note(text=not_written(rundir.report, e)))

    folder, job = cache_folder(), asked.job
    trainer = training.Training(
        asked,
        rundir=rundir,
        patience=patience.Patience(
            hang_after_s=job.hang_after_s, startup_s=job.startup_s, script=job.words[0], path=None if folder is None else folder / patience.FILE
        ),
        tell=tell,
        sink=live.output,
        found=lambda result: report.render(result, screen.console(stderr=True), lang=language.chosen(None)),
        rendezvous=rendezvous,
    )
    try:
        outcome = way(trainer)
    except UnhangError:
        if not rundir.hosts.exists():
            # Nothing has begun.
            shutil.rmtree(rundir.path, ignore_errors=True)
        raise
    finally:
        live.close()
    if outcome.verdict is not None and not outcome.interrupted:
        running.write_report(rundir, outcome.verdict)
    if asked.policy.pod:
        running.write_verdict_for_pod(outcome)
    if as_json:
        screen.echo(encoding.encode(outcome).decode())
    raise typer.Exit(outcome.exitcode)


def _nodes(request: running.Request, hosts: int) -> tuple[int, int]:
    """How many hosts an attempt has, at least and at most."""
    if request.spares >= hosts:
        raise UnhangError(f"--spares {request.spares} leaves none of {hosts} hosts", hint="--spares 1")
    given = request.nnodes or str(hosts - request.spares)
    nodes = _range(given)
    if nodes is None or nodes[1] > hosts - request.spares:
        raise UnhangError(f"--nnodes {given} cannot be met by {hosts} hosts with {request.spares} spares", hint="--nnodes MIN:MAX")
    return nodes


def _range(text: str) -> tuple[int, int] | None:
    """Of "8" or "6:8"; None for what is no range of numbers of hosts."""
    least, _, most = text.partition(":")
    if not (least.isdecimal() and (most or least).isdecimal() and 1 <= int(least) <= int(most or least)):
        return None
    return int(least), int(most or least)


def _options(request: running.Request) -> tuple[str, ...]:
    """Those of the hosts' own runs."""
    given: dict[str, object] = {
        "--startup": request.startup_s,
        "--hang-after": request.hang_after_s,
        "--preset": request.preset,
        "--timeout": request.timeout,
    }
    words = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    return (
        *words,
        *(word for setting in request.settings for word in ("--set", setting)),
        *(("--no-world-check",) if not request.check_world else ()),
    )
