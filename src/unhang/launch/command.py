"""What is run: a Python script or module under torchrun's elastic agent, or any launcher's command line as it is."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from unhang.errors import CommandNotFound, UnhangError

# Options that say how many processes a launcher starts on this host.
_COUNT = {
    "torchrun": ("--nproc-per-node", "--nproc_per_node"),
    "accelerate": ("--num_processes", "--num-processes"),
    "deepspeed": ("--num_gpus", "--num-gpus"),
}
_NODES = ("--nnodes", "--num_machines", "--num-machines", "--num_nodes", "--num-nodes")
_PORT = ("--master-port", "--master_port", "--main_process_port", "--main-process-port")


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command that can be started. `world_size` is what the command line promises, None where it promises nothing.

    `python` is the interpreter of the training as far as that is known; `needs_torch`: without torch in it the command cannot start.
    """

    argv: tuple[str, ...]
    python: str
    name: str
    world_size: int | None
    port: int | None
    needs_torch: bool = False


def resolve(
    words: Sequence[str],
    *,
    module: bool = False,
    nproc_per_node: int | None = None,
    python: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Command:
    """Make the command of what the user typed. Raises CommandNotFound for what does not exist, UnhangError for options that do not fit."""
    if not words:
        raise UnhangError("no command to run", hint="unhang run [OPTIONS] train.py [ARGS...]   or   unhang run [OPTIONS] torchrun ...")
    first = words[0]
    if module or _is_script(first):
        return _under_torchrun(words, module=module, nproc_per_node=nproc_per_node or 1, python=python or _python(environ), environ=environ)
    if nproc_per_node is not None:
        raise UnhangError(
            f"--nproc-per-node is for a Python script or module; {first} is a command of its own",
            hint=f"give {first} its own option for the number of processes",
        )
    found = shutil.which(first, path=environ.get("PATH"))
    if found is None:
        raise CommandNotFound(
            f"{first}: no such command",
            cause="the environment that holds it is not activated, or the name is misspelt",
            hint=f"which {first}",
        )
    argv = (found, *words[1:])
    kind = _launcher(words)
    return Command(
        argv=argv,
        python=python or _interpreter(Path(found)) or _python(environ),
        name=_name(words),
        world_size=_promised(words, kind),
        port=_port(words, environ) if kind else None,
    )


def _is_script(word: str) -> bool:
    if not word.endswith(".py"):
        return False
    if not Path(word).is_file():
        raise CommandNotFound(f"{word}: no such file", cause=f"the current directory is {Path.cwd()}")
    return True


def _under_torchrun(words: Sequence[str], *, module: bool, nproc_per_node: int, python: str, environ: Mapping[str, str]) -> Command:
    if nproc_per_node < 1:
        raise UnhangError(f"--nproc-per-node {nproc_per_node}: at least one process is needed")
    if shutil.which(python, path=environ.get("PATH")) is None:
        raise CommandNotFound(f"{python}: no such Python interpreter")
    # --standalone picks a free port for every start.
    agent = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(nproc_per_node)]
    return Command(
        argv=(*agent, *(["-m"] if module else []), *words),
        python=python,
        name=words[0].rpartition(".")[2] if module else Path(words[0]).stem,
        world_size=nproc_per_node,
        port=None,
        needs_torch=True,
    )


def _launcher(words: Sequence[str]) -> str | None:
    joined = " ".join(words[:4])
    if re.search(r"\btorchrun\b|torch\.distributed\.(run|launch)\b", joined):
        return "torchrun"
    if re.search(r"\baccelerate\b.*\blaunch\b", joined):
        return "accelerate"
    if re.search(r"\bdeepspeed\b", joined):
        return "deepspeed"
    return None


def _promised(words: Sequence[str], kind: str | None) -> int | None:
    if kind is None:
        return None
    count = _option(words, _COUNT[kind])
    nodes = _option(words, _NODES)
    if count is None or not count.isdigit() or (nodes is not None and not nodes.isdigit()):
        return None
    # accelerate counts the processes of all machines, the others those of one.
    return int(count) * (1 if kind == "accelerate" else int(nodes or 1))


def _option(words: Sequence[str], names: Sequence[str]) -> str | None:
    for i, word in enumerate(words):
        if word.endswith(".py"):
            return None
        name, _, value = word.partition("=")
        if name in names:
            return value or (words[i + 1] if i + 1 < len(words) else None)
    return None


def _port(words: Sequence[str], environ: Mapping[str, str]) -> int | None:
    value = _option(words, _PORT) or environ.get("MASTER_PORT", "")
    return int(value) if value.isdigit() and value != "0" else None


def _name(words: Sequence[str]) -> str:
    for word in words:
        if word.endswith(".py"):
            return Path(word).stem
    return Path(words[0]).name


def _python(environ: Mapping[str, str]) -> str:
    # Our own, where torch is beside us; unhang may also live in an environment of its own, and the training's is on PATH.
    if importlib.util.find_spec("torch") is not None:
        return sys.executable
    return shutil.which("python", path=environ.get("PATH")) or shutil.which("python3", path=environ.get("PATH")) or "python3"


def _interpreter(executable: Path) -> str | None:
    """The Python that a console script starts; None for anything else."""
    try:
        with executable.open("rb") as f:
            first = f.readline(512)
    except OSError:
        return None
    if executable.name.startswith("python"):
        return str(executable)
    if not first.startswith(b"#!"):
        return None
    words = first[2:].decode(errors="replace").split()
    if words and words[0].endswith("/env") and len(words) > 1:
        return shutil.which(words[1])
    return words[0] if words and "python" in Path(words[0]).name else None
