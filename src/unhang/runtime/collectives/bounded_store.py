"""The store beside all groups, by which ranks agree: no call blocks longer than it was told, and what is decided once is decided for all.

A store is not poisoned when a group is. The connection is our own: a client of TCPStore serves one call at a time, and a long wait of torch's would
hold ours up.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from unhang.errors import StoreLost
from unhang.runtime.collectives import store_connection
from unhang.runtime.collectives.store_connection import Connection

# Asking takes 50 us on one host. What is decided soon is learned at once; for long waits a thousand ranks ask one server.
_EAGER_S = 0.005
_LAZY_S = 0.1
# Nobody says this.
_NOTHING = b"\0nothing"


class BoundedStore:
    """Keys under `prefix` in a store of torch's (TCPStore, FileStore, HashStore, or a PrefixStore over one)."""

    def __init__(self, connected: Connection, prefix: str) -> None:
        self._connection = connected
        self._store = dist.PrefixStore(prefix, connected.store)
        self.name = prefix
        self._waits_for = "", 0.0

    @classmethod
    def beside(cls, prefix: str) -> BoundedStore:
        """In the store of the default group. Raises StoreLost where there is none."""
        from torch.distributed.distributed_c10d import _get_default_store

        try:
            return cls(store_connection.to(_get_default_store()), prefix)
        except StoreLost:
            raise
        except (RuntimeError, ValueError) as e:
            raise StoreLost(f"the store of torch.distributed cannot be reached: {store_connection.first_line(e)}") from e

    def under(self, name: str) -> BoundedStore:
        """Another one, by the same connection."""
        return BoundedStore(self._connection, f"{self.name}/{name}")

    @property
    def store(self) -> Any:
        """For process groups that meet here."""
        return self._store

    def put(self, key: str, value: bytes) -> None:
        self._asked(lambda: self._store.set(key, value))

    def count(self, key: str, by: int = 1) -> int:
        """Adds, and returns the sum."""
        return int(self._asked(lambda: self._store.add(key, by)))

    def decide(self, key: str, value: bytes) -> bytes:
        """`value` where nobody has decided before, else what was decided. `value` must not be empty."""
        return bytes(self._asked(lambda: self._store.compare_set(key, "", value)))

    def look(self, key: str) -> bytes | None:
        """What stands there now; never waits."""
        # To check and then to get would wait for what is forgotten in between. Of a key that is not there a store returns what was expected of it.
        found = bytes(self._asked(lambda: self._store.compare_set(key, _NOTHING, _NOTHING)))
        return None if found == _NOTHING else found

    def look_at(self, keys: Sequence[str]) -> list[bytes | None]:
        return [self.look(key) for key in keys]

    def all_of(self, keys: Sequence[str]) -> list[bytes]:
        """Of keys that are known to be there."""
        return [bytes(v) for v in self._asked(lambda: self._store.multi_get(list(keys)))]

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
            self._asked(functools.partial(self._store.delete_key, key))

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
