"""The listeners over which brokers may connect to this broker.

An operator changes ``inter.broker.listener.name`` one broker at a time. Meanwhile, the brokers use different listeners
among themselves. Each broker therefore registers which listener it uses, and the other brokers also accept inter-broker
requests on that listener, until all registered brokers use the same listener.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from parley.broker.metadata.current import Metadata
from parley.broker.metadata.types import BrokerRegistration


class BrokerListeners:
    """The inter-broker listeners of this broker and of the registered brokers (a container of listener names).

    A fenced broker counts, because it may be alive. Unregister a broker that will not come back.
    """

    def __init__(self, own: str, metadata: Metadata) -> None:
        self.stored: Mapping[int, BrokerRegistration] = {}
        """The registrations in the store. They count until the metadata contains brokers: the controller requests the
        report of this broker's logs before that."""
        self._own = own
        self._metadata = metadata
        self._brokers: Mapping[int, BrokerRegistration] = {}
        self._others: Collection[str] | None = frozenset()

    def __contains__(self, listener: object) -> bool:
        if listener == self._own:
            return True
        brokers = self._metadata.image.brokers or self.stored
        if brokers is not self._brokers:
            self._brokers, self._others = brokers, _used_by(brokers.values())
        return self._others is None or listener in self._others


def _used_by(brokers: Collection[BrokerRegistration]) -> Collection[str] | None:
    """Return the inter-broker listeners of these brokers, or None if a live broker is too old to register
    its listener."""
    if any(not broker.inter_broker_listener and not broker.fenced for broker in brokers):
        return None
    return frozenset(broker.inter_broker_listener for broker in brokers)
