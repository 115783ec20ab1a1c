"""The requests of a reassignment: read and change replicas, moves in progress, log directories and throttles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from parley.broker.metadata.types import BrokerRegistration
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.host_label import host_label_of
from parley.protocol.messages.configs import IncrementalAlterConfigsRequest
from parley.protocol.messages.elections import AlterPartitionReassignmentsRequest, ListPartitionReassignmentsRequest
from parley.protocol.messages.log_dirs import AlterReplicaLogDirsRequest, DescribeLogDirsRequest
from parley.protocol.topic_partition import TopicPartition
from parley.tools.cli.cluster import describe
from parley.tools.cli.cluster_client import TIMEOUT_MS, by_topic, check, described
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.reassign.plan import name_of
from parley.tools.cli.reassign.throttles import Ongoing

TOPIC, BROKER = 2, 4
"""The types of configuration resources."""
_SET, _DELETE = 0, 1
_NOT_YET: Final = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REPLICA_NOT_AVAILABLE,
)
"""The errors of a broker that does not host the partition yet. It will create the replica in the directory chosen for
it."""


@dataclass(frozen=True, slots=True)
class ReplicaOnDisk:
    """A replica on a broker: its log directory and size, and, while the broker moves it to another directory, that
    directory and the bytes copied."""

    directory: str
    size: int
    future_directory: str | None = None
    future_size: int = 0


ReplicasOnDisk = dict[tuple[str, int, int], ReplicaOnDisk]


async def brokers(client: Client) -> list[Any]:
    """Return the running brokers, sorted by id. Raises ``CommandError`` if the cluster rejects the request."""
    return sorted((await describe(client, fenced=False)).brokers, key=lambda broker: broker.broker_id)


async def replicas(client: Client, topics: Iterable[str]) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the replicas of every partition of these topics. Omits topics that do not exist. Raises ``CommandError``
    if a topic cannot be described."""
    names = sorted(set(topics))
    found = (await client.metadata(names)).topics if names else []
    for topic in found:
        if topic.error_code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            check(topic.error_code, doing=f"Topic {topic.name}")
    return {
        (topic.name or "", one.partition_index): tuple(one.replica_nodes) for topic in found for one in topic.partitions
    }


async def ongoing(client: Client, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, Ongoing]:
    """Return the moves in progress of these partitions, or of all if ``partitions`` is None. Raises ``CommandError`` if
    the controller rejects the request."""
    request = ListPartitionReassignmentsRequest(timeout_ms=TIMEOUT_MS)
    if partitions is not None:
        request.topics = [
            ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics(name=topic, partition_indexes=indexes)
            for topic, indexes in by_topic(partitions).items()
        ]
    answer = await client.send(request, node=await client.controller())
    check(answer.error_code, answer.error_message)
    return {
        (topic.name, one.partition_index): Ongoing(
            tuple(one.replicas), tuple(one.adding_replicas), tuple(one.removing_replicas)
        )
        for topic in answer.topics
        for one in topic.partitions
    }


async def reassign(
    client: Client, plan: Mapping[TopicPartition, Sequence[int] | None], *, may_change_factor: bool = True
) -> dict[TopicPartition, str]:
    """Start moves to these replicas, or cancel those whose target is None. Returns an error message for each partition
    that failed. Raises ``CommandError`` if the whole request fails."""
    request_type = AlterPartitionReassignmentsRequest
    version = await client.version_for(request_type)
    if not may_change_factor and version < 1:
        raise CommandError("The brokers are too old for --disallow-replication-factor-change.")
    request = request_type(
        timeout_ms=TIMEOUT_MS,
        allow_replication_factor_change=may_change_factor,
        topics=[
            request_type.ReassignableTopic(
                name=topic,
                partitions=[
                    request_type.ReassignablePartition(partition_index=index, replicas=_listed(plan[topic, index]))
                    for index in indexes
                ],
            )
            for topic, indexes in by_topic(plan).items()
        ],
    )
    answer = await client.send(request, node=await client.controller())
    check(answer.error_code, answer.error_message)
    return {
        (topic.name, one.partition_index): described(one.error_code, one.error_message)
        for topic in answer.responses
        for one in topic.partitions
        if one.error_code
    }


