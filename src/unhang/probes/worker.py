"""One rank of a probe: runs stages in order and reports each on a pipe.

Run by path, with the training's own Python: nothing but the standard library and torch is there. What it prints is kept as the rank's log.
It ends when whoever started it does, and writes all stacks to its log on SIGUSR2 (NCCL may take SIGUSR1).
"""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_MIB = 1024 * 1024
_PR_SET_PDEATHSIG = 1
_PATTERN = 3
# Numbers in each part of what ranks exchange.
_PART = 4096
# bfloat16 holds every integer up to 256: sums of the pattern over more ranks would have to be rounded.
_MOST_ADDING = {"bfloat16": 32}
_SIZES_BYTES = {"nccl": (4096, _MIB, 16 * _MIB, 64 * _MIB, 256 * _MIB), "gloo": (4096, _MIB, 16 * _MIB)}


_REPEATS = 5
# The state of a socket as /proc/net/tcp has it.
_LISTEN = "0A"
_WORKERS, _PREFETCH, _BATCH, _IMAGE = 2, 2, 32, (3, 224, 224)


# Workers that import torch anew on a busy machine take their time.
_LOADER_S = 45


class Said(str):
    """What is said, with its template and the values in it: whoever asked may tell it in another language."""

    template: str
    values: dict[str, Any]

    def __new__(cls, template: str, /, **values: Any) -> Said:
        made = super().__new__(cls, template.format(**values))
        made.template, made.values = template, values
        return made


class Wrong(Exception):
    """Numbers that came back are not those that had to."""


class Rank:
    """What stages share: who we are, and the device."""

    def __init__(self, *, backend: str, port: int, timeout_s: float) -> None:
        self.rank = int(os.environ["RANK"])
        self.world_size = int(os.environ["WORLD_SIZE"])
        self.backend = backend
        self.port = port
        self.timeout_s = timeout_s
        self.cuda = backend == "nccl"
        # Which of this host's devices; more ranks than GPUs is for NCCL to refuse, in its own words.
        self.local = self.rank

    @property
    def device(self) -> Any:
        import torch

        return torch.device("cuda", self.local % max(torch.cuda.device_count(), 1)) if self.cuda else torch.device("cpu")

    def pattern(self, elements: int, dtype: Any) -> Any:
        import torch

        return torch.arange(elements, device=self.device).remainder_(_PATTERN).to(dtype)

    def zeros(self, count: int) -> Any:
        import torch

        return torch.zeros(count, device=self.device)

    def ramp(self, count: int, plus: Sequence[int]) -> Any:
        """For each of `plus` one part of `count` numbers: 0, 1, 2, 0, ... with it added. float32 holds all of their sums."""
        import torch

        base = self.pattern(_PATTERN, torch.float32).repeat(count // _PATTERN + 1)[:count]
        return torch.cat([base + one for one in plus]) if plus else self.zeros(0)

    def done(self) -> None:
        """NCCL's calls return before anything has happened."""
        if self.cuda:
            import torch

            torch.cuda.synchronize(self.device)


def import_torch(rank: Rank, at: Callable[[str], None]) -> str:
    import torch

    # Importing says little: some builds fail only at the first operation.
    assert float(torch.ones(2).sum()) == 2.0
    if build := f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}" if torch.version.hip else "":
        return Said("torch {version}, {build}", version=torch.__version__, build=build)
    return Said("torch {version}, CPU build", version=torch.__version__)


def device(rank: Rank, at: Callable[[str], None]) -> str:
    import torch

    if not rank.cuda:
        return Said("{n} threads", n=torch.get_num_threads())
    if not (torch.version.cuda or torch.version.hip):
        raise Wrong(Said("torch {version} is a build for the CPU; NCCL needs one for CUDA or ROCm", version=torch.__version__))
    torch.cuda.set_device(rank.device)
    x = torch.full((1024,), 2.0, device=rank.device)
    if float((x * x).sum()) != 4096.0:
        raise Wrong(Said("2 * 2 summed 1024 times is not 4096 on this device"))
    free, total = torch.cuda.mem_get_info(rank.device)
    name = torch.cuda.get_device_name(rank.device)
    return Said("{gpu}, {free} of {total} MiB free", gpu=name, free=free // _MIB, total=total // _MIB)


def train_step(rank: Rank, at: Callable[[str], None]) -> str:
    """Forward and backward of a small model, on this device and on the CPU: both must agree."""
    import torch

    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 8))
    x = torch.randn(16, 64)
    loss = model(x).square().mean()
    loss.backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    if not all(bool(g.isfinite().all()) for g in expected):
        raise Wrong(Said("a gradient is not finite"))
    if rank.cuda:
        model.zero_grad()
        model.to(rank.device)
        model(x.to(rank.device)).square().mean().backward()
        for p, e in zip(model.parameters(), expected, strict=True):
            if p.grad is None or not torch.allclose(p.grad.cpu(), e, rtol=1e-2, atol=1e-4):
                raise Wrong(Said("gradients on the device differ from those on the CPU"))
    return Said("loss {loss}", loss=f"{float(loss.detach()):.4f}")


