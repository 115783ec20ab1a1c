"""Every key of a broker's configuration in one class, and the values that are derived from several keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parley.broker.config.key_definition import Key
from parley.broker.config.keys.console import ConsoleKeys
from parley.broker.config.keys.groups import GroupKeys
from parley.broker.config.keys.identity import IdentityKeys
from parley.broker.config.keys.log import LogKeys
from parley.broker.config.keys.network import NetworkKeys
from parley.broker.config.keys.observability import ObservabilityKeys
from parley.broker.config.keys.quotas import QuotaKeys
from parley.broker.config.keys.replication import ReplicationKeys
from parley.broker.config.keys.security import SecurityKeys
from parley.broker.config.keys.share_groups import ShareGroupKeys
from parley.broker.config.keys.streams_groups import StreamsGroupKeys
from parley.broker.config.keys.topic_defaults import TopicDefaultKeys
from parley.broker.config.keys.transactions import TransactionKeys
from parley.broker.config.listeners import ListenerAddress
from parley.broker.config.store_keys import BUILT_IN_KEYS

LISTENER_PREFIX = "listener.name."
_PER_MECHANISM = (
    "sasl.jaas.config",
    "sasl.login.class",
    "sasl.login.callback.handler.class",
    "sasl.client.callback.handler.class",
    "sasl.server.callback.handler.class",
    "connections.max.reauth.ms",
)
"""Keys that can be set per SASL mechanism: ``listener.name.<listener>.<mechanism>.<key>`` (KIP-86, KIP-368)."""


class BrokerKeys(
    IdentityKeys,
    NetworkKeys,
    TopicDefaultKeys,
    LogKeys,
    ReplicationKeys,
    GroupKeys,
    ShareGroupKeys,
    StreamsGroupKeys,
    TransactionKeys,
    QuotaKeys,
    SecurityKeys,
    ObservabilityKeys,
    ConsoleKeys,
):
    """The attributes of a configuration. ``BrokerConfig`` sets them, and the rules between keys read them."""

    static: Mapping[str, str]
    """The properties that the broker was started with, as written."""
    cluster_default: Mapping[str, str]
    """The dynamic entries for all brokers."""
    per_broker: Mapping[str, str]
    """The dynamic entries for this broker."""
    warnings: tuple[str, ...]
    """Warnings for the operator about unknown keys and settings without effect. They contain no secrets."""

    bound: tuple[ListenerAddress, ...]
    """The addresses to listen on."""
    advertised: tuple[ListenerAddress, ...]
    """The addresses to advertise, as configured; ``BrokerConfig.advertised_at`` returns the final ones."""
    bootstrap: tuple[ListenerAddress, ...]
    """The additional addresses of listeners, which all brokers of a machine share."""
    inter_broker_listener: str
    """The name of the listener that brokers use to connect to each other."""
    data_dirs: tuple[str, ...]
    """The directories for data: ``log.dirs`` if set, otherwise ``log.dir``."""

    third_party_keys: Mapping[str, Key[Any]]
    """The keys of third-party stores, if ``static`` contains one of them."""

    @property
    def given(self) -> dict[str, str]:
        """The text of each key that any layer sets, from the layer with the highest precedence."""
        return {**self.static, **self.cluster_default, **self.per_broker}

    def key(self, name: str) -> Key[Any] | None:
        """Return the definition of a key, or None if it is unknown. Unlike ``base_key``, also finds the keys of
        third-party stores."""
        return base_key(name) or self.third_party_keys.get(name)


BrokerKeys.KEYS = {**BrokerKeys.KEYS, **BUILT_IN_KEYS}


def base_key(name: str) -> Key[Any] | None:
    """Return the definition of a key, or None if it is unknown.

    ``name`` may have the form ``listener.name.<listener>[.<mechanism>].<key>``.
    """
    if not name.startswith(LISTENER_PREFIX):
        return BrokerKeys.KEYS.get(name)
    own = name.removeprefix(LISTENER_PREFIX).partition(".")[2]
    for_mechanism = own.partition(".")[2]
    return BrokerKeys.KEYS.get(for_mechanism if for_mechanism in _PER_MECHANISM else own)
