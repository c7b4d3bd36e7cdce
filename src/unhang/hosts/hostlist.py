"""Which hosts a job has: files of hosts as launchers take them, ranges as schedulers write them, and what an allocation says of itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from unhang import fsio
from unhang.errors import UnhangError
from unhang.model import frozen

_MAX_BYTES = 1 << 20
MOST = 100_000
# "node7", "ann@node7", "node7.cluster", "10.0.0.7", "fe80::1".
_NAME = re.compile(r"(?:[A-Za-z0-9_][\w.-]{0,63}@)?(?P<host>[A-Za-z0-9_][A-Za-z0-9_.:-]{0,252})")
# A comma within brackets divides no names.
_PART = re.compile(r"(?:[^,\[]+|\[[^\]]*\]?)+")
_MOST_RANGES = 4
_RANGE = re.compile(r"\[([\d,-]{1,2000})\]")
_SLOTS = re.compile(r"(?:slots|max[-_]slots|cpu|count)\s*=\s*(\d{1,5})")


@frozen
class Host:
    """`login` is what ssh is given ("ann@node7"), `name` how we call it. `slots` are its ranks, where the file says how many."""

    name: str
    login: str
    slots: int | None = None


def read(given: str, environ: Mapping[str, str]) -> tuple[Host, ...]:
    """A file of hosts, or names with commas and ranges ("node[1-8,11],login"), or "slurm" for this allocation. Raises UnhangError."""
    if given == "slurm":
        if not (listed := environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_STEP_NODELIST") or ""):
            raise UnhangError("this is no allocation of Slurm: SLURM_JOB_NODELIST is not set", hint="salloc -N 4 unhang doctor --hosts slurm")
        return _hosts([(name, None) for name in expand(listed)], "SLURM_JOB_NODELIST")
    path = Path(given)
    if path.exists() or "/" in given:
        try:
            data = fsio.bounded_read(path, _MAX_BYTES + 1)
        except (OSError, ValueError) as e:
            raise UnhangError(f"cannot read {given}: {getattr(e, 'strerror', None) or e}") from e
        if len(data) > _MAX_BYTES:
            raise UnhangError(f"{given} is larger than {_MAX_BYTES >> 20} MiB: no list of hosts")
        return _hosts(_lines(data.decode(errors="replace"), given), given)
    return _hosts([(name, None) for name in expand(given)], given)


def _lines(text: str, path: str) -> list[tuple[str, int | None]]:
    """Plain lists, "node1 slots=8" (OpenMPI, DeepSpeed), "node1:8" (MPICH)."""
    found: list[tuple[str, int | None]] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        if len(found) > MOST:
            raise UnhangError(f"{path}: more than {MOST:,} hosts")
        name, _, rest = words.partition(" ")
        slots = _SLOTS.search(rest)
        if rest.strip() and slots is None:
            raise UnhangError(f"{path}, line {number}: {rest.strip()[:80]!r} is not understood", hint="a line is a host, or a host and slots=N")
        if slots is None and (counted := re.fullmatch(r"([^:\s]+):(\d{1,5})", name)):
            found.append((counted[1], int(counted[2])))
            continue
        found += ((one, int(slots[1]) if slots is not None else None) for one in expand(name))
    return found


def expand(text: str) -> list[str]:
    """Names, with commas and ranges of numbers: "n[01-03,7]" is n01, n02, n03, n7. Raises UnhangError."""
    names: list[str] = []
    for found in _PART.finditer(text):
        names += _ranges(found[0].strip())
        if len(names) > MOST:
            raise UnhangError(f"more than {MOST:,} hosts")
    return [name for name in names if name]


def _ranges(part: str) -> list[str]:
    found = _RANGE.search(part)
    if found is None:
        return [part]
    if part.count("[") > _MOST_RANGES:
        raise UnhangError(f"{part[:80]} is no range of hosts", hint="node[1-8,11]")
    ends = _ranges(part[found.end() :])
    numbers: list[str] = []
    for piece in found[1].split(","):
        first, _, last = piece.partition("-")
        last = last or first
        if not (first.isdigit() and last.isdigit() and int(first) <= int(last) < int(first) + MOST):
            raise UnhangError(f"{part[:80]} is no range of hosts", hint="node[1-8,11]")
        if len(numbers) + int(last) - int(first) >= MOST:
            raise UnhangError(f"more than {MOST:,} hosts")
        numbers += (f"{n:0{len(first)}d}" for n in range(int(first), int(last) + 1))
    if len(numbers) * len(ends) > MOST:
        raise UnhangError(f"more than {MOST:,} hosts")
    return [f"{part[: found.start()]}{number}{end}" for number in numbers for end in ends]


def _hosts(named: list[tuple[str, int | None]], origin: str) -> tuple[Host, ...]:
    hosts: dict[str, Host] = {}
    for login, slots in named:
        found = _NAME.fullmatch(login)
        if found is None:
            raise UnhangError(f"{origin}: {login[:80]!r} is no name of a host", hint="names with commas, node[1-8], or a file with one in each line")
        if found["host"] in hosts:
            raise UnhangError(f"{origin}: {found['host']} is there twice", hint="name each host once; slots=N says how many ranks it has")
        hosts[found["host"]] = Host(name=found["host"], login=login, slots=slots)
    if not hosts:
        raise UnhangError(f"{origin} names no host")
    return tuple(hosts.values())
