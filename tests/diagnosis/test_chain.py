"""Incidents of one attempt that follow from each other: the root that was established first stands."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.chinese import zh

from unhang.diagnosis.why import judge
from unhang.model import Counters
from unhang.records.incident import Ended, Raised

TIMED_OUT = "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 40000ms for recv operation to complete"


@pytest.fixture
def run(build, lab):
    """A straggler at 31 s that was established; `failed` writes what came later: ranks with changes, and whether they had moved on before."""

    def run(activity=lab.BUSY):
        b = build()
        waiting = lab.in_collective("all_reduce", lab.user(40, "main"), lab.user(20, "step"))
        entries = [*lab.steps(29), lab.Entry(seq=30, done=False, frames=waiting)]
        b.rank(0, frames=waiting, entries=entries)
        b.rank(1, frames=(lab.user(40, "main"), lab.user(63, "loop")), entries=lab.steps(29), activity=activity)
        b.rank(2, frames=waiting, entries=entries)
        return b.write("straggler" if activity is lab.BUSY else "hang")

    return run


def failed(rundir, *, steps=0, attempt=0, number=2, **of_ranks):
    """What came later: a rank without changes was ended by its launcher; `steps`: collectives that all had made before."""
    before = rundir.read_incident(1)
    ranks = []
    for r in before.ranks:
        on = {g: Counters(enqueued=c.enqueued + steps, completed=c.completed + steps) for g, c in r.groups.items()}
        changes = of_ranks.get(f"rank{r.rank}", {"ended": Ended(at_s=65.0, exitcode=-15, by_launcher=True)})
        ranks.append(replace(r, groups=on, stacks=None, flight=None, answered=False, **{"activity": None, **changes}))
    rundir.write(rundir.incident(number), replace(before, number=number, attempt=attempt, kind="failure", at_s=64.0, ranks=tuple(ranks)))


def raised(type, text, lab, line=20):
    frames = lab.in_collective("all_reduce", lab.user(line, "step")) if "Timed" in text else (lab.user(line, "step"),)
    return {"raised": Raised(type=type, text=text, frames=frames, at_s=64.0), "ended": Ended(at_s=64.5, exitcode=1)}


def test_what_fails_later_follows_from_it(run, lab):
    rundir = run()
    alone = judge(rundir).primary
    assert (alone.cause, alone.standing, alone.ranks) == ("straggler-timeout", "established", (1,))
    failed(rundir, rank0=raised("RuntimeError", TIMED_OUT, lab))
    verdict = judge(rundir)
    assert verdict.primary == replace(alone, says=verdict.primary.says)
    assert verdict.primary.says == f"{alone.says}; 33 s later this led to collective-timeout"
    assert zh(verdict.primary.says).startswith(zh(alone.says)) and "collective-timeout" in zh(verdict.primary.says)
    assert verdict.symptoms[0].cause == "collective-timeout"
    assert judge(rundir, number=2).primary == verdict.primary
    # A third one, of what was ended at last.
    failed(rundir, number=3)
    assert (judge(rundir).primary.cause, judge(rundir).primary.ranks) == ("straggler-timeout", (1,))


def test_a_root_of_its_own_stands(run, lab):
    rundir = run()
    failed(rundir, rank1=raised("ValueError", "nothing to do", lab))
    verdict = judge(rundir)
    assert (verdict.primary.cause, verdict.primary.ranks, verdict.contributing) == ("rank-exception", (1,), ())
    failed(rundir, rank2={"ended": Ended(at_s=64.0, exitcode=-9)})
    verdict = judge(rundir)
    assert (verdict.primary.ranks, verdict.contributing[-1].ranks) == ((2,), (1,))


def test_who_waited_in_vain_is_no_root(run, lab):
    rundir = run()
    failed(rundir, rank0={"ended": Ended(at_s=64.0, exitcode=3, announced=True)})
    assert (judge(rundir).primary.cause, judge(rundir).primary.ranks) == ("straggler-timeout", (1,))


@pytest.mark.parametrize(("steps", "attempt"), [(5, 0), (0, 1)])
def test_a_training_that_went_on_has_a_story_of_its_own(run, lab, steps, attempt):
    rundir = run()
    failed(rundir, steps=steps, attempt=attempt, rank0=raised("RuntimeError", TIMED_OUT, lab))
    assert judge(rundir).primary.cause == "collective-timeout"


def test_a_loop_that_is_over_is_not_what_ended_the_training_later(run, lab):
    """Likely only: the same few lines of a long call look like an endless loop."""
    loop = replace(lab.BUSY, places=1, tree_cpu_share=0.97)
    rundir = run(loop)
    assert (judge(rundir).primary.standing, judge(rundir).primary.ranks) == ("likely", (1,))
    failed(rundir, rank1={"activity": loop, "last_place": None})
    assert judge(rundir).primary.ranks == (1,)
    failed(rundir, rank1={"activity": lab.IDLE, "last_place": None})
    assert judge(rundir).primary.ranks != (1,)


def test_of_very_many_incidents_the_last_ones_are_judged(run, lab):
    """As a stranger's directory may hold them."""
    rundir = run()
    for number in range(2, 1200):
        failed(rundir, number=number, rank0=raised("RuntimeError", TIMED_OUT, lab))
    assert judge(rundir).primary is not None
