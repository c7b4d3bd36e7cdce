"""What is written for onlookers: of real trainings, how often, how much, and that no disk is waited for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from unhang.errors import EXIT_FOUND, EXIT_OK
from unhang.facts import processes
from unhang.facts.host import Host
from unhang.frames import Frame
from unhang.launch.status_file import LAST_WITHIN_S, StatusWriter, encoded
from unhang.launch.step_rate import Rhythm
from unhang.launch.watch import RankState, Watch
from unhang.model import Counters
from unhang.records.incident import Ended, Raised
from unhang.records.rundir import RunDir
from unhang.records.status import MOST_CHARACTERS, Now


class Roster:
    exitcodes: dict[int, int]

    def __init__(self, watch: Watch) -> None:
        self.watch, self.exitcodes = watch, {}

    def states(self) -> list[RankState]:
        return [self.watch.ranks[rank] for rank in sorted(self.watch.ranks)]


class Sampler:
    def newest(self, state: RankState) -> None:
        return None


class Told:
    """An Onlookers on a clock of the test's."""

    def __init__(self, path: Path) -> None:
        self.at = 100.0
        self.watch = Watch(Rhythm())
        self.roster = Roster(self.watch)
        self.troubles: list[str] = []
        self.onlookers = StatusWriter(
            RunDir(path),
            attempt=0,
            watch=self.watch,
            roster=self.roster,  # type: ignore[arg-type]
            sampler=Sampler(),  # type: ignore[arg-type]
            clock=lambda: self.at,
            trouble=self.troubles.append,
            host=Host(),
        )
        self.path = path / "now.json"

    def rank(self, number: int, **fields: object) -> RankState:
        state = RankState(rank=number, pid=200 + number, host="node1", local_rank=number, since_s=1.0)
        for name, value in fields.items():
            setattr(state, name, value)
        self.watch.ranks[number] = state
        return state

    def now(self) -> Now:
        return msgspec.json.decode(self.path.read_bytes(), type=Now)


@pytest.fixture
def told(tmp_path):
    return Told(tmp_path)


def test_what_is_known_of_a_rank(told):
    place = Frame(file="/" + "long/" * 100 + "train.py", line=7, name="main")
    told.rank(0, step=5, place=place, last_beat_s=99.8, last_progress_s=99.0, groups={"0": Counters(enqueued=9, completed=8)}, inside="all_reduce")
    told.watch.ranks[0].still_since_s["0"], told.watch.ranks[0].step_when_still["0"] = 90.0, 5
    told.rank(1, raised=Raised(type="ValueError", text="x" * 5000, frames=(), at_s=98.0), ended=Ended(at_s=99.0, announced=True))
    told.roster.exitcodes[201] = 1
    told.onlookers.look()
    told.onlookers.close()
    now = told.now()
    first, second = now.ranks
    assert (first.place.line, first.place.file[-8:], len(first.place.file)) == (7, "train.py", MOST_CHARACTERS)
    assert (first.waiting.call, first.waiting.group, first.waiting.number, first.waiting.since_s) == ("all_reduce", "0", 9, 90.0)
    assert (second.exitcode, second.ended_s, second.waiting, len(second.raised)) == (1, 99.0, None, MOST_CHARACTERS)
    assert (now.standstill.waiting, now.standstill.since_s, now.hang_after_s, now.usual_gap_s, now.last) == ((0,), 90.0, 180.0, None, True)


def test_steps_a_second(told):
    rank = told.rank(0)
    for step in (0, 0, 10, 12, 14):
        rank.step = step
        taken = told.onlookers._taken(told.at)
        told.at += 1.0
    assert taken.ranks[0].steps_per_s == 2.0
    # Another process has another history.
    told.rank(0, step=50, pid=999)
    assert told.onlookers._taken(told.at).ranks[0].steps_per_s is None


@pytest.mark.timeout(200)
def test_it_is_written_once_a_second_at_most(told, monkeypatch):
    told.rank(0)
    taken, take = [], told.onlookers._taken
    monkeypatch.setattr(told.onlookers, "_taken", lambda now, last=False: taken.append(now) or take(now, last=last))
    for _ in range(100):
        told.onlookers.look()
        told.at += 0.1
        while told.onlookers._queue.full():
            time.sleep(0.001)
    told.onlookers.close()
    # The first look, nine or ten more, and the last word.
    assert 10 <= len(taken) <= 12 and told.now().at_s == round(taken[-1], 3)