def process_group(rank: Rank, at: Callable[[str], None]) -> str:
    import torch
    import torch.distributed as dist

    dist.init_process_group(
        rank.backend,
        init_method="env://",
        rank=rank.rank,
        world_size=rank.world_size,
        timeout=datetime.timedelta(seconds=rank.timeout_s),
        **({"device_id": rank.device} if rank.cuda else {}),
    )
    if not rank.cuda:
        addresses = _listening(but=rank.port)
        return Said("gloo at {addresses}", addresses=", ".join(addresses)) if addresses else "gloo"
    version: Any = torch.cuda.nccl.version()
    return f"NCCL {'.'.join(map(str, version))}"


def _listening(*, but: int) -> list[str]:
    """Addresses at which this process listens, other than for the store: Gloo tells nobody which interface it took."""
    import ipaddress

    def link(fd: str) -> str:
        with contextlib.suppress(OSError):
            return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115
        return ""

    found: set[str] = set()
    with contextlib.suppress(OSError):
        ours = {link(fd) for fd in os.listdir("/proc/self/fd")}  # noqa: PTH208
        for table in ("tcp", "tcp6"):
            with open(f"/proc/self/net/{table}") as lines:  # noqa: PTH123
                rows = [line.split() for line in lines][1:]
            for row in rows:
                address, _, port = row[1].partition(":")
                if row[3] == _LISTEN and f"socket:[{row[9]}]" in ours and int(port, 16) != but:
                    # Words of four bytes, each as the machine has it.
                    packed = b"".join(bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8))
                    found.add(str(ipaddress.ip_address(packed)))
    return sorted(found)


def _all_reduce(dtype: str) -> Callable[[Rank, Callable[[str], None]], str]:
    def stage(rank: Rank, at: Callable[[str], None]) -> str:
        import torch
        import torch.distributed as dist

        adding = min(rank.world_size, _MOST_ADDING.get(dtype, rank.world_size))
        x = rank.pattern(4096, getattr(torch, dtype)) + rank.rank % 4
        if rank.rank >= adding:
            x.zero_()
        dist.all_reduce(x)
        rank.done()
        _expect(rank, x, rank.pattern(4096, torch.int64) * adding + sum(r % 4 for r in range(adding)))
        return ""

    return stage


@dataclass
class Case:
    """One operation from `given` into `got` (the same where it works in place), both of parts of `part` numbers.

    For a check the parts of `given` are ramps with `sends` added; those of `got` have to be ramps with `receives` added, `summed` over the ranks.
    """

    rank: Rank
    call: Callable[[], Any]
    part: int
    given: Any
    got: Any
    sends: Sequence[int]
    receives: Sequence[int]
    summed: bool = False

    def check(self) -> str:
        """What is wrong with the result of one call; "" if nothing is. Leaves zeros, whose sums stay finite."""
        n = self.rank.world_size
        self.got.zero_()
        self.given.copy_(self.rank.ramp(self.part, self.sends))
        self.call()
        self.rank.done()
        wanted = self.rank.ramp(self.part, self.receives)
        if self.summed:
            wanted = wanted * n + n * (n - 1) // 2
        said = _difference(self.rank, self.got, wanted) if self.receives else ""
        self.given.zero_()
        return said


def case(rank: Rank, op: str, part: int) -> Case:
    """An operation on parts of so many numbers."""
    import torch.distributed as dist

    n, me = rank.world_size, rank.rank
    everyone = range(n)
    of_root = everyone if me == 0 else ()
    sends, receives = {
        "all_reduce": ((me,), (0,)),
        "reduce": ((me,), (0,) if me == 0 else ()),
        "broadcast": ((5 if me == 0 else 0,), (5,)),
        "all_gather": ((me,), everyone),
        "reduce_scatter": ([me + r for r in everyone], (me,)),
        "all_to_all": ([n * r + me for r in everyone], [n * me + r for r in everyone]),
        "gather": ((me,), of_root),
        "scatter": (of_root, (me,)),
        "send_recv": ((me,), ((me - 1) % n,)),
        "barrier": ((), ()),
    }[op]
    x = rank.zeros(part * len(sends))
    out = x if op in ("all_reduce", "reduce", "broadcast") else rank.zeros(part * len(receives))
    parts = list((out if op == "gather" else x).chunk(n)) if me == 0 and op in ("gather", "scatter") else None

    def around() -> None:
        both = [dist.P2POp(dist.isend, x, (me + 1) % n), dist.P2POp(dist.irecv, out, (me - 1) % n)]
        for work in dist.batch_isend_irecv(both):
            work.wait()

    # Since torch 2.13 the older names warn.
    gather_all = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter_sum = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(x),
        "reduce": lambda: dist.reduce(x, 0),
        "broadcast": lambda: dist.broadcast(x, 0),
        "all_gather": lambda: gather_all(out, x),
        "reduce_scatter": lambda: scatter_sum(out, x),
        "all_to_all": lambda: dist.all_to_all_single(out, x),
        "gather": lambda: dist.gather(x, parts),
        "scatter": lambda: dist.scatter(out, parts),
        "send_recv": around,
        "barrier": dist.barrier,
    }
    return Case(rank, calls[op], part, x, out, sends, receives, op in ("all_reduce", "reduce", "reduce_scatter"))


