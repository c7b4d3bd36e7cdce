"""What a collector is: one subject of a machine, looked at through `Host`, with what is told of it in one line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from unhang.facts.host import Host
from unhang.text import Text

T = TypeVar("T")


class NotHere(Exception):
    """This machine has nothing of the kind (no GPU, no InfiniBand); the text says how that was seen. What could not be looked at is an OSError."""


@dataclass(frozen=True, kw_only=True)
class Subject(Generic[T]):
    """One subject. Each module of `facts/` that ends in `SUBJECT = Subject(...)` is found there (`snapshot.subjects`).

    `collect` returns frozen data (`facts` is its type), raises NotHere, or OSError and ValueError where it cannot look; nothing else. What it could
    not see of its subject stands in the data as None, and is named in a field `unread: tuple[str, ...]` where it has one.
    `summary` is one line with the numbers that a reader would ask for, `details` more lines for who asked for this subject alone.
    `volatile` are names of fields, at any depth, that change by themselves from minute to minute (what is free, ages, counters): two snapshots are
    not said to differ for them. `lasting` leaves out what else is there by chance, for the same purpose.
    """

    id: str
    title: str
    facts: type[T]
    collect: Callable[[Host], T]
    summary: Callable[[T], Text]
    details: Callable[[T], Sequence[str]] = lambda facts: ()
    timeout_s: float = 5.0
    volatile: tuple[str, ...] = ()
    lasting: Callable[[T], T] = lambda facts: facts
