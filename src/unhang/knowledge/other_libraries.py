"""Communication libraries beside NCCL and Gloo that give up waiting: who says so, for whom it waited, and what makes the library say more.

A rank that prints such a line came and waited for another one, also where the library raises it as an exception or ends its kernel by a trap. A new
library is a row of `other_libraries.toml`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace

from unhang import data
from unhang.knowledge.words import COMMA, NOTHING, Text, joined, msg
from unhang.logs import Hit, Signature
from unhang.logs.signature import NOT_INSTEAD, compiled
from unhang.model import Remedy, frozen
from unhang.patterns import lazily


@frozen
class Library:
    """`other_libraries.toml` says what its fields are."""

    name: str
    own: str
    traps: tuple[str, ...] = ()
    talk: Mapping[str, str] = field(default_factory=dict)


def _symptom(needle: str, pattern: str = "", near: str = "") -> Signature:
    return Signature(needle=needle, pattern=pattern, near=near, role="symptom")


_ROWS = data.table("knowledge/other_libraries")
LIBRARIES = tuple(Library(name=name, own=known["own"], traps=known.get("traps", ()), talk=known.get("talk", {})) for name, known in _ROWS.items())

# That something was given up; neither the name of a setting nor what a timeout is set to.
_GAVE_UP = (
    r"(?:\b[Tt]im(?:ed|es)[ _-]?out\b|TIMED_?OUT\b|ERR_TIMEOUT\b|ERROR: TIMEOUT\b"
    r"|\b(?:[Tt]imeout|TIMEOUT)(?=\s*(?:$|[,;!()\]'\"]|\.(?:\s|$)|: ?[A-Za-z]"
    r"|(?:waiting|while|after|expired|exceeded|occur(?:red|s)|reached|for|during|error|detected|check|has|at|polling)\b)))"
    rf"{NOT_INSTEAD}"
)
# What an alternative of some `own` begins with: most places of a line are passed over without trying forty of them.
_OWN = rf"(?=[A-Z|]|hccl|lib|m[ops]|n[iv]|one|roc|ucp)(?:{'|'.join(one.own for one in LIBRARIES)})"
_ANY = rf"{_OWN}[^\n]{{0,400}}?{_GAVE_UP}"
_TIMEOUT_ERROR = rf"TimeoutError: [^\n]{{0,400}}?{_OWN}"
_FAILED = "HCCL error in: "
_WORDS = {_symptom(**words): name for name, known in _ROWS.items() for words in known.get("words", ())}
SIGNATURES = (
    *(
        _symptom(needle, _ANY)
        for needle in (" timeout", " Timeout", "imed out", "imes out", "TIMED_OUT", "TIMEDOUT", "ERR_TIMEOUT", "ERROR: TIMEOUT")
    ),
    _symptom("TimeoutError: ", _TIMEOUT_ERROR),
    *_WORDS,
)
SIGNATURES_OF = {"collective-timeout": SIGNATURES}
_OF_ANY = frozenset(SIGNATURES) - _WORDS.keys()
_BY_NAME = {one.name: one for one in LIBRARIES}

_OP = lazily(
    r"(?:\b|Hccl|_)([Dd]ispatch|[Cc]ombine|[Bb]arrier|[Ff]ence|[Aa]ll[-_ ]?[Rr]educe|[Aa]ll[-_ ]?[Gg]ather|[Rr]educe[-_ ]?[Ss]catter"
    r"|[Aa]ll[-_ ]?[Tt]o[-_ ]?[Aa]ll|[Bb]roadcast|[Bb]cast|[Hh]andshake)"
)
_TORCHS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "bcast": "broadcast",
}
# DeepEP numbers the GPUs of a node (NVL) and the nodes (RDMA); in its barrier each thread waits for one GPU of the node.
_PEER = lazily(
    r"(?:src|dst) (?P<net>NVL|RDMA|IB)(?: lane)?: (?P<of_net>\d{1,5})\b|thread = (?P<thread>\d{1,5}), value = [1-9]"
    r"|(?:\b[Pp]eer(?: rank)?|\b(?:from|for)(?: remote)? rank|[Rr]emote [Rr]ank)(?:[ :=]| \[|\[)*(?P<rank>\d{1,7})\b"
)
_JOINTS = lazily(r"[-_ ]")
_SHOWN = 4


def library(hit: Hit) -> Library | None:
    """Whose line it is; None where it is none of these libraries'."""
    if hit.signature in _WORDS:
        return _BY_NAME[_WORDS[hit.signature]]
    if hit.signature not in _OF_ANY:
        return None
    return next((one for one in LIBRARIES if compiled(one.own).search(hit.text)), None)


def gave_up(hits: Iterable[Hit]) -> tuple[Sequence[Hit], Text] | None:
    """The lines of the library that first gave up waiting, as if of one signature, and what they say together."""
    said = [(one, h) for h in hits if (one := library(h)) is not None]
    if not said:
        return None
    first = said[0][0]
    own = [h for one, h in said if one == first]
    op = next((op.lower() for h in own for op in _OP.findall(h.text)), None)
    peers = list(dict.fromkeys(p for h in own for p in _peers(h.text)))
    waited = msg("{library} waited{op}{peers} longer than its timeout")
    failed = msg("{library} failed, for a reason that is not known here")
    says = (failed if all(h.signature.needle == _FAILED for h in own) else waited).fill(
        library=first.name,
        op=NOTHING if op is None else msg(" in {op}", op=_TORCHS.get(_JOINTS.sub("", op), op)),
        peers=msg(" for {peers}", peers=joined(peers[:_SHOWN], COMMA) if peers else msg("another rank", "other_libraries")),
    )
    return [replace(h, signature=own[0].signature) for h in own], says


def _peers(text: str) -> Iterable[Text]:
    for found in _PEER.finditer(text):
        if found["rank"]:
            yield msg("rank {n}", n=found["rank"])
        elif found["net"] in ("RDMA", "IB"):
            yield msg("node {n}", n=found["of_net"])
        else:
            yield msg("rank {n} of its node", n=found["thread"] or found["of_net"])


def say_more(hits: Iterable[Hit]) -> Remedy | None:
    """How to make the library that gave up tell more; None where none did, or nothing does."""
    found = next((one for h in hits if (one := library(h)) is not None), None)
    if found is None or not found.talk:
        return None
    return Remedy(
        id="say-more",
        says=msg(
            "Run again with the messages of {name} on, and keep the logs of all ranks: the rank that did not come may say why.", name=found.name
        ),
        env=dict(found.talk),
    )


def trapped(hit: Hit, waited: Iterable[Hit]) -> bool:
    """Whether a fault that CUDA reports is the trap by which a library ended its own kernel, in the same rank as far as both are known."""
    return any(
        (one := library(w)) is not None and hit.signature.needle in one.traps and (None in (hit.rank, w.rank) or hit.rank == w.rank) for w in waited
    )