def _exchange(op: str) -> Callable[[Rank, Callable[[str], None]], str]:
    def stage(rank: Rank, at: Callable[[str], None]) -> str:
        if wrong := case(rank, op, _PART).check():
            raise Wrong(wrong)
        return ""

    return stage


def pairs(rank: Rank, at: Callable[[str], None]) -> str:
    """Each pair by itself: the first that fails is named."""
    import torch
    import torch.distributed as dist

    every = list(itertools.combinations(range(rank.world_size), 2))
    for a, b in every:
        if rank.rank in (a, b):
            at(f"ranks {a} and {b}")
            other = b if rank.rank == a else a
            x = torch.full((_MIB // 4,), float(rank.rank + 1), device=rank.device)
            got = torch.zeros_like(x)
            if rank.rank == a:
                dist.send(x, dst=other)
                dist.recv(got, src=other)
            else:
                dist.recv(got, src=other)
                dist.send(x, dst=other)
            rank.done()
            _expect(rank, got, torch.full_like(got, other + 1, dtype=torch.int64))
    return Said("1 pair") if len(every) == 1 else Said("{n} pairs", n=len(every))


def sizes(rank: Rank, at: Callable[[str], None]) -> str:
    import torch
    import torch.distributed as dist

    said: str = ""
    for size_bytes in _SIZES_BYTES[rank.backend]:
        at(_size(size_bytes))
        x = rank.pattern(size_bytes // 4, torch.float32)
        dist.all_reduce(x)
        rank.done()
        _expect(rank, x, rank.pattern(size_bytes // 4, torch.int64) * rank.world_size)
        took: list[float] = []
        for _ in range(_REPEATS):
            before = time.perf_counter()
            dist.all_reduce(x)
            rank.done()
            took.append(time.perf_counter() - before)
        took_s = sorted(took)[_REPEATS // 2]
        # What each rank sends and receives, as nccl-tests counts it.
        bus = size_bytes / took_s * 2 * (rank.world_size - 1) / rank.world_size / 1e9
        said = Said("up to {size}, bus bandwidth {gbps} GB/s (median of {n})", size=_size(size_bytes), gbps=f"{bus:.3g}", n=_REPEATS)
    return said


def ddp_step(rank: Rank, at: Callable[[str], None]) -> str:
    """A step of DistributedDataParallel; the gradients must be the mean of what each rank computes alone."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(7)
    model = torch.nn.Linear(64, 8).to(rank.device)
    alone = torch.nn.Linear(64, 8).to(rank.device)
    alone.load_state_dict(model.state_dict())
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(100 + rank.rank)).to(rank.device)
    alone(x).square().mean().backward()
    parallel = DistributedDataParallel(model, device_ids=[rank.device.index] if rank.cuda else None)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    parallel(x).square().mean().backward()
    for p, q in zip(model.parameters(), alone.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None
        dist.all_reduce(q.grad)
        if not torch.allclose(p.grad, q.grad / rank.world_size, rtol=1e-4, atol=1e-6):
            raise Wrong(Said("DDP's gradients are not the mean over the ranks"))
    optimizer.step()
    rank.done()
    return ""


def loader_workers(rank: Rank, at: Callable[[str], None]) -> str:
    """Batches that workers hand over in /dev/shm: as large as those of images, all of them there at once. UNHANG_LOADER_WORKERS: 0 takes none."""
    import torch
    from torch.utils.data import DataLoader

    workers = int(os.environ.get("UNHANG_LOADER_WORKERS") or _WORKERS)
    data = [torch.full(_IMAGE, float(i % _PATTERN)) for i in range(_BATCH)] * (max(workers, 1) * _PREFETCH)
    more = {"prefetch_factor": _PREFETCH} if workers else {}
    # Behind a lock of torch's that another thread holds, a forked worker would wait for ever.
    batches: list[Any] = list(DataLoader(data, batch_size=_BATCH, num_workers=workers, timeout=_LOADER_S if workers else 0, **more))
    for batch in batches:
        _expect(rank, batch[:, 0, 0, 0], torch.arange(_BATCH) % _PATTERN)
    if not workers:
        return Said("no workers")
    return Said("{n} workers, {batches} batches of {mib} MiB", n=workers, batches=len(batches), mib=batches[0].nbytes // _MIB)


STAGES: dict[str, Callable[[Rank, Callable[[str], None]], str]] = {
    "import": import_torch,
    "device": device,
    "train-step": train_step,
    "process-group": process_group,
    "barrier": _exchange("barrier"),
    "broadcast": _exchange("broadcast"),
    "all_reduce-float32": _all_reduce("float32"),
    "all_reduce-bfloat16": _all_reduce("bfloat16"),
    "all_reduce-int64": _all_reduce("int64"),
    "all_gather": _exchange("all_gather"),
    "reduce_scatter": _exchange("reduce_scatter"),
    "all_to_all": _exchange("all_to_all"),
    "send-recv": _exchange("send_recv"),
    "pairs": pairs,
    "sizes": sizes,
    "ddp-step": ddp_step,
    "loader-workers": loader_workers,
}
# What Gloo has not got in every version of torch, and how torch says so. NCCL has all of it: there the same words are a failure.
_NOT_OF_EVERY_GLOO = ("all_reduce-bfloat16", "all_gather", "reduce_scatter", "all_to_all")
_NOT_GOT = ("does not support", "not implemented", "Invalid scalar type", "Unsupported")


def is_lacking(backend: str, stage: str, error: Exception) -> bool:
    """Whether a stage ended because the backend is not made for it, which is no fault of the machine."""
    return (
        backend == "gloo" and stage in _NOT_OF_EVERY_GLOO and isinstance(error, (RuntimeError, ValueError)) and any(w in str(error) for w in _NOT_GOT)
    )


def _expect(rank: Rank, got: Any, expected: Any) -> None:
    if wrong := _difference(rank, got, expected.to(got.dtype)):
        raise Wrong(wrong)


def _difference(rank: Rank, got: Any, expected: Any) -> str:
    """What is wrong with numbers; "" if nothing is."""
    # Of many numbers CUDA refuses nonzero (https://github.com/pytorch/pytorch/issues/51871).
    if bool((got == expected).all()):
        return ""
    wrong = (got != expected).nonzero()
    i = int(wrong[0])
    values = {"rank": rank.rank, "wrong": len(wrong), "all": got.numel(), "i": i, "got": f"{got[i]:g}", "expected": f"{expected[i]:g}"}
    return Said("rank {rank}: {wrong} of {all} numbers are wrong; number {i} is {got}, not {expected}", **values)


def _size(count: int) -> str:
    return f"{count // _MIB} MiB" if count >= _MIB else f"{count // 1024} KiB"


def _die_with_parent() -> None:
    """Also where somebody holds the GIL for ever, while torch is loaded from a file server that is gone, say."""
    import ctypes

    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _end_with_parent() -> None:
    """Where a wrapper stands between us: its end of the pipe is closed with it."""
    sys.stdin.buffer.read()
    os._exit(1)


def _parts(said: object = "", *_: object) -> dict[str, Any]:
    return {"template": said.template, "values": said.values} if isinstance(said, Said) else {}


def main(asked: dict[str, Any], report: Callable[..., None]) -> int:
    """Returns the exit code. The first stage that fails is the last one: what a group is worth after that is not known."""
    rank = Rank(backend=asked["backend"], port=asked["port"], timeout_s=asked["timeout_s"])
    for name in asked["stages"]:
        report(stage=name, state="begun")
        before = time.perf_counter()
        try:
            said = STAGES[name](rank, lambda where, name=name: report(stage=name, state="at", why=where))  # type: ignore[misc]
        except Exception as e:
            lacking = is_lacking(rank.backend, name, e)
            if not lacking:
                import traceback

                traceback.print_exc()
            text = " ".join(str(e).split())
            report(stage=name, state="lacking" if lacking else "failed", why=f"{type(e).__name__}: {text}"[:2000], **_parts(*e.args))
            if not lacking:
                return 1
            continue
        report(stage=name, state="passed", why=said, seconds=time.perf_counter() - before, **_parts(said))
    if rank.world_size > 1 or "process-group" in asked["stages"]:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    with contextlib.suppress(ImportError, OSError, AttributeError):
        _die_with_parent()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _asked = json.loads(sys.argv[1])
    with os.fdopen(_asked["report_fd"], "w", buffering=1) as _pipe:
        _code = main(_asked, lambda **said: print(json.dumps(said), file=_pipe))
    sys.stdout.flush()
    sys.stderr.flush()
    # Gloo's threads sometimes abort a process that Python is shutting down.
    os._exit(_code)
