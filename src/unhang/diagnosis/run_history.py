"""How a run went as a whole, from its events: whether it came to an end, with which exit code, and which incidents were opened on the way.

A run directory without incidents is no proof of health: unhang itself may have been killed, or the disk may have refused the records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

import msgspec

from unhang import encoding
from unhang.diagnosis.remains import remedy
from unhang.errors import EXIT_INTERRUPTED, EXIT_OK
from unhang.knowledge import seen, words
from unhang.knowledge.words import Text, joined, msg
from unhang.model import Evidence, Finding, NotExamined, Remedy, frozen
from unhang.records.rundir import refuse_special
from unhang.records.status import Seen

MAX_LINE_BYTES = 1024 * 1024


def read_logs(folder: str) -> Remedy:
    return remedy("read-logs", id="read-log", path=folder)


@frozen
class LastSeen:
    """Where ranks were by their last heartbeats as a signal came; `still_s`: how long before it the training had moved."""

    signal: str
    seen: tuple[Seen, ...]
    still_s: float | None = None


@frozen
class Forced:
    """Ranks that were ended by force, `after_s` behind the signal; not `by_us`: by their launcher, as it seems."""

    seen: tuple[Seen, ...]
    after_s: float
    by_us: bool


@frozen
class RunHistory:
    """`exitcode`, `elapsed_s`, `line` belong to the last end that is recorded; None where there is none. `damaged` counts lines; `cut`:
    some of them stand behind the last whole event, which was told at `last_s`.

    `opened`: the incidents that were opened, without those that turned out to be none. `was_interrupted` is None where the record does not say.
    """

    source: str
    exists: bool = True
    exitcode: int | None = None
    elapsed_s: float = 0.0
    line: int | None = None
    opened: tuple[int, ...] = ()
    damaged: int = 0
    cut: bool = False
    last_s: float = 0.0
    was_interrupted: bool | None = None
    last_seen: LastSeen | None = None
    forced: tuple[Forced, ...] = ()
    # After the last incident was opened its ranks were started again, or what it stalled in was over.
    restarted: bool = False
    resumed: bool = False

    @property
    def well(self) -> bool:
        """The training ended by itself, with exit code 0, and nothing was ever found wrong with it."""
        return self.exitcode == EXIT_OK and not self.opened

    @property
    def recovered(self) -> bool:
        """The training ended with exit code 0, and had gone on after all that was found wrong with it."""
        return self.exitcode == EXIT_OK and (self.restarted or self.resumed)

    @property
    def interrupted(self) -> bool:
        # A training that ended itself with 143 is none; runs from before that was written had one code for all.
        return self.exitcode == EXIT_INTERRUPTED if self.was_interrupted is None else self.was_interrupted


@frozen
class Unfinished:
    """How a run stands whose end is not recorded. `why` the end is not recorded, in a few words; `says` with where the ranks were."""

    why: Text
    says: Text
    evidence: tuple[Evidence, ...]
    remedies: tuple[Remedy, ...]

    def finding(self, more: Sequence[Text] = ()) -> Finding:
        """With what else is to be said of it."""
        says = joined([self.says, *more])
        return words.unestablished(
            says,
            evidence=self.evidence,
            remedies=self.remedies,
        )


class Event(msgspec.Struct):
    event: str
    s: float = 0.0
    exitcode: int | None = None
    elapsed_s: float | None = None
    incident: int | None = None
    restarts: int = 0
    interrupted: bool | None = None
    attempt: int | None = None
    kind: str = ""
    signal: str = ""
    seen: tuple[Seen, ...] = ()
    still_s: float | None = None
    after_s: float = 0.0
    by_us: bool = True


def drawn(path: Path, *, attempt: int, kinds: Collection[str]) -> list[int]:
    """The incidents of these kinds in an attempt on which a verdict was drawn, in order. Raises OSError."""
    current: int | None = None
    opened: set[int] = set()
    found: list[int] = []
    for _, event in events(path):
        if event is None:
            continue
        if event.event == "Started":
            current = event.attempt
        if current != attempt or event.incident is None:
            continue
        if event.event == "Opened" and event.kind in kinds:
            opened.add(event.incident)
        elif event.event == "Abandoned":
            opened.discard(event.incident)
        elif event.event == "Drawn" and event.incident in opened:
            found.append(event.incident)
    return found


def events(path: Path) -> Iterator[tuple[int, Event | None]]:
    """What events.jsonl tells, with the numbers of its lines; None for a line that is damaged. Raises OSError."""
    decoder = msgspec.json.Decoder(Event)
    refuse_special(path)
    with path.open("rb") as f:
        for number, raw in enumerate(begun_lines(f), 1):
            try:
                yield number, decoder.decode(raw)
            except encoding.NOT_JSON:
                if raw.strip():
                    yield number, None


def begun_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Lines, of longer ones than any of unhang the beginning."""
    begins = True
    while piece := file.readline(MAX_LINE_BYTES):
        if begins:
            yield piece
        begins = piece.endswith(b"\n")


