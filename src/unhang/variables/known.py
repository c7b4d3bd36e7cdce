"""What is known of each environment variable: who reads it and how, what a value brings about; and the real name that is nearest to a wrong one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal

from unhang import data
from unhang.facts import variables
from unhang.i18n import msg
from unhang.model import Severity, frozen
from unhang.text import Text as Text
from unhang.variables.readers import table

# What slips of the finger leave: so much that is alike, and so many letters more or fewer.
_LIKE = 0.87
_MOST_LONGER = 2
# Nobody else names variables so.
_OWNED = ("NCCL_", "TORCH_", "TORCHELASTIC_", "PYTORCH_", "CUDA_", "GLOO_", "ACCELERATE_", "DEEPSPEED_", "OMP_", "TOKENIZERS_")
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


@frozen
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


@frozen
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


@cache
def entries() -> Mapping[str, Variable]:
    rows = (row for name in ("nccl", "pytorch", "launchers") for row in data.table(f"variables/{name}").items())
    return {name: _variable(name, known) for first, known in rows for name in (first, *known.get("also", ()))}


def _variable(name: str, known: Mapping[str, Any]) -> Variable:
    parser, *words = known.get("kind", "text").split()
    takes: dict[str, Any] = dict(zip(("least", "most"), map(int, words), strict=False)) if parser.endswith("-int") else {"choices": tuple(words)}
    others: dict[str, Any] = {key: known[key] for key in ("owner", "default", "since", "removed", "now", "now_since", "secret") if key in known}
    others |= {key: msg(known[key], CONTEXT) for key in ("what", "both", "instead") if key in known}
    return Variable(
        name=name,
        kind=Kind(parser, **takes, refused=known.get("refused", False)),
        traps=tuple(Trap(when=t["when"], severity=t["severity"], says=msg(t["says"], CONTEXT)) for t in known.get("traps", ())),
        **others,
    )


def is_known(name: str) -> bool:
    """Whether `unhang vars` has anything to say of a variable of this name."""
    return variables.touches(name) or name in entries()


@lru_cache(4096)
def nearest(name: str) -> str | None:
    """The real name that was probably meant; None where none is near, where the name is real itself, and for names of other programs.

    A user's own program may read any name that is in no library's family. There a word that other names have is no slip: not in `MASTER_HOST`.
    """
    if name in entries() or table().ever(name) or "_" not in name or foreign(name):
        return None
    # Where both begin and end differ there are more slips.
    near = (n for n in _real() if abs(len(n) - len(name)) <= _MOST_LONGER and (n[:5] == name[:5] or n[-5:] == name[-5:]))
    of_a_family = owned(name) or variables.touches(name)
    return next(iter(difflib.get_close_matches(name, (n for n in near if of_a_family or not _other_word(name, n)), 1, _LIKE)), None)


@cache
def _real() -> frozenset[str]:
    return frozenset(n for n, v in entries().items() if v.owner != "nobody" and not v.removed) | table().names()


def owned(name: str) -> bool:
    """Whether the name begins as those of one library do."""
    return name.startswith(_OWNED)


def _other_word(name: str, real: str) -> bool:
    """Whether what differs is a word of its own: the names of variables consist of a few words, of which some are alike."""
    return any({w, f"{w}S", w.removesuffix("S")} & _words() for w in set(name.split("_")) - set(real.split("_")))


@cache
def _words() -> frozenset[str]:
    return frozenset(word for name in entries().keys() | table().names() for word in name.split("_"))


# Names that belong to programs which no list here covers: plugins, MPI, UCX. Nothing is said against those.
# Network, tuner and profiler plugins read names of their own below NCCL_, as do builds of NCCL by others, nccl-tests and inspectors.
# IBEXT, SHARP, UCX, PLUGIN_P2P: nccl-rdma-sharp-plugins (HPC-X, NVIDIA/nccl#676); SPCX: HPC-X's for Spectrum-X; FASTRAK, GPUDIRECTTCPX, SHIMNET,
# TUNER_CONFIG_PATH: Google's; TUNER, PROFILE, PROFILER, INSPECTOR: those that come with NCCL's sources; CTRAN, COLLTRACE: Meta's NCCLX.
PLUGINS = re.compile(
    r"NCCL_(?:IBEXT|SHARP|UCX|PLUGIN|SPCX|GPUDIRECTTCPX|FASTRAK|TCPX|TCPXO|SHIMNET|GIB|TUNER(?!_PLUG)|PROFILE|PROFILER(?!_PLUG)|INSPECTOR|CTRAN|COLLTRACE|TESTS"
    r"|OFI|EFA|FALCON|RDMA_SHARP|DYNAMIC|NVLSTREE_TUNER|BOOTSTRAP_UID|CROSS_NIC_PLUGIN|KEY_STORE)_\w+|OFI_NCCL_\w+|NCCL_NET_GDR_PLUGIN"
)
# MSCCL, MSCCLPP: Microsoft's, also inside RCCL; HCCL: Ascend and Habana; CCL: oneCCL; MCCL: Moore Threads, MetaX; BKCL: Kunlun.
_FOREIGN = re.compile(
    r"(?:UCX|UCC|UCCL|FI|RDMAV|OMPI_MCA|OMPI|I_MPI|MV2|SHARP|PMIX|PMI|HCCL|CCL|RCCL|MSCCL|MSCCLPP|MCCL|BKCL)_\w+|NCCL_\w+_PLUGIN_\w+"
)


def foreign(name: str) -> bool:
    """Whether a program reads it that no list here covers."""
    return PLUGINS.fullmatch(name) is not None or _FOREIGN.fullmatch(name) is not None or _of_a_build(name)


def _of_a_build(name: str) -> bool:
    """NCCL_ROOT, NCCL_VERSION: build tools, module files and images set them; they do nothing when a program runs."""
    return variables.TOUCHES.fullmatch(name) is not None and not variables.touches(name)
