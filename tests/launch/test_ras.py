"""A job on NCCL is asked when it hangs; everybody else is left alone."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.diagnosis.test_ras import all_but
from tests.ras.nccl_ras import TEXT_ONLY, V28, listening, nccl

from unhang.facts.host import Host
from unhang.launch import evidence
from unhang.launch.incidents import EvidenceRequest, Incidents
from unhang.launch.watch import RankState, Stall
from unhang.ras import load
from unhang.records.rundir import MEMBER, RunDir

STATE = RankState(rank=1, pid=2**22 + 1, host="h", local_rank=1, since_s=0.0, backend="cpu:gloo,cuda:nccl")


@pytest.fixture
def rundir(tmp_path):
    return RunDir.create(tmp_path / "run")


@pytest.fixture
def server(monkeypatch):
    with listening(nccl(V28, all_but(5))) as server:
        monkeypatch.setenv("NCCL_RAS_ADDR", f"127.0.0.1:{server.port}")
        yield server


def taken(rundir, *states):
    missed = []
    return evidence.take_ras(rundir, 1, states, missed.append), [m.why for m in missed]


def test_the_answer_is_kept_as_it_came(rundir, server):
    assert taken(rundir, STATE) == ("incidents/1/ras.json", [])
    assert load(rundir.path / "incidents/1/ras.json").communicators[0].behind[0].ranks == (5,)
    assert "TIMEOUT 2" in server.commands
    assert MEMBER.fullmatch("run/incidents/1/ras.json") and MEMBER.fullmatch("run/incidents/1/ras.txt")


def test_old_versions_answer_in_text(rundir, monkeypatch):
    with listening(nccl(TEXT_ONLY[0], all_but(5))) as server:
        monkeypatch.setenv("NCCL_RAS_ADDR", f"127.0.0.1:{server.port}")
        assert taken(rundir, STATE) == ("incidents/1/ras.txt", [])


def test_a_job_on_gloo_is_not_asked(rundir, server):
    gloo = RankState(rank=0, pid=1, host="h", local_rank=0, since_s=0.0, backend="gloo")
    assert taken(rundir, gloo) == (None, []) and server.commands == []


def test_what_is_turned_off_or_not_there_is_told(rundir, server, monkeypatch):
    monkeypatch.setenv("NCCL_RAS_ENABLE", "0")
    assert taken(rundir, STATE) == (None, ["NCCL_RAS_ENABLE=0 turns it off"])
    monkeypatch.delenv("NCCL_RAS_ENABLE")
    monkeypatch.setenv("NCCL_RAS_ADDR", "127.0.0.1:1")
    path, (why,) = taken(rundir, STATE)
    assert path is None and "cannot connect to 127.0.0.1:1" in why and "older than NCCL 2.24" in why


@pytest.mark.parametrize("stalls", [True, False])
def test_an_incident_takes_it_beside_the_ranks(rundir, server, monkeypatch, stalls):
    monkeypatch.setattr(evidence, "find_py_spy", lambda: None)
    incidents = Incidents(rundir, host=Host(), first=1, clock=lambda: 9.0, tell=lambda event: None)
    stall = Stall(since_s=1.0, threshold_s=5.0, waiting=(), absent=()) if stalls else None
    opened = incidents.open("hang" if stalls else "failure", stall)
    asyncio.run(incidents.gather(opened, [EvidenceRequest(state=STATE, peer=None, activity=None)]))
    assert opened.gathered.is_set()
    assert opened.ras == ("incidents/1/ras.json" if stalls else None)
    assert bool(server.commands) is stalls


def test_a_foreign_server_is_no_answer(rundir, monkeypatch):
    with listening(lambda connection, server: connection.sendall(json.dumps({"hello": 1}).encode())) as server:
        monkeypatch.setenv("NCCL_RAS_ADDR", f"127.0.0.1:{server.port}")
        path, (why,) = taken(rundir, STATE)
    assert path is None and ("is no RAS server" in why or "reset" in why)
