"""What runs on a host, sent there with the collectors of `facts`: it answers questions, one line of JSON each, until its pipe closes.

Standard library only. Questions are answered side by side, each with the `id` that it had; what goes wrong is an answer with "error".
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import importlib.util
import ipaddress
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any

from unhang.hosts import job
from unhang.hosts.job import Answer, Question

_CHUNK = 1 << 18
# tcpi_total_retrans and tcpi_segs_out of struct tcp_info (Linux).
_RETRANSMITS_AT, _SEGMENTS_AT = 100, 136
# More than any MTU carries in one packet, and so little that nothing waits for a window.
_SEGMENT_BYTES = 20_000
_LARGEST_BYTES = 64 << 20
_ECHOES = 20
_PATIENCE_S = 10.0
_PIECE_BYTES = 800
_BEAT_S = 10.0
_MOST_ENTRIES = 20_000
_LOG_BYTES = 30_000
# The resolver waits 5 s for each server, twice.
_LOOK_UP_S = 11.0
_write = threading.Lock()


def say(message: Question) -> None:
    """In pieces: srun cuts lines of more than a kilobyte. "+" has more behind it, "=" is the last."""
    data = json.dumps(message, ensure_ascii=False).encode("utf-8", "replace")
    pieces = [data[i : i + _PIECE_BYTES] for i in range(0, len(data), _PIECE_BYTES)]
    with _write:
        sys.stdout.buffer.write(b"".join(b"+%b\n" % piece for piece in pieces[:-1]) + b"=%b\n" % pieces[-1])
        sys.stdout.buffer.flush()


def plain(value: Any) -> Any:
    """Facts as JSON has them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


# ---- links


def listen() -> int:
    """Answers tests from now on; the port is the kernel's choice, as those of NCCL and Gloo are."""
    server = _server(0)
    threading.Thread(target=_accept, args=(server,), daemon=True).start()
    return int(server.getsockname()[1])


def _server(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128)
    return socket.create_server(("", port), backlog=128)


def _accept(server: socket.socket) -> None:
    while server.fileno() >= 0:
        with contextlib.suppress(OSError):
            threading.Thread(target=_serve, args=(server.accept()[0],), daemon=True).start()


def _serve(peer: socket.socket) -> None:
    """Each message says how much follows, and how much it wants back."""
    with peer, contextlib.suppress(OSError):
        peer.settimeout(_PATIENCE_S)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while head := _exactly(peer, 8):
            size, back = struct.unpack("!II", head)
            while size:
                size -= len(_some(peer, size))
            peer.sendall(bytes(back))


def _some(peer: socket.socket, at_most: int) -> bytes:
    if not (data := peer.recv(min(at_most, _CHUNK))):
        raise ConnectionError("the other end closed the connection")
    return data


def _exactly(peer: socket.socket, size: int) -> bytes:
    data = peer.recv(size)
    while data and len(data) < size:
        data += _some(peer, size - len(data))
    return data


class _Link:
    """A connection to another agent, with one deadline for all that is tried on it."""

    def __init__(self, address: str, port: int, limit_s: float) -> None:
        self.until = time.monotonic() + limit_s
        self.peer = socket.create_connection((address, port), timeout=limit_s)
        self.peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _left(self) -> None:
        self.peer.settimeout(max(0.01, self.until - time.monotonic()))

    def carry(self, out: int, back: int) -> float:
        """Seconds for so many bytes there and so many back."""
        begun = time.perf_counter()
        self._left()
        self.peer.sendall(struct.pack("!II", out, back) + bytes(out))
        while back:
            self._left()
            back -= len(_some(self.peer, back))
        return time.perf_counter() - begun

    def fastest(self, out: bool, *, for_s: float) -> float:
        """Bytes per second, by time: the sizes grow until one takes 30 ms."""
        best, size, until = 0.0, 1 << 18, time.monotonic() + for_s
        while time.monotonic() < until:
            took = self.carry(size if out else 1, 1 if out else size)
            best = max(best, size / took)
            if took < 0.03 and size < _LARGEST_BYTES:
                size *= 2
        return best

    def counters(self) -> tuple[int, int] | None:
        """Segments that were sent again, and all that were sent; None where this kernel does not tell."""
        info = self.peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        if len(info) < _SEGMENTS_AT + 4:
            return None
        return struct.unpack_from("I", info, _RETRANSMITS_AT)[0], struct.unpack_from("I", info, _SEGMENTS_AT)[0]


