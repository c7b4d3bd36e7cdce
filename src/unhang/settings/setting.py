"""One setting, its values as they are typed, and how a choice of several becomes variables and arguments for what is installed.

A setting that nothing would read is refused, with the reason. It is never passed over.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from decimal import Decimal
from math import isfinite
from typing import Literal

from unhang.i18n import COMMA, NOTHING, joined, msg
from unhang.model import frozen
from unhang.text import Text

_ON = ("on", "true", "yes", "1")
_OFF = ("off", "false", "no", "0")
_SIZE = re.compile(r"\s*(\d{1,12}(?:\.\d{1,3})?)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE | re.ASCII)
_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
# torch keeps timeouts in milliseconds of 64 bits; more than this is no timeout any more.
_LONGEST_S = 30 * 86400
# NCCL reads 64 bits and keeps them in an int (ncclComm.buffSizes).
_LARGEST_BYTES = 2**31 - 1
_NAME = r"[A-Za-z0-9_.@-]+"

Value = bool | int | float | str
Choice = Mapping[str, Value]
Layer = Literal["communication", "timeouts", "run-time"]


@frozen
class Installed:
    """What a training would load. `nccl` is None where torch has no use for NCCL, () where it has one of a release that is not known.

    `packages` are names of accelerate, deepspeed, lightning, transformers, llamafactory and ray with their versions; `gpus` is how many there are;
    `python` is who was asked, "" where nobody was; `is_assumed`: what the training's own Python holds is not known, and this is of today.
    """

    torch: tuple[int, int] | None
    nccl: tuple[int, ...] | None
    packages: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0
    python: str = ""
    is_assumed: bool = False


@frozen
class Spelled:
    """A setting as it is passed on. `arguments` go behind the command, `options` are the launcher's own and go in front of the script.

    `read_by` names who reads it, with the release; `readers` who reads which variable, option or argument, where they are not one.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    read_by: Text = NOTHING
    readers: Mapping[str, Text] = field(default_factory=dict)

    @classmethod
    def by_several(
        cls, readers: Mapping[str, Text], *, env: Mapping[str, str], options: tuple[tuple[str, str], ...] = (), arguments: tuple[str, ...] = ()
    ) -> Spelled:
        """`readers` has every name: of a variable, an option, or what stands in front of an argument's =."""
        return cls(env=env, options=options, arguments=arguments, read_by=joined(dict.fromkeys(readers.values()), COMMA), readers=readers)

    def without(self, env: Mapping[str, str], options: tuple[tuple[str, str], ...], arguments: tuple[str, ...]) -> Spelled:
        """What is left of it where others' were kept, and who reads that."""
        left = {*env, *(name for name, _ in options), *(argument.partition("=")[0] for argument in arguments)}
        readers = {name: who for name, who in self.readers.items() if name in left}
        read_by = joined(dict.fromkeys(readers.values()), COMMA) if self.readers else self.read_by
        return Spelled(env=env, options=options, arguments=arguments, read_by=read_by, readers=readers)


@frozen
class Refused:
    """A setting that would have no effect here, or a wrong one."""

    key: str
    value: Value
    why: str


@frozen
class Applied:
    """A whole choice as it is passed on. `read_by` has the reader of each key that was not refused, `spelled` how each was put."""

    env: Mapping[str, str]
    arguments: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    refused: tuple[Refused, ...]
    read_by: Mapping[str, Text]
    spelled: Mapping[str, Spelled] = field(default_factory=dict)


def together(spelled: Mapping[str, Spelled], refused: Iterable[Refused] = ()) -> Applied:
    """Settings that were put into words one by one, as one."""
    env: dict[str, str] = {}
    for one in spelled.values():
        env |= one.env
    return Applied(
        env=env,
        arguments=tuple(a for one in spelled.values() for a in one.arguments),
        options=tuple(o for one in spelled.values() for o in one.options),
        refused=tuple(refused),
        read_by={key: one.read_by for key, one in spelled.items()},
        spelled=spelled,
    )


