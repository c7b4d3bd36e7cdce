"""What was typed behind `--`, taken apart: a form starts the script by itself, and a launcher in front of it would be one inside of another."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from unhang.errors import UnhangError
from unhang.remedies.exports.checking.starts import Start, host_and_port, read

_PYTHON = re.compile(r"(?:.*/)?python[\d.]*")
_NODES = ("--nnodes", "--num-nodes", "--num-machines")
_PROCESSES = ("--nproc-per-node", "--num-gpus", "--num-processes")
_ADDRESS = ("--master-addr", "--main-process-ip")
_PORT = ("--master-port", "--main-process-port")
_MODULE = ("-m", "--module")
# What each form does in its own way.
_OF_FORMS = ("--standalone", "--node-rank", "--machine-rank", "--rdzv-backend", "--rdzv-id", "--multi-gpu", "--no-ssh", "--use-env", "--")
_PROGRAMS = frozenset(
    {"srun", "sbatch", "mpirun", "mpiexec", "env", "bash", "sh", "conda", "uv", "poetry", "pixi", "ray", "sky", "docker", "kubectl", "unhang"}
    | {"llamafactory-cli", "lmf", "horovodrun", "nohup", "time", "sudo"}
)


@dataclass(frozen=True, kw_only=True)
class Typed:
    """`command` is the script, or `-m` and a module, with its arguments; `processes` are those of each host. None is where nothing was said."""

    command: tuple[str, ...] = ()
    nodes: int | None = None
    processes: int | None = None
    address: str | None = None
    port: int | None = None


def taken_apart(words: Sequence[str]) -> Typed:
    """Raises UnhangError for what a form would have to start by itself, and for options of launchers that none carries."""
    if not words or words[0].endswith(".py"):
        return Typed(command=tuple(words))
    started = read(shlex.join(words)).starts if " " not in words[0] else []
    if started:
        return _of_launcher(started[0])
    program = words[0].rpartition("/")[2]
    if _PYTHON.fullmatch(words[0]):
        rest = tuple(w for i, w in enumerate(words[1:]) if i or w != "-u")
        if not rest or (rest[0].startswith("-") and rest[0] != "-m"):
            raise UnhangError(f"{shlex.join(words[:2])}: name the script, or -m and a module", hint="unhang export FORM -- train.py --lr 1e-4")
        return Typed(command=rest)
    if program in _PROGRAMS:
        raise UnhangError(f"{program} is no script: a form starts the script by itself", hint="unhang export FORM -- train.py --lr 1e-4")
    return Typed(command=tuple(words))


def _of_launcher(start: Start) -> Typed:
    name = start.names[0]
    by_module = len(start.before) == 2 and _PYTHON.fullmatch(start.before[0]) and start.before[1] == "-m"
    if start.before and not by_module:
        raise UnhangError(f"{start.before[0]} in front of {name}: a form starts the script by itself", hint=_given(start))
    if len(start.names) > 1:
        raise UnhangError(f"one launcher inside of another: {' > '.join(start.names)}", hint=_given(start))
    if name not in ("torchrun", "torch.distributed.launch", "accelerate launch", "deepspeed"):
        raise UnhangError(f"{name} starts torchrun by itself", hint="unhang export llamafactory -- dataset=mine")
    known = {*_NODES, *_PROCESSES, *_ADDRESS, *_PORT, *_MODULE, *_OF_FORMS, "--rdzv-endpoint"}
    for option, value in start.options.items():
        if option not in known:
            raise UnhangError(f"{name} {shlex.join([option, *([value.text] if value.text else [])])}: no form carries that", hint=_given(start))
    if not start.rest:
        raise UnhangError(f"{name} without a script", hint="unhang export FORM -- train.py")
    nodes, processes = _number(start, _NODES), _number(start, _PROCESSES)
    if name == "accelerate launch" and processes is not None:
        # It counts those of all hosts.
        if processes % (nodes or 1):
            raise UnhangError(f"accelerate launch --num_processes {processes}: that does not divide by {nodes} hosts", hint=_given(start))
        processes //= nodes or 1
    address, port = start.option(*_ADDRESS), start.option(*_PORT)
    if (endpoint := start.option("--rdzv-endpoint")) is not None:
        address, port = host_and_port(endpoint)
    return Typed(
        command=(*(("-m",) if start.option(*_MODULE) is not None else ()), *start.rest),
        nodes=nodes,
        processes=processes,
        address=address.text if address is not None and (nodes or 1) > 1 else None,
        port=int(port.text) if port is not None and port.text.isdecimal() and (nodes or 1) > 1 else None,
    )


def _number(start: Start, names: Sequence[str]) -> int | None:
    given = start.option(*names)
    if given is None:
        return None
    if not given.text.isdecimal():
        raise UnhangError(f"{start.names[0]} {names[0]} {given.text}: a form needs a number", hint="unhang export FORM --nodes 2 -n 8 -- train.py")
    return int(given.text)


def _given(start: Start) -> str:
    return f"unhang export FORM --nodes 1 -n 2 -- {shlex.join(start.rest[:3]) or 'train.py'}"
