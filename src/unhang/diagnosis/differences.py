"""What differs between two snapshots: two hosts of a job, or one host on two days."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from unhang.diagnosis.redact import redact
from unhang.facts import snapshot as snapshots
from unhang.facts.snapshot import Snapshot
from unhang.model import Difference

# What tells the members of a list apart, where they have it.
_NAMES = ("name", "id", "uuid", "path", "address", "port", "index")
_ABSENT = "nothing"


def between(a: Snapshot, b: Snapshot) -> tuple[Difference, ...]:
    """In the order of the areas. What changes from minute to minute by itself (`Subject.volatile`) is left out."""
    known = snapshots.subjects()
    found: list[Difference] = []
    for id in dict.fromkeys((*a.parts, *b.parts)):
        left, right = (_flat(s, id, frozenset(known[id].volatile)) for s in (a, b))
        found += (
            Difference(area=id, path=path, a=redact(left.get(path, _ABSENT)), b=redact(right.get(path, _ABSENT)))
            for path in dict.fromkeys((*left, *right))
            if left.get(path) != right.get(path)
        )
    return tuple(found)


def _flat(snapshot: Snapshot, id: str, volatile: frozenset[str]) -> dict[str, str]:
    part = snapshot.parts.get(id)
    if part is None:
        return {"": "not looked at"}
    if part.state != "read":
        return {"": f"{'not here' if part.state == 'absent' else 'could not be looked at'}: {part.why}"}
    return dict(_leaves(msgspec.to_builtins(part.facts), "", volatile))


def _leaves(value: Any, path: str, volatile: frozenset[str]) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in volatile:
                yield from _leaves(inner, f"{path}.{key}" if path else str(key), volatile)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        if all(not isinstance(v, (Mapping, list)) for v in value):
            yield path, ", ".join(map(str, value)) or _ABSENT
            return
        for i, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{_name(inner, i)}]", volatile)
    else:
        yield path, _ABSENT if value is None else str(value)


def _name(member: Any, index: int) -> str:
    """By name, so that one device fewer does not shift all that follow."""
    named = (member[key] for key in _NAMES if key in member) if isinstance(member, Mapping) else iter(())
    return str(next(named, index))
