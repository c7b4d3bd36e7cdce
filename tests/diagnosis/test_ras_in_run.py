"""NCCL's own view, taken at a hang: it names ranks of other hosts where this host's evidence names nobody, and it is never averaged away."""

from __future__ import annotations

import json

from tests.diagnosis.test_ras import all_but
from tests.ras.nccl_ras import V28, in_json, job


def waiting(build, lab, ras, **how):
    """Two ranks of this host wait in the same all_reduce, of a job of eight."""
    b = build()
    frames = lab.in_collective("all_reduce", lab.user(40, "main"), lab.user(20, "step"))
    for number in (0, 1):
        b.rank(number, frames=frames, entries=[*lab.steps(64), lab.Entry(seq=65, done=False, frames=frames)], backend="nccl", world=8)
    path = b.rundir.ras(1, "json")
    b.rundir.write_bytes(path, ras if isinstance(ras, bytes) else json.dumps(in_json(V28, ras)).encode())
    return b, b.rundir.relative(path)


def test_a_rank_of_another_host_is_named(build, lab):
    b, path = waiting(build, lab, all_but(5))
    verdict = b.judge(ras=path)
    assert (verdict.primary.standing, verdict.primary.ranks, verdict.primary.hosts) == ("not-established", (5,), ("10.0.0.2",))
    assert "nobody launched anything for 21 s: the others wait for them" in verdict.primary.says
    assert any(i.kind == "ras" and i.source == "incidents/1/ras.json" for i in verdict.inputs)
    assert verdict.primary.evidence[0].source.endswith("incidents/1/ras.json")


def test_where_nccl_blames_nobody_this_host_speaks(build, lab):
    b, path = waiting(build, lab, job())
    with_it, without = b.judge(ras=path), b.judge()
    assert with_it.primary == without.primary


def test_what_is_established_here_stays_first_and_the_contradiction_is_shown(build, lab):
    b, path = waiting(build, lab, all_but(5))
    b.rank(2, frames=(lab.user(61, "load"),), activity=lab.STOPPED, answered=False, enqueued=64, backend="nccl", world=8)
    verdict = b.judge(ras=path)
    assert (verdict.primary.cause, verdict.primary.ranks) == ("process-stuck", (2,))
    assert [c.ranks for c in verdict.contributing] == [(5,)]


def test_a_crash_is_not_judged_by_counts(build, lab):
    b, path = waiting(build, lab, all_but(5))
    assert b.judge("failure", ras=path).primary.ranks != (5,)


def test_a_damaged_answer_is_told(build, lab):
    b, path = waiting(build, lab, b'{"communicators": [')
    assert any("RAS" in n.what for n in b.judge(ras=path).not_examined)
