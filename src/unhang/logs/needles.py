"""Which literals stand in a block of bytes: a multi-pattern engine made for it, and a slower one with equal answers where it has no wheel."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from unhang import cache as cached
from unhang.logs import tracebacks
from unhang.logs.signature import Signature

if TYPE_CHECKING:
    import hyperscan

_NAME = "needles-"
_MOST_COMPILED = 6


def _database(literals: Sequence[bytes], cache: Path | None) -> hyperscan.Database:
    """All literals, each told once for a scan; from the folder `cache` where they are kept there. Raises ImportError where there is no wheel.

    Kept between runs: compiling nine hundred literals takes a tenth of the time that a small log is answered in. The engine refuses those of another
    version or processor; that not a bit has changed is for us to check.
    """
    import hyperscan

    if cache is None:
        return _compiled(tuple(literals))
    path = cache / (_NAME + cached.digest(b"\0".join((str(getattr(hyperscan, "__version__", "")).encode(), *literals))).hex())
    with contextlib.suppress(OSError, hyperscan.error):
        return hyperscan.loadb(cached.read(path), hyperscan.HS_MODE_BLOCK)
    made = _compiled(tuple(literals))
    cached.write(path, hyperscan.dumpb(made))
    return made


# A database is never changed: whoever judges several times in one process, trial after trial, compiles once.
@functools.lru_cache(maxsize=_MOST_COMPILED)
def _compiled(literals: tuple[bytes, ...]) -> hyperscan.Database:
    import hyperscan

    made = hyperscan.Database()
    # Once for each block is enough, and keeps the number of calls back into Python small.
    made.compile(expressions=list(literals), ids=list(range(len(literals))), flags=hyperscan.HS_FLAG_SINGLEMATCH, literal=True)
    return made


# Whose lines begin with `[rank17]` is told by the engine in passing.
MAX_RANKS = 1024
# A thousand more literals would slow the search for all others by a fifth: ranks of one digit are looked for always, the others where some rank of
# two digits is.
_ONE_DIGIT = tuple(b"[rank%d]" % n for n in range(10))
_TWO_DIGITS = tuple(b"[rank%d" % n for n in range(10, 100))
TRACEBACK = Signature(needle=tracebacks.MARK, role="context", keep=100)
# What has them is read as a traceback that lost its header.
ALONE = tuple(Signature(needle=n, pattern=tracebacks.CLASS, role="context", keep=100) for n in tracebacks.ALONE)


class Engine(Protocol):
    """Answers which literals stand in data; thread-safe. No literal is empty or holds a NUL."""

    def present(self, data: memoryview) -> dict[int, int]:
        """The literals that stand in the data, by index, and where each begins for the first time."""
        ...


class Finder:
    """One search for each literal, with bytes.find."""

    def __init__(self, literals: Sequence[bytes]) -> None:
        self._literals = tuple(literals)

    def present(self, data: memoryview) -> dict[int, int]:
        copy = bytes(data)
        return {i: at for i, literal in enumerate(self._literals) if (at := copy.find(literal)) >= 0}


class Hyperscan:
    """All literals in one pass, at some GB/s on each core; scanning releases the GIL."""

    def __init__(self, literals: Sequence[bytes], cache: Path | None = None) -> None:
        import hyperscan

        self._scratch_of = hyperscan.Scratch
        self._database = _database(literals, cache)
        self._lengths = [len(literal) for literal in literals]
        self._local = threading.local()

    def present(self, data: memoryview) -> dict[int, int]:
        if not hasattr(self._local, "scratch"):
            self._local.scratch = self._scratch_of(self._database)
        found: dict[int, int] = {}

        def matched(id: int, start: int, end: int, flags: int, context: Any) -> None:
            # Where a match begins is not told, only where it ends.
            found[id] = end - self._lengths[id]

        # It takes any buffer, which its annotations do not say.
        buffer: Any = data
        self._database.scan(buffer, match_event_handler=matched, scratch=self._local.scratch)
        return found


def engine(literals: Sequence[bytes], cache: Path | None = None) -> Engine:
    """The fastest engine that works here. `cache` is a folder in which it may keep what it compiled."""
    try:
        return Hyperscan(literals, cache)
    except ImportError:
        return Finder(literals)


class Needles:
    """Signatures made ready for the search; made once, used for many logs and by many threads. `cache` is a folder; None keeps nothing."""

    def __init__(
        self, signatures: Iterable[Signature], *, cache: Path | None = None, make_engine: Callable[[Sequence[bytes]], Engine] | None = None
    ) -> None:
        by_literal: dict[bytes, list[Signature]] = {}
        for s in (*signatures, TRACEBACK, *ALONE):
            by_literal.setdefault(s.needle.encode(), []).append(s)
        self.literals = tuple(by_literal)
        self.signatures = tuple(tuple(v) for v in by_literal.values())
        self.reach = max(map(len, (*self.literals, b"[rank%d]" % (MAX_RANKS - 1))))
        self._make_engine = make_engine or partial(engine, cache=cache)
        self._engine = self._make_engine((*self.literals, *_ONE_DIGIT, *_TWO_DIGITS))

    def present(self, data: memoryview) -> tuple[dict[int, int], frozenset[int]]:
        """Which literals stand in the data, by index, and where first; and which ranks' prefixes."""
        found = self._engine.present(data)
        count = len(self.literals)
        ranks = [i - count for i in found if i >= count]
        if any(n >= len(_ONE_DIGIT) for n in ranks):
            ranks = [n for n in ranks if n < len(_ONE_DIGIT)]
            ranks += [len(_ONE_DIGIT) + n for n in self._more_ranks.present(data)]
        return {i: at for i, at in found.items() if i < count}, frozenset(ranks)

    @cached_property
    def _more_ranks(self) -> Engine:
        return self._make_engine([b"[rank%d]" % n for n in range(len(_ONE_DIGIT), MAX_RANKS)])
