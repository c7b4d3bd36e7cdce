"""`unhang run --hosts` on hosts that are namespaces: one run, one verdict from all hosts, and nothing left on any of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.cluster.hosts import SBIN, Cluster
from tests.cluster.test_hosts import hosts_can_be_made  # noqa: F401
from tests.cluster.test_preflight import nobody_is_left

pytestmark = pytest.mark.integration

UNHANG = Path(sys.executable).with_name("unhang")
SCRIPT = """
import datetime, os, sys, time
import torch, torch.distributed as dist

fault, steps = sys.argv[1], int(sys.argv[2])
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=600))
torch.manual_seed(7)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def step():
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    time.sleep(0.05)


for i in range(steps):
    step()
    if rank == 0:
        print("step", i, flush=True)
    if fault == "loop" and i == 40 and rank == 2:
        while True:  # endless
            pass
    if fault == "raise" and i == 40 and rank == 1:
        raise ValueError("bad batch")
    if fault == "mismatch" and i == 40:
        dist.all_reduce(torch.ones(4 if rank else 8))
dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Fault:
    """What goes wrong, and what the verdict says of it."""

    id: str
    word: str
    cause: str | None
    ranks: tuple[int, ...] = ()
    code: int = 1


FAULTS = [
    Fault("T1 clean", "", None, code=0),
    Fault("T11 endless loop", "loop", "process-stuck", (2,)),
    Fault("T12 mismatch", "mismatch", "collective-mismatch"),
    Fault("an exception", "raise", "rank-exception", (1,)),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(3, tmp_path_factory.mktemp("cluster")) as made:
        yield made


def trained(cluster, folder, *more, fault="", steps=60, hosts="node[1-3]", script=SCRIPT):
    (folder / "train.py").write_text(script)
    words = ["--hosts", hosts, "--run-dir", str(folder / "run"), "--max-restarts", "0", *more]
    return at_login(cluster, folder, *words, "train.py", fault or "none", str(steps))


def at_login(cluster, folder, *words):
    inside = ["env", f"PATH={SBIN}", "GLOO_SOCKET_IFNAME=eth0", "sh", "-c", f'cd {folder} && exec "$@"', "sh", str(UNHANG), "run", "--json", *words]
    return subprocess.Popen(cluster.login.inside(*inside), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)


def result(process):
    out, err = process.communicate(timeout=400)
    return process.returncode, json.loads(out.splitlines()[-1]) if out else {}, err


def until_step(folder, step, attempt=0):
    """Until rank 0 has taken so many steps, as it comes through the pipe."""
    log, until = folder / f"run/logs/attempt-{attempt}/rank0.out", time.monotonic() + 200
    while time.monotonic() < until:
        if log.exists() and f"step {step}\n" in log.read_text():
            return
        time.sleep(0.1)
    pytest.fail(f"no step {step}: {sorted(folder.rglob('*'))}")


@pytest.mark.parametrize("fault", [pytest.param(f, id=f.id) for f in FAULTS])
def test_a_fault_has_one_verdict(cluster, tmp_path, fault):
    code, told, err = result(trained(cluster, tmp_path, "--hang-after", "10", fault=fault.word))
    primary = (told["verdict"] or {}).get("primary")
    assert (code, primary and primary["cause"]) == (fault.code, fault.cause), err
    if fault.ranks:
        assert tuple(primary["ranks"]) == fault.ranks
    assert nobody_is_left(cluster)


_WORK = """    until = time.thread_time() + 0.02
    while time.thread_time() < until:
        torch.ones(64, 64) @ torch.ones(64, 64)"""
_SLOW_LINK = """
tc qdisc add dev eth0 root handle 1: htb default 1
tc class add dev eth0 parent 1: classid 1:1 htb rate 10gbit quantum 60000
tc class add dev eth0 parent 1: classid 1:2 htb rate 4mbit burst 16k
tc filter add dev eth0 parent 1: protocol ip u32 match ip dst 10.77.0.{to}/32 flowid 1:2"""


@contextlib.contextmanager
def _little_time(cluster, number):
    """A thirtieth of a processor for the ranks of a host: the quota of a container that is too small."""
    group = Path("/sys/fs/cgroup/cpu") / f"unhang-{os.getpid()}"
    if not group.parent.is_dir():
        pytest.skip("there is no cgroup v1 for processors here")
    group.mkdir()
    try:
        (group / "cpu.cfs_quota_us").write_text(str(int((group / "cpu.cfs_period_us").read_text()) // 30))
        space = os.readlink(f"/proc/{cluster[number].pid}/ns/pid")
        for pid, words in cluster.processes():
            if " -u train.py " in words and os.readlink(f"/proc/{pid}/ns/pid") == space:
                (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            (group.parent / "cgroup.procs").write_text(pid)
        group.rmdir()


@contextlib.contextmanager
def _slow_link(cluster, a, b):
    """The ring of three goes from 1 to 3, 2 and back."""
    cluster[a].run(_SLOW_LINK.format(to=b))
    yield
    cluster[a].run("tc qdisc del dev eth0 root")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("slow", "hosts"),
    [
        pytest.param(lambda cluster: _little_time(cluster, 2), ["node2"], id="T14 a host"),
        pytest.param(lambda cluster: _slow_link(cluster, 1, 3), ["node1", "node3"], id="T15 a link"),
    ],
)
def test_what_makes_a_training_slower_is_named_while_it_goes_on(cluster, tmp_path, slow, hosts):
    script = SCRIPT.replace("    time.sleep(0.05)", _WORK).replace("8, 8", "700, 700").replace("ones(4, 8)", "ones(4, 700)")
    process = trained(cluster, tmp_path, steps=100_000, script=script)
    until_step(tmp_path, 150)
    events = tmp_path / "run/events.jsonl"
    with slow(cluster):
        until = time.monotonic() + 200
        while not (drawn := [e for e in map(json.loads, events.read_text().splitlines()) if e["event"] == "Drawn"]) and time.monotonic() < until:
            time.sleep(0.2)
        assert len(drawn) == 1
    primary = json.loads((tmp_path / "run/verdict.json").read_text())["primary"]
    assert (primary["cause"], primary["standing"], primary["hosts"]) == ("straggler-timeout", "likely", hosts)
    supervisor = json.loads((tmp_path / "run/run.json").read_text())["supervisor"]["pid"]
    cluster.login.run(f"kill -INT {supervisor}")
    code, told, err = result(process)
    assert (code, told["interrupted"]) == (130, True), err
    assert nobody_is_left(cluster)


def test_a_link_that_comes_back_costs_nothing(cluster, tmp_path):
    process = trained(cluster, tmp_path, steps=300)
    until_step(tmp_path, 20)
    cluster.link(2, "down")
    time.sleep(4)
    cluster.link(2, "up")
    code, told, err = result(process)
    # TCP tries again at growing intervals: the stall may be long enough for a verdict.
    assert (code, told["attempts"]) == (0, 1), err
    assert nobody_is_left(cluster)


def test_a_coordinator_that_was_killed_leaves_a_training_that_another_goes_on_with(cluster, tmp_path):
    first = trained(cluster, tmp_path, steps=400)
    until_step(tmp_path, 20)
    # Of the process itself: nsenter has a child.
    cluster.login.run(f"kill -9 {json.loads((tmp_path / 'run/run.json').read_text())['supervisor']['pid']}")
    first.communicate(timeout=60)
    code, told, err = result(at_login(cluster, tmp_path, "--attach", "run"))
    assert (code, told["attempts"], told["verdict"]) == (0, 1, None), err
    # Nothing was brought twice, and nothing is missing.
    assert (tmp_path / "run/logs/attempt-0/rank0.out").read_text().split() == [w for i in range(400) for w in ("step", str(i))]
    assert nobody_is_left(cluster)


def test_hosts_that_are_all_silent_are_looked_for(cluster, tmp_path):
    process = trained(cluster, tmp_path, steps=500)
    until_step(tmp_path, 20)
    cluster.link(0, "down")
    time.sleep(20)
    cluster.link(0, "up")
    code, told, err = result(process)
    assert (code, told["attempts"], told["verdict"]) == (0, 1, None), err
    assert nobody_is_left(cluster)


def test_a_lost_host_is_named_and_a_spare_takes_its_place(tmp_path):
    """The first host, at which the others meet: nothing is special about it."""
    with Cluster(3, tmp_path / "cluster") as cluster:
        process = trained(cluster, tmp_path, "--spares", "1", "--max-restarts", "1", steps=100)
        until_step(tmp_path, 20)
        cluster[1].kill()
        code, told, err = result(process)
        assert (code, told.get("attempts")) == (0, 2), (told, err)
        primary = told["verdict"]["primary"]
        assert (primary["cause"], primary["standing"], primary["hosts"], primary["ranks"]) == ("host-lost", "established", ["node1"], [0]), err
        assert json.loads((tmp_path / "run/hosts.json").read_text())["hosts"] == ["node2", "node3"]
        assert nobody_is_left(cluster)


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", ["T5 and T10: link down, and up again", "T13: stopped, and going on"])
def test_a_host_that_comes_back_is_not_taken_again(tmp_path, fault):
    """Its ranks were ended there before a spare took its place, although nobody could tell it so."""
    with Cluster(3, tmp_path / "cluster") as cluster:
        process = trained(cluster, tmp_path, "--spares", "1", "--max-restarts", "1", steps=300)
        until_step(tmp_path, 20)
        there = [pid for pid, _ in cluster.processes() if of_host(cluster[2], pid)]
        if fault.startswith("T5"):
            cluster.link(2, "down")
        else:
            for pid in (cluster[2].pid, *there):
                os.kill(pid, signal.SIGSTOP)
        until_step(tmp_path, 5, attempt=1)
        if fault.startswith("T5"):
            # An agent whose connection is not closed waits; nothing of the training is left.
            assert not [words for pid, words in cluster.processes() if of_host(cluster[2], pid) and "train.py" in words]
            cluster.link(2, "up")
        else:
            for pid in (cluster[2].pid, *there):
                os.kill(pid, signal.SIGCONT)
        code, told, err = result(process)
        assert (code, told.get("attempts")) == (0, 2), (told, err)
        primary = told["verdict"]["primary"]
        assert (primary["cause"], primary["hosts"], primary["ranks"]) == ("host-lost", ["node2"], [1]), err
        assert json.loads((tmp_path / "run/hosts.json").read_text())["hosts"] == ["node1", "node3"]
        assert nobody_is_left(cluster)


def of_host(node, pid):
    """Whether a process of this machine runs on a host, and is more than its sshd."""
    try:
        return pid != node.pid and os.readlink(f"/proc/{pid}/ns/pid") == os.readlink(f"/proc/{node.pid}/ns/pid")
    except OSError:
        return False
