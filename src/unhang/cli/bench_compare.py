"""What `unhang bench compare` does once its options are known."""

from __future__ import annotations

import importlib.util
import os
import re
import secrets
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import typer

from unhang import encoding
from unhang.bench import ready_made
from unhang.bench.arms import Arm, Rules
from unhang.bench.in_force import ARGUMENTS, BY_HOOK, WORLD_SIZE
from unhang.bench.ready_made import NONE, READY_MADE
from unhang.bench.records import Asked, BenchDir
from unhang.bench.runner import Benchmark
from unhang.cli import refused, training_command
from unhang.cli import settings as of_settings
from unhang.cli.aside import say
from unhang.diagnosis.redact import redact_command
from unhang.errors import MissingExtra, RunDirError, UnhangError
from unhang.knowledge.settings import configuration
from unhang.knowledge.settings.planning import Plan
from unhang.launch import command as commands
from unhang.launch.command import Command
from unhang.records import named
from unhang.report import bench, language, screen, settings
from unhang.report.bench_ranking import Ranking
from unhang.report.html import of_bench
from unhang.runtime.attach import protocol
from unhang.runtime.attach.step_times import is_of_interest
from unhang.text import Text

# What settings change that no variable of BY_HOOK stands for, by its name in `Run.in_force`.
_BY_HOOK = {**BY_HOOK, protocol.ENV_BUCKET: "DDP bucket_cap_mb", protocol.ENV_CUDNN_BENCHMARK: "cuDNN benchmark"}
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_BATCH = re.compile(r"(?:.*[-_])?batch(?:[-_]size)?")
# Options of a comparison that goes on: the others are those that it began with.
_ANEW = frozenset({"--resume", "--budget", "--csv", "--markdown", "--html", "--json", "--no-color"})


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of `unhang bench compare` and `priorities`; `typed` names those that stand on the command line."""

    verb: Literal["compare", "priorities"] = "compare"
    ready_made: str | None = None
    only: str | None = None
    words: tuple[str, ...]
    arms: Mapping[str, str]
    argument: str | None
    margin: float
    budget_s: float
    steps: int
    nproc_per_node: int | None
    module: bool
    python: str | None
    resume: Path | None
    csv: Path | None
    markdown: Path | None
    html: Path | None
    as_json: bool
    typed: frozenset[str] = frozenset()


def run(request: Request) -> None:
    """Compare, print the result and leave with its exit code. Raises UnhangError."""
    if importlib.util.find_spec("scipy") is None:
        raise MissingExtra("unhang bench needs SciPy, which is not installed here", hint="pip install 'unhang[bench]'")
    for path in filter(None, (request.csv, request.markdown, request.html)):
        if not named.is_dir(path.absolute().parent):
            raise UnhangError(f"cannot write {path}: there is no directory {path.parent}")
    directory = _resumed(request) if request.resume is not None else None
    asked = directory.asked if directory is not None else _asked(request)
    command = training_command.resolve(request.words or asked.words, module=asked.module, nproc_per_node=asked.nproc_per_node, python=asked.python)
    if not asked.arms:
        asked = _with_ready_made(command, asked, READY_MADE if request.only is None else _named(request.only))
    arms = _arms(command, asked)
    rules = Rules(
        seed=asked.seed,
        margin=asked.margin,
        budget_s=request.budget_s if directory is None or "--budget" in request.typed else asked.budget_s,
        steps=asked.steps,
        is_per_sample=all(arm.samples is not None for arm in arms),
        is_race=asked.verb == "priorities",
        leaves_out_equal=asked.verb == "priorities" or asked.ready_made is not None,
    )
    if directory is None:
        directory = BenchDir.create(command.name, asked)
    again = f"unhang bench {asked.verb} --resume {named.again(os.path.relpath(directory.path))}"
    again += " -- COMMAND" if asked.hides else ""
    try:
        with bench.ProgressLine(arms, rules, screen.console(stderr=True)) as line:
            result = Benchmark(arms, rules, directory=directory, tell=line.tell).run()
    except SystemExit:
        # A signal between two runs.
        say(Text("interrupted; {again} goes on", "已中断；可用 {again} 继续").fill(again=again))
        raise
    common: dict[str, Any] = {"arms": arms, "rules": rules, "run_dir": directory.path, "again": again, "result": result}
    report = Ranking(**common, left_out=asked.left_out) if rules.is_race else bench.Report(**common)
    if request.html is not None:
        _write(request.html, of_bench.render(report, command.argv))
    _write(request.csv, report.csv())
    _write(request.markdown, report.markdown())
    if request.as_json:
        refused.answers(given=True)
        sys.stdout.buffer.write(encoding.encode(report.json()) + b"\n")
    else:
        report.print(screen.console())
    raise typer.Exit(result.exitcode)


def _asked(request: Request) -> Asked:
    """Raises UnhangError for options that do not make a comparison."""
    if request.argument is not None and request.arms:
        raise UnhangError("--arg and --a: choose one", hint="--arg makes an arm of each value")
    words = request.words[1:] if request.words[:1] == ("--",) else request.words
    arms = request.arms if request.argument is None else _of_argument(request.argument)
    if request.ready_made is not None and arms:
        raise UnhangError(
            f"{request.ready_made} has arms of its own: it goes neither with --a nor with --arg",
            hint=f"unhang bench compare {request.ready_made} -- COMMAND",
        )
    is_chosen = request.ready_made is None and request.verb == "compare"
    if not is_chosen:
        arms = {}
    elif list(arms) != list(_LETTERS[: len(arms)]) or len(arms) < 2:
        raise UnhangError(
            "there is nothing to compare: --a and --b are needed, or --arg",
            hint=f"unhang bench compare --a shm=on --b shm=off -- COMMAND, or one of {', '.join(READY_MADE)} in their place",
        )
    if not words:
        raise UnhangError("no command to run", hint=f"unhang bench {request.verb} {'--a ARM --b ARM ' if is_chosen else ''}-- train.py")
    hidden = tuple(redact_command(words))
    return Asked(
        words=hidden,
        hides=hidden != words,
        cwd=str(Path.cwd()),
        arms=arms,
        argument=request.argument,
        module=request.module,
        nproc_per_node=request.nproc_per_node,
        python=request.python,
        seed=secrets.randbelow(2**31),
        margin=request.margin,
        budget_s=request.budget_s,
        steps=request.steps,
        verb=request.verb,
        ready_made=request.ready_made,
    )


def _named(only: str) -> list[str]:
    names = [name for name in re.split(r"[\s,]+", only) if name]
    if unknown := [name for name in names if name not in READY_MADE]:
        raise UnhangError(f"there is no ready-made comparison {unknown[0]}", hint=f"there are {', '.join(READY_MADE)}")
    return names


def _with_ready_made(command: Command, asked: Asked, names: Iterable[str] = READY_MADE) -> Asked:
    """The arms of a ready-made comparison, or of all `names` that apply, against the command as it is. Raises UnhangError where none does."""
    here = of_settings.here(command.python, looks=True, hosts=commands.master(command)[1])
    batch = _batch_of(command)
    if asked.ready_made is not None:
        arms = _apply(command, asked.ready_made, ready_made.arms(asked.ready_made, here, batch=batch))
        return replace(asked, arms=dict(zip(_LETTERS, (arm.asked for arm in arms), strict=False)))
    arms, left_out = [_of_settings(command, "none", NONE)], {}
    for name in names:
        try:
            arms += _apply(command, name, ready_made.arms(name, here, batch=batch)[1:], arms)
        except UnhangError as e:
            left_out[name] = (str(e), e.says_zh or language.refusal(str(e), "zh"))
    if len(arms) == 1:
        raise UnhangError("none of the ready-made comparisons applies here", hint="unhang bench compare NAME -- COMMAND says why")
    return replace(asked, arms=dict(zip(_LETTERS, (arm.asked for arm in arms), strict=False)), left_out=left_out)


def _apply(command: Command, name: str, texts: Sequence[str], others: Sequence[Arm] = ()) -> list[Arm]:
    """The arms that are started otherwise than all before them (unhang.toml may have their settings already). Raises UnhangError, by the name of the
    ready-made comparison, where there are too few, or one of the settings would have no effect.
    """
    found: list[Arm] = []
    for text in texts:
        try:
            arm = _of_settings(command, name, text, is_told=False)
        except UnhangError as e:
            says_zh = e.says_zh and f"{name}：{e.says_zh.removeprefix(f'--{name} ')}"
            raise UnhangError(f"{name}: {str(e).removeprefix(f'--{name} ')}", says_zh=says_zh, cause=e.cause, hint=e.hint) from e
        if all((arm.settings, arm.command.argv) != (other.settings, other.command.argv) for other in (*others, *found)):
            found.append(arm)
    if len(found) < (1 if others else 2):
        raise UnhangError(f"{name}: the command is started with these settings already")
    return found


def _batch_of(command: Command) -> int | None:
    """The batch that the command names, by the flag of [arguments] or LLaMA-Factory's field."""
    own = "per_device_train_batch_size" if commands.launcher(command) == "llamafactory" else ""
    words = shlex.split(configuration.load(Path.cwd()).arguments.get("batch", own))
    value = commands.argument(command, words[0].rstrip("=")) if words else None
    return int(value) if value and value.isdecimal() and int(value) else None


