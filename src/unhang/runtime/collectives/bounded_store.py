"""The store beside all groups, by which ranks agree: no call blocks longer than it was told, and what is decided once is decided for all.

A store is not poisoned when a group is. The connection is our own: a client of TCPStore serves one call at a time, and a long wait of torch's would
hold ours up. It is given up where the server says nothing. A server that has ended is noticed at once. One that stands still (SIGSTOP, a host that
froze, a network that forgets) is not: the kernel goes on taking what is sent to it, and the client waits for the answer for ever, whatever timeout
it was given.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist

from unhang.errors import StoreLost
from unhang.runtime.collectives import shutdown

# Asking takes 50 us on one host. What is decided soon is learned at once; for long waits a thousand ranks ask one server.
_EAGER_S = 0.005
_LAZY_S = 0.1
# Nobody says this.
_NOTHING = b"\0nothing"
# The server answers in 50 us, and a crowd of a thousand ranks in less than a second. Opening a lane may take half of this.
SILENT_S = 60.0
_LOOKS_EVERY_S = 1.0
# At the end of the process, before the rest of what closes.
_ANSWERS_S = 2.0

# By the server's port: whoever tries to connect to one that does not answer holds up nobody else.
_connecting: dict[int, threading.Lock] = {}
_watched: weakref.WeakSet[Connection] = weakref.WeakSet()
_watcher: threading.Thread | None = None


class BoundedStore:
    """Keys under `prefix` in a store of torch's (TCPStore, FileStore, HashStore, or a PrefixStore over one)."""

    def __init__(self, connected: Connection, prefix: str) -> None:
        self._connection = connected
        # Also for process groups that meet here.
        self.store: Any = dist.PrefixStore(prefix, connected.store)
        self.name = prefix
        self._waits_for = "", 0.0

    @classmethod
    def beside(cls, prefix: str) -> BoundedStore:
        """In the store of the default group. Raises StoreLost where there is none."""
        from torch.distributed.distributed_c10d import _get_default_store

        try:
            return cls(connect(_get_default_store()), prefix)
        except StoreLost:
            raise
        except (RuntimeError, ValueError) as e:
            raise StoreLost(f"the store of torch.distributed cannot be reached: {first_line(e)}") from e

    def under(self, name: str) -> BoundedStore:
        """Another one, by the same connection."""
        return BoundedStore(self._connection, f"{self.name}/{name}")

    def put(self, key: str, value: bytes) -> None:
        self._asked(lambda: self.store.set(key, value))

    def count(self, key: str, by: int = 1) -> int:
        """Adds, and returns the sum."""
        return int(self._asked(lambda: self.store.add(key, by)))

    def decide(self, key: str, value: bytes) -> bytes:
        """`value` where nobody has decided before, else what was decided. `value` must not be empty."""
        return bytes(self._asked(lambda: self.store.compare_set(key, "", value)))

    def look(self, key: str) -> bytes | None:
        """What stands there now; never waits."""
        # To check and then to get would wait for what is forgotten in between. Of a key that is not there a store returns what was expected of it.
        found = bytes(self._asked(lambda: self.store.compare_set(key, _NOTHING, _NOTHING)))
        return None if found == _NOTHING else found

    def look_at(self, keys: Sequence[str]) -> list[bytes | None]:
        return [self.look(key) for key in keys]

    def all_of(self, keys: Sequence[str]) -> list[bytes]:
        """Of keys that are known to be there."""
        return [bytes(v) for v in self._asked(lambda: self.store.multi_get(list(keys)))]

    def wait(self, key: str, timeout_s: float) -> bytes | None:
        """What stands there as soon as it does; None after `timeout_s`."""
        began = time.monotonic()
        # Whoever waits looks around again and again, and does not begin to be eager anew: a hundred questions a second, by which a rank that waits
        # would be taken for one that executes.
        before, since = self._waits_for
        if before != key:
            self._waits_for = key, (since := began)
        while (found := self.look(key)) is None:
            # torch's own wait writes two lines of warnings to stderr whenever it times out, and keeps all others of this process from the store.
            now = time.monotonic()
            if now - began >= timeout_s:
                return None
            if now - since > _EAGER_S:
                time.sleep(min(_LAZY_S, (now - since) / 8, timeout_s - now + began))
        return found

    def forget(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._asked(functools.partial(self.store.delete_key, key))

    def _asked(self, call: Any) -> Any:
        try:
            with self._connection.asks():
                return call()
        except RuntimeError as e:
            raise StoreLost(f"the store of torch.distributed no longer answers: {self._connection.why(e)}") from e


class Leftovers:
    """What calls leave in the store for ranks that come late, until all ranks have come to a later call and nobody can ask for it any more.

    Of one rank: each takes away what it has written itself, or has been one to decide.
    """

    def __init__(self) -> None:
        self._keys: dict[str, None] = {}

    def add(self, *keys: str) -> None:
        self._keys.update(dict.fromkeys(keys))

    def all_came(self, board: BoundedStore) -> None:
        """To the call that this rank is in: no rank is in one before it. Raises StoreLost."""
        if self._keys:
            # Another thread may add some.
            keys, self._keys = self._keys, {}
            board.forget(list(keys))


class Connection:
    """`store` over a connection that nobody else uses, where torch can make one (2.5 and newer)."""

    def __init__(self, store: Any, fd: int | None = None) -> None:
        """`fd`: of its socket. Without, nothing is given up."""
        self.store = store
        self.given_up = False
        self._fd = fd
        # By thread. A process that stands still itself counts no time: what is counted is how often the watcher has found the same one.
        self.asking: dict[int, object] = {}
        if fd is not None:
            _watch(self)

    @contextmanager
    def asks(self) -> Iterator[None]:
        """Around one call that waits for the server."""
        who = threading.get_ident()
        self.asking[who] = object()
        try:
            with shutdown.inside_torch():
                yield
        finally:
            self.asking.pop(who, None)

    def why(self, error: BaseException) -> str:
        if self.given_up:
            return f"its server ({_whose()}) has said nothing for {SILENT_S:g} s: it was stopped, or its host is gone"
        if _port(self.store):
            return f"its server ({_whose()}) has ended or closed the connection, or the way to it is cut ({first_line(error)})"
        return first_line(error)

    def give_up(self) -> None:
        """Whoever waits for an answer gets an error, and so does everybody after."""
        self.given_up = True
        if self._fd is not None:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._fd)) as connected:
                connected.shutdown(socket.SHUT_RDWR)
            self._fd = None


