"""Checks that data written with one schema can be read with another, by the rules of Confluent's registry.

A ``Level`` selects the earlier versions that a new version is compared with, and the direction. Decisions only.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from parley.pipeline.registry.compatibility import avro, json_schema, protobuf
from parley.pipeline.registry.compatibility.comparison_limits import Steps
from parley.pipeline.schemas.model import Loader, Schema, SchemaType

_UNREADABLE = {
    SchemaType.AVRO: avro.unreadable,
    SchemaType.JSON: json_schema.unreadable,
    SchemaType.PROTOBUF: protobuf.unreadable,
}


class Level(StrEnum):
    """The compatibility levels, by their names in the registry's API."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def is_transitive(self) -> bool:
        """True if a new version is compared with all earlier versions, not only with the latest."""
        return self.endswith("_TRANSITIVE")


def incompatibilities(new: Schema, earlier: Sequence[Schema], level: Level, load: Loader) -> list[str]:
    """Return the reasons why ``new`` must not follow the ``earlier`` schemas (oldest first); empty if it may follow
    them.

    Raises BadSchema if a schema is invalid, or if the comparison takes too many steps.
    """
    if level is Level.NONE or not earlier:
        return []
    steps = Steps()
    for old in reversed(earlier if level.is_transitive else earlier[-1:]):
        if old.type is not new.type:
            found = [f"TYPE_CHANGED: an earlier version is of type {old.type}"]
        else:
            unreadable = _UNREADABLE[new.type]
            steps.spend(light=len(new.text) + len(old.text))
            found = []
            if level.startswith(("BACKWARD", "FULL")):
                found += unreadable(new, old, load, steps)
            if level.startswith(("FORWARD", "FULL")):
                found += unreadable(old, new, load, steps)
        if found:
            return found
    return []
