"""ACLs as the metadata image and the coordination store keep them: in buckets.

A bucket contains the ACLs whose pattern and principal have the same hash. A change therefore rewrites one small value,
however many ACLs a topic or a principal has, and a cluster with 100,000 ACLs needs no more than ``BUCKETS`` keys in the
store.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from parley.broker.security.acls.bindings import AclBinding, PatternType, PermissionType, ResourcePattern
from parley.broker.security.operations import Operation
from parley.broker.security.resources import ResourceType

BUCKETS = 4096
"""The number of buckets. It is part of the stored format: with another number, stored ACLs would not be found."""

Bucket = frozenset[AclBinding]
AclBuckets = Mapping[int, Bucket]
EMPTY: Bucket = frozenset()


def bucket_of(pattern: ResourcePattern, principal: str) -> int:
    """Return the number of the bucket for the ACLs of a pattern and a principal."""
    text = f"{pattern.type.value}/{pattern.pattern_type.value}/{pattern.name}/{principal}"
    return zlib.crc32(text.encode()) % BUCKETS


def every_acl(buckets: AclBuckets) -> Iterable[AclBinding]:
    """Yield all ACLs in the buckets."""
    for bucket in buckets.values():
        yield from bucket


def bucket_to_json(bucket: Bucket) -> list[list[str]]:
    """Return a bucket as a JSON value. Equal buckets give equal values."""
    return sorted(
        [
            acl.pattern.type.name,
            acl.pattern.pattern_type.name,
            acl.pattern.name,
            acl.principal,
            acl.host,
            acl.operation.name,
            acl.permission.name,
        ]
        for acl in bucket
    )


def bucket_from_json(value: list[Any]) -> Bucket:
    """Return the ACLs that ``bucket_to_json`` encoded. Raises KeyError or ValueError if the value is malformed."""
    return frozenset(
        AclBinding(
            ResourcePattern(ResourceType[kind], PatternType[pattern_type], name),
            principal,
            host,
            Operation[operation],
            PermissionType[permission],
        )
        for kind, pattern_type, name, principal, host, operation, permission in value
    )
