"""Decisions about ACLs (KIP-140): add ACLs, or delete those that filters have selected."""

from __future__ import annotations

from collections.abc import Sequence

from parley.broker.controller.decision import Decision
from parley.broker.metadata.changes import AclBucketReplaced
from parley.broker.metadata.feature_support import SECURITY, check_all_support
from parley.broker.metadata.image import MetadataImage
from parley.broker.security.acls.bindings import AclBinding, check_binding
from parley.broker.security.acls.stored import EMPTY, bucket_of
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError

CHANGES_MAX = 10_000
"""The maximum number of ACLs that one request may add or delete (Kafka's limit)."""


@dataclass(frozen=True, slots=True)
class AclDeletion:
    """The outcome of one filter of a DeleteAcls request: the ACLs that were deleted."""

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


def too_many_deletions(count: int) -> KafkaError | None:
    """Return the error for a request that deletes this many ACLs, or None if the number is allowed."""
    if count <= CHANGES_MAX:
        return None
    return KafkaError(
        ErrorCode.INVALID_REQUEST, f"Cannot remove more than {CHANGES_MAX} acls in a single delete operation."
    )


def delete_acls(image: MetadataImage, selected: Sequence[Sequence[AclBinding]]) -> Decision[list[AclDeletion]]:
    """Delete ACLs. ``selected`` contains, for each filter of a request, the ACLs that match it. Returns one outcome for
    each filter.

    ACLs that no longer exist are skipped. An ACL that matches several filters is in the outcome of each. Raises
    INVALID_REQUEST for more than ``CHANGES_MAX`` ACLs.
    """
    removed: dict[int, set[AclBinding]] = {}
    outcomes = []
    for bindings in selected:
        deleted = []
        for binding in bindings:
            number = bucket_of(binding.pattern, binding.principal)
            if binding in image.acls.get(number, EMPTY):
                removed.setdefault(number, set()).add(binding)
                deleted.append(binding)
        outcomes.append(AclDeletion(tuple(deleted)))
    if (refusal := too_many_deletions(sum(map(len, removed.values())))) is not None:
        raise refusal
    changes = tuple(AclBucketReplaced(number, image.acls[number] - gone) for number, gone in removed.items())
    return Decision(changes, outcomes)
