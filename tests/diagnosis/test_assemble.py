"""From single logs to one view of the job: nothing that the logs leave open is guessed."""

from __future__ import annotations

import pytest

from unhang.diagnosis.assemble import MAX_ATTEMPTS, assemble
from unhang.diagnosis.logs import judge_logs
from unhang.knowledge import catalogue
from unhang.logs import nccl_lines

OMP = "W1103 {t} 4700 torch/distributed/run.py:793] Setting OMP_NUM_THREADS environment variable for each process to be 1\n"
EXIT = "E1103 {t} 4700 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 1 (pid: 4711) of binary: python\n"
RETRY = (
    "I1103 {t} 4700 torch/distributed/elastic/agent/server/api.py:9] [default] Worker group FAILED. 2/3 attempts left; will restart worker group\n"
)
VERSION = "NCCL version 2.21.5+cuda12.4\n"
LIGHTNING = "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/4\n"
FAULT = "{who} [0] misc/shmutils.cc:71 NCCL WARN Error: failed to extend /dev/shm/nccl-a1 to 9637892 bytes, error: No space left on device (28)\n"
COMM = "{who} [0] NCCL INFO ncclCommInitRank comm 0x55 rank {rank} nranks {nranks} cudaDev 0 nvmlDev 0 busId 1 commId 0x{id} - Init {what}\n"


def trace(says, prefix=""):
    lines = ("Traceback (most recent call last):", '  File "/srv/job.py", line 31, in step', "    load()", f"KeyError: '{says}'")
    return "".join(f"{prefix}{line}\n" for line in lines)


@pytest.fixture
def assembled(reads):
    """Attempts of files, given by name."""

    def assembled(**files):
        return of({name.replace("__", "."): text for name, text in files.items()})

    def of(files):
        return assemble(reads(files), catalogue.signatures())

    assembled.of = of
    return assembled


def told(attempts):
    """What was raised in each attempt, in order."""
    return [[t.text.strip("'") for t in a.view.tracebacks] for a in attempts]


# Restarts in one log


@pytest.mark.parametrize(
    "text",
    [
        trace("slow mirror", "[rank0]: ") + "n3:52:52 [0] NCCL INFO " + VERSION + VERSION + "step 7\n",
        trace("slow mirror", "[rank0]: ") + LIGHTNING + "step 7\n",
        "n3:52:52 [0] NCCL WARN NET/IB : No device found.\nRuntimeError: CUDA error: no kernel image is available for execution on the device\n"
        + VERSION,
        "subprocess.CalledProcessError: Command '['git', 'log']' returned non-zero exit status 128.\n" + VERSION,
        # A launcher's start behind what a program of the job may have caught.
        trace("no cache") + OMP.format(t="02:00:00"),
    ],
)
def test_what_may_be_caught_begins_no_attempt(assembled, text):
    assert len(assembled(log=text)) == 1


@pytest.mark.parametrize("banner", [VERSION, LIGHTNING, OMP.format(t="02:10:20")])
def test_what_ended_begins_one(assembled, banner):
    first, second = assembled(log=trace("first", "[rank1]: ") + EXIT.format(t="02:10:00") + banner + trace("second", "[rank1]: "))
    assert told((first, second)) == [["first"], ["second"]]
    assert [e.code for e in first.view.exits] == [1] and not second.view.exits


def test_an_established_root_is_enough_for_a_launcher(assembled):
    full = FAULT.format(who="n3:52:90")
    assert len(assembled(log=full + OMP.format(t="02:00:00"))) == 2
    assert len(assembled(log=full + LIGHTNING)) == 1


# Attempts across logs


def test_the_directory_names_the_attempt(assembled):
    old, new = assembled.of({"run/attempt_0/3/stderr.log": trace("old"), "run/attempt_1/3/stderr.log": "step 1\n"})
    assert told((old, new)) == [["old"], []]
    assert len(assembled.of({"run/attempt_0/2/stderr.log": trace("old")})) == 1


def test_a_directory_may_have_any_number(assembled):
    for number, total in ((MAX_ATTEMPTS - 1, MAX_ATTEMPTS), (MAX_ATTEMPTS, 1), (999_999, 1)):
        assert len(assembled.of({f"run/attempt_{number}/0/stderr.log": trace("old")})) == total


LAUNCHER = OMP.format(t="02:00:00") + EXIT.format(t="02:20:00") + RETRY.format(t="02:20:05")
APPENDED = (
    "2026-11-03 02:00:09,000 INFO start\n2026-11-03 02:19:58,000 ERROR\n"
    + trace("first")
    + "2026-11-03 02:20:31,000 INFO start\n2026-11-03 02:44:00,000 ERROR\n"
    + trace("second")
)


