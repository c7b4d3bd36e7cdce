"""Who the ranks are, from what their processes say: one training, its restarts, and what is none of its."""

from __future__ import annotations

from typing import Any

import pytest

from unhang.launch import events
from unhang.launch.rank_table import ALONE_S, TOGETHER_S, RankTable
from unhang.launch.step_rate import Rhythm
from unhang.launch.watch import Watch


class Peer:
    def __init__(self, pid: int, **hello: Any) -> None:
        self.pid = pid
        self.hello = {"rank": 0, "host": "node1", **hello}


class Reactions:
    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.seen.append((name, args[0] if args else None))

    def names(self) -> list[str]:
        return [name for name, _ in self.seen]


class Scene:
    def __init__(self, promised: int | None = None) -> None:
        self.now = 0.0
        self.told: list[events.Event] = []
        self.reactions = Reactions()
        self.watch = Watch(Rhythm())
        self.roster = RankTable(self.watch, promised=promised, clock=lambda: self.now, tell=self.told.append, reactions=self.reactions)

    def arrive(self, pid: int, **hello: Any) -> Peer:
        peer = Peer(pid, **hello)
        self.roster.arrived(peer)
        return peer

    def join(self, peer: Peer, rank: int = 0, world_size: int = 2) -> None:
        self.roster.message(peer, {"m": "joined", "rank": rank, "world_size": world_size, "backend": "gloo"})

    def step(self, peer: Peer, *, initialized: bool) -> None:
        self.roster.message(peer, {"m": "stepping", "device": "cpu", "torch": "2.13", "initialized": initialized})

    def leave(self, peer: Peer, *, announced: bool = True) -> None:
        if announced:
            self.roster.message(peer, {"m": "leaving"})
        self.roster.gone(peer)


@pytest.fixture
def scene():
    return Scene(promised=2)


def test_two_that_believe_to_be_the_same_rank_are_no_training(scene):
    first, second = scene.arrive(11, job="a:1"), scene.arrive(12, job="a:1")
    scene.join(first)
    assert scene.reactions.names() == []
    scene.join(second)
    assert scene.reactions.names() == ["wrong_world"]


def test_another_training_beside_it_is_none_of_its(scene):
    first, second, third = scene.arrive(11, job="a:1"), scene.arrive(12, job="b:2"), scene.arrive(13, job="b:2", rank=1)
    scene.join(first)
    scene.join(second)
    scene.join(third, rank=1)
    scene.roster.message(second, {"m": "raised", "type": "E", "text": "", "frames": []})
    scene.leave(second, announced=False)
    assert scene.reactions.seen == [("release", second)]
    assert [s.pid for s in scene.roster.states()] == [11]
    assert len([e for e in scene.told if isinstance(e, events.Note)]) == 1


@pytest.mark.parametrize(
    ("rank", "world", "elsewhere"), [(1, 2, {0: "h:1", 1: "h:2"}), (0, 2, {}), (1, 4, {})], ids=["lacking", "complete", "another-world"]
)
def test_a_rank_that_the_watched_ones_lack_is_missing(scene, rank, world, elsewhere):
    """Two launchers were given different ports: the rank that came second is of the same training, and meets elsewhere."""
    scene.arrive(11, rank=0, world_size=2, job="h:1")
    scene.arrive(12, rank=rank, world_size=world, job="h:2")
    assert scene.roster.elsewhere() == elsewhere


@pytest.mark.parametrize("rank", [0, 1])
def test_one_training_after_the_other(scene, rank):
    """Under Ray the ranks of this host may have other numbers than those before: these are on another host now."""
    first = scene.arrive(11, job="a:1", rank=rank)
    scene.join(first, rank=rank)
    scene.leave(first)
    second = scene.arrive(12, job="b:2")
    scene.join(second)
    assert [s.pid for s in scene.roster.states()] == [12]
    assert "wrong_world" not in scene.reactions.names() and scene.reactions.names()[-1] == "restarted"


def test_a_rank_that_replaces_itself_by_another_program_is_one_rank(scene):
    first = scene.arrive(11)
    scene.join(first)
    scene.leave(first, announced=False)
    again = scene.arrive(11)
    scene.join(again)
    scene.roster.still_there(scene.watch.ranks[0])
    assert "wrong_world" not in scene.reactions.names()
    assert "restarted" not in scene.reactions.names()


def test_a_restart_forgets_the_rhythm_of_the_ranks_before(scene):
    first = scene.arrive(11)
    for i in range(40):
        scene.watch.rhythm.progress(0, t=i / 10, steps=1)
    assert scene.watch.rhythm.usual_gap_s is not None
    scene.leave(first, announced=False)
    scene.arrive(12)
    assert scene.watch.rhythm.usual_gap_s is None


def test_steps_before_joining_are_no_failure(scene):
    peer = scene.arrive(11)
    scene.step(peer, initialized=False)
    scene.now = ALONE_S / 2
    scene.roster.look(scene.now, lambda pid: True)
    scene.join(peer)
    scene.now = 3 * ALONE_S
    scene.roster.look(scene.now, lambda pid: True)
    scene.leave(peer)
    assert "wrong_world" not in scene.reactions.names()


