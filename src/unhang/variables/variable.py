"""What is known of one environment variable: who reads it and how, what it does, what a value of it brings about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from unhang.model import Severity
from unhang.text import Text as Text

Parser = Literal[
    "nccl-int",
    "nccl-tuning",
    "torch-int",
    "torch-bool",
    "torch-allocator",
    "python-int",
    "hosts",
    "choice",
    "choices",
    "prefixes",
    "gpus",
    "threads",
    "float",
    "path",
    "text",
]
# Of the Chinese of what stands in the tables of variables, and of kinds.
CONTEXT = "variable"
# Who reads it. Those of `readers.tsv` are looked up there; of the others only documentation is known.
Owner = Literal[
    "nccl", "torch", "accelerate", "deepspeed", "lightning", "llamafactory", "cuda", "openmp", "ucx", "libfabric", "mpi", "system", "plugin", "nobody"
]


@dataclass(frozen=True, kw_only=True)
class Trap:
    """What a value brings about: `when` is matched against the whole value, stripped and in lower case."""

    when: str
    severity: Severity
    says: Text


@dataclass(frozen=True)
class Kind:
    """How a value is read. `least` and `most` bound a number; `choices` are compared without regard to case. `refused`: at any other torch raises
    ValueError when it starts.
    """

    parser: Parser
    least: int | None = None
    most: int | None = None
    choices: tuple[str, ...] = ()
    refused: bool = False

    def text(self) -> str:
        """The values that make sense, in one word or two."""
        if self.choices:
            return ", ".join(self.choices)
        if self.least is not None and self.most is not None:
            return f"{self.least}…{self.most}" if self.most - self.least > 1 else f"{self.least}, {self.most}"
        if self.least is not None:
            return f"≥ {self.least}"
        return _NAMES[self.parser]


_NAMES: Mapping[Parser, str] = {
    "nccl-int": "integer",
    "nccl-tuning": "list of words; ^exclude",
    "torch-int": "integer",
    "torch-bool": "0, 1",
    "torch-allocator": "key:value, separated by commas",
    "python-int": "integer",
    "hosts": "≥ 1, or MIN:MAX",
    "choice": "word",
    "choices": "list of words",
    "prefixes": "list of prefixes; =exact, ^exclude",
    "gpus": "list of indices or UUIDs; -1 or empty hides all",
    "threads": "≥ 1, or a list",
    "float": "number",
    "path": "path",
    "text": "text",
}


@dataclass(frozen=True, kw_only=True)
class Variable:
    """One entry. `default` is what holds where it is not set. `now` is the name that replaced it, `now_since` the release of its owner that has
    that name, `both` what holds where both are set and the new one does not win; `instead` is what to write where nothing reads it; `removed` names
    the release that dropped it.
    """

    name: str
    owner: Owner
    kind: Kind
    default: str = ""
    what: Text
    traps: tuple[Trap, ...] = ()
    now: str = ""
    now_since: str = ""
    both: Text | None = None
    since: str = ""
    removed: str = ""
    instead: Text | None = None
    secret: bool = False
