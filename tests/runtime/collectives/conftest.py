"""Worlds of ranks: shared ones for what leaves them as they were, fresh ones for faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.runtime.collectives.world import World, world_of


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], World]]:
    """Of any size, one for the whole module."""
    with ExitStack() as stack:
        made: dict[int, World] = {}

        def of(size: int) -> World:
            if size not in made:
                made[size] = stack.enter_context(world_of(size, tmp_path_factory.mktemp(f"world{size}")))
            return made[size]

        yield of


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Callable[[int], World]]:
    with ExitStack() as stack:
        yield lambda size, **options: stack.enter_context(world_of(size, tmp_path, **options))
