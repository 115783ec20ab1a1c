"""UUIDs as keys of tables: clients choose topic ids, so they must not be able to choose hashes.

The standard library hashes a UUID as an integer, that is modulo 2**61 - 1. A client can send thousands of ids with the
same hash, and every table of them takes quadratic time. All UUIDs of the broker are therefore of the class below. Equal
UUIDs must have equal hashes: never mix this class with ``uuid.UUID`` as keys of one table. mypy finds such places.
"""

from __future__ import annotations

import uuid


class UUID(uuid.UUID):
    """A UUID whose hash depends on the process's secret seed. It is equal to the ``uuid.UUID`` of the same value."""

    __slots__ = ("_hash",)
    _hash: int

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:  # computed at the first use as a key, and kept
            value = hash(self.bytes)
            object.__setattr__(self, "_hash", value)
            return value
