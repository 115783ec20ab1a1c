"""Quotas that an operator's own code determines (``client.quota.callback.class``, KIP-257).

The key names an entry point of the group ``parley.quota_callbacks``, or a class as ``package.module.Class``: a subclass
of ``ClientQuotaCallback``. The broker creates it without arguments and calls ``configure`` once. From then on, the
callback, not the stored quotas, determines the quotas of produce, fetch, request time and topic changes. As in Kafka,
it does not determine connection rates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from parley.broker.config import ConfigError, Problem
from parley.broker.config.plugins import plugin
from parley.broker.metadata.image import MetadataImage
from parley.broker.quotas.entities import QuotaKey, StoredQuotas
from parley.broker.quotas.precedence import Limit
from parley.broker.security.principal import Principal

ENTRY_POINTS: Final = "parley.quota_callbacks"
_KEY = "client.quota.callback.class"


class ClientQuotaCallback(ABC):
    """Determines the quotas of clients. ``limit`` is called for every request, so it must not block."""

    def configure(self, configs: Mapping[str, Any]) -> None:
        """Read the callback's own configuration from the broker's properties. An exception prevents the start of the
        broker."""
        return

    @abstractmethod
    def limit(self, key: QuotaKey, principal: Principal, client_id: str) -> Limit | None:
        """Return the client's quota and the clients that share it; None if the client has no quota.

        ``client_id`` is empty if the client has none. The rate must be finite and at least 0. If it is not, or if this
        method raises, the broker logs the error and applies no quota. This method replaces Kafka's ``quotaMetricTags``
        and ``quotaLimit``.
        """

    def quotas_changed(self, stored: StoredQuotas) -> None:
        """React to a change of the stored quotas. ``stored`` contains all of them. (Kafka has ``updateQuota`` and
        ``removeQuota``.)"""
        return

    def cluster_changed(self, image: MetadataImage) -> None:
        """React to a new image of the metadata (Kafka's ``updateClusterMetadata``)."""
        return

    def close(self) -> None:
        """Release the callback's resources. Called when the broker stops."""
        return


def load_callback(name: str, configs: Mapping[str, Any]) -> ClientQuotaCallback | None:
    """Return the callback that ``client.quota.callback.class`` names; None if it is empty.

    Raises ConfigError if the class cannot be loaded, or its ``configure`` raises.
    """
    name = name.strip()
    if not name:
        return None
    made: ClientQuotaCallback = plugin(_KEY, name, ClientQuotaCallback, ENTRY_POINTS)
    try:
        made.configure(configs)
    except Exception as error:
        raise ConfigError([Problem(_KEY, name, f"a class that can be configured: {error!r}")]) from error
    return made
