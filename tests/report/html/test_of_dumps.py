"""Dumps alone as a scene: who waits in what, who is missing or went astray, and what no recorder tells."""

from __future__ import annotations

import pickle

import pytest
from tests.flight import jobs

from unhang.diagnosis.recorders import examine
from unhang.flight.read_all import sum_up
from unhang.report.html import render
from unhang.report.html.of_dumps import scene_of
from unhang.report.html.scene import State

DEFAULT = ("0", "default_pg")


def world(n):
    return {"0": ("default_pg", list(range(n)))}


def calls(upto, *, last="started", op="all_reduce", line=20, elements=4, backend="nccl"):
    made = [jobs.entry(n - 1, DEFAULT, n, "all_reduce", 4, 20, "completed", t=n * 1000, backend=backend) for n in range(1, upto)]
    return [*made, jobs.entry(upto - 1, DEFAULT, upto, op, elements, line, last, t=upto * 1000, backend=backend)]


@pytest.fixture
def drawn(tmp_path):
    def drawn(dumps, **more):
        for rank, raw in dumps.items():
            (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(raw, protocol=2))
        return scene_of(examine(sorted(tmp_path.iterdir()), drawn=True), **more)

    return drawn


def concerns(scene):
    return {r.rank: r.concern for r in scene.ranks}


def states(scene, rank):
    return [State(s) for t in scene.tracks if t.rank == rank for s in t.states]


def test_who_waits_and_who_never_came(drawn):
    dumps = {r: jobs.dump(calls(5), world(5)) for r in range(3)} | {3: jobs.dump(calls(4, last="completed"), world(5))}
    scene = drawn(dumps, title="job 7")
    assert concerns(scene) == {0: "waiting", 1: "waiting", 2: "waiting", 3: "missing", 4: "unknown"}
    assert [r.unseen for r in scene.ranks] == [False] * 4 + [True]
    assert scene.ranks[0].says == "waits in all_reduce #5 of group 0" and scene.ranks[0].where == f"{jobs.TRAIN}:20 in step"
    (parted,) = scene.divergences
    assert (parted.number, parted.missing, parted.odd) == (5, (3,), ())
    assert [(s.doing, s.ranks) for s in parted.sides] == [("missing", (3,)), ("waiting", (0, 1, 2)), ("unknown", (4,))]
    assert states(scene, 0) == [State.COMPLETED] * 4 + [State.STARTED] and states(scene, 3) == [State.COMPLETED] * 4 + [State.MISSING]
    # Nobody tells which hosts they are of, and whose clocks.
    assert scene.title == "job 7" and scene.hosts_differ


def test_who_went_astray(drawn):
    scene = drawn({r: jobs.dump(calls(5, **({"op": "broadcast", "line": 44} if r == 2 else {})), world(4)) for r in range(4)})
    assert concerns(scene) == {0: "waiting", 1: "waiting", 2: "odd", 3: "waiting"}
    (parted,) = scene.divergences
    assert (parted.number, parted.odd) == (5, (2,))
    assert [(s.doing, s.ranks, s.operation, s.site) for s in parted.sides] == [
        ("odd", (2,), "broadcast", f"{jobs.TRAIN}:44 in step"),
        ("waiting", (0, 1, 3), "all_reduce", f"{jobs.TRAIN}:20 in step"),
    ]


def test_where_nobody_knows_who_went_astray_nobody_is_blamed(drawn):
    scene = drawn({r: jobs.dump(calls(3, op=("broadcast", "all_gather")[r], line=40 + r), world(2)) for r in range(2)})
    assert concerns(scene) == {0: "waiting", 1: "waiting"}
    (parted,) = scene.divergences
    assert (parted.number, parted.odd, parted.missing) == (3, (), ()) and {s.doing for s in parted.sides} == {"waiting"} and len(parted.sides) == 2


def test_nobody_waits(drawn):
    scene = drawn({r: jobs.dump(calls(3, last="completed"), world(2)) for r in range(2)})
    assert concerns(scene) == {0: "outside", 1: "outside"} and scene.divergences == ()
    assert scene.ranks[0].says == "waits in no recorded call"


def test_what_gloo_has_retired_is_waited_in_by_nobody_and_never_called_well(drawn):
    done = [jobs.entry(n, DEFAULT, n, "all_reduce", 4, 20, "completed", t=n * 1000, backend="gloo") for n in (1, 2, 3)]
    scene = drawn({r: jobs.dump(done, world(2)) for r in range(2)})
    assert concerns(scene) == {0: "outside", 1: "outside"} and states(scene, 0) == [State.ENDED] * 3
    scene = drawn({r: jobs.dump([e | {"state": "completed"} for e in done], world(2)) for r in range(2)})
    assert states(scene, 0) == [State.ENDED] * 3


def test_where_sums_do_not_fit_and_no_most_agree_nobody_is_blamed(drawn):
    def uneven(rank):
        last = jobs.entry(2, DEFAULT, 3, "all_to_all", 4 + rank, 50, "started", t=3000, outputs=9)
        return [*calls(2, last="completed"), last]

    scene = drawn({r: jobs.dump(uneven(r), world(2)) for r in range(2)})
    assert concerns(scene) == {0: "waiting", 1: "waiting"} and scene.divergences[0].odd == () and len(scene.divergences[0].sides) == 2


