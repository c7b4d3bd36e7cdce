"""What the server of processes imports, so that a rank is there in milliseconds."""

import hypothesis
import pytest
import torch
import torch.distributed
import torch.testing

import unhang
from unhang.runtime.collectives import agreement

__all__ = ["agreement", "hypothesis", "pytest", "torch", "unhang"]
