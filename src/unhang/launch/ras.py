"""NCCL's own view of the job, asked while it hangs: it knows the ranks of other hosts, too."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from unhang.errors import RecordError
from unhang.launch.watch import RankState
from unhang.records import ras
from unhang.records.incident import Missed
from unhang.records.rundir import RunDir

WHAT = "NCCL's own view of the job (RAS)"
# No longer than the ranks themselves are waited for.
_PEERS_S = 2.0
_CONNECT_S = 2.0
_TOTAL_S = 8.0


def take(rundir: RunDir, incident: int, states: Iterable[RankState], missed: Callable[[Missed], None]) -> str | None:
    """Ask a job on NCCL and keep the answer as it came, relative to the run directory. None where nobody answers, or nobody runs on NCCL."""
    if not any("nccl" in (state.backend or "") for state in states):
        return None
    if os.environ.get("NCCL_RAS_ENABLE") == "0":
        missed(Missed(what=WHAT, why="NCCL_RAS_ENABLE=0 turns it off"))
        return None
    try:
        answer = ras.fetch(peers_timeout_s=_PEERS_S, connect_timeout_s=_CONNECT_S, total_timeout_s=_TOTAL_S)
        path = rundir.ras(incident, answer.format)
        rundir.write_bytes(path, answer.data)
    except RecordError as e:
        missed(Missed(what=WHAT, why=f"{e}{f' ({e.cause})' if e.cause else ''}"))
        return None
    except OSError as e:
        missed(Missed(what=WHAT, why=f"cannot be kept: {e.strerror or e}"))
        return None
    if answer.cut:
        missed(Missed(what=f"the rest of {WHAT}", why=answer.cut))
    return rundir.relative(path)