def test_a_recorder_that_was_off_and_one_that_is_cut_tell_nothing(drawn, tmp_path):
    dumps = {r: jobs.dump(calls(5), world(4)) for r in range(2)} | {2: jobs.dump([], world(4))}
    (tmp_path / "rank_3").write_bytes(pickle.dumps(jobs.dump(calls(4, last="completed"), world(4)), protocol=2)[:-60])
    scene = drawn(dumps)
    assert concerns(scene) == {0: "waiting", 1: "waiting", 2: "unknown", 3: "unknown"}
    assert [r.unseen for r in scene.ranks] == [False, False, True, False] and scene.divergences == ()


def crossed(rank, groups, backend="nccl"):
    """A long history in the default group, then two groups, in the order of this rank."""
    entries = calls(9, last="completed", backend=backend)
    for n, group in enumerate(groups):
        entries.append(jobs.entry(9 + n, (group, group), 1, "all_reduce", 4, 40 + n, "started", t=20_000 + 1000 * n + rank, backend=backend))
    return jobs.dump(entries, world(3) | ({"x": ("x", [0, 1, 2]), "y": ("y", [0, 1, 2])} if backend == "nccl" else {}))


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_groups_that_are_crossed_open_where_ranks_wait(drawn, backend):
    """Gloo does not tell who belongs to them."""
    scene = drawn({r: crossed(r, "y" if r == 2 else "x", backend) for r in range(3)})
    assert scene.divergences == () and scene.groups[scene.focus.group].name == "x"
    assert (scene.focus.number, scene.focus.rank) == (1, 0)


def test_a_message_that_nobody_receives(drawn):
    def message(what, number):
        return jobs.entry(9, DEFAULT, 4, what, 4, 70, "started", t=9_000_000) | {"is_p2p": True, "p2p_seq_id": number}

    scene = drawn(
        {0: jobs.dump([*calls(3, last="completed"), message("send 0->1", 2)], world(2)), 1: jobs.dump(calls(3, last="completed"), world(2))}
    )
    assert scene.ranks[0].says == "waits in a send" and scene.ranks[0].where == f"{jobs.TRAIN}:70 in step"
    assert concerns(scene) == {0: "waiting", 1: "missing"} and scene.divergences == ()
    assert [(g.name, g.point_to_point) for g in scene.groups] == [("0", False), ("0", True)]


def test_parts_of_a_split_group_have_one_name_and_are_not_mixed(drawn):
    parts = {r: [0, 1] if r < 2 else [2, 3] for r in range(4)}

    def of(rank):
        name = ("3", "split")
        upto = 3 if rank == 3 else 4
        made = [jobs.entry(n, name, n, "all_reduce", 4, 20, "completed" if n < 4 or rank < 2 else "started", t=n * 1000) for n in range(1, upto + 1)]
        return jobs.dump(made, {"3": ("split", parts[rank])})

    scene = drawn({r: of(r) for r in range(4)})
    assert [(g.name, g.members) for g in scene.groups] == [("3", (0, 1)), ("3", (2, 3))]
    (parted,) = scene.divergences
    assert (parted.group, parted.missing) == (1, (3,)) and concerns(scene) == {0: "outside", 1: "outside", 2: "waiting", 3: "missing"}


def test_credentials_are_not_in_the_page(drawn):
    raw = jobs.dump(calls(3), world(2))
    for e in raw["entries"]:
        e["frames"] = [{"filename": "/home/u/hf_abcdefghijklmnopqrstuvwxyz/train.py", "line": 3, "name": "<script>"}]
    page = render(examine_verdict(), drawn({0: raw, 1: raw}))
    assert "hf_abc" not in page and "[redacted]" in page and "<script>:" not in page


def examine_verdict():
    from unhang.model import Verdict

    return Verdict(primary=None)


def test_digests_are_drawn_and_name_their_hosts(tmp_path):
    (tmp_path / "d").mkdir()
    for rank in range(4):
        (tmp_path / "d" / f"rank_{rank}").write_bytes(pickle.dumps(jobs.dump(calls(4 if rank == 1 else 5), world(4)), protocol=2))
    for host in range(2):
        sum_up([tmp_path / "d" / f"rank_{r}" for r in (2 * host, 2 * host + 1)], tmp_path / "digests", f"node{host}", clean=str)
    scene = scene_of(examine(sorted((tmp_path / "digests").iterdir()), drawn=True))
    assert [r.host for r in scene.ranks] == ["node0", "node0", "node1", "node1"] and scene.hosts_differ
    assert all(t.starts_ns is not None for t in scene.tracks) and states(scene, 0) == [State.COMPLETED] * 4 + [State.STARTED]


def test_what_was_not_kept_is_counted(drawn, monkeypatch):
    monkeypatch.setattr("unhang.flight.read_all._MOST_DRAWN", 20)
    monkeypatch.setattr("unhang.flight.read_all._LEAST_DRAWN", 1)
    scene = drawn({r: jobs.dump(calls(30), world(2)) for r in range(2)})
    assert scene.left_out == 40 and '"left_out":40' in render(examine_verdict(), scene)
    assert [t.first for t in scene.tracks] == [21, 21]
