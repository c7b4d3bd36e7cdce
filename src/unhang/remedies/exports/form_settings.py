"""What a form is given: who takes part, and the settings.

Each setting becomes the form's own key, a variable, an option of the launcher, `unhang run --set`, or a refusal with its reason.
Settings that only unhang's hook can apply (the backend, timeouts of all groups, loaders) are not exported as if a bare launcher read them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import field

from unhang.errors import UnhangError
from unhang.i18n import Text, msg
from unhang.model import frozen
from unhang.settings.catalogue import OF_THE_SCRIPT, SETTINGS
from unhang.settings.setting import Applied, Choice, Installed, Refused, Value, applied, typed, worded

_OF_HOOK = "UNHANG_"
# DataLoader raises ValueError for these where it has no workers, which is its default.
_OF_WORKERS = ("persistent-workers", "prefetch")
# A file is mostly for another machine: releases of today, as the form's own header says.
TODAY = Installed(
    torch=(2, 13),
    nccl=(2, 27, 5),
    packages={
        "accelerate": "1.15.0",
        "deepspeed": "0.19.8",
        "lightning": "2.6.6",
        "transformers": "5.23.0",
        "llamafactory": "0.9.5",
        "ray": "2.60.0",
    },
    gpus=8,
)
PORT = 29500
# What Kubernetes takes (RFC 1123) is taken by all the others.
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]+")


@frozen
class Layout:
    """`processes` are those of each host; `given_port` is None where nobody has named one.

    `command` is a script (.py), or -m and a module, with its arguments; () for the form's own example.
    Raises UnhangError for what no launcher can start.
    """

    nodes: int = 1
    processes: int = 2
    address: str = ""
    given_port: int | None = None
    command: tuple[str, ...] = ()
    name: str = "training"
    image: str = "pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime"
    gpus: bool = True

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.processes < 1:
            raise UnhangError(f"{self.nodes} hosts with {self.processes} processes each: both are at least 1")
        if not 1 <= self.port <= 65535:
            raise UnhangError(f"port {self.port}: it is one from 1 to 65535", hint=f"--master HOST:{PORT}")
        if self.address and not _HOST.fullmatch(self.address):
            raise UnhangError(f"{self.address!r} is no name or address of a host", hint=f"--master node0:{PORT}")
        if not _NAME.fullmatch(self.name):
            raise UnhangError(f"name {self.name!r}: small letters, digits and -, a letter first, at most 63", hint="--name training")
        if self.image != self.image.strip() or not self.image.isprintable() or not self.image or " " in self.image:
            raise UnhangError(f"{self.image!r} is no name of an image", hint="--image pytorch/pytorch:latest")
        if any("\0" in word for word in self.command):
            raise UnhangError("a word of the command holds a NUL, which no program can be given")
        # Bytes that are no UTF-8 come from the command line as halves of surrogates.
        if wrong := next((word for word in self.command if not _is_text(word)), None):
            raise UnhangError(
                f"{wrong!r} is no UTF-8, and the file would be", hint="unhang export FORM -- train.py: name it by another path, or a link"
            )

    @property
    def port(self) -> int:
        return PORT if self.given_port is None else self.given_port

    @property
    def world(self) -> int:
        return self.nodes * self.processes


def _is_text(word: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in word)


def master(text: str) -> tuple[str, int | None]:
    """HOST, HOST:PORT or [IPv6]:PORT; None for a port that is not there. Raises UnhangError."""
    found = re.fullmatch(r"(?:\[(?P<six>[^\]]+)\]|(?P<host>[^:]+|[^:]*:[^:]*:.*?))(?::(?P<port>\d{1,5}))?", text)
    if found is None:
        raise UnhangError(f"--master {text}: that is no host", hint=f"--master node0:{PORT}")
    if found["host"] and found["host"].count(":") > 1:
        return text, None
    return found["six"] or found["host"], int(found["port"]) if found["port"] else None


@frozen
class Carried:
    """`native` are settings that the form has keys for, `sets` those that `unhang run --set` is given."""

    env: Mapping[str, str] = field(default_factory=dict)
    native: Choice = field(default_factory=dict)
    sets: tuple[str, ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()
    refused: tuple[Refused, ...] = ()
    why: Mapping[str, str] = field(default_factory=dict)


def carried(
    choice: Choice,
    installed: Installed,
    *,
    launcher: str,
    native: Collection[str] = (),
    arguments: Mapping[str, str] | None = None,
    with_unhang: bool | None = None,
    runs_unhang: bool = True,
    suggested: Collection[str] = (),
) -> Carried:
    """`with_unhang`: None where it starts through unhang only for what nothing else can apply, False never. `why` has the key of each variable.

    `runs_unhang`: whether the form has a place for `unhang run`. `suggested`: keys that nobody but a preset of ours has chosen.
    """
    left = [Refused(key=key, value=choice[key], why=_of_the_script(key, choice[key])) for key in OF_THE_SCRIPT if key in choice and key in suggested]
    choice = {key: value for key, value in choice.items() if key not in {r.key for r in left}}
    whole: Applied = applied(choice, installed, launcher=launcher, arguments=arguments or {})
    idle = [
        Refused(key=key, value=choice[key], why=msg("{key} needs workers, and loader-workers is 0 or not chosen", key=key))
        for key in _OF_WORKERS
        if key in native and choice.get(key) and not choice.get("loader-workers")
    ]
    own = {key: value for key, value in choice.items() if key in native and key not in {r.key for r in idle}}
    refused = [*left, *(r for r in whole.refused if r.key not in native), *idle]
    env: dict[str, str] = {}
    why: dict[str, str] = {}
    sets: list[str] = []
    options: list[tuple[str, str]] = []
    words: list[str] = []
    for key, one in whole.spelled.items():
        by_hook = any(name.startswith(_OF_HOOK) for name in one.env)
        plain = {name: value for name, value in one.env.items() if not name.startswith(_OF_HOOK)}
        if by_hook and key not in native:
            if with_unhang is False or not runs_unhang:
                refused.append(Refused(key=key, value=choice[key], why=_only_by_hook(runs_unhang)))
            else:
                sets.append(f"{key}={typed(choice[key])}")
            # unhang run adds what goes with it.
            continue
        if key in native and key not in own:
            continue
        env |= plain
        why |= dict.fromkeys(plain, key)
        if key not in own:
            options += one.options
            words += one.arguments
    return Carried(env=env, native=own, sets=tuple(sets), options=tuple(options), arguments=tuple(words), refused=tuple(refused), why=why)


def title(key: str) -> str:
    return SETTINGS[key].title


def _only_by_hook(runs_unhang: bool) -> Text:
    but = msg("--without-unhang leaves that out") if runs_unhang else msg("this form does not start through unhang run")
    return msg("nothing but unhang's hook applies it from outside a script, and {but}", but=but)


def _of_the_script(key: str, value: Value) -> Text:
    return msg("what fits is a matter of the model; the preset's is a starting point, which --set {key}={value} writes", key=key, value=worded(value))
