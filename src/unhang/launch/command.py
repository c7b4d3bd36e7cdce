"""What is run: a Python script or module under torchrun's elastic agent, or any launcher's command line as it is."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from unhang.attach import protocol
from unhang.errors import CommandNotFound, UnhangError
from unhang.facts import paths
from unhang.facts.host import Host
from unhang.fsio import as_argument, is_dir, is_file
from unhang.model import frozen
from unhang.settings.setting import worded

Environ = Mapping[str, str]

# The launchers' own options, as they are spelled with dashes; each also exists with underscores.
_COUNT = {"torchrun": "--nproc-per-node", "accelerate": "--num-processes", "deepspeed": "--num-gpus"}
_NODES = ("--nnodes", "--num-machines", "--num-nodes")
_MASTER = ("--master-addr", "--main-process-ip")
_LLAMAFACTORY = ("llamafactory-cli", "lmf", "llamafactory.cli")
# Launchers whose ranks run in the Python that they run in themselves.
_IN_THEIR_PYTHON = ("torchrun", "accelerate", "deepspeed", "ds", *_LLAMAFACTORY)
_FILES = (".yaml", ".yml", ".json")
_MAX_FILE_BYTES = 1024 * 1024
# Of a "#!" line: what the kernel takes is not asked here.
_ANY_LENGTH = 4096
_PORT = ("--master-port", "--main-process-port")
# Options that take no value, of whichever launcher. Of any other the next word is the value.
_FLAGS = frozenset((
    "-m", "--module", "-q", "--quiet", "--bind-cores-to-rank", "--cpu", "--debug", "--downcast-bf16", "--dynamo-use-dynamic",
    "--dynamo-use-fullgraph",
    "--dynamo-use-regional-compilation", "--elastic-training", "--enable-cpu-affinity", "--force-multi", "--fp8-use-autocast-during-eval", "--ipex",
    "--multi-gpu", "--no-local-rank", "--no-python", "--no-ssh", "--no-ssh-check", "--no-tpu-cluster", "--run-path", "--same-network", "--save-pid",
    "--standalone", "--tpu", "--tpu-cluster", "--tpu-use-sudo", "--use-deepspeed", "--use-env", "--use-fsdp", "--use-megatron-lm", "--use-mps-device",
    "--use-parallelism-config", "--use-xpu", "--virtual-local-rank",
))  # fmt: skip
# Of deepspeed's options, by their long names.
_LONG = {"-H": "--hostfile", "-e": "--exclude", "-i": "--include"}
# What it reads where no file is named, and what it leaves behind of the variables that tell ranks how to talk to each other.
_HOSTFILE = Path("/job/hostfile")
_NOT_HANDED_ON = ("GLOO_", "OMP_", "RCCL_", "TORCH_")


# Who says which Python runs: --python, or what it would be in its place; the command, which is one or runs in one; nobody: a script of a shell, or a
# program that starts others, may bring another than that on the PATH.
PythonFrom = Literal["option", "command", "guess"]


@frozen
class Command:
    """A command that can be started. `world_size` is what the command line promises, None where it promises nothing.

    `python` is the interpreter of the training as far as that is known (`python_from`); `needs_torch`: without torch in it the command cannot start,
    nor without `module`.
    """

    argv: tuple[str, ...]
    python: str
    name: str
    world_size: int | None
    port: int | None
    needs_torch: bool = False
    module: str | None = None
    python_from: PythonFrom = "option"


def resolve(
    words: Sequence[str],
    *,
    module: bool = False,
    nproc_per_node: int | None = None,
    python: str | None = None,
    typed: Sequence[str] = (),
    environ: Environ = os.environ,
) -> Command:
    """Make the command of what the user typed, behind options of our own that were `typed` (up to a "--").

    Raises CommandNotFound for what does not exist, UnhangError for options that do not fit.
    """
    if not words:
        raise UnhangError("no command to run", hint="unhang run [OPTIONS] train.py [ARGS...]   or   unhang run [OPTIONS] torchrun ...")
    first = words[0]
    if module or is_script(first):
        return _under_torchrun(words, module=module, nproc_per_node=nproc_per_node or 1, python=python or training_python(environ), environ=environ)
    if nproc_per_node is not None:
        raise UnhangError(
            f"--nproc-per-node is for a Python script or module; {first} is a command of its own",
            hint=_number_instead(words, [*(typed or ("-n", str(nproc_per_node)))], has_python=python is not None, environ=environ),
        )
    found = shutil.which(first, path=environ.get("PATH"))
    if found is None:
        raise _not_found(first)
    argv = (found, *words[1:])
    kind, options = _launcher(words)
    own = _interpreter(Path(found))
    python_from: PythonFrom = "option" if python else "guess"
    # No option puts another in the place of a Python that is named itself, or of a launcher's own. A console script of another kind (conda, ray)
    # starts what it likes, and so does a launcher that is to start no Python.
    if own is not None and (is_python(first) or (Path(first).name in _IN_THEIR_PYTHON and not (python and "--no-python" in options))):
        python, python_from = own, "command"
    return Command(
        argv=argv,
        python=python or own or training_python(environ),
        python_from=python_from,
        name=_name(words),
        world_size=_promised(kind, options),
        port=_port(options, environ) if kind else None,
    )


def _number_instead(words: Sequence[str], options: list[str], *, has_python: bool, environ: Environ) -> str:
    """What gives a command of its own so many processes: Python has no option for that, and torchrun is what -n stands for."""
    first = words[0]
    if not is_python(first):
        return f"give {first} its own option for the number of processes"
    kind, _ = _launcher(words)
    if kind is not None:
        return f"give {kind} its own option for the number of processes"
    # torchrun starts its ranks with it.
    rest = [*words[1:]]
    while rest[:1] == ["-u"]:
        del rest[0]
    if not rest or not (rest[0].endswith(".py") or (rest[0] == "-m" and len(rest) > 1)):
        return f"name a script that ends in .py, or a module: {shlex.join(['unhang', 'run', *options, 'train.py'])}"
    apart = [options.pop()] if options[-1:] == ["--"] else []
    if not has_python and not is_same_python(first, training_python(environ), environ):
        options += ["--python", first]
    if rest[0] == "-m":
        options.append(rest.pop(0))
    return f"leave out the word {first}: {shlex.join(['unhang', 'run', *options, *apart, *rest])}"


def is_same_python(word: str, python: str, environ: Environ = os.environ) -> bool:
    """Whether both are the Python of one environment: names in one directory that lead to one file, as python and python3 do.

    The file alone would not tell: environments that were made with one Python lead there, too.
    """
    first, second = (Path(found) for found in (shutil.which(one, path=environ.get("PATH")) or one for one in (word, python)))
    return first.parent.resolve() == second.parent.resolve() and first.resolve() == second.resolve()


def is_python(word: str) -> bool:
    """Whether a command's first word is a Python."""
    return re.fullmatch(r"python(?:\d+(?:\.\d+)?t?)?", Path(word).name) is not None


