"""NCCL's RAS (2.24 and later): every process of a job answers on a socket, and tells of all communicators of the whole job while it runs.

`client` asks (`fetch`), `document` and `text` read what was answered (`parse`), `model` is what comes out: a `Report`. An answer that was kept in a
file, be it ours or `ncclras > file`, is read by `load`. Two answers are held against each other by `compare`.
"""

from unhang.ras.answer import MAX_BYTES, load, parse
from unhang.ras.client import DEFAULT_HOST, DEFAULT_PORT, Address, Answer, NoHost, address, ask, fetch
from unhang.ras.compare import Change, Pace, compare
from unhang.ras.model import Behind, Communicator, Failure, InState, Launched, Member, Missing, Process, Report

__all__ = [
    "DEFAULT_HOST",
    "DEFAULT_PORT",
    "MAX_BYTES",
    "Address",
    "Answer",
    "Behind",
    "Change",
    "Communicator",
    "Failure",
    "InState",
    "Launched",
    "Member",
    "Missing",
    "NoHost",
    "Pace",
    "Process",
    "Report",
    "address",
    "ask",
    "compare",
    "fetch",
    "load",
    "parse",
]