def test(asked: Question) -> Answer:
    """Climb a ladder on one link: connect, a byte, a segment each way, and as much as goes. `at` is the rung that failed."""
    found: Answer = {"at": "connect"}
    link = None
    try:
        begun = time.perf_counter()
        link = _Link(asked["address"], asked["port"], asked["limit_s"])
        found |= {"connect_s": time.perf_counter() - begun, "at": "small"}
        found |= {"round_trip_s": min(link.carry(1, 1) for _ in range(_ECHOES)), "at": "segment out"}
        link.carry(_SEGMENT_BYTES, 1)
        found["at"] = "segment in"
        link.carry(1, _SEGMENT_BYTES)
        if asked["bulk_s"]:
            found |= {"at": "bulk out"}
            found |= {"out_bytes_per_s": link.fastest(True, for_s=asked["bulk_s"]), "at": "bulk in"}
            found |= {"in_bytes_per_s": link.fastest(False, for_s=asked["bulk_s"])}
        del found["at"]
    except OSError as e:
        found["error"] = "timed out" if isinstance(e, TimeoutError) else e.strerror or str(e)
    finally:
        if link is not None:
            with contextlib.suppress(OSError):
                found["segments"] = link.counters()
            link.peer.close()
    return found


# ---- names, clocks, ports, files


def resolve(name: str) -> Answer:
    begun = time.perf_counter()
    try:
        found = sorted({str(a[4][0]) for a in socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)})
        return {"addresses": found, "took_s": time.perf_counter() - begun}
    except (OSError, UnicodeError) as e:
        return {"error": str(e), "took_s": time.perf_counter() - begun}


def reverse(address: str) -> Answer:
    begun = time.perf_counter()
    try:
        name = socket.gethostbyaddr(address)[0]
    except OSError:
        name = ""
    return {"name": name, "took_s": time.perf_counter() - begun}


def names(asked: Question) -> Answer:
    """What each name resolves to here, what each address is called, each timed; and who we believe to be."""
    look_ups: dict[tuple[str, str], Callable[[], Any]] = {("full", ""): socket.getfqdn}
    look_ups |= {("names", name): functools.partial(resolve, name) for name in asked["names"]}
    look_ups |= {("addresses", address): functools.partial(reverse, address) for address in asked["addresses"]}
    look_ups |= {("is_first", name): functools.partial(is_here, name) for name in asked["names"]}
    pool = futures.ThreadPoolExecutor(len(look_ups))
    under_way = {key: pool.submit(look_up) for key, look_up in look_ups.items()}
    futures.wait(under_way.values(), timeout=_LOOK_UP_S)
    late = {"full": socket.gethostname(), "is_first": False}
    found: dict[str, Answer] = {"names": {}, "addresses": {}, "is_first": {}, "full": {}}
    for (kind, name), future in under_way.items():
        no_answer = late.get(kind, {"error": f"no answer within {_LOOK_UP_S:g} s", "took_s": _LOOK_UP_S})
        found[kind][name] = future.result() if future.done() else no_answer
    return {**found, "full": found["full"][""]}


def is_here(name: str) -> bool:
    """torch's own rule (torch.distributed.elastic.rendezvous.utils): by it a host decides that it is to serve the rendezvous."""
    if name == "localhost":
        return True
    try:
        address: str | None = str(ipaddress.ip_address(name))
        if ipaddress.ip_address(name).is_loopback:
            return True
    except ValueError:
        address = None
    own = socket.gethostname()
    if name == own:
        return True
    told = resolve(name).get("addresses", ())
    try:
        mine = socket.getaddrinfo(own, None, proto=socket.IPPROTO_TCP, flags=socket.AI_CANONNAME)
    except OSError:
        return False
    return any((full and full == name) or at[0] == address or at[0] in told for *_, full, at in mine)


def clock(_: Question) -> Answer:
    return {"now_s": time.time()}


def port(asked: Question) -> Answer:
    """Whether a port can be listened on here, and for how long it then is: others connect to it meanwhile. Port 0 is one of the kernel's choice."""
    try:
        server = _server(asked["port"])
    except OSError as e:
        return {"error": os.strerror(e.errno or 0), "holder": _holder(asked["port"])}
    found = {"port": server.getsockname()[1]}
    if asked["for_s"]:
        threading.Thread(target=_accept, args=(server,), daemon=True).start()
        threading.Timer(asked["for_s"], server.close).start()
    else:
        server.close()
    return found


def _holder(port: int) -> str | None:
    from unhang.facts import ports
    from unhang.facts.host import Host

    held = [h for h in ports.collect(Host()).listeners if h.port == port]
    return next((f"pid {h.pid} ({h.command})" for h in held if h.pid is not None), None)


def places(asked: Question) -> Answer:
    """Of each directory: what it holds in a digest, and which of the marks of others are there. `mark` puts one there, `clean` takes it away."""
    return {"places": {path: _place(path, asked) for path in asked["paths"]}}


def _place(path: str, asked: Question) -> Answer:
    try:
        if not os.path.isdir(path):  # noqa: PTH112
            return {"error": "it is not there" if not os.path.lexists(path) else "it is no directory"}
        own = os.path.join(path, asked["mark"])  # noqa: PTH118
        if asked["do_it"] == "write":
            with open(own, "x") as f:  # noqa: PTH123
                f.write(asked["mark"])
        elif asked["do_it"] == "remove":
            with contextlib.suppress(FileNotFoundError):
                os.unlink(own)  # noqa: PTH108
        else:
            return {"seen": os.path.exists(own), "digest": _digest(path), "commit": _commit(path)}  # noqa: PTH110
    except OSError as e:
        return {"error": e.strerror or str(e)}
    return {}