def test_a_thousand_ranks_take_little(told):
    for rank in range(1024):
        told.rank(
            rank, step=5, place=Frame(file="/home/u/project/train.py", line=7, name="main"), last_beat_s=99.0, last_progress_s=99.0, device="cuda:0"
        )
    data = encoded(told.onlookers._taken(told.at))
    assert len(data) < 400_000
    assert len(msgspec.json.decode(data, type=Now).ranks) == 1024


@pytest.fixture
def waits(monkeypatch):
    """How long this thread was ready to wait, by each call in which it did (None: for ever). Time that passes says nothing on a busy machine."""
    asked: list[float | None] = []

    def noted(kind: type, name: str) -> None:
        real, ours = getattr(kind, name), threading.get_ident()

        def call(self: object, timeout: float | None = None) -> object:
            if threading.get_ident() == ours:
                asked.append(timeout)
            return real(self, timeout)

        monkeypatch.setattr(kind, name, call)

    noted(threading.Condition, "wait")
    noted(threading.Thread, "join")
    monkeypatch.setattr(time, "sleep", asked.append)
    return asked


@pytest.mark.timeout(200)
def test_a_file_system_that_hangs_keeps_nobody_waiting(told, waits, monkeypatch):
    # It goes on behind all else: who waits for it without a bound never gets there.
    goes_on, writes = threading.Event(), []
    monkeypatch.setattr(told.onlookers.rundir, "write_bytes", lambda path, data: (writes.append(len(data)), goes_on.wait()))
    told.onlookers.look()
    while not writes:
        os.sched_yield()
    waits.clear()
    for _ in range(50):
        told.at += 1.0
        told.onlookers.look()
    assert waits == []
    told.onlookers.close()
    assert all(wait is not None and wait <= LAST_WITHIN_S for wait in waits) and len(waits) <= 3
    assert len(writes) == 1
    goes_on.set()


@pytest.mark.timeout(200)
def test_a_last_word_that_hangs_is_not_waited_for(told, waits, monkeypatch):
    goes_on = threading.Event()
    told.onlookers.look()
    while told.onlookers._queue.full() or not told.path.exists():
        os.sched_yield()
    monkeypatch.setattr(told.onlookers.rundir, "write_bytes", lambda path, data: goes_on.wait())
    waits.clear()
    told.onlookers.close()
    assert waits and all(wait is not None and wait <= LAST_WITHIN_S for wait in waits) and len(waits) <= 3
    goes_on.set()


def test_a_directory_that_was_removed_is_not_made_again(tmp_path):
    path = tmp_path / "run"
    told = Told(path)
    told.onlookers.look()
    told.onlookers.close()
    assert not path.exists()
    told.at += 2.0
    told.onlookers.look()
    assert told.troubles == [f"cannot write {path / 'now.json'}: No such file or directory; the training is not affected"]


# -- real trainings

TRAIN = "dist.init_process_group('gloo')\ntrain({steps}, at)\ndist.destroy_process_group()\n"
CALM = "def at(step):\n    pass\n\n" + TRAIN
STOPS = "def at(step):\n    if rank == 1 and step == 20:\n        os.kill(os.getpid(), signal.SIGSTOP)\n\n" + TRAIN
FAILS = "def at(step):\n    if rank == 1 and step == 20:\n        raise ValueError('no such batch')\n\n" + TRAIN


