"""What has to be equal on all ranks of a group, operation by operation; recorders and versions spell operations differently.

Elements are compared, never shapes: a collective moves memory. Gather and scatter have a root whose other side differs, and are made of messages on
NCCL, which may be of any size; all_to_all may be uneven on every rank, as long as what all send is what all receive.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Literal

from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.flight.entries import Call

Rule = Literal["equal", "gathered", "scattered", "rooted", "sums", "free"]

_SPELLINGS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "_allgather_base": "all_gather_into_tensor",
    "_all_gather_base": "all_gather_into_tensor",
    "allgather_into_tensor": "all_gather_into_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather_coalesced",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor_coalesced",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "gather_single": "gather",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
}
_RULES: dict[str, Rule] = {
    "all_reduce": "equal",
    "all_reduce_coalesced": "equal",
    "all_reduce_sparse": "free",
    "broadcast": "equal",
    "reduce": "equal",
    "all_gather": "gathered",
    "all_gather_into_tensor": "gathered",
    "all_gather_coalesced": "gathered",
    "all_gather_into_tensor_coalesced": "gathered",
    "reduce_scatter": "scattered",
    "reduce_scatter_tensor": "scattered",
    "reduce_scatter_tensor_coalesced": "scattered",
    "gather": "rooted",
    "scatter": "rooted",
    "all_to_all": "sums",
}
# Calls of which each rank gives a root: of reduce and gather it alone gets anything, of broadcast and scatter it alone sends.
ROOTED = ("broadcast", "reduce", "gather", "scatter")
# No rank can finish these before all have come.
_NEEDS_ALL = ("all_reduce", "all_gather", "reduce_scatter", "barrier", "all_to_all")
# Many operations of PyTorch take no more (`dim_bitset_size` in ATen/WrapDimUtilsMulti.h).
_MOST_DIMS = 64
_MOST_TENSORS = 10_000
_PEERS = lazily(r"(?:(?:send|recv)(?:AnySource)?)\s+(\d+|\?)\s*(->|<-)\s*(\d+|\?)")


def split(profiling_name: str) -> tuple[str, str]:
    """ "nccl:all_reduce" as ("nccl", "all_reduce"); hooks of the dispatcher write "c10d::allreduce_"."""
    if "::" in profiling_name:
        return "", profiling_name.rpartition("::")[2]
    backend, colon, op = profiling_name.partition(":")
    return (backend, op) if colon else ("", profiling_name)


def spelling(op: str) -> str:
    """One name for one operation."""
    if " " in op:
        return op
    plain = op.removesuffix("_") if op.endswith("_") and not op.endswith("__") else op
    return _SPELLINGS.get(plain, plain)


def peers(op: str) -> tuple[int | None, int | None] | None:
    """(source, destination) of "send 0->1" and "recv 1<-0", as ranks in the group; None for "?". None for what is no message."""
    found = _PEERS.fullmatch(op.strip())
    if found is None:
        return None
    one, other = (None if n == "?" else int(n) for n in (found[1], found[3]))
    return (one, other) if found[2] == "->" else (other, one)


def rule(op: str) -> Rule:
    """How sizes are to be compared; `op` as `spelling` has it."""
    return _RULES.get(op, "free")


def needs_all(op: str) -> bool:
    return spelling(op).startswith(_NEEDS_ALL)


def count(size: Sequence[int]) -> int:
    """How many elements a tensor of this size has. Raises ValueError, without multiplying, for a size that no tensor can have."""
    if len(size) > _MOST_DIMS or not all(isinstance(n, int) and abs(n) < 1 << 63 for n in size):
        raise ValueError(f"a tensor has at most {_MOST_DIMS} dimensions, each below 2**63")
    return prod(size)


def elements(sizes: Sequence[Sequence[int]]) -> int:
    if len(sizes) > _MOST_TENSORS:
        raise ValueError(f"a call has at most {_MOST_TENSORS:,} tensors")
    return sum(map(count, sizes))


def key(
    op: str,
    input_sizes: Sequence[Sequence[int]],
    output_sizes: Sequence[Sequence[int]],
    input_dtypes: Sequence[str],
    output_dtypes: Sequence[str],
) -> str:
    """What has to be equal, as text: "all_reduce 1024 Float"."""
    name = spelling(op)
    how = rule(name)
    dtypes = "/".join(dict.fromkeys((*input_dtypes, *output_dtypes)))
    parts = [name]
    if how == "equal":
        # Newer versions list the outputs of operations in place, older ones do not.
        parts.append(",".join(str(count(s)) for s in input_sizes))
    elif how in ("gathered", "scattered"):
        parts.append(f"{elements(input_sizes)}>{elements(output_sizes)}")
    if how != "free":
        parts.append(dtypes)
    return " ".join(p for p in parts if p)


def of(call: Call) -> str:
    """The key of a call as it was read from a dump."""
    return key(call.op, call.input_sizes, call.output_sizes, call.dtypes, ())


def differences(one: str, other: str) -> tuple[str, ...]:
    """What two keys differ in: "op" alone, or those of "shape", "dtype", "root" and "reduction" that do; "splits" of operations that tell sums."""
    if "+" in one + other or one.split(" ")[0] != other.split(" ")[0]:
        return ("op",)
    if ">" in one and rule(one.split(" ")[0]) == "sums":
        return ("splits",)
    differ = set(one.split(" ")) ^ set(other.split(" "))
    kinds = {"reduction" if p.startswith("op=") else "root" if "=" in p else "dtype" if p[:1].isalpha() else "shape" for p in differ}
    return tuple(k for k in ("shape", "dtype", "root", "reduction") if k in kinds)


def has_dtypes(key: str) -> bool:
    """Whether dtypes are compared for what a key begins with."""
    return rule(spelling(key.split(" ")[0])) != "free"


def without_dtypes(key: str) -> str:
    """A key, or several joined by "+", as a version writes it that tells no dtypes: "all_reduce 1024"."""
    return "+".join(map(_without_dtypes, key.split("+")))


@lru_cache(maxsize=1024)
def _without_dtypes(key: str) -> str:
    if not has_dtypes(key):
        return key
    name, *parts = key.split(" ")
    return " ".join((name, *(p for p in parts if not p[:1].isalpha())))
