"""How fast `unhang why` answers on logs of any size: whole processes, from start to verdict, interleaved with ripgrep and grep on the same needles.

Makes its own data (about 4.3 GB in a temporary directory): one log of 1 GB, 2,000 rank logs of 1 MB, the large log as zstd of about 200 MB, a small
log. Prints one JSON line last. Times are of whole processes; ratios are of the medians of interleaved runs, with the range of the pairs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

MB = 1000 * 1000

FAILURE = (
    "[rank3]: Traceback (most recent call last):\n"
    '[rank3]:   File "/srv/job/train.py", line 188, in <module>\n'
    "[rank3]:     loss = step(batch)\n"
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.15 GiB of which 1.02 GiB "
    "is free.\n"
    "[rank0]:[E1103 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=120, "
    "OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
)


def lines(seed: int, size: int) -> bytes:
    """What trainings print, `size` bytes of it: steps, metrics, progress, warnings, NCCL's INFO."""
    r = random.Random(seed)
    parts: list[str] = []
    length = 0
    while length < size:
        kind = r.random()
        stamp = f"2026-11-03 {r.randrange(24):02d}:{r.randrange(60):02d}:{r.randrange(60):02d},{r.randrange(1000):03d}"
        rank = r.randrange(8)
        if kind < 0.7:
            text = (
                f"{stamp} - INFO - trainer.py:412 - step {r.randrange(10**6)} loss {r.random() * 9:.6f} grad_norm {r.random() * 3:.6f} "
                f"lr {r.random() / 1e4:.3e} tokens/s {r.random() * 1e5:.1f} mem {r.random() * 79:.2f}GiB sha {r.getrandbits(128):032x}\n"
            )
        elif kind < 0.85:
            metrics = f"'loss': {r.random():.4f}, 'grad_norm': {r.random():.5f}, 'epoch': {r.random() * 3:.2f}, 'id': '{r.getrandbits(96):x}'"
            text = f"[rank{rank}]: {{{metrics}}}\n"
        elif kind < 0.95:
            done = r.randrange(100)
            text = f"\rEvaluating: {done}%|{'█' * (done // 10)}| {done * 40}/4000 [0{r.randrange(9)}:12<01:07, {r.random() * 40:.2f}it/s]\n"
        elif kind < 0.98:
            writer = f"node{rank}:47{r.randrange(100):02d}:48{r.randrange(100):02d} [{rank}]"
            text = f"{writer} NCCL INFO Channel {r.randrange(24):02d}/24 : {rank}   {rank + 1}\n"
        else:
            where = f"/opt/venv/lib/python3.11/site-packages/torch/utils/checkpoint.py:{r.randrange(900)}"
            text = f"{where}: UserWarning: use_reentrant is {r.getrandbits(64):x}\n"
        parts.append(text)
        length += len(text.encode())
    return "".join(parts).encode()


def make(folder: Path, *, big: int, ranks: int) -> dict[str, Path]:
    """The logs, by name."""
    blocks = [lines(seed, 4 * MB) for seed in range(64)]
    r = random.Random(7)
    one = folder / "job.log"
    with one.open("wb") as f:
        while f.tell() < big:
            f.write(r.choice(blocks))
        f.write(FAILURE.encode())
        f.write(blocks[0][: 64 * 1000])
    many = folder / "ranks"
    many.mkdir()
    for n in range(ranks):
        body = r.choice(blocks)
        start = body.index(b"\n", r.randrange(2 * MB)) + 1
        (many / f"rank{n}.log").write_bytes(body[start : start + MB] + (FAILURE.encode() if n == 3 else b"\n"))
    small = folder / "small.log"
    small.write_bytes(blocks[1][: 200 * 1000] + FAILURE.encode())
    packed = folder / "job.log.zst"
    import zstandard

    with one.open("rb") as source, packed.open("wb") as target:
        zstandard.ZstdCompressor(level=3, threads=-1).copy_stream(source, target)
    return {"one log": one, "rank logs": many, "zstd": packed, "small": small}


def timed(command: Sequence[str], codes: Sequence[int]) -> float:
    """Seconds of a whole process."""
    with tempfile.TemporaryFile() as out:
        begin = time.perf_counter()
        process = subprocess.run(command, stdout=out, stderr=subprocess.DEVNULL, check=False)
        seconds = time.perf_counter() - begin
    if process.returncode not in codes:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    return seconds


def peak_bytes(command: Sequence[str]) -> int:
    """The most memory that a process and its children held together, in a run of its own: pages that they share are counted once."""
    peak = 0
    process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        held = 0
        for p in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                held += p.memory_full_info().pss
        peak = max(peak, held)
        time.sleep(0.01)
    return peak


def compare(ours: Sequence[str], other: Sequence[str] | None, repeats: int) -> dict[str, object]:
    """Interleaved runs of both."""
    own: list[float] = []
    theirs: list[float] = []
    for _ in range(repeats):
        own.append(timed(ours, (1,)))
        if other is not None:
            theirs.append(timed(other, (0, 1)))
    result: dict[str, object] = {
        "s": round(statistics.median(own), 3),
        "min_s": round(min(own), 3),
        "max_s": round(max(own), 3),
    }
    if theirs:
        ratios = [t / o for o, t in zip(own, theirs, strict=True)]
        result["times_faster"] = {"median": round(statistics.median(ratios), 2), "min": round(min(ratios), 2), "max": round(max(ratios), 2)}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--mb", type=int, default=1000, help="size of the large log")
    parser.add_argument("--ranks", type=int, default=2000, help="rank logs of 1 MB")
    parser.add_argument("--folder", type=Path, help="where to make the data", default=None)
    options = parser.parse_args()
    from unhang.diagnosis.assemble import CONTEXT
    from unhang.knowledge import catalogue

    needles = sorted({s.needle for s in (*catalogue.signatures(), *CONTEXT)})
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        at = Path(folder)
        logs = make(at, big=options.mb * MB, ranks=options.ranks)
        patterns = at / "needles"
        patterns.write_text("\n".join(needles) + "\n")
        result: dict[str, object] = {"benchmark": "scan", "needles": len(needles), "n": options.repeats}
        for name, path in logs.items():
            ours = [sys.executable, "-m", "unhang", "why", "--json", str(path)]
            size = sum(p.stat().st_size for p in path.iterdir()) if path.is_dir() else path.stat().st_size
            found: dict[str, object] = {"mb": size // MB}
            rg = None if name in ("zstd", "small") else shutil.which("rg")
            found |= compare(ours, [rg, "--no-config", "-F", "-f", str(patterns), str(path)] if rg is not None else None, options.repeats)
            if name not in ("zstd", "small"):
                found["gb_per_s"] = round(size / 1e9 / float(str(found["s"])), 2)
            found["peak_mb"] = peak_bytes(ours) // MB
            result[name] = found
            print(name, found, file=sys.stderr)
        grep = compare(
            [sys.executable, "-m", "unhang", "why", "--json", str(logs["one log"])],
            ["grep", "-F", "-f", str(patterns), str(logs["one log"])],
            min(2, options.repeats),
        )
        result["one log"] = {**result["one log"], "times_faster_than_grep": grep["times_faster"]}  # type: ignore[dict-item]
        if shutil.which("rg") is None:
            result["not_measured"] = ["ripgrep is not installed"]
        result["machine"] = f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}"
        print(json.dumps(result))


if __name__ == "__main__":
    main()
