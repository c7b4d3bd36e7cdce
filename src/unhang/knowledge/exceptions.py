"""What to do about the exceptions that trainings raise most (the table `exceptions.toml`, a section for each kind), and about a missing module."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import takewhile

from unhang import data
from unhang.frames import Frame
from unhang.i18n import NOTHING, msg
from unhang.knowledge.commands import command
from unhang.model import Remedy
from unhang.patterns import lazily
from unhang.user_files import is_user_file

ID = "for-this-exception"
# Of the text of an exception, which may hold a whole configuration.
_MOST_CHARS = 4000
# What called behind the user's own lines, by its files: a loader starts processes, and a checkpoint meets in collectives.
CALLERS = {
    "checkpoint": lazily(r"torch/(?:serialization|distributed/checkpoint/\w+)\.py$"),
    "loader": lazily(r"torch/utils/data/"),
    "collective": lazily(r"torch/distributed/distributed_c10d\.py$"),
    "start": lazily(r"torch/multiprocessing/spawn\.py$|multiprocessing/(?:process|context|popen_\w+)\.py$"),
}

_MAX_HOSTS = 4
_MISSING = lazily(r"^No module named '?(?P<module>[A-Za-z_][\w.]{0,120})'?")
_SITE = lazily(r"^(?P<prefix>/.{1,200}?)/lib(?:64)?/python3\.\d+/site-packages/")
# What torchrun says of a process that failed.
_BINARY = lazily(r"of binary: (?P<binary>/(?:\S*/)?python[\d.]*)(?=\s|$)")


def remedy(type: str, text: str, frames: Sequence[Frame] = ()) -> Remedy | None:
    """For an exception of this type with this text, raised in these frames; None where the table has none."""
    name, text = type.rpartition(".")[2], text[:_MOST_CHARS]
    inner = [f.file for f in takewhile(lambda f: not is_user_file(f.file), reversed(frames))]
    caller = next((caller for caller, files in CALLERS.items() if any(files.search(file) for file in inner)), "")
    for known in data.table("knowledge/exceptions")["exceptions"]:
        kind, _, called_by = known.get("of", "").partition("@")
        # To compile every pattern would take longer than all the rest.
        if kind not in ("", name) or called_by not in ("", caller) or not any(needle in text for needle in known.get("needles", ("",))):
            continue
        if (found := re.search(known.get("pattern", ""), text)) is not None:
            groups = {k: v or "" for k, v in found.groupdict().items()}
            says = msg(known["says"])
            for name, value in groups.items():
                says = says.edited(rf"\{{{name}\}}", value) if len(name) == 1 else says
            return Remedy(id=ID, says=says, command=command(known["command"], **groups) if "command" in known else None)
    return None


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


def install_remedy(known: Remedy, module: str, *, python: str | None, who: str, hosts: Sequence[str]) -> Remedy:
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
    by_pip = command("{python:program} -m pip install {package:name}", python=run, package=package)
    return replace(
        known,
        says=says.fill(who=who, at=at, module=module, under=under, top=top),
        command=by_pip if package is not None and top == module else command("{python:program} -m pip list", python=run),
        verify=command("{python:program} -c 'import {module:name}'", python=run, module=module),
    )
