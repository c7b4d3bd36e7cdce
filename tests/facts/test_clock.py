import pytest

from unhang.facts import clock
from unhang.facts.host import Host, Ran

TRACKING = """Reference ID    : A29FC87B (162.159.200.123)
Stratum         : 4
System time     : 2.500000000 seconds {} of NTP time
Leap status     : Normal
"""


def test_kept_by_chrony(machine):
    host = machine({"/proc/700/comm": "chronyd\n", "/proc/701/comm": "bash\n", "/proc/mounts": ""})
    host.clock = (0x2001, 0.004)
    host.commands["chronyc", "-n", "tracking"] = Ran(exitcode=0, out=TRACKING.format("slow"), err="")
    seen = clock.collect(host)
    assert (seen.synchronised, seen.max_error_s, seen.offset_s, seen.keepers) == (True, 0.004, -2.5, ("chronyd",))
    assert clock.SUBJECT.summary(seen) == "synchronised by chronyd, 2500.0 ms off, at most 4 ms wrong"


@pytest.mark.parametrize("said", ["", "506 Cannot talk to daemon\n"])
def test_chrony_that_says_nothing(machine, said):
    host = machine({"/proc/700/comm": "chronyd\n"})
    host.clock = (0x2001, 0.004)
    host.commands["chronyc", "-n", "tracking"] = Ran(exitcode=1, out=said, err="")
    assert clock.collect(host).offset_s is None


def test_nothing_keeps_it(machine):
    host = machine({"/proc/1/comm": "init\n", "/sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n"})
    host.clock = (0x40, 16.0)
    seen = clock.collect(host)
    assert (seen.synchronised, seen.source) == (False, "tsc")
    assert clock.SUBJECT.summary(seen) == "not synchronised"


def test_what_was_not_asked_is_not_known(machine):
    seen = clock.collect(machine())
    assert seen.synchronised is None
    assert seen.unread == ("whether the kernel's clock is synchronised",)
    assert clock.SUBJECT.summary(seen) == "nothing is known of it"


def test_on_this_machine():
    seen = clock.collect(Host())
    assert seen.synchronised in (True, False)
    assert 0 <= seen.max_error_s < 1e6
