"""Makes pyiceberg write null for a list or a map that is null.

Pyiceberg rebuilds lists and maps of structs from their offsets before it writes them, and so writes an empty list for
null (https://github.com/apache/iceberg-python/issues/3833). It does the same when it reads.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import pyarrow as library
from pyiceberg.types import ListType, MapType


def _with_nulls(given: Any, rebuilt: Any) -> Any:
    """Return the rebuilt array, with null at each position at which the given array has null."""
    if given is None or rebuilt is None or given.null_count == rebuilt.null_count:
        return rebuilt
    return pc.if_else(given.is_valid(), rebuilt, pa.scalar(None, rebuilt.type))


class NullKeeping(library.ArrowProjectionVisitor):
    """Converts Arrow data to a table's schema, and keeps all nulls."""

    def list(self, list_type: ListType, list_array: Any, value_array: Any) -> Any:
        return _with_nulls(list_array, super().list(list_type, list_array, value_array))

    def map(self, map_type: MapType, map_array: Any, key_result: Any, value_result: Any) -> Any:
        return _with_nulls(map_array, super().map(map_type, map_array, key_result, value_result))


def keep_nulls() -> None:
    """Make pyiceberg use ``NullKeeping`` in the whole process, for writing and for reading."""
    library.ArrowProjectionVisitor = NullKeeping  # type: ignore[misc]
