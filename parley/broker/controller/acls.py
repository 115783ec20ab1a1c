"""Decisions about ACLs (KIP-140): add some, or delete those that filters select."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from parley.broker.controller.decision import Decision
from parley.broker.metadata.changes import AclBucketReplaced
from parley.broker.metadata.feature_support import SECURITY, check_all_support
from parley.broker.metadata.image import MetadataImage
from parley.broker.security.acls.bindings import AclBinding, AclFilter, PatternType, ResourcePattern, check_binding
from parley.broker.security.acls.stored import EMPTY, AclBuckets, Bucket, bucket_of, every_acl
from parley.broker.security.resources import ResourceType
from parley.protocol.errors import ErrorCode, KafkaError

CHANGES_MAX = 10_000
"""The most ACLs that one request adds or deletes (Kafka's bound)."""


@dataclass(frozen=True, slots=True)
class AclDeletion:
    """The outcome of one filter: the ACLs that it deleted."""

    deleted: tuple[AclBinding, ...]


def create_acls(image: MetadataImage, wanted: Sequence[AclBinding]) -> Decision[list[KafkaError | None]]:
    """Add ACLs. Each has its own error, or None; one that exists already is a success.

    Raises UNSUPPORTED_VERSION if a broker of the cluster cannot read ACLs, INVALID_REQUEST for more than
    ``CHANGES_MAX``.
    """
    check_all_support(SECURITY, image)
    if (refusal := too_many_acls(len(wanted))) is not None:
        raise refusal
    added: dict[int, set[AclBinding]] = {}
    outcomes: list[KafkaError | None] = []
    for binding in wanted:
        try:
            check_binding(binding)
        except KafkaError as error:
            outcomes.append(error)
            continue
        outcomes.append(None)
        number = bucket_of(binding.pattern, binding.principal)
        if binding not in image.acls.get(number, EMPTY):
            added.setdefault(number, set()).add(binding)
    changes = tuple(
        AclBucketReplaced(number, image.acls.get(number, EMPTY) | bindings) for number, bindings in added.items()
    )
    return Decision(changes, outcomes)


def too_many_acls(count: int) -> KafkaError | None:
    """Return the error for a request that adds so many ACLs, None if they are not too many."""
    if count <= CHANGES_MAX:
        return None
    return KafkaError(ErrorCode.INVALID_REQUEST, f"Cannot add more than {CHANGES_MAX} ACLs in one request.")


def delete_acls(image: MetadataImage, filters: Sequence[AclFilter]) -> Decision[list[AclDeletion]]:
    """Delete the ACLs that the filters select. An ACL that several filters select is in the outcome of each.

    Raises INVALID_REQUEST if these are more than ``CHANGES_MAX``.
    """
    removed: dict[int, set[AclBinding]] = {}
    outcomes = []
    count = 0
    for wanted in filters:
        selected = tuple(binding for binding in candidates(image.acls, wanted) if wanted.matches(binding))
        outcomes.append(AclDeletion(selected))
        for binding in selected:
            bucket = removed.setdefault(bucket_of(binding.pattern, binding.principal), set())
            count += binding not in bucket
            bucket.add(binding)
        if count > CHANGES_MAX:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Cannot remove more than {CHANGES_MAX} acls in a single delete operation.",
            )
    changes = tuple(AclBucketReplaced(number, image.acls[number] - gone) for number, gone in removed.items())
    return Decision(changes, outcomes)


def candidates(acls: AclBuckets, wanted: AclFilter) -> Iterable[AclBinding]:
    """Return the ACLs among which are those that a filter selects: few of them, if the filter is specific."""
    if wanted.type is ResourceType.ANY or wanted.name is None or wanted.principal is None:
        return every_acl(acls)
    if wanted.pattern_type is PatternType.MATCH:
        return every_acl(acls)
    return _in_buckets(acls, wanted.type, wanted.pattern_type, wanted.name, wanted.principal)


def _in_buckets(
    acls: AclBuckets, kind: ResourceType, pattern_type: PatternType, name: str, principal: str
) -> Iterator[AclBinding]:
    types = (PatternType.LITERAL, PatternType.PREFIXED) if pattern_type is PatternType.ANY else (pattern_type,)
    numbers = {bucket_of(ResourcePattern(kind, each, name), principal) for each in types}
    for number in numbers:
        bucket: Bucket = acls.get(number, EMPTY)
        yield from bucket
