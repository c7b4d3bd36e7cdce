"""One rank of `unhang bench comm`: times collectives over sizes and checks their results; rank 0 prints a line of JSON for each.

Run by path, with the training's own Python: nothing but the standard library and torch is there. Sizes and bus bandwidths are those of nccl-tests
(doc/PERFORMANCE.md). Ranks agree and report through the store, never through a collective: one that is wrong must not hide itself.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import json
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unhang.probes import worker
else:
    # Beside this file, which is run by its path, also where Python does not look there by itself.
    sys.path.insert(0, str(Path(__file__).parent))
    import worker

_LEAST_CALLS, _MOST_CALLS = 5, 1000
_FLOAT_BYTES = 4
_COPY_BYTES = 64 << 20
_PAIR_BYTES = 16 << 20
_TIMEOUT_S = 180


class Group(worker.Rank):
    """The ranks, and the store through which they agree. All ranks make the same calls in the same order."""

    def __init__(self, backend: str, time_s: float) -> None:
        super().__init__(backend=backend, port=0, timeout_s=_TIMEOUT_S)
        self.local = int(os.environ.get("LOCAL_RANK", self.rank))
        self.time_s = time_s
        self._asked = 0
        if self.cuda:
            import torch

            torch.cuda.set_device(self.device)

    def join(self) -> None:
        import torch.distributed as dist

        dist.init_process_group(self.backend, timeout=datetime.timedelta(seconds=self.timeout_s))
        self._store = dist.PrefixStore("unhang-comm", dist.distributed_c10d._get_default_store())

    def agree(self, value: Any, combine: Callable[[list[Any]], Any]) -> Any:
        """What rank 0 makes of the values of all ranks, on each of them."""
        self._asked += 1
        self._store.set(f"{self._asked}/{self.rank}", json.dumps(value))
        if self.rank == 0:
            values = [json.loads(self._store.get(f"{self._asked}/{rank}")) for rank in range(self.world_size)]
            self._store.set(f"{self._asked}", json.dumps(combine(values)))
        return json.loads(self._store.get(f"{self._asked}"))

    def first(self, value: Any) -> Any:
        """The first value that is one, in the order of the ranks; else None."""
        return self.agree(value, lambda values: next(filter(None, values), None))


DIVIDED = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")


def factor(op: str, n: int) -> float | None:
    """Bus bandwidth by algorithm bandwidth: what passes each rank's link (nccl-tests: doc/PERFORMANCE.md, src/gather.cu, src/sendrecv.cu)."""
    return None if op == "barrier" else 2 * (n - 1) / n if op == "all_reduce" else (n - 1) / n if op in DIVIDED else 1.0


def timed(call: Callable[[], Any], times: int, *, cuda: bool) -> list[float]:
    """Seconds of each of `times` calls, one after the other."""
    if not cuda:
        stamps = [time.perf_counter()]
        for _ in range(times):
            call()
            stamps.append(time.perf_counter())
        return _between(stamps)
    import torch

    events = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(events)]


def _between(stamps: Sequence[float]) -> list[float]:
    return [b - a for a, b in itertools.pairwise(stamps)]