@pytest.mark.parametrize("ends", [True, False])
def test_a_rank_that_trains_alone_though_others_were_promised(scene, ends):
    peer = scene.arrive(11)
    scene.step(peer, initialized=False)
    assert scene.reactions.names() == []
    if ends:
        scene.leave(peer)
    else:
        scene.now = ALONE_S + 1
        scene.roster.look(scene.now, lambda pid: True)
    assert "wrong_world" in scene.reactions.names()
    assert scene.watch.ranks[0].world_size == 1


def test_one_that_was_asked_for_alone_may_train_alone():
    scene = Scene()
    peer = scene.arrive(11, rank=0, world_size=1)
    scene.step(peer, initialized=False)
    scene.leave(peer)
    assert "wrong_world" not in scene.reactions.names()


def test_an_announced_end_is_looked_after_until_the_process_has_ended(scene):
    peer = scene.arrive(11)
    scene.join(peer)
    scene.leave(peer)
    state = scene.watch.ranks[0]
    assert scene.reactions.seen == [("vanished", state)]
    scene.roster.still_there(state)
    assert state.ended is None
    scene.roster.look(5.0, lambda pid: True)
    assert state.ended is None
    scene.roster.look(6.0, lambda pid: False)
    assert state.ended.at_s == 6.0


def overridden(rank: int) -> dict[str, Any]:
    return {"m": "overridden", "what": "backend", "was": "nccl", "now": "gloo", "place": ["train.py", 4 + rank]}


def changes(scene: Scene) -> list[events.Event]:
    return [event for event in scene.told if isinstance(event, (events.Overridden, events.Ignored))]


def test_what_all_ranks_have_overridden_is_told_at_once(scene):
    peers = [scene.arrive(10 + rank, rank=rank, world_size=2) for rank in (0, 1)]
    scene.roster.message(peers[1], overridden(1))
    assert changes(scene) == []
    scene.roster.message(peers[0], overridden(0))
    assert changes(scene) == [events.Overridden(what="backend", was="nccl", now="gloo", ranks=(0, 1), place=("train.py", 5))]


def test_what_one_rank_has_overridden_is_told_after_a_while_or_at_its_end(scene):
    peer = scene.arrive(10, rank=0, world_size=2)
    scene.roster.message(peer, overridden(0))
    scene.roster.look(TOGETHER_S - 0.1, lambda pid: True)
    assert changes(scene) == []
    scene.roster.look(TOGETHER_S + 0.1, lambda pid: True)
    assert changes(scene) == [events.Overridden(what="backend", was="nccl", now="gloo", ranks=(0,), place=("train.py", 4))]
    scene.roster.message(peer, {"m": "ignored", "what": "UNHANG_TIMEOUT_S", "value": "ten", "why": "value"})
    scene.leave(peer)
    assert changes(scene)[1:] == [events.Ignored(what="UNHANG_TIMEOUT_S", value="ten", why="value", ranks=(0,))]


def test_a_change_without_a_line_is_refused_where_it_comes_from(scene):
    peer = scene.arrive(10, rank=0, world_size=2)
    with pytest.raises(IndexError):
        scene.roster.message(peer, overridden(0) | {"place": ["train.py"]})
    scene.roster.look(TOGETHER_S + 0.1, lambda pid: True)
    assert changes(scene) == []


def test_a_launcher_that_overrides_is_none_of_ours(scene):
    peer = scene.arrive(10, rank=None)
    scene.roster.message(peer, overridden(0))
    scene.leave(peer)
    assert changes(scene) == []


@pytest.mark.parametrize(("pid", "tid"), [(10, 17), (3, None)])
def test_the_thread_that_trains_is_known_unless_the_process_counts_otherwise(scene, pid, tid):
    peer = scene.arrive(10)
    scene.roster.message(peer, {"m": "training", "pid": pid, "tid": 17})
    assert scene.watch.ranks[0].tid == tid
    scene.roster.message(peer, {"m": "training", "pid": pid, "tid": None})
    assert scene.watch.ranks[0].tid is None


def test_credentials_that_ranks_send_are_not_kept(scene):
    secret = "hf_" + "abcdefghijklmnopqrstuvwxyz012345"
    peer = scene.arrive(10, rank=0)
    argv = ["train.py", "--password", "planted words", f"--token={secret}"]
    scene.roster.message(peer, {"m": "stepping", "device": "cpu", "torch": "2.13", "initialized": False, "argv": argv})
    scene.roster.message(peer, {"m": "raised", "type": "SystemExit", "text": f"unrecognized arguments: --token={secret}", "frames": []})
    (state,) = scene.roster.states()
    assert state.argv[:2] == ("train.py", "--password") and state.raised is not None
    assert secret not in f"{state.argv} {state.raised.text}" and "planted" not in f"{state.argv}"
