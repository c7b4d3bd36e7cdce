"""The variables that a supervised training gets: those that attach its processes, and those that make torch and NCCL leave evidence.

Nothing that the user set is overwritten. Names are those that the installed torch reads (2.2 brought the TORCH_NCCL_ names,
2.8 the TORCH_FR_ names, 2.15 the TORCH_FR_ names of the dump on timeout); a number is given where torch wants a number,
because torch aborts on anything else.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from unhang import attach
from unhang.attach import protocol

HOOK = Path(attach.__file__).parent / "hook"
FLIGHT_ENTRIES = "2000"
_ANSWERS_S = 20.0
_VERSION = "import sys; sys.path[:] = filter(None, sys.path); import importlib.metadata as m; print(m.version('torch'))"
# How many calls the flight recorder holds, where it goes on a timeout, and that it does: names from torch 2.2 on, and from a later version on.
_OF_RECORDER = (
    ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE", (2, 8)),
    ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE", (2, 8)),
    ("TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_FR_DUMP_ON_TIMEOUT", (2, 15)),
)

Version = tuple[int, int]


def torch_version(python: str) -> Version | None:
    """The torch that `python` would import, without importing it; None where there is none or nobody can tell."""
    said = _asked(python, _VERSION)
    found = re.match(rb"(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else None


def lacks_module(python: str, name: str) -> bool:
    """Whether `python -m name`, started here, would certainly find no such module to run."""
    return _asked(python, _FIND, name).split()[-1:] == [b"missing"]


# A package is imported only where its module is not in its directory: it may have changed __path__, and importing may take long.
_FIND = """
import sys
here, sys.path[:] = sys.path[:], filter(None, sys.path)
from importlib.machinery import PathFinder
from importlib.util import find_spec
sys.path[:] = here

def find(name):
    package = name.rpartition(".")[0]
    if not package:
        return find_spec(name)
    above = find(package)
    if above is None or above.submodule_search_locations is None:
        return None
    try:
        return PathFinder.find_spec(name, above.submodule_search_locations) or find_spec(name)
    except ModuleNotFoundError:
        return None

found = find(sys.argv[1])
if found is None or (found.submodule_search_locations is not None and find(sys.argv[1] + ".__main__") is None):
    print("missing")
"""


def _asked(python: str, code: str, *argv: str) -> bytes:
    """What Python says to that; nothing where it cannot be asked."""
    environ = {**os.environ, protocol.ENV_SWITCH: "0"}
    try:
        done = subprocess.run(
            [python, "-c", code, *argv], capture_output=True, timeout=_ANSWERS_S, stdin=subprocess.DEVNULL, env=environ, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return b""
    return done.stdout


def evidence(version: Version | None, environ: Mapping[str, str], *, dumps: Path) -> dict[str, str]:
    """Variables that leave evidence, as torch `version` spells them; dumps go to files `dumps`/rank_N."""
    chosen = {} if "NCCL_DEBUG" in environ else {"NCCL_DEBUG": "WARN"}
    if version is not None and version >= (2, 2):
        for (old, new, since), value in zip(_OF_RECORDER, (FLIGHT_ENTRIES, str(dumps / "rank_"), "1"), strict=True):
            # Whoever set the other name, which this torch may not read yet, has decided as well.
            if old not in environ and new not in environ:
                chosen[new if version >= since else old] = value
    return chosen


def attached(listener: Mapping[str, str], environ: Mapping[str, str], *, run: Path, fatal: Path, attempt: int, stdio: str) -> dict[str, str]:
    """Variables that attach every Python process of the training."""
    path = environ.get("PYTHONPATH")
    return {
        **listener,
        "PYTHONPATH": f"{HOOK}{os.pathsep}{path}" if path else str(HOOK),
        protocol.ENV_RUN: str(run),
        protocol.ENV_FATAL: str(fatal),
        protocol.ENV_ATTEMPT: str(attempt),
        protocol.ENV_STDIO: stdio,
    }
