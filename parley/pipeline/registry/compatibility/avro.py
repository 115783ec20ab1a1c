"""Avro's schema resolution, as the library ``avro`` checks it."""

from __future__ import annotations

from typing import Any

from parley.pipeline.schemas.avro import parsed
from parley.pipeline.schemas.model import Loader, Schema

__all__ = ["unreadable"]


def unreadable(reader: Schema, writer: Schema, load: Loader) -> list[str]:
    """Why data of the writer's schema cannot be read with the reader's. Raises BadSchema."""
    from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType

    checker: Any = ReaderWriterCompatibilityChecker
    found = checker().get_compatibility(parsed(reader, load), parsed(writer, load))
    if found.compatibility is SchemaCompatibilityType.compatible:
        return []
    kinds = ", ".join(kind.name.upper() for kind in found.incompatibilities)
    return [f"{kinds} at {', '.join(sorted(found.locations))}: {'; '.join(sorted(found.messages))}"]
