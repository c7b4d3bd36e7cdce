"""Processes whose end a launcher reports: torchrun, accelerate, DeepSpeed, torch.multiprocessing, Slurm, MPI, Ray."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator
from dataclasses import replace

from unhang.records.logs.said import At, Exit, at
from unhang.records.logs.signature import Hit, Signature

_KEEP = 2048


def _context(needle: str, pattern: str) -> Signature:
    return Signature(needle=needle, pattern=pattern, role="context", keep=_KEEP)


# The block that torchrun ends with names the rank in the line before the exit code.
RANK = _context("(local_rank: ", r"rank +: (?P<rank>\d+) \(local_rank: (?P<local_rank>\d+)\)")
CODE = _context("exitcode  : ", r"exitcode +: (?P<code>-?\d+) \(pid: (?P<pid>\d+)\)")
FAILED = _context("failed (exitcode: ", r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local_rank>\d+) \(pid: (?P<pid>\d+)\)")
DEEPSPEED = _context("exits with return code = ", r"(?P<pid>\d+) exits with return code = (?P<code>-?\d+)")
SPAWN = _context(
    " terminated with ",
    r"process (?P<rank>\d+) terminated with (?:exit code (?P<code>\d+)|signal (?P<signal>SIG\w+))",
)
CALLED = _context("died with <Signals.", r"died with <Signals\.(?P<signal>SIG\w+):")
STATUS = _context("returned non-zero exit status ", r"returned non-zero exit status (?P<code>\d+)")
# srun: error: node7: task 3: Exited with exit code 1 / tasks 0-2,5: Killed / task 1: Out Of Memory
SRUN = _context(
    "srun: error: ",
    r"srun: error: (?P<host>[\w.-]+): tasks? (?P<ranks>[\d,-]+): "
    r"(?:Exited with exit code (?P<code>\d+)|(?P<how>Killed|Terminated|Aborted|Segmentation fault|Bus error|Out Of Memory))",
)
MPI = _context("exited on signal ", r"process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<host>\S+) exited on signal (?P<number>\d+)")
SIGNATURES = (RANK, CODE, FAILED, DEEPSPEED, SPAWN, CALLED, STATUS, SRUN, MPI)

_HOW = {"Killed": -9, "Out Of Memory": -9, "Terminated": -15, "Aborted": -6, "Segmentation fault": -11, "Bus error": -7}
# A shell, and so srun and accelerate's subprocess, tells a signal as 128 plus its number.
_SHELL = range(129, 160)


def read(hits: Iterable[Hit]) -> tuple[Exit, ...]:
    """What ended how, each process once where its pid is told."""
    found: dict[object, Exit] = {}
    for ended in _all(tuple(hits)):
        key = (ended.at.source, ended.at.pid) if ended.at.pid is not None else (ended.at.source, ended.at.line, ended.at.rank)
        known = found.get(key)
        # The block names the rank, the line before it only the local one.
        if known is None or (known.at.rank is None and ended.at.rank is not None):
            found[key] = ended
    return tuple(found.values())


def _all(hits: tuple[Hit, ...]) -> Iterator[Exit]:
    ranks = {(h.source, h.line): h for h in hits if h.signature == RANK}
    for h in hits:
        if h.signature == RANK or (code := _code(h)) is None:
            continue
        where = at(h)
        local = h.groups.get("local_rank")
        if h.signature == CODE and h.line is not None and (named := ranks.get((h.source, h.line - 1))) is not None:
            where = replace(where, rank=int(named.groups["rank"]))
            local = named.groups["local_rank"]
        for rank in _tasks(h) or (where.rank,):
            yield Exit(at=_of(where, rank), code=code, local_rank=None if local is None else int(local))


def _of(where: At, rank: int | None) -> At:
    return replace(where, rank=rank)


def _code(hit: Hit) -> int | None:
    groups = hit.groups
    if "code" in groups:
        code = int(groups["code"])
        return 128 - code if hit.signature in (SRUN, STATUS) and code in _SHELL else code
    if "signal" in groups:
        number = getattr(signal, groups["signal"], None)
        return None if number is None else -int(number)
    if "number" in groups:
        return -int(groups["number"])
    return _HOW.get(groups.get("how", ""))


def _tasks(hit: Hit) -> tuple[int, ...]:
    """Slurm's task ids ("0-2,5"), which are ranks where one task is one rank."""
    found: list[int] = []
    for part in hit.groups.get("ranks", "").split(","):
        if bounds := re.fullmatch(r"(\d+)(?:-(\d+))?", part):
            first = int(bounds[1])
            # A torn line may hold any number.
            found += range(first, min(int(bounds[2] or first), first + 65536) + 1)
    return tuple(found)
