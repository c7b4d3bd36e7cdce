"""`unhang bench comm`, `record` and `check` with real ranks on Gloo: of this host, and of two network namespaces that a cable joins."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import uuid

import pytest
from tests.leftovers import end_all, living

from unhang.bench.collective_bench import OPS

DIVIDED = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
pytestmark = [pytest.mark.torch, pytest.mark.integration, pytest.mark.timeout(900)]

# In front of the ranks' script: what a defective link or library would do to a sum of more than a few numbers.
BROKEN = """
import runpy, sys
import torch.distributed as dist
good = dist.all_reduce
def all_reduce(tensor, *rest, **more):
    done = good(tensor, *rest, **more)
    if len(tensor) > 8 and dist.get_rank() == 1:
        tensor[5] += 1
    return done
dist.all_reduce = all_reduce
sys.path.insert(0, sys.argv[1].rpartition("/")[0])
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# One rank on either side of a cable, which carries as much as $1 says.
TWO_HOSTS = """
set -e
mount -t tmpfs tmpfs /run
ip netns add node1
ip link set lo up
ip link add eth7 type veth peer name eth1 netns node1
ip -n node1 link set eth1 name eth7
ip -n node1 link set lo up
ip addr add 10.77.0.1/24 dev eth7
ip -n node1 addr add 10.77.0.2/24 dev eth7
ip link set eth7 up
ip -n node1 link set eth7 up
"""
SLOW = "tc qdisc add dev eth7 root tbf rate 200mbit burst 256kb latency 100ms"
RANKS = """
export GLOO_SOCKET_IFNAME=eth7 MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 WORLD_SIZE=2
RANK=1 ip netns exec node1 "$@" &
RANK=0 "$@"
wait $!
"""


class Bench:
    def __init__(self, folder):
        self.folder = folder
        self.mark = f"UNHANG_TEST_MARK={uuid.uuid4().hex}"

    def start(self, *words, before=None):
        key, _, value = self.mark.partition("=")
        own = {k: v for k, v in os.environ.items() if not k.startswith(("UNHANG_", "RANK", "WORLD_SIZE", "MASTER_", "LC_", "LANG", "TORCH", "GLOO"))}
        environ = {**own, key: value, "XDG_CACHE_HOME": str(self.folder / "cache"), "TMPDIR": str(self.folder), "PYTHONUNBUFFERED": "1"}
        argv = [sys.executable, "-m", "unhang", *words]
        if before is not None:
            argv = ["unshare", "--mount", "--net", "--propagation", "private", "bash", "-c", f'{before}\nexec "$@"', "bash", *argv]
        return subprocess.Popen(argv, cwd=self.folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *words, code=0, before=None):
        out, err = (process := self.start(*words, before=before)).communicate(timeout=800)
        assert process.returncode == code, (out + err)[-3000:]
        assert not living(self.mark)
        return out

    def json(self, *words, code=0, before=None):
        return json.loads(self.run(*words[:2], "--json", *words[2:], code=code, before=before))


@pytest.fixture
def bench(tmp_path):
    found = Bench(tmp_path)
    yield found
    end_all(found.mark)


def test_all_operations_with_the_bandwidths_of_nccl_tests(bench):
    told = bench.json("bench", "comm", "-n", "3", "--sizes", "8,64K", "--time", "0.05")
    rows = told["rows"]
    assert (told["stopped"], len(told["group"]["hosts"]), told["group"]["backend"]) == ("complete", 3, "gloo")
    assert {row["op"] for row in rows} == {*OPS, "memory"} and not any(row["wrong"] for row in rows)
    assert sorted(row["pair"] for row in rows if row["pair"]) == [[a, b] for a in range(3) for b in range(3) if a != b]
    factors = {"all_reduce": 4 / 3, **dict.fromkeys(DIVIDED, 2 / 3)}
    for row in rows:
        assert row["lacking"] or (row["calls"] >= 5 and 0 < row["p50_s"] <= row["p95_s"] <= row["p99_s"])
        if row["lacking"] or row["op"] == "barrier":
            continue
        assert row["size_bytes"] % (12 if row["op"] in DIVIDED else 4) == 0
        assert row["algbw_gbps"] == pytest.approx(row["size_bytes"] / row["mean_s"] / 1e9)
        assert row["busbw_gbps"] == pytest.approx(row["algbw_gbps"] * factors.get(row["op"], 1))
    memory = next(row["algbw_gbps"] for row in rows if row["op"] == "memory")
    (reduced,) = [row for row in rows if row["op"] == "all_reduce" and row["size_bytes"] > 8]
    assert told["link"]["gbps"] == memory and reduced["of_link"] == pytest.approx(reduced["busbw_gbps"] / memory)