def is_training(command: Command) -> bool:
    """Whether the command is itself a Python or a launcher, and no script of a shell, which goes on behind what it starts."""
    return command.needs_torch or is_python(command.argv[0]) or Path(command.argv[0]).name in _IN_THEIR_PYTHON


def launcher(command: Command) -> str:
    """Who starts the processes: torchrun, accelerate, deepspeed, llamafactory; python where the command does so itself, or nobody."""
    kind, _ = _launcher(command.argv)
    if kind is not None:
        return kind
    return "llamafactory" if any(Path(word).name in _LLAMAFACTORY for word in command.argv[:4]) else "python"


def option(command: Command, name: str) -> str | None:
    """The value of one of the launcher's own options, None where it is not there. Dashes and underscores are the same."""
    return _launcher(command.argv)[1].get(name.replace("_", "-"))


def argument(command: Command, flag: str) -> str | None:
    """What stands behind a flag of the script's own, the last time that it is there; "" where that is nothing, None where it is not there.

    LLaMA-Factory's go without dashes, or stand in its file.
    """
    for i, word in reversed(list(enumerate(command.argv))):
        name, joined, value = word.partition("=")
        if name == flag or (joined and name.removeprefix("--") == flag):
            return value if joined else next(iter(command.argv[i + 1 : i + 2]), "")
    return _fields(command).get(flag) if launcher(command) == "llamafactory" else None


def _fields(command: Command) -> Mapping[str, str]:
    """What LLaMA-Factory's file sets; nothing where it cannot be read, which the training itself will tell."""
    import yaml

    path = next((word for word in command.argv if word.endswith(_FILES)), "")
    if not path or not is_file(path):
        return {}
    try:
        with Path(path).open("rb") as f:
            told = yaml.safe_load(f.read(_MAX_FILE_BYTES))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    return {str(key): worded(value) for key, value in told.items() if isinstance(value, (bool, int, float, str))} if isinstance(told, dict) else {}


