"""The verdict on digests is that on the dumps, word for word; what is missing from it is said."""

from __future__ import annotations

import random

from tests.flight import jobs
from tests.flight.test_digest import DEFAULT, on_hosts, summed, write
from tests.flight.test_outcome import KINDS, injected
from tests.tables import for_each

from unhang.diagnosis.recorders import examine


def told(verdict):
    """All that a verdict says, but for the files in which it stands."""
    f = verdict.primary
    if f is None:
        return None
    return f.cause, f.standing, f.says, f.ranks, f.where, [e.text for e in f.evidence], [r.id for r in f.remedies]


def unexamined(verdict):
    return [(n.what, n.why) for n in verdict.not_examined]


@for_each("kind", KINDS)
@for_each(("seed", "world", "tp", "hosts"), [(0, 8, 1, 2), (1, 16, 4, 4), (2, 6, 1, 3)])
def test_every_kind_of_divergence(tmp_path, kind, seed, world, tp, hosts):
    rng = random.Random(seed)
    dumps, odd, *_ = injected(jobs.Plan(world=world, tp=tp, seed=seed, steps=20), kind, rng)
    paths, digests = on_hosts(tmp_path, dumps, hosts=hosts, as_json=(1, 5) if seed == 2 else ())
    whole = examine(paths).verdict
    assert whole.primary.ranks == (odd,)
    rng.shuffle(digests)
    assert told(examine(digests).verdict) == told(whole) and unexamined(examine(digests).verdict) == unexamined(whole)
    mixed = [*digests[1:], *(p for p in paths if int(p.name.rpartition("_")[2]) % hosts == int(digests[0].name[4]))]
    assert told(examine(mixed).verdict) == told(whole) and unexamined(examine(mixed).verdict) == unexamined(whole)


def groups(world):
    return {"0": ("default_pg", list(range(world)))}


def history(n, *, line=20):
    return [jobs.entry(i, DEFAULT, i + 1, "all_reduce", 4, line, "completed", t=i * 1000) for i in range(n)]


def last(n, *, op="all_reduce", elements=4, line=30, state="started", group=DEFAULT, t=900_000, **more):
    return jobs.entry(n, group, n + 1, op, elements, line, state, t=t, **more)


def message(n, what, *, elements=4, line=70):
    return last(n, op=what, elements=elements, line=line) | {"is_p2p": True, "p2p_seq_id": 1, "collective_seq_id": 0}


def crossed(r):
    pair = {"x": ("x", [0, 1]), "y": ("y", [0, 1])}
    return jobs.dump([last(0, group=(g, g), line=10 * (r + 1) + n, t=n) for n, g in enumerate("xy" if r == 0 else "yx")], pair)


def uneven(r):
    """all_to_all in which what is sent is not what is received."""
    return jobs.dump([*history(3), last(3, op="all_to_all", elements=5 if r == 1 else 4, outputs=4)], groups(4))


def surplus(r):
    """A call too many of the usual kind, from another line, before the ranks part."""
    entries = [last(n, line=99 if (r, n) == (1, 50) else 30, state="completed", t=1000 * n) for n in range(100)]
    return jobs.dump([*entries, last(100, op="all_reduce" if r == 1 else "broadcast", line=30 if r == 1 else 31)], groups(4))


def of_two(r):
    """Two that differ, one of them at a line that issued something else before, long ago."""
    others = (last(n, op="broadcast", line=31, state="completed", t=n * 1000) for n in range(4, 200))
    return jobs.dump([*history(4, line=30), *others, last(200, elements=8 if r else 4)], groups(2))


