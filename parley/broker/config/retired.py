"""Keys of Kafka that Parley knows of but does not define: they are accepted with a warning that says why.

A configuration written for Kafka thus starts a broker here; nothing below can be read from a ``BrokerConfig``.
"""

from __future__ import annotations

from collections.abc import Mapping

from parley.broker.config.keys.reasons import JAVA, KRAFT, SASL, TIERED
from parley.broker.config.store_keys import UNUSED

_SHARE_GROUPS = "Share groups are not supported yet."
_STREAMS_GROUPS = "Groups of the streams protocol are not supported yet."
_ENCODER = "Secrets that are set dynamically are not encrypted with a password of the broker's own."

RETIRED: Mapping[str, str] = {
    "controller.performance.": KRAFT,
    "controller.quorum.": KRAFT,
    "metadata.log.": KRAFT,
    "metadata.max.": KRAFT,
    "internal.": "It is internal to Kafka.",
    "unstable.": "It is internal to Kafka.",
    "group.share.": _SHARE_GROUPS,
    "share.": _SHARE_GROUPS,
    "group.streams.": _STREAMS_GROUPS,
    "password.encoder.": _ENCODER,
    "remote.": TIERED,
    "rlmm.config.": TIERED,
    "rsm.config.": TIERED,
    "sasl.oauthbearer.assertion.": SASL,
    "sasl.oauthbearer.client.credentials.": SASL,
    "sasl.oauthbearer.jwt.": JAVA,
    "sasl.oauthbearer.scope": SASL,
    **UNUSED,
}
"""Why a key has no effect, by the key or, with a dot at the end, by what it begins with."""


def why_retired(name: str) -> str | None:
    """Why Parley does not use this key of Kafka; None for one that it does not know of."""
    return RETIRED.get(name) or next(
        (why for prefix, why in RETIRED.items() if prefix.endswith(".") and name.startswith(prefix)), None
    )