def _of_argument(text: str) -> dict[str, str]:
    name, joined, values = text.partition("=")
    found = values.split(",")
    if not joined or not name or not all(found) or len(found) < 2:
        raise UnhangError(f"--arg {text}: it is a name and two values or more", hint="--arg batch=64,128")
    return {chr(ord("a") + i): f"{name}={value}" for i, value in enumerate(found[:26])}


def _resumed(request: Request) -> BenchDir:
    """Raises UnhangError for what is no directory of a comparison, and for options that would change it."""
    assert request.resume is not None
    directory = BenchDir.open(request.resume)
    asked = directory.asked
    if asked.verb != request.verb:
        raise UnhangError(
            f"{request.resume} is a directory of unhang bench {asked.verb}",
            hint=f"unhang bench {asked.verb} --resume {named.again(request.resume)}",
        )
    if others := sorted(request.typed - _ANEW - {"command"}):
        raise UnhangError(
            f"{others[0]} cannot be changed: {request.resume} goes on as it began", hint=f"leave {others[0]} out, or start a new comparison"
        )
    if Path(asked.cwd) != Path.cwd():
        raise UnhangError(f"{request.resume} was started in {asked.cwd}", hint=f"cd {shlex.quote(asked.cwd)}")
    if not request.words and asked.hides:
        raise UnhangError(
            "the command holds a credential, which is not kept: it has to be typed again",
            hint=f"unhang bench {asked.verb} --resume {named.again(request.resume)} -- {shlex.join(asked.words)}",
        )
    if request.words and tuple(redact_command(request.words)) != tuple(asked.words):
        raise UnhangError(f"this is another command than that of {request.resume}: {shlex.join(asked.words)}", hint="leave it out")
    return directory


