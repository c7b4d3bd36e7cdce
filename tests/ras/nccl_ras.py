"""A job as NCCL's RAS knows it, what each version of NCCL says of it, and servers that say so over real sockets.

The rules (what is grouped, who is named, in what words) are those of NCCL's src/ras/client_support.cc.
"""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace

from unhang.ras import Address, fetch, parse

KINDS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
ERRORS = {1: "Unhandled CUDA error", 2: "System error", 6: "Remote process error"}
V24, V26, V28, V29, V32 = (2, 24, 3), (2, 26, 2), (2, 28, 9), (2, 29, 2), (2, 32, 3)
TEXT_ONLY = (V24, V26)
WITH_JSON = (V28, V29, V32)


# A job, and what NCCL's RAS says of it ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rank:
    number: int
    host: str
    pid: int
    dev: int
    nvml: int
    counts: tuple[int, ...] = (0, 0, 0, 0, 0)
    init: int = 0
    error: int = 0
    finalize: bool = False
    abort: bool = False
    # How it is missing: "silent", "dead" or "left" (answers, but is no member).
    missing: str = ""

    @property
    def state(self):
        return "ABORT" if self.abort else "FINALIZE" if self.finalize else "RUNNING" if self.init == 0 else "INIT"


@dataclass(frozen=True)
class Comm:
    hash: int
    ranks: tuple[Rank, ...]

    @property
    def here(self):
        return [r for r in self.ranks if not r.missing]


@dataclass(frozen=True)
class Job:
    comms: tuple[Comm, ...]
    timeouts: int = 0

    def changed(self, rank, comm=0, **changes):
        ranks = tuple(replace(r, **changes) if r.number == rank else r for r in self.comms[comm].ranks)
        return replace(self, comms=tuple(replace(c, ranks=ranks) if i == comm else c for i, c in enumerate(self.comms)))

    def processes(self, *how):
        found = {(r.host, r.pid): r for c in self.comms for r in c.ranks if not how or r.missing in how}
        return [found[key] for key in sorted(found)]


def ranks_of(nodes, per_node, **changes):
    return tuple(Rank(n * per_node + d, f"10.0.0.{n + 1}", 1000 * (n + 1) + d, d, d, **changes) for n in range(nodes) for d in range(per_node))


def job(nodes=2, per_node=8, counts=(1, 0, 20, 20, 64)):
    """One communicator of all, and two that lie across the nodes."""
    everyone = ranks_of(nodes, per_node, counts=counts)
    across = [tuple(replace(everyone[n * per_node + d], number=n, counts=(0, 0, 0, 0, 7)) for n in range(nodes)) for d in range(2)]
    return Job(comms=(Comm(0x0A1B2C3D4E5F6071, everyone), *(Comm(0x51 + i, ranks) for i, ranks in enumerate(across))))


def outlier(count, verbose, total=None):
    if count == 1:
        return True
    if verbose:
        return total is None or count < total * 0.5
    return count <= 10 and (total is None or count <= total * 0.25)


def gpu(r):
    return f"{r.dev}" + (f" (NVML {r.nvml})" if r.dev != r.nvml else "")


def at(r):
    return f"GPU {gpu(r)} managed by process {r.pid} on node {r.host}"


def kinds_of(version, r):
    return {"collective": sum(r.counts)} if version < (2, 26) else dict(zip(KINDS, r.counts, strict=True))


def nocomm(version):
    return "UNKNOWN" if version < (2, 26) else "NOCOMM"


def lost(version, job, comm):
    """Who is missing as INCOMPLETE, and who as a non-member; 2.24 cannot tell them apart in one communicator."""
    away = [r for r in comm.ranks if r.missing]
    if version < (2, 26):
        return (away, []) if job.processes("silent", "dead") else ([], away)
    return [r for r in away if r.missing != "left"], [r for r in away if r.missing == "left"]


def judged(version, job, comm):
    incomplete, outside = lost(version, job, comm)
    order = [nocomm(version), "INIT", "RUNNING", "FINALIZE", "ABORT"]
    states = {r.state for r in comm.here} | ({order[0]} if outside else set())
    words = []
    if incomplete:
        words.append("INCOMPLETE")
    if any(r.init not in (0, 7) or r.error not in (0, 7) for r in comm.here):
        words.append("ERROR")
    if len(states) > 1 or outside or len({tuple(kinds_of(version, r).items()) for r in comm.here}) > 1:
        words.append("MISMATCH")
    return max(states, key=order.index), states, words


def shares(version, comm, values, verbose, many, one, *, bare=()):
    """Groups of ranks by value, the largest first, their ranks named where they stand out."""
    out = []
    for value, number in sorted(Counter(values.values()).items(), key=lambda item: -item[1]):
        mine = [r for r in comm.ranks if values.get(r.number) == value]
        if number > 1:
            out.append(f"  {number} ranks {many(value)}")
        if outlier(number, verbose, len(comm.ranks)):
            if version < (2, 26) and mine[0] in bare:
                numbers = ",".join(str(r.number) for r in mine)
                out.append(f"  The unknown ranks: {numbers}" if number > 1 else f"  Rank {numbers} {one(value)}")
            else:
                out += [f"  Rank {r.number}{'' if number > 1 else ' ' + one(value)} -- {at(r)}" for r in mine]
    return out


