"""What the page draws: each rank's operations in each process group as columns, and what is known of the ranks besides.

Plain data that knows of no dump format: whoever has read recorders, digests or counters makes one. A `Track` holds column after column by sequence
number, so that a rank of 2,000 operations is five arrays and no object for each. Nothing here is judged; `Divergence` says what the verdict found.
"""

from __future__ import annotations

from array import array
from enum import IntEnum
from typing import Literal

from unhang.model import frozen


class State(IntEnum):
    """What is known of one operation of one rank.

    ENDED: it is over, and whether well is not told (Gloo's `retired`, a timeout). ISSUED: enqueued and not seen to finish. MISSING: the others are
    in it and this rank never issued it. NONE: nothing is kept of this number.
    """

    NONE = 0
    COMPLETED = 1
    ENDED = 2
    ISSUED = 3
    STARTED = 4
    MISSING = 5


@frozen
class Operation:
    """A kind of operation: "all_reduce", and its sizes and types in words."""

    name: str
    says: str = ""


@frozen
class Group:
    """A process group; `members` is () where they are not known. The numbers of a point-to-point group mean nothing between ranks."""

    name: str
    desc: str = ""
    members: tuple[int, ...] = ()
    point_to_point: bool = False


@frozen
class Track:
    """One rank in one group. Column i is sequence number `first` + i; all columns have one length.

    `ops` and `sites` ('H') index `Scene.operations` and `Scene.sites`; `states` are `State`s. `starts_ns` ('q') are nanoseconds since 1970,
    0 where not recorded; None where no time of this track is known. `group` indexes `Scene.groups`.
    """

    rank: int
    group: int
    first: int
    ops: array[int]
    states: bytes
    starts_ns: array[int] | None = None
    sites: array[int] | None = None

    def __post_init__(self) -> None:
        count = len(self.states)
        assert all(len(column) == count for column in (self.ops, self.starts_ns, self.sites) if column is not None)


Doing = Literal["odd", "missing", "waiting", "completed", "ended", "unknown"]


@frozen
class Side:
    """What some ranks did at a divergence: the operation ("" where they issued none) and the line it came from."""

    ranks: tuple[int, ...]
    operation: str = ""
    says: str = ""
    site: str = ""
    doing: Doing


@frozen
class Divergence:
    """Where the ranks of a group went apart: `odd` issued something else at this number, `missing` never came to it."""

    group: int
    number: int
    odd: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    sides: tuple[Side, ...] = ()


@frozen
class Focus:
    """A call in which `rank` waits, and on which the page opens where no divergence is drawn."""

    group: int
    number: int
    rank: int


Concern = Literal["odd", "missing", "failed", "stopped", "waiting", "outside", "ended", "unknown"]


@frozen
class RankRow:
    """One rank of the job. `says` is what is known of it in words; `unseen`: there is no recorder of it, so that an empty lane proves nothing."""

    rank: int
    concern: Concern = "unknown"
    host: str = ""
    says: str = ""
    where: str = ""
    step: int | None = None
    exitcode: int | None = None
    unseen: bool = False


@frozen
class StackLine:
    """One frame as it is shown: the path shortened, `code` the source line where it was read."""

    file: str
    line: int
    name: str
    code: str = ""
    own: bool = False


@frozen
class StackGroup:
    """Ranks whose main threads stand in one and the same stack, innermost frame last. The first `shared` frames are those of all groups."""

    ranks: tuple[int, ...]
    lines: tuple[StackLine, ...]
    shared: int = 0


@frozen
class Fact:
    """One thing about the run or its machine."""

    name: str
    value: str


@frozen
class Facts:
    """Facts under a heading: "run", "environment" or "host"."""

    title: Literal["run", "environment", "host"]
    facts: tuple[Fact, ...]


@frozen
class Scene:
    """All that a page shows beside the verdict. `until_ns` is when the evidence was taken, 0 where that is not known.

    `hosts_differ`: the times are those of several clocks, so that numbers are the sounder axis. `left_out`: older operations that are in no track.
    """

    title: str = ""
    taken: str = ""
    ranks: tuple[RankRow, ...] = ()
    groups: tuple[Group, ...] = ()
    operations: tuple[Operation, ...] = ()
    sites: tuple[str, ...] = ()
    tracks: tuple[Track, ...] = ()
    divergences: tuple[Divergence, ...] = ()
    focus: Focus | None = None
    stacks: tuple[StackGroup, ...] = ()
    facts: tuple[Facts, ...] = ()
    until_ns: int = 0
    hosts_differ: bool = False
    left_out: int = 0