def test_a_log_without_starts_is_placed_by_time(assembled):
    assert told(assembled(launcher__log=LAUNCHER, rank1__log=APPENDED)) == [["first"], ["second"]]
    assert told(assembled(a__log=APPENDED, launcher__log=LAUNCHER)) == [["first"], ["second"]]


def test_an_agent_that_starts_again_without_a_word(assembled):
    """Steps of a rank, in a log of its own, tell that it did."""
    agent = OMP.format(t="02:00:00") + EXIT.format(t="02:20:00")
    stepped = "2026-11-03 02:00:01,000 step 1 loss 2.9\n" + APPENDED + "2026-11-03 02:45:00,000 step 7 loss 1.9\n"
    gave_up = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    attempts = assembled(agent__log=agent, rank1__log=stepped)
    assert told(attempts) == [["first"], ["second"]]
    # They tell nothing else: the order of lines is not theirs to change.
    assert not any("loss" in h.text for a in attempts for h in a.hits)
    assert told(assembled(agent__log=agent, rank1__log=APPENDED)) == [["first", "second"]]
    assert told(assembled(agent__log=agent + gave_up, rank1__log=stepped)) == [["first", "second"]]


def test_without_a_time_it_holds_the_last_attempt(assembled):
    assert told(assembled(launcher__log=LAUNCHER, rank1__log=trace("when"))) == [[], ["when"]]


def test_a_time_of_another_zone_places_nothing(assembled):
    zoned = APPENDED.replace(",000 ", "+08:00 ")
    assert told(assembled(launcher__log=LAUNCHER, rank1__log=zoned)) == [[], ["first", "second"]]


# Whose line it is


def ranks(attempts):
    """Ranks of what failed."""
    return [p.rank for a in attempts for p in (*a.view.hits_of("shm-exhausted"), *a.view.tracebacks)]


def start(who, rank, nranks, id="77"):
    return COMM.format(who=who, rank=rank, nranks=nranks, id=id, what="START")


def test_a_pid_tells_the_rank_on_its_host(assembled):
    assert ranks(assembled(a=start("n3:52:90", 6, 8), b=FAULT.format(who="n3:52:91"))) == [6]
    assert ranks(assembled(a=start("n3:52:90", 6, 8), b=FAULT.format(who="n4:52:91"))) == [None]


def test_a_pid_without_a_host_speaks_for_its_own_log(assembled):
    unnamed = trace("which host", "(RayTrainWorker pid=52) ")
    assert ranks(assembled(a=start("n3:52:90", 6, 8), b=unnamed)) == [None]
    assert ranks(assembled(a=start("n3:52:90", 6, 8) + unnamed)) == [6]
    assert ranks(assembled(a=start("n3:52:90", 6, 8) + start("n4:52:90", 2, 8) + unnamed)) == [None]


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        (start("n3:52:90", 3, 4), 3),
        ("world_size: 16\n" + start("n3:52:90", 3, 4), None),
        (start("n3:52:90", 3, 4) + start("n3:52:90", 11, 16, "78"), 11),
        # Two processes with one rank: parts of a job whose size is not told.
        (start("n3:52:90", 3, 4) + start("n3:56:94", 3, 4, "78"), None),
    ],
)
def test_a_rank_in_a_part_of_the_job_is_nobodys(assembled, text, rank):
    attempts = assembled(log=text + FAULT.format(who="n3:52:91"))
    assert ranks(attempts) == [rank]
    assert attempts[0].view.printed == ({rank} if rank is not None else set())


@pytest.mark.parametrize(
    ("lines", "rank"),
    [
        (trace("x", "2: "), 2),
        (trace("x", "2: [default5]:"), None),
        (trace("x", "2: [rank2]: "), 2),
        # One line is enough: the number is the node's for all of them.
        ("1: [rank9]: RuntimeError: CUDA error: an illegal memory access was encountered\n" + trace("x", "2: "), None),
        ("1: [default0]:CUDA error: an illegal memory access was encountered\n" + trace("x", "2: "), None),
        ("2: " + OMP.format(t="02:00:00") + trace("x", "2: "), None),
    ],
)
def test_a_task_is_a_rank_unless_it_starts_several(assembled, lines, rank):
    assert ranks(assembled(log=lines))[-1] == rank


# Order


def raised(says, *times):
    """A traceback behind each time."""
    return "".join(f"{t} ERROR\n{trace(says)}" for t in times)


