"""What is written down when something goes wrong in a supervised run: one `Incident`, one `RankRecord` for each rank.

These are facts only; nothing here says why. They are written by the supervisor while the ranks still live and read
back, by `unhang why`, at any time and on any machine. Times called `_s` are seconds since the start of the run.
"""

from __future__ import annotations

import signal
from dataclasses import field
from typing import Literal

from unhang.frames import Frame
from unhang.model import Counters, ProcessId, Wait, frozen

INCIDENT_SCHEMA = "unhang/incident/1"

IncidentKind = Literal["hang", "straggler", "failure", "world-size", "interrupted"]
StackSource = Literal["process", "py-spy", "exception", "fatal-signal", "last-heartbeat"]

# A main thread with at least this share of one core is computing.
BUSY_CPU_SHARE = 0.05
# The same for all threads and child processes together: data loader workers, tokenizer threads, compilers. Watchdog threads and the
# services of experiment trackers idle at a few percent.
BUSY_TREE_CPU_SHARE = 0.10
# Read and written by the process and its children: a checkpoint being saved, a download, an `aws s3 cp` that is waited for.
BUSY_IO_BYTES_PER_S = 64 * 1024.0
# A blocked thread does not wake up; one that reads from a network or a disk wakes many times a second. Polling
# loops with a timeout of a second or more (torch's DataLoader polls its workers every 5 s) stay below this.
BUSY_SWITCHES_PER_S = 2.0
# Share of heartbeats at which the main thread stood at another instruction than at the one before.
BUSY_MOVED_SHARE = 0.2
# An endless loop is seen at a few instructions; a step that only takes long, at many.
FEW_PLACES = 6
# As runtime/collectives calls the groups in which unhang's own collectives travel: their deadlines are kept by that library.
OWN_GROUPS = "unhang/"
# What heartbeats put before the name of a group in Gloo's recorder where torch has an accelerator's as well, whether that one is used or not.
BESIDE_ACCELERATOR = "cpu:"
# Heartbeats come four times a second: a rank of which none has come for so long is stopped, or lets none of its threads run.
SILENT_S = 2.0
# Signals by which launchers and users end a process.
FROM_OUTSIDE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Python's exit code where its last output cannot be written.
EXIT_UNFLUSHED = 120


@frozen
class ThreadStack:
    """One thread's Python stack, innermost frame last (as a traceback prints it). `tid` is the kernel's number for it, None if it is not known.

    `keeps`: its process does not end before it (no daemon thread); `started` is the user's line that started it, where that is known.
    """

    name: str
    main: bool
    frames: tuple[Frame, ...]
    tid: int | None = None
    keeps: bool = False
    started: Frame | None = None


@frozen
class Stacks:
    """All threads of one process, and how they were read."""

    source: StackSource
    threads: tuple[ThreadStack, ...]


@frozen
class Activity:
    """What the kernel says a process did during the last `window_s` seconds.

    `state` is the letter of /proc/PID/stat (R running, S sleeping, D uninterruptible, T stopped, t traced, Z zombie).
    Shares are of one core: 1.0 is one core fully used; `tree` means all threads and the children. `moved_share` comes from
    heartbeats and is None without them, as is `places`: at how many instructions they found the main thread since it last moved on. `wait` is
    what the main thread waits in at that moment; None if it runs, or the kernel does not say.
    """

    window_s: float
    state: str
    cpu_share: float
    tree_cpu_share: float
    switches_per_s: float
    io_bytes_per_s: float = 0.0
    moved_share: float | None = None
    rss_bytes: int | None = None
    wchan: str | None = None
    wait: Wait | None = None
    places: int | None = None

    @property
    def stopped(self) -> bool:
        return self.state in ("T", "t")

    @property
    def busy(self) -> bool:
        """Alive and executing, as far as the kernel and the heartbeats can tell."""
        return self.computes or (
            not self.stopped
            and (
                self.switches_per_s >= BUSY_SWITCHES_PER_S
                or self.io_bytes_per_s >= BUSY_IO_BYTES_PER_S
                or (self.moved_share or 0.0) >= BUSY_MOVED_SHARE
            )
        )

    @property
    def computes(self) -> bool:
        """Alive and using processors, itself or by its children."""
        return not self.stopped and (self.cpu_share >= BUSY_CPU_SHARE or self.tree_cpu_share >= BUSY_TREE_CPU_SHARE)

    @property
    def repeats(self) -> bool:
        """Executes only a few instructions, and neither children nor data explain what it is busy with."""
        helped = self.tree_cpu_share - self.cpu_share >= BUSY_TREE_CPU_SHARE or self.io_bytes_per_s >= BUSY_IO_BYTES_PER_S
        return self.busy and not helped and self.places is not None and self.places <= FEW_PLACES


