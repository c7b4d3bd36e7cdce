"""What can go wrong, and the exit code of each.

    UnhangError                 exit 2: the user's input or surroundings; shown without a traceback
      CommandNotFound           the training command does not exist
      RunDirError               a run directory is missing, damaged or cannot be written
      RecordError               a dump or a log cannot be read
      MissingExtra              a feature needs an optional dependency
    (anything else)             exit 3: our own failure; a ready-to-paste report is written

A finding, or a training that failed, is not an error: exit 1. Interrupted: 130.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_FOUND = 1
EXIT_USER = 2
EXIT_OURS = 3
EXIT_INTERRUPTED = 130


class UnhangError(Exception):
    """What failed, with the value; `cause`, the usual reason; `hint`, the next command to try."""

    def __init__(self, message: str, *, cause: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.cause = cause
        self.hint = hint


class CommandNotFound(UnhangError):
    """The training command does not exist or cannot be executed."""


class RunDirError(UnhangError):
    """A run directory is missing, damaged or cannot be written."""


class RecordError(UnhangError):
    """A record of a failed run (dump, log, incident) cannot be read."""


class MissingExtra(UnhangError):
    """A feature needs an optional dependency that is not installed."""
