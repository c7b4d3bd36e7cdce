"""Python stacks written by the signal itself, for ends that leave no time for anything else: a crash, or a launcher's SIGTERM.

faulthandler writes them from inside the signal handler, so a rank that is blocked in C++ and runs no Python code leaves its stacks too.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from typing import IO

from .protocol import ENV_FATAL, open_private

_file: IO[bytes] | None = None
_enabled = False


def arrange() -> None:
    """Write the stacks of all threads to a file in UNHANG_FATAL_DIR; nothing where that cannot be written or the user does it already."""
    global _file, _enabled
    directory = os.environ.get(ENV_FATAL)
    if not directory or _file is not None:
        return
    rank = os.environ.get("RANK", "")
    name = f"rank{rank}.txt" if rank.isdecimal() else f"pid{os.getpid()}.txt"
    try:
        _file = open(os.path.join(directory, name), "ab", buffering=0, opener=open_private)  # noqa: SIM115  open as long as the process lives
        if not faulthandler.is_enabled():
            faulthandler.enable(file=_file, all_threads=True)
            _enabled = True
        # chain: afterwards the signal does what it would have done. A handler that the script installs later replaces this one.
        faulthandler.register(signal.SIGTERM, file=_file, all_threads=True, chain=True)
    except Exception:
        return


def forget() -> None:
    """In a forked child: loader workers are ended by SIGTERM as a matter of course, and theirs are not the rank's stacks."""
    global _file, _enabled
    if _file is None:
        return
    try:
        # Once the script has a handler of its own, unregistering would take that away.
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            faulthandler.unregister(signal.SIGTERM)
        if _enabled:
            faulthandler.disable()
        _file.close()
    except Exception:
        pass
    _file, _enabled = None, False
