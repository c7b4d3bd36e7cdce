"""Processes whose end a launcher reports: torchrun, accelerate, DeepSpeed, torch.multiprocessing, Slurm, MPI, Ray."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator
from dataclasses import replace

from unhang.logs.log_facts import Exit, at
from unhang.logs.signature import Hit, Signature

_KEEP = 2048
# Tasks that are listed of all lines together, the first ones: a torn line may hold any number.
MAX_TASKS = 65_536


def _context(needle: str, pattern: str, then: str = "") -> Signature:
    return Signature(needle=needle, pattern=pattern, then=then, role="context", keep=_KEEP)


# The block that torchrun ends with names the rank in the line before the exit code, and the host before that.
HOST = _context("host      : ", r"^ {0,8}host {1,20}: (?P<host>[\w.:-]{1,253})$")
RANK = _context("(local_rank: ", r"rank {1,20}: (?P<rank>\d{1,9}) \(local_rank: (?P<local_rank>\d{1,9})\)")
# People put a word in the place of the pid before they show a log; terminals wrap the line.
CODE = _context("exitcode  : ", r"exitcode {1,20}: (?P<code>-?\d{1,10})(?!\d)(?: \(pid: (?P<pid>\d{1,9})\))?")
FAILED = _context(
    "failed (exitcode: ", r"failed \(exitcode: (?P<code>-?\d{1,10})\) local_rank: (?P<local_rank>\d{1,9})(?!\d)(?: \(pid: (?P<pid>\d{1,9})\))?"
)
# DeepSpeed's main prints the process, its handler the command that was started last.
DEEPSPEED = _context("exits with return code = ", r"(?:(?<!\d)(?P<pid>\d{1,9}) )?exits with return code = (?P<code>-?\d{1,10})(?!\d)")
SPAWN = _context(
    " terminated with ",
    r"process (?P<rank>\d{1,9}) terminated with (?:exit code (?P<code>\d{1,10})(?!\d)|signal (?P<signal>SIG\w{1,20}))",
)
CALLED = _context("died with <Signals.", r"died with <Signals\.(?P<signal>SIG\w{1,20}):")
# torch.distributed.launch up to 1.8 ends with the command of the rank that ended first.
LAUNCHED = _context(
    "died with <Signals.",
    r"'--local[-_]rank=(?P<local_rank>\d{1,9})'.{0,4096}? died with <Signals\.(?P<signal>SIG\w{1,20}):",
)
# What starts trainings. Of other programs (compilers, git) it is the caller who failed.
STARTER = (
    r"Command [\[('\"]{0,3}(?:[^\s'\",]{1,400}[/\\])?(?:python[\d.]{0,5}(?:\.exe)?|torchrun|accelerate|accelerate-launch|deepspeed|"
    r"(?:ba)?sh|env|numactl|srun|ssh|mpirun|mpiexec|horovodrun|colossalai|ray|docker|conda|uv)(?![\w+.-])"
)
STATUS = _context("returned non-zero exit status ", r"returned non-zero exit status (?P<code>\d{1,10})(?!\d)")
# srun: error: node7: task 3: Exited with exit code 1 / tasks 0-2,5: Killed / task 1: Out Of Memory
# Hosts that failed alike stand in one line: node[1-64,70],login: tasks 0,8,16-511: Killed
SRUN = _context(
    "srun: error: ",
    r"srun: error: (?:(?P<host>[\w.-]{1,253})|[\w.,\[\]+-]{1,2000}): tasks? (?P<ranks>[\d,-]{1,2000}): "
    r"(?:Exited with exit code (?P<code>\d{1,10})(?!\d)|(?P<how>Killed|Terminated|Aborted|Segmentation fault|Bus error|Out Of Memory))",
)
MPI = _context(
    "exited on signal ",
    r"process rank (?P<rank>\d{1,9}) with PID (?P<pid>\d{1,9}) on node (?P<host>\S{1,253}) exited on signal (?P<number>\d{1,3})(?!\d)",
)
# SGLang: "Rank 0 scheduler is dead. Please check ...", and in the next record "Exit code: -9".
SGLANG = _context("scheduler is dead. ", r"\bRank (?P<rank>\d{1,9}) scheduler is dead\. ", r"(?:.*\n){0,2}?.*\bExit code: (?P<code>-?\d{1,10})$")
# The end of a process that somebody ran: a compiler, git, a training. The others are told by launchers, of ranks.
SUBPROCESS = (CALLED, STATUS)
SIGNATURES = (HOST, RANK, CODE, FAILED, DEEPSPEED, SPAWN, LAUNCHED, CALLED, STATUS, SRUN, MPI, SGLANG)

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
        elif known.at.host is None and ended.at.host is not None:
            found[key] = replace(known, at=replace(known.at, host=ended.at.host))
    return tuple(found.values())


def bounded(hits: Iterable[Hit]) -> Iterator[Hit]:
    """The hits, of which the first ones name MAX_TASKS tasks at most, and the others none. A log is given whole, with all its attempts."""
    left = MAX_TASKS
    for h in hits:
        if h.signature == SRUN:
            left -= len(_tasks(h, min(left + 1, MAX_TASKS)))
            if left < 0:
                h = replace(h, groups={name: value for name, value in h.groups.items() if name != "ranks"})
        yield h


def _all(hits: tuple[Hit, ...]) -> Iterator[Exit]:
    ranks = {(h.source, h.line): h for h in hits if h.signature == RANK}
    hosts = {(h.source, h.line): h.groups["host"] for h in hits if h.signature == HOST}
    for h in bounded(hits):
        if h.signature in (HOST, RANK) or (code := _code(h)) is None:
            continue
        where = at(h)
        if h.signature == SRUN:
            # Neither the log's own host, nor one of many.
            where = replace(where, host=h.groups.get("host"))
        local = h.groups.get("local_rank")
        if h.signature == CODE and h.line is not None and (named := ranks.get((h.source, h.line - 1))) is not None:
            where = replace(where, rank=int(named.groups["rank"]), host=hosts.get((h.source, h.line - 2), where.host))
            local = named.groups["local_rank"]
        for rank in _tasks(h) or (where.rank,):
            yield Exit(at=replace(where, rank=rank), code=code, local_rank=None if local is None else int(local))


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


def _tasks(hit: Hit, most: int = MAX_TASKS) -> tuple[int, ...]:
    """Slurm's task ids ("0-2,5"), which are ranks where one task is one rank; so many of them at most."""
    found: list[int] = []
    for part in hit.groups.get("ranks", "").split(","):
        if bounds := re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part):
            first = int(bounds[1])
            found += range(first, min(int(bounds[2] or first), first + most - len(found) - 1) + 1)
    return tuple(found)
