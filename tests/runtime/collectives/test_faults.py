"""Ranks that come late, stand still, die or fail, before a call and in the middle of one: one outcome for all, and nobody's memory is written behind
its back."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist
from tests.runtime.collectives import world as of_ranks
from tests.runtime.collectives.world import Gone, Raised, reads_its_keys

import unhang
from unhang.errors import StoreLost
from unhang.runtime.collectives import abortable_group, call_sites, collectives
from unhang.runtime.collectives import guarded_group as circles

pytestmark = pytest.mark.torch

PATTERN = -5.0
# More than are under way at once.
PIECES = 12
NUMEL = PIECES * 256
# Those that do come have to find each other in it, on a busy machine too.
DEADLINE_S = 2.0


def store():
    return of_ranks.store


# -- what goes wrong


def sleeps() -> None:
    while not store().check(["given up"]):
        time.sleep(0.01)


def computes() -> None:
    while not store().check(["given up"]):
        sum(range(10000))


def stops() -> None:
    store().set("stops", "now")
    os.kill(os.getpid(), signal.SIGSTOP)


def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fails() -> None:
    raise ValueError("boom")


def is_interrupted() -> None:
    signal.raise_signal(signal.SIGINT)


# -- calls


def reduces(tensor: torch.Tensor, who: int, deadline: float) -> None:
    unhang.all_reduce(tensor, chunk_bytes=1024, deadline=deadline)


def reduces_atomically(tensor: torch.Tensor, who: int, deadline: float) -> None:
    unhang.all_reduce(tensor, chunk_bytes=1024, deadline=deadline, atomic=True)


def sends(tensor: torch.Tensor, who: int, deadline: float) -> None:
    unhang.broadcast(tensor, who, chunk_bytes=1024, deadline=deadline)


def gathers(tensor: torch.Tensor, who: int, deadline: float) -> None:
    unhang.all_gather(tensor, deadline=deadline)


def waits(tensor: torch.Tensor, who: int, deadline: float) -> None:
    unhang.barrier(deadline=deadline)


KEPT: dict[str, torch.Tensor] = {}


def faulty(rank: int, who: int, call, what, piece: int | None, often: int) -> str:
    """`what` happens to rank `who` before the call, or once that many pieces of it are complete. Survivors fill their tensor with a pattern then."""
    for _ in range(often):
        call(torch.ones(NUMEL), who, 30.0)
    tensor = KEPT["tensor"] = torch.full((NUMEL,), float(rank + 1))
    if rank == who:
        if piece is None:
            what()
        else:
            after(piece, what)
    try:
        call(tensor, who, DEADLINE_S)
    finally:
        KEPT["at its end"] = tensor.clone()
        tensor.fill_(PATTERN)
        if rank != who:
            store().set("given up", "yes")
    return "done"


def after(pieces: int, what) -> None:
    circle = circles.of()
    before, done = circle.wait, 0

    def wait(turn, work):
        nonlocal done
        if done == pieces:
            circle.wait = before
            what()
        done += 1
        before(turn, work)

    circle.wait = wait


def memory(rank: int) -> list[float]:
    return KEPT["tensor"].unique().tolist()


def at_its_end(rank: int) -> list[float]:
    return KEPT["at its end"].unique().tolist()


def goes_on(rank: int) -> list[float]:
    """The training's own group, and a guarded call."""
    mine = torch.full((2,), float(rank))
    dist.all_reduce(mine)
    found = [mine[0].item()]
    for _ in range(4):
        found.append(unhang.all_reduce(torch.full((3,), float(rank)), deadline=30)[0].item())
    unhang.barrier(deadline=30)
    return found


def outcome(world, who: int, *args) -> tuple[list, object]:
    """Of the survivors, and of the one that something happened to."""
    survivors = [rank for rank in range(world.size) if rank != who]
    world.start(faulty, who, *args)
    found = world.ended(survivors)
    if world.store.check(["stops"]):
        world.signal(who, signal.SIGCONT)
    return found, world.ended([who])[0]


