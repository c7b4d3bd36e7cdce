"""Carries alerts to a webhook and a command, one after the other, from a thread of its own: whoever sends never waits.

A webhook's URL is a secret: whoever has it can write to the channel. No part of it is in what is said or raised here; not its host either, which
is all of the secret of a Lambda function's URL, of Pipedream or of ngrok.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import queue
import shlex
import shutil
import signal
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from unhang.diagnosis.redact import redact
from unhang.runtime import log

Message = Mapping[str, Any]

_QUEUED = 32
_ATTEMPTS = 3
_PAUSE_S = 2.0
_SOCKET_S = 4.0
_KEPT_BYTES = 400
_LOOK_S = 0.02
# With these it would be taken for a rank of the training, or would become one.
_OF_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


class NotDelivered(Exception):
    """Why, without a secret. `again`: whether it may pass another time."""

    def __init__(self, says: str, *, again: bool = True) -> None:
        super().__init__(says)
        self.again = again


class Sender(Protocol):
    """`name` is what it is called in a warning."""

    name: str

    def deliver(self, message: Message) -> None:
        """Raises NotDelivered."""
        ...


class Delivery:
    """One queue for all ways. What cannot be delivered is in the training's log, with the reason."""

    def __init__(self, ways: Sequence[Sender], *, pause_s: float = _PAUSE_S) -> None:
        self._ways, self._pause_s = ways, pause_s
        self._queue: queue.Queue[Message | None] = queue.Queue(_QUEUED)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="unhang alerts", daemon=True)
        self._thread.start()

    def send(self, message: Message) -> None:
        """Never waits."""
        try:
            self._queue.put_nowait(message)
        except queue.Full:
            self._lose(message, f"{_QUEUED} others wait before it")

    def close(self, until: float) -> None:
        """What is queued is delivered by `until` (time.monotonic), or not at all."""
        self._closing.set()
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=max(0.0, until - time.monotonic()))
        self._thread.join(max(0.0, until - time.monotonic()))
        while self._thread.is_alive():
            try:
                message = self._queue.get_nowait()
            except queue.Empty:
                return
            if message is not None:
                self._lose(message, "the training has ended first")

    def _lose(self, message: Message, why: str) -> None:
        for way in self._ways:
            not_delivered(way, why, message["says"])

    def _run(self) -> None:
        while (message := self._queue.get()) is not None:
            for way in self._ways:
                self._deliver(way, message)

    def _deliver(self, way: Sender, message: Message) -> None:
        for left in reversed(range(_ATTEMPTS)):
            try:
                way.deliver(message)
                return
            except NotDelivered as e:
                why, again = str(e), e.again
            except Exception as e:
                # Its text may hold anything.
                why, again = type(e).__name__, False
            if not left or not again:
                not_delivered(way, why, message["says"])
                return
            # Nobody comes back to it later when the training ends now.
            self._closing.wait(self._pause_s)


def not_delivered(way: Sender, why: str, lost: str) -> None:
    log.warning("an alert was not delivered by the %s (%s): %s", way.name, redact(why), lost)


class Command:
    """Gets each message as JSON on its standard input, without a shell, and is ended with its process group when its time is over.

    `argv`: words, or a line that is split as a shell would. Raises ValueError for what has no words.
    """

    def __init__(self, argv: str | Sequence[str], *, timeout_s: float) -> None:
        try:
            words = shlex.split(argv) if isinstance(argv, str) else [os.fspath(word) for word in argv]
        except (ValueError, TypeError):
            words = []
        if not words or not words[0]:
            raise ValueError("command is a list of words, or a line that shlex can split into words")
        self._argv, self._timeout_s = words, timeout_s
        # Words behind the first may be tokens.
        self._program = Path(words[0]).name
        self.name = f"command {self._program}"

    def __repr__(self) -> str:
        return f"Command({self._program!r}, …)"

    @property
    def found(self) -> bool:
        return shutil.which(self._argv[0]) is not None

    def deliver(self, message: Message) -> None:
        """Raises NotDelivered, with the last of what the command says."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("UNHANG_", "TORCHELASTIC_")) and k not in _OF_RANKS}
        try:
            process = subprocess.Popen(
                self._argv, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, start_new_session=True
            )
        except OSError as e:
            raise NotDelivered(str(e.strerror), again=False) from None
        assert process.stdin is not None and process.stdout is not None
        said, ended, until = b"", False, time.monotonic() + self._timeout_s
        try:
            # Far less than a pipe holds: nobody waits for a command that does not read.
            with contextlib.suppress(OSError), process.stdin as pipe:
                pipe.write(json.dumps(message).encode() + b"\n")
            # Never waited for: what has left the group may keep its end open.
            os.set_blocking(process.stdout.fileno(), False)
            while not ended and time.monotonic() < until:
                ended = _has_ended(process.pid)
                more = process.stdout.read(1 << 16)
                said = (said + (more or b""))[-_KEPT_BYTES:]
                if not more:
                    time.sleep(_LOOK_S)
        finally:
            # Not waited for yet, so that its number is still its own.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()
        text = f": {words}" if (words := " ".join(said.decode(errors="replace").split())) else ""
        if not ended:
            raise NotDelivered(f"it was ended after {self._timeout_s:g} s{text}", again=False)
        if process.returncode != 0:
            raise NotDelivered(f"it ended with {process.returncode}{text}")


def _has_ended(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        # The training ignores SIGCHLD: nothing is left to be waited for.
        return True


class Webhook:
    """Gets each message in a POST of JSON. Raises ValueError for what is no http or https URL."""

    name = "webhook"

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and parts.username is None
        except (ValueError, AttributeError, TypeError):
            good = False
        # Raised here, and not from what was raised, which may quote it.
        if not good or any(ord(c) <= 32 or ord(c) >= 127 for c in url):
            raise ValueError("webhook is an http or https URL without a user's name (what was given is not shown: it may be a secret)")
        self._url = url

    def __repr__(self) -> str:
        return "Webhook(…)"

    def deliver(self, message: Message) -> None:
        """Through the proxy of the environment where it names one. Raises NotDelivered."""
        headers = {"Content-Type": "application/json", "User-Agent": "unhang"}
        request = urllib.request.Request(self._url, json.dumps(message).encode(), headers, method="POST")
        try:
            urllib.request.build_opener(_NoRedirects).open(request, timeout=_SOCKET_S).close()
        except urllib.error.HTTPError as e:
            e.close()
            phrase = HTTPStatus(e.code).phrase if e.code in list(HTTPStatus) else ""
            more = ": redirects are not followed" if 300 <= e.code < 400 else ""
            raise NotDelivered(f"it answered {e.code} {phrase}".strip() + more, again=e.code >= 500 or e.code in (408, 429)) from None
        except (OSError, http.client.HTTPException, ValueError) as e:
            raise NotDelivered(_reason(e.reason if isinstance(e, urllib.error.URLError) else e)) from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Elsewhere nobody has promised to keep what is sent."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _reason(error: Any) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "its certificate is not trusted"
    if isinstance(error, TimeoutError):
        return f"no answer within {_SOCKET_S:g} s"
    # An OSError's own text names no URL; what others say may.
    said = getattr(error, "strerror", None)
    return f"{type(error).__name__}: {said}" if isinstance(error, OSError) and said else type(error).__name__