def _arms(command: Command, asked: Asked) -> list[Arm]:
    """Raises UnhangError for settings that would have no effect, and for arms that are started alike."""
    make = _of_settings if asked.argument is None else _with_argument
    arms = [make(command, name, text) for name, text in asked.arms.items()]
    if any(arm.samples is not None for arm in arms):
        # An arm that leaves the batch alone has the command's.
        batch = _batch_of(command)
        arms = [replace(arm, samples=arm.samples or batch) for arm in arms]
    for i, one in enumerate(arms):
        for other in arms[:i]:
            if (one.settings, one.command.argv) == (other.settings, other.command.argv):
                raise UnhangError(
                    f"arms {other.name} and {one.name} are the same: {other.asked}, {one.asked}",
                    cause="they set the same variables, options and arguments here",
                )
    return arms


def _with_argument(command: Command, name: str, text: str) -> Arm:
    plain = _of_settings(command, name, NONE)
    flag, _, value = text.partition("=")
    return replace(
        plain,
        asked=text,
        command=commands.with_settings(plain.command, arguments=(flag if flag.startswith("-") else f"--{flag}", value)),
        changes=frozenset({ARGUMENTS}),
        samples=int(value) if _BATCH.fullmatch(flag.lstrip("-")) and value.isdecimal() and int(value) else None,
    )


def _of_settings(command: Command, name: str, text: str, *, is_told: bool = True) -> Arm:
    try:
        words = shlex.split(text)
    except ValueError as e:
        raise UnhangError(f"--{name} {text}: {e}") from e
    presets = [word for word in words if "=" not in word and word != NONE]
    typed = [word for word in words if "=" in word]
    if not words or len(presets) > 1 or (NONE in words and len(words) > 1):
        raise UnhangError(
            f"--{name} {text!r}: it is one preset, or settings, or {NONE}",
            hint=f"--{name} shm=off, --{name} 'shm=off p2p=off', --{name} conservative, --{name} {NONE}",
        )
    configured = configuration.load(Path.cwd())
    plan = of_settings.plan(command, configured, preset=presets[0] if presets else None, settings=typed, timeout=None, option=f"--{name}")
    if plan is None:
        return Arm(name=name, asked=text, command=command)
    started = commands.with_settings(command, options=plan.applied.options, arguments=plan.applied.arguments)
    commands.check_reach(started, {**os.environ, **plan.applied.env})
    for said in settings.notes(plan, language.spoken()) if is_told else ():
        typer.echo(f"unhang: {name}: {said}", err=True)
    return Arm(
        name=name,
        asked=text,
        command=started,
        settings=plan.applied.env,
        described=settings.described(plan),
        changes=frozenset(_changes(plan)),
        samples=_samples(plan),
    )


def _changes(plan: Plan) -> set[str]:
    """What the settings of an arm are to change, by its name in `Run.in_force`. Those of unhang.toml are for all arms."""
    found = set()
    for one in plan.chosen:
        spelled = plan.applied.spelled.get(one.key)
        if spelled is None or not (one.is_typed or one.origin.startswith("preset ")):
            continue
        found |= {_BY_HOOK.get(variable, variable) for variable in spelled.env if variable in _BY_HOOK or is_of_interest(variable)}
        found |= {WORLD_SIZE} if one.key == "processes" else {ARGUMENTS} if spelled.arguments else set()
    return found


def _samples(plan: Plan) -> int | None:
    value: Any = next((one.value for one in plan.chosen if one.key == "batch"), None)
    return value if isinstance(value, int) else None


def _write(path: Path | None, text: str) -> None:
    if path is None:
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as e:
        raise RunDirError(f"cannot write {path}: {e.strerror or e}") from e