def master(command: Command) -> tuple[str | None, int | None]:
    """The address where ranks meet and the number of hosts, as far as the launcher's options tell."""
    options = _launcher(command.argv)[1]
    address = next((options[name] for name in _MASTER if options.get(name)), None)
    if address is None and options.get("--rdzv-endpoint"):
        # HOST, HOST:PORT, [IPv6]:PORT
        endpoint = options["--rdzv-endpoint"]
        address = endpoint[1:].partition("]")[0] if endpoint.startswith("[") else endpoint.partition(":")[0]
    nodes = next((options[name].rpartition(":")[2] for name in _NODES if name in options), "")
    return address or None, int(nodes) if nodes.isdecimal() else None


def with_settings(
    command: Command, *, options: Sequence[tuple[str, str]] = (), arguments: Sequence[str] = (), environ: Environ = os.environ
) -> Command:
    """The command with options of its launcher set, in place of those that are there, and with arguments of the script behind it.

    Raises UnhangError where the launcher would not take it, or would take other GPUs than those that it was given.
    """
    argv = list(command.argv)
    for name, value in options:
        if name == "--num_gpus":
            name, value = _of_deepspeed(argv, int(value), environ)
        elif name == "--num_processes" and value == "1":
            # accelerate takes it for a mistake.
            _remove_flag(argv, "--multi-gpu")
        _set(argv, name, value)
    if launcher(command) == "llamafactory" and not any(word.endswith(_FILES) for word in argv):
        # Without a file the fields are flags.
        arguments = [a if a.startswith("-") else f"--{a}" for a in arguments]
    argv += arguments
    kind, now = _launcher(argv)
    return replace(command, argv=tuple(argv), world_size=_promised(kind, now) if options else command.world_size)


def _of_deepspeed(argv: Sequence[str], count: int, environ: Environ) -> tuple[str, str]:
    """The option for so many GPUs.

    With --num_gpus the launcher ignores CUDA_VISIBLE_DEVICES and takes the first GPUs of the machine; beside --include or --exclude it refuses that
    (launcher/runner.py, 0.19.8).
    """
    options = _launcher(argv)[1]
    if "--num-gpus" in options:
        return "--num_gpus", str(count)
    if "--exclude" in options or (include := options.get("--include", "")).count("@"):
        raise UnhangError(
            "deepspeed with --exclude, or --include of several hosts: its number of processes cannot be set from here",
            hint="name the GPUs: deepspeed --include localhost:0,1",
        )
    host, _, given = include.partition(":") if include else ("localhost", "", environ.get("CUDA_VISIBLE_DEVICES", ""))
    if not include and not given:
        return "--num_gpus", str(count)
    devices = [d.strip() for d in given.split(",")]
    if not all(d.isdecimal() for d in devices) or len(devices) < count:
        raise UnhangError(
            f"deepspeed was given the GPUs {include or given!r}: {count} of them cannot be named from here",
            hint="name them by their numbers: deepspeed --include localhost:0,1",
        )
    return "--include", f"{host}:{','.join(devices[:count])}"


def check_reach(command: Command, environ: Environ, *, hostfile: Path = _HOSTFILE) -> None:
    """Raise UnhangError where what only the hook applies would not come to the ranks: some would do as the script says, and the others not.

    Over ssh DeepSpeed hands on what begins with MLFLOW, PYTHON, MV2, UCX, NCCL, and its own file (launcher/runner.py, 0.19.8). That file could carry
    these, too, but not the hook, which is on this host and wants its supervisor's socket.
    """
    wanted = [name for name in protocol.WISHES if environ.get(name)]
    file, count = _over_ssh(command, hostfile)
    if wanted and count:
        raise UnhangError(
            f"{', '.join(wanted)}: only unhang's hook applies that, and deepspeed starts ranks on {count} hosts over ssh, without the hook",
            cause=f"{file} names them; DeepSpeed's launcher hands neither the hook nor its variables to a host",
            hint=f"start it on each host: unhang run -- deepspeed --no_ssh --node_rank N --master_addr HOST --hostfile {as_argument(file)} train.py",
        )


