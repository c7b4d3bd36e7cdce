"""What is on its way holds nobody up, is tried a few times, and is told in the log when it does not arrive."""

import threading
import time

from unhang.runtime.monitoring.sinks.delivery import Delivery, NotDelivered


class Way:
    """Does what it was given for each attempt, then nothing."""

    name = "pigeon"
    bound_s = 10.0

    def __init__(self, *does):
        self.does, self.got, self.arrived = list(does), [], threading.Condition()

    def deliver(self, message):
        with self.arrived:
            self.got.append(message["says"])
            self.arrived.notify_all()
        if self.does and (one := self.does.pop(0)) is not None:
            one()

    def wait_for(self, count):
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.got) >= count, timeout=20)


def fails(says="it answered 503", again=True):
    def raises():
        raise NotDelivered(says, again=again)

    return raises


def deliver(way, *says, pause_s=0.0, within_s=20.0):
    delivery = Delivery(way, pause_s=pause_s)
    for one in says:
        delivery.send({"says": one})
    delivery.close(time.monotonic() + within_s)


def test_what_fails_is_tried_three_times(caplog):
    way = Way(fails(), fails())
    deliver(way, "a", "b")
    assert way.got == ["a", "a", "a", "b"] and caplog.text == ""
    way = Way(*[fails()] * 3)
    deliver(way, "a", "b")
    assert way.got == ["a", "a", "a", "b"]
    assert [one.getMessage() for one in caplog.records] == ["an alert was not delivered by the pigeon (it answered 503): a"]


def test_what_will_never_pass_is_tried_once(caplog):
    way = Way(fails("it answered 404", again=False))
    deliver(way, "a", "b")
    assert way.got == ["a", "b"] and "(it answered 404): a" in caplog.text


def test_credentials_in_a_reason_are_not_logged(caplog):
    deliver(Way(fails("curl ended with 22: Authorization: Bearer abcdefghijklmnopqrstuvwxyz", again=False)), "a")
    assert "curl ended with 22" in caplog.text and "abcdefghijkl" not in caplog.text


def test_a_fault_of_ours_is_told_without_its_text(caplog):
    def faults():
        raise KeyError("http://host/SECRET")

    deliver(Way(faults), "a", "b")
    assert "(KeyError): a" in caplog.text and "SECRET" not in caplog.text


def test_what_never_comes_back_holds_up_nobody(caplog):
    go_on = threading.Event()
    way = Way(lambda: go_on.wait(30))
    way.bound_s = 0.1
    delivery = Delivery(way, pause_s=0.0)
    began = time.monotonic()
    delivery.send({"says": "a"})
    way.wait_for(1)
    delivery.send({"says": "b"})
    delivery.close(time.monotonic() + 20)
    assert time.monotonic() - began < 10
    # No second attempt hangs beside the first.
    assert way.got == ["a"]
    assert [one.getMessage() for one in caplog.records] == [
        "an alert was not delivered by the pigeon (an earlier attempt has not come back yet): a",
        "an alert was not delivered by the pigeon (an earlier attempt has not come back yet): b",
    ]
    go_on.set()


def test_whoever_sends_never_waits_and_what_is_lost_is_told(caplog):
    go_on = threading.Event()
    way = Way(lambda: go_on.wait(30))
    delivery = Delivery(way)
    began = time.monotonic()
    delivery.send({"says": "first"})
    way.wait_for(1)
    for i in range(34):
        delivery.send({"says": f"no. {i}"})
    delivery.close(time.monotonic() + 0.1)
    assert time.monotonic() - began < 5
    said = [one.getMessage() for one in caplog.records]
    assert sum("32 others wait before it" in one for one in said) == 2
    assert sum("the training has ended first" in one for one in said) == 32
    go_on.set()


def test_at_the_end_nobody_pauses_between_attempts():
    way = Way(fails())
    began = time.monotonic()
    deliver(way, "a", pause_s=60.0)
    assert way.got == ["a", "a"] and time.monotonic() - began < 10
