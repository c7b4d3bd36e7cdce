"""The same training, started in other ways than over ssh: by hand (or in pods) on each host, and within an allocation of Slurm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cluster import slurm
from tests.cluster.hosts import SBIN, Cluster
from tests.cluster.test_hosts import hosts_can_be_made, need  # noqa: F401
from tests.cluster.test_preflight import nobody_is_left
from tests.cluster.test_training import SCRIPT, result, until_step

pytestmark = pytest.mark.integration

UNHANG = Path(sys.executable).with_name("unhang")
SECRET = "UNHANG_SECRET=of-the-tests-of-unhang"
OPTIONS = ("--hang-after", "10", "--max-restarts", "0")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(3, tmp_path_factory.mktemp("cluster")) as made:
        yield made


def started(node, folder, *words, fault="none", steps=60, environ=(SECRET,)):
    (folder / "train.py").write_text(SCRIPT)
    inside = ["env", f"PATH={SBIN}", "GLOO_SOCKET_IFNAME=eth0", *environ, "sh", "-c", f'cd {folder} && exec "$@"', "sh"]
    words = [*node.inside(*inside), str(UNHANG), "run", *words, "train.py", fault, str(steps)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)


def of_rank(rank, nodes=3, address="node1"):
    return ("--nnodes", str(nodes), "--node-rank", str(rank), "--master-addr", address)


def first(cluster, folder, *words, fault="none", steps=60, **more):
    return started(cluster[1], folder, "--json", "--run-dir", str(folder / "run"), *OPTIONS, *words, fault=fault, steps=steps, **more)


def test_by_hand_a_fault_has_one_verdict_for_all(cluster, tmp_path):
    """The third as an indexed job of Kubernetes has it: all that it is told stands in its environment."""
    others = [
        started(cluster[2], tmp_path, *of_rank(1)),
        started(cluster[3], tmp_path, "--nnodes", "3", environ=(SECRET, "JOB_COMPLETION_INDEX=2", "MASTER_ADDR=10.77.0.1")),
    ]
    code, told, err = result(first(cluster, tmp_path, *of_rank(0), fault="loop"))
    primary = told["verdict"]["primary"]
    assert (code, primary["cause"], primary["ranks"], primary["hosts"]) == (1, "process-stuck", [2], ["node3"]), err
    for other in others:
        said = other.communicate(timeout=60)[1]
        assert other.returncode == 1 and primary["says"] in said
    assert nobody_is_left(cluster)


def test_by_hand_it_starts_again_and_who_does_not_belong_is_refused(cluster, tmp_path):
    """A node rank twice, and another secret: each is told why, and the others train; a killed rank brings all back for a second attempt."""
    process = first(cluster, tmp_path, *of_rank(0, 2), "--max-restarts", "1", steps=300)
    second = started(cluster[2], tmp_path, *of_rank(1, 2))
    until_step(tmp_path, 5)
    refused = [started(cluster[3], tmp_path, *of_rank(1, 2), environ=(of,)) for of in (SECRET, "UNHANG_SECRET=another-one-than-theirs")]
    for one, says in zip(refused, ("node rank 1 is node2's already", "another UNHANG_SECRET"), strict=True):
        said = one.communicate(timeout=60)[1]
        assert one.returncode == 2 and says in said, said
    ranks = json.loads((tmp_path / "run/now.json").read_text())["ranks"]
    # As that host counts it.
    cluster[2].run(f"kill -9 {next(rank['pid'] for rank in ranks if rank['rank'] == 1)}")
    code, told, err = result(process)
    assert (code, told["attempts"]) == (0, 2), err
    assert second.communicate(timeout=60) and second.returncode == 0
    assert nobody_is_left(cluster)


def test_by_hand_an_interrupt_on_any_host_ends_all(cluster, tmp_path):
    process, second = first(cluster, tmp_path, *of_rank(0, 2), steps=400), started(cluster[2], tmp_path, *of_rank(1, 2))
    until_step(tmp_path, 5)
    (pid,) = (pid for pid, words in cluster.processes() if "--node-rank 1 --master-addr node1" in words and str(UNHANG) in words)
    os.kill(pid, signal.SIGINT)
    code, told, err = result(process)
    assert (code, told["interrupted"]) == (130, True) and "interrupted on node2" in err
    assert second.communicate(timeout=150) and second.returncode == 130
    assert nobody_is_left(cluster)


def test_by_hand_the_loss_of_the_first_process_ends_all(cluster, tmp_path):
    """Nobody could find what runs on: a second start would train beside it."""
    process, second = first(cluster, tmp_path, *of_rank(0, 2), steps=400), started(cluster[2], tmp_path, *of_rank(1, 2))
    until_step(tmp_path, 20)
    cluster[1].run(f"kill -9 {json.loads((tmp_path / 'run/run.json').read_text())['supervisor']['pid']}")
    process.communicate(timeout=60)
    until = time.monotonic() + 60
    while (left := [words for _, words in cluster.processes() if "train.py none" in words and "node-rank" not in words]) and time.monotonic() < until:
        time.sleep(0.1)
    assert not left
    # For a minute it would join a first host that is started again.
    assert "does not answer" in second.communicate(timeout=150)[1] and second.returncode == 2
    assert nobody_is_left(cluster)


def test_by_hand_a_host_whose_processes_are_killed_is_not_lost_for_certain(cluster, tmp_path):
    """It closes the connection itself: for --pod that is no reason to leave that host."""
    process, second = first(cluster, tmp_path, *of_rank(0, 2), "--pod", steps=600), started(cluster[2], tmp_path, *of_rank(1, 2))
    until_step(tmp_path, 20)
    space = os.readlink(f"/proc/{cluster[2].pid}/ns/pid")
    for pid, words in cluster.processes():
        is_agent = "memfd_create" in words and os.readlink(f"/proc/{pid}/ns/pid") == space
        if is_agent or ("--node-rank 1 --master-addr node1" in words and str(UNHANG) in words):
            os.kill(pid, signal.SIGKILL)
    code, told, err = result(process)
    primary = told["verdict"]["primary"]
    assert (code, primary["cause"], primary["standing"], primary["hosts"]) == (1, "host-lost", "likely", ["node2"]), err
    second.communicate(timeout=60)
    assert nobody_is_left(cluster)


def test_by_hand_a_name_that_is_the_loopback_is_refused(cluster, tmp_path):
    cluster[1].run("cp /etc/hosts /scratch/hosts; sed 's/10.77.0.1 /127.0.1.1 /' /scratch/hosts > /etc/hosts")
    try:
        said = first(cluster, tmp_path, *of_rank(0)).communicate(timeout=60)[1]
    finally:
        cluster[1].run("cat /scratch/hosts > /etc/hosts")
    assert "node1 is 127.0.1.1 on this host" in said


def test_by_hand_who_does_not_come_is_named(cluster, tmp_path):
    process, second = first(cluster, tmp_path, *of_rank(0)), started(cluster[2], tmp_path, *of_rank(1))
    said = ""
    while "waiting for node rank" not in said:
        said = process.stderr.readline()
        assert said, "it has ended"
    assert "waiting for node rank 2:" in said
    cluster[1].run(f"kill -{signal.SIGTERM} {json.loads((tmp_path / 'run/run.json').read_text())['supervisor']['pid']}")
    assert process.communicate(timeout=60) and process.returncode == 143
    assert second.communicate(timeout=60) and second.returncode == 143
    assert nobody_is_left(cluster)


def test_within_an_allocation_of_slurm(tmp_path):
    """The second host is lost, Slurm ends nothing, and the third takes its place; how the job divides its hosts among tasks is not asked."""
    need(slurm.PROGRAMS)
    (tmp_path / "train.py").write_text(SCRIPT)
    with Cluster(3, tmp_path / "cluster") as three:
        allocation = slurm.Slurm(three)
        run = [str(UNHANG), "run", "--hosts", "slurm", "--json", "--run-dir", str(tmp_path / "run"), "--spares", "1", "--max-restarts", "1"]
        environ = ["GLOO_SOCKET_IFNAME=eth0", "SSH_CONNECTION=192.0.2.1 5000 192.0.2.2 22"]
        words = ["env", *environ, "salloc", "--no-kill", "-N3", "--ntasks-per-node=2", f"--chdir={tmp_path}", *run, "train.py", "none", "150"]
        process = subprocess.Popen(
            allocation.inside(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL, cwd=tmp_path
        )
        until_step(tmp_path, 20)
        three[2].kill()
        code, told, err = result(process)
        assert (code, told.get("attempts")) == (0, 2), (told, err)
        primary = told["verdict"]["primary"]
        assert (primary["cause"], primary["hosts"], primary["ranks"]) == ("host-lost", ["node2"], [1]), err
        until = time.monotonic() + 30
        while (left := [words for _, words in three.processes() if "torch" in words or "unhang" in words]) and time.monotonic() < until:
            time.sleep(0.1)
        assert not left