def in_text(version, job, verbose):
    """In three pieces, as they are sent."""
    number = ".".join(map(str, version))
    hosts = {r.host for r in job.processes()}
    total = len(job.processes())
    head = f"NCCL version {number} compiled with CUDA 12.8\nCUDA runtime version 12080, driver version 13000\n\n"
    summary = "Job summary\n===========\n\n"
    if total % len(hosts) == 0:
        summary += "  Nodes  Processes         GPUs  Processes     GPUs\n(total)   per node  per process    (total)  (total)\n"
        summary += f"{len(hosts):7}  {total // len(hosts):9}  {1:11}  {total:9}  {total:7}\n"
    else:
        summary += "  Nodes  Processes         GPUs\n          per node  per process\n"
        summary += "".join(f"{1:7}  {sum(r.host == h for r in job.processes()):9}  {1:11}\n" for h in sorted(hosts))
        summary += f"\n  Nodes  Processes         GPUs\n(total)    (total)      (total)\n{len(hosts):7}  {total:9}  {total:11}\n"
    summary += "\nCommunicators..."
    lines = [" (2.05s)" if version < (2, 26) else " (2.051s)", "=============", ""]
    if job.comms:
        lines += [
            "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors",
            "    #  in group  per comm  per node  per comm  in group",
        ]
    else:
        lines += ["No communicator data collected!"]
    groups = {}
    for comm in sorted(job.comms, key=lambda c: -len(c.ranks)):
        state, _, words = judged(version, job, comm)
        groups.setdefault((len(comm.ranks), len({r.host for r in comm.here}), state, ",".join(words) or "OK"), []).append(comm)
    labels = {}
    for g, ((size, nodes, state, words), comms) in enumerate(groups.items()):
        each = Counter(r.host for r in comms[0].here).values()
        span = f"{min(each)}" if min(each) == max(each) else f"{min(each)}-{max(each)}"
        lines.append(f"{g:5}  {len(comms):8}  {nodes:8}  {span:>8}  {size:8}  {sum(len(c.here) for c in comms):8}  {state:>8}  {words:>6}")
        labels |= {id(c): f"#{g}-{i} ({c.hash:016x})" for i, c in enumerate(comms)}
    lines += ["", "Errors", "======", ""]
    silent, dead = job.processes("silent"), job.processes("dead")
    for found, word, says in (
        (silent, "INCOMPLETE", f"Missing communicator data from {len(silent)} job process{'es' if len(silent) > 1 else ''}"),
        (dead, "DEAD", f"{len(dead)} job process{'es are' if len(dead) > 1 else ' is'} considered dead (unreachable via the RAS network)"),
    ):
        if found:
            lines += [word, f"  {says}"]
            if outlier(len(found), verbose):
                lines += [f"  Process {r.pid} on node {r.host} managing GPU {gpu(r)}" for r in found]
            lines.append("")
    for comm in (c for comms in groups.values() for c in comms):
        incomplete, _ = lost(version, job, comm)
        if incomplete:
            plural = "s" if len(incomplete) > 1 else ""
            lines += [f"{labels[id(comm)]} INCOMPLETE", f"  Missing communicator data from {len(incomplete)} rank{plural}"]
            if outlier(len(incomplete), verbose):
                if version < (2, 26):
                    lines.append(f"  The missing rank{plural}: {','.join(str(r.number) for r in incomplete)}")
                else:
                    lines += [f"  Rank {r.number} -- {at(r)}" for r in incomplete]
            lines.append("")
        if "ERROR" in judged(version, job, comm)[2]:
            lines.append(f"{labels[id(comm)]} ERROR")
            for phase, of in (("Initialization", lambda r: r.init), ("Asynchronous", lambda r: r.error)):
                values = {r.number: of(r) for r in comm.here if of(r) not in (0, 7)}
                if values:
                    plural = "s" if len(values) > 1 else ""
                    lines.append(f"  {phase} error{plural} on {len(values)} rank{plural}")
                    lines += shares(version, comm, values, verbose, lambda v: f"reported {ERRORS[v]}", lambda v: f"reported {ERRORS[v]}")
            lines.append("")
    lines += ["Warnings", "========", ""]
    if job.timeouts:
        lines += [
            "TIMEOUT",
            f"  Encountered {job.timeouts} communication timeout{'s' if job.timeouts > 1 else ''} while gathering communicator data",
            "",
        ]
    for comm in (c for comms in groups.values() for c in comms):
        _, states, words = judged(version, job, comm)
        if "MISMATCH" not in words:
            continue
        _, outside = lost(version, job, comm)
        lines.append(f"{labels[id(comm)]} MISMATCH")
        if len(states) > 1:
            lines.append("  Communicator ranks have different status")
            values = {r.number: r.state for r in comm.here} | {r.number: nocomm(version) for r in outside}
            lines += shares(version, comm, values, verbose, lambda v: f"have status {v}", lambda v: f"has status {v}", bare=outside)
        for kind in kinds_of(version, comm.ranks[0]):
            values = {r.number: kinds_of(version, r)[kind] for r in comm.here}
            if len(set(values.values())) > 1:
                lines.append(f"  Communicator ranks have different {kind} operation counts")
                none = version >= (2, 26)
                lines += shares(
                    version,
                    comm,
                    values,
                    verbose,
                    lambda v, none=none: f"have launched up to operation {v}" if v or not none else "have not launched any operations",
                    lambda v, none=none: f"has launched up to operation {v}" if v or not none else "has not launched any operations",
                )
                if none:
                    lines.append("")
        if version < (2, 26):
            lines.append("")
    return [head, summary, "\n".join(lines) + "\n"]


