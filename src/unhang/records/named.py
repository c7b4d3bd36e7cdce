"""Whether what somebody named on the command line is there, and how it is named there again.

`Path.exists` and its kin do not answer for a path behind a directory that one may not enter: up to Python 3.13 they raise, later they deny that
anything is there.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat

from unhang.errors import UnhangError


def exists(path: str | os.PathLike[str]) -> bool:
    """Raises UnhangError where that cannot be told."""
    return _mode(path) is not None


def is_file(path: str | os.PathLike[str]) -> bool:
    """Raises UnhangError where that cannot be told."""
    mode = _mode(path)
    return mode is not None and stat.S_ISREG(mode)


def is_dir(path: str | os.PathLike[str]) -> bool:
    """Raises UnhangError where that cannot be told."""
    mode = _mode(path)
    return mode is not None and stat.S_ISDIR(mode)


def again(path: str | os.PathLike[str]) -> str:
    """As a word of a command: quoted, and never one that looks like an option or stands for standard input."""
    name = os.fspath(path)
    return shlex.quote(f"./{name}" if name.startswith("-") else name)


def _mode(path: str | os.PathLike[str]) -> int | None:
    try:
        return os.stat(path).st_mode  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except OSError as e:
        if e.errno == errno.ENAMETOOLONG:
            # Nothing of that name can be there.
            return None
        raise UnhangError(f"cannot read {os.fspath(path)}: {e.strerror or e}") from e
