"""The values that a metadata image consists of. All are immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import IntEnum
from types import MappingProxyType

from parley.broker.metadata.terms import NO_TERM, Term
from parley.light_dataclasses import dataclass
from parley.protocol.uuids import UUID

NO_LEADER = -1
"""The leader of a partition without an eligible live replica (Kafka's value in the protocol)."""

NO_ENTRIES: Mapping[str, str] = MappingProxyType({})

UNASSIGNED_DIRECTORY = UUID(int=1)
"""Directory id of a replica whose broker has only one log directory, or whose log directory is unknown (KIP-858)."""


class ResourceType(IntEnum):
    """Kinds of resource that can be configured, with their numbers in the DescribeConfigs API (KIP-133)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """A resource that can have configuration entries. The ``BROKER`` named ``""`` holds the defaults of all brokers
    (KIP-226)."""

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
    """The registration of a broker.

    ``epoch`` increases with every registration of a broker id, so that messages of an earlier incarnation are
    recognized. ``incarnation_id`` is new for every process. A ``fenced`` broker is known but leads no partition.
    ``previous_epoch`` is the broker epoch in the clean-shutdown marker that this process found when it started, or -1
    if it found none (KIP-966). ``kept_epoch`` is the highest broker epoch that it found in its data directories, or -1;
    if it is below the registered epoch, the directories are an older copy. ``log_dirs`` contains the ids of the
    broker's online log directories (KIP-858); it is empty if the broker does not report them. ``inter_broker_listener``
    names the listener over which the broker connects to other brokers; it is empty if the broker does not report it.
    ``seen`` is the newest metadata that the broker had applied when it joined, in this process or an earlier one, and
    ``seen_leader_epoch`` the highest leader epoch of any partition. Only a registration on its way to the controller
    contains these two. ``host_label`` is the same for all brokers on a machine; it is empty if the broker counts as a
    machine by itself.
    """

    broker_id: int
    epoch: int
    incarnation_id: UUID
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    fenced: bool = False
    features: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    previous_epoch: int = -1
    kept_epoch: int = -1
    log_dirs: tuple[UUID, ...] = ()
    inter_broker_listener: str = ""
    seen: Term = NO_TERM
    seen_leader_epoch: int = -1
    host_label: str = ""

    def endpoint(self, listener: str) -> Endpoint | None:
        """Return the address of a listener, or None if the broker has no listener of this name."""
        return next((e for e in self.endpoints if e.listener == listener), None)


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The replicas of a partition, which of them may lead it, and its leader.

    ``replicas`` is in order of preference; the first one is the preferred leader. ``leader_epoch`` increases with every
    change of leader, ``partition_epoch`` with every change to this value (KIP-497). ``adding`` and ``removing`` are the
    replicas that a reassignment in progress adds and removes (KIP-455).

    ``elr`` contains the eligible leader replicas (KIP-966): replicas outside the ISR that contain every committed
    record. ``last_known_elr`` contains the replicas that had to leave the ISR or the ELR because they may have lost
    records, while the ISR was smaller than ``min.insync.replicas``. A recovery waits for their reports.

    ``directories`` contains, for each of ``replicas``, the id of its log directory (KIP-858); ``()`` means that all are
    unassigned. ``unclean_epoch`` is the last leader epoch that started with an unclean election or recovery, or -1.
    """

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    directories: tuple[UUID, ...] = ()
    unclean_epoch: int = -1

    @property
    def relies_on_elr(self) -> bool:
        """True if there is an ELR or a last known ELR. The high watermark does not advance until both are cleared."""
        return bool(self.elr or self.last_known_elr)

    def without_leader(self) -> PartitionState:
        """Return this state without its leader. A broker does this to all its partitions when it starts, so this is
        faster than ``dataclasses.replace``."""
        return PartitionState(
            self.replicas,
            self.isr,
            NO_LEADER,
            self.leader_epoch,
            self.partition_epoch,
            self.adding,
            self.removing,
            self.elr,
            self.last_known_elr,
            self.directories,
            self.unclean_epoch,
        )

    def directory(self, broker_id: int) -> UUID:
        """Return the id of the log directory of a broker's replica; ``UNASSIGNED_DIRECTORY`` if it is not known."""
        if not self.directories or broker_id not in self.replicas:
            return UNASSIGNED_DIRECTORY
        return self.directories[self.replicas.index(broker_id)]


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic: its name, its id (KIP-516), which no other topic ever has, and its partitions by index."""

    name: str
    topic_id: UUID
    partitions: tuple[PartitionState, ...]
