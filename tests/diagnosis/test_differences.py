"""What differs between two snapshots, told as few and as plain lines as it takes."""

from __future__ import annotations

import pytest

from unhang.diagnosis.differences import _different, between
from unhang.facts import snapshot


def told(a, b):
    return list(_different(a, b, ""))


def test_an_area_that_one_side_lacks_is_one_line(machine):
    host = machine({"/proc/meminfo": "MemTotal: 100 kB\nMemAvailable: 50 kB\n"})
    a, b = snapshot.take(host, only=["memory"]), snapshot.take(host, only=["numa"])
    found = between(a, b)
    assert {d.area for d in found} == {"memory", "numa"} and len(found) == 2
    assert [d.b for d in found if d.area == "memory"] == ["not looked at"]
    assert [d.a for d in found if d.area == "memory"] != ["not looked at"]


@pytest.mark.parametrize("nothing", [None, [], {}, ""])
def test_nothing_is_nothing_however_it_is_written(nothing):
    assert told({"x": nothing}, {"x": None}) == [] and told({"x": nothing}, {}) == []


def test_a_part_on_one_side_only_is_one_line():
    library = {"name": "torch", "version": "2.13", "cuda": None, "parts": [{"name": "nccl", "version": "2.27"}]}
    assert told({"torch": library}, {"torch": None}) == [("torch", "torch, version 2.13, parts nccl, version 2.27", "nothing")]


def test_members_are_compared_by_their_names():
    one, other = {"name": "eth0", "mtu": 1500}, {"name": "eth1", "mtu": 9000}
    assert told({"i": [one, other]}, {"i": [other | {"mtu": 1500}]}) == [("i[eth0]", "eth0, mtu 1500", "nothing"), ("i[eth1].mtu", "9000", "1500")]


@pytest.mark.parametrize("name", [{}, {"path": ["pci0000:00"]}, {"name": "same"}])
def test_one_more_of_those_without_a_name_of_their_own_shifts_nothing(name):
    first, second, third = (name | {"text": text} for text in "abc")
    assert told({"e": [second, third]}, {"e": [first, second, third]}) == [("e[]", "nothing", told({"e": []}, {"e": [first]})[0][2])]
    assert told({"e": [first, first]}, {"e": [first]})[0][2] == "nothing"


def test_much_is_cut():
    ((_, a, b),) = told({"x": {"text": "y" * 5000}}, {})
    assert len(a) < 200 and a.endswith("…") and b == "nothing"


def test_who_listens_where_the_system_put_them_is_no_difference(machine):
    def listening(*numbers):
        rows = "".join(f"   0: 00000000:{n:04X} 00000000:0000 0A 0:0 00:0 0  1000        0 {n} 1 0 100 0 0 10 0\n" for n in numbers)
        files = {"/proc/net/tcp": f"  sl\n{rows}", "/proc/sys/net/ipv4/ip_local_port_range": "29000\t60999\n"}
        return snapshot.take(machine(files), only=["ports"])

    assert between(listening(22, 40000), listening(22, 41000, 60999)) == ()
    # The port of the store is in that range, too, and was chosen by somebody.
    assert [d.b.split(", ")[0] for d in between(listening(22), listening(22, 80, 29500)) if d.path] == ["29500", "80"]
