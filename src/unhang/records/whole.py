"""A small file, read whole. A named pipe has whoever opens it wait for a writer, who may never come; a device may never end."""

from __future__ import annotations

import errno
import os
import stat


class NotRegular(OSError):
    """A pipe, a socket or a device."""


def read(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """Its first `most_bytes`. Raises OSError; of it NotRegular for what is no file: what a pipe gives is another's, and gone once it is read."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(mode):
            raise NotRegular(errno.EINVAL, "it is no regular file", os.fspath(path))
    except BaseException:
        os.close(fd)
        raise
    with os.fdopen(fd, "rb") as f:
        return f.read(most_bytes)
