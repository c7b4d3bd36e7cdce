"""Hands a tensor to another process through shared memory, which that process maps when it takes it out of the queue."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.multiprocessing as mp


def take(queue: mp.Queue, done: mp.Event) -> None:
    print(f"received {queue.get().sum().item():.0f}", flush=True)
    done.set()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clean", action="store_true", help="remove what lies in /dev/shm before the other process has mapped it")
    parser.add_argument("--elements", type=int, default=1000)
    arguments = parser.parse_args()
    mp.set_sharing_strategy("file_system")
    context = mp.get_context("spawn")
    queue, done = context.Queue(), context.Event()
    tensor = torch.ones(arguments.elements).share_memory_()
    if arguments.clean:
        for segment in Path("/dev/shm").glob(f"torch_{os.getpid()}_*"):
            segment.unlink()
    taker = context.Process(target=take, args=(queue, done))
    taker.start()
    queue.put(tensor)
    taker.join(60)
    raise SystemExit(taker.exitcode)


if __name__ == "__main__":
    main()