def told_alike(found: list, missing: tuple[int, ...], kind: str = "CollectiveTimeout") -> str:
    assert all(isinstance(one, Raised) and one.kind == kind for one in found), found
    assert all(one.closed == found[0].closed for one in found)
    assert all(one.missing == missing and one.closed.missing == missing for one in found)
    return found[0].text


LATE = [
    # what, call, pieces done, often
    (sleeps, reduces, None, 0),
    (sleeps, reduces, None, 4),
    (computes, reduces, None, 4),
    (stops, reduces, None, 4),
    (stops, reduces, 2, 4),
    (sleeps, reduces, 2, 4),
    (stops, reduces_atomically, 3, 0),
    (sleeps, waits, None, 4),
    (stops, sends, None, 4),
    (stops, gathers, None, 4),
]
IN_SHORT = {0, 1, 4, 6, 8}


@pytest.mark.parametrize(
    ("what", "call", "piece", "often", "size"),
    [
        pytest.param(*case, size, marks=() if size == 3 and n in IN_SHORT else pytest.mark.integration, id=f"{case[0].__name__}-{n}-of-{size}")
        for size in (2, 3)
        for n, case in enumerate(LATE)
    ],
)
def test_who_comes_late_is_named_and_writes_into_nobody_s_memory(fresh, what, call, piece, often, size):
    world = fresh(size)
    who = size - 1
    found, late = outcome(world, who, call, what, piece, often)
    said = told_alike(found, (who,))
    assert f"Not heard from: rank {who}" in said
    assert (f"rank {who} (its process is stopped: SIGSTOP or Ctrl-Z)" in said) is (what is stops)
    if what in (sleeps, computes) and often:
        # A thread of its own answers, and says where it stands.
        assert f"rank {who} (at test_faults.py:" in said and f"in {what.__name__}" in said
    assert isinstance(late, Raised) and late.kind == "LatePeer", late
    assert late.closed == found[0].closed
    assert world(goes_on) == [[float(sum(range(size)))] * 5] * size
    assert world(memory) == [[PATTERN]] * size
    if call is reduces_atomically:
        assert world(at_its_end) == [[float(rank + 1)] for rank in range(size)]


@pytest.mark.parametrize(
    ("call", "piece", "often"),
    [
        (reduces, None, 0),
        pytest.param(reduces, None, 4, marks=pytest.mark.integration),
        (reduces, 2, 4),
        (reduces_atomically, 2, 0),
        (waits, None, 4),
    ],
)
def test_who_dies_is_named_by_all_that_live(fresh, call, piece, often):
    world = fresh(3)
    found, dead = outcome(world, 1, call, dies, piece, often)
    assert dead == Gone(-signal.SIGKILL)
    said = told_alike(found, (1,))
    # Whoever has not come to any call has not said which process it is.
    assert ("did not end: rank 1 has ended" in said) is bool(piece or often)
    if call is reduces_atomically:
        world.start(at_its_end)
        assert world.ended([0, 2]) == [[1.0], [3.0]]


@pytest.mark.parametrize(("what", "says"), [(fails, "rank 1: ValueError: boom"), (is_interrupted, "rank 1: KeyboardInterrupt")])
@pytest.mark.parametrize(("call", "piece"), [(reduces, 0), (reduces, 3), (reduces_atomically, 3)])
def test_who_fails_in_the_middle_says_so_to_the_others_at_once(fresh, what, says, call, piece):
    world = fresh(3)
    found, failed = outcome(world, 1, call, what, piece, 4)
    said = told_alike(found, (), "PeerFailed")
    assert says in said
    # Not by the deadline.
    assert "nothing moved" not in said
    assert isinstance(failed, Raised) and failed.kind in says
    assert world(goes_on) == [[3.0] * 5] * 3
    assert world(memory) == [[PATTERN]] * 3
    if call is reduces_atomically:
        assert world(at_its_end) == [[1.0], [2.0], [3.0]]