def _commit(path: str) -> str | None:
    """What is checked out there, with a + where files of it were changed; None where git knows nothing of it."""
    from unhang.facts.host import Host

    try:
        commit = Host().run(["git", "-C", path, "rev-parse", "--short=12", "HEAD"], timeout_s=2.0)
        changed = Host().run(["git", "-C", path, "status", "--porcelain", "--untracked-files=no"], timeout_s=5.0)
    except OSError:
        return None
    return commit.out.strip() + "+" * bool(changed.out) if commit.exitcode == 0 else None


def _digest(path: str) -> str | None:
    """Of names and sizes below it, without marks; None where that is too much."""
    found, waiting = [], [path]
    while waiting:
        for entry in sorted(os.scandir(waiting.pop()), key=lambda e: e.name):
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            elif not entry.name.startswith(".unhang-"):
                found.append(f"{entry.path[len(path) :]} {entry.stat(follow_symlinks=False).st_size}")
            if len(found) + len(waiting) > _MOST_ENTRIES:
                return None
    return hashlib.sha256("\n".join(found).encode("utf-8", "surrogateescape")).hexdigest()


def facts(asked: Question) -> Answer:
    """A snapshot, as `unhang doctor --save` writes it."""
    from unhang.facts import snapshot
    from unhang.facts.host import Host

    # The training's Python is the first that is found.
    path = f"{os.path.dirname(sys.executable)}:{os.environ.get('PATH', '')}"  # noqa: PTH120
    host = Host(environ={**os.environ, "PATH": path, **asked["environ"]}, places=asked["places"])
    only = asked.get("only") or [s for s in snapshot.subjects() if s not in asked["without"]]
    return {"snapshot": plain(snapshot.take(host, only=only))}


def group(asked: Question) -> Answer:
    """Run one rank of a group of several hosts: what it told of each stage, and the end of what it printed."""
    loader: Any = importlib.util.find_spec("unhang.probes.worker").loader  # type: ignore[union-attr]
    reads, writes = os.pipe()
    log = os.memfd_create("log")
    argv = [sys.executable, "-c", loader.get_source("unhang.probes.worker"), json.dumps({**asked["asked"], "report_fd": writes})]
    environ = {"NCCL_DEBUG": "INFO", **os.environ, **asked["environ"]}
    with os.fdopen(reads) as pipe:
        rank = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environ, pass_fds=(writes,), start_new_session=True)
        os.close(writes)
        try:
            rank.wait(asked["bound_s"])
        except subprocess.TimeoutExpired:
            os.killpg(rank.pid, signal.SIGKILL)
        told = [json.loads(line) for line in pipe]
    printed = os.pread(log, _LOG_BYTES, max(0, os.fstat(log).st_size - _LOG_BYTES)).decode(errors="replace")
    os.close(log)
    return {"exitcode": rank.returncode, "told": told, "log": printed}


ANSWERS: Mapping[str, Callable[[Question], Answer]] = {
    "test": test, "names": names, "clock": clock, "port": port, "places": places, "facts": facts,
    "group": group, "start": job.start, "adopt": job.adopt, "follow": job.follow, "links": job.links, "send": job.send, "records": job.records,
}  # fmt: skip


def _answer(asked: Question) -> None:
    try:
        found = ANSWERS[asked["do"]](asked)
    except Exception as e:  # reported to the coordinator, which does not take it for a fault of the host
        found = {"failure": f"{type(e).__name__}: {e}"}
    say({"id": asked["id"], **found})


def _is_installed() -> bool:
    """Whether the training's Python has unhang; what runs here was sent."""
    try:
        return bool(importlib.metadata.version("unhang"))
    except importlib.metadata.PackageNotFoundError:
        return False


def _beat() -> None:
    """A connection whose other end is gone is closed only when something is sent: else this agent would wait for its next question for hours."""
    with contextlib.suppress(OSError):
        while True:
            time.sleep(_BEAT_S)
            say({"id": 0})


def main() -> None:
    """Serve until the pipe closes."""
    # The address at which ssh found this host (client, its port, server, its port), or by which it joined.
    ends_with_pipe = os.environ.pop("UNHANG_ENDS_WITH_PIPE", "") == "1"
    reached_at = os.environ.pop("UNHANG_REACHED_AT", "") or [*os.environ.get("SSH_CONNECTION", "").split(), "", "", ""][2]
    own = {"name": socket.gethostname(), "python": sys.executable, "pid": os.getpid(), "unhang": _is_installed()}
    say({"id": 0, "port": listen(), "reached_at": reached_at, **own})
    threading.Thread(target=_beat, daemon=True).start()
    # Cut off in the middle, or by the network.
    with contextlib.suppress(ValueError, OSError):
        for line in sys.stdin.buffer:
            asked = json.loads(line)
            if asked.get("to") is None or os.environ.get("SLURM_PROCID") in asked["to"]:
                threading.Thread(target=_answer, args=(asked,), daemon=True).start()
    job.wait_for_all(end=ends_with_pipe)
    # Threads may hang in a driver or a file server.
    os._exit(0)
