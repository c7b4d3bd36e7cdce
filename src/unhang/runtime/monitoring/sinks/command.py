"""A command that gets each message as JSON on its standard input. Without a shell; ended with its process group when its time is over."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from unhang.runtime.monitoring.sinks.delivery import NotDelivered

_KEPT_BYTES = 400
_LOOK_S = 0.02
# To start it, and to read the last of what it says.
_MORE_S = 5.0
# With these it would be taken for a rank of the training, or would become one.
_OF_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


class Command:
    """`argv`: words, or a line that is split as a shell would. Raises ValueError for what has no words."""

    def __init__(self, argv: str | Sequence[str], *, timeout_s: float) -> None:
        try:
            words = shlex.split(argv) if isinstance(argv, str) else [os.fspath(word) for word in argv]
        except (ValueError, TypeError):
            words = []
        if not words or not words[0]:
            raise ValueError("command is a list of words, or a line that shlex can split into words")
        self._argv, self._timeout_s, self.bound_s = words, timeout_s, timeout_s + _MORE_S
        # Words behind the first may be tokens.
        self._program = Path(words[0]).name
        self.name = f"command {self._program}"

    def __repr__(self) -> str:
        return f"Command({self._program!r}, …)"

    @property
    def found(self) -> bool:
        return shutil.which(self._argv[0]) is not None

    def deliver(self, message: Mapping[str, Any]) -> None:
        """Raises NotDelivered."""
        try:
            process = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={k: v for k, v in os.environ.items() if not k.startswith(("UNHANG_", "TORCHELASTIC_")) and k not in _OF_RANKS},
                start_new_session=True,
            )
        except OSError as e:
            raise NotDelivered(str(e.strerror), again=False) from None
        said = _Tail(process.stdout)
        in_time = False
        try:
            # Far less than a pipe holds: nobody waits for a command that does not read.
            with contextlib.suppress(OSError):
                process.stdin.write(json.dumps(message).encode() + b"\n")  # type: ignore[union-attr]
            # By itself: after a failed write it still closes, and fails once more.
            with contextlib.suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]
            in_time = _ends(process.pid, self._timeout_s)
        finally:
            # Not waited for yet, so that its number is still its own.
            _end(process.pid)
            process.wait()
        text = said.text()
        if not in_time:
            raise NotDelivered(f"it was ended after {self._timeout_s:g} s{text}", again=False)
        if process.returncode != 0:
            raise NotDelivered(f"it ended with {process.returncode}{text}")


class _Tail:
    """Reads to the end and keeps the last of it: a command that talks must neither block nor fill the memory."""

    def __init__(self, pipe: IO[bytes] | None) -> None:
        self._pipe, self._kept = pipe, b""
        self._thread = threading.Thread(target=self._read, name="unhang monitor command", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        if self._pipe is not None:
            with self._pipe as pipe:
                while some := os.read(pipe.fileno(), 65536):
                    self._kept = (self._kept + some)[-_KEPT_BYTES:]

    def text(self) -> str:
        # Whoever left the group may keep the pipe open.
        self._thread.join(1.0)
        said = " ".join(self._kept.decode(errors="replace").split())
        return f": {said}" if said else ""


def _ends(pid: int, within_s: float) -> bool:
    until = time.monotonic() + within_s
    try:
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() >= until:
                return False
            time.sleep(_LOOK_S)
    except ChildProcessError:
        # The training ignores SIGCHLD: nothing is left to be waited for.
        pass
    return True


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
