"""What a decision of the controller is: a pure function of the image, answered as changes and a result.

Nothing here waits, reads a clock or touches the store. The controller commits the changes first and hands out the
result afterwards, so a result is never seen before its changes are durable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from parley.broker.metadata.changes import Change
from parley.broker.metadata.image import MetadataImage

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Decision(Generic[T]):
    """What to change, and what to answer once it has been changed."""

    changes: tuple[Change, ...]
    result: T


Decide = Callable[[MetadataImage], Decision[T]]
