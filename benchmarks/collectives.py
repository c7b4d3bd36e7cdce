"""What do guarded collectives cost? unhang.all_reduce against torch's own, in the same processes, in turns; one JSON line last.

A is `unhang.all_reduce(tensor, "max")`, B `dist.all_reduce(tensor, MAX)` on a tensor of the same size; the order alternates (A B, B A, ...).
Each start of the ranks has connections and threads of its own, which stay where the kernel has put them: two groups that do the same differ by up to
15 percent for as long as they live. So the ranks are started several times (`starts`), and `control` is what B on a second group of torch's takes to
B: what no number of calls removes. `ratio` is the median over the starts of the median ratio of a pair, `of_medians` that of the ratios of medians.
Ranks are processes of this machine over Gloo: on loopback, and (as root) in two network namespaces that a veth pair joins. `memory` is how much more
resident memory peaks in a call of A than in one of B, in bytes for each byte reduced. `own_us` is what a call of A takes beside what travels: the
part of the ratio below the chunking threshold that is ours, and that the machine's noise would hide.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from pairs import ratio

MB = 1 << 20
HERE = Path(__file__).resolve()
# Two network namespaces; everything made here ends with them.
VETH = """
set -e
mount -t tmpfs tmpfs /run
ip netns add node1
ip link set lo up
ip link add eth0 type veth peer name eth1 netns node1
ip -n node1 link set eth1 name eth0
ip -n node1 link set lo up
ip addr add 10.77.0.1/24 dev eth0
ip -n node1 addr add 10.77.0.2/24 dev eth0
ip -n node1 link set eth0 up
ip link set eth0 up
export GLOO_SOCKET_IFNAME=eth0 MASTER_ADDR=10.77.0.1
for rank in $(seq 1 $((WORLD_SIZE - 1))); do
  if [ $((rank % 2)) = 1 ]; then RANK=$rank ip netns exec node1 "$@" & else RANK=$rank "$@" & fi
done
RANK=0 "$@"
wait
"""


class Timed:
    """A lane, and how long each call of one operation was in it: from when it is asked for until it is seen to have ended."""

    def __init__(self, lane: Any) -> None:
        self._lane, self.seconds = lane, 0.0
        self.expect, self.leaves, self.destroy = lane.expect, lane.leaves, lane.destroy

    def all_reduce(self, tensor: object, op: object) -> object:
        began = time.perf_counter()
        work = self._lane.all_reduce(tensor, op)
        self.seconds += time.perf_counter() - began
        return work

    def ended(self, work: object, within_s: float) -> bool:
        began = time.perf_counter()
        ended: bool = self._lane.ended(work, within_s)
        self.seconds += time.perf_counter() - began
        return ended


def own_us(ours: Callable[[], object], plain: Callable[[], object], n: int) -> list[float]:
    """Quartiles of what a call of `ours`, of a kind that has a lane of its own, takes beside that lane, in microseconds. In turns with `plain`: where
    nothing travels between two calls everything that they touch is at hand, and they take a tenth.
    """
    from unhang.runtime.collectives import guarded_group

    for _ in range(4):
        ours()
    lanes = dict(guarded_group.of()._own)
    timed = {call: Timed(lane) for call, lane in lanes.items()}
    guarded_group.of()._own.update(timed)
    took = []
    for _ in range(n):
        plain()
        before, began = sum(lane.seconds for lane in timed.values()), time.perf_counter()
        ours()
        took.append(time.perf_counter() - began - sum(lane.seconds for lane in timed.values()) + before)
    guarded_group.of()._own.update(lanes)
    return [round(one * 1e6, 1) for one in statistics.quantiles(took, n=4)]


def peak(call: Callable[[], object]) -> int:
    """How much resident memory peaks above where it stands, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    call()
    return max(0, status("VmHWM") - before)