def in_json(version, job):
    def place(r):
        return {"rank": r.number, "host": r.host, "pid": r.pid, "cuda_dev": r.dev, "nvml_dev": r.nvml}

    def one(r):
        status = {"init_state": r.init, "async_error": r.error, "finalize_called": r.finalize, "destroy_flag": r.abort, "abort_flag": r.abort}
        return place(r) | {"status": status, "collective_counts": dict(zip(KINDS, r.counts, strict=True))}

    def none(r):
        return place(r) | {"status": {"unresponsive": r.missing != "left", "considered_dead": r.missing == "dead"}}

    return {
        "nccl_version": ".".join(map(str, version)),
        "cuda_runtime_version": 12080,
        "cuda_driver_version": 13000,
        "timestamp": "2026-11-22 03:40:00",
        "communicators_count": len(job.comms),
        "communicators": [
            {
                "hash": f"{c.hash:#x}",
                "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e",
                "size": len(c.ranks),
                "ranks_count": len(c.here),
                "missing_ranks_count": len(c.ranks) - len(c.here),
                "ranks": [one(r) for r in c.here],
                "missing_ranks": [none(r) for r in c.ranks if r.missing],
            }
            for c in job.comms
        ],
        "ras": {"collection_time_sec": 2.051, "timeouts_count": job.timeouts},
    }


# Servers -------------------------------------------------------------------------------------------------------------------------------------------


@dataclass
class Server:
    port: int
    commands: list[str] = field(default_factory=list)
    # Set when the test is over: servers that hang wait for it.
    over: threading.Event = field(default_factory=threading.Event)

    def ask(self, **how):
        return fetch(Address(host="127.0.0.1", port=self.port), **how).report()


@contextmanager
def listening(handle, *, host="127.0.0.1", port=0, connections=16):
    """Each connection goes to `handle(connection, server)` in a thread."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener, ExitStack() as after:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
        listener.listen(connections)
        server = Server(port=listener.getsockname()[1])
        workers = []

        def one(connection):
            with connection, suppress(OSError):
                handle(connection, server)

        def accept():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                worker = threading.Thread(target=one, args=(connection,))
                workers.append(worker)
                worker.start()

        thread = threading.Thread(target=accept)
        thread.start()

        @after.callback
        def _stop():
            server.over.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(20)
            for worker in workers:
                worker.join(20)
            assert not thread.is_alive() and not any(w.is_alive() for w in workers)

        yield server


def nccl(version, job, *, middle=None):
    """How NCCL of that version answers. `middle` may do something to the connection in place of the last piece."""

    def handle(connection, server):
        json_wanted = False
        held = b""
        while True:
            while b"\n" not in held:
                part = connection.recv(1024)
                if not part:
                    return
                held += part
            line, _, held = held.partition(b"\n")
            command = line.decode().strip()
            server.commands.append(command)
            word = command.lower()
            if word.startswith("client protocol "):
                connection.sendall(b"SERVER PROTOCOL 2\n")
            elif word.startswith("timeout "):
                value = word.removeprefix("timeout ")
                # A whole number until 2.30.
                fine = value.isdigit() if version < (2, 31) else float(value) >= 0
                connection.sendall(b"OK\n" if fine else f"ERROR: Invalid timeout value {value}\n".encode())
            elif word.startswith("set format ") and version >= (2, 28, 7):
                json_wanted = word.endswith("json")
                connection.sendall(b"OK\n")
            elif word in ("status", "verbose status"):
                whole = [json.dumps(in_json(version, job), indent=2) + "\n"]
                pieces = whole if json_wanted else in_text(version, job, word.startswith("verbose"))
                for piece in pieces[:-1]:
                    connection.sendall(piece.encode())
                if middle is not None:
                    middle(connection, server, pieces[-1].encode())
                else:
                    connection.sendall(pieces[-1].encode())
                return
            else:
                connection.sendall(f"ERROR: Unknown command {command}\n".encode())

    return handle


def answer_of(version, job, *, format=None, verbose=True):
    """What that version answers to a client that asks for its newest format, and for words; or to another one."""
    if format == "text" or not verbose:
        return parse("".join(in_text(version, job, verbose)).encode())
    with listening(nccl(version, job)) as server:
        return server.ask()


def troubled(report):
    """The communicators that anything is found about."""
    return [c for c in report.communicators if c.incomplete or c.failures or c.behind or len(c.states) > 1 or any(s.outside for s in c.states)]
