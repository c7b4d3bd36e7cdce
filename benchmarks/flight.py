"""How fast `unhang why` answers on flight-recorder dumps: whole processes, interleaved with torch's own analyser, and with merely unpickling them.

Makes its own dumps, byte for byte as torch's C++ pickler writes them: 64 ranks with 2,000 entries of 20 frames each, one of which differs in its last
call, and digests of 1,024 ranks; with --full also 256 ranks, 1,024 ranks, 256 ranks in three groups, for which torch's analyser takes minutes, and
digests of 16,384. Prints one JSON line last. Ratios are of interleaved runs, with the range of the pairs; memory is that of all
processes together, shared pages counted once, in a run of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path

import psutil

MB = 1000 * 1000
T0 = 1_795_000_000_000_000_000
# What nobody can be faster than: all dumps unpickled by as many processes as there are cores, and thrown away.
UNPICKLE = """
import gc, os, pickle, sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from operator import add
from pathlib import Path

def load(path):
    gc.disable()
    return len(pickle.loads(path.read_bytes()))

if __name__ == "__main__":
    with ProcessPoolExecutor(int(sys.argv[2]), mp_context=get_context("fork")) as pool:
        sum(pool.map(load, sorted(Path(sys.argv[1]).iterdir()), chunksize=4))
"""


INNER = {"name": "all_reduce", "filename": "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", "line": 99}
LIBRARY = [{"name": f"f{k}", "filename": f"/opt/venv/lib/python3.11/site-packages/torch/nn/modules/m{k}.py", "line": 10 + k} for k in range(17)]
MAIN = {"name": "main", "filename": "/home/user/train.py", "line": 5}


def make(folder: Path, *, ranks: int, entries: int, groups: int) -> Path:
    """One dump a rank. The last call of the rank in the middle has another size; all stand in it."""
    folder.mkdir()
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=get_context("fork")) as pool:
        for made in [pool.submit(dump_of, folder, rank, ranks, entries, groups) for rank in range(ranks)]:
            made.result()
    return folder


def dump_of(folder: Path, rank: int, ranks: int, entries: int, groups: int) -> None:
    from unhang.testing.dumps import pickled

    # Innermost first.
    sites = [[INNER, *LIBRARY, {"name": "step", "filename": "/home/user/train.py", "line": 20 + s}, MAIN] for s in range(12)]
    names = [("0", "default_pg"), *((str(g), f"group{g}") for g in range(1, groups))]
    made, counts = [], [0] * groups
    for i in range(entries):
        last = i == entries - 1
        group = 0 if last else i % groups
        counts[group] += 1
        size = [[7]] if last and rank == ranks // 2 else [[1024, 1024 + i % 12]]
        made.append(
            {
                "frames": sites[i % 12],
                "record_id": i,
                "pg_id": group,
                "process_group": names[group],
                "thread_name": "pt_main_thread",
                "thread_id": str(140_660_692_761_472 + 4096 * rank),
                "collective_seq_id": counts[group],
                "p2p_seq_id": 0,
                "op_id": counts[group],
                "profiling_name": "nccl:all_reduce",
                "time_created_ns": T0 + i * 1_000_000 + rank * 977,
                "input_sizes": size,
                "input_dtypes": ["Float"],
                "output_sizes": size,
                "output_dtypes": ["Float"],
                "state": "started" if last else "completed",
                "time_discovered_started_ns": T0 + i * 1_000_000,
                "time_discovered_completed_ns": None if last else T0 + i * 1_000_000 + 500,
                "retired": not last,
                "timeout_ms": 600_000,
                "is_p2p": False,
            }
        )
    dump = {
        "version": "2.10",
        "pg_config": {name: {"name": name, "desc": desc, "ranks": str(list(range(ranks)))} for name, desc in names},
        "comm_lib_version": "2.27.5",
        "pg_status": {
            str(g): dict.fromkeys(("last_enqueued_collective", "last_started_collective", "last_completed_collective"), n)
            for g, n in enumerate(counts)
        },
        "entries": made,
    }
    (folder / f"nccl_trace_rank_{rank}").write_bytes(pickled(dump))


def timed(command: Sequence[str], codes: Sequence[int], limit_s: float) -> float | None:
    """Seconds of a whole process; None where it did not end in time."""
    with tempfile.TemporaryFile() as out:
        begin = time.perf_counter()
        try:
            done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False, timeout=limit_s)
        except subprocess.TimeoutExpired:
            return None
        seconds = time.perf_counter() - begin
        if done.returncode not in codes:
            out.seek(0)
            raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{out.read()[-2000:].decode(errors='replace')}")
    return seconds


def peak_bytes(command: Sequence[str], limit_s: float) -> int:
    """The most memory that a process and its children held together."""
    peak = 0
    process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + limit_s
    while process.poll() is None and time.monotonic() < end:
        held = 0
        with contextlib.suppress(psutil.Error):
            for p in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    held += p.memory_full_info().pss
        peak = max(peak, held)
        time.sleep(0.02)
    if process.poll() is None:
        for p in (*process.children(recursive=True), process):
            with contextlib.suppress(psutil.Error):
                p.kill()
    process.wait()
    return peak


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 2), "min": round(min(values), 2), "max": round(max(values), 2)}


def compare(folder: Path, analyser: Path | None, repeats: int, limit_s: float) -> dict[str, object]:
    """Interleaved runs of ours, of unpickling alone, and of torch's."""
    cores = len(os.sched_getaffinity(0))
    ours = [sys.executable, "-m", "unhang", "why", "--json", str(folder)]
    merely = [sys.executable, "-c", UNPICKLE, str(folder), str(cores)]
    own, limit, theirs = list[float](), list[float](), list[float]()
    unended = False
    for _ in range(repeats):
        for command, codes, found in ((ours, (1,), own), (merely, (0,), limit)):
            seconds = timed(command, codes, limit_s)
            if seconds is None:
                raise SystemExit(f"{' '.join(command[:5])}: not done after {limit_s:.0f} s")
            found.append(seconds)
        if analyser is not None and not unended:
            seconds = timed([str(analyser), str(folder)], (0, 1), limit_s)
            unended = seconds is None
            theirs += [] if seconds is None else [seconds]
    result: dict[str, object] = {
        "s": spread(own),
        "unpickle_s": spread(limit),
        "times_unpickle": spread([o / u for o, u in zip(own, limit, strict=True)]),
        "peak_mb": peak_bytes(ours, limit_s) // MB,
    }
    if theirs:
        result |= {"torchfrtrace_s": spread(theirs), "times_faster": spread([t / o for t, o in zip(theirs, own, strict=False)])}
        result["torchfrtrace_peak_mb"] = peak_bytes([str(analyser), str(folder)], limit_s) // MB
    elif unended:
        result["torchfrtrace_s"] = f"more than {limit_s:.0f}"
    return result