def left_behind(command: Command, environ: Environ, *, hostfile: Path = _HOSTFILE) -> tuple[str, tuple[str, ...]] | None:
    """That DeepSpeed starts ranks over ssh, where nothing watches them, and lines for its own file of variables that it does not hand on to them."""
    file, count = _over_ssh(command, hostfile)
    if not count:
        return None
    named = {line.partition("=")[0] for folder in (Path(environ.get("HOME", "/")), Path()) for line in _lines(folder / ".deepspeed_env")}
    lines = tuple(f"{name}={value}" for name, value in sorted(environ.items()) if name.startswith(_NOT_HANDED_ON) and name not in named)
    watched = f"unhang run --hosts {as_argument(file)} -n N train.py"
    said = f"deepspeed starts ranks on {count} hosts over ssh, where unhang does not watch them; it does with {watched}"
    return (f"{said}; variables that do not reach them go into .deepspeed_env here:" if lines else said), lines


def _over_ssh(command: Command, hostfile: Path) -> tuple[Path, int]:
    """The file that names hosts to DeepSpeed's launcher, and on how many it starts ranks over ssh; 0 where it stays here, or Slurm hands on all."""
    kind, options = _launcher(command.argv)
    file = Path(options.get("--hostfile") or hostfile)
    if kind != "deepspeed" or "--no-ssh" in options or options.get("--launcher", "").lower() == "slurm":
        return file, 0
    count = _hosts_of_deepspeed(file, options)
    return file, count if count > 1 or "--force-multi" in options else 0


def _hosts_of_deepspeed(file: Path, options: Mapping[str, str]) -> int:
    """How many hosts a file names and the options leave; 1 where there is no file: the launcher then stays here."""
    lines = _lines(file)
    if not lines:
        return 1
    hosts = {line.split()[0] for line in lines if line.strip() and not line.lstrip().startswith("#")}
    if include := options.get("--include"):
        hosts &= {part.partition(":")[0] for part in include.split("@")}
    # One whose GPUs are named stays with the others.
    hosts -= {part for part in options.get("--exclude", "").split("@") if ":" not in part}
    most = options.get("--num-nodes", "")
    return min(len(hosts), int(most)) if most.isdecimal() and int(most) else len(hosts)


def _lines(file: Path) -> list[str]:
    """No lines if it cannot be read."""
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            return opened.read(_MAX_FILE_BYTES).splitlines()
    except OSError:
        return []


def _remove_flag(argv: list[str], flag: str) -> None:
    """Of the launcher's own options; a script may have one of that name."""
    kind, begin = _which(argv)
    at = next((position for position, name, *_ in _options(argv, kind, begin) if name == flag), None)
    if at is not None:
        del argv[at]


def _set(argv: list[str], name: str, value: str) -> None:
    """Raises UnhangError where no launcher is known that could take it."""
    kind, begin = _which(argv)
    if kind is None:
        raise UnhangError(f"{argv[0]} has no option {name} that is known here")
    wanted = name.replace("_", "-")
    at, words = next(((position, words) for position, said, _, words in _options(argv, kind, begin) if said == wanted), (begin, 0))
    argv[at : at + words] = [name, value]


def _not_found(word: str) -> CommandNotFound:
    if not word:
        return CommandNotFound("the command is empty", cause="a variable of the shell that is not set, in quotes")
    if is_dir(word):
        return CommandNotFound(f"{word} is a directory", cause="the script in it was left out, or its options come before the command's name")
    if is_file(word):
        here = word if "/" in word else f"./{word}"
        quoted = shlex.quote(here)
        if os.access(word, os.X_OK):
            return CommandNotFound(f"{word} is not on the PATH, and a file of that name is here", hint=f"unhang run {quoted}")
        return CommandNotFound(f"{here} is not executable", hint=f"chmod +x {quoted}, or name its interpreter: unhang run bash {quoted}")
    if "/" in word:
        return CommandNotFound(f"{word}: no such file", cause=f"the current directory is {Path.cwd()}")
    return CommandNotFound(
        f"{word}: no such command",
        cause="the environment that holds it is not activated, or the name is misspelt",
        hint=f"which {shlex.quote(word)}",
    )


