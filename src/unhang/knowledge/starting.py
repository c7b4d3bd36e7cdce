"""How a shell, Python and launchers say that a script could not be started: its name is wrong, or it is no program.

What a batch script misses may be a helper as well as the training. Where a training ran behind the line, the line tells nothing of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.knowledge.cause import named, signature
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.knowledge.cause import LogView
    from unhang.logs import Hit, Traceback

UNREADABLE = signature("config-error", "unreadable")
BY_OTHERS = named("config-error", "by-others")
SIGNATURES = frozenset((UNREADABLE, *named("config-error", "by-python"), *BY_OTHERS))

# What is raised because somebody else ended, was not there, or asked for an end: whoever waits for a rank that could not be started raises it.
_OF_OTHERS = lazily(
    r"(?:.*\.)?(?:(?:ChildFailed|CalledProcess|Dist\w*|Rendezvous\w*|Timeout|Connection\w*|BrokenPipe|EOF|Ray\w*|Actor\w*)Error"
    r"|Process(?:Raised|Exited)Exception|Sign\w*Exception|SIGTERMException|KeyboardInterrupt|SystemExit)"
)
_LAUNCHERS = lazily(r"/torch/distributed/(?:run|launch|launcher/.+|elastic/.+)\.py$|/accelerate/commands/|/deepspeed/launcher/|/bin/[^/]+$")


def trained_behind(view: LogView, hit: Hit) -> bool:
    """Whether a training ran behind the line of a hit, in the same log: it counts steps, a rank raises what is its own, a collective times out."""
    gave_up = (*(t.at for t in view.timeouts), *(s.at for s in view.statuses))
    if hit.steps or any(_is_behind(at.source, at.line, hit) for at in gave_up):
        return True
    return any(
        _is_behind(t.source, t.line, hit) and (t.rank is not None or t.local_rank is not None) and _may_be_the_same(t, hit) for t in _failures(view)
    )


def other_failed(view: LogView, hit: Hit) -> bool:
    """Whether a program that was started failed as well: which of the two was the training, the logs do not tell."""
    if any(e.code < 0 and e.code not in (-2, -15) for e in view.exits):
        return True
    alone = hit.rank is None and hit.host is None
    return any(alone or (t.source == hit.source and _may_be_the_same(t, hit)) for t in _failures(view))


def _failures(view: LogView) -> list[Traceback]:
    """The exceptions of programs that were started: not those of launchers, nor of ranks that lost or missed another one."""
    missed = {(h.source, h.line) for hits in view.hits.values() for h in hits if h.signature in SIGNATURES}
    return [
        t
        for t in view.tracebacks
        if not (t.ignored or _OF_OTHERS.fullmatch(t.type) or (t.source, t.end) in missed or any(_LAUNCHERS.search(f.file) for f in t.frames[:1]))
    ]


def _is_behind(source: str, line: int | None, hit: Hit) -> bool:
    return source == hit.source and line is not None and hit.line is not None and line > hit.line


def _may_be_the_same(back: Traceback, hit: Hit) -> bool:
    """Whether nothing tells that a traceback is of another rank or host than a hit."""
    return (hit.rank is None or back.rank == hit.rank) and (hit.host is None or back.host in (None, hit.host))
