"""Asking a job that still runs, through NCCL's RAS socket, or reading answers that somebody kept."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from unhang.diagnosis.ras import Told
    from unhang.model import Verdict
    from unhang.records.ras import Address, Report


def judge(given: Sequence[str], *, apart_s: float, quiet: bool) -> Verdict:
    """The verdict on a job that is asked twice, or on answers in files. Raises UnhangError."""
    from unhang.diagnosis import ras
    from unhang.errors import UnhangError
    from unhang.records import named
    from unhang.records.ras import address

    if all(named.is_file(g) for g in given) and len(given) <= 2:
        told = [_of_file(Path(g)) for g in given]
        return ras.judge(told, apart_s=_between(told[0].report, told[-1].report) if len(told) > 1 else None)
    if len(given) > 1:
        raise UnhangError("--ras: give one HOST:PORT, or one or two files that hold answers, the older first")
    if "/" in given[0]:
        raise UnhangError(f"--ras {given[0]}: there is no such file")
    if not math.isfinite(apart_s):
        raise UnhangError(f"--apart {apart_s}: that is no time")
    return ras.judge(_asked(address(given[0]), apart_s, quiet=quiet), apart_s=apart_s or None)


def _asked(where: Address, apart_s: float, *, quiet: bool) -> list[Told]:
    from unhang.diagnosis.ras import Told
    from unhang.records.ras import fetch

    told = []
    for again in (False, True) if apart_s else (False,):
        if again:
            if not quiet:
                typer.echo(f"unhang: {where} answered; asking again in {apart_s:g} s, to see whether anything moves", err=True)
            time.sleep(apart_s)
        answer = fetch(where)
        told.append(Told(report=answer.report(), bytes=len(answer.data)))
    return told


def _of_file(path: Path) -> Told:
    from unhang.diagnosis.ras import Told
    from unhang.records.ras import load

    return Told(report=load(path), bytes=path.stat().st_size)


def _between(first: Report, second: Report) -> float | None:
    """Seconds between two answers; None where they do not tell when they were given."""
    with contextlib.suppress(ValueError):
        return (datetime.fromisoformat(second.timestamp) - datetime.fromisoformat(first.timestamp)).total_seconds()
    return None
