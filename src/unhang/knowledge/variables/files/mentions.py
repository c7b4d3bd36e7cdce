"""Names of variables that touch communication, in text that no reader understood: what is said there of them was not looked at."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

from unhang.facts import variables
from unhang.knowledge.variables.files.found import Found, Lines, Mention
from unhang.knowledge.variables.known import entries

# `$A` and `${A}` use it; `${A:=b}` sets it. SINGULARITYENV_A sets A in a container.
_NAME = re.compile(
    r"(?P<used>\$\{?[!#]?)?(?<![A-Za-z0-9_])(?:(?:SINGULARITY|APPTAINER)ENV_)?(?P<name>[A-Z][A-Z0-9_]+)(?![A-Za-z0-9_])"
    r"(?P<sets>[ \t]*[:+?]?=(?![=~]))?"
)
# Names of one word, or that any program may have, say something only where they are set.
_FAMILY = re.compile(r"(?:[NR]CCL|MSCCL|TORCH|GLOO|UCX|FI|OMPI_MCA|OFI_NCCL|ACCELERATE|DEEPSPEED|FSDP|PYTORCH|CUDA)_")


def is_known(name: str) -> bool:
    """Whether `unhang vars` has anything to say of a variable of this name."""
    return variables.touches(name) or name in entries()


def mentions(
    text: str, begin: int, finish: int, lines: Lines, settings: Iterable[Found] = (), understood: Iterable[tuple[int, int]] = ()
) -> Iterator[Mention]:
    """Where known names stand from `begin` to `finish` outside of `settings` and of stretches that are `understood`; one for each line and name."""
    # What a setting that nothing is known of holds may be handed on: ARGS="-x A=b".
    own = ((begin, end if is_known(s.name) else begin + 1) for s in settings for begin, end in [s.span])
    spans = _joined([*own, *understood])
    said: set[tuple[int, str]] = set()
    n = 0
    for m in _NAME.finditer(text, begin, finish):
        at, name = m.start("name"), m["name"]
        while n < len(spans) and spans[n][1] <= at:
            n += 1
        if (n < len(spans) and spans[n][0] <= at) or not is_known(name):
            continue
        if m["used"] and not (m["used"].startswith("${") and m["sets"]):
            continue
        if not m["sets"] and not _FAMILY.match(name):
            continue
        line = lines.of(at)
        if (line, name) not in said:
            said.add((line, name))
            yield Mention(name=name, line=line)


def _joined(spans: Collection[tuple[int, int]]) -> list[tuple[int, int]]:
    """In their order, none within another."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