def waits_for_it(rank: int, who: int, late: int) -> str:
    if rank == late:
        sleeps()
    try:
        unhang.all_reduce(torch.ones(3), deadline=30)
    except BaseException:
        if rank not in (late, who):
            store().set("given up", "yes")
        raise
    return "done"


@reads_its_keys
def test_who_is_interrupted_while_it_waits_for_another(fresh):
    """Most likely of all: somebody does not come, and the user presses Ctrl-C, in one of the terminals."""
    world = fresh(3)
    world.start(waits_for_it, 1, 2)
    while not any(key.endswith("/main/1/n") and world.store.add(key, 0) == 2 for key in world.store.list_keys()):
        time.sleep(0.01)
    world.signal(1, signal.SIGINT)
    other, interrupted = world.ended([0, 1])
    assert interrupted.kind == "KeyboardInterrupt"
    assert other.kind == "PeerFailed" and "rank 1: KeyboardInterrupt" in other.text
    assert world.ended([2])[0].kind == "LatePeer"
    assert world(goes_on) == [[3.0] * 5] * 3


def is_away(rank: int) -> list[str]:
    """Rank 1 stands still with all that it needs for a call, and rank 0, which lacks its part, gives up that one and the next."""
    for _ in range(4):
        unhang.all_reduce(torch.ones(3), deadline=20)
    circle = circles.of()
    (lane,) = circle._own.values()
    ends = lane.ended

    def ended(work, within_s: float) -> bool:
        lane.ended = ends
        assert ends(work, 10)
        stops()
        return True

    if rank == 1:
        lane.ended = ended
    else:
        lane.ended = lambda work, within_s: bool(time.sleep(within_s))
    found = []
    for _ in range(2):
        try:
            unhang.all_reduce(torch.ones(3), deadline=0.6)
            found.append("done")
        except unhang.CollectiveTimeout as e:
            found.append(type(e).__name__)
    return found


def test_who_was_away_for_several_calls_has_a_result_of_none(fresh):
    world = fresh(2)
    world.start(is_away)
    assert world.ended([0]) == [["CollectiveTimeout"] * 2]
    world.signal(1, signal.SIGCONT)
    assert world.ended([1]) == [["LatePeer"] * 2]
    assert world(goes_on) == [[1.0] * 5] * 2


def is_elsewhere(rank: int) -> int:
    unhang.barrier(deadline=20)
    with pytest.raises(unhang.CollectiveMismatch):
        if rank == 0:
            unhang.all_reduce(torch.ones(3), deadline=20)
        else:
            while not any(key.endswith("/main/2/kind") for key in store().list_keys()):
                time.sleep(0.01)
            unhang.evaluate(lambda data, batch_size: {"loss": 1.0}, {"few": [1]}, batch_size=1, deadline=20)
    return len(circles.of()._begun_at)


@reads_its_keys
def test_an_evaluation_that_did_not_begin_is_not_kept(fresh):
    assert fresh(2)(is_elsewhere) == [0, 0]


# -- decisions


def decides(rank: int, late: int, times: int) -> list[tuple]:
    found = []
    if rank == late:
        sleeps()
    for number in range(times):
        agreed = unhang.agree([rank, number], deadline=DEADLINE_S)
        found.append((dict(agreed.values), agreed.missing, agreed.unanimous))
    if rank != late:
        store().set("given up", "yes")
    return found


@pytest.mark.parametrize("times", [1, 3])
def test_who_is_late_for_a_decision_obeys_it(fresh, times):
    """And for several: the others have gone on meanwhile."""
    found = fresh(3)(decides, 2, times)
    assert found[0] == found[1] == found[2]
    assert found[0] == [({0: [0, n], 1: [1, n]}, (2,), False) for n in range(times)]


def dies_instead(rank: int, who: int) -> tuple:
    if rank == who:
        dies()
    agreed = unhang.agree("go", deadline=DEADLINE_S)
    return agreed.missing, agreed.value, agreed.unanimous, unhang.all_ok(True, deadline=DEADLINE_S)