Parse = Callable[[str], Value]
Spell = Callable[[Value, Installed, str], Spelled | Text]


@frozen
class Setting:
    """`parse` raises ValueError with the valid forms. `forms` are those forms in a few words, `example` is one of them.
    `cost` is what a value other than the default costs. `spelling` answers with the reason where nothing would read it; what does then what was meant
    is a flag of the script's own as a rule called `flag`, or `instead`.
    """

    key: str
    title: Text
    cost: Text
    layer: Layer
    forms: Text
    example: str
    parse: Parse
    spelling: Spell
    flag: str = ""
    instead: str = ""

    def spell(self, value: Value, installed: Installed, launcher: str = "torchrun") -> Spelled | Refused:
        """As the launcher (torchrun, accelerate, deepspeed, llamafactory, python) and what is installed read it."""
        spelled = self.spelling(value, installed, launcher)
        if isinstance(spelled, Text):
            return Refused(key=self.key, value=value, why=spelled)
        return spelled


# A loader without workers has neither.
_OF_WORKERS = ("persistent-workers", "prefetch")
_OF_THE_BACKEND = ("detail",)


def applied(
    choice: Choice,
    installed: Installed,
    *,
    launcher: str = "torchrun",
    arguments: Mapping[str, str] | None = None,
) -> Applied:
    """Put a choice into words. `arguments` maps keys to the script's own flags, see `flag`. Raises KeyError for a key that does not exist."""
    from unhang.settings.catalogue import SETTINGS

    spelled: dict[str, Spelled] = {}
    refused: list[Refused] = []
    for key, value in choice.items():
        one = _spelled(SETTINGS[key], value, choice, installed, launcher, arguments or {})
        if isinstance(one, Refused):
            refused.append(one)
        else:
            spelled[key] = one
    return together(spelled, refused)


def _spelled(setting: Setting, value: Value, choice: Choice, installed: Installed, launcher: str, arguments: Mapping[str, str]) -> Spelled | Refused:
    key = setting.key
    if choice.get("backend") == "gloo":
        # What is spelt otherwise where NCCL serves the groups: it serves none.
        installed = replace(installed, nccl=None) if key in _OF_THE_BACKEND else installed
    if key in _OF_WORKERS and value and choice.get("loader-workers") == 0:
        return Refused(
            key=key,
            value=value,
            why=msg("{key} needs workers, and loader-workers is 0", key=key),
        )
    if key not in arguments:
        return setting.spell(value, installed, launcher)
    return Spelled(arguments=flag(arguments[key], value), read_by=msg("the script ({function})", function=arguments[key]))


def flag(template: str, value: Value) -> tuple[str, ...]:
    """The script's own flag with a value: "--batch" takes it as the next word, "batch=" and "--batch=" as a part of it, {value} wherever it stands.

    "--pin|--no-pin" is for on and off; one side may be empty.
    """
    text = worded(value)
    if "|" in template and isinstance(value, bool):
        on, _, off = template.partition("|")
        return tuple(shlex.split(on if value else off))
    if "{value}" in template:
        return tuple(word.replace("{value}", text) for word in shlex.split(template))
    words = shlex.split(template)
    return (*words[:-1], words[-1] + text) if words and words[-1].endswith("=") else (*words, text)


def typed(value: Value) -> str:
    """A value as --set takes it."""
    return ("on" if value else "off") if isinstance(value, bool) else worded(value)


def worded(value: Value) -> str:
    """A value as most programs take it."""
    if isinstance(value, float) and isfinite(value):
        # Programs that take 1000000 do not take 1e+06.
        digits = f"{Decimal(repr(value)):f}"
        return digits.rstrip("0").rstrip(".") if "." in digits else digits
    return str(value).lower() if isinstance(value, bool) else str(value)


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
