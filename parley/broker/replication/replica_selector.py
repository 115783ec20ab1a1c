"""Replica selectors: which replica a consumer should read from (KIP-392, ``replica.selector.class``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from parley.broker.config.plugins import instance_of
from parley.broker.security.principal import Principal
from parley.light_dataclasses import dataclass

_KEY = "replica.selector.class"


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A replica that contains the records that the consumer requests.

    ``behind_s`` is the time since it was last caught up; 0 for the leader.
    """

    broker_id: int
    rack: str | None
    log_end_offset: int
    behind_s: float
    is_leader: bool


@dataclass(frozen=True, slots=True)
class ConsumerView:
    """The consumer for which a selector chooses a replica. ``rack`` is its ``client.rack``."""

    rack: str
    client_id: str | None
    host: str
    principal: Principal
    listener: str


class ReplicaSelector(Protocol):
    """Chooses a replica. It is called for each partition that a consumer fetches, and must not wait or raise."""

    def select(
        self, topic: str, partition: int, consumer: ConsumerView, replicas: Sequence[ReplicaView]
    ) -> ReplicaView | None:
        """Return one of ``replicas``, which include the leader. None means the leader."""


class RackAwareReplicaSelector:
    """Prefers a replica in the consumer's rack: the leader if it is there, otherwise the one furthest ahead."""

    def select(
        self, topic: str, partition: int, consumer: ConsumerView, replicas: Sequence[ReplicaView]
    ) -> ReplicaView | None:
        near = [replica for replica in replicas if consumer.rack and replica.rack == consumer.rack]
        return max(
            near, key=lambda replica: (replica.is_leader, replica.log_end_offset, -replica.behind_s), default=None
        )


_KNOWN: dict[str, type[ReplicaSelector] | None] = {
    "": None,
    "org.apache.kafka.common.replica.LeaderSelector": None,
    "org.apache.kafka.common.replica.RackAwareReplicaSelector": RackAwareReplicaSelector,
    "RackAwareReplicaSelector": RackAwareReplicaSelector,
}


def load_selector(name: str | None) -> ReplicaSelector | None:
    """Return the selector that ``replica.selector.class`` names; None if consumers read from leaders.

    Raises ConfigError if the class cannot be loaded.
    """
    name = (name or "").strip()
    if name in _KNOWN:
        known = _KNOWN[name]
        return None if known is None else known()
    selector: ReplicaSelector = instance_of(_KEY, name, "select")
    return selector
