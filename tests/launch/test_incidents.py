"""What an incident tells of the machine (how long it is up, whether our pids are those of its kernel log), and evidence that is cut short."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.chinese import both, zh

from unhang import flight as match
from unhang.diagnosis import why
from unhang.facts.host import Host
from unhang.facts.kernel_log import uptime_s
from unhang.frames import Frame
from unhang.launch import events
from unhang.launch.evidence import Taken
from unhang.launch.incidents import EvidenceRequest, Incidents, Situation, _host_pids, in_a_circle
from unhang.launch.watch import RankState
from unhang.model import Finding, Remedy, Verdict
from unhang.records.incident import Activity, RankRecord
from unhang.records.rundir import RunDir


@pytest.mark.parametrize(("namespace", "ours"), [("pid:[4026531836]", True), ("pid:[4026532741]", False), (None, None)])
def test_whether_pids_are_the_hosts(tmp_path, namespace, ours):
    place = tmp_path / "proc/self/ns"
    place.mkdir(parents=True)
    if namespace is not None:
        (place / "pid").symlink_to(namespace)
    assert _host_pids(Host(root=tmp_path)) is ours


@pytest.mark.parametrize(("text", "up_s"), [("90000.25 719000.10\n", 90000.25), ("", None), ("up\n", None), (None, None)])
def test_how_long_the_machine_is_up(tmp_path, text, up_s):
    (tmp_path / "proc").mkdir()
    if text is not None:
        (tmp_path / "proc/uptime").write_text(text)
    assert uptime_s(Host(root=tmp_path)) == up_s


TRAIN, TORCH = "/home/user/train.py", "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def held(**changes):
    """Two ranks that wait for each other in two groups; `changes` are of rank 1."""
    line, op, seq, busy, message = ({"line": 7, "op": "all_reduce", "seq": 3, "busy": False, "message": False} | changes).values()
    waits, records = {}, {}
    for rank in range(2):
        issued = (Frame(file=TRAIN, line=7, name="step"), Frame(file=TORCH, line=99, name="all_reduce"))
        stands = (Frame(file=TRAIN, line=line, name="step"), *([Frame(file=TORCH, line=99, name=op)] if op else [])) if rank else issued
        call = SimpleNamespace(frames=issued, is_p2p=bool(rank and message))
        waits[rank] = match.CollectiveWait(rank=rank, op="all_reduce", group=str(rank), seq=seq if rank else 3, call=call, frames=stands)
        share = 0.5 if rank and busy else 0.0
        activity = Activity(window_s=5.0, state="S", cpu_share=share, tree_cpu_share=share, io_bytes_per_s=0.0, switches_per_s=1.0, rss_bytes=1)
        records[rank] = RankRecord(rank=rank, pid=rank + 1, host="h", activity=activity)
    front = match.Stall(group="0", seq=3, waiting=(0,), absent=(), complete=True, parting=None, crossed=(0, 1))
    return match.Waits(waits=waits, front=front), records


def test_a_circle_holds_those_who_stand_in_it():
    assert in_a_circle(*held())
    stands, records = held()
    assert not in_a_circle(replace(stands, front=replace(stands.front, crossed=())), records)
    assert not in_a_circle(stands, {**records, 1: replace(records[1], activity=None)})


@pytest.mark.parametrize("changes", [{"busy": True}, {"line": 30}, {"op": ""}, {"seq": None}, {"message": True}])
def test_a_circle_does_not_hold_a_rank_that_may_go_on(changes):
    """It executes; it stands elsewhere, or in code of its own, with an asynchronous call pending; it waits for a message."""
    assert not in_a_circle(*held(**changes))


STACKS = {"m": "evidence", "threads": [{"name": "MainThread", "main": True, "frames": [["/t/train.py", 7, "train", "step()", ""]]}]}


class Peer:
    """A process that answers with its stacks and never dumps, or not at all."""

    def __init__(self, answers):
        self.answers, self.opened = answers, None

    async def send(self, kind, *, id, flight):
        if self.answers:
            self.opened.taker.answer(self, {**STACKS, "id": id})


def test_what_has_come_stays_when_it_is_enough(tmp_path):
    """Stacks are kept of a rank whose dump was not waited for."""

    async def gather():
        incidents = Incidents(RunDir.create(tmp_path / "run"), host=Host(), first=1, clock=lambda: 1.0, tell=lambda event: None)
        opened = incidents.open("interrupted", told=False)
        enough = asyncio.Event()
        asked = []
        for rank, answers in enumerate((True, False)):
            peer = Peer(answers)
            peer.opened = opened
            asked.append(EvidenceRequest(state=RankState(rank=rank, pid=1, host="h", local_rank=rank, since_s=0.0), peer=peer, activity=None))
        gathering = asyncio.ensure_future(incidents.gather(opened, asked, enough=enough))
        while 0 not in opened.taken or opened.taken[0].stacks is None:
            await asyncio.sleep(0)
        assert not gathering.done()
        enough.set()
        await asyncio.wait_for(gathering, 100)
        return opened

    opened = asyncio.run(gather())
    assert [(t.answered, t.stacks, t.flight) for t in opened.taken.values()] == [(True, "incidents/1/stacks/rank0.json", None), (False, None, None)]
    assert opened.gathered.is_set()
    assert [m.what for m in opened.taker.missed] == ["flight recorder of rank 0"]


def test_a_look_that_is_cancelled_is_not_taken_for_enough(tmp_path):
    async def gather():
        incidents = Incidents(RunDir.create(tmp_path / "run"), host=Host(), first=1, clock=lambda: 1.0, tell=lambda event: None)
        opened = incidents.open("hang")
        state = RankState(rank=0, pid=1, host="h", local_rank=0, since_s=0.0)
        for enough in (None, asyncio.Event()):
            gathering = asyncio.ensure_future(
                incidents.gather(opened, [EvidenceRequest(state=state, peer=Peer(False), activity=None)], enough=enough)
            )
            await asyncio.sleep(0)
            gathering.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(gathering, 100)
        return opened

    assert not asyncio.run(gather()).gathered.is_set()


def test_what_a_rank_gave_stays_until_it_gives_anything_again(tmp_path):
    """It raised after its evidence was taken, is asked once more, and may be ended before it answers."""
    earlier = Taken(answered=True, stacks="incidents/1/stacks/rank0.json", flight="incidents/1/flight/rank_0")

    async def again(answers):
        incidents = Incidents(RunDir.create(tmp_path / f"run{answers}"), host=Host(), first=1, clock=lambda: 1.0, tell=lambda event: None)
        opened = incidents.open("failure", told=False)
        opened.taken[0] = earlier
        enough = asyncio.Event()
        peer = Peer(answers)
        peer.opened = opened
        state = RankState(rank=0, pid=1, host="h", local_rank=0, since_s=0.0)
        gathering = asyncio.ensure_future(incidents.gather(opened, [EvidenceRequest(state=state, peer=peer, activity=None)], enough=enough))
        for _ in range(10):
            await asyncio.sleep(0)
        meanwhile = opened.taken[0]
        enough.set()
        await asyncio.wait_for(gathering, 100)
        return meanwhile, opened.taken[0]

    assert asyncio.run(again(False)) == (earlier, earlier)
    meanwhile, after = asyncio.run(again(True))
    assert meanwhile is earlier and after is not earlier
    assert (after.answered, after.stacks, after.flight) == (True, earlier.stacks, earlier.flight)


@pytest.fixture
def child():
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        yield process


@pytest.mark.parametrize("ends", [frozenset(), frozenset({"hang"})])
def test_no_verdict_has_a_command_for_a_process_that_was_ended(tmp_path, monkeypatch, child, ends):
    """While it is left alone it can be told to go on; who is about to be ended, and who has been, cannot."""
    remedy = Remedy(id="continue-it", says=both("Let it go on.", "让它继续。"), command=f"kill -CONT {child.pid}")
    finding = Finding(cause="process-stuck", standing="established", says="", remedies=(remedy,))
    monkeypatch.setattr(why, "judge", lambda rundir, *, number: Verdict(primary=finding))
    rundir, told = RunDir.create(tmp_path / "run"), []
    incidents = Incidents(rundir, host=Host(), first=1, clock=lambda: 1.0, tell=told.append, ends=ends)
    situation = Situation(
        attempt=0, command=("x",), promised=1, usual_gap_s=None, activities={}, exitcodes={}, exitcode=None, logs=(),
        states=[RankState(rank=0, pid=child.pid, host="h", local_rank=0, since_s=0.0)],
    )  # fmt: skip

    async def drawn():
        for kind in ("straggler", "hang"):
            await incidents.draw(incidents.open(kind, told=False), situation)
        await incidents.settle()
        while_it_lived = [e.verdict.primary.remedies[0] for e in told]
        child.communicate()
        await incidents.settle()
        await incidents.settle()
        return while_it_lived

    slow, hung = asyncio.run(drawn())
    assert slow == remedy
    assert hung == (replace(remedy, says=hung.says, command=None) if ends else remedy)
    assert (f"unhang run ends process {child.pid}" in hung.says) is bool(ends)
    last = incidents.last[1]
    assert [e.verdict for e in told if isinstance(e, events.Revised)] == [last]
    assert last == rundir.read(rundir.verdict, Verdict)
    for number in (1, 2):
        (now,) = rundir.read(rundir.incident_verdict(number), Verdict).primary.remedies
        # Read later it is to be what `unhang why` says.
        assert now == replace(remedy, says=f"Let it go on. Process {child.pid} has ended since.", command=None)
        assert zh(now.says).endswith(f"进程 {child.pid} 此后已结束。")
    assert last.primary.remedies == (now,)


def test_one_verdict_is_drawn_at_a_time(tmp_path, monkeypatch):
    """Two threads that decode into a dataclass for the first time crash the process; a look that was asked for may come beside one of our own."""
    meeting, met = threading.Barrier(2), []

    def judge(rundir, *, number):
        with contextlib.suppress(threading.BrokenBarrierError):
            met.append(meeting.wait(0.5))
        return Verdict(primary=None)

    monkeypatch.setattr(why, "judge", judge)

    async def both():
        incidents = Incidents(RunDir.create(tmp_path / "run"), host=Host(), first=1, clock=lambda: 1.0, tell=lambda event: None)
        opened = [incidents.open("hang"), incidents.open("hang")]
        situation = Situation(
            attempt=0, command=("x",), promised=1, usual_gap_s=None, activities={}, exitcodes={}, exitcode=None, logs=(), states=[]
        )  # fmt: skip
        return await asyncio.gather(*(incidents.draw(one, situation) for one in opened))

    assert asyncio.run(both()) == [Verdict(primary=None)] * 2
    assert not met