def is_own(group: str) -> bool:
    """Whether a group is one of unhang's own, as recorders or heartbeats call it."""
    return group.removeprefix(BESIDE_ACCELERATOR).startswith(OWN_GROUPS)


def silent(last_beat_s: float | None, at_s: float) -> bool:
    """Whether heartbeats have stopped coming by `at_s`: what the last one told was so then, and the rank may have gone on behind it."""
    return last_beat_s is not None and at_s - last_beat_s > SILENT_S


@frozen
class Raised:
    """An exception that nothing caught; `frames` innermost last."""

    type: str
    text: str
    frames: tuple[Frame, ...]
    at_s: float


@frozen
class Ended:
    """A process that is no more. `exitcode` as in subprocess: negative for a signal, None where nobody could tell.

    `announced`: the interpreter ended in order (its exit handlers ran). `by_launcher`: a launcher or the supervisor ended it.
    `finished`: its script had run to its end before.
    """

    at_s: float
    exitcode: int | None = None
    announced: bool = False
    by_launcher: bool = False
    finished: bool = False

    @property
    def crashed_at_exit(self) -> bool:
        """Whether it died while its process was shutting down, by itself."""
        code = self.exitcode or 0
        return self.finished and ((code < 0 and -code not in FROM_OUTSIDE) or code == EXIT_UNFLUSHED)


@frozen
class ChildRecord:
    """A Python process below a rank. `state` as in `Activity`, `exitcode` as in `Ended`: of a zombie that has failed.

    `worker`: its number among the workers of a data loader. `index`: what that was asked for, by torch's own variables ("53", or "[52, 53]" of
    a batch). `stacks`: a file, relative to the run directory.
    """

    pid: int
    state: str
    exitcode: int | None = None
    worker: int | None = None
    index: str | None = None
    stacks: str | None = None
    wait: Wait | None = None


@frozen
class RankRecord:
    """All that is known of one rank at the moment of the incident.

    `last_place` is where its main thread was last seen by a heartbeat, `last_beat_s` when. `answered`: the process itself
    answered the request for evidence. `gpu` is the PCI address of its device. `stacks`, `flight`: files, relative to the run directory.
    `exit_frames` is the call of sys.exit or os._exit that ended it, innermost last. `done`: it had left its process group in order, or come to
    the end of its script. `process` tells a process that still lived then from all that get its pid later. `children` are those of a rank that
    others wait for, or that stands in a data loader.
    """

    rank: int
    pid: int
    host: str
    local_rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    device: str | None = None
    gpu: str | None = None
    timeout_s: float | None = None
    step: int | None = None
    groups: dict[str, Counters] = field(default_factory=dict)
    last_beat_s: float | None = None
    last_progress_s: float | None = None
    last_place: Frame | None = None
    answered: bool = False
    activity: Activity | None = None
    raised: Raised | None = None
    exit_frames: tuple[Frame, ...] = ()
    ended: Ended | None = None
    done: bool = False
    stacks: str | None = None
    flight: str | None = None
    process: ProcessId | None = None
    children: tuple[ChildRecord, ...] = ()

    def silent(self, at_s: float) -> bool:
        """Whether it lives, and has told nothing for a while: neither heartbeats nor what it was asked for."""
        return self.ended is None and not self.answered and silent(self.last_beat_s, at_s)


