"""How long does `unhang --help` take? Against an empty Python, interleaved; one JSON line last."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path


def once(argv: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    args = parser.parse_args()
    ours = [str(Path(sys.executable).with_name("unhang")), "--help"]
    empty = [sys.executable, "-c", "pass"]
    for argv in (ours, empty):
        once(argv)
    pairs = [(once(ours), once(empty)) for _ in range(args.runs)]
    times = sorted(a for a, _ in pairs)
    print(
        json.dumps(
            {
                "benchmark": "startup",
                "unit": "s, unhang --help",
                "n": len(times),
                "median": round(statistics.median(times), 4),
                "min": round(times[0], 4),
                "max": round(times[-1], 4),
                "ratio_to_empty_python": round(statistics.median(a / b for a, b in pairs), 2),
                "machine": f"{platform.machine()}, Python {platform.python_version()}",
            }
        )
    )


if __name__ == "__main__":
    main()