def _listed(replicas: Sequence[int] | None) -> list[int] | None:
    return None if replicas is None else list(replicas)


async def on_disk(client: Client, partitions: Iterable[TopicPartition], brokers: Iterable[int]) -> ReplicasOnDisk:
    """Return the directories of these partitions' replicas. Brokers that do not respond are omitted."""
    wanted = by_topic(partitions)
    request = DescribeLogDirsRequest(
        topics=[
            DescribeLogDirsRequest.DescribableLogDirTopic(topic=topic, partitions=indexes)
            for topic, indexes in wanted.items()
        ]
    )
    found: ReplicasOnDisk = {}
    for broker in sorted(set(brokers)):
        try:
            answer = await client.send(request, node=broker)
        except KafkaError:
            continue
        for directory in answer.results:
            for topic in directory.topics:
                for one in topic.partitions:
                    _note(found, (topic.name, one.partition_index, broker), directory.log_dir, one)
    return found


def _note(found: ReplicasOnDisk, replica: tuple[str, int, int], directory: str, one: Any) -> None:
    known = found.get(replica, ReplicaOnDisk("", 0))
    found[replica] = (
        ReplicaOnDisk(known.directory, known.size, directory, one.partition_size)
        if one.is_future_key
        else ReplicaOnDisk(directory, one.partition_size, known.future_directory, known.future_size)
    )


async def place(client: Client, wanted: Mapping[tuple[str, int, int], str]) -> set[tuple[str, int, int]]:
    """Assign replicas to log directories. Returns the replicas that their broker does not host yet: the caller repeats
    the request for them later.

    Raises ``CommandError`` if a broker rejects the request.
    """
    request_type = AlterReplicaLogDirsRequest
    waiting = set()
    for broker in sorted({broker for _, _, broker in wanted}):
        there = {(topic, index): path for (topic, index, on), path in wanted.items() if on == broker}
        request = request_type(
            dirs=[
                request_type.AlterReplicaLogDir(
                    path=path,
                    topics=[
                        request_type.AlterReplicaLogDirTopic(name=topic, partitions=indexes)
                        for topic, indexes in by_topic(each for each in there if there[each] == path).items()
                    ],
                )
                for path in sorted(set(there.values()))
            ]
        )
        answer = await client.send(request, node=broker)
        for topic in answer.results:
            for one in topic.partitions:
                where = (topic.topic_name, one.partition_index)
                if one.error_code in _NOT_YET:
                    waiting.add((*where, broker))
                else:
                    check(one.error_code, doing=f"Failed to alter dir for {name_of(where)}-{broker}")
    return waiting


async def set_configs(
    client: Client, topics: Mapping[str, Mapping[str, str | None]], brokers: Mapping[int, Any]
) -> None:
    """Set settings of topics and brokers, or remove those that are None.

    Raises ``CommandError`` if any change is rejected.
    """
    request_type = IncrementalAlterConfigsRequest

    def resource(kind: int, name: str, settings: Mapping[str, str | None]) -> Any:
        return request_type.AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[
                request_type.AlterableConfig(name=key, config_operation=_DELETE if value is None else _SET, value=value)
                for key, value in settings.items()
            ],
        )

    async def alter(resources: list[Any], node: int) -> None:
        answer = await client.send(request_type(resources=resources), node=node)
        for result in answer.responses:
            check(result.error_code, result.error_message, doing=f"The settings of {result.resource_name}")

    if topics:
        await alter([resource(TOPIC, name, each) for name, each in topics.items()], await client.controller())
    for broker, settings in brokers.items():
        await alter([resource(BROKER, str(broker), settings)], broker)


def registrations(brokers: Sequence[Any]) -> list[BrokerRegistration]:
    """Return the brokers as registrations, for the placement of replicas."""
    from parley.protocol.uuids import UUID

    return [
        BrokerRegistration(one.broker_id, 0, UUID(int=0), (), rack=one.rack, host_label=host_label_of(one) or "")
        for one in brokers
    ]
