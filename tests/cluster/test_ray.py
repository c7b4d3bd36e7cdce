"""`unhang run -- ray start --block` on two hosts that are namespaces: every training on Ray's workers is watched where its ranks are."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cluster.hosts import SBIN, Cluster
from tests.cluster.test_hosts import hosts_can_be_made  # noqa: F401
from tests.cluster.test_preflight import nobody_is_left
from tests.launchers.environments import NotMade, environment, supported

pytestmark = [pytest.mark.torch, pytest.mark.exhaustive, pytest.mark.timeout(2000)]

UNHANG = Path(sys.executable).with_name("unhang")
TIMEOUT_S = 500
STARTS = {
    1: ("--head", "--node-ip-address=10.77.0.1", "--port=6379", "--temp-dir=/scratch/ray", "--include-dashboard=false"),
    2: ("--address=10.77.0.1:6379", "--node-ip-address=10.77.0.2"),
}
COMMON = ("--num-cpus=2", "--object-store-memory=80000000", "--block")
SCRIPT = """
import sys, time
import ray, torch
from ray import train
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model


def rank_main(config):
    torch.set_num_threads(1)
    fault = config["fault"] if train.get_context().get_world_rank() == 1 else ""
    model = prepare_model(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for i in range(60):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        time.sleep(0.05)
        if i == 40 and fault == "raise":
            raise ValueError("bad batch")
        if i == 40 and fault == "loop":
            while True: pass


ray.init(address="10.77.0.1:6379")
TorchTrainer(
    rank_main,
    train_loop_config={"fault": sys.argv[1]},
    torch_config=TorchConfig(backend="gloo"),
    scaling_config=train.ScalingConfig(num_workers=2, placement_strategy="STRICT_SPREAD"),
    run_config=train.RunConfig(storage_path=sys.argv[2]),
).fit()
"""


class Ray:
    """A cluster of Ray, each of its two hosts started under an `unhang run` of its own."""

    def __init__(self, hosts: Cluster, programs: Path, folder: Path) -> None:
        self.hosts, self.programs, self.folder = hosts, programs, folder
        (folder / "train.py").write_text(SCRIPT)
        watch = (str(UNHANG), "run", "--on-failure", "report", "--hang-after", "15", "--run-dir")
        self.started, self.supervisors = [], {}
        for n, words in STARTS.items():
            self.supervisors[n] = self.start(n, f"node{n}", *watch, str(folder / f"run{n}"), "--", "ray", "start", *words, *COMMON)
            self.until(lambda: "Ray runtime started" in (folder / f"node{n}.log").read_text())  # noqa: B023

    def start(self, host, name, *words):
        env = ("env", f"PATH={self.programs}:{SBIN}", "HOME=/scratch", "GLOO_SOCKET_IFNAME=eth0", "RAY_USAGE_STATS_ENABLED=0")
        with (self.folder / f"{name}.log").open("wb") as log:
            inside = self.hosts[host].inside(*env, "sh", "-c", f'cd {self.folder} && exec "$@"', "sh", *words)
            self.started.append(subprocess.Popen(inside, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT))
        return self.started[-1]

    def train(self, fault):
        return self.start(1, f"driver-{fault}", "python", "train.py", fault, str(self.folder / "results"))

    def happened(self, name):
        """[(host, event)], in the order of each host."""
        told = [(n, json.loads(line)) for n in STARTS for line in (self.folder / f"run{n}/events.jsonl").read_text().splitlines()]
        return [(n, event) for n, event in told if event["event"] == name]

    def verdicts(self):
        """[(host, the primary cause)] of all incidents so far."""
        found = [(n, path) for n in STARTS for path in sorted((self.folder / f"run{n}").glob("incidents/*/verdict.json"))]
        return [(n, json.loads(path.read_text())["primary"]) for n, path in found]

    def until(self, condition):
        until = time.monotonic() + TIMEOUT_S
        while not (found := condition()):
            # Ray gives up where its own start takes 30 s.
            is_alive = all(process.poll() is None for process in self.supervisors.values())
            assert is_alive and time.monotonic() < until, {path.name: path.read_text()[-2000:] for path in self.folder.glob("*.log")}
            time.sleep(0.2)
        return found

    def interrupt(self, host):
        pid = json.loads((self.folder / f"run{host}/run.json").read_text())["supervisor"]["pid"]
        self.hosts[host].run(f"kill -INT {pid}")
        return self.supervisors[host].wait(timeout=TIMEOUT_S)


@pytest.fixture
def ray(tmp_path):
    if not supported():
        pytest.skip("the lock files of the launchers are of Python 3.11 and newer")
    try:
        programs = environment("ray") / "bin"
    except NotMade as e:
        raise pytest.fail.Exception(str(e), pytrace=False) from None
    with Cluster(2, tmp_path / "cluster") as hosts:
        yield (made := Ray(hosts, programs, tmp_path))
    for process in made.started:
        process.wait()


def line(text):
    (number,) = [n for n, one in enumerate(SCRIPT.splitlines(), 1) if one.strip() == text]
    return f"train.py:{number} in rank_main"


def test_trainings_one_after_the_other_are_watched_where_their_ranks_are(ray):
    assert ray.train("none").wait(timeout=TIMEOUT_S) == 0
    assert sorted((e["rank"], e["world_size"]) for _, e in ray.happened("Joined")) == [(0, 2), (1, 2)]
    assert len({n for n, _ in ray.happened("Joined")}) == 2 and not ray.happened("Opened") and not ray.happened("Stalled")

    # Ray places the ranks where it likes.
    assert ray.train("raise").wait(timeout=TIMEOUT_S) == 1
    ((host, found),) = ray.until(ray.verdicts)
    assert (found["cause"], found["standing"], found["ranks"], found["hosts"]) == ("rank-exception", "established", [1], [f"node{host}"]), found
    assert found["where"].endswith(line('raise ValueError("bad batch")'))

    driver = ray.train("loop")
    *_, (host, found) = ray.until(lambda: len(ray.verdicts()) > 1 and sorted(ray.verdicts(), key=lambda v: v[1]["cause"] == "process-stuck"))
    assert (found["cause"], found["standing"], found["ranks"], found["hosts"]) == ("process-stuck", "likely", [1], [f"node{host}"]), found
    assert found["where"].endswith(line("while True: pass"))
    assert {e["kind"] for n, e in ray.happened("Stalled") if n != host} == {"remote"}

    assert [ray.interrupt(n) for n in (2, 1)] == [130, 130]
    driver.wait(timeout=TIMEOUT_S)
    assert nobody_is_left(ray.hosts)
    # What Ctrl-C has found on the other host accuses nobody there.
    assert {v["standing"] for _, v in ray.verdicts() if v["cause"] not in ("rank-exception", "process-stuck")} <= {"not-established"}
