"""What happens during a supervised run, one frozen type for each: a line of events.jsonl, and what is told to the user."""

from __future__ import annotations

from collections.abc import Callable
from typing import Union

from unhang.model import Verdict, Wait, frozen
from unhang.records.status import Seen


@frozen
class Started:
    """The command was started."""

    attempt: int
    pid: int
    command: tuple[str, ...]


@frozen
class Attached:
    """A process reports to us. `restarts`: how often its launcher says that it has started its ranks again."""

    rank: int | None
    pid: int
    host: str
    restarts: int


@frozen
class Joined:
    """A rank has initialised torch.distributed."""

    rank: int
    world_size: int
    backend: str
    device: str | None


@frozen
class Overridden:
    """The hook has put the user's wish in the place of the script's; `place` is the script's line."""

    what: str
    was: str
    now: str
    ranks: tuple[int, ...]
    place: tuple[str, int] | None


@frozen
class Ignored:
    """A wish of the user's that the hook could not fulfil; `why` is a word of the protocol's."""

    what: str
    value: str
    why: str
    ranks: tuple[int, ...]


@frozen
class FirstStep:
    """Every rank has taken its first optimizer step."""

    ranks: int
    devices: tuple[str, ...]
    backend: str | None
    after_s: float


@frozen
class Pace:
    """The newest step of the slowest rank and the recent rate; told, not written."""

    step: int
    steps_per_s: float | None
    ranks: int
    elapsed_s: float


@frozen
class Stalled:
    """The others wait for `ranks`, which get time; again at growing intervals. Where nobody waits for anybody, `waiting` is empty.

    `kind` is a word of `launch/patience`; `wait` what the first of them waits in. `left_s` is None if nothing will be ended for this stall.
    `met_before` counts how often the training was ended for a stall at this place, `longer_s` is a --hang-after that would leave it more time.
    """

    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    for_s: float
    kind: str
    place: str | None = None
    wait: Wait | None = None
    left_s: float | None = None
    met_before: int = 0
    longer_s: int | None = None
    incident: int | None = None


@frozen
class CaughtUp:
    """Things move again after a stall that was reported."""

    after_s: float


@frozen
class Opened:
    """Something is wrong; evidence is being taken."""

    incident: int
    kind: str


@frozen
class Abandoned:
    """What was opened as an incident has turned out to be none."""

    incident: int


@frozen
class Drawn:
    """A verdict was drawn; `took_s` from the first sign to the verdict."""

    incident: int
    verdict: Verdict
    took_s: float


@frozen
class Revised:
    """The verdict as it is to be read now that the attempt's processes have ended; neither told nor written."""

    verdict: Verdict


@frozen
class Restarting:
    """The training is started again."""

    attempt: int
    of: int


@frozen
class Climbing:
    """Changes of settings are tried, because of that cause, with so many ranks; it takes `limit_s` at most. Of that `answer_s` is kept for the
    user's answer where one is asked for."""

    cause: str
    ranks: int
    limit_s: float
    answer_s: float | None = None


@frozen
class RungTried:
    """One change was tried ("passed", "failed", "inconclusive"), or could not be ("skipped")."""

    rung: str
    title: str
    outcome: str
    says: str
    busbw_gbps: float | None = None
    seconds: float = 0.0


@frozen
class Asking:
    """The user is asked which of so many ways to take; what happens without an answer happens after `within_s`."""

    ways: int
    within_s: float


@frozen
class FellBack:
    """The next attempt runs with other settings: `choice` in our names, `environment` and `arguments` what comes of it."""

    choice: dict[str, bool | int | float | str]
    environment: dict[str, str]
    arguments: tuple[str, ...]
    says: str
    remembered: bool = False


@frozen
class GaveUp:
    """No further start, and why."""

    why: str


@frozen
class Note:
    """Something that the user should know and that is no verdict."""

    text: str


@frozen
class LastSeen:
    """A signal ends a training of which no evidence was taken: where its ranks were by their last heartbeats before it. `still_s`: how long before it
    the training had last moved (a step, a collective), None where it had not begun to.
    """

    signal: str
    seen: tuple[Seen, ...]
    still_s: float | None = None


@frozen
class Forced:
    """Ranks that still lived `after_s` behind the signal and were ended by force; where they were then, by their last heartbeats. Not `by_us`: they
    were gone a little later without a word, as ranks are that their launcher kills.
    """

    seen: tuple[Seen, ...]
    after_s: float
    by_us: bool


@frozen
class Finished:
    """The run is over."""

    exitcode: int
    attempts: int
    incidents: int
    elapsed_s: float
    run_dir: str = ""
    interrupted: bool = False


Event = Union[  # noqa: UP007
    Started,
    Attached,
    Joined,
    Overridden,
    Ignored,
    FirstStep,
    Pace,
    Stalled,
    CaughtUp,
    Opened,
    Abandoned,
    Drawn,
    Revised,
    Restarting,
    Climbing,
    RungTried,
    Asking,
    FellBack,
    GaveUp,
    Note,
    LastSeen,
    Forced,
    Finished,
]

Tell = Callable[[Event], None]
