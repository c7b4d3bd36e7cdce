"""Messages of two ranks are counted from the first: which fits which is told by how many went before."""

from __future__ import annotations

import pickle

import pytest
from tests.flight import jobs
from tests.flight.jobs import parse
from tests.flight.test_outcome import history, message, recordings

from unhang.flight.messages import settled
from unhang.flight.wait_graph import judge

PAIR = {"0": ("default_pg", [0, 1])}


def answer(sent, got, *, first=0):
    """Rank 0 sends, rank 1 receives: (elements, state) of each, oldest first; `first` is the record of the oldest."""
    dumps = {}
    for rank, (what, posted) in enumerate((("send 0->1", sent), ("recv 1<-0", got))):
        of = [message(first + n, what, elements=e, number=n + 1, state=state, t=5000 + n) for n, (e, state) in enumerate(posted)]
        before = [] if first else history(1)
        dumps[rank] = jobs.dump([*before, *of], PAIR)
    outcome = judge(recordings(dumps))
    return settled(outcome, lambda rank: parse(pickle.dumps(dumps[rank], protocol=2)))


DONE, OPEN = "completed", "started"


@pytest.mark.parametrize(
    ("sent", "got", "kind", "ranks", "number"),
    [
        # The second pair fits, and waits behind the first.
        ([(8, DONE), (4, OPEN)], [(8, OPEN), (4, OPEN)], "finished-on-some", (1,), 1),
        ([(4, OPEN)], [(4, DONE)], "finished-on-some", (0,), 1),
        ([(4, DONE), (8, OPEN)], [(4, DONE), (2, OPEN)], "p2p-size", (0, 1), 2),
        ([(4, DONE), (8, OPEN)], [(4, DONE), (8, OPEN)], "transport", (0, 1), 2),
        ([(4, DONE), (8, OPEN)], [(4, DONE)], "p2p-alone", (1,), 2),
        ([(4, DONE)], [(4, DONE), (8, OPEN)], "p2p-alone", (0,), 2),
        # A send that was small enough is over, its receive has another size.
        ([(2, DONE), (4, OPEN)], [(4, OPEN)], "p2p-size", (0, 1), 1),
    ],
)
def test_counted(sent, got, kind, ranks, number):
    found = answer(sent, got)
    assert (found.kind, found.ranks, found.number) == (kind, ranks, number)
    assert found.by == ("nothing" if kind == "p2p-alone" else "pairs")


@pytest.mark.parametrize(
    ("sent", "got"),
    [
        ([(4, DONE)] * 40, [*[(4, DONE)] * 45, (4, OPEN)]),
        ([*[(4, DONE)] * 40, (4, OPEN)], [*[(4, DONE)] * 45, (4, OPEN)]),
        ([*[(4, DONE)] * 40, (4, OPEN), (4, OPEN), (4, OPEN)], [*[(4, DONE)] * 42, (4, OPEN)]),
    ],
)
def test_a_sender_of_whom_more_was_received_than_its_dump_has_is_older(sent, got):
    found = answer(sent, got)
    assert (found.kind, found.unseen, found.older, found.sides) == ("cannot-tell", (0,), (0,), ())
    assert found.ranks == found.waiting and found.waiting in ((0,), (1,))


def test_where_the_rings_have_lost_the_beginning_nothing_is_counted():
    found = answer([(4, OPEN)], [(8, OPEN), (4, OPEN)], first=700)
    assert (found.kind, found.ranks, found.ahead) == ("cannot-tell", (0,), (1,))
    found = answer([(4, OPEN)], [(8, OPEN)], first=700)
    assert (found.kind, found.by) == ("p2p-size", "nothing")


def test_what_cannot_be_read_again_stays_as_it_was():
    dumps = {0: jobs.dump([message(0, "send 0->1")], PAIR), 1: jobs.dump([message(0, "recv 1<-0", elements=8)], PAIR)}
    outcome = judge(recordings(dumps))
    assert settled(outcome, lambda rank: None) is outcome and outcome.by == "nothing"


def test_messages_that_were_launched_together_are_over_together():
    parts = [message(0, "send 0->1", state="scheduled"), message(1, "coalesced", state="completed"), message(2, "send 0->1", number=2, elements=8)]
    dumps = {0: jobs.dump(parts, PAIR), 1: jobs.dump([message(0, "recv 1<-0"), message(1, "recv 1<-0", number=2, elements=8)], PAIR)}
    found = settled(judge(recordings(dumps)), lambda rank: parse(pickle.dumps(dumps[rank], protocol=2)))
    assert (found.kind, found.ranks, found.number) == ("finished-on-some", (1,), 1)


def batched(rank, *ops, state):
    """A batch of messages, and the entry that ends it."""
    found = [message(n + 1, op, elements=4, number=1, state="completed" if state == "completed" else "scheduled", t=5000) for n, op in enumerate(ops)]
    return [*history(1), *found, message(len(ops) + 1, "coalesced", elements=0, number=1, state=state, t=5001)]


def test_of_a_batch_the_message_without_another_side_is_the_one():
    dumps = {
        0: jobs.dump(batched(0, "send 0->1", "recv 0<-1", state="started"), PAIR),
        1: jobs.dump(batched(1, "recv 1<-0", state="completed"), PAIR),
    }
    found = settled(judge(recordings(dumps)), lambda rank: parse(pickle.dumps(dumps[rank], protocol=2)))
    assert (found.kind, found.ranks, found.waiting, found.call) == ("p2p-alone", (1,), (0,), "receive from rank 1")


def test_a_receive_from_anybody_fits():
    found = answer_of("send 0->1", "recv 1<-?")
    assert (found.kind, found.ranks) == ("transport", (0, 1))


def test_a_message_in_another_group_is_no_other_half():
    groups = PAIR | {"pp": ("pp", [0, 1])}
    for group, kind in ((("0", "default_pg"), "transport"), (("pp", "pp"), "groups-crossed")):
        dumps = {
            0: jobs.dump([*history(1), message(1, "send 0->1", state=OPEN)], groups),
            1: jobs.dump([*history(1), message(1, "recv 1<-0", state=OPEN, group=group)], groups),
        }
        assert judge(recordings(dumps)).kind == kind


def answer_of(sent, got):
    dumps = {
        0: jobs.dump([*history(1), message(1, sent, elements=4, number=1, state=OPEN, t=5000)], PAIR),
        1: jobs.dump([*history(1), message(1, got, elements=4, number=1, state=OPEN, t=5000)], PAIR),
    }
    return settled(judge(recordings(dumps)), lambda rank: parse(pickle.dumps(dumps[rank], protocol=2)))
