"""A run directory: every file name in it, and the only code that knows them.

    runs/<name>-<time>/
      run.json              command, options, environment that we set, versions
      host.json             the machine, as it was at the start
      events.jsonl          one line for each thing that happened, in order
      logs/attempt-0/       rank0.out, rank0.err, ... and launcher.out, launcher.err
      fatal/attempt-0/      stacks that a rank wrote while a signal was ending it
      flight/attempt-0/     dumps that torch wrote by itself, on a timeout
      incidents/1/          incident.json, stacks/rank0.json, stacks/rank0-4711.json (a child process), flight/rank_0, kernel.txt, ras.json,
                            verdict.json          the verdict on the last incident, and on those before it that led to it
      verdict.md            the same to read
      report.html           the same with a timeline, for a browser
      solution.json         what was tried after a failure of communication, and what was chosen
      solution.md           the same to read
      trials/trial-*/       logs of the ranks of the trial that failed first
      monitor.jsonl         what unhang.Monitor of the training wrote, one line for each snapshot
      now.json              what the ranks are doing, written anew once a second

Every file is written whole (a temporary file, then a rename) or only ever appended to.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
import re
from collections.abc import Callable
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from unhang import fsio
from unhang.errors import RunDirError
from unhang.i18n import msg
from unhang.model import frozen
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.records.incident import Incident, Stacks

RUN_SCHEMA = "unhang/run/1"
# Other programs write a run.json as well: ours has this in its first bytes, or an events.jsonl beside it.
RUN_MARK, RUN_MARK_WITHIN_BYTES = b"unhang/run/", 65_536
# Of run.json: enough to name a run by.
MAX_DOCUMENT_BYTES = 64 << 20
_MOST_OWNERS, _MAX_NAMED_BYTES = 1_000, 16 * 1024**2
# More ranks, logs or reasons than this are believed only of an incident with so many bytes for each; we write 350 and 100 at least. No rank has more
# groups or children.
_MOST_RANKS, _MANY, _BYTES_OF_RANK, _BYTES_OF_LOG = 1 << 20, 2_000, 256, 80

_NAME = r"\w[\w.-]{0,120}"
# A file of a run directory, by its path in an archive: `run` leads to the run directory, `file` is its name in it.
MEMBER = lazily(
    r"(?P<run>(?:.*?/)??)(?P<file>(?:run|host|verdict|solution|now)\.json|(?:verdict|solution)\.md|report\.html|(?:events|monitor)\.jsonl"
    rf"|(?:logs|fatal|flight)/attempt-\d{{1,6}}/{_NAME}"
    rf"|incidents/\d{{1,6}}/(?:(?:incident|verdict)\.json|kernel\.txt|ras\.(?:json|txt)|(?:stacks|flight(?:/cpu)?)/{_NAME}))",
    re.ASCII | re.DOTALL,
)

_OWN = (
    "run.json",
    "host.json",
    "events.jsonl",
    "verdict.json",
    "verdict.md",
    "report.html",
    "solution.json",
    "solution.md",
    "monitor.jsonl",
    "now.json",
    "fatal",
    "flight",
    "incidents",
)

T = TypeVar("T")


def _head(path: Path, size: int) -> bytes:
    with path.open("rb") as f:
        return f.read(size)


class RunDir:
    """The files of one run. Makes no directory by itself: `create` does, `open` checks. `is_trusted`: whatever owners and modes say."""

    def __init__(self, path: Path, *, is_trusted: bool | None = None) -> None:
        self.path = path
        if is_trusted is not None:
            self.is_trusted = is_trusted

    @classmethod
    def create(cls, path: Path | Callable[[], Path], *, private: bool = False) -> RunDir:
        """Make a new, empty run directory (see `new_directory`), inaccessible to other users if `private`.

        Raises RunDirError where it holds something or cannot be made.
        """
        try:
            return cls(new_directory(path, private=private), is_trusted=True)
        except FileExistsError as e:
            what = msg("is not empty") if Path(e.filename).is_dir() else msg("is no directory")
            raise RunDirError(
                msg("the run directory {filename} {what}", filename=e.filename, what=what),
                hint="name another place with --run-dir DIR",
            ) from e
        except OSError as e:
            raise RunDirError(
                f"cannot create the run directory {e.filename}: {e.strerror or e}",
                hint="name another place with --run-dir DIR",
            ) from e

    @staticmethod
    def is_one(path: Path) -> bool:
        """Whether `path` is a run directory."""
        run = path / "run.json"
        try:
            return run.is_file() and ((path / "events.jsonl").is_file() or RUN_MARK in _head(run, RUN_MARK_WITHIN_BYTES))
        except OSError:
            return False

    @classmethod
    def holding(cls, path: Path) -> RunDir | None:
        """The run directory that something is a part of; None for one itself."""
        return next((cls(p) for p in Path(os.path.abspath(path)).parents if cls.is_one(p)), None)  # noqa: PTH100

    @classmethod
    def open(cls, path: Path, *, is_trusted: bool | None = None) -> RunDir:
        """Open one that exists, or what was made elsewhere because its disk was full. Raises RunDirError where `path` is no run directory."""
        if not (path / "run.json").is_file():
            raise RunDirError(
                f"{path} is not a run directory: it has no run.json",
                cause="unhang run makes them as runs/<name>-<time>/",
            )
        here = cls(path, is_trusted=is_trusted)
        try:
            there = cls(here.elsewhere, is_trusted=is_trusted)
            return there if there._continues(path) and max(there.incident_numbers(), default=0) > max(here.incident_numbers(), default=0) else here
        except OSError:
            return here

    @property
    def elsewhere(self) -> Path:
        """Where incidents are kept that the disk of this run refuses: on its host, by its own run.json. Raises OSError where that cannot be read."""
        import hashlib
        import tempfile

        shm = Path("/dev/shm")
        name = f"unhang-run-{hashlib.sha256(_head(self.run, _MAX_NAMED_BYTES)).hexdigest()[:16]}"
        return (shm if os.access(shm, os.W_OK) else Path(tempfile.gettempdir())) / name

    def _continues(self, home: Path) -> bool:
        """Whether it was made elsewhere because the disk of `home` was full. Anybody can make a directory of that name."""
        with contextlib.suppress(OSError):
            mine = self.path.lstat().st_uid in (home.stat().st_uid, os.geteuid()) and not self.path.is_symlink()
            return mine and self.path.resolve() == RunDir(home).elsewhere.resolve()
        return False

    @cached_property
    def is_trusted(self) -> bool:
        """Whether commands may hold what its records say: the user or root wrote them, nobody else could, and no archive had them."""
        with contextlib.suppress(OSError):
            within = islice(self.path.glob("incidents/*/incident.json"), _MOST_OWNERS)
            parents = (p for incident in within for p in (incident, incident.parent, incident.parent.parent))
            return not any(fsio.check_owner(p) for p in dict.fromkeys((self.path, self.run, *parents)) if os.path.lexists(p))
        return False

    @property
    def run(self) -> Path:
        return self.path / "run.json"

    @property
    def host(self) -> Path:
        return self.path / "host.json"

    @property
    def hosts(self) -> Path:
        """What is under way on which hosts, of a training over several."""
        return self.path / "hosts.json"

    def on_host(self, name: str, attempt: int) -> Path:
        """Where the run directory of one of several hosts lies, on that host."""
        return self.path / "hosts" / f"{name}-{attempt}"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def monitor(self) -> Path:
        return self.path / "monitor.jsonl"

    @property
    def now(self) -> Path:
        return self.path / "now.json"

    @property
    def verdict(self) -> Path:
        return self.path / "verdict.json"

    @property
    def report(self) -> Path:
        return self.path / "verdict.md"

    @property
    def report_html(self) -> Path:
        return self.path / "report.html"

    @property
    def solution(self) -> Path:
        return self.path / "solution.json"

    @property
    def solution_report(self) -> Path:
        return self.path / "solution.md"

    @property
    def trials(self) -> Path:
        return self.path / "trials"

    def holds(self, path: Path) -> bool:
        """Whether something that a record names is a file of this run directory, which may come from anybody."""
        return path.is_file() and any(path.resolve().is_relative_to(home) for home in self._homes)

    @cached_property
    def _homes(self) -> set[Path]:
        here, linked = self.path.resolve(), self.run.resolve().parent
        # The one that was made elsewhere has its run.json, and all that was written before, by links.
        return {here, linked} if linked != here and self.run.is_file() and self._continues(linked) else {here}

    def check(self, path: Path) -> None:
        """Raises RunDirError for a file that a link leads to out of the run directory."""
        if path.is_file() and not self.holds(path):
            raise RunDirError(f"{path} is no file of this run directory")

    def logs(self, attempt: int) -> Path:
        return self.path / "logs" / f"attempt-{attempt}"

    def log(self, attempt: int, *, rank: int | None, stream: str) -> Path:
        return self.logs(attempt) / f"{'launcher' if rank is None else f'rank{rank}'}.{stream}"

    def last_attempt(self) -> int | None:
        """The number of the last attempt of which there are logs."""
        return max((int(p.name[8:]) for p in (self.path / "logs").glob("attempt-*") if p.name[8:].isdecimal()), default=None)

    def last_errors(self) -> list[tuple[int | None, Path]]:
        """What the ranks of the last attempt wrote to stderr, and what came from none of them (None), by rank."""
        last = self.last_attempt()
        found = [p for p in self.logs(last).glob("*.err") if self.holds(p)] if last is not None else []
        ranks = {int(p.stem[4:]): p for p in found if p.stem.startswith("rank") and p.stem[4:].isdecimal()}
        others = [p for p in found if p.stem == "launcher"]
        return [*((rank, ranks[rank]) for rank in sorted(ranks)), *((None, p) for p in others)]

    def fatal(self, attempt: int) -> Path:
        return self.path / "fatal" / f"attempt-{attempt}"

    def fatal_of(self, attempt: int, rank: int) -> Path:
        return self.fatal(attempt) / f"rank{rank}.txt"

    def flight_of_torch(self, attempt: int) -> Path:
        return self.path / "flight" / f"attempt-{attempt}"

    def incident_dir(self, number: int) -> Path:
        return self.path / "incidents" / str(number)

    def incident(self, number: int) -> Path:
        return self.incident_dir(number) / "incident.json"

    def stacks(self, number: int, rank: int, *, child: int | None = None) -> Path:
        return self.incident_dir(number) / "stacks" / (f"rank{rank}.json" if child is None else f"rank{rank}-{child}.json")

    def flight(self, number: int, rank: int) -> Path:
        # torch's own analyser wants <prefix><rank>.
        return self.incident_dir(number) / "flight" / f"rank_{rank}"

    def last_flight(self) -> Path | None:
        """Where the dumps of the last incident lie that has any, also of one that was not written down; else those that torch wrote by itself."""
        incidents = sorted((p for p in (self.path / "incidents").glob("*/flight") if p.parent.name.isdecimal()), key=lambda p: int(p.parent.name))
        attempts = sorted((p for p in (self.path / "flight").glob("attempt-*") if p.name[8:].isdecimal()), key=lambda p: int(p.name[8:]))
        return next((p for p in (*incidents[::-1], *attempts[::-1]) if p.is_dir() and any(map(self.holds, p.iterdir()))), None)

    def kernel(self, number: int) -> Path:
        return self.incident_dir(number) / "kernel.txt"

    def ras(self, number: int, format: str) -> Path:
        return self.incident_dir(number) / f"ras.{'json' if format == 'json' else 'txt'}"

    def incident_verdict(self, number: int) -> Path:
        return self.incident_dir(number) / "verdict.json"

    def incident_of(self, path: Path) -> int | None:
        """The number of the incident that something is a part of."""
        folder, number, *_ = *Path(self.relative(Path(os.path.abspath(path)))).parts, "", ""  # noqa: PTH100
        return int(number) if folder == "incidents" and number.isdecimal() else None

    def attempt_of(self, path: Path) -> int | None:
        """The number of the attempt whose logs something is, or is among."""
        folder, attempt, *_ = *Path(self.relative(Path(os.path.abspath(path)))).parts, "", ""  # noqa: PTH100
        number = attempt.removeprefix("attempt-")
        return int(number) if folder == "logs" and number.isdecimal() else None

    def is_log(self, path: Path) -> bool:
        """Whether something in the run directory is to be read as logs: one attempt's, or what is none of ours; no record of ours, nor all logs."""
        folder, *rest = Path(self.relative(Path(os.path.abspath(path)))).parts  # noqa: PTH100
        return bool(rest) if folder == "logs" else folder not in _OWN

    def incident_numbers(self) -> list[int]:
        """The numbers of all incidents that were written down completely, oldest first. Raises RunDirError where that cannot be told."""
        parent = self.path / "incidents"
        try:
            if not parent.is_dir():
                return []
            return sorted(int(p.name) for p in parent.iterdir() if p.name.isdigit() and (p / "incident.json").is_file())
        except OSError as e:
            raise self._unreadable(parent, e) from e

    def relative(self, path: Path) -> str:
        return path.relative_to(self.path).as_posix()

    def read_incident(self, number: int) -> Incident:
        """Raises RunDirError if it is missing or damaged, lists more ranks, groups or logs than its size can describe, or a name that no file has."""
        from unhang.records.incident import Incident

        path = self.incident(number)
        incident, size = self.read(path, Incident), path.stat().st_size
        if not all(0 <= r.rank <= _MOST_RANKS and max(len(r.groups), len(r.children)) <= _MANY for r in incident.ranks) or any(
            len(parts) > max(_MANY, size // least)
            for parts, least in ((incident.ranks, _BYTES_OF_RANK), (incident.logs, _BYTES_OF_LOG), (incident.missed, _BYTES_OF_LOG))
        ):
            raise RunDirError(f"{path} lists more ranks or logs than a file of its size can describe", cause="unhang did not write it")
        if any(
            "\0" in (name or "")
            for name in (incident.kernel, *(n for r in incident.ranks for n in (r.stacks, r.flight)), *(g.path for g in incident.logs))
        ):
            raise RunDirError(f"{path} has a name that no file can have", cause="unhang did not write it")
        return incident

    def read_stacks(self, relative: str) -> Stacks:
        from unhang.records.incident import Stacks

        return self.read(self.path / relative, Stacks)

    def read(self, path: Path, kind: type[T]) -> T:
        """Decode one JSON file. Raises RunDirError where it is missing or damaged."""

        from unhang import encoding

        try:
            refuse_special(path)
            self.check(path)
            if path.stat().st_size > MAX_DOCUMENT_BYTES:
                raise RunDirError(f"{path} is larger than {MAX_DOCUMENT_BYTES >> 20} MiB", cause="unhang did not write it")
            return encoding.decode(path.read_bytes(), kind)
        except OSError as e:
            raise self._unreadable(path, e) from e
        except encoding.NOT_JSON as e:
            raise RunDirError(f"{path} is damaged: {e}", cause="it was cut off, edited, or written by another version") from e

    def _unreadable(self, path: Path, error: OSError) -> RunDirError:
        what = f"cannot read {error.filename or path}: {error.strerror or error}"
        if not isinstance(error, PermissionError):
            return RunDirError(what)
        return RunDirError(
            what,
            cause="other users can read only the logs of a run unless its owner allows more",
            hint=f"as its owner: chmod -R g+rX {fsio.as_argument(self.path)}",
        )

    def write(self, path: Path, value: object) -> None:
        """Write one JSON file whole. Raises OSError."""
        import msgspec

        from unhang import encoding

        self.write_bytes(path, msgspec.json.format(encoding.encode(value), indent=2) + b"\n")

    def write_bytes(self, path: Path, data: bytes) -> None:
        """Write a file atomically, readable by its owner only. Raises OSError."""
        fsio.make_directory(path.parent)
        fsio.write_atomically(path, data)


def new_directory(path: Path | Callable[[], Path], *, private: bool = False) -> Path:
    """Create a directory, or take an empty one. A function is called again if another process took its path first. Raises OSError."""
    ask = path if callable(path) else lambda: path
    chosen = ask()
    while True:
        # Whatever the umask grants, nobody else may put files into it.
        fsio.make_directory(chosen.parent, 0o775)
        try:
            chosen.mkdir(0o700 if private else 0o775)
            return chosen
        except FileExistsError:
            before, chosen = chosen, ask()
            if chosen != before:
                continue
            # Batch scripts make it first.
            if not chosen.is_dir() or any(chosen.iterdir()):
                raise
            if private:
                chosen.chmod(0o700)
            return chosen


def refuse_special(path: Path) -> None:
    """Raises OSError for what is there and is no file: a FIFO would be waited for without end."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is a directory" if path.is_dir() else "it is a FIFO, a socket or a device, and no file")


def not_written(path: Path, error: OSError) -> str:
    return f"cannot write {path}: {error.strerror or error}; the training is not affected"


def runs_in(folder: Path) -> list[Path]:
    """The run directories below a folder (`runs`, or the project that holds it), the oldest first. Links that lead out of it are not followed."""
    inside = folder.resolve()
    if folder.is_symlink() and inside == Path("/"):
        return []
    runs = [p.parent for pattern in ("*/run.json", "*/*/run.json") for p in folder.glob(pattern)]
    found = [run for run in runs if run.resolve().is_relative_to(inside) and RunDir.is_one(run)]
    return sorted(found, key=lambda p: (started(p), p.name))


def started(run: Path) -> float:
    """When a run was started, in seconds since 1970."""
    import msgspec

    path = run / "run.json"
    try:
        told = msgspec.json.decode(fsio.bounded_read(path, MAX_DOCUMENT_BYTES), type=_Run).started
        if told:
            return datetime.datetime.fromisoformat(told).timestamp()
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
        pass
    return path.stat().st_mtime


@frozen
class _Run:
    started: str = ""