def summing_up(dumps: Path, folder: Path, ranks: int, limit_s: float) -> dict[str, object]:
    """What it takes to sum up dumps, and how much smaller the digest is."""
    seconds = timed([sys.executable, "-m", "unhang", "why", "--json", "--digest", str(folder), str(dumps)], (0,), limit_s)
    size, packed = (sum(p.stat().st_size for p in of.iterdir()) for of in (dumps, folder))
    return {"digest_s": round(seconds or limit_s, 2), "digest_bytes_per_rank": packed // ranks, "times_smaller": size // packed}


def digests(folder: Path, *, hosts: int, entries: int) -> Path:
    """Digests of hosts with 8 ranks each, in a group of the host, one across hosts and that of all, with steps of uneven length; the last call of the
    rank in the middle has another size. The library itself makes them, of one entry of each form."""
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=get_context("fork")) as pool:
        for made in [pool.submit(digest_of, folder, host, hosts, entries) for host in range(hosts)]:
            made.result()
    return folder


def digest_of(folder: Path, host: int, hosts: int, entries: int) -> None:
    from unhang.flight import digest
    from unhang.flight.dump_file import DumpFile
    from unhang.flight.pickle_columns import Repeats

    chance = random.Random(host)
    world = 8 * hosts
    # Of 12 calls in a step six are among the ranks of a host, four across hosts, two of all; the last one is of all.
    turns = (0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 2, 2)
    form_of = [i % 12 if i < entries - 1 else 12 for i in range(entries)]
    numbers, counts = list[int](), [0, 0, 0]
    for form in form_of:
        group = turns[form] if form < 12 else 2
        counts[group] += 1
        numbers.append(counts[group])
    everybody = str(list(range(world)))
    dumps = []
    for local in range(8):
        rank = 8 * host + local
        groups = (
            (f"tp{host}", "tp", str(list(range(8 * host, 8 * host + 8)))),
            (f"dp{local}", "dp", str(list(range(local, world, 8)))),
            ("0", "default_pg", everybody),
        )
        calls = [(g, 1024 + s) for s, g in enumerate(turns)] + [(2, 7 if rank == world // 2 else 4)]
        forms = [
            {
                "frames": [{"name": "step", "filename": "/home/user/train.py", "line": 20 + n % 12}],
                "record_id": n,
                "pg_id": g,
                "process_group": groups[g][:2],
                "collective_seq_id": 0,
                "p2p_seq_id": 0,
                "profiling_name": "nccl:all_reduce",
                "time_created_ns": 0,
                "input_sizes": [[size]],
                "output_sizes": [[size]],
                "input_dtypes": ["Float"],
                "output_dtypes": ["Float"],
                "state": "completed" if n < 12 else "started",
                "retired": n < 12,
                "timeout_ms": 600_000,
                "is_p2p": False,
            }
            for n, (g, size) in enumerate(calls)
        ]
        steps_ns = (T0, *(100_000 + int(900_000 * chance.random()) for _ in range(entries - 1)))
        columns = {
            "record_id": array("q", range(entries)),
            "collective_seq_id": array("q", numbers),
            "time_created_ns": array("q", accumulate(steps_ns)),
        }
        config = {name: {"name": name, "desc": desc, "ranks": ranks} for name, desc, ranks in groups}
        dump = DumpFile(raw={"version": "2.10", "pg_config": config, "entries": forms}, repeats=Repeats(form_of, columns))
        dumps.append(digest.summed(dump, where=digest.Name(rank=rank, name=f"/tmp/nccl_trace_rank_{rank}", said=True), clean=str))
    digest.write(folder, f"node{host:04}", dumps, clean=str)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="256 and 1,024 ranks, and three groups (torch's analyser takes some 20 minutes)")
    parser.add_argument("--only-digests", action="store_true", help="no dumps, only digests of 1,024 ranks, with --full of 16,384")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which torch's analyser is ended")
    parser.add_argument("--folder", type=Path, help="where to make the data (1.0 GB with --full)", default=None)
    options = parser.parse_args()
    program = Path(sys.executable).with_name("torchfrtrace")
    analyser = program if program.is_file() else None
    jobs = [] if options.only_digests else [(64, 1), *([(256, 1), (256, 3), (1024, 1)] if options.full else [])]
    result: dict[str, object] = {"benchmark": "flight", "entries": options.entries, "n": options.repeats}
    for ranks, groups in jobs:
        name = f"{ranks} ranks" + (f", {groups} groups" if groups > 1 else "")
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            dumps = make(Path(folder) / "dumps", ranks=ranks, entries=options.entries, groups=groups)
            size = sum(p.stat().st_size for p in dumps.iterdir())
            result[name] = found = {"mb": size // MB} | compare(dumps, analyser, options.repeats if ranks == 64 else 1, options.limit)
            found |= summing_up(dumps, Path(folder) / "digests", ranks, options.limit)
            print(name, found, file=sys.stderr)
    hosts = 2048 if options.full else 128
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        made = digests(Path(folder) / "digests", hosts=hosts, entries=options.entries)
        size = sum(p.stat().st_size for p in made.iterdir())
        ours = [sys.executable, "-m", "unhang", "why", "--json", str(made)]
        times = [s for _ in range(options.repeats) if (s := timed(ours, (1,), options.limit)) is not None]
        name = f"digests of {hosts * 8} ranks"
        result[name] = found = {"bytes_per_rank": size // (hosts * 8), "s": spread(times), "peak_mb": peak_bytes(ours, options.limit) // MB}
        print(name, found, file=sys.stderr)
    if analyser is None:
        print("torchfrtrace is not installed: nothing to compare with", file=sys.stderr)
    result["machine"] = f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}"
    print(json.dumps(result))


if __name__ == "__main__":
    main()
