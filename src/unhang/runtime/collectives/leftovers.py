"""What calls leave in the store for ranks that come late, and when nobody can ask for it any more: all ranks have come to a later call."""

from __future__ import annotations

from unhang.runtime.collectives.board import Board


class Leftovers:
    """Of one rank: each takes away what it has written itself, or has been one to decide."""

    def __init__(self) -> None:
        self._keys: dict[str, None] = {}

    def add(self, *keys: str) -> None:
        self._keys.update(dict.fromkeys(keys))

    def all_came(self, board: Board) -> None:
        """To the call that this rank is in: no rank is in one before it. Raises StoreLost."""
        if self._keys:
            # Another thread may add some.
            keys, self._keys = self._keys, {}
            board.forget(list(keys))
