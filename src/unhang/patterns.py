"""Patterns that are compiled when they are first used. Most of ours meet nothing in one log, and to compile one takes half a millisecond."""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast


def lazily(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """As `re.compile`, which is not called before something is asked of the pattern other than its text: what is wrong in it shows only then.

    It is no `re.Pattern` to `isinstance`, nor to the functions of `re`.
    """
    return cast("re.Pattern[AnyStr]", Lazily(pattern, flags))


class Lazily:
    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self.pattern = pattern
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        # What is found here is an attribute of this object from then on, as quick to reach as that of a pattern.
        value = getattr(re.compile(self.pattern, self._flags), name)
        setattr(self, name, value)
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        return Lazily, (self.pattern, self._flags)

    def __repr__(self) -> str:
        return f"lazily({self.pattern!r})"
