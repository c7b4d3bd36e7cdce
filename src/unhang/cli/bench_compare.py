"""What `unhang bench compare` does once its options are known."""

from __future__ import annotations

import difflib
import os
import re
import secrets
import shlex
import shutil
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import typer

from unhang import fsio
from unhang.attach.step_times import is_of_interest, is_secret
from unhang.bench.arms import NONE, READY_MADE, Arm, Rules, ready_made_arms
from unhang.bench.effective_settings import ARGUMENTS, BY_HOOK, REPORTED_AS, WORLD_SIZE
from unhang.bench.records import Asked, BenchDir
from unhang.bench.runner import Benchmark
from unhang.cli import json_errors, training_command
from unhang.cli import settings as of_settings
from unhang.cli.bench import need_scipy
from unhang.diagnosis.redact import redact_command
from unhang.errors import RunDirError, UnhangError
from unhang.i18n import joined, msg, same
from unhang.launch import command as commands
from unhang.launch.command import Command
from unhang.report import bench, language, screen, settings
from unhang.report.bench_ranking import Ranking
from unhang.settings.plan import Plan

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
# Flags by which scripts take what makes up the work of a rank in a step, if [arguments] of unhang.toml does not name them.
_WORK = {
    "batch": ("per-device-train-batch-size", "train-batch-size", "micro-batch-size", "batch-size", "batch"),
    "accumulation": ("gradient-accumulation-steps", "accumulation"),
}
# An arm that sets an environment variable names it with this prefix.
_VARIABLE = "env."
# Options of a comparison that goes on: the others are those that it began with.
_ANEW = frozenset({"--resume", "--budget", "--markdown", "--json", "--no-color"})


def run(verb: Literal["compare", "priorities"], options: SimpleNamespace, typed: Collection[str]) -> None:
    """Compare, print the result and leave with its exit code. `options` are those of `cli.bench`, of which `typed` stand on the command line.

    Raises UnhangError.
    """
    need_scipy()
    markdown: Path | None = options.markdown
    if markdown is not None and not fsio.is_dir(markdown.absolute().parent):
        raise UnhangError(f"cannot write {markdown}: there is no directory {markdown.parent}")
    directory = _resumed(verb, options, typed) if options.resume is not None else None
    asked = directory.asked if directory is not None else _asked(verb, options)
    command = training_command.resolve(options.command or asked.words, module=asked.module, nproc_per_node=asked.nproc_per_node, python=asked.python)
    if not asked.arms:
        asked = _with_ready_made(command, asked, READY_MADE if options.only is None else _named(options.only))
    arms = _arms(command, asked)
    samples = {arm.samples for arm in arms}
    rules = Rules(
        seed=asked.seed,
        margin=asked.margin,
        budget_s=options.budget if directory is None or "--budget" in typed else asked.budget_s,
        steps=asked.steps,
        is_per_sample=None not in samples and (len(samples) > 1 or any(WORLD_SIZE in arm.changes for arm in arms)),
        is_race=verb == "priorities",
        leaves_out_equal=verb == "priorities" or asked.ready_made is not None,
    )
    if directory is None:
        private = of_settings.configured(Path.cwd()).private if options.private is None else options.private
        directory = BenchDir.create(command.name, asked, private=private)
    directory.lock()
    if options.resume is not None:
        screen.say(msg("goes on with {command}", command=json_errors.shown(shlex.join(redact_command(command.argv)))))
    again = f"unhang bench {verb} --resume {fsio.as_argument(os.path.relpath(directory.path))}" + (" -- COMMAND" if asked.hides else "")
    with screen.status("...") as status:
        result = Benchmark(arms, rules, directory=directory, on_progress=bench.ProgressLine(arms, rules, status).show).run()
    common: dict[str, Any] = {"arms": arms, "rules": rules, "run_dir": directory.path, "again": again, "result": result}
    report = Ranking(**common, left_out=asked.left_out) if rules.is_race else bench.Report(**common)
    # What was measured is shown whatever happens to the file.
    json_errors.answer(report.json(), report.print, as_json=options.as_json)
    try:
        if markdown is not None:
            fsio.write_named(markdown, report.markdown().encode("utf-8"))
    except OSError as e:
        raise RunDirError(f"cannot write {markdown}: {e.strerror or e}") from e
    raise typer.Exit(result.exitcode)


