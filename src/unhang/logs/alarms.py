"""Lines that report trouble without naming it: asked only where nothing else was recognised, so that no visible failure passes for a healthy log.

CRASHES end a process. ALARMS may have been passed over: those that training steps follow, or a sign that all went well (WENT_WELL), do not count, nor
does what is `HARMLESS`. FINISHED and ENDS tell of the end of a training, WORK of what a rank may be doing while others wait. The tables know how
programs report trouble; `at_the_end` only knows that a log which ends in words of a failure, or of waiting again and again, is not a healthy one.
"""

from __future__ import annotations

from unhang.i18n import msg
from unhang.logs.line import Line, parse
from unhang.logs.signature import HARMLESS, INSTEAD, NOT_INSTEAD, RETRIED, Signature, listed
from unhang.logs.tracebacks import PASSED, step_of
from unhang.patterns import lazily

_KEEP = 16


def _alarm(needle: str, pattern: str) -> Signature:
    return Signature(needle=needle, pattern=pattern, role="alarm", remedies=("supervise",), keep=_KEEP, newest=True)


TRACEBACK_CUT = Signature(
    needle='File "',
    pattern=r'(?<!\S)File "(?P<file>[^"\n]{1,400})", line (?P<at>\d{1,9}), in (?P<name>\S{1,100})',
    then=r"[^\w\n]*(?P<code>.{0,200})",
    says=msg("a traceback is cut off before its exception; the last frame shown is {file}:{at} in {name}: {code}"),
    unless=rf"\b{RETRIED}\b",
    role="alarm",
    remedies=("whole-log",),
    keep=_KEEP,
    newest=True,
)
# The first one of these counts as much as the last: whether it came before the end of the training.
CRASHES = (
    *listed("crash", role="alarm", remedies=("native-stack",)),
    *(
        # On a line of its own, or behind the process.
        s._replace(pattern=rf"(?:[:：] *\d{{1,9}} +|^(?={s.needle} *(?:$|[(（])))(?P<what>{s.needle})")
        for s in listed("segmentation-fault", role="alarm", remedies=("native-stack",))
    ),
)
_SEVERE, WARNINGS, _OTHERS = (listed(what, role="alarm", remedies=("supervise",), newest=True) for what in ("severe", "warning", "alarm"))
ALARMS = (
    *_SEVERE,
    *WARNINGS,
    *_OTHERS,
    _alarm("Failed", rf"(?:^|(?<=[\]:|>)-] ))Failed(?: to |, |: ){NOT_INSTEAD}"),
    _alarm("timed out", rf"[a-z] timed out\b{NOT_INSTEAD}"),
    TRACEBACK_CUT,
)
# What Python's fault handler prints of the thread that crashed, innermost first.
FATAL = Signature(
    needle="Current thread 0x",
    near=r'^Current thread 0x.*\n(?P<stack>(?: *File "[^"\n]+", line \d{1,9} in .+\n?)+)',
    role="context",
)
FINISHED = listed("finished", keep=2)
OF_ONE_PROCESS = frozenset(listed("well-of-one-process", keep=2, newest=True))
WENT_WELL = (*FINISHED, *listed("well", keep=2, newest=True), *OF_ONE_PROCESS)
SIGNATURES = (*CRASHES, *ALARMS, *WENT_WELL)
# What is an alarm though its record has the level of a warning, or of less.
OF_ANY_LEVEL = frozenset((*CRASHES, *_SEVERE, *WARNINGS, TRACEBACK_CUT))
# What may be the end of a training.
DONE, SAVED = (listed(what, keep=2, newest=True) for what in ("done", "saved"))
(FULL,), (LEAVING,) = (listed(what, keep=2, newest=True) for what in ("full", "leaving"))
ENDS = (*DONE, FULL, *SAVED, LEAVING)
# What a rank did before is over: the last lines of a log count, of so many ranks.
WORK = listed("work", newest=True)

# Of the end of a log.
TAIL_BYTES = 16 * 1024
_LAST_LINES = 40
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
    told = [parse(text.rpartition(b"\r")[2] or text.rstrip(b"\r"), number=max(1, first + n)) for n, text in enumerate(raw) if text.strip()]
    last = told[-_LAST_LINES:]
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