def measured(group: Group, call: Callable[[], Any], *, takes_part: bool = True, counts: bool = True) -> list[float]:
    """The times of the slowest rank of those that count, after calls to warm up: as many as fit into the time of a size."""

    def run(times: int) -> list[float]:
        return timed(call, times, cuda=group.cuda) if takes_part else []

    run(1)
    once_s = group.agree(min(run(3), default=0.0), max)
    # A tenth of the time warms up.
    run(max(1, min(_MOST_CALLS // 10, int(group.time_s / 10 / once_s))))
    times = run(max(_LEAST_CALLS, min(_MOST_CALLS, int(group.time_s / once_s))))
    slowest = group.agree(math.fsum(times) if counts else 0.0, lambda totals: totals.index(max(totals)))
    found: list[float] = group.first(times if group.rank == slowest else None)
    return found


def row(op: str, size_bytes: int, times: Sequence[float], by: float | None, **more: Any) -> dict[str, Any]:
    """The bandwidths are those of the mean time, as nccl-tests reports them, in GB/s (1e9 bytes)."""
    mean_s = math.fsum(times) / len(times)
    ordered = sorted(times)
    cuts = {f"p{p}_s": ordered[min(len(ordered) - 1, math.ceil(p / 100 * len(ordered)) - 1)] for p in (50, 95, 99)}
    algbw = None if by is None else size_bytes / mean_s / 1e9
    busbw = None if algbw is None or by is None else algbw * by
    return {"op": op, "size_bytes": size_bytes, "calls": len(times), "mean_s": mean_s, **cuts, "algbw_gbps": algbw, "busbw_gbps": busbw, **more}


def collective(group: Group, op: str, size_bytes: int) -> dict[str, Any]:
    """On an array of `size_bytes`: of all ranks together where it is divided among them (nccl-tests).

    Raises what a collective raises, unless the backend does not have it: then `lacking` says so.
    """
    one = worker.case(group, op, max(1, size_bytes // _FLOAT_BYTES // (group.world_size if op in DIVIDED else 1)))
    try:
        wrong = one.check()
    except Exception as e:
        if not worker.is_lacking(group.backend, op, e):
            raise
        return {"op": op, "size_bytes": size_bytes, "lacking": " ".join(str(e).split())[:200]}
    times = measured(group, one.call)
    # Once more, hot. All ranks take part, whatever the first time brought.
    again = one.check()
    size_bytes = one.part * _FLOAT_BYTES * (group.world_size if op in DIVIDED else op != "barrier")
    return row(op, size_bytes, times, factor(op, group.world_size), wrong=group.first(wrong or again) or "")


def pairs(group: Group, size_bytes: int) -> Iterator[dict[str, Any]]:
    """From each rank to each other one, while the rest is idle. The receiver's times count."""
    import torch.distributed as dist

    count = max(1, size_bytes // _FLOAT_BYTES)
    x, nothing = group.zeros(count), group.zeros(0)
    for source, target in itertools.permutations(range(group.world_size), 2):
        sends = group.rank == source
        call = functools.partial(dist.send, x, target) if sends else functools.partial(dist.recv, x, source)
        one = worker.Case(group, call, count, x if sends else nothing, nothing if sends else x, (9,) if sends else (), () if sends else (9,))
        takes_part = group.rank in (source, target)
        wrong = one.check() if takes_part else ""
        times = measured(group, call, takes_part=takes_part, counts=group.rank == target)
        yield row("pairs", x.nbytes, times, 1.0, wrong=group.first(wrong) or "", pair=[source, target])


def local(group: Group, op: str) -> Iterator[dict[str, Any]]:
    """What needs no other rank: a copy in memory, to the GPU where there is one, and batches that workers hand over."""
    import torch.utils.data

    if op == "loader":
        data = [torch.full((3, 224, 224), float(i)) for i in range(32)] * 8
        loader: Any = torch.utils.data.DataLoader(data, batch_size=32, num_workers=2, timeout=60)
        stamps = [time.perf_counter() for _ in loader]
        yield row(op, data[0].nbytes * 32, _between(stamps), None)
        return
    ways = [("memory", torch.device("cpu"), torch.device("cpu"))]
    if group.cuda:
        ways += [("gpu memory", group.device, group.device), ("host to gpu", torch.device("cpu"), group.device)]
    for name, source, target in ways:
        x = torch.ones(_COPY_BYTES // _FLOAT_BYTES, device=source, pin_memory=source != target)
        y = torch.zeros_like(x, device=target)
        copy = lambda x=x, y=y: y.copy_(x, non_blocking=True)  # noqa: E731
        timed(copy, 3, cuda=target.type == "cuda")
        yield row(name, _COPY_BYTES, timed(copy, 20, cuda=target.type == "cuda"), 1.0)


def main(argv: Sequence[str]) -> None:
    """`argv`: what is in front of each line of JSON, the backend, operations of one rank alone, those of all ranks, sizes in bytes (these three
    with commas), seconds for each size.
    """
    mark, backend, alone, together, sizes, time_s = argv
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        raise SystemExit("unhang bench comm needs two ranks or more: the launcher has started one, or sets neither RANK nor WORLD_SIZE")
    import torch

    group = Group(backend, float(time_s))

    def tell(**what: Any) -> None:
        if group.rank == 0:
            print(mark + json.dumps(what), flush=True)  # noqa: T201

    # Workers of a loader are forked before a group has threads.
    for op in filter(None, alone.split(",") if group.rank == 0 else ()):
        for line in local(group, op):
            tell(row=line)
    group.join()
    hosts = group.agree(socket.gethostname(), list)
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if group.cuda else None
    device = torch.cuda.get_device_name() if group.cuda else "CPU"
    tell(group={"backend": group.backend, "hosts": hosts, "torch": torch.__version__, "nccl": nccl, "device": device})
    each = [int(size) for size in sizes.split(",")]
    for op in filter(None, together.split(",")):
        lines = pairs(group, min(max(each), _PAIR_BYTES)) if op == "pairs" else (collective(group, op, size) for size in each)
        for line in lines:
            tell(row=line)
            if "lacking" in line or op == "barrier":
                break
    # Nobody leaves while others still read the store.
    group.first(None)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
    sys.stdout.flush()
    # Gloo's threads sometimes abort a process that Python is shutting down.
    os._exit(0)
