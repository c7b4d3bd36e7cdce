"""The types that cross rooms: what was seen (Evidence), what it means (Finding), and the whole answer (Verdict).

Frozen, plain data. `Verdict` is an interface, printed by `--json` and kept as `verdict.json`; its field names are promised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform

    _Record = TypeVar("_Record")

    @dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
    def frozen(kind: type[_Record]) -> type[_Record]:
        """A frozen dataclass whose fields are given by name."""

else:
    frozen = dataclass(frozen=True, kw_only=True)

Standing = Literal["established", "likely", "possible", "not-established"]
TrialState = Literal["passed", "failed", "untried"]
Severity = Literal["error", "warning", "note"]
InputKind = Literal["log", "flight", "stacks", "kernel", "snapshot", "ras", "run"]
# What two sources differ in: whether a call was issued, whether it was completed, whether a process lives, how it ended.
Disagreement = Literal["issued", "completed", "alive", "ending"]

# Numbers of processes are given again, also by another start of the machine, and each container counts its own.


@frozen
class ProcessId:
    """One process and no other: `start_ticks` since the start of the machine `boot_id`, `pid` as `pid_namespace` counts it."""

    host: str
    pid: int
    start_ticks: int
    boot_id: str
    pid_namespace: str


VERDICT_SCHEMA = "unhang/verdict/1"


@frozen
class Evidence:
    """One thing that was seen: the text as it stood, and where it stood (`line` counts from 1)."""

    source: str
    text: str
    line: int | None = None


@frozen
class Remedy:
    """A change that should help. `trial` says whether it was proven on this machine; until then it is "untried".

    `env` is set on every rank, `command` is run, `verify` is a command that shows whether the change took effect.
    """

    id: str
    says: str
    env: dict[str, str] = field(default_factory=dict)
    command: str | None = None
    verify: str | None = None
    trial: TrialState = "untried"


@frozen
class Finding:
    """One cause found in the evidence. `says` is one sentence with the numbers in it; `where` is "file.py:88 in function"."""

    cause: str
    standing: Standing
    says: str
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    where: str | None = None
    evidence: tuple[Evidence, ...] = ()
    remedies: tuple[Remedy, ...] = ()


# Begins the `why` of other runs that lie beside the one that was judged: they take nothing away from what is said of it.
ONLY_NEWEST = "only the newest was judged"


@frozen
class NotExamined:
    """Something that could not be looked at, and why. Never to be read as healthy.

    `unread`: it was given to be read, and that could not be done, or not to its end (damage, no permission). What was left out on purpose is not."""

    what: str
    why: str
    unread: bool = False


@frozen
class Contradiction:
    """Two sources that cannot both be right about the same ranks. Neither is dropped, and nothing between them is made up.

    `says` is one sentence with what both tell; `statements` are the two of them, each where it stands.
    """

    about: Disagreement
    says: str
    ranks: tuple[int, ...]
    statements: tuple[Evidence, Evidence]


@frozen
class Input:
    """Something that was read to reach the verdict."""

    source: str
    kind: InputKind
    bytes: int


@frozen
class Verdict:
    """The answer to "why did it fail?". `primary` is None where nothing is wrong; `recovered`: the training went on after it, and finished.

    A finding that rests on one side of a contradiction is one standing below what that side alone would give.
    """

    schema: str = VERDICT_SCHEMA
    primary: Finding | None
    contributing: tuple[Finding, ...] = ()
    symptoms: tuple[Finding, ...] = ()
    contradictions: tuple[Contradiction, ...] = ()
    not_examined: tuple[NotExamined, ...] = ()
    inputs: tuple[Input, ...] = ()
    recovered: bool = False

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All of them, the primary one first."""
        return (*(() if self.primary is None else (self.primary,)), *self.contributing, *self.symptoms)

    def each(self, changed: Callable[[Finding], Finding]) -> Verdict:
        """This verdict with every finding as `changed` gives it."""
        return replace(
            self,
            primary=None if self.primary is None else changed(self.primary),
            contributing=tuple(map(changed, self.contributing)),
            symptoms=tuple(map(changed, self.symptoms)),
        )


DOCTOR_SCHEMA = "unhang/doctor/1"
AreaState = Literal["ok", "noted", "found", "absent", "unknown"]


@frozen
class HostFinding:
    """Something that is so on a machine: it stops a training ("error"), may stop or slow one ("warning"), or is worth knowing ("note").

    `area` is the subject where it was seen. `says` is one sentence with the numbers in it, `leads_to` what it will cause.
    """

    cause: str
    area: str
    severity: Severity
    says: str
    leads_to: str
    evidence: tuple[Evidence, ...] = ()
    remedies: tuple[Remedy, ...] = ()


