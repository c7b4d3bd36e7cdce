"""What is measured against: sizes, rates of links, baselines of a machine."""

from __future__ import annotations

import math
import random
import socket

import pytest
from tests.hosts.part import lay_out
from tests.hosts.test_machines import dgx, infiniband, pcie_server

from unhang.bench import baseline, collective_bench
from unhang.bench.baseline import Baseline, Store
from unhang.diagnosis import doctor
from unhang.errors import RecordError, UnhangError
from unhang.facts import snapshot

pytest.importorskip("scipy")
ASKED = collective_bench.Asked(launcher=("torchrun",), backend="gloo", ops=("all_reduce",), sizes=(8,), time_s=0.1, python="python")
HERE = {"host": "node7", "torch": "2.13", "driver": "570.1"}


def made(seconds=None, **machine):
    return Baseline(recorded="2026-01-01", machine={**HERE, **machine}, asked=ASKED, seconds=seconds or {"pairs": (1.0,)})


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("8", (8,)),
        ("8..256", (8, 32, 128, 256)),
        ("1k..4k", (1024, 4096)),
        ("1k..1k", (1024,)),
        ("1k..8k", (1024, 4096, 8192)),
        ("1M,16MiB,1G", (1 << 20, 16 << 20, 1 << 30)),
    ],
)
def test_sizes(text, sizes):
    assert collective_bench.parse_sizes(text) == sizes


@pytest.mark.parametrize("text", ["", "0", "8x", "16..8", "8..16*2", "-8", "8,,16"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError):
        collective_bench.parse_sizes(text)


def test_what_the_links_should_carry(machine):
    here = socket.gethostname()

    def limit(whole, hosts, backend="nccl"):
        group = collective_bench.Group(backend=backend, hosts=hosts, torch="2.13", nccl=None, device="H100")
        return collective_bench.link_limit(group, memory_gbps=9.0, host=None if whole is None else lay_out(machine, whole))

    assert limit(None, (here, here), "gloo").gbps == 9.0
    # Ranks on hosts that are not this one: nobody knows their links.
    assert limit(None, ("elsewhere", "elsewhere"), "gloo") is None
    cards = limit(pcie_server(4), (here,) * 4)
    assert cards.what == "PCIe" and cards.gbps == collective_bench.pcie_gbps(16, 32.0)
    assert collective_bench.pcie_gbps(16, 16.0) == pytest.approx(31.5, rel=0.01) and collective_bench.pcie_gbps(16, 5.0) == 8.0
    linked = limit(dgx(), (here,) * 8)
    assert (linked.what, linked.gbps) == ("NVLink", pytest.approx(18 * 26.562))
    across = limit(dgx(rails=infiniband), (here, "other"))
    assert (across.what, across.gbps) == ("8 ports of InfiniBand or RoCE", 400)


def test_slower_same_and_undecided(machine):
    noise = random.Random(3)

    def rounds(value, sigma):
        return [value * math.exp(noise.gauss(0, sigma)) for _ in range(10)]

    before = made({"a": tuple(rounds(1, 0.005)), "b": tuple(rounds(1, 0.005)), "c": tuple(rounds(1, 0.5)), "gone": (1.0,) * 10})
    found = baseline.judge(before, {"a": rounds(1.3, 0.005), "b": rounds(1.01, 0.005), "c": rounds(1, 0.5), "new": [1.0] * 10}, margin=0.1)
    assert {one.arm: one.outcome for one in found} == {"a": "slower", "b": "same", "c": "undecided"}
    early = baseline.judge(before, {"a": rounds(1.3, 0.005)[:2]}, margin=0.1)
    assert [one.outcome for one in early] == ["undecided"]


def test_sizes_with_the_same_part_for_a_rank_are_one_measurement():
    seconds = {}
    baseline.add(
        seconds, [collective_bench.Row(op="all_gather", size_bytes=32, p50_s=1.0), collective_bench.Row(op="all_gather", size_bytes=32, p50_s=2.0)]
    )
    assert seconds == {"all_gather, 32 B": [2.0]}


def test_a_baseline_is_for_one_machine(tmp_path):
    store = Store(tmp_path / "deep" / "bench.sqlite")
    with pytest.raises(UnhangError, match="no baseline is in"):
        store.find(HERE)
    store.keep(made())
    store.keep(made(host="node8", driver="550"))
    assert store.find(HERE) == made()
    with pytest.raises(UnhangError, match=r"has changed: driver was 570\.1, is 580$"):
        store.find({**HERE, "driver": "580"})
    store.path.write_bytes(b"no database" * 99)
    with pytest.raises(RecordError):
        store.find(HERE)


def test_the_doctor_tells_of_the_last_check(machine, monkeypatch):
    host = machine({}, environ={"XDG_CACHE_HOME": "/cache"})
    monkeypatch.setattr(baseline, "Host", lambda: host)
    assert snapshot.take(host, only=("speed",)).parts["speed"].state == "absent"
    store = Store(host.path("/cache/unhang/bench.sqlite"))
    times = {"a": (1.0, 1.001, 0.999, 1.0, 1.002), "b": (1.0, 1.001, 0.999, 1.0, 1.002)}
    for change, findings, state in ((1.0, [], "ok"), (1.0, [], "ok"), (1.5, ["straggler-timeout"], "found")):
        found = baseline.judge(made(times), {"a": times["a"], "b": [value * change for value in times["b"]]}, margin=0.1)
        store.keep_check(found)
        seen = doctor.examine(snapshot.take(host, only=("speed",)))
        assert ([f.cause for f in seen.findings], seen.areas[0].state) == (findings, state)
    assert "b takes 50 % more time" in seen.findings[0].says
    store.path.parent.chmod(0o777)
    seen = doctor.examine(snapshot.take(host, only=("speed",)))
    assert not seen.findings and seen.areas[0].state == "unknown", "anyone could have written it"
