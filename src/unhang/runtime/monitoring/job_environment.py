"""What `unhang run` and torchrun have told this process in its environment."""

from __future__ import annotations

import os
from pathlib import Path

from unhang.attach.protocol import ENV_ATTEMPT, ENV_RUN


def run_dir() -> Path | None:
    """The run directory; None where `unhang run` is not above us."""
    found = os.environ.get(ENV_RUN)
    return Path(found) if found else None


def restarts() -> int:
    """By torchrun, and by `unhang run`, which starts it anew."""
    return sum(int(text) for name in (ENV_ATTEMPT, "TORCHELASTIC_RESTART_COUNT") if (text := os.environ.get(name, "")).isdecimal())
