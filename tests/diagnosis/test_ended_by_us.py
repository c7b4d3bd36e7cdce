"""The logs of an attempt that unhang ended: nobody outside is to be looked for."""

from __future__ import annotations

import pytest

from unhang.diagnosis import interrupted
from unhang.model import Finding, Verdict

STOPPED = Verdict(primary=Finding(cause="launcher-teardown", standing="not-established", says="the job was ended from outside"))
STARTED = '{"s":0.1,"event":"Started","attempt":0,"pid":7,"command":["x"]}\n'
OPENED = '{"s":3.5,"event":"Opened","incident":1,"kind":"hang"}\n'
DRAWN = '{"s":4.5,"event":"Drawn","incident":1,"verdict":{},"took_s":1.0}\n'
AGAIN = STARTED.replace('"attempt":0', '"attempt":1')


@pytest.mark.parametrize(
    ("events", "options", "ours"),
    [
        (STARTED + OPENED + DRAWN, {}, True),
        (STARTED + OPENED + DRAWN + AGAIN, {}, True),
        (STARTED + OPENED + DRAWN, {"leave_hung": True}, False),
        (STARTED + OPENED.replace("hang", "failure") + DRAWN, {}, False),
        (STARTED + OPENED + OPENED.replace("Opened", "Abandoned") + DRAWN, {}, False),
        (STARTED + AGAIN + OPENED + DRAWN, {}, False),
        (STARTED, {}, False),
        ("", {}, False),
    ],
)
def test_who_ended_it(build, events, options, ours):
    rundir = build().rundir
    rundir.write(rundir.run, {"schema": "unhang/run/1", "options": options})
    rundir.events.write_text(events)
    logs = rundir.logs(0)
    logs.mkdir(parents=True)
    v = interrupted.ended_by_us(STOPPED, rundir, logs / "launcher.err", called="runs/x y")
    if not ours:
        assert v is STOPPED
        return
    assert "unhang run ended the job itself" in v.primary.says and "outside" not in v.primary.says
    assert (v.primary.standing, v.primary.remedies[0].command) == ("not-established", "unhang why 'runs/x y'")
    # What the logs themselves name stays.
    named = Verdict(primary=Finding(cause="gpu-oom", standing="established", says="x"))
    assert interrupted.ended_by_us(named, rundir, logs, called="x") is named
