"""Asking a running job: NCCL's RAS protocol, lines of text over TCP, with every wait and every size bounded; and answers that were kept in files.

What may surprise: all processes of a host listen on the same port (SO_REUSEPORT), and the kernel picks one for each connection. A process that is
stopped is picked like any other and never answers, so a greeting that is not answered within a second is tried again on a new connection. RAS
answers once and closes. Before 2.28.7 it knows no JSON and says so on the same connection, which goes on in text. Commands that change the job
(CONTROL, 2.31) are never sent.
"""

from __future__ import annotations

import math
import os
import re
import socket
import threading
import time
from pathlib import Path
from typing import Any

from unhang.errors import RecordError
from unhang.model import frozen
from unhang.ras import json_answer, text_answer
from unhang.ras.model import Format, Report

# A rank of a JSON answer is about 600 bytes: 128 MiB are 200,000 of them, ten communicators on each of 20,000 GPUs.
MAX_BYTES = 128 * 1024 * 1024

DEFAULT_HOST = "localhost"
DEFAULT_PORT = 28028
# All versions so far (2.24 to 2.32) speak 2, and none looks at what the client says.
PROTOCOL = 2
# NCCL's own client gives a process one second to answer the greeting.
GREETING_TIMEOUT_S = 1.0
# NCCL's RAS_COLLECTIVE_EXTRA_TIMEOUT_SEC: how long it may go on after the time that it was given.
EXTRA_S = 5.0
_MAX_LINE_BYTES = 4096
_CHUNK_BYTES = 1 << 16
_ABSENT = "no NCCL job runs on that host, it is older than NCCL 2.24, NCCL_RAS_ENABLE=0 is set, or NCCL_RAS_ADDR is another address"


@frozen
class Address:
    """Where a job's RAS listens. `host` without brackets."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


# What the server said before the answer, where somebody kept a whole conversation (`nc localhost 28028 > file`).
_BEFORE = re.compile(rb"\s*(?:SERVER PROTOCOL [^\n]*\n|OK\r?\n|ERROR: Unknown command [^\n]*\n)", re.IGNORECASE)


def load(path: Path) -> Report:
    """Read an answer that was kept in a file. Raises RecordError where it is missing, no file, larger than `MAX_BYTES`, or no answer of RAS."""
    try:
        # Devices and pipes have no end, whatever their size says.
        if path.exists() and not path.is_file():
            raise RecordError(f"{path} is no regular file")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as e:
        raise RecordError(f"cannot read {path}: {getattr(e, 'strerror', None) or e}") from e
    if len(data) > MAX_BYTES:
        raise RecordError(f"{path} is larger than any answer of NCCL's RAS (more than {MAX_BYTES} bytes)")
    return parse(data, source=str(path))


def parse(data: bytes, *, source: str = "the answer", cut: str | None = None) -> Report:
    """Bring an answer into one shape, JSON (2.28.7 and later) or text (all versions).

    `cut`: why no more came, if the reader knows that something is missing. Text that ends early is read as far as it goes, and says so in
    `Report.cut`; JSON is read whole or not at all. Raises RecordError where it is no answer of RAS, or damaged. Source: NCCL,
    src/ras/client_support.cc.
    """
    start = 0
    while before := _BEFORE.match(data, start):
        start = before.end()
    body = data[start:].strip()
    if not body:
        raise RecordError(f"{source} is empty" + (f": {cut}" if cut else ""), cause="the process that was asked ended, or is stopped")
    if body.startswith(b"{"):
        return json_answer.parse(body, source=source, cut=cut)
    return text_answer.parse(body, source=source, cut=cut)


@frozen
class Answer:
    """What the server sent, as it came. `cut`: why it is not whole."""

    source: str
    data: bytes
    cut: str | None = None

    @property
    def format(self) -> Format:
        return "json" if self.data.startswith(b"{") else "text"

    def report(self) -> Report:
        """The answer in one shape. Raises RecordError as `parse` does."""
        return parse(self.data, source=self.source, cut=self.cut)


class NoHost(RecordError):
    """The name is no host's."""


class _NoAnswer(RecordError):
    """The greeting was not answered in time: another process on the same port may."""