@frozen
class LogRef:
    """A log as long as it was at the end of the incident; `rank` is None for the launcher's own output."""

    path: str
    bytes: int
    rank: int | None = None


@frozen
class GuardedLine:
    """A line of the user's code that issued a collective, and the `if` tests around it, outermost first."""

    file: str
    line: int
    tests: tuple[str, ...]


@frozen
class Missed:
    """Evidence that could not be taken."""

    what: str
    why: str


@frozen
class Slow:
    """What makes a training over several hosts slower than it was: one host, or the link from the first of two `hosts` to the second.

    `waiting`: in what share of looks any of the host's ranks waited in a collective at most, and those of others at least. The link's speed is while
    bytes were on their way; `again` is the share of them that was sent twice.
    """

    hosts: tuple[str, ...]
    steps_per_s: float
    before_per_s: float
    waiting: tuple[float, float] | None = None
    bytes_per_s: float | None = None
    before_bytes_per_s: float | None = None
    again: float | None = None


@frozen
class Incident:
    """One thing that went wrong. `stalled_for_s`, `threshold_s` and `bound_s` belong to hangs and stragglers: the last is how long the others wait
    before the training is ended, None where nothing but the collective's timeout is known to bound it. `exitcode` is the command's own.

    "interrupted": somebody ended a training that stood still (`interrupted_by`: "SIGINT"), it may be before the threshold of a hang.

    `guards` are those of the lines in the flight recorders; stacks carry their own (`Frame.guards`). `oom_kills` counts the OOM killer's
    victims in the memory cgroup since the start of the run; None where that cannot be read. `uptime_s` is how long the machine had been up, by which
    lines of its kernel log are dated. `host_pids`: our pids are the host's, as the kernel log has them; False in a container with pids of its own.
    `elsewhere`: where each rank was told to meet the others, if some of them were told to meet elsewhere, and are not watched. `lost`: hosts of a
    training over several that no longer answer, with their ranks; `closed`: those of them that closed the connection themselves. `slow`: of one that
    goes on, and has become slower.
    """

    schema: str = INCIDENT_SCHEMA
    number: int
    attempt: int
    kind: IncidentKind
    at_s: float
    at: str
    cwd: str
    command: tuple[str, ...]
    expected_world: int | None = None
    stalled_for_s: float | None = None
    threshold_s: float | None = None
    bound_s: float | None = None
    usual_gap_s: float | None = None
    interrupted_by: str | None = None
    exitcode: int | None = None
    oom_kills: int | None = None
    kernel: str | None = None
    uptime_s: float | None = None
    host_pids: bool | None = None
    ras: str | None = None
    elsewhere: dict[int, str] = field(default_factory=dict)
    lost: dict[str, tuple[int, ...]] = field(default_factory=dict)
    closed: tuple[str, ...] = ()
    slow: Slow | None = None
    ranks: tuple[RankRecord, ...] = ()
    logs: tuple[LogRef, ...] = ()
    guards: tuple[GuardedLine, ...] = ()
    missed: tuple[Missed, ...] = ()

    @property
    def crashed_at_exit(self) -> bool:
        """Whether nothing but the shutdown of processes failed: the script had run to its end on all ranks, and nothing is left to train."""
        ends = [r.ended for r in self.ranks]
        # An exit code that the script asked for by `raise SystemExit(1)` is seen only afterwards.
        # Other hosts' ranks may still train.
        known = self.expected_world is None or len(ends) >= self.expected_world
        safe = known and all(e is not None and e.finished and ((e.exitcode or 0) <= 0 or e.crashed_at_exit) for e in ends)
        return safe and any(e is not None and e.crashed_at_exit for e in ends)

    @property
    def hung_at_exit(self) -> bool:
        """Whether processes hang that have nothing left to train: all ranks of the job are known, and done."""
        known = bool(self.ranks) and (self.expected_world is None or len(self.ranks) >= self.expected_world)
        return self.kind == "hang" and known and all(r.done for r in self.ranks)
