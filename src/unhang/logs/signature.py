"""How something looks in a log: a signature, and the hit that says where it was found.

`signatures.toml` lists those that tell of no cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from unhang import data
from unhang.model import Evidence
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.model import Standing

# A context signature belongs to no cause: it is read for what it tells about the job (ranks, versions, transports, exit codes). An alarm belongs to
# none either: it is shown if nothing else was recognised.
Role = Literal["root", "symptom", "context", "alarm"]

# What looks like trouble and is none, logged at the level of errors by programs that go on: TensorFlow registers twice, the linker's preloads,
# sockets that close at teardown.
HARMLESS = (
    r"[Uu]nable to register cu\w+ |computation placer already registered|from LD_PRELOAD cannot be preloaded|[Aa]ccept failed|XDG_RUNTIME_DIR"
    r"|destroy_process_group|[Cc]onnection closed by (?:local|remote)|\b0 errors?\b|errors? ?[:=] ?0\b|pip's dependency resolver"
    r"|\b[Aa]s expected\b|import failed$|which can lead to "
)
# What is tried again has ended nothing.
RETRIED = r"(?:will be retried|retrying|retries? (?:remaining|left))"
# What a program does instead: in a warning that tells of it, and in any line.
DOES_INSTEAD = rf"(?:{RETRIED}|trying|falling back|skipping)"
INSTEAD = rf"(?:{DOES_INSTEAD}|retry|again|skip(?:ped)?|continu(?:es?|ing)|ignor(?:ed|ing)|instead)"
NOT_INSTEAD = rf"(?!.{{0,300}}\b(?i:{INSTEAD})\b)"

# Lines before and after a hit in which `near` and `unless` are looked for.
NEAR_LINES = 8


# A thousand of them are made and hashed at every start: a frozen dataclass takes several times as long.
class Signature(NamedTuple):
    """A literal that must stand in the line, and a pattern with named groups for what it captures ("" for none).

    Write needle and pattern for the line behind its prefixes (rank, time, pod), colours and carriage returns: those are taken off first. The engine
    looks for needles alone, in files of any size; choose the rarest literal that every wording has. `near` has to be found within `lines` lines
    around the hit (its own line counts), `unless` must not be, and `over` must not be in so many lines behind it, where `then` has to match at the
    beginning. `standing` is what a hit is worth: "established" only where the line itself names the cause. `says` is a sentence with {groups} of
    the pattern; without one the title of the cause speaks. `remedies` chooses among the remedies of the cause, by id, None all of them. `keep`
    bounds the hits that are kept of one file: the first ones and the last ones, or with `newest` the last ones only.
    The groups rank, local_rank, host, pid and time, where a pattern has them, tell whom the line is about; `ranks` are those that it
    blames, by their numbers in the job.
    """

    needle: str
    pattern: str = ""
    near: str = ""
    unless: str = ""
    over: str = ""
    then: str = ""
    lines: int = NEAR_LINES
    role: Role = "root"
    standing: Standing = "established"
    says: str = ""
    remedies: tuple[str, ...] | None = None
    keep: int = 16
    newest: bool = False

    @property
    def firsts(self) -> int:
        return 0 if self.newest else (self.keep + 1) // 2

    @property
    def lasts(self) -> int:
        return self.keep - self.firsts


def listed(what: str, **of_all: Any) -> tuple[Signature, ...]:
    """The signatures of one part of `signatures.toml`. `of_all`: fields of all that do not have them there; the role is "context" by default."""
    return tuple(Signature(**{"role": "context", **of_all, **known}) for known in data.table("logs/signatures")[what])


@dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """Where a signature was found, and the line as it stands there. `message` is the whole one if a terminal wrapped it into several lines, else "".

    `rank`, `host`, `pid` and `at_s` (seconds; comparable on one host) are None where neither the line, nor its neighbours, nor the name of the file
    tell them. `label` is a launcher's number of the task: the rank, or the node; `launcher` is "mpirun" where its tag says so. `utc_offset_s` is the
    zone of the time, None where none was printed. `attempt` counts from 1. `place` orders hits within a file. `by_name`: the rank is what the file's
    name says; `host_by_name`: the host. `steps` are the first ones that anybody counts soon after a root or an alarm, each once.
    """

    signature: Signature
    source: str
    line: int | None
    text: str
    groups: dict[str, str] = field(default_factory=dict)
    message: str = ""
    rank: int | None = None
    label: int | None = None
    launcher: str | None = None
    local_rank: int | None = None
    host: str | None = None
    pid: int | None = None
    at_s: float | None = None
    utc_offset_s: int | None = None
    attempt: int = 1
    place: int = 0
    by_name: bool = False
    host_by_name: bool = False
    steps: tuple[str, ...] = ()

    @property
    def whole(self) -> str:
        """The message, whose first line alone may be in the text."""
        return self.message or self.text

    def evidence(self) -> Evidence:
        return Evidence(source=self.source, line=self.line, text=self.text.strip())


def match(
    text: str, signatures: Iterable[Signature], *, source: str, line: int | None = None, rank: int | None = None, around: str = ""
) -> list[Hit]:
    """Which signatures hit in one piece of text. `around` is its neighbourhood; the text itself always belongs to it."""
    hits = []
    for signature in signatures:
        groups = groups_of(signature, text, around)
        if groups is not None:
            hits.append(Hit(signature=signature, source=source, line=line, text=text, groups=groups, rank=rank))
    return hits


def groups_of(signature: Signature, text: str, around: str = "", behind: str = "") -> dict[str, str] | None:
    """What a signature captures in a text, and by `near` around it; None where it does not hit. `behind` are the lines that follow."""
    if signature.needle not in text:
        return None
    groups: dict[str, str] = {}
    if signature.pattern:
        found = compiled(signature.pattern).search(text)
        if found is None:
            return None
        groups = {k: v for k, v in found.groupdict().items() if v is not None}
    if signature.near or signature.unless:
        neighbourhood = f"{around}\n{text}" if around else text
        if signature.near:
            if (beside := compiled(signature.near).search(neighbourhood)) is None:
                return None
            groups |= {k: v for k, v in beside.groupdict().items() if v is not None}
        if signature.unless and compiled(signature.unless).search(neighbourhood) is not None:
            return None
    if signature.over and compiled(signature.over).search(behind) is not None:
        return None
    if signature.then:
        if (following := compiled(signature.then).match(behind)) is None:
            return None
        groups |= {k: v for k, v in following.groupdict().items() if v is not None}
    return groups


def by_cause(hits: Iterable[Hit], signatures: Mapping[Signature, str]) -> dict[str, tuple[Hit, ...]]:
    """Hits, keyed by the cause that their signature belongs to."""
    found: dict[str, list[Hit]] = {}
    for hit in hits:
        found.setdefault(signatures[hit.signature], []).append(hit)
    return {cause: tuple(h) for cause, h in found.items()}


@lru_cache(maxsize=4096)
def compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)


_CLASS = r"\[\^?\]?(?:\\.|[^\]\\])*\]"
# An anchor, or what lets nothing but a few characters stand in front; an escape and a class stand for themselves.
_ANCHOR = re.compile(rf"(?P<anchor>\(\?<!(?:\\S|(?=\[\^){_CLASS})\)|\^)|\\.|{_CLASS}", re.DOTALL)
# A leading lookahead, and whatever stands instead of what it refuses: with a prefix before it this holds wherever the message is found.
_BEFORE = lazily(r"\^(?:\(\?(?:!|:\(\?!).*?|\.)(?:\{0,\d+\}|\*)\?")


@lru_cache(maxsize=4096)
def unanchored(pattern: str) -> re.Pattern[str]:
    """A pattern that matches a line with its prefixes wherever `pattern` matches it without them: a prefix ends in no letter and no digit.

    Drops a leading lookahead and `.{0,n}?`, which would be tried from every word.
    """
    if found := _BEFORE.match(pattern):
        pattern = pattern[found.end() :]
    return compiled(_ANCHOR.sub(lambda found: r"(?<!\w)" if found["anchor"] else found[0], pattern))
