"""Limits on comparisons of schemas, because schemas come from clients and a comparing thread cannot be stopped."""

from __future__ import annotations

from typing import Final

from parley.pipeline.schemas.model import BadSchema

DIFFERENCES_MAX: Final = 100
"""The maximum number of differences between two schemas that are kept and reported."""
STEPS_MAX: Final = 500_000
"""The maximum number of steps for one request, with all earlier versions: a few seconds."""
_LIGHT: Final = 100
"""The number of operations within a set or a string that count as one step."""


class Steps:
    """Counts the steps of all comparisons for one request."""

    def __init__(self) -> None:
        self._left = STEPS_MAX

    def spend(self, steps: int = 1, *, light: int = 0) -> None:
        """Count ``steps``, and ``light`` operations, which are much cheaper. Raises BadSchema after ``STEPS_MAX``."""
        self._left -= steps + light // _LIGHT
        if self._left < 0:
            raise BadSchema("The schemas are too complex to be compared")
