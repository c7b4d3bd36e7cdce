"""Baselines of a machine's speeds, in one SQLite file: recorded in rounds of fresh ranks, checked by the same rounds again."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from unhang import encoding, fsio
from unhang.bench.collective_bench import Asked, Row
from unhang.bench.comparison import CONFIDENCE, Comparison, compare
from unhang.errors import RecordError, UnhangError
from unhang.facts import gpu, snapshot
from unhang.facts.host import Host
from unhang.facts.speed import Check
from unhang.i18n import msg
from unhang.model import frozen
from unhang.remedies import outcome_store
from unhang.settings.installed import installed
from unhang.text import size

_TABLES = """
CREATE TABLE IF NOT EXISTS baseline (machine TEXT PRIMARY KEY, recorded TEXT, data BLOB);
CREATE TABLE IF NOT EXISTS last_check (host TEXT PRIMARY KEY, data BLOB);
"""


@frozen
class Baseline:
    """`seconds` has for each measurement the median time of a call in each round; `machine` is what it holds for."""

    recorded: str
    machine: Mapping[str, str]
    asked: Asked
    seconds: Mapping[str, tuple[float, ...]]


def machine(python: str) -> dict[str, str]:
    """What decides the speeds, in words: host, GPUs, driver, interfaces, processors, torch and NCCL."""
    host = Host()
    seen = snapshot.take(host, only=("gpu", "network", "shm", "container", "limits"))
    gpus, found = seen.get(gpu.SUBJECT), installed(python, host)
    words = {
        **outcome_store.machine(seen),
        "driver": gpus.driver if gpus is not None else None,
        "cores": os.cpu_count(),
        "torch": found.torch and ".".join(map(str, found.torch)),
        "NCCL": found.nccl and ".".join(map(str, found.nccl)),
    }
    return {name: encoding.encode(value).decode() for name, value in words.items()}


def named(row: Row) -> str:
    """The measurement that a row is one of."""
    of_pair = "" if row.pair is None else f" {row.pair[0]} to {row.pair[1]}"
    return f"{row.op}{of_pair}{f', {size(row.size_bytes)}' if row.size_bytes else ''}"


def add(seconds: dict[str, list[float]], rows: Sequence[Row]) -> None:
    """One more round. Sizes of which a rank's part is the same are one measurement."""
    for name, row in {named(row): row for row in rows if not row.lacking}.items():
        seconds.setdefault(name, []).append(row.p50_s)


def judge(baseline: Baseline, seconds: Mapping[str, Sequence[float]], *, margin: float) -> tuple[Comparison, ...]:
    """Each measurement of the baseline against the rounds so far, paired in order: all intervals hold together with that confidence."""
    known = [name for name in baseline.seconds if name in seconds]
    alpha = (1 - CONFIDENCE) / max(len(known), 1)
    return tuple(compare(baseline.seconds[name], seconds[name], arm=name, baseline="baseline", alpha=alpha, margin=margin) for name in known)


class Store:
    """The file of all baselines and of the last check of each host. Raises RecordError where it cannot be used."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def keep(self, baseline: Baseline) -> None:
        with self._open() as db:
            values = (_key(baseline.machine), baseline.recorded, encoding.encode(baseline))
            db.execute("INSERT OR REPLACE INTO baseline VALUES (?, ?, ?)", values)

    def find(self, here: Mapping[str, str]) -> Baseline:
        """That of this machine. Raises UnhangError where there is none, and says what another machine's differs in."""
        with self._open() as db:
            rows = db.execute("SELECT machine, data FROM baseline ORDER BY recorded DESC").fetchall()
        for key, data in rows:
            if key == _key(here):
                return msgspec.json.decode(data, type=Baseline)
        if not rows:
            raise UnhangError(msg("no baseline is in {path}", path=self.path), hint="unhang bench record")
        newest = msgspec.json.decode(rows[0][1], type=Baseline)
        differs = ", ".join(f"{k} was {newest.machine.get(k)}, is {v}" for k, v in here.items() if newest.machine.get(k) != v)
        raise UnhangError(
            msg("the baseline is of another machine, or this one has changed: {differs}", differs=differs),
            hint="unhang bench record",
        )

    def keep_check(self, found: Sequence[Comparison]) -> None:
        slower = {c.arm: c.change for c in found if c.outcome == "slower"}
        undecided = sum(c.outcome == "undecided" for c in found)
        same = len(found) - len(slower) - undecided
        check = Check(checked=now(), slower=slower, same=same, undecided=undecided)
        with self._open() as db:
            db.execute("INSERT OR REPLACE INTO last_check VALUES (?, ?)", (Host().hostname(), encoding.encode(check)))

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            fsio.make_for_database(self.path)
            with contextlib.closing(sqlite3.connect(self.path, timeout=5)) as db, db:
                db.executescript(_TABLES)
                yield db
        except (sqlite3.Error, OSError, msgspec.MsgspecError) as e:
            raise RecordError(msg("cannot use {path}: {e}", path=self.path, e=e)) from e


def now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def _key(machine: Mapping[str, str]) -> str:
    return hashlib.sha256(encoding.encode(sorted(machine.items()))).hexdigest()
