"""A Python module that is not there: which one, under which interpreter, and what package brings it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from unhang import data
from unhang.i18n import NOTHING, msg
from unhang.knowledge.commands import command
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.frames import Frame
    from unhang.model import Remedy

_MAX_HOSTS = 4
_MISSING = lazily(r"^No module named '?(?P<module>[A-Za-z_][\w.]{0,120})'?")
_SITE = lazily(r"^(?P<prefix>/.{1,200}?)/lib(?:64)?/python3\.\d+/site-packages/")
# What torchrun says of a process that failed.
_BINARY = lazily(r"of binary: (?P<binary>/(?:\S*/)?python[\d.]*)(?=\s|$)")


def missing(type: str, text: str) -> str | None:
    """The module that an exception says is not there, as it was asked for; None of other exceptions."""
    found = _MISSING.match(text.strip()) if type.rpartition(".")[2] in ("ModuleNotFoundError", "ImportError") else None
    return found["module"].rstrip(".") if found is not None else None


def interpreter(frames: Iterable[Frame], lines: Iterable[str] = ()) -> str | None:
    """The Python that raised: as a launcher names it in one of the lines, or that of the one environment whose packages are on the stack."""
    if (named := next((m["binary"] for line in lines if (m := _BINARY.search(line))), None)) is not None:
        return named
    prefixes = {m["prefix"] for f in frames if (m := _SITE.match(f.file)) and not m["prefix"].endswith("/.local")}
    return f"{prefixes.pop()}/bin/python" if len(prefixes) == 1 else None


def named(remedy: Remedy, module: str, *, python: str | None, who: str, hosts: Sequence[str]) -> Remedy:
    """The remedy with what is missing, who lacks it, and where. `who` is "rank 3" or "a process"."""
    top = module.partition(".")[0]
    package = data.table("knowledge/packages")["packages"].get(top)
    at = msg(" on {hosts}", hosts=", ".join(hosts[:_MAX_HOSTS])) if hosts else NOTHING
    at += msg(" and {n} more", n=len(hosts) - _MAX_HOSTS) if len(hosts) > _MAX_HOSTS else NOTHING
    under = msg(" under {python}", python=python) if python is not None else NOTHING
    run = python if command("{python:program}", python=python) else "python"
    if top != module:
        # The package may be there, in a release without that part.
        says = msg("{who}{at} found no {module}{under}: {top} is missing there, or its release has no such part; compare it with the other hosts'.")
    else:
        says = msg(
            "{who}{at} found no module {module}{under}: install it there, or start with the environment that has it; a module of your own has to be "
            "on PYTHONPATH."
        )
    install = command("{python:program} -m pip install {package:name}", python=run, package=package)
    return replace(
        remedy,
        says=says.fill(who=who, at=at, module=module, under=under, top=top),
        command=install if package is not None and top == module else command("{python:program} -m pip list", python=run),
        verify=command("{python:program} -c 'import {module:name}'", python=run, module=module),
    )