def connect(store: Any) -> Connection:
    """Another connection to the server of `store`. Raises StoreLost, RuntimeError or ValueError where it does not answer."""
    port = _port(store)

    def connects() -> Connection:
        with _connecting.setdefault(port, threading.Lock()):
            # To connect to a server that is gone is tried for as long as groups wait, 30 minutes maybe; the connection that there is knows at once.
            store.check(["unhang"])
            # Older torch shares the one connection: what others wait for then holds us up, and the reverse. It is not ours to give up.
            if not hasattr(store, "clone"):
                return Connection(store)
            before = _sockets_to(port)
            own = store.clone()
            made = _sockets_to(port) - before
            return Connection(own, made.pop() if len(made) == 1 else None)

    return _within(SILENT_S, connects)


def _within(seconds: float, connects: Callable[[], Connection]) -> Connection:
    made: list[Connection] = []
    raised: list[Exception] = []

    def run() -> None:
        try:
            with shutdown.inside_torch():
                made.append(connects())
        except Exception as e:
            raised.append(e)

    thread = threading.Thread(target=run, name="unhang-connects", daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    if not made:
        # Or a call of the training's own holds the connection up: which of them is not known here.
        raise StoreLost(f"no connection to the store of torch.distributed within {seconds:g} s")
    return made[0]


def _whose() -> str:
    """Process, where nobody has made a store of his own."""
    return f"usually in {'the launcher' if os.environ.get('TORCHELASTIC_USE_AGENT_STORE') == 'True' else 'rank 0'}'s process"


def _port(store: Any) -> int:
    """Of its server; 0 where it has none."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return int(getattr(store, "port", 0))


def _sockets_to(port: int) -> set[int]:
    """The descriptors of this process's connections to the server."""
    found = set()
    for fd in [int(entry.name) for entry in Path("/dev/fd").iterdir()] if port else ():
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                with socket.socket(fileno=os.dup(fd)) as connected:
                    if connected.family in (socket.AF_INET, socket.AF_INET6) and connected.getpeername()[1] == port:
                        found.add(fd)
    return found


def _watch(connection: Connection) -> None:
    global _watcher
    _watched.add(connection)
    if _watcher is None:
        _watcher = threading.Thread(target=_watches, name="unhang-store", daemon=True)
        _watcher.start()


def _watches() -> None:
    silent: dict[object, int] = {}
    while not shutdown.ended.wait(_LOOKS_EVERY_S):
        asking = [(connection, call) for connection in list(_watched) for call in list(connection.asking.values())]
        silent = {call: silent.get(call, 0) + 1 for _, call in asking}
        for connection, call in asking:
            if silent[call] * _LOOKS_EVERY_S >= SILENT_S:
                connection.give_up()


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _close(until: float) -> None:
    """Nobody asks any more. Whoever still waits for an answer gets an error, and stays where it is then."""
    if not shutdown.all_outside(until - _ANSWERS_S):
        for connection in list(_watched):
            if connection.asking:
                connection.give_up()
        shutdown.all_outside(until - _ANSWERS_S / 2)


def _after_fork() -> None:
    global _watcher
    # A child has neither the thread nor the connections.
    _watcher = None
    _connecting.clear()
    _watched.clear()


os.register_at_fork(after_in_child=_after_fork)
shutdown.at_end(_close)