def _asked(verb: Literal["compare", "priorities"], options: SimpleNamespace) -> Asked:
    """Raises UnhangError for options that do not make a comparison."""
    arms = {name: text for name in "abcd" if (text := getattr(options, name)) is not None}
    if options.argument is not None and arms:
        raise UnhangError("--arg and --a: choose one", hint="--arg makes an arm of each value")
    words = tuple(options.command or ())
    arms = arms if options.argument is None else _of_argument(options.argument)
    if options.ready_made is not None and arms:
        raise UnhangError(
            f"{options.ready_made} has arms of its own: it goes neither with --a nor with --arg",
            hint=f"unhang bench compare {options.ready_made} -- COMMAND",
        )
    is_chosen = options.ready_made is None and verb == "compare"
    is_like_one = is_chosen and not arms and words and difflib.get_close_matches(words[0], READY_MADE, 1)
    if is_like_one and not (Path(words[0]).exists() or shutil.which(words[0])):
        _named(words[0])
    if is_chosen and (list(arms) != list(_LETTERS[: len(arms)]) or len(arms) < 2):
        raise UnhangError(
            "there is nothing to compare: --a and --b are needed, or --arg",
            hint=f"unhang bench compare --a shm=on --b shm=off -- COMMAND, or one of {', '.join(READY_MADE)} in their place",
        )
    if not words:
        raise UnhangError("no command to run", hint=f"unhang bench {verb} {'--a ARM --b ARM ' if is_chosen else ''}-- train.py")
    hidden = tuple(redact_command(words))
    kept = {name: getattr(options, name) for name in ("argument", "module", "nproc_per_node", "python", "margin", "steps", "ready_made")}
    return Asked(
        words=hidden, hides=hidden != words, cwd=str(Path.cwd()), arms=arms, seed=secrets.randbelow(2**31), budget_s=options.budget, verb=verb, **kept
    )


def _named(only: str) -> list[str]:
    names = [name for name in re.split(r"[\s,]+", only) if name]
    if unknown := [name for name in names if name not in READY_MADE]:
        raise UnhangError(f"there is no ready-made comparison {unknown[0]}", hint=f"there are {', '.join(READY_MADE)}")
    return names


def _with_ready_made(command: Command, asked: Asked, names: Iterable[str] = READY_MADE) -> Asked:
    """The arms of a ready-made comparison, or of all `names` that apply, against the command as it is. Raises UnhangError where none does."""
    here = of_settings.here(command.python, looks=True, hosts=commands.master(command)[1])
    batch = _work_of(Arm(name="", asked="", command=command), "batch")
    if asked.ready_made is not None:
        arms = _apply(command, asked.ready_made, ready_made_arms(asked.ready_made, here, batch=batch))
        return replace(asked, arms=dict(zip(_LETTERS, (arm.asked for arm in arms), strict=False)))
    arms, left_out = [_of_settings(command, "none", NONE)], {}
    for name in names:
        try:
            arms += _apply(command, name, ready_made_arms(name, here, batch=batch)[1:], arms)
        except UnhangError as e:
            left_out[name] = e.message
    if len(arms) == 1:
        raise UnhangError(msg("none of the ready-made comparisons applies here: {why}", why=joined(left_out.values())))
    return replace(asked, arms=dict(zip(_LETTERS, (arm.asked for arm in arms), strict=False)), left_out=left_out)


def _apply(command: Command, name: str, texts: Sequence[str], others: Sequence[Arm] = ()) -> list[Arm]:
    """The arms that are started otherwise than all before them (unhang.toml may have their settings already). Raises UnhangError, by the name of the
    ready-made comparison, where there are too few, or one of the settings would have no effect.
    """
    found: list[Arm] = []
    for text in texts:
        try:
            arm = _of_settings(command, name, text, reports=False)
        except UnhangError as e:
            why = same(e.message).edited(re.escape(f"--{name} "), "")
            raise UnhangError(msg("{name}: {why}", name=name, why=why), cause=e.cause, hint=e.hint) from e
        if all((arm.settings, arm.command.argv) != (other.settings, other.command.argv) for other in (*others, *found)):
            found.append(arm)
    if len(found) < (1 if others else 2):
        raise UnhangError(msg("{name}: the command is started with these settings already", name=name))
    return found


