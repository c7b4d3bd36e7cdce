"""Logs of a failed run: opened, streamed, cleaned of what launchers and terminals put around each line, searched for signatures and tracebacks.

`discovery` and `sources` (files, archives, standard input) > `line` (prefixes, rank, host, pid, time) > `signature` > `needles` (the engine) >
`blocks` > `line_matcher` > `search`. `log_facts` holds what a log says about the job beside its errors; `watchdog`, `exits`, `nccl_lines`,
`alarms` and `attempts` read it; `signatures.toml` lists most of what they look for.
"""

from unhang.logs.line import MAX_LINE_BYTES, Line, clean, decode, last_lines, parse
from unhang.logs.needles import Needles
from unhang.logs.owner import Owner, owner_of
from unhang.logs.prefixes import Writer, rank_at, writer_at
from unhang.logs.search import LogRead, Stopped, read
from unhang.logs.signature import NEAR_LINES, Hit, Role, Signature, by_cause, match
from unhang.logs.timestamps import Stamp, resolve
from unhang.logs.tracebacks import Traceback

__all__ = [
    "MAX_LINE_BYTES",
    "NEAR_LINES",
    "Hit",
    "Line",
    "LogRead",
    "Needles",
    "Owner",
    "Role",
    "Signature",
    "Stamp",
    "Stopped",
    "Traceback",
    "Writer",
    "by_cause",
    "clean",
    "decode",
    "last_lines",
    "match",
    "owner_of",
    "parse",
    "rank_at",
    "read",
    "resolve",
    "writer_at",
]
