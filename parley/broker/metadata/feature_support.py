"""Features of the metadata: what every broker must support before the cluster may store it.

When a broker registers, it lists the features that it supports. The controller stores nothing that a registered broker
cannot read, and registers no broker that cannot read the stored metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from parley.broker.metadata.feature_levels import (
    GROUP_VERSION,
    LEVELS,
    SHARE_VERSION,
    STREAMS_VERSION,
    TRANSACTION_VERSION,
)
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import BrokerRegistration
from parley.protocol.errors import ErrorCode, KafkaError

SECURITY: Final = "parley.security"
"""ACLs, SCRAM credentials and delegation tokens in the metadata."""

QUOTAS: Final = "parley.client-quotas"
"""Client quotas in the metadata."""

SUPPORTED_FEATURES: Final[Mapping[str, tuple[int, int]]] = {SECURITY: (1, 1), QUOTAS: (1, 1), **LEVELS}
"""The lowest and the highest level of each feature that this version of Parley supports."""

_CONTENTS: Final = {
    SECURITY: "ACLs and users",
    QUOTAS: "client quotas",
    TRANSACTION_VERSION: "feature levels",
    GROUP_VERSION: "consumer groups of KIP-848",
    SHARE_VERSION: "share groups of KIP-932",
    STREAMS_VERSION: "streams groups of KIP-1071",
}
"""The content of the metadata that uses a feature, for error messages."""


def check_all_support(feature: str, image: MetadataImage) -> None:
    """Raise KafkaError (UNSUPPORTED_VERSION) if a registered broker cannot read the metadata of this feature."""
    unable = sorted(broker_id for broker_id, broker in image.brokers.items() if feature not in broker.features)
    if unable:
        names = ", ".join(map(str, unable))
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"The version of Parley on these brokers does not support {_CONTENTS[feature]}: {names}. Upgrade them, or "
            "remove them from the cluster, then repeat the request.",
        )


def check_can_read(image: MetadataImage, broker: BrokerRegistration) -> None:
    """Raise KafkaError (UNSUPPORTED_VERSION) if a broker that is about to register cannot read the cluster's
    metadata."""
    used = features_in_use(image)
    for groups in (GROUP_VERSION, SHARE_VERSION, STREAMS_VERSION):
        if image.features.chosen.get(groups, 0) >= 1:
            used.add(groups)  # if a broker without this feature joined, such groups would no longer be served
    for feature in sorted(used - broker.features.keys()):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"The cluster uses {_CONTENTS[feature].replace(' and ', ' or ')}, which the version of Parley on broker "
            f"{broker.broker_id} does not support. Upgrade that broker.",
        )


def serves_consumer_groups(image: MetadataImage) -> bool:
    """Return True if groups of the consumer protocol are allowed, because every broker can read their records
    (KIP-848)."""
    return _serves(GROUP_VERSION, image)


def serves_share_groups(image: MetadataImage) -> bool:
    """Return True if share groups are allowed, because every broker can read their records (KIP-932)."""
    return _serves(SHARE_VERSION, image)


def serves_streams_groups(image: MetadataImage) -> bool:
    """Return True if streams groups are allowed, because every broker can read their records (KIP-1071)."""
    return _serves(STREAMS_VERSION, image)


def _serves(feature: str, image: MetadataImage) -> bool:
    if image.features.level(feature) < 1:
        return False
    return all(feature in broker.features for broker in image.brokers.values())


def features_in_use(image: MetadataImage) -> set[str]:
    """Return the features that a broker must support to read the metadata."""
    used = set()
    if image.acls or image.scram_users or image.delegation_tokens:
        used.add(SECURITY)
    if image.client_quotas:
        used.add(QUOTAS)
    if image.features.chosen:
        used.add(TRANSACTION_VERSION)  # a broker that supports this feature can read feature levels
    return used
