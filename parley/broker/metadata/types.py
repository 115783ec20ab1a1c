"""The values a metadata image is made of. All are immutable; a change makes a new one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from uuid import UUID

NO_LEADER = -1
"""The leader of a partition none of whose eligible replicas is alive (Kafka's wire value)."""

NO_ENTRIES: Mapping[str, str] = MappingProxyType({})


class ResourceType(IntEnum):
    """What a configuration belongs to, with the numbers of the DescribeConfigs API (KIP-133)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """One owner of configuration entries. A ``BROKER`` named ``""`` is the default of all brokers (KIP-226)."""

    type: ResourceType
    name: str


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one listener of a broker is reached by clients: the advertised address."""

    listener: str
    security_protocol: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A broker as it announced itself.

    ``epoch`` rises with every registration of the same id, so that an answer or a write of an earlier incarnation can
    be told apart; ``incarnation_id`` is new for every process. A ``fenced`` broker is known but leads nothing.
    """

    broker_id: int
    epoch: int
    incarnation_id: UUID
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    fenced: bool = False
    features: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def endpoint(self, listener: str) -> Endpoint | None:
        """The address of the listener with this name, or None where the broker has no such listener."""
        return next((e for e in self.endpoints if e.listener == listener), None)


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Who holds a partition and who leads it.

    ``replicas`` is in order of preference (the first is the preferred leader). ``leader_epoch`` rises with every
    change of leader, ``partition_epoch`` with every change of this value (KIP-497). ``adding`` and ``removing`` are
    the replicas a reassignment under way brings in and takes out (KIP-455).
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
    """A topic: its name, the id that tells two topics of one name apart (KIP-516), its partitions by index."""

    name: str
    topic_id: UUID
    partitions: tuple[PartitionState, ...]
