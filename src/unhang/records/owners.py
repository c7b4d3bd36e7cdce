"""Which configuration, caches and plugins are trusted: those that belong to the user or root and that not everyone can write to."""

from __future__ import annotations

import os
import pwd
import shlex
import stat

from unhang.text import Text

# Paths, separated as in PATH, that are trusted whoever owns them: containers and NFS map owners.
TRUST = "UNHANG_TRUST"
_OTHER = Text(
    "ignored {path}: it belongs to {owner}; run {command}, or set {trust}={path}",
    "已忽略 {path}：它属于 {owner}；请运行 {command}，或设置 {trust}={path}",
)
_OPEN = Text("ignored {path}: anyone can write to it; run {command}", "已忽略 {path}：任何人都可以写入；请运行 {command}")


def check_owner(path: str | os.PathLike[str]) -> Text | None:
    """Return None if a file or directory can be trusted, else the reason and the command that mends it. A symlink is checked with its target.

    Raises OSError.
    """
    path = os.fspath(path)
    if os.path.realpath(path) in map(os.path.realpath, filter(None, os.environ.get(TRUST, "").split(os.pathsep))):
        return None
    # Under sudo the caller is trusted, who may do anything as root. Rules of git's safe.directory.
    trusted = {0, os.geteuid(), *([int(sudo)] if os.geteuid() == 0 and (sudo := os.environ.get("SUDO_UID", "")).isdecimal() else [])}
    for status in (os.lstat(path), os.stat(path)):  # noqa: PTH116
        named = {"path": shlex.quote(path), "trust": TRUST}
        if status.st_uid not in trusted:
            command = f"{'sudo ' if os.geteuid() else ''}chown {os.geteuid()} {named['path']}"
            return _OTHER.fill(**named, owner=_name(status.st_uid), command=command)
        if status.st_mode & stat.S_IWOTH and not stat.S_ISLNK(status.st_mode):
            return _OPEN.fill(**named, command=f"chmod o-w {named['path']}")
    return None


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
