"""Lines that a collector wrapped into JSON: Docker's json-file driver, Fluent Bit and Fluentd, Vector, cloud consoles."""

from __future__ import annotations

from typing import Any, NamedTuple

JSON_BEGINS = '{"'
_TEXTS = ("log", "message", "msg", "MESSAGE", "textPayload")
_TIMES = ("time", "timestamp", "@timestamp", "ts")
# What a training prints as JSON itself has none of these beside a text.
_WRAPPER = frozenset((*_TIMES, "stream", "kubernetes"))
_HOSTS = ("pod_name", "host", "hostname", "_HOSTNAME")
# What was wrapped may be wrapped itself: by the runtime, then by the collector.
_DEEPEST = 4


class Wrapped(NamedTuple):
    """What was printed, behind the time that the collector saw it, and where."""

    text: str
    host: str | None


def unwrapped(text: str) -> Wrapped | None:
    """The line that a JSON document holds; None where it is none, or the training's own."""
    found: Wrapped | None = None
    for _ in range(_DEEPEST):
        if not text.startswith(JSON_BEGINS) or (inner := _inner(text)) is None:
            break
        text, time, host = inner
        found = Wrapped(f"{time} {text}" if time else text, host if host is not None or found is None else found.host)
    return found


def _inner(text: str) -> tuple[str, str, str | None] | None:
    import json

    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    said = next((document[k] for k in _TEXTS if isinstance(document.get(k), str)), None)
    if said is None or _WRAPPER.isdisjoint(document):
        return None
    time = next((document[k] for k in _TIMES if isinstance(document.get(k), str)), "")
    return said.rstrip("\r\n").rpartition("\r")[2].partition("\n")[0], time, _host(document)


def _host(document: dict[str, Any]) -> str | None:
    pod = document.get("kubernetes")
    places = (pod, document) if isinstance(pod, dict) else (document,)
    return next((place[k] for place in places for k in _HOSTS if isinstance(place.get(k), str) and place[k]), None)
