"""What ladders found, remembered: one SQLite file for each user, an outcome for each machine and job, valid for the versions it was found with.

Of the machine counts what decides which transports work; nothing that changes by itself from day to day, as addresses and free space do. Several
trainings may write at once: SQLite locks the file for the moment of a write. What is in it can be found again: a damaged file is set aside.
"""

from __future__ import annotations

import contextlib
import hashlib
import platform
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

import unhang
from unhang import encoding, fsio
from unhang.facts import container, gpu, limits, network, shm, snapshot
from unhang.facts.host import Host
from unhang.model import Outcome, frozen
from unhang.remedies.trial import OF_COMMUNICATION
from unhang.settings.setting import Installed

FILE = "remedies.sqlite"
_BUSY_S = 5.0
_TABLE = """
CREATE TABLE IF NOT EXISTS outcomes (
    place TEXT PRIMARY KEY, versions TEXT NOT NULL, command TEXT NOT NULL, found_s REAL NOT NULL, outcome BLOB NOT NULL
)
"""
_NOT_USED = "what earlier runs found is not used"
_NOT_KEPT = "what was found is not remembered"
_NOT_FORGOTTEN = "what earlier runs found is not forgotten"
# Up to the year 9999, which is what a clock's words hold.
_Seconds = Annotated[float, msgspec.Meta(ge=0, lt=253_402_300_800)]
T = TypeVar("T")
# Options that say where something goes, and no two runs share: "--output_dir runs/7", "--run-name=b".
_OF_OUTPUT = frozenset(
    {
        *("output", "out", "output-dir", "out-dir", "output-path", "save-dir", "save-path", "log-dir", "logdir", "log-file", "logging-dir"),
        *("run-name", "run-id", "exp-name", "experiment-name", "checkpoint-dir", "ckpt-dir", "tensorboard-dir", "wandb-name", "seed"),
        *("master-port", "main-process-port"),
    }
)
_FILES = (".yaml", ".yml", ".json", ".toml")
_MOST_BYTES = 1 << 20
# Kinds that leave the host its name.
_OF_THE_HOST = ("bare", "slurm", "systemd", "wsl")


@frozen
class Key:
    """`place` is of the machine and the job; `versions` of the software, in words that can be shown when they have changed."""

    place: str
    versions: str


def key(*, words: Sequence[str], world_size: int, cwd: Path, installed: Installed, environ: Mapping[str, str], host: Host | None = None) -> Key:
    seen = snapshot.take(host or Host(), only=("gpu", "network", "shm", "container", "limits"))
    place = encoding.encode([machine(seen), job(words, cwd), world_size, communication(environ)])
    return Key(place=hashlib.sha256(place).hexdigest(), versions=versions(installed, seen))


def machine(seen: snapshot.Snapshot) -> dict[str, object]:
    gpus, nets, shared = seen.get(gpu.SUBJECT), seen.get(network.SUBJECT), seen.get(shm.SUBJECT)
    box, bounds = seen.get(container.SUBJECT), seen.get(limits.SUBJECT)
    return {
        # A home directory is shared by hosts that look alike, and one of them may have the broken link. Containers get another name at each start.
        "host": platform.node() if box is None or box.kind in _OF_THE_HOST else None,
        "kernel": platform.release(),
        "gpus": [] if gpus is None else [[g.name, g.uuid] for g in gpus.gpus],
        "interfaces": [] if nets is None else sorted(i.name for i in nets.interfaces if i.up and not i.name.startswith("veth")),
        "shm_bytes": None if shared is None or shared.space is None else shared.space.total_bytes,
        "container": None if box is None else [box.kind, sorted(box.capabilities or ())],
        "limits": None if bounds is None else [bounds.memlock_bytes and bounds.memlock_bytes.hard, bounds.cpus_allowed],
    }


def job(words: Sequence[str], cwd: Path) -> list[str]:
    """The command without what says only where its output goes."""
    found: list[str] = [str(cwd)]
    skips = False
    for word in words:
        if skips and not word.startswith("-"):
            skips = False
            continue
        name, given, value = word.partition("=")
        skips = word.startswith("-") and _is_of_output(name) and not given
        if not (word.startswith("-") and _is_of_output(name)):
            found.append(word)
            if word.endswith(_FILES) and (said := _content(cwd / (value if word.startswith("-") else word))) is not None:
                found.append(said)
    return found


def _content(path: Path) -> str | None:
    """Of a configuration: the same name may stand for another job tomorrow."""
    try:
        return hashlib.sha256(fsio.bounded_read(path, _MOST_BYTES)).hexdigest()
    except OSError:
        return None


