"""What was in force in the ranks of a run, and the proof that two arms differed in it.

Variables are those that a rank had when its first step was over; what it was started with is the kernel's record of them. What the hook changes in
the training (a backend, loader workers) counts where it has changed something.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from unhang.bench.arms import Arm
from unhang.bench.records import Run
from unhang.bench.step_times import RankFile
from unhang.diagnosis.redact import redact_command
from unhang.errors import UnhangError
from unhang.knowledge.text import Text
from unhang.launch import events
from unhang.records.logs import nccl_used
from unhang.runtime.attach import protocol

ARGUMENTS = "arguments"
WORLD_SIZE = "world size"
# What ranks were seen to use; all else in the record is what they were given.
OBSERVED = frozenset({"TCP addresses", nccl_used.TRANSPORTS, nccl_used.NETWORK, nccl_used.CONNECTED, nccl_used.ALGORITHMS})
UNKNOWN = "not known"
# All that these do is to change which transports and networks NCCL uses, and its log tells those.
_CHOOSES_TRANSPORT = re.compile(r"NCCL_(?:SHM_DISABLE|P2P_DISABLE|P2P_LEVEL|IB_DISABLE|IB_HCA|NET|NET_GDR_LEVEL|SOCKET_IFNAME)")
# The variable that each change by the hook stands for.
BY_HOOK = {
    protocol.ENV_BACKEND: "backend",
    protocol.ENV_TIMEOUT: "timeout",
    protocol.ENV_LOADER_WORKERS: "loader num_workers",
    protocol.ENV_LOADER_WORKERS_MOST: "loader num_workers",
    protocol.ENV_PIN_MEMORY: "loader pin_memory",
    protocol.ENV_PERSISTENT_WORKERS: "loader persistent_workers",
    protocol.ENV_PREFETCH: "loader prefetch_factor",
}
# These differ between processes or starts by themselves.
_OF_ONE_START = re.compile(
    r"TORCHELASTIC_\w+|TORCH_FR_DUMP_TEMP_FILE|TORCH_NCCL_DEBUG_INFO_TEMP_FILE|TORCH_NCCL_ASYNC_ERROR_HANDLING|NCCL_DEBUG_FILE"
)


class EqualArms(UnhangError):
    """Two arms do not differ in anything effective."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Something that two arms differ in. `values`: of the baseline and of the arm, None where it was not set."""

    name: str
    arm: str
    values: tuple[str | None, str | None]
    is_asked: bool


@dataclass(frozen=True, kw_only=True)
class Proof:
    """`differences` of each arm from the baseline; `without_effect`: arm and name of what was asked for and is the same in both."""

    differences: tuple[Difference, ...]
    without_effect: tuple[tuple[str, str], ...] = ()


def gather(ranks: Sequence[RankFile], changes: Iterable[events.Event]) -> tuple[dict[str, str], dict[str, str]]:
    """What was in force, with what came of it, and what of it the script set itself."""
    by_rank = [{**one.torch, ARGUMENTS: shlex.join(redact_command(one.argv)), **one.variables, **one.observed} for one in ranks]
    names = sorted({name for one in by_rank for name in one if not _OF_ONE_START.fullmatch(name)})
    in_force = {}
    for name in names:
        missing = UNKNOWN if name in OBSERVED else None
        in_force[name] = _together({rank.rank: one.get(name, missing) for rank, one in zip(ranks, by_rank, strict=True)})
    for event in changes:
        if isinstance(event, events.Overridden):
            in_force[event.what] = event.now
        elif isinstance(event, events.Ignored):
            in_force[event.what] = f"ignored ({event.why})"
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


def prove(arms: Sequence[Arm], runs: Mapping[str, Run]) -> Proof:
    """Compare one run of each arm. Raises EqualArms if two of them do not differ in anything that was asked for."""
    baseline, *others = arms
    for i, one in enumerate(arms):
        for other in arms[i + 1 :]:
            asked, differing = one.changes | other.changes, _differing(runs[one.name], runs[other.name])
            # A difference that was not asked for (a temporary directory, a port) does not count.
            if not (asked.intersection(differing) if asked else differing):
                raise _equal(one, other, runs)
            if asked and all(map(_CHOOSES_TRANSPORT.fullmatch, asked)) and not OBSERVED.intersection(differing):
                _refuse_same_transports(one, other, runs[one.name])
    differences, without = [], []
    for arm in others:
        a, b = runs[baseline.name].in_force, runs[arm.name].in_force
        asked = baseline.changes | arm.changes
        found = _differing(runs[baseline.name], runs[arm.name])
        differences += [Difference(name=n, arm=arm.name, values=(a.get(n), b.get(n)), is_asked=n in asked) for n in found]
        without += [(arm.name, n) for n in sorted(asked.difference(found))]
    return Proof(differences=tuple(differences), without_effect=tuple(without))


def _differing(one: Run, other: Run) -> list[str]:
    return [n for n in sorted(one.in_force.keys() | other.in_force.keys()) if one.in_force.get(n) != other.in_force.get(n)]


def _refuse_same_transports(one: Arm, other: Arm, run: Run) -> None:
    """Raises EqualArms if NCCL's log of every rank of the training says what it uses, in two arms that agree in that."""
    used = run.in_force.get(nccl_used.TRANSPORTS, UNKNOWN)
    if UNKNOWN in used or run.in_force.get(WORLD_SIZE) != str(len(run.ranks)):
        return
    says = Text(
        "arms {a} and {b} do not differ in anything effective: by its own log, NCCL uses {used} in both",
        "{a} 和 {b} 两组实际上没有任何差别：NCCL 的日志表明，两组都使用 {used}",
    ).fill(a=one.name, b=other.name, used=used)
    raise EqualArms(
        says.en,
        says_zh=says.zh,
        cause="NCCL takes the first transport that works between two GPUs: P2P (NVLink, then PCIe), shared memory, the network",
        hint="switch off in both arms what comes first: --a 'p2p=off shm=on' --b 'p2p=off shm=off'",
    )


def _equal(one: Arm, other: Arm, runs: Mapping[str, Run]) -> EqualArms:
    run = runs[one.name]
    # An arm that was started with the script's own value shows no change.
    changed = run.set_by_script.keys() | runs[other.name].set_by_script.keys()
    names = sorted(one.changes | other.changes)
    says = Text("arms {a} and {b} do not differ in anything effective: {values} in both", "{a} 和 {b} 两组实际上没有任何差别：两组中都是 {values}")
    own = [name for name in names if name in changed]
    values = ", ".join(f"{name}={run.in_force[name]}" if name in run.in_force else f"{name} not applied" for name in names)
    said = says.fill(a=one.name, b=other.name, values=values)
    return EqualArms(
        said.en,
        says_zh=said.zh,
        cause=f"the script sets {', '.join(own)} itself, whatever it was started with" if own else "nothing in the training uses it",
        hint="let the script keep a value that is already set: os.environ.setdefault(NAME, VALUE)" if own else None,
    )
