"""Buffers of sends that nobody waits for: which are kept, and for which the next send waits."""

import pytest

from unhang.attach import gloo_stand_in as sends


class Handle:
    pass


class Sending:
    def __init__(self, number, waited):
        self._number, self._waited = number, waited

    def wait(self):
        self._waited.append(self._number)
        raise RuntimeError("the peer has gone")


class Buffer:
    def __init__(self, nbytes):
        self.nbytes = nbytes


@pytest.fixture
def waited():
    yield []
    sends._abandoned.clear()
    sends._left.clear()
    sends._left_bytes = 0


def leave(count, nbytes, waited, *, first=0):
    for number in range(first, first + count):
        handle = Handle()
        sends._keep_send(handle, Sending(number, waited), Buffer(nbytes))
        del handle
    sends._drop_sends()


def test_so_many_are_kept_however_large_they_are(waited):
    leave(sends.LEAST, sends.MOST_BYTES, waited)
    assert waited == [] and len(sends._left) == sends.LEAST
    leave(2, sends.MOST_BYTES, waited, first=sends.LEAST)
    assert waited == [0, 1] and len(sends._left) == sends.LEAST and sends._left_bytes == sends.LEAST * sends.MOST_BYTES


def test_any_number_is_kept_that_is_small(waited):
    leave(4 * sends.LEAST, sends.MOST_BYTES // (4 * sends.LEAST), waited)
    assert waited == []
    leave(1, 1, waited, first=100)
    assert waited == [0]


def test_who_waits_for_it_leaves_nothing_behind(waited):
    handle = Handle()
    sends._keep_send(handle, Sending(0, waited), Buffer(1))()
    del handle
    sends._drop_sends()
    assert not sends._left and not sends._abandoned