def test_a_decision_falls_without_the_dead(fresh):
    assert fresh(3).try_(dies_instead, 1)[::2] == [((1,), "go", False, False)] * 2


def comes_and_dies() -> None:
    while not any(key.endswith("/main/2/n") for key in store().list_keys()):
        time.sleep(0.01)
    dies()


def waits_for_the_dead(rank: int, comes: bool) -> tuple:
    """In a call that all have to agree on first, and to connect for."""
    unhang.agree(1, deadline=20)
    if rank == 1:
        if not comes:
            dies()
        threading.Thread(target=comes_and_dies, daemon=True).start()
    elif comes:
        while not circles.of().ended_ranks():
            time.sleep(0.01)
    began = time.monotonic()
    with pytest.raises(unhang.CollectiveTimeout, match="did not end: rank 1 has ended") as caught:
        unhang.all_reduce(torch.ones(3), deadline=60)
    return caught.value.missing, time.monotonic() - began


@reads_its_keys
@pytest.mark.parametrize("comes", [False, True])
def test_who_has_ended_is_not_waited_for(fresh, comes):
    zero, _, two = fresh(3).try_(waits_for_the_dead, comes)
    assert zero[0] == two[0] == (1,) and max(zero[1], two[1]) < 20


def waits_for_the_dead_and_the_late(rank: int) -> tuple:
    unhang.agree(1, deadline=20)
    if rank == 1:
        dies()
    if rank == 2:
        # Until the others have given it up.
        while not any(key.endswith("/closed") for key in store().list_keys()):
            time.sleep(0.01)
    with pytest.raises(unhang.CollectiveTimeout, match="did not end: rank 1 has ended") as caught:
        unhang.all_reduce(torch.ones(3), deadline=60)
    return type(caught.value).__name__, caught.value.missing


@reads_its_keys
def test_who_is_late_to_a_call_without_the_dead_has_missed_nothing(fresh):
    assert fresh(3).try_(waits_for_the_dead_and_the_late)[::2] == [("CollectiveTimeout", (1,))] * 2


def decides_and_ends(rank: int) -> str:
    """Rank 1 is the last to come to a barrier by the store, and its process has ended when rank 0 looks for those that have."""
    abortable_group.kind = lambda *_: "store"
    unhang.agree(1, deadline=20)
    circle = circles.of()
    if rank == 1:
        while not store().check(["hears"]):
            time.sleep(0.01)
        threading.Timer(0.5, dies).start()
    else:
        hears = circle._hear

        def hear(turn) -> None:
            hears(turn)
            store().set("hears", "yes")
            while not circle.ended_ranks():
                time.sleep(0.01)

        circle._hear = hear
    unhang.barrier(deadline=20)
    return "done"


def test_a_barrier_that_all_have_come_to_is_done_whoever_has_ended_behind_it(fresh):
    assert fresh(2).try_(decides_and_ends)[0] == "done"


def counts_without(rank: int) -> tuple:
    unhang.barrier(deadline=20)
    if rank:
        dies()
    try:
        return unhang.reduce_metrics({"a": 1.0}, deadline=300)
    except unhang.CollectiveTimeout as e:
        return e.missing, str(e)


def test_metrics_are_not_waited_for_of_the_dead(fresh):
    missing, said = fresh(3).try_(counts_without)[0]
    assert missing == (1, 2) and "did not end: ranks 1, 2 have ended. Not heard from: rank 1, 2." in said


def cannot_answer(rank: int) -> tuple:
    said = ""
    try:
        missing = unhang.agree(object() if rank == 1 else "go", deadline=30).missing
    except TypeError as e:
        said, missing = str(e), ()
    try:
        unhang.reduce_metrics({"a": "many" if rank == 1 else 1.0}, deadline=30)
        kind = ""
    except (TypeError, unhang.PeerFailed) as e:
        kind = type(e).__name__
    return said, missing, kind, unhang.all_reduce(torch.full((2,), float(rank)), deadline=30)[0].item()


