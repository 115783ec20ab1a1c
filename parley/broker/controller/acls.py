"""Decisions about ACLs (KIP-140): add ACLs, or delete the ACLs that match filters."""

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
"""The maximum number of ACLs that one request may add or delete (Kafka's limit)."""


@dataclass(frozen=True, slots=True)
class AclDeletion:
    """The outcome of one filter: the ACLs that it deleted."""

    deleted: tuple[AclBinding, ...]


def create_acls(image: MetadataImage, wanted: Sequence[AclBinding]) -> Decision[list[KafkaError | None]]:
    """Add ACLs. The result has an error or None for each ACL. Adding an ACL that already exists succeeds.

    Raises UNSUPPORTED_VERSION if a broker of the cluster cannot read ACLs, and INVALID_REQUEST for more than
    ``CHANGES_MAX`` ACLs.
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
    """Return the error for a request that adds this many ACLs, or None if the number is allowed."""
    if count <= CHANGES_MAX:
        return None
    return KafkaError(ErrorCode.INVALID_REQUEST, f"Cannot add more than {CHANGES_MAX} ACLs in one request.")


def delete_acls(image: MetadataImage, filters: Sequence[AclFilter]) -> Decision[list[AclDeletion]]:
    """Delete the ACLs that match the filters. An ACL that matches several filters is in the outcome of each.

    Raises INVALID_REQUEST if more than ``CHANGES_MAX`` ACLs match.
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
    """Return a set of ACLs that contains every ACL that a filter matches. The set is small if the filter is
    specific."""
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
