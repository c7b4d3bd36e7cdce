"""What was given, before it is judged: dumps that were never written are set apart, and what comes packed is taken out.

It is taken out for as long as it is judged, and called by the names that the user knows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from unhang.model import frozen
from unhang.text import Text

if TYPE_CHECKING:
    from unhang.logs.discovery import Discovered
    from unhang.model import NotExamined, Verdict
    from unhang.records.packed import Unpacked


@frozen
class Given:
    """`found`: with the dumps out of archives and pipes, without those that hold nothing else. `runs`: run directories, if that was all."""

    found: Discovered
    runs: Unpacked | None = None
    names: Mapping[str, str] = field(default_factory=dict)

    def called(self, text: str) -> str:
        """As the user knows it: what came out of an archive is by its name there."""
        for place, name in self.names.items():
            if place in text:
                text = text.replace(place, name).replace("!/", "!")
        return text

    def told(self, verdict: Verdict) -> Verdict:
        """With the names by which the user knows what was read."""
        if not self.names:
            return verdict
        import msgspec

        from unhang import encoding
        from unhang.model import Verdict

        told = encoding.plain(replace(verdict, not_examined=tuple(n for n in verdict.not_examined if not self._was_read(n))))

        def renamed(value: object) -> object:
            if isinstance(value, str):
                return value.each(self.called) if isinstance(value, Text) else self.called(value)
            if isinstance(value, dict):
                # The unpacked files are deleted before a command is pasted, and a member's name may be anything.
                return {k: None if k in ("command", "verify") and self.called(str(v)) != str(v) else renamed(v) for k, v in value.items()}
            return [renamed(v) for v in value] if isinstance(value, (list, tuple)) else value

        return msgspec.convert(renamed(told), Verdict)

    def _was_read(self, left: NotExamined) -> bool:
        """Whether something is a dump that whoever read the logs beside it left to others."""
        from unhang.logs.kinds import FLIGHT

        return left.why == f"no log: {FLIGHT}" and any(name in left.what for name in self.names.values())


@contextlib.contextmanager
def taken_out(found: Discovered, *, runs: bool) -> Iterator[Given]:
    """With what stands in archives and pipes; `runs`: run directories, too, where one of them is all that was given. Raises UnhangError."""
    packed = [s for s in found.sources if not s.seekable]
    if not packed:
        yield Given(found=found)
        return
    from unhang.records.packed import folder, held, unpack

    sources, dumps, missed = list(found.sources), list(found.dumps), list(found.not_examined)
    blank = list(found.blank)
    names: dict[str, str] = {}
    of_runs = None
    with contextlib.ExitStack() as stack:
        into = None
        for source in packed:
            if (holds := held(source, runs=runs and len(sources) == 1 and not dumps)) is None:
                continue
            into = into or stack.enter_context(folder())
            these = unpack(source, holds, into)
            if holds == "runs":
                of_runs = these if these.runs else None
                continue
            names[these.place] = these.called
            dumps += these.dumps
            blank += these.blank
            missed += these.not_examined
            if not these.others:
                sources.remove(source)
        taken = replace(found, sources=tuple(sources), dumps=tuple(dumps), not_examined=tuple(missed), blank=tuple(blank))
        yield Given(found=taken, runs=of_runs, names=names)


def set_apart(found: Discovered) -> tuple[Discovered, tuple[Path, ...]]:
    """What was found without the empty ones of files beside dumps that are called as these are, and in which no dump is; and all of them.

    A rank's process ended while it was writing, or a disk was full. What else stands in one, as the error of a copy that failed, is read as a log.
    """
    from unhang.flight.rank_from_name import closed_ranks
    from unhang.logs.discovery import EMPTY
    from unhang.model import NotExamined

    files = {str(s.path): s for s in found.sources if s.path is not None and s.seekable}
    alike = set(closed_ranks([*files, *map(str, found.blank)], [str(p) for p in found.dumps]).values())
    empty = {files[name] for name in alike & files.keys() if not files[name].size_bytes}
    missed = [n for n in found.not_examined if not (n.why == EMPTY and any(n.what == s.name for s in empty))]
    missed += [NotExamined(what=s.name, why=EMPTY, unread=True) for s in sorted(empty, key=lambda s: s.name)]
    sources = tuple(s for s in found.sources if s not in empty)
    return replace(found, sources=sources, not_examined=tuple(missed)), tuple(map(Path, sorted(alike)))
