"""Whether a job's ranks run elsewhere, too: as far as the command, the environment, and the files that launchers read tell."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from unhang import fsio
from unhang.launch import command as commands
from unhang.launch.command import Command

_HOSTS = ("NNODES", "PET_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES")
# The number of a task and how many there are, by srun, OpenMPI's and MPICH's mpirun, and by whoever speaks as torch does.
_TASKS = (("SLURM_PROCID", "SLURM_NTASKS"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"), ("RANK", "WORLD_SIZE"))
# What DeepSpeed reads where no other file is named.
_HOSTFILE = Path("/job/hostfile")
_MAX_BYTES = 1024 * 1024


def told(command: Command, environ: Mapping[str, str]) -> str | None:
    """What says so, None where nothing does."""
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
