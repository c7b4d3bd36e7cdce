"""Whether an installed release reads a variable, by the table that `unhang vars` decides with, and the reason where it does not."""

from __future__ import annotations

from collections.abc import Iterable

from unhang.settings.setting import Installed, Spelled
from unhang.text import COMMA, Text, joined
from unhang.variables.examine import nothing_to_scan
from unhang.variables.readers import Reader, release, table

NO_NCCL = Text("this torch is built without NCCL, and nothing else reads it", "这个 torch 不含 NCCL，没有别的程序读取它")
NO_GPU = Text("there is no GPU here", "这里没有 GPU")

_GLOO_OF = "Gloo of "
_THE_SCRIPT = "the script "

# From this release on `llamafactory-cli train FILE.yaml key=value` takes what comes behind the file.
_OVERRIDES = (0, 9, 2)


def no_torch(installed: Installed) -> Text:
    if not installed.python:
        return Text("no torch is installed here", "这里没有安装 torch")
    return Text(f"{installed.python} has no torch", f"{installed.python} 中没有 torch")


def library(installed: Installed, name: str) -> tuple[str, str] | None:
    """A library as it is called in words, and its release ("" where that is not known); None where it is not installed."""
    if name == "nccl":
        return None if installed.nccl is None else ("NCCL", ".".join(map(str, installed.nccl)))
    if name == "torch":
        # The table wants three numbers.
        return None if installed.torch is None else ("torch", "{}.{}.0".format(*installed.torch))
    return (name, installed.packages[name]) if name in installed.packages else None


def said(installed: Installed, name: str) -> str:
    """ "NCCL 2.27.5", "torch 2.13"."""
    found = library(installed, name)
    if found is None:
        return name
    if installed.is_assumed:
        return found[0]
    version = "{}.{}".format(*installed.torch) if name == "torch" and installed.torch is not None else found[1]
    return f"{found[0]} {version}".strip()


def reader(read_by: str) -> Text:
    """Who reads a setting (`Spelled.read_by`), in both languages: "unhang's hook, torchrun"."""
    return joined(map(_reader, read_by.split(", ")), COMMA)


def _reader(one: str) -> Text:
    if one.startswith(_GLOO_OF):
        return Text(one, f"{one.removeprefix(_GLOO_OF)} 的 Gloo")
    if one.startswith(_THE_SCRIPT):
        return Text(one, f"脚本（{one.removeprefix(_THE_SCRIPT)[1:-1]}）")
    return Text(one, {"unhang's hook": "unhang 的钩子", "the CUDA runtime": "CUDA 运行时"}.get(one, one))


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
        return Text(f"{here} does not read {variable}", f"{here} 不读取 {variable}")
    known = f"{span[0]} to {span[1]}" if span[1] else f"{span[0]} and later"
    known_zh = f"{span[0]} 到 {span[1]}" if span[1] else f"{span[0]} 及更新版本"
    return Text(
        f"{here} does not read {variable}; of the releases that were looked at, {known} do",
        f"{here} 不读取 {variable}；查过的版本中 {known_zh} 才读取",
    )


def by_variable(installed: Installed, name: str, variable: str, text: str) -> Spelled | Text:
    """A variable of that library, or why nothing reads it here."""
    if not reads(installed, name, variable):
        return refusal(installed, name, variable)
    return Spelled(env={variable: text}, read_by=said(installed, name))


def first(installed: Installed, name: str, variables: Iterable[str]) -> str | None:
    """The first of several names that is read here, the newest name given first."""
    return next((v for v in variables if reads(installed, name, v)), None)


def takes_overrides(installed: Installed, launcher: str) -> bool:
    """Whether fields of LLaMA-Factory can be given behind its file."""
    return launcher == "llamafactory" and release(installed.packages.get("llamafactory", "0")) >= _OVERRIDES
