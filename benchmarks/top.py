"""What does looking on cost with many ranks? A look of `unhang top`, drawing it, and what the supervisor writes; one JSON line last."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from unhang.launch.status_file import encoded
from unhang.records.run_follower import Looker
from unhang.records.status import Now, Place, RankNow
from unhang.report.top.app import Top

HOSTS_OF = 8


def now(ranks: int, at: float) -> Now:
    told = tuple(
        RankNow(
            rank=rank,
            pid=1000 + rank,
            host=f"node{rank // HOSTS_OF}",
            since_s=1.0,
            local_rank=rank % HOSTS_OF,
            world_size=ranks,
            backend="nccl",
            device=f"cuda:{rank % HOSTS_OF}",
            step=int(at) + rank % 3,
            steps_per_s=3.25,
            beat_s=at - 0.2,
            progress_s=at - 0.1,
            place=Place(file="/home/user/project/train.py", line=100 + rank % 7, name="train"),
        )
        for rank in range(ranks)
    )
    return Now(attempt=0, host="node0", time_s=time.time(), at_s=at, every_s=1.0, hang_after_s=11.0, usual_gap_s=0.3, ranks=told)


def lay_out(path: Path, ranks: int) -> None:
    (path / "run.json").write_text(json.dumps({"schema": "unhang/run/1", "command": ["torchrun", "train.py"], "world_size": ranks}))
    lines = [{"s": 0.5, "event": "Started", "attempt": 0, "pid": 1, "command": []}]
    lines += [{"s": 1.0, "event": "Attached", "rank": rank, "pid": 1000 + rank, "host": "node0"} for rank in range(ranks)]
    (path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def timed(do: Callable[[], object]) -> float:
    began = time.process_time()
    do()
    return time.process_time() - began


async def drawn(looker: Looker, again: Callable[[int], None], times: int) -> list[float]:
    """CPU seconds of a refresh on a screen of 160x50: the look, and all that Textual does about it."""
    app = Top(looker.look, first=looker.look(), every_s=3600, everything=True)
    async with app.run_test(size=(160, 50)) as pilot:
        await pilot.pause()
        spent = []
        for i in range(times):
            again(i)
            before, began = app.picture, time.process_time()
            app._again()
            while app.picture is before:
                await asyncio.sleep(0.001)
            await pilot.pause()
            spent.append(time.process_time() - began)
        return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--looks", type=int, default=20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        lay_out(path, args.ranks)

        def write(i: int) -> None:
            (path / ".now").write_bytes(encoded(now(args.ranks, 60.0 + i)))
            (path / ".now").replace(path / "now.json")

        write(0)
        looker = Looker(path, is_alive=lambda process: True)
        first = timed(looker.look)
        looks = []
        for i in range(args.looks):
            write(i)
            looks.append(timed(looker.look))
        refreshes = asyncio.run(drawn(looker, write, args.looks))
        taken = now(args.ranks, 60.0)
        writes = [timed(lambda: encoded(taken)) for _ in range(args.looks)]
        size_bytes = (path / "now.json").stat().st_size
    print(
        json.dumps(
            {
                "benchmark": "top",
                "unit": "CPU ms",
                "ranks": args.ranks,
                "n": args.looks,
                "first_look": round(first * 1e3, 1),
                **{
                    f"{name}_{what}": round(of(spent) * 1e3, 1)
                    for name, spent in (("look", looks), ("refresh", refreshes), ("encode", writes))
                    for what, of in (("median", statistics.median), ("max", max))
                },
                "now_json_bytes": size_bytes,
                "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}",
            }
        )
    )


if __name__ == "__main__":
    main()