def read(path: Path, *, source: str) -> RunHistory:
    """The course of a run from its events.jsonl. A line that was cut off is counted, not raised. Raises OSError where it cannot be read at all."""
    finished: tuple[int, Event] | None = None
    opened: list[int] = []
    damaged, restarted, resumed, another = 0, False, False, False
    cut, last_s = False, 0.0
    last_seen: LastSeen | None = None
    forced: list[Forced] = []
    try:
        for number, event in events(path):
            if event is None:
                damaged += 1
                cut = True
                continue
            cut, last_s = False, event.s
            if event.event == "Finished" and event.exitcode is not None:
                finished = (number, event)
            elif event.event == "Opened" and event.incident is not None:
                opened.append(event.incident)
                restarted = resumed = False
            elif event.event == "Started":
                restarted, another = bool(opened), False
            elif event.event == "Attached" and opened:
                # torchrun starts its ranks again and tells nobody. What the command starts next tells nothing of the program that failed.
                another = another or not event.restarts
                restarted = restarted or not another
            elif event.event == "CaughtUp":
                resumed = True
            elif event.event == "Abandoned" and event.incident in opened:
                opened.remove(event.incident)
            elif event.event == "LastSeen":
                last_seen = LastSeen(signal=event.signal, seen=event.seen, still_s=event.still_s)
            elif event.event == "Forced":
                forced.append(Forced(seen=event.seen, after_s=event.after_s, by_us=event.by_us))
    except FileNotFoundError:
        return RunHistory(source=source, exists=False)
    course = RunHistory(source=source, opened=tuple(opened), damaged=damaged, cut=cut, last_s=last_s, last_seen=last_seen, forced=tuple(forced))
    if finished is None:
        return course
    line, end = finished
    return replace(
        course,
        exitcode=end.exitcode,
        elapsed_s=end.s if end.elapsed_s is None else end.elapsed_s,
        line=line,
        was_interrupted=end.interrupted,
        restarted=restarted,
        resumed=resumed,
    )


def unknown(course: RunHistory, *, damaged: Collection[int] = (), logs: str | None = None, unfinished: Unfinished | None = None) -> Finding | None:
    """What is to be said of a run of which no incident can be read; None where it went well, or was interrupted.

    `damaged`: the incidents that are there; `logs`: those of the last attempt, as they may be named to `unhang why`; `unfinished`: how it stands,
    where its end is not recorded.
    """
    if course.well or (course.interrupted and not course.opened):
        return None
    broken, gone = msg("damaged"), msg("missing")
    states = ((broken, [n for n in course.opened if n in damaged]), (gone, [n for n in course.opened if n not in damaged]))
    lacking = msg("the records of {incidents} are {state}")
    parts = [lacking.fill(incidents=_incidents(numbers), state=state) for state, numbers in states if numbers]
    lost = joined(parts, msg(", ", "run_history")) if parts else msg("no incident of it was recorded")
    if unfinished is not None:
        return unfinished.finding([*([lost] if course.opened else []), *asked(course)])
    ended = msg("ended with exit code {code}", code=str(course.exitcode))
    if course.interrupted:
        ended = msg("was interrupted after {s}", s=words.seconds(course.elapsed_s))
    says = msg("the training {ended}; {lost}", ended=ended, lost=lost)
    evidence = () if course.line is None else (words.stated(course.source, msg("Finished, exit code {n}", n=str(course.exitcode)), course.line),)
    remedies = () if logs is None else (read_logs(logs),)
    return words.unestablished(says, evidence=evidence, remedies=remedies)


def asked(course: RunHistory) -> list[Text]:
    """Where ranks were as they were told to end, and who had to be killed, of a run that a signal ended or was to end."""
    found = []
    if course.last_seen is not None:
        found.append(seen.before_signal(course.last_seen.signal, course.last_seen.seen, course.last_seen.still_s))
    return [*found, *(seen.by_force(f.seen, f.after_s, by_us=f.by_us) for f in course.forced)]


def not_examined(
    course: RunHistory, unreadable: dict[int, str], *, unfinished: Unfinished | None = None, judged: bool = False
) -> tuple[NotExamined, ...]:
    """What the events tell of and nobody could look at: `unreadable` incidents with the reason, an end that was not the training's own. `judged`: the
    verdict is on an incident, and says nothing of where the ranks were last.
    """
    found = [NotExamined(what=f"incident {n}", why=why) for n, why in sorted(unreadable.items())]
    if not course.exists:
        found.append(NotExamined(what=course.source, why="it is missing: how the run ended is not known"))
    if course.damaged:
        found.append(NotExamined(what=f"{course.damaged} line{'s' if course.damaged > 1 else ''} of {course.source}", why="damaged"))
    if course.interrupted:
        after = words.seconds(course.elapsed_s)
        found.append(NotExamined(what="the rest of the training", why=msg("the run was interrupted after {after}", after=after)))
    elif course.exists and unfinished is not None:
        why = unfinished.says if judged else msg("it is not recorded: {why}", why=unfinished.why)
        found.append(NotExamined(what="the end of the run", why=why))
    return tuple(found)


def _incidents(numbers: Sequence[int]) -> Text:
    return msg("incident{s} {numbers}", s="s" if len(numbers) > 1 else "", numbers=", ".join(map(str, numbers)))
