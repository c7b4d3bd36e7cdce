"""Lists that srun writes: short ones as they are, of long ones the beginning and how many more there are."""

from __future__ import annotations

from tests.tables import for_each

from unhang.knowledge import srun_ranges
from unhang.logs import Hit, Signature

LONG = ",".join(f"node{i}" for i in range(1, 65))


def said(host, tasks="3"):
    hit = Hit(signature=Signature(needle="x"), source="a.log", line=1, text="x", groups={"host": host, "tasks": tasks, "exitcode": "1"})
    (short,) = srun_ranges.shortened([hit])
    assert short.groups["exitcode"] == "1"
    return short.groups["host"], short.groups["tasks"]


@for_each(
    ("listed", "short"),
    [
        ("node7", "node7"),
        ("node[1-64,70],login", "node[1-64,70],login"),
        (LONG, "node1, node2 and 62 more"),
        (f"node[{','.join(f'{i:03}' for i in range(1, 99, 2))},200-299],gpu[1-3]", "node001, node003 and 150 more"),
        ("compute-partition[0001-0512],login-partition-7", "compute-partition[0001-0512], login-partition-7"),
        ("a" * 200, "a" * 40 + "…"),
        ("x1000c[0-7]s[0-3]b0n[0-1],x1001c0s0b0n[0-3]", "x1000c[0-7]s[0-3]b0n[0-1], x1001c0s0b0n[0-3]"),
        ("login,x1001c0s0b0n0,x1000c[0-7]s[0-3]b0n[0-1],x9c[1,3]s[0-1]", "login, x1001c0s0b0n0 and 68 more"),
        ("node1,node2,node[3-4,gpu[1-3],login,another", "node1,node2,node[3-4,gpu[1-3],login,anot…"),
        ("node1,node2,node3],gpu[1-3],login,another-one", "node1,node2,node3],gpu[1-3],login,anothe…"),
    ],
)
def test_hosts(listed, short):
    assert said(listed)[0] == short


def test_tasks():
    assert said("node1", "0-2,5")[1] == "0-2,5"
    assert said("node1", f"{','.join(map(str, range(0, 512, 8)))},600-699")[1] == "0, 8 and 162 more"


def test_other_hits_stay():
    hit = Hit(signature=Signature(needle="x"), source="a.log", line=1, text="x", groups={"host": LONG})
    assert srun_ranges.shortened([hit]) == (hit,)


@for_each("unit", ["[", "a", "a[", ",", "[1,", "]", "1-", "a[1]", "a[1]]"])
def test_what_is_no_list_takes_no_time(unit):
    said(unit * (64_000 // len(unit)))
