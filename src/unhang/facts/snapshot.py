"""The machine as one JSON document: all subjects, each with what was seen, or why nothing was.

A snapshot can be judged elsewhere and later; it is what `unhang doctor` judges on the spot, too.
"""

from __future__ import annotations

import datetime
import importlib
import pkgutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field
from functools import cache, partial
from typing import Any, Literal, TypeVar

from unhang import facts
from unhang.errors import UnhangError
from unhang.facts.host import Asking, Host, NotHere, Subject
from unhang.model import frozen

T = TypeVar("T")
State = Literal["read", "absent", "unknown"]

SNAPSHOT_SCHEMA = "unhang/host/2"


@frozen
class Part:
    """One subject: "read" with its facts, "absent" where the machine has nothing of the kind, "unknown" where it could not be looked at."""

    state: State
    why: str = ""
    facts: Any = None


@frozen
class Snapshot:
    """One machine at one moment (`taken`: ISO 8601, UTC)."""

    schema: str = SNAPSHOT_SCHEMA
    host: str
    taken: str
    parts: Mapping[str, Part] = field(default_factory=dict)

    def get(self, subject: Subject[T]) -> T | None:
        """What was seen of a subject; None where nothing was."""
        part = self.parts.get(subject.id)
        return None if part is None else part.facts


@cache
def subjects() -> Mapping[str, Subject[Any]]:
    """All subjects by id, found by looking into the folder."""
    found: dict[str, Subject[Any]] = {}
    for module in sorted(m.name for m in pkgutil.iter_modules(facts.__path__)):
        subject = getattr(importlib.import_module(f"{facts.__name__}.{module}"), "SUBJECT", None)
        if isinstance(subject, Subject):
            found[subject.id] = subject
    return found


def chosen(ids: Collection[str]) -> tuple[Subject[Any], ...]:
    """Subjects by id; all where none is named. Raises UnhangError that lists the right ones."""
    known = subjects()
    for id in ids:
        if id not in known:
            raise UnhangError(f"there is no area named {id!r}", cause=f"areas are {', '.join(known)}", hint="unhang doctor --list")
    return tuple(s for s in known.values() if not ids or s.id in ids)


def take(host: Host, *, only: Collection[str] = ()) -> Snapshot:
    """Look at the machine, all subjects at once, each within its own time; never raises for what it finds there."""
    return Snapshot(
        host=_name(host),
        taken=datetime.datetime.fromtimestamp(host.now_s(), datetime.timezone.utc).isoformat(timespec="seconds"),
        parts=_collect(host, chosen(only)),
    )


def _name(host: Host) -> str:
    try:
        return host.hostname()
    except OSError:
        return "unknown"


def _collect(host: Host, chosen: Iterable[Subject[Any]]) -> dict[str, Part]:
    asked = [(subject, Asking(partial(_look, subject, host), timeout_s=subject.timeout_s)) for subject in chosen]
    return {subject.id: _answer(subject, asking) for subject, asking in asked}


def _look(subject: Subject[Any], host: Host) -> Part:
    try:
        return Part(state="read", facts=subject.collect(host))
    except NotHere as e:
        return Part(state="absent", why=str(e))
    except Exception as e:  # recorded as not looked at: one collector's fault must not hide what the others see
        return Part(state="unknown", why=str(e) if isinstance(e, OSError) else f"{type(e).__name__}: {e}")


def _answer(subject: Subject[Any], asking: Asking[Part]) -> Part:
    try:
        return asking.answer()
    except TimeoutError:
        return Part(state="unknown", why=f"it did not answer within {subject.timeout_s:g} s")
