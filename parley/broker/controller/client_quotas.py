"""Decisions about client quotas (KIP-546)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from parley.broker.controller.decision import Decision
from parley.broker.metadata.changes import ClientQuotasReplaced
from parley.broker.metadata.feature_support import QUOTAS, check_all_support
from parley.broker.metadata.image import MetadataImage
from parley.broker.quotas.entities import QuotaEntity
from parley.broker.quotas.validation import check_quota, valid_entity
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError

ENTITIES_MAX: Final = 50_000
"""The maximum number of entities with quotas. Every broker keeps all of them in memory."""
CHANGES_MAX: Final = 10_000
"""The maximum number of changes in one request, as in Kafka, so that later decisions do not wait long."""


@dataclass(frozen=True, slots=True)
class QuotaAlteration:
    """A request to change the quotas of one entity.

    ``parts`` contains pairs of entity type and name; the name None means the default entity. ``quotas`` contains pairs
    of key and value; the value None removes the quota.
    """

    parts: tuple[tuple[str, str | None], ...]
    quotas: tuple[tuple[str, float | None], ...]


def alter_client_quotas(
    image: MetadataImage, wanted: Sequence[QuotaAlteration], *, validate_only: bool = False
) -> Decision[list[KafkaError | None]]:
    """Set and remove quotas, or only validate the request if ``validate_only``.

    The result has an error or None for each alteration. An alteration with an error changes nothing. Raises
    UNSUPPORTED_VERSION if a broker of the cluster cannot read quotas, and POLICY_VIOLATION for more than
    ``CHANGES_MAX`` changes.
    """
    check_all_support(QUOTAS, image)
    if (refusal := too_many_quotas(sum(len(each.quotas) for each in wanted))) is not None:
        raise refusal
    outcomes: list[KafkaError | None] = []
    replaced: dict[QuotaEntity, dict[str, float]] = {}
    count = len(image.client_quotas)
    for each in wanted:
        try:
            entity = valid_entity(each.parts)
            if entity in replaced:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"Ignoring duplicate entity {entity}")
            quotas = _altered(image, entity, each)
            is_new = entity not in image.client_quotas
            if is_new and quotas and count >= ENTITIES_MAX:
                raise KafkaError(
                    ErrorCode.POLICY_VIOLATION,
                    f"{count} entities have quotas already; the maximum is {ENTITIES_MAX}. Use default entities.",
                )
            count += bool(quotas) - (not is_new)
            replaced[entity] = quotas
            outcomes.append(None)
        except KafkaError as error:
            outcomes.append(error)
    changes = tuple(
        ClientQuotasReplaced(entity, quotas)
        for entity, quotas in replaced.items()
        if quotas != image.client_quotas.get(entity, {})
    )
    return Decision(() if validate_only else changes, outcomes)


def too_many_quotas(count: int) -> KafkaError | None:
    """Return the error for a request that changes this many quotas, or None if the number is allowed."""
    if count <= CHANGES_MAX:
        return None
    return KafkaError(
        ErrorCode.POLICY_VIOLATION, f"A request can change at most {CHANGES_MAX} quotas. Send several requests."
    )


def _altered(image: MetadataImage, entity: QuotaEntity, wanted: QuotaAlteration) -> dict[str, float]:
    """Return the quotas of an entity after the change. Raises KafkaError if the change is invalid."""
    quotas = dict(image.client_quotas.get(entity, {}))
    seen = set()
    for key, value in wanted.quotas:
        if key in seen:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Duplicate quota key {key} not updating quota for this entity {entity}",
            )
        seen.add(key)
        if value is None:
            quotas.pop(key, None)
        else:
            check_quota(entity, key, value)
            quotas[key] = value
    return quotas
