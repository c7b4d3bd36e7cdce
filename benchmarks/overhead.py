"""What does `unhang run` cost a training? Attached against plain torchrun, interleaved; one JSON line last.

A is the training under `unhang run`, B the same command without it; the order alternates (A B, B A, ...). The ratio of each
pair is that of the mean step times after a warm-up. The noise of the machine shows in `plain_spread`: the same ratio between
plain runs that follow each other. `heartbeat_cpu_share` is the heartbeat thread's CPU time per second of training.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def once(argv: list[str]) -> dict[str, Any]:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"mean_step_s"')]
    if done.returncode != 0 or not lines:
        raise SystemExit(f"{' '.join(argv)} ended with {done.returncode}\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--width", type=int, default=768)
    args = parser.parse_args()
    training = [str(HERE / "training.py"), str(args.steps), str(args.warmup), str(args.width)]
    plain = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(args.ranks), *training]
    with tempfile.TemporaryDirectory() as directory:
        pairs: list[tuple[dict[str, Any], dict[str, Any]]] = []
        for i in range(args.pairs):
            run_dir = ["--run-dir", f"{directory}/run{i}"]
            attached = [sys.executable, "-m", "unhang", "run", "--python", sys.executable, "-n", str(args.ranks), *run_dir, *training]
            order = (attached, plain) if i % 2 == 0 else (plain, attached)
            results = [once(argv) for argv in order]
            a, b = results if i % 2 == 0 else reversed(results)
            pairs.append((a, b))
            print(f"pair {i + 1}: {a['mean_step_s'] * 1e3:.2f} ms attached, {b['mean_step_s'] * 1e3:.2f} ms plain", file=sys.stderr)
    ratios = sorted(a["mean_step_s"] / b["mean_step_s"] for a, b in pairs)
    plains = [b["mean_step_s"] for _, b in pairs]
    neighbours = sorted(y / x for x, y in itertools.pairwise(plains))
    shares = [a["heartbeat_cpu_share"] for a, _ in pairs if a["heartbeat_cpu_share"] is not None]
    print(
        json.dumps(
            {
                "benchmark": "overhead",
                "unit": "ratio of mean step times, attached : plain",
                "n": len(ratios),
                "median": round(statistics.median(ratios), 4),
                "min": round(ratios[0], 4),
                "max": round(ratios[-1], 4),
                "plain_spread": [round(neighbours[0], 4), round(neighbours[-1], 4)] if neighbours else None,
                "plain_step_ms": round(statistics.median(plains) * 1e3, 2),
                "heartbeat_cpu_share": round(statistics.median(shares), 6) if shares else None,
                "ranks": args.ranks,
                "steps": args.steps,
                "machine": f"{platform.machine()}, Python {platform.python_version()}",
            }
        )
    )


if __name__ == "__main__":
    main()