def is_script(word: str) -> bool:
    """Whether it is a Python file, which torchrun starts. Raises CommandNotFound for one that is missing."""
    if not word.endswith(".py"):
        return False
    if is_dir(word):
        raise _not_found(word)
    if not is_file(word):
        raise CommandNotFound(f"{word}: no such file", cause=f"the current directory is {Path.cwd()}")
    return True


def _under_torchrun(words: Sequence[str], *, module: bool, nproc_per_node: int, python: str, environ: Environ) -> Command:
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
        module=words[0] if module else None,
    )


def _launcher(words: Sequence[str]) -> tuple[str | None, dict[str, str]]:
    """The launcher among the first words, and its own options; those of the script or module that it starts are not its."""
    kind, begin = _which(words)
    return kind, {name: value for _, name, value, _ in _options(words, kind, begin)}


def _which(words: Sequence[str]) -> tuple[str | None, int]:
    """The launcher, and where its options begin."""
    for i, word in enumerate(words[:4]):
        name = Path(word).name
        if name == "torchrun" or word in ("torch.distributed.run", "torch.distributed.launch"):
            return "torchrun", i + 1
        if word == "accelerate.commands.launch":
            return "accelerate", i + 1
        if name == "launch" and i and Path(words[i - 1]).name in ("accelerate", "accelerate.commands.accelerate_cli"):
            return "accelerate", i + 1
        if name in ("deepspeed", "ds", "deepspeed.launcher.runner"):
            return "deepspeed", i + 1
        if word.endswith(".py"):
            break
    return None, 0


def _said(word: str, kind: str) -> tuple[str, bool, str]:
    """An option by its long name, with dashes; whether its value stands in the same word; and that value."""
    if kind == "deepspeed" and word[:2] in _LONG:
        value = word[2:]
        return _LONG[word[:2]], bool(value), value.removeprefix("=")
    name, joined, value = word.partition("=")
    return name.replace("_", "-"), bool(joined), value


def _options(words: Sequence[str], kind: str | None, begin: int) -> Iterator[tuple[int, str, str, int]]:
    """Of each of the launcher's own options: where it stands, its long name, its value, and how many words it takes.

    They end before the first word that is neither an option nor the value of one.
    """
    while kind is not None and begin < len(words) and words[begin].startswith("-") and words[begin] != "--":
        name, given, value = _said(words[begin], kind)
        count = 1
        if not given and name not in _FLAGS:
            value, count = next(iter(words[begin + 1 : begin + 2]), ""), 2
            if value.endswith(".py"):
                return
        yield begin, name, value, count
        begin += count


def _promised(kind: str | None, options: Mapping[str, str]) -> int | None:
    if kind is None:
        return None
    count = options.get(_COUNT[kind], "")
    if kind == "deepspeed" and (named_gpus := re.fullmatch(r"[^:@]+:(\d+(?:,\d+)*)", options.get("--include", ""))):
        return named_gpus[1].count(",") + 1
    nodes = next((options[name] for name in _NODES if name in options), "1")
    if not count.isdecimal() or not nodes.isdecimal():
        return None
    # accelerate counts the processes of all machines, the others those of one.
    return int(count) * (1 if kind == "accelerate" else int(nodes))


def _port(options: Mapping[str, str], environ: Environ) -> int | None:
    value = next((options[name] for name in _PORT if name in options), environ.get("MASTER_PORT", ""))
    return int(value) if value.isdecimal() and value != "0" else None


def _name(words: Sequence[str]) -> str:
    for word in words:
        if word.endswith(".py"):
            return Path(word).stem
    return Path(words[0]).name


def training_python(environ: Environ = os.environ) -> str:
    """The Python that a script is started with where none is named."""
    # Our own, where torch is beside us; unhang may also live in an environment of its own, and the training's is on PATH.
    if importlib.util.find_spec("torch") is not None:
        return sys.executable
    return shutil.which("python", path=environ.get("PATH")) or shutil.which("python3", path=environ.get("PATH")) or "python3"


def _interpreter(executable: Path) -> str | None:
    """The Python that a console script starts; None for anything else."""
    if executable.name.startswith("python"):
        return str(executable)
    found = paths.shebang(Host(), str(executable.absolute()), at_most=_ANY_LENGTH)
    if found is None or "python" not in Path(found.interpreter).name:
        return None
    if "/" in found.interpreter:
        return found.interpreter
    # What env looks up may be a shell: pyenv's shims are scripts of bash.
    return shutil.which(found.interpreter) if is_python(found.interpreter) else None
