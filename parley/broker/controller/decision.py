"""A decision of the controller: a pure function from the metadata image to changes and a result.

A decision does not wait, read a clock or access the store. The controller commits the changes first and returns the
result afterwards, so no caller sees a result before its changes are durable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from parley.broker.metadata.changes import Change
from parley.broker.metadata.image import MetadataImage
from parley.light_dataclasses import dataclass

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Decision(Generic[T]):
    """The changes to make, and the result to return once they are made."""

    changes: tuple[Change, ...]
    result: T


Decide = Callable[[MetadataImage], Decision[T]]