@pytest.mark.parametrize(
    ("a", "b", "order"),
    [
        ("2026-11-03 02:15:00,000", "2026-11-03 02:11:00,000", "ba"),
        # 02:15 and 02:31 UTC
        ("2026-11-03T10:15:00+08:00", "2026-11-03T02:31:00Z", "ab"),
        ("2026-11-03T02:31:00Z", "2026-11-03T10:15:00+08:00", "ba"),
        ("2026-11-03T10:31:00+08:00", "2026-11-03T10:15:00+08:00", "ba"),
        # What is not known is not ordered: as the files come.
        ("2026-11-03T10:31:00+08:00", "2026-11-03 02:15:00,000", "ab"),
        ("2026-11-03 10:31:00,000", "2026-11-03T02:15:00Z", "ab"),
    ],
)
def test_order_across_logs(assembled, a, b, order):
    (attempt,) = assembled(a=raised("a", a), b=raised("b", b))
    assert [t.source for t in attempt.view.tracebacks] == list(order)


def test_the_first_of_two_zones_is_the_primary(tmp_path):
    for name, t in (("n2", "2026-11-03T02:31:00Z"), ("n1", "2026-11-03T10:15:00+08:00")):
        (tmp_path / f"{name}.log").write_text(trace(f"on {name}", f"{t} [rank{name[1]}]: "))
    primary = judge_logs([str(tmp_path / "n2.log"), str(tmp_path / "n1.log")]).verdict.primary
    assert primary.evidence[0].source.endswith("n1.log")


def test_lines_that_name_no_host_are_on_their_logs_clock(assembled):
    """node8 is an hour ahead, as the communicator's completion shows; its tracebacks do not say whose they are."""
    files = {}
    for host, rank, hour, minute in (("n7", 0, 10, 30), ("n8", 1, 11, 10)):
        done = COMM.format(who=f"{host}:52:90", rank=rank, nranks=2, id="77", what="COMPLETE")
        files[f"part{rank}"] = f"2026-11-03 {hour}:00:00,000 {done}" + raised(host, f"2026-11-03 {hour}:{minute}:00,000")
    (attempt,) = assembled(**files)
    assert told([attempt]) == [["n8", "n7"]]
    assert len({h.at_s for h in attempt.hits if h.signature == nccl_lines.COMPLETE}) == 1


def test_the_length_of_each_log_is_told(assembled):
    (attempt,) = assembled(a="step 1\nstep 2\n", b="")
    assert attempt.view.lines == {"a": 2, "b": 0}


# Whose an error is that nobody put a name to

BLOCK = (
    "Root Cause (first observed failure):\n[0]:\n  host      : node7\n  rank      : {rank} (local_rank: 1)\n  exitcode  : {code} (pid: 47{rank})\n"
)
CHILD = trace("x").replace("KeyError: 'x'", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ")


def owners(attempts):
    return [(t.text.strip("'"), t.rank, t.host) for t in attempts[-1].view.tracebacks if t.type == "KeyError"]


def test_the_only_error_is_that_of_the_only_rank_that_ended_by_itself(assembled):
    log = trace("a") + CHILD + BLOCK.format(rank=3, code=1) + BLOCK.format(rank=5, code=-15)
    assert owners(assembled(job__log=log)) == [("a", 3, "node7")]
    assert judge_logs(["job.log"]).verdict.primary.ranks == (3,)


@pytest.mark.parametrize(
    "log",
    [
        trace("a") + trace("b") + BLOCK.format(rank=3, code=1),
        trace("a") + BLOCK.format(rank=3, code=1) + BLOCK.format(rank=5, code=1),
        # A signal comes from somebody else: it raised nothing.
        trace("a") + BLOCK.format(rank=3, code=-9),
        "2026-11-03 10:00:00,000 ERROR train: sample 7 is skipped\n" + trace("a") + BLOCK.format(rank=3, code=1),
    ],
)
def test_otherwise_it_stays_nobodys(assembled, log):
    assert {rank for _, rank, _ in owners(assembled(job__log=log))} == {None}


def test_hosts_of_ranks_are_told_by_launchers(assembled):
    log = trace("a", "1: ") + "0: step 1\nsrun: error: node9: task 1: Exited with exit code 1\n"
    assert owners(assembled(job__log=log)) == [("a", 1, "node9")]


def test_a_host_in_a_table_of_settings_ends_nothing(assembled):
    assert len(assembled(job__log=VERSION + "  host      : 0.0.0.0\n" + VERSION + trace("a"))) == 1
