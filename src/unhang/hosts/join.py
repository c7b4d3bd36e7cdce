"""Hosts that come by themselves: the same command on each, the first one listens at the rendezvous' address, the others connect to it.

Both ends prove that they know the same secret (HMAC-SHA256 over the other's random number), before an agent is started at the joining end. What goes
through the connection afterwards is neither signed nor hidden, as all that torch itself sends between hosts. A host whose connection has ended
joins again: each attempt takes new ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from unhang.errors import UnhangError
from unhang.hosts import source
from unhang.hosts.hostlist import Host
from unhang.hosts.job import LEASE_S
from unhang.hosts.reach import Pipe, Program

SECRET = "UNHANG_TOKEN"
LEAST_SECRET = 16
# Images are pulled and environments made before: torch's store waits as long.
JOIN_S = 900.0
# A host that was there joins again within that time, or has left for good; the first one answers so long after the end.
_AGAIN_S, _LEAVE_S = 60.0, 10.0
_SHAKE_S, _TELL_S, _PAUSE_S = 5.0, 30.0, 1.0
_MAX_LINE_BYTES = 4096
_MOST_AT_ONCE = 256


def secret() -> bytes:
    """Raises UnhangError where there is none that is long enough."""
    given = os.environ.get(SECRET, "")
    if len(given) < LEAST_SECRET:
        raise UnhangError(
            f"{SECRET} is not set, or has less than {LEAST_SECRET} characters: by it the hosts know each other",
            hint=f"export {SECRET}=...  (the same on each host; openssl rand -hex 16)",
        )
    return given.encode()


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _proof(of: bytes, who: str, *numbers: object) -> str:
    return hmac.new(of, "\0".join(("unhang", who, *map(str, numbers))).encode(), "sha256").hexdigest()


class _Joined(Pipe):
    """The next connection of a host; the one that it was started with ends when it joins again."""

    def __init__(self, host: Host, queue: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
        super().__init__([host])
        self._queue = queue

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


class Meeting:
    """The first host's end: listens within `async with`; raises UnhangError where it cannot.

    `tell` gets a sentence about who is missing and who was refused.
    """

    def __init__(self, address: str, port: int, nodes: int, *, tell: Callable[[str], None]) -> None:
        self._address, self._port, self._nodes, self._tell = address, port, nodes, tell
        self._secret = secret()
        self._queues: dict[int, asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]]] = {n: asyncio.Queue(1) for n in range(1, nodes)}
        self._names: dict[int, str] = {0: socket.gethostname()}
        # Who told of each node rank: a second process with that number is another host.
        self._who: dict[int, str] = {}
        self._over: dict[str, Any] | None = None
        self._shaking = asyncio.Semaphore(_MOST_AT_ONCE)

    async def __aenter__(self) -> Meeting:
        try:
            self._server = await asyncio.start_server(self._met, self._address, self._port, limit=_MAX_LINE_BYTES)
        except OSError as e:
            raise UnhangError(
                f"cannot listen at {self._address}:{self._port}: {os.strerror(e.errno) if e.errno and e.errno > 0 else e}",
                hint="--node-rank 0 goes to the host that has the address of --master-addr",
            ) from e
        at = [listening.getsockname()[0] for listening in self._server.sockets]
        if all(map(_is_loopback, at)) and self._address != "localhost" and not _is_loopback(self._address):
            self._server.close()
            raise UnhangError(
                f"{self._address} is {at[0]} on this host: the others would not reach it", hint="--master-addr with its address in their network"
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def all_here(self, least: int, limit_s: float = JOIN_S) -> tuple[Host, ...]:
        """The hosts by their node ranks, as soon as all are here, or `least` of them when the time is over. Raises UnhangError."""
        begun = told = time.monotonic()
        while len(self._names) < self._nodes and time.monotonic() < begun + limit_s:
            await asyncio.sleep(0.1)
            if time.monotonic() > told + _TELL_S:
                told = time.monotonic()
                self._tell(f"waiting for node rank {self._missing}: they connect to {self._address}:{self._port}")
        if len(self._names) < least:
            raise UnhangError(
                f"node rank {self._missing} did not join within {limit_s:.0f} s", hint=f"can they connect to {self._address}, port {self._port}?"
            )
        names = list(self._names.values())
        # Containers may all have one name.
        called = {n: name if names.count(name) == 1 else f"{name}-{n}" for n, name in sorted(self._names.items())}
        return tuple(Host(name=called[n], login=str(n)) for n in called)

    @property
    def _missing(self) -> str:
        return ", ".join(str(n) for n in range(self._nodes) if n not in self._names)

    def pipes(self, hosts: Sequence[Host]) -> list[Pipe]:
        """To some of these hosts."""
        own = ["env", f"--unset={SECRET}", f"UNHANG_REACHED_AT={self._address}", sys.executable, "-u", "-c", source.LOADER]
        return [Program(own, [h]) if h.login == "0" else _Joined(h, self._queues[int(h.login)]) for h in hosts]

    async def leave(self, exitcode: int, says: str) -> None:
        """All hosts that ask within some seconds are told how it ended."""
        self._over = {"over": exitcode, "says": says}
        for queue in self._queues.values():
            while not queue.empty():
                queue.get_nowait()[1].close()
        until = time.monotonic() + _LEAVE_S
        while self._who and time.monotonic() < until:
            await asyncio.sleep(0.1)

    async def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self._shaking:
            try:
                await asyncio.wait_for(self._shake(reader, writer), _SHAKE_S)
            except (asyncio.TimeoutError, OSError, ValueError, KeyError, TypeError, AttributeError):
                writer.close()

    async def _shake(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ours = secrets.token_hex(16)
        writer.write(b"%s\n" % json.dumps({"unhang": 1, "number": ours}).encode())
        said = json.loads(await reader.readline())
        number, who, theirs = int(said["node_rank"]), str(said["who"]), str(said["number"])
        where = writer.get_extra_info("peername")[0]
        if not hmac.compare_digest(_proof(self._secret, "joins", ours, theirs, number, who), str(said["proof"])):
            self._tell(f"{where} has another {SECRET}: refused")
            self._answer(writer, {"refused": f"another {SECRET} than on the first host"})
            return
        proof = _proof(self._secret, "takes", theirs, ours, number)
        if number not in self._queues:
            why = f"node rank {number} is none of {self._nodes} hosts" if number else "node rank 0 is the first host's"
        elif self._who.setdefault(number, who) != who:
            why = f"node rank {number} is {self._names[number]}'s already"
        elif self._over is not None:
            del self._who[number]
            self._answer(writer, {"proof": proof, **self._over})
            return
        else:
            queue = self._queues[number]
            while not queue.empty():
                queue.get_nowait()[1].close()
            writer.write(b"%s\n" % json.dumps({"proof": proof}).encode())
            self._names[number] = str(said["name"])[:64]
            queue.put_nowait((reader, writer))
            return
        self._tell(f"{said['name'][:64]} ({where}): {why}")
        self._answer(writer, {"proof": proof, "refused": why})

    def _answer(self, writer: asyncio.StreamWriter, answer: dict[str, Any]) -> None:
        writer.write(b"%s\n" % json.dumps(answer).encode())
        writer.close()


class _Refused(Exception):
    """The first host does not take this one: its words."""


def join(address: str, port: int, node_rank: int, *, say: Callable[[str], None], limit_s: float = JOIN_S) -> tuple[int, str]:
    """Take part as this node rank until the first host says that it is over: the training's exit code, and its last words.

    Raises UnhangError where the first host cannot be reached or does not take this one.
    """
    proves, who = secret(), secrets.token_hex(16)
    agents: list[subprocess.Popen[bytes]] = []
    environ = {name: value for name, value in os.environ.items() if name != SECRET}
    until, told, was_there, why = time.monotonic() + limit_s, time.monotonic(), False, ""
    with _ended_with_us(agents):
        while time.monotonic() < until or any(agent.poll() is None for agent in agents):
            try:
                peer = _connected(address, port, proves, who, node_rank)
            except _Refused as e:
                raise UnhangError(f"{address}:{port} does not take node rank {node_rank}: {e}") from None
            except (OSError, ValueError) as e:
                why = getattr(e, "strerror", None) or str(e) or type(e).__name__
                if time.monotonic() > told + _TELL_S:
                    told = time.monotonic()
                    say(f"waiting for the first host at {address}:{port} ({why})")
                time.sleep(_PAUSE_S)
                continue
            if isinstance(peer, tuple):
                return peer
            with peer:
                if not was_there:
                    say(f"joined {address}:{port} as node rank {node_rank}: the training is followed and told there")
                was_there = True
                argv = [sys.executable, "-u", "-c", source.LOADER]
                at = {"UNHANG_REACHED_AT": peer.getsockname()[0]}
                agents.append(subprocess.Popen(argv, stdin=peer.fileno(), stdout=peer.fileno(), env={**environ, **at}, start_new_session=True))
                _wait_for_end(peer, agents[-1])
            # It is given as long as ranks that stand still.
            until, told = time.monotonic() + max(_AGAIN_S, LEASE_S), time.monotonic()
    raise UnhangError(f"the first host at {address}:{port} does not answer: {why}")


def _connected(address: str, port: int, proves: bytes, who: str, node_rank: int) -> socket.socket | tuple[int, str]:
    """A connection at whose other end an agent is expected, or the end of it all. Raises OSError or ValueError for what is no answer, _Refused."""
    peer = socket.create_connection((address, port), timeout=_SHAKE_S)
    try:
        theirs, ours = str(_line(peer).get("number")), secrets.token_hex(16)
        said = {"node_rank": node_rank, "who": who, "name": socket.gethostname(), "number": ours}
        peer.sendall(json.dumps({**said, "proof": _proof(proves, "joins", theirs, ours, node_rank, who)}).encode() + b"\n")
        answer = _line(peer)
        is_known = hmac.compare_digest(_proof(proves, "takes", ours, theirs, node_rank), str(answer.get("proof", "")))
        if "refused" in answer or not is_known:
            raise _Refused(str(answer.get("refused", f"it does not know this {SECRET}"))[:300])
        if "over" in answer:
            peer.close()
            return int(answer["over"]), str(answer.get("says", ""))
        peer.settimeout(None)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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


def _wait_for_end(peer: socket.socket, agent: subprocess.Popen[bytes]) -> None:
    """Until the other end has closed it: an agent stays as long as its training does."""
    closing = select.poll()
    closing.register(peer, select.POLLRDHUP)
    while agent.poll() is None and not closing.poll(500):
        pass


@contextlib.contextmanager
def _ended_with_us(agents: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Whoever ends this process ends its host's part: an agent takes its supervisor with it."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    try:
        yield
    finally:
        for agent in agents:
            agent.terminate()
        for agent in agents:
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(_LEAVE_S)