def test_who_cannot_answer_does_not_keep_the_others_waiting(worlds):
    found = worlds(3)(cannot_answer)
    assert "object" in found[1][0] and found[1][2] == "TypeError"
    assert found[0][:3] == found[2][:3] == ("", (1,), "PeerFailed")
    assert [one[3] for one in found] == [3.0] * 3


def metrics(rank: int) -> dict[str, float]:
    mine = {"loss": (float(10 * rank), 10 + rank), "seen": rank, f"of {rank}": torch.tensor(2.0), "nothing": (0.0, 0)}
    return unhang.reduce_metrics(mine | ({"worst": float("inf"), "broken": float("nan")} if rank == 0 else {}))


def test_metrics_are_means_over_all_samples(worlds):
    for found in worlds(3)(metrics):
        assert found["loss"] == 30 / 33 and found["seen"] == 1.0
        assert found["of 0"] == found["of 1"] == found["of 2"] == 2.0
        assert found["worst"] == float("inf")
        assert found["broken"] != found["broken"] and found["nothing"] != found["nothing"]


# -- going on


def resumes(rank: int, who: int, piece: int, size: int) -> tuple[float, int, list[str], bool]:
    tensor = torch.arange(float(NUMEL)) * (rank + 1)
    circle = circles.of()
    sent = 0
    opened = circle._opened

    def counting(turn, how):
        lane = opened(turn, how)
        reduce = lane.all_reduce

        def counted(piece, op):
            nonlocal sent
            sent += 1
            return reduce(piece, op)

        lane.all_reduce = counted
        return lane

    kept = tensor.clone()
    said = []
    if rank == who:
        after(piece, sleeps)
    try:
        unhang.all_reduce(tensor, chunk_bytes=1024, deadline=6.0, atomic=True)
    except unhang.CollectiveTimeout as e:
        said.append(type(e).__name__)
        assert e.resumable and torch.equal(tensor, kept)
        store().set("given up", "yes") if rank != who else None
        circle._opened = counting
        found = e.resume(deadline=20)
        assert found is tensor
    right = torch.arange(float(NUMEL)) * sum(range(1, size + 1))
    return float(torch.equal(tensor, right)), sent, said, unhang.all_ok(True)


def test_going_on_does_not_send_again_what_was_complete(fresh):
    found = fresh(3)(resumes, 2, 3, 3)
    assert [one[0] for one in found] == [1.0] * 3
    assert [one[2] for one in found] == [["CollectiveTimeout"], ["CollectiveTimeout"], ["LatePeer"]]
    # Three pieces at least were complete everywhere.
    sent = {one[1] for one in found}
    assert len(sent) == 1 and 0 < sent.pop() <= PIECES - 3


def resumes_an_average(rank: int) -> list[float]:
    """Rank 1 stands still when all of it is complete, and only not yet agreed to be."""
    circle = circles.of()
    if rank == 1:
        commit = circle.commit

        def late(turn):
            circle.commit = commit
            sleeps()
            commit(turn)

        circle.commit = late
    tensor = torch.full((NUMEL,), 8.0 if rank == 0 else 4.0)
    try:
        unhang.all_reduce(tensor, "avg", chunk_bytes=1024, deadline=2.0, atomic=True)
    except unhang.CollectiveTimeout as e:
        store().set("given up", "yes") if rank == 0 else None
        e.resume(deadline=20)
    return tensor.unique().tolist()


def test_an_average_that_goes_on_is_divided_once(fresh):
    assert fresh(2)(resumes_an_average) == [[6.0]] * 2


def loses_what_others_have(rank: int) -> tuple[list[float], bool]:
    """Rank 1 loses its connection when all pieces are complete, on the other ranks too."""
    circle = circles.of()
    waits, seen = circle.wait, 0

    def wait(turn, work):
        nonlocal seen
        waits(turn, work)
        seen += 1
        if rank == 1 and seen == PIECES:
            # The others have their last piece as well, and would be on their way.
            time.sleep(1)
            circle.close(turn, "the connection broke")

    circle.wait = wait
    tensor, out = torch.full((NUMEL,), float(rank)), torch.zeros(NUMEL)
    try:
        unhang.all_reduce(tensor, chunk_bytes=1024, deadline=20, out=out)
    except unhang.CollectiveTimeout as e:
        assert out.unique().tolist() == [0.0]
        assert e.resume(deadline=20) is out
    return out.unique().tolist(), bool(unhang.all_ok(True))


