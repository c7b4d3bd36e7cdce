"""What the trials of `unhang run --fallback` found, as the first remedy of a verdict: here from a few lines in the log of a terminal.

A run directory has more of it, see `solved`, which needs what nobody loads for a log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from unhang.diagnosis.remains import SUPERVISE
from unhang.diagnosis.remains import remedy as known_remedy
from unhang.knowledge import words
from unhang.knowledge.words import Text, msg
from unhang.logs import Hit
from unhang.logs.signature import listed
from unhang.model import Remedy, Verdict, frozen

if TYPE_CHECKING:
    from unhang.diagnosis.rerun_command import RunCommand

_CLIMBING, _FELL_BACK, _TAKEN_BACK, ENDED_WELL = map(listed, ("climbing", "fell-back", "taken-back", "ended-well"))
# Printed where something was found on the way.
(RECORDS,) = listed("records")
SIGNATURES = (*_CLIMBING, *_FELL_BACK, *_TAKEN_BACK, *ENDED_WELL, RECORDS)


def told_by_logs(found: Verdict, hits: Iterable[Hit]) -> Verdict:
    """The verdict on logs that hold what unhang wrote to the terminal; of what was found for another cause nothing is told."""
    hits = list(hits)
    if found.primary is None or found.primary.standing == "not-established":
        found = _recorded(found, hits)
    change = taken(hits)
    if change is None or found.primary is None or found.primary.cause != change.cause:
        return found
    says = msg(
        "Proven on the machine of this log by unhang run: {what} ({set}); it passed twice in trials, and {then} ({source}).",
        what=change.what,
        set=change.sets,
        then=msg("the training then ended well with it") if change.ended_well else msg("the next attempt ran with it"),
        source=change.place,
    )
    return first(found, remedy(says, change.what.split(", "), None))


def _recorded(found: Verdict, hits: Sequence[Hit]) -> Verdict:
    """A hang leaves nothing in a log that anybody would recognise: but unhang run has told where its verdict is."""
    told = [h for h in hits if h.signature in (RECORDS, *ENDED_WELL)]
    # The records of a run that ended well are named behind its end.
    if not told or any(h.signature in ENDED_WELL for h in told[-2:]):
        return found
    last = told[-1]
    says = msg("unhang run found something in this run, and its records tell what; in this log nothing else names it")
    primary = found.primary or words.unestablished(
        says,
        evidence=(last.evidence(),),
    )
    read = known_remedy("read-verdict", path=last.groups["run"].strip("'"))
    # It was run under unhang.
    others = (one for one in primary.remedies if one != SUPERVISE)
    return replace(found, primary=replace(primary, remedies=(read, *others)))


@frozen
class Change:
    """`what` as `--set` takes it, `sets` what came of it, `cause` what it answers; `place` is the line that tells it."""

    cause: str
    what: str
    sets: str
    place: str
    ended_well: bool

    @property
    def course(self) -> Text:
        """How the training went on behind the failure."""
        if self.ended_well:
            return msg("; with {what} the training then finished", what=self.what)
        return msg("; it then went on with {what}", what=self.what)


def taken(hits: Iterable[Hit]) -> Change | None:
    """The change that was taken last, and not taken back."""
    told = [h for h in hits if h.signature in SIGNATURES]
    last = next((n for n in reversed(range(len(told))) if told[n].signature in (*_FELL_BACK, *_TAKEN_BACK)), None)
    climb = next((h for h in reversed(told[:last]) if h.signature in _CLIMBING), None)
    if last is None or climb is None or told[last].signature in _TAKEN_BACK:
        return None
    at = told[last]
    ended_well = any(h.signature in ENDED_WELL and h.source == at.source for h in told[last + 1 :])
    return Change(cause=climb.groups["cause"], what=at.groups["what"], sets=at.groups["set"], place=f"{at.source}:{at.line}", ended_well=ended_well)


def remedy(says: Text, sets: Iterable[str], typed: RunCommand | None) -> Remedy:
    """`sets` as `--set` takes them; `typed` is what was run, where that is known."""
    from unhang.diagnosis.rerun_command import again

    added = [word for one in sets for word in ("--set", one)]
    return Remedy(id="proven-here", says=says, command=again(added, typed), trial="passed")


def first(found: Verdict, remedy: Remedy) -> Verdict:
    """With it in front, and without those that say to type the same: what was proven says more."""
    assert found.primary is not None
    others = (r for r in found.primary.remedies if r.command is None or _typed_as(r.command) != _typed_as(remedy.command or ""))
    return replace(found, primary=replace(found.primary, remedies=(remedy, *others)))


def _typed_as(command: str) -> list[str]:
    """Words with which two commands of `unhang run` are compared: a `--` changes nothing."""
    return [word for word in command.split() if word != "--"]