def status(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def rank(sizes: list[int], repeats: float, device: str) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    import unhang

    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=timedelta(seconds=300))
    op = dist.ReduceOp.MAX
    second = dist.new_group()
    found: dict[str, Any] = {"sizes": {}}
    for size in sizes:
        one, other = (torch.ones(size * MB // 4, device=device) for _ in range(2))

        def ours(one: Any = one) -> object:
            return unhang.all_reduce(one, "max")

        def elsewhere(other: Any = other) -> object:
            return dist.all_reduce(other, op, group=second)

        def plain(other: Any = other) -> object:
            dist.all_reduce(other, op)
            return torch.cuda.synchronize() if device == "cuda" else None

        # Where plain calls differ by a fifth, a median of 40 pairs is off by six percent.
        n = max(4, int(repeats * (400 if size < 8 else 80 if size < 32 else 12 if size < 128 else 4)))
        found["sizes"][f"{size}MB"] = {
            **ratio(ours, plain, n),
            "control": ratio(elsewhere, plain, n)["pairs"][1] if device == "cpu" and size < 32 else None,
            "memory": round((peak(ours) - peak(plain)) / (size * MB), 3),
            "own_us": own_us(ours, plain, n) if size < 32 else None,
        }
        del one, other, ours, plain, elsewhere
    found["barrier"] = ratio(unhang.barrier, dist.barrier, int(100 * repeats))
    took = []
    for _ in range(int(100 * repeats)):
        began = time.perf_counter()
        unhang.agree(True)
        took.append(time.perf_counter() - began)
    found["agree_ms"] = {
        "median": round(statistics.median(took) * 1e3, 4),
        "p90": round(statistics.quantiles(took, n=10)[8] * 1e3, 4),
        "n": len(took),
    }
    found["peak_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    dist.barrier()
    dist.destroy_process_group()
    return found


def world(ranks: int, link: str, args: list[str]) -> dict[str, Any]:
    command = [sys.executable, str(HERE), "--rank", *args]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "WORLD_SIZE": str(ranks), "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    if link == "veth":
        started = [
            subprocess.Popen(["unshare", "--mount", "--net", "bash", "-c", VETH, "bash", *command], env=env, stdout=subprocess.PIPE, text=True)
        ]
    else:
        env |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
        started = [subprocess.Popen(command, env={**env, "RANK": str(r)}, stdout=subprocess.PIPE, text=True) for r in range(ranks)]
    try:
        outputs = [process.communicate(timeout=3600)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    lines = [line for output in outputs for line in output.splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(f"no rank of {ranks} over {link} came to its end")
    result: dict[str, Any] = json.loads(lines[0])
    return result


def together(starts: list[dict[str, Any]]) -> dict[str, Any]:
    """What several starts of the same ranks have found."""

    def middle(found: list[Any]) -> Any:
        return None if None in found else round(statistics.median(found), 4)

    sizes = {}
    for size in starts[0]["sizes"]:
        of_size = [start["sizes"][size] for start in starts]
        each = [one["pairs"][1] for one in of_size]
        sizes[size] = {
            "ratio": middle(each),
            "starts": sorted(each),
            "control": sorted(one["control"] for one in of_size if one["control"] is not None),
            "of_medians": middle([one["ratio"] for one in of_size]),
            "ours_ms": middle([one["ours_ms"] for one in of_size]),
            "plain_ms": middle([one["plain_ms"] for one in of_size]),
            "memory": middle([one["memory"] for one in of_size]),
            "own_us": middle([one["own_us"] and one["own_us"][1] for one in of_size]),
            "n": sum(one["n"] for one in of_size),
        }
    barriers = sorted(start["barrier"]["pairs"][1] for start in starts)
    return {
        "sizes": sizes,
        "barrier": {"ratio": middle(barriers), "starts": barriers, "ours_ms": middle([start["barrier"]["ours_ms"] for start in starts])},
        "agree_ms": {key: middle([start["agree_ms"][key] for start in starts]) for key in ("median", "p90")},
        "peak_rss_mb": max(start["peak_rss_mb"] for start in starts),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--links", nargs="+", choices=["loopback", "veth"], default=["loopback", "veth"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 16, 64, 256], help="in MB")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="cuda: NCCL, a GPU for each rank, over what joins them")
    parser.add_argument("--full", action="store_true", help="1 GB as well")
    parser.add_argument("--starts", type=int, default=5, help="of the ranks, each with connections of its own")
    parser.add_argument("--repeats", type=float, default=1.0, help="times the usual number")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    sizes = args.sizes + [1024] * args.full
    if args.rank:
        found = rank(sizes, args.repeats, args.device)
        if os.environ["RANK"] == "0":
            print(json.dumps(found))
        return
    links = ["loopback"] if args.device == "cuda" else [link for link in args.links if link != "veth" or os.geteuid() == 0]
    found = {}
    for ranks in args.ranks:
        for link in links:
            name = f"{ranks} ranks, {link}"
            options = ["--sizes", *map(str, sizes), "--repeats", str(args.repeats), "--device", args.device]
            found[name] = together([world(ranks, link, options) for _ in range(args.starts)])
            ratios = {size: one["ratio"] for size, one in found[name]["sizes"].items()}
            barrier, agree = found[name]["barrier"], found[name]["agree_ms"]
            print(f"{name}: {ratios}, barrier {barrier['ratio']} ({barrier['ours_ms']} ms), agree {agree['median']} ms", file=sys.stderr)
    print(
        json.dumps(
            {
                "benchmark": "collectives",
                "unit": "ratio of times, unhang : torch",
                "starts": args.starts,
                "found": found,
                "not_measured": sorted(set(args.links) - set(links)),
                "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
            }
        )
    )


if __name__ == "__main__":
    main()