def test_nobody_has_a_result_that_another_lacks(fresh):
    assert fresh(3)(loses_what_others_have) == [([3.0], True)] * 3


def resumes_in_vain(rank: int) -> tuple[bool, tuple[int, ...], bool]:
    if rank == 2:
        sleeps()
    try:
        unhang.all_reduce(torch.ones(3), deadline=DEADLINE_S, atomic=True)
    except unhang.CollectiveTimeout as e:
        if rank == 2:
            return e.resumable, (), True
        store().set("given up", "yes")
        try:
            e.resume(deadline=DEADLINE_S)
        except unhang.CollectiveTimeout as again:
            return e.resumable, again.missing, again.resumable
    raise AssertionError


def test_going_on_without_a_rank_that_does_not(fresh):
    assert fresh(3)(resumes_in_vain)[:2] == [(True, (2,), True)] * 2


def in_place(rank: int) -> str:
    if rank == 1:
        sleeps()
    try:
        unhang.all_reduce(torch.ones(3), deadline=DEADLINE_S)
    except unhang.CollectiveTimeout as e:
        store().set("given up", "yes")
        assert not e.resumable
        try:
            e.resume()
        except unhang.CollectiveError as refused:
            return str(refused)
    return ""


def test_what_was_reduced_in_place_cannot_go_on(fresh):
    assert all("atomic=True" in said for said in fresh(2)(in_place))


def stumbles(rank: int) -> list[float]:
    """Of the two connections to the store, the second is not made at first."""
    if rank == 0:
        answer = call_sites.answer

        def fails_once(circle):
            call_sites.answer = answer
            raise StoreLost("it was busy")

        call_sites.answer = fails_once
        with pytest.raises(StoreLost):
            unhang.barrier(deadline=20)
    return [unhang.all_reduce(torch.ones(3), deadline=20)[0].item() for _ in range(3)]


def test_a_rank_that_could_not_connect_at_first_meets_the_others(fresh):
    assert fresh(2)(stumbles) == [[2.0] * 3] * 2


def names_a_file(rank: int) -> str:
    class Value:
        def __reduce__(self):
            raise OSError("no such file: " + os.fsdecode(b"caf\xe9"))

    try:
        unhang.all_gather_object(Value() if rank == 1 else 1, deadline=20)
    except (OSError, unhang.PeerFailed) as e:
        return str(e).encode(errors="backslashreplace").decode()
    return ""


def test_an_error_that_no_encoder_takes_reaches_the_others(fresh):
    began = time.monotonic()
    said, own = fresh(2)(names_a_file)
    assert "rank 1: OSError: no such file: caf\\udce9" in said and "caf\\udce9" in own
    assert time.monotonic() - began < 15


def has_no_memory(rank: int) -> str:
    """Rank 0's object is too large for rank 1."""
    if rank == 1:

        def room(size_bytes):
            raise MemoryError("400 GB")

        kept, collectives._room = collectives._room, room
    try:
        unhang.all_gather_object({"rank": rank}, deadline=20)
    except (MemoryError, unhang.PeerFailed) as e:
        return f"{type(e).__name__}: {e}"
    finally:
        if rank == 1:
            collectives._room = kept
    return ""


def all_gathers(rank: int) -> list[int]:
    return unhang.all_gather_object(rank, deadline=20)


def test_who_has_no_memory_for_another_s_object_says_so(fresh):
    world = fresh(2)
    began = time.monotonic()
    one, other = world(has_no_memory)
    assert time.monotonic() - began < 10
    assert "rank 1: MemoryError: 400 GB" in one and other == "MemoryError: 400 GB"
    assert world.try_(all_gathers) == [[0, 1]] * 2
