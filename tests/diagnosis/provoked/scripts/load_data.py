"""Reads a data set through DataLoader workers."""

from __future__ import annotations

import argparse
import os
import signal
import threading

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Images(Dataset):
    def __init__(self, samples: int, size_bytes: int, fault: str) -> None:
        self.samples, self.size_bytes, self.fault = samples, size_bytes, fault

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 5 and get_worker_info() is not None:
            if self.fault == "stuck":
                threading.Event().wait(60)
            if self.fault == "killed":
                # What was delivered before has been taken by then.
                threading.Event().wait(1)
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "exception":
                raise OSError("image file is truncated (12 bytes not processed)")
        return torch.zeros(self.size_bytes, dtype=torch.uint8)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--size-bytes", type=int, default=65536)
    parser.add_argument("--fault", default="")
    parser.add_argument("--timeout-s", type=float, default=0)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--start", default="fork")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(
        Images(arguments.samples, arguments.size_bytes, arguments.fault),
        batch_size=1,
        num_workers=2,
        timeout=arguments.timeout_s,
        multiprocessing_context=arguments.start,
    )
    kept = []
    for step, batch in enumerate(loader):
        if arguments.keep:
            kept.append(batch)
        print(f"step {step} {batch.numel()} bytes", flush=True)


if __name__ == "__main__":
    main()
