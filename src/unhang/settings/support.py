"""Whether an installed release reads a variable, by the table that `unhang vars` decides with, and the reason where it does not."""

from __future__ import annotations

from unhang.i18n import Text, msg, same
from unhang.settings.setting import Installed, Spelled
from unhang.variables.examine import nothing_to_scan
from unhang.variables.readers import Reader, release, table

NO_NCCL = msg("this torch is built without NCCL, and nothing else reads it")
NO_GPU = msg("there is no GPU here")

# From this release on `llamafactory-cli train FILE.yaml key=value` takes what comes behind the file.
_OVERRIDES = (0, 9, 2)


def no_torch(installed: Installed) -> Text:
    if not installed.python:
        return msg("no torch is installed here")
    return msg("{python} has no torch", python=installed.python)


def library(installed: Installed, name: str) -> tuple[str, str] | None:
    """A library as it is called in words, and its release ("" where that is not known); None where it is not installed."""
    if name == "nccl":
        return None if installed.nccl is None else ("NCCL", ".".join(map(str, installed.nccl)))
    if name == "torch":
        # The table wants three numbers.
        return None if installed.torch is None else ("torch", "{}.{}.0".format(*installed.torch))
    return (name, installed.packages[name]) if name in installed.packages else None


def said(installed: Installed, name: str) -> Text:
    """ "NCCL 2.27.5", "torch 2.13"."""
    found = library(installed, name)
    if found is None:
        return same(name)
    if installed.is_assumed:
        return same(found[0])
    version = "{}.{}".format(*installed.torch) if name == "torch" and installed.torch is not None else found[1]
    return same(f"{found[0]} {version}".strip())


def reads(installed: Installed, name: str, variable: str) -> bool:
    """Whether that library is here and reads it. A release that no table knows is taken to read what the newest one reads."""
    found = library(installed, name)
    if found is None:
        return False
    span = table().span(name, variable)
    in_newest = span is not None and not span[1]
    if not found[1]:
        return in_newest
    answer = table().decide(name, found[1], variable, nothing_to_scan)
    return in_newest if answer is None else isinstance(answer, Reader) and answer.answer == "reads"


def refusal(installed: Installed, name: str, variable: str) -> Text:
    """Why a variable is read by nothing here."""
    if name == "torch" and installed.torch is None:
        return no_torch(installed)
    if name == "nccl" and installed.nccl is None:
        return NO_NCCL if installed.torch is not None else no_torch(installed)
    span = table().span(name, variable)
    here = said(installed, name)
    if span is None:
        return msg("{here} does not read {variable}", here=here, variable=variable)
    known = msg("{since} to {last}", since=span[0], last=span[1]) if span[1] else msg("{since} and later", since=span[0])
    return msg(
        "{here} does not read {variable}; of the releases that were looked at, {known} do",
        here=here,
        variable=variable,
        known=known,
    )


def by_variable(installed: Installed, name: str, variable: str, text: str) -> Spelled | Text:
    """A variable of that library, or why nothing reads it here."""
    if not reads(installed, name, variable):
        return refusal(installed, name, variable)
    return Spelled(env={variable: text}, read_by=said(installed, name))


def takes_overrides(installed: Installed, launcher: str) -> bool:
    """Whether fields of LLaMA-Factory can be given behind its file."""
    return launcher == "llamafactory" and release(installed.packages.get("llamafactory", "0")) >= _OVERRIDES
