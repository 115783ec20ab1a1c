"""The progress of a reassignment: states of partitions and replicas, and the bytes copied so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from parley.protocol.client import Client
from parley.protocol.topic_partition import TopicPartition
from parley.tools.cli.byte_sizes import bytes_text
from parley.tools.cli.reassign import requests
from parley.tools.cli.reassign.plan import Plan, log_dir_moves, name_of, numbers
from parley.tools.cli.reassign.throttles import Ongoing


@dataclass(frozen=True, slots=True)
class PartitionMove:
    """A partition's current and target replicas, and whether the controller is moving it."""

    current: tuple[int, ...]
    target: tuple[int, ...]
    ongoing: Ongoing | None

    @property
    def is_done(self) -> bool:
        """True if the partition has its target replicas and is not moving."""
        return self.ongoing is None and self.current == self.target


@dataclass(frozen=True, slots=True)
class ReplicaMove:
    """A replica's current log directory, the directory it is moving to, and the directory in the plan. The first two
    are None if there is none."""

    current: str | None
    future: str | None
    target: str

    @property
    def is_ongoing(self) -> bool:
        """True if the broker is copying the replica to another log directory."""
        return self.future is not None


@dataclass(frozen=True, slots=True)
class Progress:
    """The bytes that a new replica has copied so far (``size``), out of the partition's size (``of``)."""

    partition: TopicPartition
    broker: int
    size: int
    of: int


@dataclass(frozen=True, slots=True)
class Verification:
    """The results of ``--verify``."""

    partitions: Mapping[TopicPartition, PartitionMove]
    replicas: Mapping[tuple[str, int, int], ReplicaMove]
    progress: Sequence[Progress]

    @property
    def is_ongoing(self) -> bool:
        """True while a move is in progress. Throttles stay in place until then."""
        return any(one.ongoing for one in self.partitions.values()) or any(
            one.is_ongoing for one in self.replicas.values()
        )


async def verify(client: Client, plan: Plan) -> Verification:
    """Return the progress of a plan. Raises ``CommandError`` if the cluster rejects a request."""
    current = await requests.replicas(client, {topic for topic, _ in plan})
    moving = await requests.ongoing(client, plan)
    partitions = {
        where: PartitionMove(current.get(where, ()), target.replicas, moving.get(where))
        for where, target in sorted(plan.items())
    }
    wanted = log_dir_moves(plan)
    disks = await requests.on_disk(
        client,
        {*moving, *((topic, index) for topic, index, _ in wanted)},
        {broker for one in moving.values() for broker in one.replicas} | {broker for _, _, broker in wanted},
    )
    replicas = {replica: _replica_move(disks.get(replica), target) for replica, target in sorted(wanted.items())}
    return Verification(partitions, replicas, _progress(moving, disks))


def _replica_move(found: requests.ReplicaOnDisk | None, target: str) -> ReplicaMove:
    if found is None:
        return ReplicaMove(None, None, target)
    return ReplicaMove(found.directory or None, found.future_directory, target)


def _progress(moving: Mapping[TopicPartition, Ongoing], disks: requests.ReplicasOnDisk) -> list[Progress]:
    """Return the progress of each replica being added. The partition's size is that of its largest replica."""
    found = []
    for where, one in sorted(moving.items()):
        sizes = {broker: disks[replica].size for broker in one.replicas if (replica := (*where, broker)) in disks}
        found += [
            Progress(where, broker, sizes.get(broker, 0), max(sizes.values(), default=0)) for broker in one.adding
        ]
    return found


def partition_line(where: TopicPartition, one: PartitionMove) -> str:
    """Format the state of a partition as Kafka's tool does."""
    if one.ongoing is not None:
        return f"Reassignment of partition {name_of(where)} is still in progress."
    if one.is_done:
        return f"Reassignment of partition {name_of(where)} is completed."
    return (
        f"There is no active reassignment of partition {name_of(where)}, but replica set is {numbers(one.current)} "
        f"rather than {numbers(one.target)}."
    )


def replica_line(replica: tuple[str, int, int], one: ReplicaMove) -> str:
    """Format the state of a replica's log directory as Kafka's tool does."""
    topic, index, broker = replica
    where = f"{topic}-{index}"
    if one.current is None and one.future is None:
        return f"Partition {where} cannot be found in any live log directory on broker {broker}."
    if one.future == one.target:
        return f"Reassignment of replica {where}-{broker} is still in progress."
    if one.future is not None:
        return f"Partition {where} on broker {broker} is being moved to log dir {one.future} instead of {one.target}."
    if one.current == one.target:
        return f"Reassignment of replica {where}-{broker} completed successfully."
    return f"Partition {where} on broker {broker} is not being moved from log dir {one.current} to {one.target}."


def progress_line(one: Progress) -> str:
    """Format the progress of a new replica."""
    percent = f"{one.size * 100 // one.of} %" if one.of else "nothing to copy"
    size, of = bytes_text(one.size), bytes_text(one.of)
    return f"  {name_of(one.partition)}: broker {one.broker} has {size} of {of} ({percent})"


def as_data(found: Verification) -> dict[str, object]:
    """Return the results as JSON data."""
    return {
        "completed": not found.is_ongoing and all(one.is_done for one in found.partitions.values()),
        "partitions": [
            {
                "topic": topic,
                "partition": index,
                "current": list(one.current),
                "target": list(one.target),
                "inProgress": one.ongoing is not None,
            }
            for (topic, index), one in found.partitions.items()
        ],
        "logDirs": [
            {
                "topic": topic,
                "partition": index,
                "broker": broker,
                "current": one.current,
                "future": one.future,
                "target": one.target,
            }
            for (topic, index, broker), one in found.replicas.items()
        ],
        "progress": [
            {
                "topic": one.partition[0],
                "partition": one.partition[1],
                "broker": one.broker,
                "bytes": one.size,
                "ofBytes": one.of,
            }
            for one in found.progress
        ],
    }
