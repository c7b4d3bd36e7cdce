"""The last lines of a log in which nothing was recognised: words that tell of a failure, or of waiting again and again, unless the same
lines tell of progress or success.

The tables of `alarms` know how programs report trouble; this only knows that a log which ends in such words is not a healthy one.
"""

from __future__ import annotations

from unhang.logs.harmless import HARMLESS, INSTEAD
from unhang.logs.line import Line, parse
from unhang.logs.tracebacks import PASSED, step_of
from unhang.patterns import lazily

TAIL_BYTES = 16 * 1024
_LINES = 40
_TROUBLE = lazily(
    r"\b(?i:fatal|failed|failure|killed|abort(?:ed|ing)|died|crash(?:ed)?|halted|denied|refused|timed out|unexpected(?:ly)?|corrupt(?:ed)?"
    r"|segfault)\b|(?:^|[\s'\"(.])[A-Z]\w*(?:Error|Exception)\b|\bcudaError\b|\bFAILED|\bmake(?:\[\d+\])?: \*\*\* "
    r"|^#\d{1,3} {1,3}0x[0-9a-f]|^frame #\d{1,3}: "
)
_WELL = lazily(r"(?<![\w/-])(?<!Init )(?i:completed?|finished|success(?:fully)?|done|saved|passed|ok)(?![\w/-])|100%\|")
_WARNING = lazily(r"\b(?:INFO|DEBUG|WARN|WARNING|(?:\w+)?Warning)\b|\[[WI]\d{3,4} |\[[WI] ")
_WAITS = lazily(r"\b(?i:waiting (?:for|on|until)|only have \d+ \w+, need)\b")
# That often at least, whatever its level: programs wait for a moment at every start.
_AGAIN = 3
_PASSED = lazily(rf"{HARMLESS}|\b(?i:{INSTEAD})\b")
_MAX_CHARS = 600


def at_the_end(tail: bytes, lines: int) -> list[Line]:
    """The lines of `tail`, the last bytes of a log that has `lines` lines, that tell of trouble; none if any tells of progress or success."""
    raw = tail.split(b"\n")
    if raw and not raw[-1]:
        raw.pop()
    first = lines - len(raw) + 1
    last = [parse(text.rpartition(b"\r")[2] or text.rstrip(b"\r"), number=max(1, first + n)) for n, text in enumerate(raw) if text.strip()][-_LINES:]
    if any(step_of(line.text) or _WELL.search(line.text, 0, _MAX_CHARS) for line in last):
        return []
    waits = last[-_AGAIN:]
    if len(waits) == _AGAIN and all(_WAITS.search(line.text, 0, _MAX_CHARS) for line in waits):
        return waits
    # A stack whose exception is there was looked at, and warnings bring stacks, too.
    headed = any("Exception raised from " in line.text or line.text.startswith("[W") for line in last)
    return [
        line
        for line in last
        if (found := _TROUBLE.search(line.text, 0, _MAX_CHARS))
        and not (headed and found[0].startswith("frame #"))
        and line.level not in PASSED
        and not _WARNING.search(line.text, 0, _MAX_CHARS)
        and not _PASSED.search(line.text, 0, _MAX_CHARS)
    ]