def test_a_wrong_result_is_an_error(bench):
    (bench.folder / "broken.py").write_text(BROKEN)
    launcher = ("--", sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "broken.py")
    told = bench.json("bench", "comm", "--ops", "all_reduce,broadcast", "--sizes", "16,4K", "--time", "0.05", *launcher, code=1)
    wrong = {(row["op"], row["size_bytes"]): row["wrong"] for row in told["rows"]}
    assert wrong.pop(("all_reduce", 4096)) == "rank 1: 1 of 1024 numbers are wrong; number 5 is 6, not 5"
    assert [*wrong.values()] == ["", "", ""]


def test_ranks_that_fail_are_explained(bench):
    (bench.folder / "full.py").write_text("raise OSError(28, 'No space left on device')")
    told = bench.json("bench", "comm", "--", sys.executable, "full.py", code=1)
    assert told["stopped"] == "failed" and "no space left on" in told["failure"] and told["rows"] == []


def test_ctrl_c_keeps_what_was_measured(bench):
    process = bench.start("bench", "comm", "-n", "2", "--json", "--sizes", "8,1K,16K", "--time", "1")
    ender = threading.Timer(600, process.kill)
    ender.start()
    # The line comes with the first size of an operation.
    for line in process.stderr:
        if "all_gather" in line:
            break
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=100)
    ender.cancel()
    assert process.returncode == 130 and not living(bench.mark)
    told = json.loads(out)
    assert told["stopped"] == "interrupted" and {"all_reduce", "all_gather"} <= {row["op"] for row in told["rows"]} < set(OPS) | {"memory"}


def test_a_check_that_is_interrupted_says_so(bench):
    pytest.importorskip("scipy")
    bench.run("bench", "record", "-n", "2", "--ops", "all_reduce", "--sizes", "1K", "--time", "0.01", "--rounds", "4")
    process = bench.start("bench", "check")
    ender = threading.Timer(600, process.kill)
    ender.start()
    # One round decides nothing.
    for line in process.stderr:
        if "2/4 " in line:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=100)
    ender.cancel()
    assert process.returncode == 130 and not living(bench.mark)
    assert "interrupted: the rest was not measured" in err and "cannot tell yet" in out


def test_a_link_that_has_become_slower_is_found_and_the_doctor_knows(bench):
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "--net", "true"], check=False).returncode:
        pytest.skip("namespaces are refused here")
    (bench.folder / "ranks.sh").write_text(RANKS)
    launcher = ("--", "bash", "ranks.sh", sys.executable)
    asked = ("--ops", "pairs", "--sizes", "4M", "--time", "0.05", "--rounds", "6")
    bench.run("bench", "record", *asked, *launcher, before=TWO_HOSTS)
    told = bench.json("bench", "check", code=1, before=f"{TWO_HOSTS}\n{SLOW}")
    # Only what leaves by eth7 of this side.
    assert {one["arm"]: one["outcome"] == "slower" for one in told["measured"]} == {"pairs 0 to 1, 4 MiB": True, "pairs 1 to 0, 4 MiB": False}
    (found,) = json.loads(bench.run("doctor", "--only", "speed", "--json", code=1))["findings"]
    assert found["cause"] == "straggler-timeout" and found["says"].startswith("pairs 0 to 1, 4 MiB takes ")
    # With another limit it is another machine.
    assert "limits was " in bench.json("bench", "check", code=2, before="ulimit -l 1000")["error"]


@pytest.mark.gpu
def test_nccl_on_all_gpus(bench):
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("NCCL needs two GPUs")
    told = bench.json("bench", "comm", "--sizes", "8,64M")
    assert told["group"]["backend"] == "nccl" and told["group"]["nccl"] and not any(row["wrong"] or row["lacking"] for row in told["rows"])
    assert {"gpu memory", "host to gpu"} < {row["op"] for row in told["rows"]}
    assert told["link"] is None or all(row["of_link"] < 1.1 for row in told["rows"] if row["of_link"] and row["op"] == "all_reduce")
