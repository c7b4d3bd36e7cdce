"""The Unix socket to which the attached processes report.

It lies in a directory that only its user can enter, the kernel's word for the peer (SO_PEERCRED) is checked, and the first
message must carry this run's token. Whatever else arrives is refused and reported; nothing listens on a network.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import hmac
import os
import secrets
import socket
import struct
import tempfile
from collections.abc import Callable
from typing import Any, Protocol

from unhang import fsio
from unhang.attach import protocol

Message = dict[str, Any]

HELLO_TIMEOUT_S = 10.0
# What taking in fields of the wrong type or shape raises.
_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)


class Peer:
    """One attached process. `hello` is its first message, `pid` the kernel's word for it."""

    def __init__(self, sock: socket.socket, pid: int, hello: Message) -> None:
        self._sock = sock
        self.pid = pid
        self.hello = hello

    async def send(self, kind: str, **fields: object) -> None:
        """Send one message; a process that is gone is no error."""
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().sock_sendall(self._sock, protocol.encode(kind, **fields))

    def send_stdio(self, out: int, err: int) -> None:
        """Hand the process the two file descriptors that become its stdout and stderr. Raises OSError."""
        # The socket is non-blocking and has carried nothing yet: 30 bytes fit.
        self._sock.sendmsg([protocol.encode("stdio")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [out, err]))])


class Handler(Protocol):
    """What the listener calls. `gone` follows the last message of every peer that was `arrived`."""

    def arrived(self, peer: Peer) -> None: ...
    def message(self, peer: Peer, message: Message) -> None: ...
    def gone(self, peer: Peer) -> None: ...


class Tasks(set["asyncio.Task[None]"]):
    """The asyncio tasks that run; `end` cancels them and waits for them."""

    def start(self, coroutine: Any, done: Callable[[asyncio.Task[None]], object] | None = None) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(coroutine)
        self.add(task)
        task.add_done_callback(self.discard)
        if done is not None:
            task.add_done_callback(done)

    async def end(self) -> None:
        for task in self:
            task.cancel()
        await asyncio.gather(*self, return_exceptions=True)


class Listener:
    """Serve with `async with Listener(handler, refused) as listener:`; `listener.environment` attaches a process to it."""

    def __init__(self, handler: Handler, refused: Callable[[str], None]) -> None:
        self._handler = handler
        self._refused = refused
        self._token = secrets.token_hex(16)
        self._tasks = Tasks()

    async def __aenter__(self) -> Listener:
        # The path of a Unix socket has at most 107 bytes: TMPDIR may be too long for it.
        base = tempfile.gettempdir()
        base = base if len(base) < 70 else "/tmp"
        self._directory = contextlib.ExitStack()
        self._path = self._directory.enter_context(fsio.temporary_directory(base=base)) / "socket"
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._server.bind(str(self._path))
        self._path.chmod(0o600)
        self._server.listen(1024)
        self._tasks.start(self._accept())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.end()
        self._server.close()
        self._directory.close()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that attach a process to this listener."""
        return {
            protocol.ENV_SWITCH: "1",
            protocol.ENV_SOCKET: str(self._path),
            protocol.ENV_TOKEN: self._token,
            protocol.ENV_SUPERVISOR: str(os.getpid()),
        }

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(self._server)
            except OSError as e:
                self._refused(f"accept failed: {e}")
                await asyncio.sleep(1.0)
                continue
            sock.setblocking(False)
            self._tasks.start(self._serve(sock))

    async def _serve(self, sock: socket.socket) -> None:
        peer: Peer | None = None
        try:
            pid, uid = _credentials(sock)
            if uid not in (os.getuid(), 0):
                self._refused(f"process {pid} of user {uid} is not ours")
                return
            lines = _Lines(sock)
            try:
                hello = self._check(await asyncio.wait_for(lines.next(), HELLO_TIMEOUT_S))
            except Exception as e:
                if isinstance(e, OSError) and not isinstance(e, asyncio.TimeoutError):
                    raise
                why = str(e) or "said nothing"
                self._refused(f"process {pid}: {why}")
                with contextlib.suppress(OSError):
                    sock.send(protocol.encode("refused", why=why))
                return
            if hello is None:
                return
            peer = Peer(sock, pid, hello)
            self._handler.arrived(peer)
            while (line := await lines.next()) is not None:
                try:
                    message = protocol.decode(line)
                except ValueError as e:
                    self._refused(f"process {pid}: {e}")
                    continue
                try:
                    self._handler.message(peer, message)
                except _MALFORMED as e:
                    self._refused(f"process {pid}: malformed {message['m']!r}: {type(e).__name__}: {e}")
        except _MALFORMED as e:
            self._refused(f"{type(e).__name__}: {e}")
        except OSError:
            pass
        finally:
            sock.close()
            if peer is not None:
                self._handler.gone(peer)

    def _check(self, line: bytes | None) -> Message | None:
        if line is None:
            return None
        hello = protocol.decode(line)
        if hello["m"] != "hello" or not hmac.compare_digest(str(hello.get("token")).encode(), self._token.encode()):
            raise ValueError("does not belong to this run")
        if hello.get("v") != protocol.VERSION:
            raise ValueError(f"speaks version {hello.get('v')!r} of the protocol, not {protocol.VERSION}")
        return dict(hello)


class _Lines:
    """The lines that arrive on a socket. `next` raises ValueError for one that is too long."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray()
        self._searched = 0

    async def next(self) -> bytes | None:
        loop = asyncio.get_running_loop()
        while True:
            end = self._buffer.find(b"\n", self._searched)
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                self._searched = 0
                return line
            self._searched = len(self._buffer)
            if self._searched > protocol.MAX_MESSAGE_BYTES:
                raise ValueError(f"a message of more than {protocol.MAX_MESSAGE_BYTES} bytes")
            data = await loop.sock_recv(self._sock, 1 << 16)
            if not data:
                return None
            self._buffer += data


def _credentials(sock: socket.socket) -> tuple[int, int]:
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return pid, uid
