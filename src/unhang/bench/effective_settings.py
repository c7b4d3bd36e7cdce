"""What was in force in the ranks of a run, and the proof that two arms differed in it.

Variables are those that a rank had when its first step was over; what it was started with is the kernel's record of them. What the hook changes in
the training (a backend, loader workers) counts where it has changed something. NCCL's own log of each rank tells what it uses: with the same settings
in all arms, and only what is printed while communicators are made and connected.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from unhang.attach import protocol
from unhang.bench.arms import Arm
from unhang.bench.records import Run
from unhang.bench.step_times import RankFile
from unhang.diagnosis.redact import redact_command
from unhang.errors import UnhangError
from unhang.knowledge.words import msg
from unhang.launch import events
from unhang.logs import nccl_lines
from unhang.model import frozen
from unhang.settings.spellings import COMPILE_DISABLE

ARGUMENTS = "arguments"
WORLD_SIZE = "world size"
# What ranks were seen to use; all else in the record is what they were given.
OBSERVED = frozenset({"TCP addresses", nccl_lines.TRANSPORTS, nccl_lines.NETWORK, nccl_lines.CONNECTED, nccl_lines.ALGORITHMS})
UNKNOWN = "not known"
VERSIONS = frozenset({"torch version", "CUDA version", "NCCL version"})
RUN_DIR = "{run_dir}"
# These only change which transports and networks NCCL uses, and its log tells those.
_CHOOSES_TRANSPORT = re.compile(r"NCCL_(?:SHM_DISABLE|P2P_DISABLE|P2P_LEVEL|IB_DISABLE|IB_HCA|NET|NET_GDR_LEVEL|SOCKET_IFNAME)")
# The effect of each variable, as the hook reports it; of a launcher's option, the variable that it becomes.
BY_HOOK = {
    protocol.ENV_BACKEND: "backend",
    protocol.ENV_TIMEOUT: "timeout",
    protocol.ENV_LOADER_WORKERS: "loader num_workers",
    protocol.ENV_LOADER_WORKERS_MOST: "loader num_workers",
    protocol.ENV_PIN_MEMORY: "loader pin_memory",
    protocol.ENV_PERSISTENT_WORKERS: "loader persistent_workers",
    protocol.ENV_PREFETCH: "loader prefetch_factor",
    protocol.ENV_BUCKET: "DDP bucket_cap_mb",
    protocol.ENV_CUDNN_BENCHMARK: "cuDNN benchmark",
    COMPILE_DISABLE: "torch.compile",
    "--mixed_precision": "ACCELERATE_MIXED_PRECISION",
}
# The value that torch derives from a variable, as reported by `step_times`.
REPORTED_AS = {"OMP_NUM_THREADS": "threads", "MKL_NUM_THREADS": "threads", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "matmul precision"}
# These differ between processes or starts by themselves, or BY_HOOK has what they do.
_OF_ONE_START = re.compile(
    rf"{COMPILE_DISABLE}|TORCHELASTIC_\w+|TORCH_FR_DUMP_TEMP_FILE|TORCH_NCCL_DEBUG_INFO_TEMP_FILE|TORCH_NCCL_ASYNC_ERROR_HANDLING|NCCL_DEBUG_FILE"
    # Open MPI passes names, ranks and addresses on in variables; those of its components are settings.
    r"|OMPI_(?!MCA_(?:btl|pml|coll))\w+"
)


class EqualArms(UnhangError):
    """Two arms do not differ in anything effective."""


@frozen
class Difference:
    """Something that two arms differ in. `values`: of the baseline and of the arm, None where it was not set."""

    name: str
    arm: str
    values: tuple[str | None, str | None]
    is_asked: bool


@frozen
class Proof:
    """`differences` of each arm from the baseline; `without_effect`: arm and name of what was asked for and is the same in both."""

    differences: tuple[Difference, ...]
    without_effect: tuple[tuple[str, str], ...] = ()


def gather(ranks: Sequence[RankFile], changes: Iterable[events.Overridden], *, run_dir: str = RUN_DIR) -> tuple[dict[str, str], dict[str, str]]:
    """What was in force, with what came of it, and what of it the script set itself. `run_dir` is no difference between arguments."""
    argv = [shlex.join(redact_command(one.argv)).replace(run_dir, RUN_DIR) for one in ranks]
    by_rank = [{**one.torch, ARGUMENTS: words, **one.variables, **one.observed} for one, words in zip(ranks, argv, strict=True)]
    names = sorted({name for one in by_rank for name in one if not _OF_ONE_START.fullmatch(name)})
    in_force = {}
    for name in names:
        missing = UNKNOWN if name in OBSERVED else None
        in_force[name] = _together({rank.rank: one.get(name, missing) for rank, one in zip(ranks, by_rank, strict=True)})
    in_force |= {event.what: event.now for event in changes}
    own = {
        name
        for one in ranks
        for name in (one.variables.keys() | one.started_with.keys()) & in_force.keys()
        if one.variables.get(name) != one.started_with.get(name)
    }
    return in_force, {name: in_force[name] for name in sorted(own)}


def _together(values: Mapping[int, str | None]) -> str:
    if len(set(values.values())) == 1:
        return str(next(iter(values.values())))
    return ", ".join(f"rank {rank}: {value}" for rank, value in values.items())


def prove(arms: Sequence[Arm], runs: Mapping[str, Run], *, leaves_out: bool = False, may_be_none: bool = False) -> tuple[Proof, list[str]]:
    """Compare one run of each arm. Raises EqualArms if two of them do not differ in anything that was asked for.

    With `leaves_out` returns the arms that equal the baseline beside the proof, and raises only if all do and not `may_be_none`.
    """
    baseline, *others = arms
    equal: dict[str, EqualArms] = {}
    for i, one in enumerate(arms):
        for other in arms[i + 1 :]:
            if (why := _why_equal(one, other, runs)) is not None:
                if not leaves_out:
                    raise why
                if one is baseline:
                    equal[other.name] = why
    if equal and len(equal) == len(others) and not may_be_none:
        raise next(iter(equal.values()))
    differences, without = [], []
    for arm in others:
        if arm.name in equal:
            continue
        a, b = runs[baseline.name], runs[arm.name]
        asked, found = baseline.changes | arm.changes, _differing(a, b)
        differences += [Difference(name=n, arm=arm.name, values=(a.in_force.get(n), b.in_force.get(n)), is_asked=n in asked) for n in found]
        without += [(arm.name, n) for n in sorted(asked.difference(found))]
    return Proof(differences=tuple(differences), without_effect=tuple(without)), list(equal)


def check_alike(arm: Arm, first: Run, run: Run) -> None:
    """Raises UnhangError if a later run of an arm has other versions than its first, or another value of what was asked for."""
    for name in (name for name in _differing(first, run) if name in arm.changes or name in VERSIONS):
        raise UnhangError(
            f"{name} was {first.in_force.get(name, 'not set')} in the first run of {arm.name}, and is {run.in_force.get(name, 'not set')} now",
            cause="the machine, its software or the script was changed during the comparison",
            hint="start a new comparison",
        )


def find_changes(runs: Sequence[Run]) -> list[str]:
    """What was not the same in all runs of an arm."""
    return sorted({name for run in runs[1:] for name in _differing(runs[0], run)})


def _differing(one: Run, other: Run) -> list[str]:
    return [n for n in sorted(one.in_force.keys() | other.in_force.keys()) if one.in_force.get(n) != other.in_force.get(n)]


def _why_equal(one: Arm, other: Arm, runs: Mapping[str, Run]) -> EqualArms | None:
    a, b = runs[one.name], runs[other.name]
    asked, differing = one.changes | other.changes, _differing(a, b)
    if a.in_force.get("backend") == b.in_force.get("backend") == "nccl":
        asked -= {"GLOO_SOCKET_IFNAME"}  # Gloo that is used beside NCCL shows in the TCP addresses
    cause = hint = None
    # A difference that was not asked for (a temporary directory, a port) does not count.
    if not (asked.intersection(differing) if asked else differing):
        values = ", ".join(f"{name}={a.in_force[name]}" if name in a.in_force else f"{name} not applied" for name in sorted(asked))
        says = msg("{values} in both", values=values)
        cause = "nothing in the training uses it, or it has that value already"
        # An arm that was started with the script's own value shows no change.
        if own := sorted(asked & (a.set_by_script.keys() | b.set_by_script.keys())):
            cause = f"the script sets {', '.join(own)} itself, whatever it was started with"
            hint = "let the script keep a value that is already set: os.environ.setdefault(NAME, VALUE)"
    elif asked and all(name.startswith("NCCL_") for name in asked) and not (_may_use_nccl(a) or _may_use_nccl(b)):
        says = msg(
            "backend {backend} with {n} ranks reads none of {names}",
            backend=a.in_force.get("backend", ""),
            n=a.in_force.get(WORLD_SIZE, "?"),
            names=", ".join(sorted(asked)),
        )
    elif asked and all(map(_CHOOSES_TRANSPORT.fullmatch, asked)) and not OBSERVED.intersection(differing) and _knows_transports(a):
        says = msg("by its own log, NCCL uses {used} in both", used=a.in_force[nccl_lines.TRANSPORTS])
        cause = "NCCL takes the first transport that works between two GPUs: P2P (NVLink, then PCIe), shared memory, the network"
        hint = "switch off in both arms what comes first: --a 'p2p=off shm=on' --b 'p2p=off shm=off'"
    else:
        return None
    text = msg("arms {a} and {b} do not differ in anything effective: ", a=one.name, b=other.name) + says
    return EqualArms(text, cause=cause, hint=hint)


def _may_use_nccl(run: Run) -> bool:
    """A group that was made without a backend has that of its tensors; UCC may use NCCL."""
    return re.search("nccl|undefined|ucc", run.in_force.get("backend", "undefined")) is not None and run.in_force.get(WORLD_SIZE) != "1"


def _knows_transports(run: Run) -> bool:
    """Whether NCCL's log of every rank of the training says what it uses."""
    return UNKNOWN not in run.in_force.get(nccl_lines.TRANSPORTS, UNKNOWN) and run.in_force.get(WORLD_SIZE) == str(len(run.ranks))


# Connections, devices and settings. COLL and TUNING print a line for each call, which costs time.
SUBSYSTEMS = "INIT,ENV"
_OURS = ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS")


def nccl_settings(arms: Iterable[Arm], folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables for a run of any arm. None if an arm sets one of them itself: then its cost is what is asked. Subsystems of the user stay."""
    if any(name in arm.settings for arm in arms for name in _OURS):
        return {}
    subsystems = environ.get("NCCL_DEBUG_SUBSYS") or SUBSYSTEMS
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": subsystems, "NCCL_DEBUG_FILE": str(folder / "nccl-%h-%p.log")}


def with_nccl_log(folder: Path, ranks: Iterable[RankFile]) -> tuple[RankFile, ...]:
    """Ranks of this host, with what NCCL says that they use; nothing of one that has not used it."""
    host = socket.gethostname().partition(".")[0]
    found = []
    for one in ranks:
        with contextlib.suppress(OSError):
            one = replace(one, observed={**one.observed, **nccl_lines.read_used(folder / f"nccl-{host}-{one.pid}.log")})
        found.append(one)
    return tuple(found)
