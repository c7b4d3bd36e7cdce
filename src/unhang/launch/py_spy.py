"""py-spy: Python stacks of a process, read from outside."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path

TIMEOUT_S = 8.0


def find() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy")


async def dump(tool: str, pid: int, *options: str) -> bytes:
    """What `py-spy dump --json` prints of a process. Raises OSError.

    It pauses what it reads. A process that is stopped would be continued by that: give `--nonblocking`.
    """
    argv = [tool, "dump", "--json", *options, "--pid", str(pid)]
    # Its last line is to be the reason, not the end of its own backtrace.
    environ = {**os.environ, "RUST_BACKTRACE": "0"}
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environ
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    except (asyncio.TimeoutError, asyncio.CancelledError) as e:
        process.kill()
        await process.wait()
        if isinstance(e, asyncio.CancelledError):
            raise
        raise TimeoutError(f"py-spy did not end within {TIMEOUT_S:g} s") from e
    if process.returncode != 0:
        last = err.decode(errors="replace").strip().splitlines()[-1:] or ["no reason given"]
        raise ChildProcessError(f"py-spy: {last[0]}")
    return out
