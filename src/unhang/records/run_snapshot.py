"""What a run looks like at one moment. `unhang top --json` prints it: its field names are promised. What is None is not known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal, get_args

from unhang.model import frozen
from unhang.records.run_so_far import Happened, Monitored
from unhang.records.status import Place

TOP_SCHEMA = "unhang/top/1"

# How a rank stands, the most interesting first.
#   failed    it raised, was killed, or ended with an exit code that is not 0
#   stuck     others wait for it, and for longer than a hang takes
#   silent    no heartbeat: stopped (SIGSTOP), or something holds the interpreter's lock
#   late      others wait for it, for longer than is usual
#   slow      others wait for it, and it executes: it gets time
#   waiting   inside a collective for longer than is usual
#   unknown   nothing new is known of it
#   starting  it has neither joined a group nor taken a step
#   running   it reports, and moves
#   left      it has left its group, or reports no longer, and lives
#   stopped   it was ended, by its launcher or by us
#   done      it ended in order
State = Literal["failed", "stuck", "silent", "late", "slow", "waiting", "unknown", "starting", "running", "left", "stopped", "done"]
STATES: tuple[State, ...] = get_args(State)
# Those that something is wrong with; a rank that is late or slow, and whoever waits for it, may come right by itself.
WRONG: frozenset[State] = frozenset({"failed", "stuck", "silent"})

# How a run stands.
#   starting  no rank of this attempt has taken a step
#   running   ranks report
#   standing  nothing has moved for longer than is usual
#   wrong     something has gone wrong: evidence is taken, or the attempt is ending
#   between   an attempt has ended, and another one, or the end of the run, is to come
#   trying    changes of settings are tried
#   ended     the run is over
#   gone      `unhang run` lives no longer, and has not said that the run was over
#   unknown   whether it goes on cannot be told from here
Phase = Literal["starting", "running", "standing", "wrong", "between", "trying", "ended", "gone", "unknown"]


@frozen
class Memory:
    """Of the device that a rank uses, whoever uses it as well."""

    used_bytes: int
    total_bytes: int


@frozen
class Rank:
    """`age_s` is how old its newest heartbeat is; `place` and `call` are as of then. `waits_s`: how long it has been inside that collective,
    None where it is in none, or where it is not known whether it is still (`unhang run` has not written for a while).

    `blamed`: the verdict names it. `process` is the kernel's letter for it, where somebody looked. `alive`: whether its very process still lives once
    `unhang run` is gone; None before, and where it cannot be seen from here.
    """

    rank: int
    state: State
    host: str
    pid: int
    local_rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    device: str | None = None
    gpu: str | None = None
    memory: Memory | None = None
    step: int | None = None
    steps_per_s: float | None = None
    age_s: float | None = None
    quiet_s: float | None = None
    place: Place | None = None
    call: str | None = None
    group: str | None = None
    number: int | None = None
    waits_s: float | None = None
    process: str | None = None
    alive: bool | None = None
    cpu_share: float | None = None
    raised: str | None = None
    exitcode: int | None = None
    blamed: bool = False


@frozen
class Supervisor:
    """`unhang run` itself. `alive` is None where its process cannot be seen from here; `silent_s` is how long ago it wrote last."""

    host: str | None = None
    pid: int | None = None
    alive: bool | None = None
    silent_s: float | None = None


@frozen
class VerdictSummary:
    """A verdict, in short, on what went wrong in `attempt`. `ranks` are those that it names."""

    attempt: int | None = None
    cause: str
    says: str
    standing: str | None = None
    where: str | None = None
    ranks: tuple[int, ...] = ()


@frozen
class Trouble:
    """What went wrong last in this attempt and has not passed: a kind of incident, `for_s` seconds ago; `judged` once its verdict is drawn."""

    kind: str
    number: int
    for_s: float | None
    judged: bool


@frozen
class Job:
    """The run as a whole. `started` is in seconds since 1970, `elapsed_s` since then (of a run that has ended: how long it
    took; of one that is gone: until the last thing that was recorded, None where there is none).

    `settings` are those that were asked for (`preset` where one was), by our own names. `expected` is how many ranks there should be; of more than
    one host only the ranks of this one are seen. `step` is that of the slowest rank.
    """

    command: tuple[str, ...] = ()
    cwd: str | None = None
    python: str | None = None
    torch: str | None = None
    preset: str | None = None
    settings: Mapping[str, bool | int | float | str | None] = field(default_factory=dict)
    on_failure: str | None = None
    max_restarts: int | None = None
    started: float | None = None
    elapsed_s: float | None = None
    attempt: int | None = None
    phase: Phase
    supervisor: Supervisor
    expected: int | None = None
    step: int | None = None
    steps_per_s: float | None = None
    usual_gap_s: float | None = None
    hang_after_s: float | None = None
    timeout_s: float | None = None
    trouble: Trouble | None = None
    verdict: VerdictSummary | None = None
    exitcode: int | None = None
    attempts: int | None = None
    gave_up: str | None = None


@frozen
class RunSnapshot:
    """All of it, at `time_s` since 1970. `ranks` by number; `counts` of their states; `monitor` is what `unhang.Monitor` told last, `age_s` old,
    `of_before`: by an earlier attempt. `notes` are what could not be read, and why.
    """

    schema: str = TOP_SCHEMA
    run_dir: str
    time_s: float
    job: Job
    counts: Mapping[str, int] = field(default_factory=dict)
    ranks: tuple[Rank, ...] = ()
    monitor: Monitored | None = None
    monitor_age_s: float | None = None
    monitor_of_before: bool = False
    events: tuple[Happened, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_wrong(self) -> bool:
        """Whether something is known to be wrong."""
        job = self.job
        ended_badly = job.phase == "ended" and job.exitcode != 0
        return ended_badly or job.phase in ("gone", "wrong") or (job.phase != "ended" and any(self.counts.get(state) for state in WRONG))

    @property
    def is_known(self) -> bool:
        """Whether it is known how the run stands; what is not known is not called healthy."""
        return self.job.phase != "unknown" and not (self.job.phase in ("running", "standing") and self.counts.get("unknown"))
