"""Values as they are typed. Each parser raises ValueError with the forms that it takes."""

from __future__ import annotations

import contextlib
import re

from unhang.settings.setting import Parse, Value

_ON = ("on", "true", "yes", "1")
_OFF = ("off", "false", "no", "0")
_SIZE = re.compile(r"\s*(\d{1,12}(?:\.\d{1,3})?)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE | re.ASCII)
_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
# torch keeps timeouts in milliseconds of 64 bits; more than this is no timeout any more.
_LONGEST_S = 30 * 86400
# NCCL reads 64 bits and keeps them in an int (ncclComm.buffSizes).
_LARGEST_BYTES = 2**31 - 1
_NAME = r"[A-Za-z0-9_.@-]+"


def parser(written: str) -> Parse:
    """The parser as the table of settings names it, with what it takes: "whole 1 31"."""
    name, *takes = written.split()
    if name == "whole":
        return whole(*map(int, takes))
    if name == "one-of":
        return one_of(*takes)
    if name == "tuned":
        return _tuned(*takes)
    return {"adapters": adapters, "duration": duration, "names": names, "size": size, "switch": switch}[name]


def switch(text: str) -> Value:
    word = text.strip().lower()
    if word in _ON or word in _OFF:
        return word in _ON
    raise ValueError("it is on or off")


def whole(least: int, most: int | None = None) -> Parse:
    def parse(text: str) -> Value:
        if not re.fullmatch(r"\s*[+-]?\d{1,12}\s*", text, re.ASCII):
            raise ValueError(f"it is a whole number{_span(least, most)}")
        number = int(text)
        if number < least or (most is not None and number > most):
            raise ValueError(f"it is a whole number{_span(least, most)}")
        return number

    return parse


def _span(least: int, most: int | None) -> str:
    return f", {least} or more" if most is None else f" from {least} to {most}"


def one_of(*words: str) -> Parse:
    def parse(text: str) -> Value:
        word = text.strip().lower()
        if word not in words:
            raise ValueError(f"it is one of {', '.join(words)}")
        return word

    return parse


def size(text: str) -> Value:
    """Bytes: 8388608, 8M, 8MiB."""
    with contextlib.suppress(ValueError):
        if (told := parse_size(text)) <= _LARGEST_BYTES:
            return told
    raise ValueError("it is a number of bytes below 2G, such as 8388608 or 8M")


def parse_size(text: str) -> int:
    """Bytes of "8", "64k", "1.5 GiB", always in powers of 1024. Raises ValueError for what is no size, or none at all."""
    found = _SIZE.fullmatch(text)
    count = 0 if found is None else int(float(found[1]) * 1024 ** " kmgt".index(found[2].lower() or " "))
    if count < 1:
        raise ValueError(text)
    return count


def duration(text: str) -> Value:
    """Seconds, whole: 1800, 90s, 30m, 2h."""
    # Names of variables that take it want whole numbers; a part of a second is no shorter wait.
    return int(-(-seconds(text) // 1))


def seconds(text: str, least_s: float = 1) -> float:
    """The same with parts of a second."""
    found = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,6})?)\s*(s|m|min|h|d)?\s*", text.lower(), re.ASCII)
    told = float(found[1]) * _SECONDS[found[2] or ""] if found is not None else 0.0
    if not least_s <= told <= _LONGEST_S:
        raise ValueError(f"it is a time from {least_s:g} second{'' if least_s == 1 else 's'} to 30 days, such as 1800, 30m or 2h")
    return told


def names(text: str) -> Value:
    """Names of interfaces: eth0 or eth0,eth1. What begins with = means the same."""
    text = text.strip().removeprefix("=")
    if not re.fullmatch(rf"{_NAME}(,{_NAME})*", text, re.ASCII):
        raise ValueError("it is the name of an interface, or several with commas between them: eth0,eth1")
    return text


def adapters(text: str) -> Value:
    """Names of adapters with or without a port: mlx5_0,mlx5_1:1; ^mlx5_2 is all but that one."""
    text = text.strip().removeprefix("=")
    if not re.fullmatch(rf"\^?=?{_NAME}(:\d+)?(,{_NAME}(:\d+)?)*", text, re.ASCII):
        raise ValueError("it is the name of an adapter, or several with commas between them: mlx5_0,mlx5_1; ^mlx5_2 leaves one out")
    return text


def _tuned(variable: str) -> Parse:
    from unhang.variables.known import entries
    from unhang.variables.value_parsers import wrong_for_tuning

    def parse(text: str) -> Value:
        found = wrong_for_tuning(text.strip(), entries()[variable].kind.choices)
        if not text.strip() or found is not None:
            shown = ", ".join(entries()[variable].kind.choices)
            raise ValueError(f"it is one or more of {shown}, with commas between them; ^ in front leaves them out")
        return text.strip()

    return parse
