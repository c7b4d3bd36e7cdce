"""Asking a job that still runs, through NCCL's RAS socket, or reading answers that somebody kept."""

from __future__ import annotations

import math
import shlex
import stat
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from unhang.errors import UnhangError
from unhang.i18n import msg
from unhang.report import screen

if TYPE_CHECKING:
    from unhang.diagnosis.ras import Told
    from unhang.model import Verdict
    from unhang.ras import Address

APART_S = 10.0
_IS = "it is HOST, HOST:PORT, or a file that holds an answer"


def judge(given: Sequence[str], *, apart_s: float | None, quiet: bool) -> Verdict:
    """The verdict on a job that is asked twice (None: `APART_S` apart, 0: once), or on answers in files. Raises UnhangError."""
    from unhang.diagnosis import ras
    from unhang.fsio import is_file
    from unhang.ras import NoHost, address

    files = [g for g in given if is_file(g)]
    if len(files) == len(given) <= 2:
        if apart_s is not None:
            raise UnhangError("--apart is for a job that is asked, not for answers in files")
        told = [_of_file(Path(g)) for g in given]
        return ras.judge(told, apart_s=_between(*told) if len(told) > 1 else None)
    for g in given:
        if g not in files and (what := _no_file(g, alone=len(given) == 1)) is not None:
            raise UnhangError(f"--ras {g}: {what}", cause=_IS)
    if len(given) > 1:
        missing = next((g for g in given if g not in files), None) if files else None
        more = f"--ras {missing}: there is no such file; " if missing is not None else "--ras: "
        raise UnhangError(f"{more}give one HOST:PORT, or one or two files that hold answers, the older first")
    apart_s = APART_S if apart_s is None else apart_s
    if not math.isfinite(apart_s):
        raise UnhangError(f"--apart {apart_s}: that is no time")
    try:
        return ras.judge(_asked(address(given[0]), apart_s, quiet=quiet), apart_s=apart_s or None)
    except NoHost as e:
        if ":" in given[0]:
            raise
        raise UnhangError(f"--ras {given[0]}: there is neither such a file nor such a host ({e})", cause=_IS) from e


def _no_file(given: str, *, alone: bool) -> str | None:
    """What is wrong with a name that is no regular file; None where it may be a host's."""
    try:
        mode = Path(given).stat().st_mode
    except (OSError, ValueError):
        return "there is no such file" if "/" in given else None
    # A host may be called like a directory here.
    if stat.S_ISDIR(mode):
        return "that is a directory, no file that holds an answer" if "/" in given or given in (".", "..") or not alone else None
    kinds = ((stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a Unix socket"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"))
    return next((f"that is {kind}, no file that holds an answer" for test, kind in kinds if test(mode)), None)


def _asked(where: Address, apart_s: float, *, quiet: bool) -> list[Told]:
    from unhang.diagnosis.ras import Told
    from unhang.ras import fetch

    told = []
    for again in (False, True) if apart_s else (False,):
        if again:
            if not quiet:
                screen.say(msg("{where} answered; asking again in {s} s, to see whether anything moves", where=str(where), s=f"{apart_s:g}"))
            time.sleep(apart_s)
        answer = fetch(where)
        told.append(Told(report=answer.report(), bytes=len(answer.data)))
    return told


def _of_file(path: Path) -> Told:
    from unhang.diagnosis.ras import Told
    from unhang.ras import load

    return Told(report=load(path), bytes=path.stat().st_size)


def _between(first: Told, second: Told) -> float | None:
    """Seconds between two answers; None where they do not tell when they were given. Raises UnhangError where the second is not the newer one."""
    older, newer = first.report, second.report
    if Path(older.source).samefile(newer.source):
        raise UnhangError(f"--ras {newer.source}: the same answer twice shows nothing", cause="two answers are compared, the older first")
    try:
        apart_s = (datetime.fromisoformat(newer.timestamp) - datetime.fromisoformat(older.timestamp)).total_seconds()
    except (ValueError, TypeError, OverflowError):
        # Not told, or one with a zone and the other without.
        return None
    if apart_s < 0:
        raise UnhangError(
            f"--ras {newer.source}: its answer ({newer.timestamp}) is older than that of {older.source} ({older.timestamp})",
            hint=f"unhang why --ras {shlex.quote(newer.source)} --ras {shlex.quote(older.source)}",
        )
    if not apart_s:
        raise UnhangError(f"--ras: both answers are of {newer.timestamp}, and so close together they show nothing")
    return apart_s
