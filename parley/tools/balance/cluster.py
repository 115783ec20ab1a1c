"""What the planner knows of a cluster: its brokers, and its partitions with their sizes and rates."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Broker:
    """A running broker. None stands for what it did not report."""

    id: int
    rack: str | None = None
    disk: int | None = None
    """The size of the volumes of its log directories, in bytes."""
    free: int | None = None
    """How much of that is free, in bytes."""

    @property
    def rack_name(self) -> str:
        """The rack; a broker without one has its own."""
        return self.rack or f"broker {self.id}"


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition: where it is, and what each replica costs. If it is moving, ``replicas`` are those of the target."""

    topic: str
    index: int
    replicas: tuple[int, ...]
    """The ids of its brokers, the preferred leader first. Some may not run."""
    leader: int
    """The id of the leader, or -1."""
    size: int = 0
    """The bytes on disk of the largest replica."""
    bytes_in: int = 0
    """The bytes per second that each replica receives: from producers or from the leader."""
    bytes_out: int = 0
    """The bytes per second that the leader sends: to followers and consumers."""
    is_moving: bool = False


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster at a moment. Brokers are sorted by id, partitions by topic and index."""

    brokers: tuple[Broker, ...]
    partitions: tuple[Partition, ...]
