"""The one door to a machine: a root directory to read from and a way to run commands.

Tests and replayed snapshots give another root; then no command of this machine is run.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A command that ran to its end."""

    exitcode: int
    out: str
    err: str


class Host:
    """A machine, seen through its file system and its commands."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def path(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str:
        """The text of one file, for example "/proc/meminfo". Raises OSError."""
        return self.path(path).read_text(errors="replace")

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Ran:
        """Run a command of this machine. Raises FileNotFoundError where it is missing, TimeoutError where it takes too long."""
        if self.root != Path("/"):
            raise FileNotFoundError(f"{argv[0]} cannot be run on a machine that is only a directory")
        try:
            done = subprocess.run(list(argv), capture_output=True, timeout=timeout_s, stdin=subprocess.DEVNULL, check=False)
        except subprocess.TimeoutExpired as e:
            raise TimeoutError(f"{argv[0]} did not end within {timeout_s:g} s") from e
        return Ran(exitcode=done.returncode, out=done.stdout.decode(errors="replace"), err=done.stderr.decode(errors="replace"))