@frozen
class Area:
    """One subject of a machine. "found": errors or warnings stand against it, "noted": notes alone.

    "unknown": it, or a part of it, could not be looked at.

    `summary` is one line with what was seen, `details` more of it, `unread` what could not be.
    """

    id: str
    state: AreaState
    summary: str = ""
    details: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


@frozen
class Difference:
    """One fact that differs between two snapshots. `path` leads to it within its area, `a` and `b` are its values in words."""

    area: str
    path: str
    a: str
    b: str


StageState = Literal["passed", "failed", "lacking", "not-tested"]


@frozen
class StageResult:
    """One stage of a live examination with `world_size` ranks. "lacking": this torch or backend has not got it; "not-tested" after a failure.

    `says` is what was seen, or why it failed; `verdict` what the ranks' own output says of that; `logs` where that output is.
    """

    stage: str
    world_size: int
    state: StageState
    seconds: float = 0.0
    says: str = ""
    verdict: Verdict | None = None
    logs: str = ""


@frozen
class Live:
    """What was really run: with which Python, over which backend, and what follows."""

    python: str
    backend: str
    stages: tuple[StageResult, ...]
    conclusion: str


TrialOutcome = Literal["passed", "failed", "inconclusive"]


@frozen
class Steps:
    """What the user's own few steps did under a candidate: the command's exit code, and how long a step took; None where none was seen."""

    exitcode: int
    steps: int = 0
    step_s: float | None = None
    says: str = ""


@frozen
class Trial:
    """A change of settings that was really run on this machine.

    `choice` is what was set, `environment` the variables that came of it, `transports` and `interfaces` what the ranks used by their own account
    (none where they tell of none), `busbw_gbps` of the largest all_reduce. "inconclusive": it says nothing about the change, and `says` why.
    `wrong_command`: the user's own command cannot go well under any.
    """

    choice: dict[str, bool | int | float | str]
    outcome: TrialOutcome
    world_size: int
    backend: str
    says: str
    environment: dict[str, str] = field(default_factory=dict)
    transports: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    stages: tuple[StageResult, ...] = ()
    busbw_gbps: float | None = None
    steps: Steps | None = None
    seconds: float = 0.0
    verdict: Verdict | None = None
    wrong_command: bool = False


@frozen
class Tried:
    """One rung of the ladder: its `trial`, or why there was none. `cost` is what the change takes away, in words."""

    id: str
    title: str
    cost: str
    trial: Trial | None = None
    skipped: str = ""


@frozen
class Outcome:
    """Where the ladder ended. `chosen` is the smallest change that works: {} where it works as it is, None where nothing that was tried does.

    `rungs` are those that were climbed, in order; `dropping` the trials after them, that found out what of the change is needed; `confirmed`: the
    smallest change passed once more by itself. `why` is the cause that the climb began from.
    """

    chosen: dict[str, bool | int | float | str] | None
    rungs: tuple[Tried, ...]
    dropping: tuple[Trial, ...] = ()
    confirmed: bool = False
    says: str = ""
    why: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    seconds: float = 0.0
    remembered: bool = False


@frozen
class Examination:
    """The answer to "is this machine fit to train?". `taken` is when it was looked at (ISO 8601, UTC)."""

    schema: str = DOCTOR_SCHEMA
    host: str
    taken: str
    areas: tuple[Area, ...]
    findings: tuple[HostFinding, ...] = ()
    not_examined: tuple[NotExamined, ...] = ()
    live: Live | None = None
    ladder: Outcome | None = None


WaitKind = Literal["sleep", "socket", "pipe", "fifo", "file-lock", "mutex", "semaphore", "child", "terminal", "file", "poll"]


@frozen
class Wait:
    """What one thread waits in.

    kind      "mutex" is a lock inside the process, "semaphore" one that is shared between processes
    timed     the wait ends by itself, at a time that the program gave
    ends      False if nothing can end it any more: every thread that could release it waits as well
    what      a path, a peer's address ("10.0.0.7:443"), or the command line of a child
    holder    the process that holds the lock, the child that is waited for, or the process at the other end of the pipe
    command   the holder's command line
    """

    kind: WaitKind
    timed: bool = False
    ends: bool = True
    what: str | None = None
    holder: int | None = None
    command: str | None = None


@frozen
class Counters:
    """One process group on one rank: sequence number of the newest collective issued and of the newest completed."""

    enqueued: int
    completed: int
