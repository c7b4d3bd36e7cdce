"""Whose files say how trainings are started: the user's and root's, if nobody else may write them. What strangers leave is not taken."""

from __future__ import annotations

import os
import pwd
import shlex
import stat
from dataclasses import dataclass

from unhang.text import Text

# Files and directories, as in PATH, that are taken whoever owns them: in containers and on NFS owners are not what they seem.
TRUST = "UNHANG_TRUST"
_OTHER = Text(
    "{path} belongs to {owner} and was not taken; {command}, or set {trust}={path}", "{path} 属于 {owner}，未采用；{command}，或设置 {trust}={path}"
)
_OPEN = Text("{path} may be written by anybody and was not taken; {command}", "任何人都可以写入 {path}，未采用；{command}")


@dataclass(frozen=True, kw_only=True)
class Distrusted:
    """Why something is not taken, with the command that mends it. `is_own`: it is the user's, who may have meant it."""

    says: Text
    is_own: bool


def distrusted(path: str | os.PathLike[str]) -> Distrusted | None:
    """None if a file or directory is taken. A link counts for itself and for what it leads to. Raises OSError."""
    path = os.fspath(path)
    if os.path.realpath(path) in map(os.path.realpath, filter(None, os.environ.get(TRUST, "").split(os.pathsep))):
        return None
    # As root, whoever called sudo is trusted: they may do anything. Rules of git's safe.directory.
    trusted = {0, os.geteuid(), *([int(sudo)] if os.geteuid() == 0 and (sudo := os.environ.get("SUDO_UID", "")).isdecimal() else [])}
    for status in (os.lstat(path), os.stat(path)):  # noqa: PTH116
        named = {"path": shlex.quote(path), "trust": TRUST}
        if status.st_uid not in trusted:
            command = f"{'sudo ' if os.geteuid() else ''}chown {os.geteuid()} {named['path']}"
            return Distrusted(says=_OTHER.fill(**named, owner=_name(status.st_uid), command=command), is_own=False)
        if status.st_mode & stat.S_IWOTH and not stat.S_ISLNK(status.st_mode):
            return Distrusted(says=_OPEN.fill(**named, command=f"chmod o-w {named['path']}"), is_own=status.st_uid == os.geteuid())
    return None


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
