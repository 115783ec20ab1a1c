"""UUIDs whose hashes clients cannot choose, for use as keys of dicts: clients can send any topic ids.

The standard library hashes a UUID as an integer, modulo 2**61 - 1. A client could send thousands of ids with the same
hash, and filling a dict with these keys would take quadratic time. The broker therefore uses the class below for all
UUIDs. Its hashes differ from those of equal ``uuid.UUID`` objects, so a dict must not have keys of both classes. mypy
finds such code.
"""

from __future__ import annotations

import uuid


class UUID(uuid.UUID):
    """A UUID whose hash depends on the process's secret seed. It is equal to the ``uuid.UUID`` with the same value."""

    __slots__ = ("_hash",)
    _hash: int

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:  # computed at the first use as a key, and kept
            value = hash(self.bytes)
            object.__setattr__(self, "_hash", value)
            return value
