"""The forms of what hosts answer: nothing of it is used before it was checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

import msgspec

_Word = Annotated[str, msgspec.Meta(max_length=300)]
_Speed = Annotated[float, msgspec.Meta(ge=0, lt=1e15)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, lt=1e12)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Port = Annotated[int, msgspec.Meta(gt=0, lt=1 << 16)]


class _Begun(TypedDict):
    version: tuple[_Count, _Count]


class _Ready(TypedDict):
    port: _Port
    reached_at: _Word
    unhang: bool


class _Clock(TypedDict):
    now_s: _Seconds


class _Timed(TypedDict):
    took_s: _Seconds


class _LookUp(_Timed, total=False):
    addresses: Annotated[list[_Word], msgspec.Meta(min_length=1)]
    name: _Word
    error: _Word


class _Names(TypedDict):
    names: dict[_Word, _LookUp]
    addresses: dict[_Word, _LookUp]
    is_first: dict[_Word, bool]
    full: _Word


class _Taken(TypedDict, total=False):
    port: _Port
    error: _Word
    holder: str | None


class _Test(TypedDict, total=False):
    error: _Word
    at: _Word
    round_trip_s: _Seconds | None
    out_bytes_per_s: _Speed | None
    in_bytes_per_s: _Speed | None
    segments: tuple[_Count, _Count] | None


class _Place(TypedDict, total=False):
    error: _Word
    seen: bool
    digest: _Word | None
    commit: _Word | None


class _Places(TypedDict):
    places: dict[str, _Place]


class _Facts(TypedDict):
    snapshot: dict[str, Any]


class _Stage(TypedDict):
    stage: _Word
    state: _Word


class _Told(_Stage, total=False):
    why: Annotated[str, msgspec.Meta(max_length=3000)]
    seconds: _Seconds


class _Group(TypedDict):
    exitcode: int | None
    told: list[_Told]
    log: str


class _Started(TypedDict, total=False):
    error: _Word


class _Followed(TypedDict):
    exitcode: int | None
    output: dict[_Word, str]
    events: str
    events_bytes: _Count
    said: str
    said_bytes: _Count
    now: dict[str, Any]
    now_s: _Seconds
    is_more: bool


class _Nothing(TypedDict):
    pass


class _Sent(TypedDict):
    local: _Word
    peer: _Word
    bytes: _Count
    again_bytes: _Count
    busy_s: _Seconds


class _Links(TypedDict):
    links: list[_Sent]


class _Records(TypedDict):
    data: str
    size: _Count


_FORMS: Mapping[str, Any] = {
    "begun": _Begun, "ready": _Ready, "clock": _Clock, "names": _Names, "port": _Taken, "test": _Test, "places": _Places, "facts": _Facts,
    "group": _Group, "start": _Started, "adopt": _Started, "follow": _Followed, "links": _Links, "send": _Nothing, "records": _Records,
}  # fmt: skip


# An answer has one of these.
_ONE_OF: Mapping[str, tuple[str, ...]] = {"port": ("port", "error"), "test": ("round_trip_s", "error")}


def why_not(question: Mapping[str, Any], answer: Mapping[str, Any]) -> str | None:
    """Why this is no answer to a question; None where it is one: of the right form, and of all that was asked."""
    try:
        msgspec.convert(answer, _FORMS[question["do"]])
    except (msgspec.ValidationError, RecursionError) as e:
        return f"{question['do']}: {e}"
    except UnicodeError:  # half of a surrogate pair
        return f"{question['do']}: it is not valid Unicode"
    if question["do"] in _ONE_OF and not any(answer.get(part) is not None for part in _ONE_OF[question["do"]]):
        return f"{question['do']}: neither {' nor '.join(_ONE_OF[question['do']])}"
    parts = {"names": ("names", "is_first"), "places": ("places",)}.get(question["do"], ())
    asked = set(question.get("names") or question.get("paths") or ())
    return next((f"{question['do']}: {part} is not complete" for part in parts if not asked <= answer[part].keys()), None)
