"""The command of a training as it was typed, resolved, and refused where it could not start; and whether its ranks run on other hosts, too, as far as
the command, the environment, and the files that launchers read tell.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from unhang import fsio
from unhang.errors import CommandNotFound, UnhangError
from unhang.launch import command as commands
from unhang.launch import environment
from unhang.launch.command import Command
from unhang.report import language, screen

_MOST_OF_A_SCRIPT = 1024 * 1024
_DRY_RUN = "--dry-run"


def resolve(words: Sequence[str], *, module: bool, nproc_per_node: int | None, python: str | None, typed: Sequence[str] = ()) -> Command:
    """`typed` are our own options before the command, for hints. Notes a --python without effect. Raises UnhangError."""
    command = commands.resolve(words, module=module, nproc_per_node=nproc_per_node, python=python, typed=typed)
    if python is not None and command.python_from == "command" and not commands.is_same_python(python, command.python):
        screen.say(language.refusal(_in_vain(python, words[0], command.python)))
    if command.needs_torch and environment.torch_version(command.python) is None:
        raise UnhangError(
            f"{command.python} has no torch",
            cause="the environment of the training is not activated",
            hint="activate it, or name its Python with --python PATH",
        )
    if command.module is not None and environment.lacks_module(command.python, command.module):
        raise CommandNotFound(
            f"{command.python} finds no module {command.module} to run",
            cause=f"the name is misspelt, or the module is neither installed nor in {Path.cwd()}",
            hint="start it where it can be imported; a script goes without -m",
        )
    return command


def launcher_beside(python: str, first: str) -> str | None:
    """The launcher of that name in the environment of a Python, None where there is none."""
    found = shutil.which(python)
    return shutil.which(Path(first).name, path=str(Path(found).absolute().parent)) if found is not None else None


def _in_vain(python: str, first: str, own: str) -> str:
    """That --python does not change what the command runs, and which launcher would do as it says, where there is one."""
    if commands.is_python(first):
        return f"--python {python} has no effect: {first} is itself a Python, {own}, and runs"
    said = f"--python {python} has no effect: {first} starts its ranks with its own Python, {own}"
    beside = launcher_beside(python, first)
    return said if beside is None else f"{said}; name {fsio.as_argument(beside)} for the other one"


def notes(words: Sequence[str], own: Collection[str], *, meant: bool = False) -> list[str]:
    """What is to be told of options of `unhang run` that stand behind the script, and so go to it.

    Many scripts have a --timeout or a --preset of their own, and nobody but they can know: that is only told, and only where the script's text says
    nothing of such an option. A --dry-run that starts a training is refused.
    `own` are the options' names; `meant`: the command stood behind "--". Raises UnhangError for a --dry-run.
    """
    begin = next((i for i, word in enumerate(words) if word.endswith(".py")), None)
    if begin is None or meant:
        return []
    script = words[begin]
    behind = list(dict.fromkeys(word.partition("=")[0] for word in words[begin + 1 :]))
    found = [name for name in behind if name in own]
    if not found:
        return []
    text = _text(Path(script))
    found = [name for name in found if not _knows(text, name)]
    if _DRY_RUN in found:
        again = fsio.as_argument(script)
        raise UnhangError(
            f"{_DRY_RUN} stands behind {script} and would go to it: the training would start",
            cause="options of unhang run go before the command",
            hint=f"unhang run {_DRY_RUN} {again} ...; for a script that has one of its own: unhang run -- {again} {_DRY_RUN}",
        )
    return [f"{name} stands behind {script} and goes to it; for unhang run put it before" for name in found]


def _text(script: Path) -> str:
    try:
        return fsio.bounded_read(script, _MOST_OF_A_SCRIPT).decode("utf-8", "replace").lower()
    except OSError:
        return ""


def _knows(text: str, option: str) -> bool:
    words = option.removeprefix("--").split("-")
    return re.search(rf"(?<![a-z0-9_]){'[-_]'.join(map(re.escape, words))}(?![a-z0-9_])", text) is not None


_HOSTS = ("NNODES", "PET_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES")
# The number of a task and how many there are, by srun, OpenMPI's and MPICH's mpirun, and by whoever speaks as torch does.
_TASKS = (("SLURM_PROCID", "SLURM_NTASKS"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"), ("RANK", "WORLD_SIZE"))
# What DeepSpeed reads where no other file is named.
_HOSTFILE = Path("/job/hostfile")
_MAX_BYTES = 1024 * 1024


def several_hosts(command: Command, environ: Mapping[str, str]) -> str | None:
    """Return what says that ranks run on other hosts, or None."""
    _, promised = commands.master(command)
    if promised is not None and promised > 1:
        return f"the job runs on {promised} hosts"
    for name in _HOSTS:
        count = environ.get(name, "").rpartition(":")[2]
        if count.isdecimal() and int(count) > 1:
            return f"the job runs on {count} hosts ({name})"
    launcher = commands.launcher(command)
    if (hosts := commands.option(command, "--hostfile")) is not None or (launcher == "deepspeed" and _HOSTFILE.exists()):
        return f"{hosts or _HOSTFILE} may name several hosts"
    config = commands.option(command, "--config-file")
    if config is None and launcher == "accelerate" and promised is None:
        config = next((str(p) for p in _defaults_of_accelerate(environ) if p.exists()), None)
    if config is not None and _machines(Path(config)) != 1:
        return f"{config} may be for several hosts"
    for place, tasks in _TASKS:
        count = environ.get(tasks, "")
        # Without the former a batch script is meant, of which there is one.
        if place in environ and count.isdecimal() and int(count) > 1:
            return f"the job has {count} tasks ({tasks})"
    return None


def _defaults_of_accelerate(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """What `accelerate launch` reads where no file is named (accelerate.commands.config.config_args)."""
    cache = environ.get("XDG_CACHE_HOME") or f"{environ.get('HOME', '')}/.cache"
    folder = Path(environ.get("HF_HOME") or f"{cache}/huggingface") / "accelerate"
    return folder / "default_config.yaml", folder / "default_config.json"


def _machines(config: Path) -> int | None:
    """For how many hosts a configuration of accelerate is; None where it cannot be read."""
    import yaml

    try:
        data = fsio.bounded_read(config, _MAX_BYTES + 1)
        return int(yaml.safe_load(data).get("num_machines", 1)) if len(data) <= _MAX_BYTES else None
    except (OSError, yaml.YAMLError, AttributeError, TypeError, ValueError, OverflowError, RecursionError):
        return None