def address(text: str | None = None) -> Address:
    """Where to ask: `text`, else NCCL_RAS_ADDR, else localhost:28028. Takes HOST, HOST:PORT, :PORT, [IPV6]:PORT and a bare IPv6 address.

    "All addresses" (0.0.0.0, ::), which a job may listen on, is asked for on this host. NCCL_RAS_ADDR in NCCL's own files (/etc/nccl.conf) is not
    looked at. Raises RecordError where it is no address. Source: NCCL, src/ras/client_support.cc and src/misc/socket.cc.
    """
    given = (text if text is not None else os.environ.get("NCCL_RAS_ADDR", "")).strip()
    host, port = given, ""
    if given.startswith("["):
        host, closed, behind = given[1:].partition("]")
        port = behind.removeprefix(":")
        if not closed or not host or (behind and not (behind.startswith(":") and port)):
            raise _no_address(given)
    elif given.count(":") == 1:
        host, _, port = given.partition(":")
        if not port:
            raise _no_address(given)
    if port and not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) <= 65535):
        raise _no_address(given)
    if any(c.isspace() or not c.isprintable() for c in host) or "]" in host or "/" in host:
        raise _no_address(given)
    # As IDNA has it; the codec's own words for that help nobody.
    if host and ":" not in host and not all(0 < len(label) < 64 for label in host.removesuffix(".").split(".")):
        raise _no_address(given)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return Address(host=host or DEFAULT_HOST, port=int(port or DEFAULT_PORT))


def fetch(where: Address | None = None, *, peers_timeout_s: float = 5.0, connect_timeout_s: float = 5.0, total_timeout_s: float = 30.0) -> Answer:
    """Ask a running job how it is, and return what it sent, at most `MAX_BYTES`: JSON, or text from versions that have none.

    All times in seconds. `peers_timeout_s`: how long the process that is asked waits for the others of the job (whole seconds, rounded up; NCCL's
    default is 5); it may take `EXTRA_S` more, and so long is waited for the answer. `connect_timeout_s`: for finding a process that answers the
    greeting, over all addresses of the host, retries included. `total_timeout_s`: for everything.

    Text that ends early is returned with `cut`. Raises RecordError where nobody listens, nobody answers in time, it is no RAS server, or it sends
    without end. Source: NCCL, src/ras/client.cc and src/ras/client_support.cc.
    """
    where = where or address()
    peers_s = max(1, math.ceil(peers_timeout_s))
    end = time.monotonic() + total_timeout_s
    with _greeted(where, min(end, time.monotonic() + connect_timeout_s)) as line:
        line.order(f"TIMEOUT {peers_s}", _soon(end))
        line.order("SET FORMAT json", _soon(end))
        line.send("VERBOSE STATUS", _soon(end))
        data, cut = line.rest(min(end, time.monotonic() + peers_s + EXTRA_S + GREETING_TIMEOUT_S))
    if not data:
        raise RecordError(
            f"{where} did not answer: {cut or 'it closed the connection'}", cause="the process that was asked ended, or its RAS thread is stuck"
        )
    if data.startswith(b"ERROR"):
        raise RecordError(f"{where} refused: {_shown(data)}", cause="it speaks another version of NCCL's RAS protocol")
    return Answer(source=str(where), data=data, cut=cut)


class _Line:
    """One connection: lines out, lines in, each within its time."""

    def __init__(self, connection: socket.socket, where: Address) -> None:
        self._socket = connection
        self._where = where
        self._held = b""

    def __enter__(self) -> _Line:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def greet(self, end: float) -> None:
        """Exchange versions.

        Raises _NoAnswer where nothing comes in time, RecordError where something else does, OSError where the connection breaks.
        """
        try:
            self.send(f"CLIENT PROTOCOL {PROTOCOL}", end)
            said = self._answer(end)
        except TimeoutError as e:
            if not self._held:
                raise _NoAnswer(
                    f"{self._where} takes connections and does not answer", cause="the process that was asked is stopped, or is no NCCL job"
                ) from e
            said = self._held
        if said.upper().split()[:2] != [b"SERVER", b"PROTOCOL"]:
            raise RecordError(
                f"{self._where} is no RAS server: it says {_shown(said)}" if said else f"{self._where} is no RAS server: it closes the connection",
                cause="another program listens on that port",
            )

    def order(self, command: str, end: float) -> None:
        """Send a command that is answered by a line; older versions refuse it there. Raises RecordError where none comes."""
        try:
            self.send(command, end)
            said = self._answer(end)
        except (TimeoutError, OSError) as e:
            raise RecordError(f"{self._where} does not answer {command}: {_why(e)}") from e
        if not said:
            raise RecordError(f"{self._where} closed the connection at {command}", cause="the process that was asked ended")

    def send(self, command: str, end: float) -> None:
        """Send one line. Raises OSError."""
        self._socket.settimeout(_left(end))
        self._socket.sendall(f"{command}\n".encode("ascii"))

    def rest(self, end: float) -> tuple[bytes, str | None]:
        """All that comes until the server closes, and why that is not all. Raises RecordError where it is more than `MAX_BYTES`."""
        parts, size = [self._held], len(self._held)
        cut = None
        started = time.monotonic()
        while True:
            try:
                self._socket.settimeout(_left(end))
                part = self._socket.recv(_CHUNK_BYTES)
            except TimeoutError:
                cut = f"the answer did not end within {time.monotonic() - started:.1f} s"
                break
            except OSError as e:
                cut = f"the connection broke: {_why(e)}"
                break
            if not part:
                break
            parts.append(part)
            size += len(part)
            if size > MAX_BYTES:
                raise RecordError(f"{self._where} sends without end (more than {MAX_BYTES} bytes)", cause="another program listens on that port")
        return b"".join(parts), cut

    def _answer(self, end: float) -> bytes:
        """One line without its end; what there is where the server closes, b"" for nothing. Raises OSError."""
        while b"\n" not in self._held and len(self._held) < _MAX_LINE_BYTES:
            self._socket.settimeout(_left(end))
            part = self._socket.recv(_MAX_LINE_BYTES)
            if not part:
                said, self._held = self._held, b""
                return said
            self._held += part
        said, _, self._held = self._held.partition(b"\n")
        return said


