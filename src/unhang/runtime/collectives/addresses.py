"""Where the ranks of a lane over Gloo read each other's addresses.

Torch's own stores wait in C++, deaf to everything, and keep the connection from all others. Here whoever waits for an address goes on listening: who
has been interrupted, or has failed, never tells one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from unhang.runtime.collectives.board import Board

_LOOKS_EVERY_S = 0.25


class Addresses(dist.Store):  # type: ignore[misc]
    """Under `key` on the board. Gloo asks in the thread that makes the group, and what `hears` raises comes out of there (torch 2.4 to 2.15)."""

    def __init__(self, board: Board, key: str, within_s: float, hears: Callable[[], object]) -> None:
        super().__init__()
        self._board, self._key, self._within_s = board, key, within_s
        self._hears: Callable[[], object] | None = hears
        # Gloo waits for each, and then asks for it.
        self._found: dict[str, bytes] = {}

    def connected(self) -> None:
        """Nobody is asked any more. What listens holds the lane, and would keep its sockets."""
        self._hears = None
        self._found.clear()

    def set(self, key: str, value: Any) -> None:
        self._board.put(f"{self._key}/{key}", value)

    def get(self, key: str) -> bytes:
        if key in self._found:
            return self._found.pop(key)
        until = time.monotonic() + self._within_s
        while (found := self._board.wait(f"{self._key}/{key}", _LOOKS_EVERY_S)) is None:
            if self._hears is not None:
                self._hears()
            if time.monotonic() > until:
                raise RuntimeError(f"rank {key.rpartition('/')[2]} of the group has told no address within {self._within_s:g} s")
        return found

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            self._found[key] = self.get(key)
