"""What ranks used by NCCL's own log, and arms that only seem to differ."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.bench.trainings import Trainings
from tests.chinese import zh

from unhang.bench import effective_settings
from unhang.bench.effective_settings import EqualArms
from unhang.logs import nccl_lines

LOG = """\
node7:4711:4711 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.7<0>
node7:4711:4711 [0] NCCL INFO NCCL_SHM_DISABLE set by environment to {off}.
node7:4711:4790 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.7<0>
node7:4711:4790 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via {via}
node7:4711:4790 [0] NCCL INFO Channel 01/0 : 1[1] -> 0[0] [receive] via NET/Socket/1
node7:4711:4790 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
node7:4711:4790 [0] NCCL INFO Connected all trees
node7:4711:4711 [0] NCCL INFO AllReduce: 4194304 Bytes -> Algo TREE proto LL128 channel{{Lo..Hi}}={{0..1}}
"""


def test_what_a_log_says(tmp_path):
    path = tmp_path / "nccl.log"
    path.write_text(LOG.format(off=0, via="SHM/direct/direct"))
    assert nccl_lines.read_used(path) == {
        "NCCL transports": "NET/Socket, SHM/direct/direct",
        "NCCL network": "Socket [0]eth0:10.0.0.7<0>",
        "NCCL connected": "rings, trees",
        "NCCL algorithms": "AllReduce TREE/LL128",
    }


@pytest.fixture
def trainings(tmp_path, monkeypatch):
    found = Trainings(tmp_path, monkeypatch)
    found.step_s["b"] = 0.11
    return found


def test_transports_that_differ_are_a_difference_that_follows(trainings):
    trainings.nccl = {"a": LOG.format(off=0, via="SHM/direct/direct"), "b": LOG.format(off=1, via="NET/Socket/0")}
    proof = trainings.run().state.proof
    assert [(d.name, d.values, d.is_asked) for d in proof.differences] == [
        ("NCCL transports", ("NET/Socket, SHM/direct/direct", "NET/Socket"), False),
        ("NCCL_SHM_DISABLE", ("0", "1"), True),
    ]


def test_a_variable_that_changes_no_transport_makes_no_difference(trainings):
    trainings.nccl = {name: LOG.format(off=off, via="P2P/CUMEM") for name, off in (("a", 0), ("b", 1))}
    with pytest.raises(EqualArms, match=r"do not differ in anything effective: by its own log, NCCL uses NET/Socket, P2P/CUMEM in both") as refused:
        trainings.run()
    assert zh(refused.value.message) and "p2p=off" in refused.value.hint and len(trainings.started) == 2


def test_an_interface_that_nccl_does_not_use_makes_no_difference(trainings):
    names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
    trainings.nccl = dict.fromkeys("ab", LOG.format(off=0, via="P2P/CUMEM"))
    trainings.variables = {"a": dict.fromkeys(names, "eth0"), "b": dict.fromkeys(names, "eth1")}
    trainings.arms = [replace(arm, changes=frozenset(names)) for arm in trainings.arms]
    with pytest.raises(EqualArms, match="by its own log"):
        trainings.run()


def test_without_a_log_of_every_rank_nothing_is_concluded(trainings):
    trainings.nccl = {"a": LOG.format(off=0, via="P2P/CUMEM"), "b": "nothing of interest\n"}
    found = trainings.run()
    assert found.stopped == "decided" and "NCCL transports" in [d.name for d in found.state.proof.differences]
    trainings.nccl = {}
    assert trainings.run().stopped == "decided"


def test_the_log_is_the_same_in_all_arms_or_nobodys(tmp_path, trainings):
    (a, b) = trainings.arms
    plain = effective_settings.nccl_settings([a, b], tmp_path, {"NCCL_DEBUG": "WARN"})
    assert plain == {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV", "NCCL_DEBUG_FILE": f"{tmp_path}/nccl-%h-%p.log"}
    assert effective_settings.nccl_settings([a, b], tmp_path, {"NCCL_DEBUG_SUBSYS": "INIT,TUNING"})["NCCL_DEBUG_SUBSYS"] == "INIT,TUNING"
    a.settings["NCCL_DEBUG"] = "TRACE"
    assert effective_settings.nccl_settings([a, b], tmp_path, {}) == {}