def _greeted(where: Address, end: float) -> _Line:
    """A connection whose other end is RAS. Every address of the host in turn, and again where one was silent, until time is up."""
    found = _resolved(where, end)
    failed: RecordError | None = None
    while True:
        again = False
        for family, kind, protocol, _, sockaddr in found:
            try:
                return _one(where, family, kind, protocol, sockaddr, end)
            except _NoAnswer as e:
                again = True
                failed = e
            except RecordError as e:
                # A foreign server on one address says more than a refusal on the other.
                failed = e if failed is None or e.cause is not _ABSENT else failed
        if failed is not None and (not again or time.monotonic() >= end):
            raise failed


def _one(where: Address, family: int, kind: int, protocol: int, sockaddr: Any, end: float) -> _Line:
    try:
        connection = socket.socket(family, kind, protocol)
    except OSError as e:
        raise RecordError(f"cannot connect to {where}: {_why(e)}", cause=_ABSENT) from e
    try:
        connection.settimeout(_left(min(end, _soon(end))))
        connection.connect(sockaddr)
        line = _Line(connection, where)
        line.greet(_soon(end))
    except TimeoutError as e:
        connection.close()
        raise _NoAnswer(f"cannot connect to {where}: {_why(e)}", cause=_ABSENT) from e
    except OSError as e:
        connection.close()
        raise RecordError(f"cannot connect to {where}: {_why(e)}", cause=_ABSENT) from e
    except BaseException:
        connection.close()
        raise
    return line


def _resolved(where: Address, end: float) -> list[tuple[Any, ...]]:
    """The addresses of a host.

    A name server that does not answer blocks getaddrinfo for as long as it likes: it waits in a thread of its own.
    """
    found: list[tuple[Any, ...]] = []
    failed: list[Exception] = []

    def look_up() -> None:
        try:
            found.extend(socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError, ValueError) as e:
            failed.append(e)

    thread = threading.Thread(target=look_up, name="unhang-ras-resolve", daemon=True)
    thread.start()
    thread.join(max(0.0, end - time.monotonic()))
    if failed or not found:
        why = _why(failed[0]) if failed else "the name server does not answer"
        raise NoHost(f"cannot find the host {where.host!r}: {why}", cause="the name is misspelt, or unknown on this host")
    return list(found)


def _no_address(given: str) -> RecordError:
    return RecordError(
        f"{given[:200]!r} is no address of NCCL's RAS",
        cause="it is HOST:PORT or [IPV6]:PORT, with a port from 1 to 65535",
        hint=f"{DEFAULT_HOST}:{DEFAULT_PORT}",
    )


def _soon(end: float) -> float:
    return min(end, time.monotonic() + GREETING_TIMEOUT_S)


def _left(end: float) -> float:
    """Seconds until `end`. Raises TimeoutError where there are none: 0 would mean not to wait at all, and None for ever."""
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, UnicodeError):
        return "that cannot be the name of a host"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _shown(said: bytes) -> str:
    """The start of what a stranger said, fit for a terminal."""
    line = said[:80].split(b"\n")[0].strip()
    return repr(line.decode("ascii", "backslashreplace"))