def top(path: Path) -> tuple[int, dict]:
    done = subprocess.run([sys.executable, "-m", "unhang", "top", str(path), "--json"], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.torch
@pytest.mark.timeout(900)
def test_a_training_that_goes_on(launcher):
    process, path = launcher.start("-n", "2", str(launcher.script(CALM.format(steps=2000))))

    def running() -> dict | None:
        if not (path / "now.json").exists():
            return None
        code, picture = top(path)
        return picture if picture["job"]["phase"] == "running" and code == EXIT_OK and picture["job"]["steps_per_s"] else None

    picture = launcher.until(running)
    ranks = picture["ranks"]
    assert picture["counts"] == {"running": 2} and [r["local_rank"] for r in ranks] == [0, 1]
    assert all(r["step"] > 0 and r["age_s"] < 5 and r["place"]["file"].endswith(".py") and r["pid"] > 0 for r in ranks)
    assert (picture["job"]["expected"], picture["job"]["supervisor"]["pid"], picture["job"]["supervisor"]["alive"]) == (2, process.pid, True)
    # Without a word of its supervisor nothing is known of the ranks any more.
    process.kill()
    process.wait()
    code, picture = top(path)
    assert (code, picture["job"]["phase"], picture["counts"]) == (EXIT_FOUND, "gone", {"unknown": 2})
    launcher.until(lambda: not launcher.living())


@pytest.mark.integration
@pytest.mark.torch
@pytest.mark.timeout(900)
def test_a_rank_that_was_stopped(launcher):
    process, path = launcher.start("-n", "2", "--on-failure", "abort", "--hang-after", "12", str(launcher.script(STOPS.format(steps=100))))

    def silent() -> dict | None:
        code, picture = top(path) if (path / "now.json").exists() else (0, {"counts": {}})
        return picture if picture["counts"].get("silent") and code == EXIT_FOUND else None

    picture = launcher.until(silent)
    stopped, waiting = picture["ranks"][1], picture["ranks"][0]
    assert (stopped["state"], waiting["state"]) == ("silent", "waiting")
    assert stopped["age_s"] >= 5 and waiting["age_s"] < 5 and waiting["waits_s"] > 3
    launcher.finish(process, path)
    code, picture = top(path)
    assert (code, picture["job"]["phase"], picture["job"]["verdict"]["cause"]) == (EXIT_FOUND, "ended", "process-stuck")
    assert [r["rank"] for r in picture["ranks"] if r["blamed"]] == [1] and picture["notes"] == []


@pytest.mark.integration
@pytest.mark.torch
@pytest.mark.timeout(900)
def test_one_that_failed_and_one_that_did_not(launcher):
    launcher.train(FAILS.format(steps=30), "--on-failure", "abort")
    code, picture = top(launcher.tmp_path / "run1")
    assert (code, picture["job"]["phase"], picture["job"]["verdict"]["cause"]) == (EXIT_FOUND, "ended", "rank-exception")
    failed = picture["ranks"][1]
    assert (failed["state"], failed["raised"], failed["blamed"]) == ("failed", "ValueError: no such batch", True)
    launcher.train(CALM.format(steps=30))
    code, picture = top(launcher.tmp_path / "run2")
    assert (code, picture["job"]["phase"], picture["counts"]) == (EXIT_OK, "ended", {"done": 2})


@pytest.mark.integration
@pytest.mark.torch
@pytest.mark.timeout(900)
def test_followed_until_its_end(launcher):
    process, path = launcher.start("-n", "2", str(launcher.script(CALM.format(steps=60))))
    launcher.until(lambda: (path / "events.jsonl").exists())
    followed = subprocess.run(
        [sys.executable, "-m", "unhang", "top", str(path), "--json", "--follow", "--every", "0.2"], capture_output=True, timeout=100, check=False
    )
    launcher.finish(process, path)
    pictures = [json.loads(line) for line in followed.stdout.splitlines()]
    phases = list(dict.fromkeys(p["job"]["phase"] for p in pictures))
    assert (followed.returncode, phases[0], phases[-1]) == (EXIT_OK, "starting", "ended") and "running" in phases
    assert all(p["schema"] == "unhang/top/1" for p in pictures)
    # A second has one picture, not five.
    assert len(pictures) <= pictures[-1]["job"]["elapsed_s"] * 1.3 + 8


@pytest.mark.integration
@pytest.mark.torch
@pytest.mark.timeout(900)
def test_an_interrupted_follower_leaves_the_training_alone(launcher):
    process, path = launcher.start("-n", "2", str(launcher.script(CALM.format(steps=60))))
    launcher.until(lambda: (path / "events.jsonl").exists())
    follower = subprocess.Popen([sys.executable, "-m", "unhang", "top", str(path), "--json", "--follow"], stdout=subprocess.PIPE)
    assert follower.stdout is not None and follower.stdout.readline()
    os.kill(follower.pid, signal.SIGINT)
    follower.stdout.close()
    assert follower.wait(timeout=300) == 130
    assert launcher.finish(process, path).exitcode == 0


def test_which_process_a_rank_was_is_taken_down_once_while_it_lives(told):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        told.rank(0, pid=child.pid)
        told.rank(1, pid=os.getpid(), ended=Ended(at_s=99.0))
        born = processes.identity(Host(), child.pid).start_ticks
        told.onlookers.look()
    finally:
        child.communicate(b"\n")
    told.at += 5
    told.onlookers.close()
    assert [r.start_ticks for r in told.now().ranks] == [born, None]
