"""NCCL's RAS (2.24 and later): every process of a job answers on a socket, and tells of all communicators of the whole job while it runs.

`client` asks (`fetch`), `document` and `text` read what was answered (`parse`), `model` is what comes out: a `Report`. An answer that was kept in a
file, be it ours or `ncclras > file`, is read by `load`.
"""

from unhang.records.ras.answer import MAX_BYTES, load, parse
from unhang.records.ras.client import DEFAULT_HOST, DEFAULT_PORT, Address, Answer, address, ask, fetch
from unhang.records.ras.model import Behind, Communicator, Failure, Launched, Member, Missing, Process, Report, standstill

__all__ = [
    "DEFAULT_HOST",
    "DEFAULT_PORT",
    "MAX_BYTES",
    "Address",
    "Answer",
    "Behind",
    "Communicator",
    "Failure",
    "Launched",
    "Member",
    "Missing",
    "Process",
    "Report",
    "address",
    "ask",
    "fetch",
    "load",
    "parse",
    "standstill",
]