def _work_of(arm: Arm, key: str) -> int | None:
    """The batch or the accumulation that an arm is started with: by the flag of [arguments], LLaMA-Factory's field, or a name that is usual."""
    own = shlex.split(of_settings.configured(Path.cwd()).arguments.get(key, ""))[:1]
    is_llamafactory = commands.launcher(arm.command) == "llamafactory"
    usual = [("" if is_llamafactory else "--") + spelled for name in _WORK[key] for spelled in (name, name.replace("-", "_"))]
    found = [commands.argument(arm.command, flag.rstrip("=")) for flag in (*own, *usual)]
    found.append(arm.settings.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS") if key == "accumulation" else None)
    return next((int(value) for value in found if value and value.isdecimal() and int(value)), None)


def _of_argument(text: str) -> dict[str, str]:
    name, joined, values = text.partition("=")
    found = values.split(",")
    if not joined or not name or not all(found) or len(found) < 2:
        raise UnhangError(f"--arg {text}: it is a name and two values or more", hint="--arg batch=64,128")
    if len(found) > len(_LETTERS):
        raise UnhangError(f"--arg {name}: {len(found)} values are more than {len(_LETTERS)} arms")
    return {letter: f"{name}={value}" for letter, value in zip(_LETTERS, found, strict=False)}


def _resumed(verb: str, options: SimpleNamespace, typed: Collection[str]) -> BenchDir:
    """Raises UnhangError for what is no directory of a comparison, and for options that would change it."""
    path, words = options.resume, tuple(options.command or ())
    directory = BenchDir.open(path)
    asked = directory.asked
    if asked.verb != verb:
        raise UnhangError(
            f"{path} is a directory of unhang bench {asked.verb}",
            hint=f"unhang bench {asked.verb} --resume {fsio.as_argument(path)}",
        )
    if others := sorted(frozenset(typed) - _ANEW - {"command"}):
        raise UnhangError(f"{others[0]} cannot be changed: {path} goes on as it began", hint=f"leave {others[0]} out, or start a new comparison")
    if Path(asked.cwd) != Path.cwd():
        raise UnhangError(f"{path} was started in {asked.cwd}", hint=f"cd {shlex.quote(asked.cwd)}")
    if not words and asked.hides:
        raise UnhangError(
            "the command holds a credential, which is not kept: it has to be typed again",
            hint=f"unhang bench {asked.verb} --resume {fsio.as_argument(path)} -- {shlex.join(asked.words)}",
        )
    if words and tuple(redact_command(words)) != tuple(asked.words):
        raise UnhangError(f"this is another command than that of {path}: {shlex.join(asked.words)}", hint="leave it out")
    return directory


def _arms(command: Command, asked: Asked) -> list[Arm]:
    """Raises UnhangError for settings that would have no effect, and for arms that are started alike."""
    make = _of_settings if asked.argument is None else _with_argument
    arms = [make(command, name, text) for name, text in asked.arms.items()]
    for i, one in enumerate(arms):
        for other in arms[:i]:
            if ({**os.environ, **one.settings}, one.command.argv) == ({**os.environ, **other.settings}, other.command.argv):
                raise UnhangError(
                    f"arms {other.name} and {one.name} are the same: {other.asked}, {one.asked}",
                    cause="they set the same variables, options and arguments here",
                )
    # Raises UnhangError if a step of one arm does other work than that of another, and it is not known how much.
    found = {key: [_work_of(arm, key) for arm in arms] for key in _WORK}
    for key, numbers in found.items():
        if None in numbers and (known := [i for i, number in enumerate(numbers) if number is not None]):
            raise UnhangError(
                f"the {key} of arm {arms[numbers.index(None)].name} is not known, and arm {arms[known[0]].name} sets {numbers[known[0]]}",
                hint=f"name the {key} in the command, or set it in every arm",
            )
    is_other_work = any(WORLD_SIZE in arm.changes for arm in arms) or len(set(found["accumulation"])) > 1
    if is_other_work and None in found["batch"]:
        raise UnhangError(
            "a step has other samples in each arm, and the batch of a rank is not known",
            cause="processes and accumulation change the work of a step",
            hint="name the batch in the command, or set it in every arm",
        )
    return [replace(arm, samples=batch and batch * (times or 1)) for arm, batch, times in zip(arms, *found.values(), strict=True)]


def _with_argument(command: Command, name: str, text: str) -> Arm:
    plain = _of_settings(command, name, NONE)
    flag, _, value = text.partition("=")
    return replace(
        plain,
        asked=text,
        command=commands.with_settings(plain.command, arguments=(flag if flag.startswith("-") else f"--{flag}", value)),
        changes=frozenset({ARGUMENTS}),
    )


def _of_settings(command: Command, name: str, text: str, *, reports: bool = True) -> Arm:
    try:
        words = shlex.split(text)
    except ValueError as e:
        raise UnhangError(f"--{name} {text}: {e}") from e
    variables = dict(_variable(name, word) for word in words if word.startswith(_VARIABLE))
    presets = [word for word in words if "=" not in word and word != NONE]
    typed = [word for word in words if "=" in word and not word.startswith(_VARIABLE)]
    if not words or len(presets) > 1 or (NONE in words and len(words) > 1):
        raise UnhangError(
            f"--{name} {text!r}: it is one preset, or settings, or {NONE}",
            hint=f"--{name} shm=off, --{name} 'shm=off p2p=off', --{name} env.OMP_NUM_THREADS=4, --{name} conservative, --{name} {NONE}",
        )
    configured = of_settings.configured(Path.cwd())
    plan = of_settings.plan(command, configured, preset=presets[0] if presets else None, settings=typed, timeout=None, option=f"--{name}")
    changes = frozenset({*variables, *(REPORTED_AS[one] for one in variables if one in REPORTED_AS)})
    if plan is None:
        return Arm(name=name, asked=text, command=command, settings=variables, changes=changes)
    started = commands.with_settings(command, options=plan.applied.options, arguments=plan.applied.arguments)
    commands.check_reach(started, {**os.environ, **plan.applied.env, **variables})
    for said in settings.notes(plan, language.spoken()) if reports else ():
        screen.say(f"{name}: {said}")
    return Arm(
        name=name,
        asked=text,
        command=started,
        settings={**plan.applied.env, **variables},
        described=settings.described(plan),
        changes=changes | _changes(plan),
    )


def _variable(arm: str, word: str) -> tuple[str, str]:
    """Raises UnhangError for a name or a value that cannot be meant, and for what must not be recorded."""
    from unhang.variables import known, value_parsers

    name, joined, value = word.removeprefix(_VARIABLE).partition("=")
    said = f"--{arm} {_VARIABLE}{name}"
    if not joined or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise UnhangError(f"--{arm} {word}: it is a variable and its value", hint=f"--{arm} env.OMP_NUM_THREADS=4")
    if is_secret(name.upper()) or redact_command((f"{name}={value}",)) != (f"{name}={value}",):
        raise UnhangError(f"{said}: its name suggests a credential, and arms are written down", hint="export it, and leave it out of the arms")
    entry = known.entries().get(name)
    if entry is None and known.owned(name) and (meant := known.nearest(name)) is not None:
        raise UnhangError(f"{said}: no such variable is known", cause=f"did you mean {meant}?", hint=f"--{arm} {_VARIABLE}{meant}={value}")
    if entry is not None and not value_parsers.is_legal(entry.kind, value):
        raise UnhangError(f"{said}={value}: it takes {entry.kind.text()}")
    return name, value


def _changes(plan: Plan) -> set[str]:
    """What the settings of an arm are to change, by its name in `Run.in_force`. Those of unhang.toml are for all arms."""
    found = set()
    for one in plan.chosen:
        spelled = plan.applied.spelled.get(one.key)
        if spelled is None or not (one.is_typed or one.origin.startswith("preset ")):
            continue
        found |= {BY_HOOK.get(variable, variable) for variable in spelled.env if variable in BY_HOOK or is_of_interest(variable)}
        found |= {BY_HOOK[option] for option, _ in spelled.options if option in BY_HOOK}
        found |= {WORLD_SIZE} if one.key == "processes" else {ARGUMENTS} if spelled.arguments else set()
    return found
