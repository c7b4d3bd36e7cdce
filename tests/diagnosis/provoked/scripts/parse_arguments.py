"""A training script of the time when launchers passed --local_rank, with an underscore."""

from __future__ import annotations

import argparse
import os

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", "0")))
arguments = parser.parse_args()
print(f"local rank {arguments.local_rank}", flush=True)
