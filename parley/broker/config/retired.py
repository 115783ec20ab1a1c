"""Kafka keys that Parley accepts with a warning but does not define, so that a broker can start with a configuration
file written for Kafka.

``BrokerConfig`` has no attributes for them.
"""

from __future__ import annotations

from collections.abc import Mapping

from parley.broker.config.keys.reasons import JAVA, KRAFT, TIERED
from parley.broker.config.store_keys import UNUSED

_ENCODER = "Parley encrypts passwords with AES-256-GCM, under a key that PBKDF2-HMAC-SHA512 derives."

RETIRED: Mapping[str, str] = {
    "controller.performance.": KRAFT,
    "controller.quorum.": KRAFT,
    "metadata.log.": KRAFT,
    "metadata.max.": KRAFT,
    "internal.": "It is an internal key of Kafka.",
    "unstable.": "It is an internal key of Kafka.",
    "group.share.max.groups": "Kafka 4.0 removed it: the number of share groups has no limit.",
    "password.encoder.": _ENCODER,
    "remote.": TIERED,
    "rlmm.config.": TIERED,
    "rsm.config.": TIERED,
    "sasl.oauthbearer.assertion.": "Client assertions are not supported yet.",
    "sasl.oauthbearer.jwt.": JAVA,
    **UNUSED,
}
"""The reason why a key has no effect, by key. An entry that ends with a dot is a prefix."""


def why_retired(name: str) -> str | None:
    """Return why this Kafka key has no effect in Parley, or None if ``RETIRED`` does not contain the key."""
    return RETIRED.get(name) or next(
        (why for prefix, why in RETIRED.items() if prefix.endswith(".") and name.startswith(prefix)), None
    )
