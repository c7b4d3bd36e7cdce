"""NCCL's RAS (2.24 and later): every process of a job answers on a socket, and tells of all communicators of the whole job while it runs.

`client` asks (`fetch`) or reads an answer that was kept in a file, be it ours or `ncclras > file` (`load`); `json_answer` and `text_answer` read what
was answered (`parse`), `model` is what comes out: a `Report`. Two answers are held against each other by `compare`.
"""

from unhang.ras.client import Address, NoHost, address, fetch, load, parse
from unhang.ras.model import Change, Communicator, InState, Launched, Member, Missing, Process, Ranks, Report, compare

__all__ = [
    "Address",
    "Change",
    "Communicator",
    "InState",
    "Launched",
    "Member",
    "Missing",
    "NoHost",
    "Process",
    "Ranks",
    "Report",
    "address",
    "compare",
    "fetch",
    "load",
    "parse",
]
