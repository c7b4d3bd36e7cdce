"""The one door to a machine: a root directory to read from, a way to run commands, and what only the kernel answers.

Tests give another root, and recorded answers; then nothing of this machine is asked. What collectors look at through it are subjects.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Generic, TypeVar

from unhang.model import frozen
from unhang.text import Text

T = TypeVar("T")
U = TypeVar("U")

_CHUNK_BYTES = 16 * 1024**2
_START_S = 2.0


class _Commands:
    """Those that run now: they are waited for in threads that nobody waits for, and go when we go."""

    def __init__(self) -> None:
        self._under_way: set[subprocess.Popen[bytes]] = set()
        self._is_over = False
        # Between its start and its being known, nobody could end it.
        self._starting = threading.Lock()

    @contextlib.contextmanager
    def started(self, argv: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
        with self._starting:
            if self._is_over:
                raise InterruptedError(f"{argv[0]} was not started")
            process = subprocess.Popen(list(argv), stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
            self._under_way.add(process)
        with process:
            try:
                yield process
            finally:
                self._under_way.discard(process)

    def end(self) -> None:
        # A program on a file server that is gone may take for ever to start.
        held = self._starting.acquire(timeout=_START_S)
        self._is_over = True
        if held:
            self._starting.release()
        for process in tuple(self._under_way):
            with contextlib.suppress(OSError):
                process.kill()


_commands = _Commands()
atexit.register(_commands.end)


class Asking(threading.Thread, Generic[T]):
    """A question that is asked at once, in a thread that nobody has to wait for: a file server or a driver that hangs holds up nothing else."""

    def __init__(self, ask: Callable[[], T], *, timeout_s: float) -> None:
        super().__init__(name="facts", daemon=True)
        self._ask = ask
        self._timeout_s = timeout_s
        self._until = time.monotonic() + timeout_s
        self._answers: list[T] = []
        self._error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self._answers.append(self._ask())
        except Exception as e:  # raised again by `answer`
            self._error = e

    def answer(self) -> T:
        """Raises what the question raised, TimeoutError where it is still open when its time is over."""
        self.join(max(0.0, self._until - time.monotonic()))
        if self._error is not None:
            raise self._error
        if not self._answers:
            raise TimeoutError(f"no answer within {self._timeout_s:g} s")
        return self._answers[0]


@frozen
class Ran:
    """A command that ran to its end."""

    exitcode: int
    out: str
    err: str


@frozen
class Space:
    """What a file system holds: bytes and inodes. `inodes` is 0 where it does not count them (btrfs, some network file systems)."""

    total_bytes: int
    free_bytes: int
    inodes: int
    free_inodes: int


class Host:
    """A machine, seen through its file system and its commands. Whatever cannot be had raises OSError (TimeoutError is one); `text`, `lines`,
    `number`, `listed` and `link_name` return nothing instead.
    """

    def __init__(
        self, root: Path = Path("/"), *, environ: Mapping[str, str] | None = None, places: Sequence[str] = (), writes_are_timed: bool = False
    ) -> None:
        self.root = root
        # Where checkpoints go, for example: paths that nothing on the machine names.
        self.places = tuple(places)
        # Only on request: it takes seconds, and a file server notices.
        self.writes_are_timed = writes_are_timed
        self.environ: Mapping[str, str] = environ if environ is not None else os.environ if self.is_live else {}

    @property
    def is_live(self) -> bool:
        """Whether it is the machine that we run on; otherwise it is only a directory."""
        return self.root == Path("/")

    def path(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str:
        """The text of one file, for example "/proc/meminfo". Raises OSError."""
        return self.path(path).read_text(errors="replace")

    def names(self, path: str) -> tuple[str, ...]:
        """What stands in a directory, sorted. Raises OSError."""
        return tuple(sorted(entry.name for entry in self.path(path).iterdir()))

    def link(self, path: str) -> str:
        """Where a symbolic link points to, as it is written. Raises OSError."""
        return str(self.path(path).readlink())

    def text(self, path: str) -> str | None:
        """The text of a file without blanks around it."""
        return self._had(lambda: self.read(path).strip(), None)

    def lines(self, path: str) -> list[str]:
        return (self.text(path) or "").splitlines()

    def number(self, *paths: str) -> int | None:
        """The whole number that the first of these files holds that can be read; None where it holds a word, as "max" is."""
        for path in paths:
            if (text := self.text(path)) is not None:
                return int(text) if re.fullmatch(r"-?[0-9]{1,30}", text) else None
        return None

    def listed(self, path: str) -> tuple[str, ...]:
        return self._had(lambda: self.names(path), ())

    def link_name(self, path: str) -> str | None:
        """The name of what a symbolic link points to."""
        return self._had(lambda: PurePosixPath(self.link(path)).name, None)

    @staticmethod
    def _had(ask: Callable[[], T], otherwise: U) -> T | U:
        try:
            return ask()
        except OSError:
            return otherwise

    def which(self, command: str) -> str | None:
        """Where the PATH of this environment finds a command, as seen on the machine."""
        found = shutil.which(command, path=os.pathsep.join(str(self.path(p)) for p in self.environ.get("PATH", "").split(os.pathsep) if p))
        return None if found is None else "/" + os.path.relpath(found, self.root) if not self.is_live else found

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Ran:
        """Run a command of this machine. Raises FileNotFoundError where it is missing, TimeoutError where it takes too long."""
        self._only_live(argv[0])
        with _commands.started(argv) as process:
            try:
                out, err = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired as e:
                process.kill()
                raise TimeoutError(f"{argv[0]} did not end within {timeout_s:g} s") from e
        return Ran(exitcode=process.returncode, out=out.decode(errors="replace"), err=err.decode(errors="replace"))

    def space(self, path: str) -> Space:
        """The space of the file system that a path lies on. Raises OSError."""
        self._only_live(f"the space of {path}")
        s = os.statvfs(path)
        # f_bavail: what is reserved for root is no room for a training.
        return Space(total_bytes=s.f_blocks * s.f_frsize, free_bytes=s.f_bavail * s.f_frsize, inodes=s.f_files, free_inodes=s.f_favail)

    def write_speed(self, directory: str, *, at_most_bytes: int, at_most_s: float) -> float:
        """Bytes per second that a new file there takes until all of it is on the disk; nothing of it stays. Raises OSError."""
        self._only_live(f"the speed of writing to {directory}")
        # What can be compressed or is empty would be stored faster than a checkpoint.
        chunk = os.urandom(min(_CHUNK_BYTES, at_most_bytes))
        written = 0
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            begun = time.monotonic()
            while written < at_most_bytes and time.monotonic() - begun < at_most_s:
                written += file.write(chunk)
            os.fsync(file.fileno())
            return written / (time.monotonic() - begun)

    def hostname(self) -> str:
        """The name that the machine has for itself. Raises OSError."""
        return socket.gethostname() if self.is_live else self.read("/etc/hostname").strip()

    def resolve(self, name: str) -> tuple[str, ...]:
        """The addresses of a name, in the resolver's order, each once. Raises OSError (socket.gaierror is one)."""
        self._only_live(f"the address of {name}")
        return tuple(dict.fromkeys(str(answer[4][0]) for answer in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)))

    def addresses(self) -> Mapping[str, tuple[str, ...]]:
        """The addresses of each interface with their prefix length, for example {"eth0": ("10.0.0.5/24", "fe80::1/64")}. Raises OSError."""
        self._only_live("the addresses of interfaces")
        import ipaddress

        import psutil

        found: dict[str, tuple[str, ...]] = {}
        for name, addresses in psutil.net_if_addrs().items():
            kept = []
            for a in addresses:
                if a.family in (socket.AF_INET, socket.AF_INET6):
                    bare = a.address.partition("%")[0]
                    mask = (a.netmask or "").partition("%")[0]
                    bits = bin(int(ipaddress.ip_address(mask))).count("1") if mask else ipaddress.ip_address(bare).max_prefixlen
                    kept.append(f"{bare}/{bits}")
            found[name] = tuple(kept)
        return found

    def nvml(self) -> Any:
        """NVIDIA's management library, initialised: the module of nvidia-ml-py. Whoever asked calls its nvmlShutdown.

        Raises FileNotFoundError where the library is not there, OSError with its own words where it refuses.
        """
        self._only_live("NVML")
        import ctypes

        try:
            # Asked first: nvidia-ml-py takes 0.2 s to import.
            ctypes.CDLL("libnvidia-ml.so.1")
        except OSError as e:
            raise FileNotFoundError(str(e)) from e
        import pynvml

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as e:
            raise OSError(str(e)) from e
        return pynvml

    def kernel_clock(self) -> tuple[int, float]:
        """What adjtimex says: its status bits (STA_...), and by how many seconds the clock may be wrong. Raises OSError."""
        self._only_live("the kernel's clock")
        import ctypes

        class Timex(ctypes.Structure):
            _fields_ = (
                ("modes", ctypes.c_uint),
                *((name, ctypes.c_long) for name in ("offset", "freq", "maxerror", "esterror")),
                ("status", ctypes.c_int),
                ("rest", ctypes.c_long * 40),
            )

        asked = Timex()
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "adjtimex") or libc.adjtimex(ctypes.byref(asked)) < 0:
            raise OSError(ctypes.get_errno(), "adjtimex was refused")
        return asked.status, asked.maxerror / 1e6

    def now_s(self) -> float:
        """Its clock: seconds since 1970."""
        return time.time()

    def _only_live(self, what: str) -> None:
        if not self.is_live:
            raise FileNotFoundError(f"{what} cannot be had from a machine that is only a directory")


class NotHere(Exception):
    """This machine has nothing of the kind (no GPU, no InfiniBand); the text says how that was seen. What could not be looked at is an OSError."""


@frozen
class Subject(Generic[T]):
    """One subject. Each module of `facts/` that ends in `SUBJECT = Subject(...)` is found there (`snapshot.subjects`).

    `collect` returns frozen data (`facts` is its type), raises NotHere, or OSError and ValueError where it cannot look; nothing else. What it could
    not see of its subject stands in the data as None, and is named in a field `unread: tuple[str, ...]` where it has one.
    `summary` is one line with the numbers that a reader would ask for, `details` more lines for who asked for this subject alone.
    `volatile` are names of fields, at any depth, that change by themselves from minute to minute (what is free, ages, counters): two snapshots are
    not said to differ for them. `lasting` leaves out what else is there by chance, for the same purpose.
    """

    id: str
    title: str
    facts: type[T]
    collect: Callable[[Host], T]
    summary: Callable[[T], Text]
    details: Callable[[T], Sequence[str]] = lambda facts: ()
    timeout_s: float = 5.0
    volatile: tuple[str, ...] = ()
    lasting: Callable[[T], T] = lambda facts: facts
