"""A benchmark's directory, and the only code that knows the names in it.

runs/bench-<name>-<time>/
  bench.json          what was asked for, with the seed of the orders
  runs.jsonl          one line for each run that counts, in the order of their ends
  failures.jsonl      one line for each arm of a race that was not started again
  round-1-a/          the run directory of arm a in round 1, and so on; with nccl/, the log of NCCL in each rank
"""

from __future__ import annotations

import fcntl
import itertools
import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from unhang import encoding, fsio
from unhang.bench.step_times import RankMeasures, Steps
from unhang.diagnosis.redact import redact
from unhang.errors import RecordError, RunDirError
from unhang.i18n import msg
from unhang.launch.supervise import run_path
from unhang.model import Verdict, frozen
from unhang.records.rundir import RunDir, new_directory


@frozen
class Asked:
    """What a comparison was started with, as typed. `hides`: the command held a credential, which is not written down.

    `ready_made` is the name of a ready-made comparison; `left_out` says of each one that priorities do not compare why.
    """

    schema: str = "unhang/bench/1"
    words: tuple[str, ...]
    hides: bool
    cwd: str
    arms: Mapping[str, str]
    argument: str | None
    module: bool
    nproc_per_node: int | None
    python: str | None
    seed: int
    margin: float
    budget_s: float
    steps: int
    verb: Literal["compare", "priorities"] = "compare"
    ready_made: str | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)


@frozen
class Run:
    """One run that counts. `in_force` is what its ranks ran with, `set_by_script` what the script itself changed of that before its first step.

    `ranks` are those of this host; `gpu_links` how their GPUs are joined, in a run of the first round, () if not known.
    """

    schema: str = "unhang/bench-run/1"
    round: int
    arm: str
    run_dir: str
    ended: str
    elapsed_s: float
    steps: Steps
    in_force: Mapping[str, str]
    set_by_script: Mapping[str, str] = field(default_factory=dict)
    ranks: tuple[RankMeasures, ...] = ()
    gpu_links: tuple[str, ...] = ()


@frozen
class Failure:
    """An arm of a race that failed in `round`. `why` is a sentence, "" if the training itself failed; `said` are the `last_words` of that."""

    round: int
    arm: str
    run_dir: str
    why: str = ""
    said: str = ""


def last_words(verdict: Verdict | None) -> str:
    """The line of a rank's log that is evidence for how it ended, such as what it gave to sys.exit; "" if the verdict says it already."""
    primary = verdict.primary if verdict is not None else None
    lines = [e.text.strip() for e in primary.evidence if e.source.startswith("logs/")] if primary is not None else []
    return redact(next((line for line in reversed(lines) if primary is not None and line not in primary.says), ""))


_Line = TypeVar("_Line", Run, Failure)


class BenchDir:
    """`create` makes one, `open` takes one that exists."""

    def __init__(self, path: Path, asked: Asked) -> None:
        self.path = path
        self.asked = asked

    @classmethod
    def create(cls, name: str, asked: Asked, *, private: bool = False) -> BenchDir:
        """Raises RunDirError."""
        try:
            path = new_directory(lambda: run_path(Path("runs"), f"bench-{name}").absolute(), private=private)
            RunDir(path).write(path / "bench.json", asked)
        except OSError as e:
            raise RunDirError(f"cannot write {e.filename}: {e.strerror or e}") from e
        return cls(path, asked)

    @classmethod
    def open(cls, path: Path) -> BenchDir:
        """Raises RunDirError where it is none, is damaged, or somebody else may have said there what is started."""
        if not (path / "bench.json").is_file():
            raise RunDirError(
                msg("{path} is not a directory of unhang bench: it has no bench.json", path=path),
                cause="unhang bench compare makes them as runs/bench-<name>-<time>/",
            )
        for one in (path, path / "bench.json"):
            if (wrong := fsio.check_owner(one)) is not None:
                raise RunDirError(wrong)
        return cls(path.absolute(), RunDir(path).read(path / "bench.json", Asked))

    def lock(self) -> None:
        """Keep it for this process until that ends. Raises RunDirError if another one has it."""
        try:
            fcntl.flock(os.open(self.path / "bench.json", os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise RunDirError(f"another unhang bench is at work in {self.path}") from e
        except OSError:  # a file system without locks
            return

    def runs(self) -> tuple[Run, ...]:
        """The runs that count so far, in the order of their ends. A last line that was cut off is left out. Raises RecordError for other damage."""
        return self._read("runs.jsonl", Run)

    def failures(self) -> tuple[Failure, ...]:
        """As `runs`."""
        return self._read("failures.jsonl", Failure)

    def _read(self, name: str, kind: type[_Line]) -> tuple[_Line, ...]:
        try:
            with open(self.path / name, "r+b", opener=fsio.open_private) as f:
                *lines, rest = f.read().split(b"\n")
                found = [msgspec.json.decode(line, type=kind) for line in lines]
                if rest:
                    f.truncate(sum(len(line) + 1 for line in lines))
        except FileNotFoundError:
            return ()
        except OSError as e:
            raise RunDirError(f"cannot write {self.path / name}: {e.strerror or e}") from e
        except encoding.NOT_JSON as e:
            raise RecordError(f"{self.path / name} is damaged: {e}", cause="it was cut off, edited, or written by another version") from e
        return tuple(found)

    def add(self, line: Run | Failure) -> None:
        """Raises RunDirError."""
        try:
            path = self.path / ("runs.jsonl" if isinstance(line, Run) else "failures.jsonl")
            with open(path, "ab", opener=fsio.open_private) as f:
                f.write(encoding.encode(line) + b"\n")
        except OSError as e:
            raise RunDirError(f"cannot write {e.filename}: {e.strerror or e}") from e

    def new_run(self, round: int, arm: str) -> RunDir:
        """An empty run directory; one of an attempt that did not count stays beside it. Raises RunDirError."""
        names = itertools.chain([f"round-{round}-{arm}"], (f"round-{round}-{arm}-{n}" for n in itertools.count(2)))
        return RunDir.create(lambda: self.path / next(names))
