"""The operations of Kafka's access control model, and the bit fields in which responses list them (KIP-430)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

NOT_REQUESTED = -(2**31)
"""The value of the bit field if the client did not request the authorized operations."""


class Operation(IntEnum):
    """Operations, with their numbers in the ACL APIs. ``ANY`` occurs only in filters, ``ALL`` in ACLs and filters."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


def bit_field(operations: Iterable[Operation]) -> int:
    """Return the operations as a signed 32-bit field: bit n is set if the operation with the number n is included."""
    return sum(1 << operation for operation in operations)
