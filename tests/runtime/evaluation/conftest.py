"""The worlds of ranks of the collectives' tests."""

from tests.runtime.collectives.conftest import fresh, worlds

__all__ = ["fresh", "worlds"]