def _is_of_output(option: str) -> bool:
    name = option.lstrip("-").replace("_", "-").lower()
    return name in _OF_OUTPUT


def communication(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """What the user's own environment says of communication: with other values it is another situation."""
    return sorted((name, value) for name, value in environ.items() if OF_COMMUNICATION.match(name))


def versions(installed: Installed, seen: snapshot.Snapshot) -> str:
    gpus = seen.get(gpu.SUBJECT)
    parts = {
        "torch": ".".join(map(str, installed.torch)) if installed.torch else None,
        "NCCL": ".".join(map(str, installed.nccl)) if installed.nccl else None,
        "driver": gpus.driver if gpus is not None else None,
        **dict(sorted(installed.packages.items())),
        "unhang": unhang.__version__,
    }
    return ", ".join(f"{name} {version}" for name, version in parts.items() if version)


@frozen
class Recalled:
    """`outcome` is None where nothing was remembered, or what was no longer holds: then `expired` says why. `found_s` is in seconds since 1970."""

    outcome: Outcome | None = None
    found_s: float = 0.0
    expired: str = ""


class Memory:
    """Without a `path`, or where its file cannot be used, nothing is remembered; `trouble` is told why."""

    def __init__(self, path: Path | None, *, trouble: Callable[[str], None] = lambda why: None) -> None:
        self._path = path
        self._trouble = trouble

    def recall(self, key: Key, *, forgets: bool = True) -> Recalled:
        """`forgets`: what no longer holds is deleted."""
        row = self._do(
            lambda db: db.execute("SELECT versions, found_s, outcome FROM outcomes WHERE place = ?", (key.place,)).fetchone(), None, _NOT_USED
        )
        if row is None:
            return Recalled()
        versions, found_s, data = row
        if versions != key.versions:
            if forgets:
                self.forget(key)
            return Recalled(expired=f"it was found with {versions}; now there is {key.versions}")
        try:
            outcome, found_s = encoding.decode(data, Outcome), msgspec.convert(found_s, _Seconds)
        except (msgspec.MsgspecError, TypeError):
            if forgets:
                self.forget(key)
            return Recalled(expired="it was written by another version of unhang")
        return Recalled(outcome=replace(outcome, remembered=True), found_s=found_s)

    def keep(self, key: Key, outcome: Outcome, *, command: str, now_s: float | None = None) -> bool:
        """Whether it is remembered now. Only what was chosen and confirmed is worth it."""
        if not outcome.chosen or not outcome.confirmed:
            return False
        values = (key.place, key.versions, command, time.time() if now_s is None else now_s, encoding.encode(outcome))
        return self._do(lambda db: db.execute("INSERT OR REPLACE INTO outcomes VALUES (?, ?, ?, ?, ?)", values).rowcount > 0, False, _NOT_KEPT)

    def forget(self, key: Key) -> bool | None:
        """Whether there was anything to forget; None where that is not known, and it may be there still."""
        if self._path is None:
            return False
        return self._do(lambda db: db.execute("DELETE FROM outcomes WHERE place = ?", (key.place,)).rowcount > 0, None, _NOT_FORGOTTEN)

    def _do(self, ask: Callable[[sqlite3.Connection], T], otherwise: T, undone: str) -> T:
        """`undone` says what it means that it could not be done."""
        if self._path is None:
            return otherwise
        try:
            with self._open(self._path) as db:
                return ask(db)
        except sqlite3.OperationalError as e:
            # Locked for too long, no permission, a full disk: the file itself is sound.
            self._trouble(f"{undone}: {self._path}: {e}")
        except sqlite3.DatabaseError as e:
            self._set_aside(self._path, str(e), undone)
        except OSError as e:
            self._trouble(f"{undone}: {self._path}: {e.strerror or e}")
        return otherwise

    def _set_aside(self, path: Path, why: str, undone: str) -> None:
        aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
        try:
            path.replace(aside)
        except OSError as e:
            self._trouble(f"{undone}: {path} is damaged ({why}), and cannot be set aside: {e.strerror or e}")
        else:
            self._trouble(f"{path} is damaged ({why}): set aside as {aside.name}, and begun anew")

    @staticmethod
    @contextlib.contextmanager
    def _open(path: Path) -> Iterator[sqlite3.Connection]:
        fsio.make_for_database(path)
        with contextlib.closing(sqlite3.connect(path, timeout=_BUSY_S)) as db, db:
            db.execute(_TABLE)
            yield db
