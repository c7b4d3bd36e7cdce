"""Lists that srun writes: short ones as they are, of long ones the beginning."""

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
        (LONG, f"{LONG[:40]}…"),
        ("a" * 200, "a" * 40 + "…"),
    ],
)
def test_hosts(listed, short):
    assert said(listed)[0] == short


def test_tasks():
    assert said("node1", "0-2,5")[1] == "0-2,5"
    assert said("node1", f"{','.join(map(str, range(0, 512, 8)))},600-699")[1] == "0,8,16,24,32,40,48,56,64,72,80,88,96,104…"


def test_other_hits_stay():
    hit = Hit(signature=Signature(needle="x"), source="a.log", line=1, text="x", groups={"host": LONG})
    assert srun_ranges.shortened([hit]) == (hit,)
