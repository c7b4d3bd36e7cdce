"""Times as logs write them: with a year or without, with a zone or without, or counted from the start of the machine.

Most writers print naive local time, so a stamp is comparable with the others of its host only; across hosts an offset has to be estimated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from functools import lru_cache
from typing import Literal

from unhang.model import frozen

# glog, syslog and vLLM print no year; until `resolve` they stand in this one, a leap year so that 29 February exists.
NO_YEAR = 2000
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_DAY_S = 86_400
_NO_YEAR_S = (date(NO_YEAR, 1, 1).toordinal() - _EPOCH_DAY) * _DAY_S
_MARCH_S = 60 * _DAY_S
_YEARS = (1971, 9998)
_HALF_YEAR_S = 183 * _DAY_S
# A file's time is UTC, its stamps are local: up to 14 hours ahead of it.
_AHEAD_S = 14 * 3_600
# The year 2106, the last of 32 bits: what is larger counts milliseconds, or something else.
_LATEST_UNIX_S = 2**32


@frozen
class Stamp:
    """A time in a log.

    `seconds` counts from 1970 as if the printed time were UTC; `offset_s` is its zone, east positive, None where none was printed. Without
    `has_year` it lies in NO_YEAR. On the "boot" clock it counts from the start of the machine.
    """

    seconds: float
    has_year: bool = True
    offset_s: int | None = None
    clock: Literal["wall", "boot"] = "wall"


def wall(year: str | int | None, month: str | int, day: str | int, clock: str, fraction: str | None = None, zone: str | None = None) -> Stamp | None:
    """A stamp from printed fields, `clock` as HH:MM:SS; None where the calendar has no such day."""
    days = _days(NO_YEAR if year is None else int(year), int(month), int(day))
    if days is None:
        return None
    seconds: float = days * _DAY_S + int(clock[:2]) * 3_600 + int(clock[3:5]) * 60 + int(clock[6:8])
    if fraction:
        seconds += int(fraction) / 10 ** len(fraction)
    return Stamp(
        seconds=seconds,
        has_year=year is not None,
        offset_s=None if zone is None else _offset_s(zone),
    )


def glog(digits: str, clock: str, fraction: str | None) -> Stamp | None:
    """`1103` is 3 November; `321`, as torch's C++ prints it, is 21 March: its month is not padded, its day is. glog may print a year before."""
    year = int(digits[:4]) if len(digits) == 8 else None
    return wall(year, digits[-4:-2], digits[-2:], clock, fraction)


def counted(seconds: str) -> Stamp | None:
    """`88123.41` since the machine started; from 10^9 on it is Unix time, as UCX prints it. None where it is too much for either."""
    value = float(seconds)
    if value > _LATEST_UNIX_S:
        return None
    if value >= 1e9:
        return Stamp(seconds=value, offset_s=0)
    return Stamp(seconds=value, has_year=False, clock="boot")


def resolve(stamps: Sequence[Stamp | None], *, latest_s: float | None = None) -> list[Stamp | None]:
    """The stamps of one file, in its order, with years.

    Years come from the last stamp before (else the first after) that has one; where none has, from `latest_s`, the epoch time that no line is later
    than (the file's mtime), and a step back by more than half a year is New Year. What nothing gives a year stays as it is; so does the boot clock.
    """
    if any(s is not None and s.has_year for s in stamps):
        result: list[Stamp | None] = []
        anchor = next(s for s in stamps if s is not None and s.has_year)
        for stamp in stamps:
            if stamp is None or stamp.clock == "boot":
                result.append(stamp)
            elif stamp.has_year:
                anchor = stamp
                result.append(stamp)
            else:
                year, seconds = _year(anchor.seconds), anchor.seconds
                result.append(min((_in_year(stamp, y) for y in (year - 1, year, year + 1)), key=lambda s: abs(s.seconds - seconds)))
        return result
    if latest_s is None:
        return list(stamps)
    turns, turn, last = [], 0, None
    for stamp in stamps:
        if stamp is not None and stamp.clock == "wall":
            if last is not None and abs(step := stamp.seconds - last.seconds) > _HALF_YEAR_S:
                turn += 1 if step < 0 else -1
            last = stamp
        turns.append(turn)
    if last is None:
        return list(stamps)
    year = _latest_year(last, latest_s)
    return [
        None if s is None else _in_year(s, year + t - turn) if s.clock == "wall" else s  # `turn` is the one of the last stamp
        for s, t in zip(stamps, turns, strict=True)
    ]


def _latest_year(stamp: Stamp, latest_s: float) -> int:
    year = _year(latest_s + _AHEAD_S)
    is_leap_day = _MARCH_S - _DAY_S <= stamp.seconds - _NO_YEAR_S < _MARCH_S
    while (is_leap_day and not _has_leap_day(year)) or _in_year(stamp, year).seconds > latest_s + _AHEAD_S:
        year -= 1
        if year <= _YEARS[0]:
            break
    return year


def _in_year(stamp: Stamp, year: int) -> Stamp:
    """29 February is 1 March in a year that has none."""
    year = min(max(year, _YEARS[0]), _YEARS[1])
    seconds = stamp.seconds - _NO_YEAR_S + _days_from_epoch(year) * _DAY_S
    if not _has_leap_day(year) and stamp.seconds - _NO_YEAR_S >= _MARCH_S:
        seconds -= _DAY_S
    return replace(stamp, seconds=seconds, has_year=True)


def _year(seconds: float) -> int:
    # Archives hold times of modification that no calendar has.
    days = _EPOCH_DAY + min(max(seconds, _days_from_epoch(_YEARS[0]) * _DAY_S), _days_from_epoch(_YEARS[1]) * _DAY_S) // _DAY_S
    return date.fromordinal(int(days)).year


def _days_from_epoch(year: int) -> int:
    return date(year, 1, 1).toordinal() - _EPOCH_DAY


def _offset_s(zone: str) -> int:
    if zone[0] not in "+-":
        return 0
    offset_s = int(zone[1:3]) * 3_600 + int(zone[-2:]) * 60
    return -offset_s if zone[0] == "-" else offset_s


@lru_cache(maxsize=1024)
def _days(year: int, month: int, day: int) -> int | None:
    try:
        return date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError:
        return None


def _has_leap_day(year: int) -> bool:
    # As calendar.isleap, whose import takes a thousandth of a second.
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
