"""Where a new attempt begins in one log: launchers start again after a failure, and shells append to the same file.

A start is what launchers and libraries print at the beginning, and a job prints many: it begins a new attempt only behind a failure. Many things fail
without ending a run (an exception that is caught, a warning), and libraries print their banners whenever they are first used: so a library's counts
only where processes have ended, or where one process would have printed twice what each prints once.

At its default level of logging torchrun says nothing when it starts again: steps on both sides of a failure tell it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace

from unhang.logs import exits, tracebacks
from unhang.logs.signature import Hit, listed
from unhang.model import frozen
from unhang.patterns import lazily

# From the end of a process to the first step of the one that takes its place.
_RESTART_S = 2


@frozen
class Failure:
    """Where one log says that the run failed. `ended`: that processes of the job end, as a launcher tells it; `gone`: they have."""

    place: int
    at_s: float | None = None
    ended: bool = False
    gone: bool = False


AGENTS = listed("agent", keep=512)
(NCCL_VERSION,) = listed("nccl-started", keep=512)
LIBRARIES = (*listed("library", keep=512), NCCL_VERSION)
STARTS = (*AGENTS, *LIBRARIES)
(GAVE_UP,) = listed("gave-up", keep=512)
STEPS = listed("loss", keep=8)
SIGNATURES = (*STARTS, GAVE_UP, *STEPS)
# Losses of an evaluation, and of the whole training.
_OF_MORE_THAN_A_STEP = lazily(
    r"(?i)\b(?:train(?:ing)?|eval(?:uation)?|val(?:id(?:ation)?)?|test|dev|final|avg|average|mean|best)[ _/-]{0,2}loss|\bevaluat|train_runtime"
)
_EPOCH = lazily(r"\b[Ee]poch\W{0,3}(\d{1,6}) ?/ ?(\d{1,6})\b")


def starts_of(hits: Iterable[Hit], failures: Iterable[Failure]) -> tuple[Hit, ...]:
    """The starts of one file that begin attempts 2, 3, ...: each behind a failure of the attempt before it.

    A start that is older than the failure in front of it belongs to another host's log that was appended.
    """
    failed = sorted(failures, key=lambda f: f.place)
    places = [f.place for f in failed]
    found: list[Hit] = []
    since: list[Failure] = []
    said: set[tuple[object, ...]] = set()
    seen = 0
    for start in sorted(hits, key=lambda h: h.place):
        before = bisect_right(places, start.place)
        since += failed[seen:before]
        seen = before
        if start.signature == NCCL_VERSION and start.pid is None and not any(f.gone for f in since):
            # Every copy of NCCL prints it, with its first communicator: that may be late in a training.
            continue
        if since and (start.signature in AGENTS or any(f.ended for f in since) or _banner(start) in said) and not _is_older(start, since):
            found.append(start)
            since.clear()
        # Processes that name themselves; a banner without a pid may be another one's.
        if start.pid is not None:
            said.add(_banner(start))
    return tuple(found)


class Marks:
    """The steps and the ends of agents in all logs of a job."""

    def __init__(self, hits: Iterable[Hit]) -> None:
        self.steps: dict[str, list[Hit]] = {}
        self.ends: list[Hit] = []
        for h in hits:
            if h.signature == GAVE_UP:
                self.ends.append(h)
            else:
                self.steps.setdefault(h.source, []).append(h)
        self.timed = sorted((h for steps in self.steps.values() for h in steps if h.at_s is not None), key=lambda h: h.at_s or 0)
        self.times = (self.timed[0].at_s or 0, self.timed[-1].at_s or 0) if self.timed else None

    def went_on(self, failed: Hit) -> bool:
        """Whether steps stand in front of a failure and behind it: in its log by place, in others by time."""
        own = self.steps.get(failed.source, ())
        if any(s.place < failed.place for s in own) and any(s.place > failed.place and not _is_before(s, failed) for s in own):
            return True
        return failed.at_s is not None and self.times is not None and self.times[0] < failed.at_s < self.times[1] - _RESTART_S

    def behind(self, hit: Hit) -> tuple[str, ...]:
        """The steps of the same attempt behind a hit, each once: in its log by place; where no steps stand in that, in others by time."""
        return tuple(dict.fromkeys(tracebacks.step_of(t) or t for t in self._behind(hit)))

    def count_on(self, end: Hit) -> bool:
        """Whether what looks like the end of a training is that of a part: the loss of a step stands behind it, or epochs were left before it."""
        if any(_OF_MORE_THAN_A_STEP.search(text) is None for text in self._behind(end)):
            return True
        before = [s for s in self.steps.get(end.source, ()) if s.place < end.place and s.attempt == end.attempt]
        epoch = _EPOCH.search(before[-1].text) if before else None
        # Some count from 0.
        return epoch is not None and int(epoch[1]) + 1 < int(epoch[2])

    def _behind(self, hit: Hit) -> list[str]:
        own = self.steps.get(hit.source)
        if own is not None:
            later = [s for s in own if s.place > hit.place]
        else:
            later = [s for s in self.timed if hit.at_s is not None and (s.at_s or 0) > hit.at_s + _RESTART_S]
        return [s.text for s in later if s.attempt == hit.attempt and not tracebacks.sums_up(s.text)]

    def gave_up(self, failed: Hit) -> bool:
        """Whether an agent may have ended behind a failure."""
        return any(e.place > failed.place if e.source == failed.source else not _is_before(e, failed) for e in self.ends)


def unsaid_start(own: Iterable[Hit], starts: Iterable[Hit], marks: Marks) -> Hit | None:
    """Where the last attempt of a log begins, if nothing says so: behind an agent's failure, the last one between steps, without an end of the agent.

    `own` are the log's hits, `starts` those of them that begin attempts.
    """
    last = max((h for h in own if h.signature == exits.FAILED and marks.went_on(h)), key=lambda h: h.place, default=None)
    if last is None or marks.gave_up(last) or any(s.place > last.place for s in starts):
        return None
    return replace(last, place=last.place + 1)


def _is_before(hit: Hit, failed: Hit) -> bool:
    return hit.at_s is not None and failed.at_s is not None and hit.at_s < failed.at_s - 1


def _banner(start: Hit) -> tuple[object, ...]:
    """A process may use two releases of NCCL."""
    return (start.signature, start.host, start.pid, start.groups.get("version"))


def _is_older(start: Hit, since: Sequence[Failure]) -> bool:
    times = [f.at_s for f in since if f.at_s is not None]
    return start.at_s is not None and bool(times) and start.at_s < max(times) - 1


def attempt_of(place: float, starts: Sequence[float]) -> int:
    """Which attempt, from 1, a place of the file (or a time) belongs to, where `starts` are those of attempts 2, 3, ..."""
    return bisect_right(starts, place) + 1
