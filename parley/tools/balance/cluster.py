"""The planner's view of a cluster: its brokers, and its partitions with their sizes and rates."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Broker:
    """A running broker. A field is None if the broker did not report it."""

    id: int
    rack: str | None = None
    disk: int | None = None
    """The total size of the volumes of its log directories, in bytes."""
    free: int | None = None
    """The free space on these volumes, in bytes."""
    host: str | None = None
    """The label of its machine (``broker.host.label``)."""

    @property
    def rack_name(self) -> str:
        """The rack, or ``host_name`` if the broker has no rack."""
        return self.rack or self.host_name

    @property
    def host_name(self) -> str:
        """The host label, or a name that only this broker has if it has no label."""
        return f"host {self.host}" if self.host else f"broker {self.id}"


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition: its replicas, and the load of each. ``replicas`` are the target replicas if it is being
    reassigned."""

    topic: str
    index: int
    replicas: tuple[int, ...]
    """The ids of its brokers, the preferred leader first. Some may be offline."""
    leader: int
    """The id of the leader, or -1."""
    size: int = 0
    """The size of the largest replica on disk, in bytes."""
    bytes_in: int = 0
    """The bytes per second that each replica receives from producers or from the leader."""
    bytes_out: int = 0
    """The bytes per second that the leader sends to followers and consumers."""
    is_moving: bool = False

    @property
    def can_move(self) -> bool:
        """False if a reassignment is already in progress, or if there is no leader from which a new replica could
        copy."""
        return not self.is_moving and self.leader >= 0


@dataclass(frozen=True, slots=True)
class Cluster:
    """The state of a cluster at one moment. Brokers are sorted by id, partitions by topic and index."""

    brokers: tuple[Broker, ...]
    partitions: tuple[Partition, ...]
