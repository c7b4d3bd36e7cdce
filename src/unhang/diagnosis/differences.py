"""What differs between two snapshots: two hosts of a job, or one host on two days."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from unhang import encoding
from unhang.diagnosis.redact import redact
from unhang.facts import snapshot as snapshots
from unhang.facts.snapshot import Snapshot
from unhang.model import Difference

# What tells the members of a list apart, where they have it.
_NAMES = ("name", "id", "uuid", "path", "address", "port", "index")
_ABSENT = "nothing"
# Of what stands on one side only, so much is told.
_BRIEF_CHARS = 160
# Of one area; two hosts of a job differ in a few places.
_MOST_TOLD = 1_000


def between(a: Snapshot, b: Snapshot) -> tuple[Difference, ...]:
    """In the order of the areas. What changes from minute to minute by itself (`Subject.volatile`) is left out.

    What is there on one side only is one difference, however much it holds: an area, a device, a library.
    """
    found: list[Difference] = []
    for id in dict.fromkeys((*a.parts, *b.parts)):
        differences = list(_of_area(a, b, id))
        found += (Difference(area=id, path=path, a=redact(left), b=redact(right)) for path, left, right in differences[:_MOST_TOLD])
        if (left_out := len(differences) - _MOST_TOLD) > 0:
            found.append(Difference(area=id, path=f"and {left_out} more", a="not shown", b="not shown"))
    return tuple(found)


def _of_area(a: Snapshot, b: Snapshot, id: str) -> Iterator[tuple[str, str, str]]:
    parts = [s.parts.get(id) for s in (a, b)]
    if all(part is not None and part.state == "read" for part in parts):
        subject = snapshots.subjects()[id]
        volatile = frozenset(subject.volatile)
        left, right = (_lasting(encoding.plain(subject.lasting(part.facts)), volatile) for part in parts if part is not None)
        yield from _different(left, right, "")
    elif (states := [_state(s, id) for s in (a, b)])[0] != states[1]:
        yield "", states[0], states[1]


def _state(snapshot: Snapshot, id: str) -> str:
    part = snapshot.parts.get(id)
    if part is None:
        return "not looked at"
    if part.state != "read":
        return f"{'not here' if part.state == 'absent' else 'could not be looked at'}: {part.why}"
    return snapshots.subjects()[id].summary(part.facts)


def _lasting(value: Any, volatile: frozenset[str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _lasting(inner, volatile) for key, inner in value.items() if key not in volatile}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_lasting(inner, volatile) for inner in value]
    return value


def _different(a: Any, b: Any, path: str) -> Iterator[tuple[str, str, str]]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in dict.fromkeys((*a, *b)):
            yield from _different(a.get(key), b.get(key), f"{path}.{key}" if path else str(key))
    elif _holds_parts(a) or _holds_parts(b):
        yield from _members(a or [], b or [], path)
    elif (left := _brief(a)) != (right := _brief(b)):
        yield path, left, right


def _holds_parts(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(v, (Mapping, list)) for v in value)


def _members(a: list[Any], b: list[Any], path: str) -> Iterator[tuple[str, str, str]]:
    """By name, so that one device fewer does not shift all that follow; without names what stands on both sides is the same."""
    left, right = ({name: m for m in side if (name := _name(m)) is not None} for side in (a, b))
    if len(left) == len(a) and len(right) == len(b):
        for name in dict.fromkeys((*left, *right)):
            yield from _different(left.get(name), right.get(name), f"{path}[{name}]")
        return
    common = Counter(map(msgspec.json.encode, a)) & Counter(map(msgspec.json.encode, b))
    yield from ((f"{path}[]", _brief(m), _ABSENT) for m in _without(a, common))
    yield from ((f"{path}[]", _ABSENT, _brief(m)) for m in _without(b, common))


def _without(members: list[Any], common: Counter[bytes]) -> Iterator[Any]:
    left = common.copy()
    for m in members:
        if left[encoded := msgspec.json.encode(m)]:
            left[encoded] -= 1
        else:
            yield m


def _name(member: Any) -> str | None:
    if not isinstance(member, Mapping):
        return None
    named = (member[key] for key in _NAMES if key in member)
    return next((str(said) for said in named if isinstance(said, (str, int))), None)


def _brief(value: Any) -> str:
    """One line that tells what it is."""
    if isinstance(value, Mapping):
        said = (v if key in _NAMES else f"{key} {said}" for key, v in value.items() if (said := _brief(v)) != _ABSENT)
        text = ", ".join(map(str, said))
    elif isinstance(value, list):
        text = ", ".join(map(_brief, value))
    else:
        text = "" if value is None else str(value)
    return (text if len(text) <= _BRIEF_CHARS else f"{text[:_BRIEF_CHARS]}…") or _ABSENT
