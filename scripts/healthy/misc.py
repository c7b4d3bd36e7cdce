"""Short programs, each of which shows one thing that stands in many healthy logs (the argument chooses)."""

# ruff: noqa: T201
from __future__ import annotations

import logging
import os
import signal
import sys
import time
import warnings
from pathlib import Path

import torch

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s: %(message)s", stream=sys.stdout)
log = logging.getLogger("train")


def steps(n: int, model: torch.nn.Module | None = None) -> None:
    model = model or torch.nn.Linear(8, 1)
    for step in range(1, n + 1):
        loss = model(torch.randn(4, 8)).mean()
        loss.backward()
        log.info("step %d loss %.4f", step, loss.item())


def profiler() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        steps(3)
    print(profile.key_averages().table(sort_by="cpu_time_total", row_limit=15))
    profile.export_chrome_trace("trace.json")


def data_parallel() -> None:
    steps(3, torch.nn.DataParallel(torch.nn.Linear(8, 1)))
    torch.cuda.amp.GradScaler()
    with torch.cuda.amp.autocast():
        steps(1)
    warnings.warn("There is an imbalance between your GPUs. You may want to exclude GPU 1", UserWarning, stacklevel=1)


def signals() -> None:
    """A checkpoint on SIGUSR1, as Slurm sends it before the end of the time, and an end with code 0 after SIGTERM."""
    asked: list[int] = []
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda n, _: asked.append(n))
    steps(2)
    os.kill(os.getpid(), signal.SIGUSR1)
    log.info("received signal %d (SIGUSR1): saving a checkpoint before the time limit", asked[-1])
    torch.save({}, "ckpt.pt")
    steps(2)
    os.kill(os.getpid(), signal.SIGTERM)
    log.info("received signal %d (SIGTERM): stopping gracefully, exit code 0", asked[-1])


def not_a_number() -> None:
    for step in range(6):
        loss = torch.tensor(float("inf")) - torch.tensor(float("inf")) if step == 3 else torch.tensor(2.0 / (step + 1))
        if torch.isfinite(loss):
            log.info("step %d loss %.4f grad_norm 0.9", step, loss)
        else:
            log.warning("step %d loss %s: gradient overflow, skipping step, reducing loss scale to 32768.0", step, loss.item())


def progress() -> None:
    from tqdm import tqdm

    for epoch in range(3):
        bar = tqdm(range(200), desc=f"Epoch {epoch}", mininterval=0.01)
        for n in bar:
            bar.set_postfix(loss=f"{1 / (n + 1):.4f}", errors=0)
            time.sleep(0.001)


def boards() -> None:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter("board")
    for n in range(5):
        writer.add_scalar("loss", 1 / (n + 1), n)
    writer.add_histogram("bad", torch.randn(100), 1)
    writer.close()
    steps(3)


def wandb_offline() -> None:
    import wandb

    run = wandb.init(project="p", dir=".", config={"lr": 1e-3, "nccl_timeout": 1800})
    for n in range(10):
        run.log({"loss": 1 / (n + 1), "errors": 0})
    run.finish()


def streams() -> None:
    import webdataset as wds
    from torchdata.stateful_dataloader import StatefulDataLoader

    with wds.TarWriter("shard-000.tar") as sink:
        for n in range(50):
            sink.write({"__key__": f"s{n:04d}", "cls": n % 2, "txt": f"text {n}"})
    Path("shard-001.tar").write_bytes(Path("shard-000.tar").read_bytes()[:9000])  # torn off: the handler warns and goes on
    shards = ["shard-000.tar", "shard-001.tar", "missing.tar"]
    data = wds.WebDataset(shards, handler=wds.warn_and_continue, shardshuffle=False).decode().to_tuple("txt", "cls")
    log.info("%d samples", sum(1 for _ in data))
    loader = StatefulDataLoader(list(range(40)), batch_size=4, num_workers=2)
    for n, _ in enumerate(loader):
        if n == 3:
            state = loader.state_dict()
    loader.load_state_dict(state)
    log.info("resumed at batch 4, %d batches left", sum(1 for _ in loader))


def child_processes() -> None:
    """Preprocessing in child processes: one of them fails, the pool goes on; one is ended by us."""
    import concurrent.futures
    import multiprocessing
    import subprocess

    with concurrent.futures.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        for text, future in [(t, pool.submit(int, t)) for t in ("1", "2", "three", "4")]:
            try:
                log.info("parsed %d", future.result())
            except ValueError:
                log.exception("record %r is skipped", text)
    server = subprocess.Popen(["sleep", "100"])
    server.terminate()
    log.info("the helper process ended with %d, as it was told to", server.wait())
    subprocess.run("nvidia-smi || echo 'no nvidia-smi, going on without GPU metrics'; ls /dev/infiniband || true", shell=True)
    steps(2)


def ignored() -> None:
    """Exceptions that end nothing: in a thread, in a task, in __del__, in a callback; and one at the very end."""
    import asyncio
    import gc
    import threading
    import weakref

    class Uploader:
        def __del__(self) -> None:
            raise AssertionError("can only test a child process")

    def upload() -> None:
        raise ConnectionError("metrics endpoint answered 503")

    def callback(_: object) -> None:
        raise RuntimeError("cache entry is gone already")

    async def background() -> None:
        raise TimeoutError("heartbeat to the dashboard timed out")

    async def main() -> None:
        task = asyncio.ensure_future(background())
        await asyncio.sleep(0.01)
        del task
        gc.collect()

    steps(2)
    thread = threading.Thread(target=upload, name="upload")
    thread.start()
    thread.join()
    uploader = Uploader()
    gone = weakref.ref(uploader, callback)
    del uploader
    asyncio.run(main())
    steps(3)
    log.info("training finished, %s", gone())


def leaked() -> None:
    """Shared memory that nobody unlinks: the resource tracker says so at the end."""
    from multiprocessing import shared_memory

    block = shared_memory.SharedMemory(create=True, size=1 << 20)
    log.info("%d bytes of shared memory at %s", block.size, block.name)
    steps(2)


CHOICES = {
    f.__name__: f
    for f in (profiler, data_parallel, signals, not_a_number, progress, boards, wandb_offline, streams, child_processes, ignored, leaked)
}
if __name__ == "__main__":
    CHOICES[sys.argv[1]]()
