"""What does the guard of an evaluation cost? unhang.evaluate against the plain loop, in the same processes, in turns; one JSON line last.

A is `unhang.evaluate` of a generator that yields the metrics of each batch, B the loop that users write: eval(), no_grad, sums, one all_reduce of
them, train(). Both run the same model over the same batches, on ranks of this machine over Gloo; the order alternates (A B, B A, ...). Ratios are of
medians, by the length of the evaluation in batches; `pairs` has quartiles of the ratios of each pair, `plain_spread` those of B to its own median:
the noise of the machine. `guard_ms` is what A takes for an evaluation of nothing: the cost that does not grow; `per_batch_us` that of one batch more.
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


def took(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


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
    n = int(100 * repeats) + 2
    least, more = (statistics.median(took(lambda count=count: evaluated(nothing, count)) for _ in range(n)) for count in (1, 201))
    found |= {"guard_ms": round(least * 1e3, 3), "per_batch_us": round((more - least) / 200 * 1e6, 2)}
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
