"""unhang plan: what of a training fits this hardware, how to divide it, and why."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unhang.cli import json_errors
from unhang.cli.options import Lang, NoColor
from unhang.errors import EXIT_FOUND, EXIT_OK, UnhangError
from unhang.i18n import msg
from unhang.report import language, screen

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from unhang.bench.collective_bench import Limit
    from unhang.i18n import Text
    from unhang.launch.command import Command
    from unhang.plan.memory_model import Tracked
    from unhang.plan.model_shape import Shape
    from unhang.plan.recommend import Machine, Plan, Row
    from unhang.plan.training import Strategy, Training
    from unhang.report.plan import Calibration

_CALLABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
SCHEMA = "unhang/plan/1"
_QUIET_S = 2.0
_COUNT = re.compile(r"(\d{1,16}(?:\.\d{1,9})?(?:e\+?\d{1,2})?)([mbt]?)", re.IGNORECASE)
_TIMES = {"": 1, "m": 1e6, "b": 1e9, "t": 1e12}


def register(app: typer.Typer) -> None:
    app.command("plan")(plan)


def plan(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="config.json, *.safetensors, a directory of them, or module:callable.", show_default="by numbers"),
    ] = None,
    params: Annotated[str | None, typer.Option(metavar="N", help="Number of parameters, such as 7B, 350M or 7e9.")] = None,
    layers: Annotated[int | None, typer.Option(metavar="N", help="Blocks.")] = None,
    hidden: Annotated[int | None, typer.Option(metavar="N", help="Width.")] = None,
    heads: Annotated[int | None, typer.Option(metavar="N")] = None,
    kv_heads: Annotated[int | None, typer.Option(metavar="N")] = None,
    vocab: Annotated[int | None, typer.Option(metavar="N", help="Words of the tokenizer.")] = None,
    intermediate: Annotated[int | None, typer.Option(metavar="N", help="Width of the MLP.")] = None,
    world_size: Annotated[int | None, typer.Option(metavar="N", help="All ranks.", show_default="GPUs of this machine")] = None,
    per_node: Annotated[int | None, typer.Option(metavar="N", help="Ranks of one host.", show_default="GPUs of this machine, or 8")] = None,
    gpu_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Of one GPU: 80GiB (1024^3 bytes each).", show_default="of this machine")
    ] = None,
    host_memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Of one host.", show_default="free here, if without --gpu-memory")] = None,
    cpus: Annotated[int | None, typer.Option(metavar="N", min=1, help="Of one host.", show_default="of here, if without --gpu-memory")] = None,
    batch: Annotated[int, typer.Option(metavar="N", help="Samples (sequences, images) in one forward pass of a rank.")] = 1,
    sequence: Annotated[int | None, typer.Option(metavar="N", help="Tokens of a sequence.", show_default="2048, or the model's if less")] = None,
    accumulation: Annotated[int, typer.Option(metavar="N", help="Forward passes for one step.")] = 1,
    precision: Annotated[str | None, typer.Option(help="fp32, bf16 or fp16 (mixed), pure-bf16.", show_default="bf16; fp32 without GPUs")] = None,
    optimizer: Annotated[str, typer.Option(help="adamw, adamw-8bit, adafactor, momentum, sgd.")] = "adamw",
    checkpointing: Annotated[bool, typer.Option("--checkpointing", help="Blocks are computed again in the backward pass.")] = False,
    attention: Annotated[str, typer.Option(help="flash, sdpa or eager.")] = "sdpa",
    lora: Annotated[str | None, typer.Option(metavar="RANK[:TARGETS]", help="Adapters: 16, 16:q_proj,v_proj, 16:all.")] = None,
    frozen: Annotated[int, typer.Option(metavar="N", min=0, help="Blocks from the bottom that do not train, and the embedding.")] = 0,
    offload: Annotated[str, typer.Option(help="auto, none, optimizer or all.")] = "auto",
    strategy: Annotated[str | None, typer.Option(metavar="NAME", help="Only this one, such as zero-2 or fsdp2.")] = None,
    loader_workers: Annotated[int, typer.Option(metavar="N", min=0, help="Of each rank.")] = 2,
    data_rows: Annotated[int | None, typer.Option(metavar="N", min=1, help="Rows that are tokenized before the training.")] = None,
    calibrate: Annotated[bool, typer.Option("--calibrate", help="Run the COMMAND behind -- for three steps and state the error.")] = False,
    command: Annotated[list[str] | None, typer.Argument(metavar="[-- COMMAND...]", help="With --calibrate.")] = None,
    output: Annotated[Path | None, typer.Option("-o", metavar="FILE", help="Write the plan for a launcher.")] = None,
    form: Annotated[str, typer.Option(help="Of FILE: deepspeed, accelerate, llamafactory or trainer.")] = "deepspeed",
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Each number's formula and source.")] = False,
    closed_form: Annotated[bool, typer.Option("--closed-form", help="Do not build the model with torch.")] = False,
    python: Annotated[str | None, typer.Option(metavar="PATH", help="The training's Python.", show_default="the one on PATH")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The plan as JSON.")] = False,
    lang: Lang = None,
    no_color: NoColor = False,
) -> None:
    """Count what a training needs, before it starts: memory of each rank, host memory, communication.

    \b
        unhang plan config.json --world-size 8 --gpu-memory 80GiB
        unhang plan --params 7e9 --world-size 16 --per-node 8 --gpu-memory 40GiB --checkpointing
        unhang plan models:build --batch 8 --explain
        unhang plan config.json --strategy zero-2 -o ds_config.json
        unhang plan config.json --strategy ddp --calibrate -- torchrun --nproc-per-node 8 train.py

    A model that torch can build is counted by torch's own memory tracker on fake tensors; else by closed form. Nothing is downloaded.

    Exit code: 0 if a strategy fits; 1 if none does; 2 for bad input; 3 for our own failure; 130 for Ctrl-C.
    """
    from unhang.cli import export, training_command
    from unhang.launch import command as commands
    from unhang.plan import exported, recommend, training
    from unhang.plan.model_shape import Unshaped
    from unhang.report import plan as report

    chosen = language.chosen(lang)
    if calibrate and model is not None and (params is not None or layers is not None):
        # Without a MODEL the first word behind -- is no model.
        command, model = [model, *(command or [])], None
    if bool(command) != calibrate:
        raise UnhangError(msg("--calibrate and a command behind -- go together"))
    numbers = {"layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv_heads, "vocab": vocab, "intermediate": intermediate}
    shape, callable_name, problem = None, None, None
    try:
        shape, callable_name = _model(model, params, {name: value for name, value in numbers.items() if value is not None})
    except Unshaped as e:
        problem = e
    gpus = _gpus() if gpu_memory is None else ()
    is_cuda = gpu_memory is not None or bool(gpus)
    ranks, run = world_size or max(1, len(gpus)), None
    if command:
        run = training_command.resolve(command, module=False, nproc_per_node=ranks if commands.is_script(command[0]) else None, python=python)
    if world_size is None:
        world_size = (run.world_size if run is not None else None) or ranks
    asked = training.Training(
        world_size=world_size,
        per_node=per_node if per_node is not None else min(world_size, len(gpus) or 8),
        batch=batch,
        sequence=sequence if sequence is not None else min(2048, shape.longest or 2048) if shape is not None else 2048,
        accumulation=accumulation,
        precision=precision or ("bf16" if is_cuda else "fp32"),
        optimizer=optimizer,
        checkpointing=checkpointing,
        attention=attention,
        lora=training.lora(lora, shape) if lora is not None else None,
        frozen=frozen,
        device="cuda" if is_cuda else "cpu",
        loader_workers=loader_workers,
    )
    if shape is not None:
        training.check_shape(asked, shape)
    strategies = training.strategies(asked, offload, strategy)
    training.check_word("--form", form, exported.FORMS)
    machine = _machine(asked, _size("--gpu-memory", gpu_memory), _size("--host-memory", host_memory), cpus, gpus)
    with _progress(chosen, msg("building the model and counting it on fake tensors (not with --closed-form)")):
        python = run.python if run is not None else python
        tracked, notes = (None, []) if closed_form else _tracked(model, callable_name, shape, asked, strategies, python)
    name = model or (shape.name if shape is not None else "")
    if tracked is None and shape is None:
        raise problem or UnhangError(msg("{name} has no closed form", name=name))
    if tracked is not None and tracked.activations and shape is not None and not shape.is_known:
        # What the nearest family would need is no better than what was counted.
        shape = None
    made = recommend.plan(shape, asked, strategies, machine, name=name, tracked=tracked, data_rows=data_rows, notes=notes)
    if not as_json:
        report.show(made, screen.console(), lang=chosen, explain=explain)
    row = None if output is None else made.row(strategy) if strategy is not None else exported.best(form, made)
    said: list[Text] = []
    if output is not None and row is None:
        said.append(report.UNWRITTEN.fill(form=form))
    elif output is not None and row is not None:
        export.write(output, found := exported.write(form, made, row, name=output.name), force)
        said.append(report.written(row, output.name, found.companions, instead_of=made.row(strategy)))
    for text in said:
        screen.say(text)
    measured = _measured(made, made.row(strategy), run) if run is not None else None
    if as_json:
        json_errors.print_json({"schema": SCHEMA, **{field.name: getattr(made, field.name) for field in fields(made)}, "calibration": measured})
    elif measured is not None:
        screen.echo(measured.says().of(chosen))
    is_fine = any(row.is_usable for row in made.rows) or machine.device_bytes is None
    raise typer.Exit(EXIT_OK if is_fine and (output is None or row is not None) else EXIT_FOUND)


@contextmanager
def _progress(lang: str, doing: Text) -> Iterator[None]:
    """Says on standard error what takes longer than two seconds."""
    timer = threading.Timer(_QUIET_S, typer.echo, [f"unhang: {doing.of(lang)} ..."], {"err": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _model(model: str | None, params: str | None, numbers: Mapping[str, int]) -> tuple[Shape | None, str | None]:
    """The shape, or what is to be called for the model. Raises Unshaped if there is none, UnhangError for bad input."""
    from unhang.plan import model_file, model_shape

    if model is None:
        if params is not None:
            found = _COUNT.fullmatch(params)
            count = round(float(found[1]) * _TIMES[found[2].lower()]) if found is not None else 0
            if not 1 <= count <= 10**15:
                raise UnhangError(msg("--params {params}: it is a number such as 7B, 350M or 7e9, and at most 1e15", params=params))  # fmt: skip
            return model_shape.from_count(count, numbers), None
        if numbers:
            return model_shape.from_numbers("these numbers", numbers), None
        raise UnhangError(msg("name a model, or give its numbers"), hint="unhang plan config.json, or unhang plan --params 7e9")
    if params is not None or numbers:
        raise UnhangError(msg("{model} has its own numbers: --params, --layers and the like go without it", model=model))
    if Path(model).exists():
        return model_file.read(Path(model)), None
    if _CALLABLE.fullmatch(model):
        return None, model
    raise UnhangError(
        msg("there is no {model}", model=model), hint="unhang plan config.json; nothing is downloaded: give the file of a model that is here"
    )


def _size(option: str, text: str | None) -> int | None:
    from unhang.settings.setting import parse_size

    if text is None:
        return None
    try:
        found = parse_size(text)
    except ValueError:
        found = 0
    # Nobody means 80 bytes.
    if not 1 << 20 <= found < 1 << 60:
        raise UnhangError(msg("{option} {text}: it is a size such as 80GiB, from 1 MiB to 1000000 TiB", option=option, text=text))  # fmt: skip
    return found


def _gpus() -> tuple[int, ...]:
    """Bytes of each GPU of this machine."""
    from unhang.facts import gpu, snapshot
    from unhang.facts.host import Host

    seen = snapshot.take(Host(), only=("gpu",)).get(gpu.SUBJECT)
    return tuple(one.memory_total_bytes for one in (seen.gpus if seen is not None else ()) if one.memory_total_bytes)


def _machine(asked: Training, gpu_bytes: int | None, host_bytes: int | None, cpus: float | None, gpus: tuple[int, ...]) -> Machine:
    from unhang.facts import limits, memory, snapshot
    from unhang.facts.host import Host
    from unhang.plan.recommend import Machine

    # With --gpu-memory another machine is planned for, of which nothing is known.
    seen = snapshot.take(Host(), only=("memory", "limits")) if gpu_bytes is None else None
    of_memory, of_limits = (seen.get(memory.SUBJECT), seen.get(limits.SUBJECT)) if seen is not None else (None, None)
    free = host_bytes if host_bytes is not None else of_memory.left_bytes if of_memory is not None else None
    cpus = cpus if cpus is not None else of_limits.cpus if of_limits is not None else None
    links = _links(asked) if gpus else None
    if gpu_bytes is not None:
        origin = msg("--gpu-memory")
    elif gpus:
        gpu_bytes, origin = min(gpus), msg("the smallest GPU of this machine")
    else:
        gpu_bytes = free // asked.ranks_here if free is not None else None
        origin = msg("no GPU here: its share of the host's free memory")
    return Machine(
        device_bytes=gpu_bytes,
        host_bytes=free,
        cpus=cpus,
        link_gbps=links.gbps if links is not None else None,
        links=links.what if links is not None else None,
        origin=origin,
    )


def _links(asked: Training) -> Limit | None:
    import socket

    from unhang.bench import collective_bench

    here = socket.gethostname()
    hosts = tuple(here if rank < asked.per_node else "another" for rank in range(asked.world_size))
    return collective_bench.link_limit(collective_bench.Group(backend="nccl", hosts=hosts, torch="", nccl=None, device=""), memory_gbps=None)


def _tracked(
    model: str | None, callable_name: str | None, shape: Shape | None, asked: Training, strategies: Sequence[Strategy], python: str | None
) -> tuple[Tracked | None, list[Text]]:
    """What torch counted, and a note for what it could not, where the closed form stands in. Raises UnhangError where that cannot."""
    from unhang.launch import command as commands
    from unhang.plan import model_file, tracked

    config = model_file.config(Path(model)) if model is not None and callable_name is None else None
    if callable_name is None and config is None:
        return None, []
    request = {"callable": callable_name} if callable_name is not None else {"config": config}
    try:
        python = python or commands.training_python()
        names = {one.name for one in strategies} | {one.runs_on for one in strategies}
        found = tracked.ask(request, asked, python=python, fsdp2="fsdp2" in names, deepspeed="deepspeed" in names)
    except UnhangError as e:
        if shape is None:
            raise
        return None, [msg("{why}: closed form", why=e.message)]
    is_text = bool(found.sample) and all(kind == "tokens" for kind, _ in found.sample)
    if not found.activations and not (shape is not None and is_text):
        raise UnhangError(
            msg(
                "the model has {parameters:,} parameters, but torch could not count its activations: {failed}",
                parameters=found.counts.parameters,
                failed=found.failed,
            ),
            hint="unhang plan MODULE:CALLABLE, which returns the model and its inputs",
        )
    what = msg("FSDP2") if found.activations else msg("activations")
    notes = [] if found.failed is None else [what + msg(" by closed form: {failed}", failed=found.failed)]
    if found.dropped:
        dropped = ", ".join(found.dropped)
        notes.append(
            msg(
                "{dropped}: counted as 0, since {attention} attention on GPUs keeps no scores for it; --attention eager counts it",
                dropped=dropped,
                attention=asked.attention,
            )
        )
    if found.attention == "eager" and asked.attention != "eager":
        notes.append(
            msg(
                "this model has no sdpa attention in transformers: counted with its own, which keeps more than {attention}", attention=asked.attention
            )
        )
    if callable_name is not None and (asked.checkpointing or asked.attention != "sdpa"):
        notes.append(msg("--checkpointing and --attention are left to the code of the model"))
    return found, notes


def _measured(made: Plan, row: Row, command: Command) -> Calibration:
    from unhang.bench.runner import measure_peak
    from unhang.launch.supervise import run_path
    from unhang.records.rundir import RunDir
    from unhang.report.plan import calibrate

    rundir = RunDir.create(lambda: run_path(Path("runs"), "plan").absolute(), private=True)
    ranks = measure_peak(command, rundir, steps=3, tell=lambda event: None)
    return calibrate(row.estimate, made.training, [(one.host_bytes, one.cuda_bytes) for one in ranks])
