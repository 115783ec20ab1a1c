"""The values that a metadata image consists of. All are immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from uuid import UUID

NO_LEADER = -1
"""The leader of a partition without an eligible live replica (Kafka's value in the protocol)."""

NO_ENTRIES: Mapping[str, str] = MappingProxyType({})


class ResourceType(IntEnum):
    """Kinds of resource that have a configuration, with the numbers of the DescribeConfigs API (KIP-133)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """A resource that has configuration entries. A ``BROKER`` named ``""`` is the default of all brokers (KIP-226)."""

    type: ResourceType
    name: str


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The advertised address of one listener of a broker."""

    listener: str
    security_protocol: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A broker as it has registered.

    ``epoch`` rises with every registration of a broker id, so that messages of an earlier incarnation are recognised.
    ``incarnation_id`` is new for every process. A ``fenced`` broker is known but leads no partition.
    """

    broker_id: int
    epoch: int
    incarnation_id: UUID
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    fenced: bool = False
    features: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def endpoint(self, listener: str) -> Endpoint | None:
        """Return the address of a listener, or None if the broker has no listener of this name."""
        return next((e for e in self.endpoints if e.listener == listener), None)


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The replicas of a partition, its ISR and its leader.

    ``replicas`` is in order of preference; the first one is the preferred leader. ``leader_epoch`` rises with every
    change of leader, ``partition_epoch`` with every change of this value (KIP-497). ``adding`` and ``removing`` are
    the replicas that a reassignment in progress adds and removes (KIP-455).
    """

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic: its name, its id (KIP-516), which no other topic of that name has, and its partitions by index."""

    name: str
    topic_id: UUID
    partitions: tuple[PartitionState, ...]
