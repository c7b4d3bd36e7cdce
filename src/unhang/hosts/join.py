"""Hosts that come by themselves: the same command on each, the first one listens at the rendezvous' address, the others connect to it.

Both ends prove that they know the same secret (HMAC-SHA256 over the other's random number), before an agent is started at the joining end. What goes
through the connection afterwards is neither signed nor hidden, as all that torch itself sends between hosts. Nobody can find such agents again: what
they have started ends with the connection. Their host then joins again: each attempt takes new connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import os
import re
import secrets
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from unhang.errors import UnhangError
from unhang.hosts.hostlist import Host
from unhang.hosts.reach import LOADER, Pipe, Program

SECRET = "UNHANG_SECRET"
LEAST_SECRET = 16
# Images are pulled and environments made before: torch's store waits as long.
JOIN_S = 900.0
# A host that was there joins again within that time, or has left for good; the first one answers so long after the end.
_AGAIN_S, _LEAVE_S = 60.0, 10.0
# A supervisor gives its ranks a minute.
_END_S = 100.0
_SHAKE_S, _TELL_S, _PAUSE_S = 5.0, 30.0, 1.0
_MAX_LINE_BYTES, _MAX_SAID_CHARS = 4096, 300
_MOST_AT_ONCE = 256
# Seconds after which a silent connection is lost: tried after ten, every five, and what is sent is not waited for longer.
_ALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 4, socket.TCP_USER_TIMEOUT: 30_000, socket.TCP_NODELAY: 1}
# tcpi_state of struct tcp_info (Linux).
_ESTABLISHED = 1

_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def secret() -> bytes:
    """Raises UnhangError where there is none that is long enough."""
    given = os.environ.get(SECRET, "")
    if len(given) < LEAST_SECRET:
        raise UnhangError(
            f"{SECRET} is shorter than {LEAST_SECRET} characters" if given else f"{SECRET} is not set: hosts recognise each other by it",
            hint="the same on each host, of at least 16 characters; openssl rand -hex 16 makes one",
        )
    return given.encode()


def _proof(of: bytes, *said: object) -> str:
    return hmac.new(of, json.dumps(["unhang", *map(str, said)]).encode(), "sha256").hexdigest()


def _number(said: object) -> str:
    """Raises ValueError for what is not the random number of another end."""
    if not isinstance(said, str) or not re.fullmatch(r"[0-9a-f]{32}", said):
        raise ValueError("this is no unhang")
    return said


def _agent(python: str, address: str) -> tuple[list[str], dict[str, str]]:
    """The command line of an agent on this host, and its environment."""
    marks = {"UNHANG_REACHED_AT": address, "UNHANG_ENDS_WITH_PIPE": "1"}
    return [python, "-u", "-c", LOADER], {name: value for name, value in (os.environ | marks).items() if name != SECRET}


def _keep_alive(connection: Any) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _ALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


class _Joined(Pipe):
    """The next connection of a host; the one that it was started with ends when it joins again."""

    def __init__(self, host: Host, queue: asyncio.Queue[_Connection]) -> None:
        super().__init__([host])
        self._queue = queue
        # It was here before.
        self.stage = {host.name: "answer"}

    async def start(self) -> None:
        try:
            lines, self.sends = await asyncio.wait_for(self._queue.get(), _AGAIN_S)
        except asyncio.TimeoutError:
            raise OSError(0, "it has not joined again") from None
        self._reading = [asyncio.create_task(self._read(lines))]

    async def close(self) -> None:
        if self.sends is not None:
            self.sends.close()
        await super().close()

    def _end(self) -> None:
        if self.sends is not None:
            self.sends.transport.abort()


class Rendezvous:
    """The first host's end: listens within `async with`; raises UnhangError where it cannot.

    `tell` gets a sentence about who is missing and who was refused.
    """

    def __init__(self, address: str, port: int, nodes: int, *, python: str, tell: Callable[[str], None]) -> None:
        self._address, self._port, self._nodes, self._python, self._tell = address, port, nodes, python, tell
        self._secret = secret()
        self._queues: dict[int, asyncio.Queue[_Connection]] = {n: asyncio.Queue(1) for n in range(1, nodes)}
        self._names: dict[int, str] = {0: socket.gethostname()}
        # Each command makes a number of its own: a second one with the same node rank is another host.
        self._process_of_rank: dict[int, str] = {}
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._end: dict[str, Any] | None = None
        self._shaking = asyncio.Semaphore(_MOST_AT_ONCE)
        self._refused: set[str] = set()
        # Gets the number of a signal by which another host's command was ended.
        self.interrupt: Callable[[int], None] = lambda number: None

    async def __aenter__(self) -> Rendezvous:
        until = time.monotonic() + _AGAIN_S
        while True:
            try:
                self._server = await asyncio.start_server(self._accept, self._address, self._port, limit=_MAX_LINE_BYTES)
                break
            except OSError as e:
                # A pod's own name is not known to its name server at once.
                if not isinstance(e, socket.gaierror) or time.monotonic() > until:
                    raise UnhangError(
                        f"cannot listen at {self._address}:{self._port}: {os.strerror(e.errno) if e.errno and e.errno > 0 else e}",
                        hint="--node-rank 0 goes to the host that has the address of --master-addr",
                    ) from e
                await asyncio.sleep(_PAUSE_S)
        at = [listening.getsockname()[0] for listening in self._server.sockets]
        if all(map(_is_loopback, at)) and not _is_loopback(self._address):
            self._server.close()
            raise UnhangError(
                f"{self._address} is {at[0]} on this host: the others would not reach it", hint="--master-addr with its address in their network"
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def wait_for_hosts(self, least: int, limit_s: float = JOIN_S) -> tuple[Host, ...]:
        """The hosts by their node ranks, as soon as all are here, or `least` of them when the time is over. Raises UnhangError."""
        begun = noted_s = time.monotonic()
        while (missing := self._missing()) and time.monotonic() < begun + limit_s:
            await asyncio.sleep(0.1)
            if time.monotonic() > noted_s + _TELL_S:
                noted_s = time.monotonic()
                self._tell(f"waiting for node rank {missing}: they connect to {self._address}:{self._port}")
        if len(self._names) < least:
            raise UnhangError(
                f"node rank {missing} did not join within {limit_s:.0f} s", hint=f"can they connect to {self._address}, port {self._port}?"
            )
        # Containers may all have one name.
        alike = len(set(self._names.values())) < len(self._names)
        return tuple(Host(name=f"{name}-{n}" if alike else name, login=str(n)) for n, name in sorted(self._names.items()))

    def _missing(self) -> str:
        """Those that have never come, or have gone again."""
        for number in [n for n, writer in self._writers.items() if not _is_open(writer)]:
            self._forget(number)
        return ", ".join(str(n) for n in range(self._nodes) if n not in self._names)

    def _forget(self, number: int) -> None:
        self._empty(self._queues[number])
        for known in (self._writers, self._process_of_rank, self._names):
            known.pop(number, None)

    @staticmethod
    def _empty(queue: asyncio.Queue[_Connection]) -> None:
        while not queue.empty():
            queue.get_nowait()[1].close()

    def pipes(self, hosts: Sequence[Host]) -> list[Pipe]:
        """To some of these hosts."""
        argv, environ = _agent(self._python, self._address)
        return [Program(argv, [h], environ=environ) if h.login == "0" else _Joined(h, self._queues[int(h.login)]) for h in hosts]

    async def announce_end(self, exitcode: int, says: str) -> None:
        """Tell the hosts that connect within some seconds how it ended."""
        self._end = {"end": exitcode, "says": says[:_MAX_SAID_CHARS]}
        for queue in self._queues.values():
            self._empty(queue)
        until = time.monotonic() + _LEAVE_S
        while self._process_of_rank and time.monotonic() < until:
            await asyncio.sleep(0.1)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._shaking.locked():
            writer.close()
            return
        async with self._shaking:
            try:
                await asyncio.wait_for(self._shake(reader, writer), _SHAKE_S)
            except (asyncio.TimeoutError, OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
                writer.close()

    async def _shake(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ours = secrets.token_hex(16)
        writer.write(b"%s\n" % json.dumps({"number": ours}).encode())
        said = json.loads(await reader.readline())
        rank, process, theirs, name = int(said["node_rank"]), str(said["process"]), _number(said["number"]), str(said["name"])[:64]
        where = writer.get_extra_info("peername")[0]
        if not hmac.compare_digest(_proof(self._secret, "joins", ours, theirs, rank, process, said.get("signal", 0)), str(said["proof"])):
            self._refuse(writer, where, f"{where} has another {SECRET}", {"refused": f"it has another {SECRET}"})
            return
        if said.get("signal"):
            self._tell(f"interrupted on {name}")
            self._forget(rank)
            self.interrupt(signal.Signals(said["signal"]))
            writer.close()
            return
        known = {"proof": _proof(self._secret, "takes", theirs, ours, rank)}
        before = self._writers.get(rank)
        if rank not in self._queues:
            why = f"there are only {self._nodes} hosts, and 0 is the first one"
        elif self._process_of_rank.get(rank, process) != process and before is not None and _is_open(before):
            why = f"node rank {rank} is {self._names[rank]}'s already"
        elif self._end is not None:
            self._forget(rank)
            self._answer(writer, known | self._end)
            return
        else:
            self._forget(rank)
            self._names[rank], self._process_of_rank[rank], self._writers[rank] = name, process, writer
            _keep_alive(writer.get_extra_info("socket"))
            writer.write(b"%s\n" % json.dumps(known).encode())
            self._queues[rank].put_nowait((reader, writer))
            return
        self._refuse(writer, f"{where} {rank}", f"{name} ({where}): {why}", known | {"refused": why})

    def _refuse(self, writer: asyncio.StreamWriter, whom: str, why: str, answer: Mapping[str, Any]) -> None:
        """Note each peer once: it may try again for ever."""
        if whom not in self._refused and len(self._refused) < _MOST_AT_ONCE:
            self._refused.add(whom)
            self._tell(f"refused: {why}")
        self._answer(writer, answer)

    def _answer(self, writer: asyncio.StreamWriter, answer: Mapping[str, Any]) -> None:
        writer.write(b"%s\n" % json.dumps(answer).encode())
        writer.close()


def _is_open(writer: asyncio.StreamWriter) -> bool:
    """Whether neither end has closed the connection."""
    connection = writer.get_extra_info("socket")
    try:
        return not writer.is_closing() and connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _ESTABLISHED
    except OSError:
        return False


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


class _Refused(Exception):
    """The first host does not take this one: its words."""


def join(address: str, port: int, node_rank: int, *, python: str, say: Callable[[str], None], limit_s: float = JOIN_S) -> tuple[int, str]:
    """Take part as this node rank until the first host says that it is over: the training's exit code, and its last words.

    Raises UnhangError where the first host cannot be reached or does not take this one.
    """
    known, process = secret(), secrets.token_hex(16)
    until, noted_s, was_there, why = time.monotonic() + limit_s, time.monotonic(), False, ""
    _end_by_signals()
    while time.monotonic() < until:
        try:
            peer = _connected(address, port, known, process, node_rank)
        except _Refused as e:
            raise UnhangError(f"{address}:{port} does not take node rank {node_rank}: {e}") from None
        except (OSError, ValueError) as e:
            why = getattr(e, "strerror", None) or str(e) or type(e).__name__
            if time.monotonic() > noted_s + _TELL_S:
                noted_s = time.monotonic()
                say(f"waiting for the first host at {address}:{port} ({why})")
            time.sleep(_PAUSE_S)
            continue
        if isinstance(peer, tuple):
            return peer
        if not was_there:
            say(f"joined {address}:{port} as node rank {node_rank}: the training's output and verdict appear there")
        was_there = True
        with peer, _started(peer, python) as agent:
            try:
                _wait_for_end(peer, agent)
            except SystemExit as e:
                with contextlib.suppress(OSError, ValueError, _Refused):
                    _connected(address, port, known, process, node_rank, number=int(str(e.code)) - 128)
                raise
        time.sleep(_PAUSE_S)
        until, noted_s = time.monotonic() + _AGAIN_S, time.monotonic()
    raise UnhangError(f"the first host at {address}:{port} does not answer: {why}")


def _connected(address: str, port: int, known: bytes, process: str, node_rank: int, *, number: int = 0) -> socket.socket | tuple[int, str]:
    """A connection at whose other end an agent is expected, or the end of it all. Raises OSError or ValueError for what is no answer, _Refused.

    `number` tells of a signal that ends this process: nothing is answered to it.
    """
    peer = socket.create_connection((address, port), timeout=_SHAKE_S)
    try:
        theirs, ours = _number(_line(peer).get("number")), secrets.token_hex(16)
        said = {"node_rank": node_rank, "process": process, "name": socket.gethostname(), "number": ours, "signal": number}
        peer.sendall(json.dumps({**said, "proof": _proof(known, "joins", theirs, ours, node_rank, process, number)}).encode() + b"\n")
        answer = _line(peer)
        is_known = hmac.compare_digest(_proof(known, "takes", ours, theirs, node_rank), str(answer.get("proof", "")))
        if "refused" in answer or not is_known:
            raise _Refused(str(answer.get("refused", f"it has another {SECRET}"))[:_MAX_SAID_CHARS])
        if "end" in answer:
            peer.close()
            return int(answer["end"]), str(answer.get("says", ""))
        peer.settimeout(None)
        _keep_alive(peer)
    except BaseException:
        peer.close()
        raise
    return peer


def _line(peer: socket.socket) -> dict[str, Any]:
    """By single bytes: what follows is the agent's."""
    data = b""
    while not data.endswith(b"\n"):
        byte = peer.recv(1)
        if not byte or len(data) > _MAX_LINE_BYTES:
            raise ConnectionError("the other end closed the connection")
        data += byte
    if not isinstance(found := json.loads(data), dict):
        raise ValueError("this is no unhang")
    return found


@contextlib.contextmanager
def _started(peer: socket.socket, python: str) -> Iterator[subprocess.Popen[bytes]]:
    """An agent that speaks through this connection, for as long as it and what it has started live; whatever ends this process ends them in order."""
    argv, environ = _agent(python, peer.getsockname()[0])
    try:
        agent = subprocess.Popen(argv, stdin=peer.fileno(), stdout=peer.fileno(), env=environ, start_new_session=True)
    except OSError as e:
        raise UnhangError(f"cannot start {python}: {e.strerror}") from e
    try:
        yield agent
    finally:
        with contextlib.suppress(OSError):
            peer.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(subprocess.TimeoutExpired):
            agent.wait(_END_S)
        agent.kill()
        agent.wait()


def _wait_for_end(peer: socket.socket, agent: subprocess.Popen[bytes]) -> None:
    """Until the other end has closed it, or the agent has ended."""
    closing = select.poll()
    closing.register(peer, select.POLLRDHUP)
    while agent.poll() is None and not closing.poll(500):
        pass


def _end_by_signals() -> None:
    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, leave)
