"""A snapshot that leaves the machine: without credentials, and without values of variables that are none of ours."""

from __future__ import annotations

from dataclasses import replace

from unhang.diagnosis.redact import redact_data
from unhang.facts import variables
from unhang.facts.snapshot import Snapshot
from unhang.knowledge.variables.known import entries, nearest
from unhang.knowledge.variables.readers import table


def handed_on(seen: Snapshot) -> Snapshot:
    """As it may be saved and sent. Of a variable that only begins as ours do the name stays: what a program of the user's keeps in it is unknown."""
    part = seen.parts.get(variables.SUBJECT.id)
    if part is not None and part.facts is not None:
        kept: variables.Variables = part.facts
        settings = tuple(s if _is_ours(s.name) else replace(s, value=None) for s in kept.settings)
        plain = {name: value for name, value in kept.plain.items() if _is_ours(name)}
        seen = replace(seen, parts={**seen.parts, variables.SUBJECT.id: replace(part, facts=replace(kept, settings=settings, plain=plain))})
    return redact_data(seen)


def _is_ours(name: str) -> bool:
    """Whether it is known, or a slip of the finger away from one that is."""
    return name in entries() or name in table().names() or nearest(name) is not None
