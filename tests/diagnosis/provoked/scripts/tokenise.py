"""Rank 0 tokenises the corpus before the first step, with a progress bar, while the others wait for it at a barrier."""

from __future__ import annotations

import argparse
import datetime
import time

import torch.distributed as dist
from tqdm import tqdm


def tokenise(shards: int, shard_s: float) -> None:
    for _ in tqdm(range(shards), desc="Tokenizing train dataset", unit=" examples"):
        until = time.monotonic() + shard_s
        while time.monotonic() < until:
            sorted(range(1000))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shard-s", type=float, default=0.05)
    parser.add_argument("--timeout-s", type=float, default=20)
    arguments = parser.parse_args()
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=arguments.timeout_s))
    if dist.get_rank() == 0:
        tokenise(10, arguments.shard_s)
    dist.barrier()
    dist.destroy_process_group()


main()
