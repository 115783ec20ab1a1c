"""What bounds comparisons of schemas: they come from clients, and a thread that compares cannot be ended."""

from __future__ import annotations

from typing import Final

from parley.pipeline.schemas.model import BadSchema

__all__ = ["DIFFERENCES_MAX", "STEPS_MAX", "Steps"]

DIFFERENCES_MAX: Final = 100
"""As many differences of two schemas are told, and kept."""
STEPS_MAX: Final = 500_000
"""Of one request, with all the earlier versions: a few seconds."""
_LIGHT: Final = 100
"""So many operations within a set or a text count as one step."""


class Steps:
    """Counts the comparisons of two parts, for all the comparisons of a request."""

    def __init__(self) -> None:
        self._left = STEPS_MAX

    def spend(self, steps: int = 1, *, light: int = 0) -> None:
        """Count steps, and operations that are much cheaper. Raises BadSchema after too many."""
        self._left -= steps + light // _LIGHT
        if self._left < 0:
            raise BadSchema("The schemas are too intricate to be compared")
