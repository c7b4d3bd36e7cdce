"""What a log holds behind a stack: whether the process went on from there, and when.

faulthandler prints no time, and a program may call it whenever it likes: how old a stack is, only the lines behind it tell.
"""

from __future__ import annotations

from unhang.logs import attempts, tracebacks
from unhang.logs.line import Line
from unhang.logs.signature import compiled
from unhang.logs.timestamps import Stamp
from unhang.patterns import lazily

# Lines of the same writer that are looked at behind a stack, and of all.
MOST_LINES = 200
MOST_OF_ALL = 2000
# Ranks that wait for one finish the step that they are in.
_STEPS_OF_OTHERS = 2
_LOSSES = tuple(s.pattern for s in attempts.STEPS)
# What failed names the step in which it did.
_OF_ERRORS = ("WARNING", "ERROR", "CRITICAL")
_CODE = " " * 4
_NUMBERS = lazily(r"\d+")


def writer(line: Line) -> int | None:
    """Who wrote a line, as far as it tells: its rank, or a launcher's number of the task, below 0; None where neither is there."""
    return line.rank if line.label is None else -1 - line.label


def progress(line: Line) -> str:
    """What a training counts in a line; "" for nothing, and for what an error or the code of a traceback names."""
    if line.level in _OF_ERRORS or line.text.startswith(_CODE) or tracebacks.sums_up(line.text):
        return ""
    return tracebacks.step_of(line.text)


class Behind:
    """What follows a stack of one writer. `step` is what he had counted before it: the same again is no progress.

    `went_on` is the line in which somebody counts on, `later` the first time that he prints. `far`: that so much follows, up to a line that tells of
    a failure or to the end, that nothing is known. Lines of stacks do not count, those that a bundle left out do. `over`: nothing more has
    to be looked at.
    """

    def __init__(self, writer: int | None, step: str = "") -> None:
        self.writer = writer
        self.went_on: int | None = None
        self.later: Stamp | None = None
        self.far = False
        self.over = False
        self._own = 0
        self._all = 0
        self._counted = _numbers(step)
        self._of_others: set[str] = set()

    def add(self, line: Line, by: int | None, counts: str, lines: int) -> None:
        """The next line, who wrote it, what it counts, and for how many lines it stands."""
        self._all += lines
        if by == self.writer:
            self._own += lines
            if self.later is None and line.time is not None and line.time.clock == "wall":
                self.later = line.time
            if not _numbers(counts) <= self._counted if counts else _tells_a_loss(line):
                self.went_on = line.number
        elif counts and counts not in self._of_others:
            self._of_others.add(counts)
            if len(self._of_others) >= _STEPS_OF_OTHERS:
                self.went_on = line.number
        if self._own > MOST_LINES or self._all > MOST_OF_ALL:
            self.far = True
        self.over = self.far or self.went_on is not None


def left_out(line: Line) -> int:
    """How many more lines stood where a bundle of an earlier version left them out, before as many empty lines."""
    return int("".join(_NUMBERS.findall(line.text))[:9] or 0) if line.text.startswith("[unhang: lines left out") else 0


def _numbers(counted: str) -> frozenset[str]:
    return frozenset(_NUMBERS.findall(counted))


def _tells_a_loss(line: Line) -> bool:
    if "oss" not in line.text or line.level in _OF_ERRORS or tracebacks.sums_up(line.text):
        return False
    return any(compiled(p).search(line.text) for p in _LOSSES)
