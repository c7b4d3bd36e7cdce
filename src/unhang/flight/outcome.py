"""What is found of the recorders of all ranks together: one answer, and what beside it can and cannot be told."""

from __future__ import annotations

from typing import Literal

from unhang.flight.voting import Edit
from unhang.model import frozen

Kind = Literal[
    "missing",
    "op",
    "shape",
    "dtype",
    "order",
    "extra",
    "lacking",
    "p2p-alone",
    "p2p-size",
    "p2p-both-send",
    "groups-crossed",
    "transport",
    "finished-on-some",
    "nothing-wrong",
    "cannot-tell",
]
By = Literal["majority", "history", "sums", "pairs", "nothing"]


@frozen
class SideOf:
    """Ranks that issued the same call as the same number; `call` is what was compared. `number`: of a message, each side has its own."""

    call: str
    ranks: tuple[int, ...]
    number: int | None = None


@frozen
class Step:
    """One place on the way to the end: `waiting` wait in it for `lacking`."""

    group: str
    number: int | None
    call: str
    waiting: tuple[int, ...]
    lacking: tuple[int, ...]


@frozen
class Counted:
    """A call that is in no ring any more, and of which the counters of `ranks` say that it is not over, while `completed` is. `fewer`: members that
    have issued less of the group, each with the newest number. `lagging`: too little went on behind it for the counters to be right."""

    group: str
    number: int
    completed: int
    ranks: tuple[int, ...]
    fewer: tuple[tuple[int, int], ...] = ()
    lagging: bool = False


@frozen
class Outcome:
    """One answer. `ranks` are those to look at: missing, odd, or, where nobody can be blamed, all that are concerned.

    `number` is the sequence number in `group` (of a message its own). `by` is how the odd ones are known; "pairs": both sides' messages were counted;
    "history": of groups that are crossed, what each rank did before.
    `unseen`: members whose dump does not tell, or who have none; `ahead`: members whose ring has overwritten the number. `known`: the recorders tell
    who belongs to the group. `edit` says how the calls of the odd rank become those of the others. `outside`: ranks that may belong to the group,
    which nobody tells; `elsewhere`: where these wait. `aside`: pending calls behind which the same ranks went on, `lacking` those who have not
    recorded them. `older`: ranks whose dump is older than those of others, `perhaps_older` those
    that lack what another one went on from; `left_out`: those whose dump is of another run, each with a rank that it
    does not fit.
    `late`: members that have not issued the number at which others parted, each with the newest that it has, and that wait in nothing.
    `unstarted`: ranks whose GPU has not begun what others' have. `also`: what else holds up the job, and has nothing to do with this.
    `last`, where nobody waits: the newest call of each group, `lacking` those who have not issued it and may have been wanted in it; `unproven`:
    it is over, and may have failed. `counted`: what only counters tell to be pending.
    `buried`: waiting ranks whose rings have overwritten calls before this one that may be pending, too, each with the newest known to be over (0:
    none is).
    """

    kind: Kind
    group: str = ""
    number: int | None = None
    call: str = ""
    members: tuple[int, ...] = ()
    known: bool = True
    ranks: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()
    unseen: tuple[int, ...] = ()
    ahead: tuple[int, ...] = ()
    gave_up: bool = False
    sides: tuple[SideOf, ...] = ()
    by: By = "nothing"
    edit: Edit | None = None
    path: tuple[Step, ...] = ()
    group_name: str = ""
    outside: tuple[int, ...] = ()
    elsewhere: tuple[Step, ...] = ()
    aside: tuple[Step, ...] = ()
    older: tuple[int, ...] = ()
    perhaps_older: tuple[int, ...] = ()
    left_out: tuple[tuple[int, int], ...] = ()
    late: tuple[tuple[int, int], ...] = ()
    unstarted: tuple[int, ...] = ()
    also: tuple[Outcome, ...] = ()
    last: tuple[Step, ...] = ()
    unproven: bool = False
    counted: tuple[Counted, ...] = ()
    buried: tuple[tuple[int, int], ...] = ()


@frozen
class Place:
    """Where a rank waits: in a call with this number of a group, or in its message with it."""

    group: str
    number: int
    is_message: bool = False
