"""What does the guard of an evaluation cost? unhang.evaluate against the plain loop, in the same processes, in turns; one JSON line last.

A is `unhang.evaluate` of a generator that yields the metrics of each batch, B the loop that users write: eval(), no_grad, sums, one all_reduce of
them, train(). Both run the same model over the same batches, on ranks of this machine over Gloo; the order alternates (A B, B A, ...). Ratios are of
medians, by the length of the evaluation in batches; `pairs` has quartiles of the ratios of each pair, `plain_spread` those of B to its own median:
the noise of the machine.

What is the guard's own is measured where nothing else is done, and so is not hidden by that noise: `guard_ms` is what A takes for one empty batch on
one data set, the least of nine medians, ranks waiting for each other in the store among it; `alone_ms` the same without ranks to wait for;
`per_batch_us` what one batch more takes. `own_percent` is what that comes to, of what the plain loop of that length takes (median): the guard's share
of the evaluation, which is meant to be below 1 %.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from pairs import ratio

HERE = Path(__file__).resolve()
BATCH, WIDTH = 64, 512


LONG = 201


def took(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def least(call: Callable[[], object], n: int) -> float:
    """The least of nine medians, in seconds: what others do on the machine only adds."""
    return min(statistics.median(took(call) for _ in range(n)) for _ in range(9))


def rank(lengths: list[int], repeats: float) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    import unhang

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)], torch.nn.Linear(WIDTH, 10))
    batch, labels = torch.randn(BATCH, WIDTH), torch.randint(0, 10, (BATCH,))

    def one() -> tuple[float, int]:
        scores = model(batch)
        return float(torch.nn.functional.cross_entropy(scores, labels, reduction="sum")), int((scores.argmax(1) == labels).sum())

    def loop(batches: int) -> dict[str, float]:
        model.eval()
        sums = torch.zeros(3)
        with torch.no_grad():
            for _ in range(batches):
                loss, right = one()
                sums += torch.tensor([loss, right, BATCH])
        dist.all_reduce(sums)
        model.train()
        return {"loss": (sums[0] / sums[2]).item(), "accuracy": (sums[1] / sums[2]).item()}

    def guarded(batches: int, batch_size: int) -> Iterator[dict[str, tuple[float, int]]]:
        for _ in range(batches):
            loss, right = one()
            yield {"loss": (loss, BATCH), "accuracy": (right, BATCH)}

    def nothing(batches: int, batch_size: int) -> Iterator[dict[str, tuple[float, int]]]:
        for _ in range(batches):
            yield {"loss": (1.0, 1)}

    def evaluated(fn: Callable[..., Any], batches: int) -> object:
        return unhang.evaluate(fn, {"test": batches}, batch_size=BATCH, model=model)

    found: dict[str, Any] = {"batches": {}}
    for batches in lengths:
        n = max(6, int(repeats * max(8, 2000 // batches)))
        found["batches"][str(batches)] = ratio(lambda batches=batches: evaluated(guarded, batches), lambda batches=batches: loop(batches), n)
    n = int(20 * repeats) + 2
    guard_s, longer_s = (least(lambda count=count: evaluated(nothing, count), n) for count in (1, LONG))
    # Where a machine's noise is larger than so many batches, they are within it.
    batch_s = max(0.0, longer_s - guard_s) / (LONG - 1)
    # A group of this rank alone has no store to wait in.
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    alone_s = least(lambda: unhang.evaluate(nothing, {"test": 1}, batch_size=BATCH, model=model, group=alone), n)
    found |= {"guard_ms": round(guard_s * 1e3, 3), "alone_ms": round(alone_s * 1e3, 3), "per_batch_us": round(batch_s * 1e6, 2)}
    for batches, one_length in found["batches"].items():
        own_s = guard_s + (int(batches) - 1) * batch_s
        one_length["own_percent"] = round(100 * own_s / (one_length["plain_ms"] / 1e3), 3)
    dist.barrier()
    dist.destroy_process_group()
    return found


def world(ranks: int, args: list[str]) -> dict[str, Any]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    env |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(HERE), "--rank", *args]
    started = [subprocess.Popen(command, env={**env, "RANK": str(r)}, stdout=subprocess.PIPE, text=True) for r in range(ranks)]
    try:
        outputs = [process.communicate(timeout=1800)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    lines = [line for line in outputs[0].splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(f"rank 0 of {ranks} did not come to its end")
    result: dict[str, Any] = json.loads(lines[0])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--batches", type=int, nargs="+", default=[20, 200, 1000])
    parser.add_argument("--repeats", type=float, default=1.0, help="times the usual number")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        found = rank(args.batches, args.repeats)
        if os.environ["RANK"] == "0":
            print(json.dumps(found))
        return
    found = {f"{ranks} ranks": world(ranks, ["--batches", *map(str, args.batches), "--repeats", str(args.repeats)]) for ranks in args.ranks}
    print(
        json.dumps(
            {
                "benchmark": "evaluation",
                "unit": "ratio of median times, unhang.evaluate : plain loop",
                "found": found,
                "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
            }
        )
    )


if __name__ == "__main__":
    main()
