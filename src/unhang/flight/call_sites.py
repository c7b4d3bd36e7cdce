"""The line of the user's code that issued each entry of a dump."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from unhang.frames import Frame, user_frame
from unhang.user_files import is_user_file

# File, line, function.
Site = tuple[str, int, str]


def sites_of(frames: Sequence[Sequence[Mapping[str, Any]]]) -> list[Site | None]:
    """For the frames of each entry, innermost first, as the dump has them; None where no line is the user's, or the frames are none."""
    # In a pickle the very same frames stand in thousands of entries, and often the very same list of them.
    of_list: dict[int, Site | None] = {}
    of_frames: dict[tuple[int, ...], Site | None] = {}
    for stack in frames:
        if id(stack) not in of_list:
            key = tuple(map(id, stack)) if isinstance(stack, (list, tuple)) else ()
            if key not in of_frames:
                of_frames[key] = _site(stack) if key else None
            of_list[id(stack)] = of_frames[key]
    return [of_list[id(stack)] for stack in frames]


def _site(stack: Sequence[Mapping[str, Any]]) -> Site | None:
    try:
        # As `user_frame` does, and mostly done before the frames are brought into objects.
        for f in stack:
            if _is_user_file(file := str(f.get("filename", ""))):
                return file, int(f.get("line") or 0), str(f.get("name", ""))
        frame = user_frame(
            [Frame(file=str(f.get("filename", "")), line=int(f.get("line") or 0), name=str(f.get("name", ""))) for f in reversed(stack)]
        )
    except (TypeError, ValueError, AttributeError):
        return None
    return None if frame is None else (frame.file, frame.line, frame.name)


_is_user_file = lru_cache(maxsize=4096)(is_user_file)
