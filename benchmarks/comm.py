"""Do the numbers of `unhang bench comm` agree with a plain loop? all_reduce over Gloo, in the same ranks, in turns; one JSON line last.

A are a few calls as the ranks of `unhang bench comm` time them and make a row of, B a loop of as many `dist.all_reduce` between two readings of the
clock. The order alternates (A B, B A, ...). `ratio` is the median over the pairs of A's bus bandwidth to B's, `quartiles` are those of the pairs;
`control` compares B with the B of the pair before it: what the machine itself does to such a ratio.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def rank(sizes: list[int], pairs: int, calls: int) -> dict[str, Any]:
    import torch

    from unhang.probes import comm

    group = comm.Group("gloo", 1.0)
    group.join()
    return {str(size): compared(group, comm.case(group, "all_reduce", size).call, torch.zeros(size // 4), size, pairs, calls) for size in sizes}


def compared(group: Any, call: Callable[[], Any], x: Any, size: int, pairs: int, calls: int) -> dict[str, Any]:
    import torch.distributed as dist

    from unhang.probes import comm

    def ours() -> float:
        return float(comm.row("all_reduce", size, comm.timed(call, calls, cuda=False), comm.factor("all_reduce", group.size))["busbw_gbps"])

    def plain() -> float:
        began = time.perf_counter()
        for _ in range(calls):
            dist.all_reduce(x)
        return size * calls / (time.perf_counter() - began) * 2 * (group.size - 1) / group.size / 1e9

    found: dict[Any, list[float]] = {ours: [], plain: []}
    for i in range(pairs + 4):
        for side in (ours, plain) if i % 2 else (plain, ours):
            found[side].append(side())
    a, b = found[ours][4:], found[plain][4:]
    quartiles = statistics.quantiles([x / y for x, y in zip(a, b, strict=True)], n=4)
    return {
        "ratio": round(quartiles[1], 4),
        "quartiles": [round(quartiles[0], 4), round(quartiles[2], 4)],
        "control": round(statistics.median(y / x for x, y in itertools.pairwise(b)), 4),
        "ours_gbps": round(statistics.median(a), 4),
        "plain_gbps": round(statistics.median(b), 4),
        "n": pairs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="+", default=[4096, 1 << 20, 16 << 20], help="in bytes")
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--calls", type=int, default=5, help="on each side of a pair")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        found = rank(args.sizes, args.pairs, args.calls)
        if os.environ["RANK"] == "0":
            print(json.dumps(found), flush=True)
        os._exit(0)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(args.ranks), str(Path(__file__).resolve())]
    options = ["--rank", "--sizes", *map(str, args.sizes), "--pairs", str(args.pairs), "--calls", str(args.calls)]
    done = subprocess.run([*launcher, *options], stdout=subprocess.PIPE, text=True, check=True)
    print(
        json.dumps(
            {
                "benchmark": "comm",
                "unit": "ratio of bus bandwidths, unhang bench comm : plain loop",
                "ranks": args.ranks,
                "found": json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{"))),
                "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
            }
        )
    )


if __name__ == "__main__":
    main()
