"""unhang run: run a training, watch it, say why it failed, go on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from unhang.cli.options import NoColor, Private, duration, words
from unhang.errors import UnhangError


def register(app: typer.Typer) -> None:
    app.command("run", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False})(run)


def _without_a_command(context: typer.Context, attach: Path | None) -> Path | None:
    """The one who was there first knows the command."""
    for parameter in context.command.params if attach is not None else ():
        if parameter.name == "command":
            parameter.required = False
    return attach


def run(
    context: typer.Context,
    command: Annotated[list[str], typer.Argument(metavar="[--] COMMAND...", help="A Python script or module, or any launcher's command line.")],
    nproc_per_node: Annotated[
        int | None, typer.Option("--nproc-per-node", "-n", min=1, help="Processes to start, for a script or module.", show_default="1")
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="COMMAND is a Python module.")] = False,
    on_failure: Annotated[str, typer.Option(help="restart, abort, or report (say why and leave it alone).")] = "restart",
    max_restarts: Annotated[int, typer.Option(min=0, help="How often to start again.")] = 3,
    hang_after: Annotated[
        float | None,
        typer.Option(parser=duration(0.5), metavar="TIME", help="Take this for a hang.", show_default="learned from the training's rhythm"),
    ] = None,
    startup: Annotated[
        float,
        typer.Option(
            parser=duration(1), metavar="TIME", help="Silence allowed until the rhythm is known, from three optimizer steps or the collectives."
        ),
    ] = 180.0,
    fallback: Annotated[
        str | None,
        typer.Option(
            metavar="auto|ask|off",
            help="When settings may answer a failure: try them here, and go on with the smallest change that works; or ask; or do not.",
            show_default="auto",
        ),
    ] = None,
    fallback_limit: Annotated[
        float | None, typer.Option(parser=duration(30), metavar="TIME", help="How long all of that may take.", show_default="10m")
    ] = None,
    trial_command: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="A few steps of your own that each change has to bring through, too.")
    ] = None,
    trial_limit: Annotated[
        float | None,
        typer.Option(parser=duration(5), metavar="TIME", help="How long these may take; who still steps then has passed.", show_default="2m"),
    ] = None,
    forget: Annotated[bool, typer.Option("--forget", help="Start as it is: forget what an earlier run of this job found.")] = False,
    preset: Annotated[str | None, typer.Option(metavar="NAME", help="Settings that go together; unhang presets lists them.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting, such as shm=off; may be repeated. unhang presets --settings")
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long collectives may take (1800, 30m, 2h), for all layers.", show_default="each layer's own"),
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory for this run; must not exist, or be empty.", show_default="runs/SCRIPT-TIME")
    ] = None,
    private: Private = None,
    prefix: Annotated[bool, typer.Option("--prefix", help="Put [rank N] before each line of the training's output.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Keep the training's output in the logs only.")] = False,
    python: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="The training's Python.", show_default="the one beside unhang if it has torch, else python on PATH"),
    ] = None,
    hosts: Annotated[
        str | None,
        typer.Option(metavar="HOSTS", help="Run on several hosts: a file or node[1-8,11], over ssh; or slurm, for this allocation. -n is for each."),
    ] = None,
    ssh: Annotated[list[str] | None, typer.Option("--ssh", metavar="WORDS", help="With --hosts: options of ssh; may be given several times.")] = None,
    preflight: Annotated[str, typer.Option(metavar="off|quick|full", help="With --hosts: look at hosts and links first.")] = "quick",
    nnodes: Annotated[
        str | None,
        typer.Option(
            metavar="MIN:MAX", help="With --hosts: how many of them to train on. Without: how many hosts run this same command.", show_default="all"
        ),
    ] = None,
    node_rank: Annotated[
        int | None,
        typer.Option(min=0, help="The same command on each host: which of them this is, from 0.", show_default="NODE_RANK and the like"),
    ] = None,
    master_addr: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="... and the address of the first one, to which the others connect.", show_default="MASTER_ADDR"),
    ] = None,
    master_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="... and the port on which it listens.", show_default="MASTER_PORT, or 29500")
    ] = None,
    spares: Annotated[int, typer.Option(min=0, help="With --hosts: keep so many of them for those that fail.")] = 0,
    attach: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            is_eager=True,
            callback=_without_a_command,
            help="Go on with a training over several hosts whose unhang run is gone: its run directory.",
        ),
    ] = None,
    no_world_check: Annotated[bool, typer.Option("--no-world-check", help="Do not fail if the processes do not form the world asked for.")] = False,
    pod: Annotated[
        bool,
        typer.Option("--pod", help="In a pod: exit code 93 if no restart can help, 94 if the host is at fault; the verdict as termination message."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the exact environment and command; start nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The outcome as JSON on stdout; the training's output goes to stderr.")] = False,
    no_color: NoColor = False,
) -> None:
    """Run a training: watch it, say why it failed, start it again.

    Options of the training come after COMMAND and need no quoting:

    \b
        unhang run -n 8 train.py --lr 1e-4
        unhang run accelerate launch --num_processes 8 train.py

    Times are seconds, or 90s, 30m, 2h.

    Settings come from a preset, then [run] of unhang.toml, then --set and --timeout. Variables that you have exported are kept by the first two;
    the last two win over them. --dry-run shows each with where it comes from and who reads it.

    What a hang is it learns from the training's steps: calls of an optimizer of torch.optim.

    Exit code: the training's own (128 + N if signal N ended it); 1 if it hung, or was not the training asked for, and had to be ended; 2 for bad
    input; 3 for a failure of unhang's own; 130 if interrupted by Ctrl-C, 143 by SIGTERM, 129 by SIGHUP. The first of these is passed on to the
    command, a second one ends everything at once. With --pod also 93 and 94.
    """
    from unhang.cli import running

    start = running.run
    is_one_of_several = hosts is None and attach is None and nnodes is not None
    if hosts is not None or attach is not None or is_one_of_several:
        # It asks for much that a run on this host does without.
        from unhang.cli import running_hosts

        start = running_hosts.run
    if hosts is None and (ssh or spares):
        raise UnhangError("--ssh and --spares are for --hosts")
    if not is_one_of_several and not (node_rank is None and master_addr is None and master_port is None):
        raise UnhangError(
            "--node-rank, --master-addr and --master-port go with --nnodes, without --hosts",
            hint="unhang run --nnodes 2 --node-rank 0 --master-addr node1 -n 8 train.py",
        )
    if attach is not None:
        running_hosts.attach(attach, prefix=prefix, quiet=quiet, as_json=as_json)
    start(
        running.Request(
            words=tuple(command),
            own_options=frozenset(o for p in context.command.params for o in (*p.opts, *p.secondary_opts) if o.startswith("--")),
            # A directory of its own and a memory that is forgotten are for one run.
            own_words=(*words(context, without=("command", "module", "run_dir", "forget")), *(("-m",) if module else ())),
            # The parser has taken the word away.
            set_apart=sys.argv[-len(command) - 1 : -len(command)] == ["--"],
            nproc_per_node=nproc_per_node,
            module=module,
            on_failure=on_failure,
            max_restarts=max_restarts,
            hang_after_s=hang_after,
            startup_s=startup,
            fallback=fallback,
            fallback_limit_s=fallback_limit,
            forget=forget,
            trial_command=trial_command,
            trial_limit_s=trial_limit,
            preset=preset,
            settings=tuple(settings or ()),
            timeout=timeout,
            run_dir=run_dir,
            private=private,
            prefix=prefix,
            quiet=quiet,
            python=python,
            hosts=hosts,
            ssh=tuple(ssh or ()),
            preflight=preflight,
            nnodes=nnodes,
            node_rank=node_rank,
            master_addr=master_addr,
            master_port=master_port,
            spares=spares,
            check_world=not no_world_check,
            pod=pod,
            dry_run=dry_run,
            as_json=as_json,
        )
    )