JOBS = {
    "all joined": {r: jobs.dump([*history(200), last(200)], groups(4)) for r in range(4)},
    "over on one": {r: jobs.dump([*history(200), last(200, state="completed" if r == 2 else "scheduled")], groups(4)) for r in range(4)},
    "a dump lacking": {r: jobs.dump([*history(200), last(200)], groups(4)) for r in range(3)},
    "nothing wrong": {r: jobs.dump(history(200), groups(2)) for r in range(2)},
    "no members told": {r: jobs.dump([*history(20), *([last(20)] if r else [])]) for r in range(3)},
    "ring overwritten": {
        r: jobs.dump([last(n + (400 if r == 3 else 0), state="completed" if n < 9 else "started", t=1000 * n) for n in range(10)], groups(4))
        for r in range(4)
    },
    "messages in a chain": {
        r: jobs.dump([*history(80), *([message(80, "send 0->1")] if r == 0 else [message(80, "recv 1<-2", line=71)] if r == 1 else [])], groups(4))
        for r in range(4)
    },
    "a message of another size": {
        r: jobs.dump([*history(80), message(80, "send 0->1", elements=8) if r == 0 else message(80, "recv 1<-0")], groups(2)) for r in range(2)
    },
    "both send": {r: jobs.dump([*history(80), message(80, f"send {r}->{1 - r}")], groups(2)) for r in range(2)},
    "crossed": {r: crossed(r) for r in range(2)},
    "uneven": {r: uneven(r) for r in range(4)},
    "surplus": {r: surplus(r) for r in range(4)},
    "of two": {r: of_two(r) for r in range(2)},
    "gloo": {
        r: jobs.dump(
            [jobs.entry(i, DEFAULT, i + 1, "all_reduce", 4, 20, "completed", t=1000 * i, backend="gloo") for i in range(200)]
            + ([last(200, op="barrier", backend="gloo")] if r else []),
            {"": ("", list(range(3)))},
        )
        for r in range(3)
    },
}


@for_each("name", JOBS)
def test_every_other_situation(tmp_path, name):
    paths, digests = on_hosts(tmp_path, JOBS[name])
    whole, merged = examine(paths).verdict, examine(digests[::-1]).verdict
    assert told(merged) == told(whole) and unexamined(merged) == unexamined(whole)
    assert (whole.primary is None) == (name == "nothing wrong")


def test_the_situations_are_different_ones(tmp_path):
    said = {
        name: (v.cause, v.says.split(" ")[2:8])
        for name in JOBS
        if (v := examine(write(tmp_path / name.replace(" ", ""), JOBS[name])).verdict.primary)
    }
    assert len({str(s) for s in said.values()}) == len(said)


def test_the_lines_on_both_sides_are_in_it(tmp_path):
    dumps = {
        r: jobs.dump([*history(300), last(300, op="broadcast" if r == 2 else "all_reduce", line=44 if r == 2 else 30)], groups(4)) for r in range(4)
    }
    _, digests = on_hosts(tmp_path, dumps)
    p = examine(digests).verdict.primary
    assert (p.cause, p.standing, p.ranks, p.where) == ("collective-mismatch", "established", (2,), "/home/user/train.py:44 in step")
    assert "rank 2 issued broadcast of [4] Float at /home/user/train.py:44 in step" in p.says
    assert "ranks 0, 1 and 3 issued all_reduce of [4] Float at /home/user/train.py:30 in step" in p.says
    assert any("before: #300" in e.text and "line 20" in e.text for e in p.evidence)
    assert {e.source for e in p.evidence} == {str(digests[0])}


def test_a_host_without_a_digest_is_unknown_never_absent(tmp_path):
    plan = jobs.Plan(world=8, steps=20)
    dumps = jobs.run(plan, {3: [*plan.calls(3)[:30], None]})
    _, digests = on_hosts(tmp_path, dumps, hosts=4)
    v = examine([d for d in digests if "node3" not in d.name]).verdict
    assert (v.primary.cause, v.primary.standing) == ("unknown", "not-established")
    assert "of ranks 3 and 7 there is no dump" in v.primary.says and not {3, 7} & set(v.primary.ranks)
    assert any(n.what == "the flight recorder of ranks 3 and 7" for n in v.not_examined)


def test_a_damaged_one_is_said_and_the_rest_judged(tmp_path):
    plan = jobs.Plan(world=6, steps=20)
    dumps = jobs.run(plan, {1: [*plan.calls(1)[:30], None]})
    _, digests = on_hosts(tmp_path, dumps, hosts=3)
    digests[2].write_bytes(digests[2].read_bytes()[:40])
    v = examine(digests).verdict
    assert v.primary.ranks == (1,) and v.primary.cause == "collective-timeout"
    assert any(n.what == str(digests[2]) and "damaged" in n.why and n.unread for n in v.not_examined)
    assert any(n.what == "the flight recorder of ranks 2 and 5" for n in v.not_examined)


def test_what_was_read_is_counted_once(tmp_path):
    paths = write(tmp_path / "dumps", JOBS["all joined"])
    gloo = [jobs.entry(i, DEFAULT, i + 1, "barrier", 0, 40, "completed", t=i, backend="gloo") for i in range(5)]
    paths += write(tmp_path / "dumps" / "cpu", {r: jobs.dump(gloo) for r in range(4)})
    path = summed(paths, tmp_path / "digests").path
    (read,) = examine([path]).verdict.inputs
    assert (read.source, read.bytes) == (str(path), path.stat().st_size)
