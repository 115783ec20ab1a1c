"""A mirror's requests to a cluster, other than records: topics, settings, groups, and its own internal topics.

Every function blocks, and raises ``parley.protocol.errors.KafkaError``. Temporary errors are retried by the rules of
``parley.pipeline.client.cluster``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from parley.pipeline.client import group_offsets
from parley.pipeline.client.cluster import EARLIEST, LATEST, Cluster
from parley.pipeline.client.fetching import TopicPartition
from parley.pipeline.client.group_offsets import Committed
from parley.pipeline.mirror.internal_records import Encoded, MalformedRecord
from parley.pipeline.mirror.topics import Change, Setting
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError, check_code
from parley.protocol.messages.configs import DescribeConfigsRequest, IncrementalAlterConfigsRequest
from parley.protocol.messages.groups import DescribeGroupsRequest, ListGroupsRequest
from parley.protocol.messages.produce import ProduceRequest
from parley.protocol.messages.topics import CreatePartitionsRequest, CreateTopicsRequest
from parley.protocol.records.batch import build, records
from parley.protocol.records.batch_header import headers
from parley.protocol.records.record import Record
from parley.protocol.schema import ZERO_UUID

_TOPIC: Final = 2
_SET, _DELETE = 0, 1
_TIMEOUT_MS: Final = 30_000
_PRODUCE_NAMES_MAX: Final = 12
_RECORDS_AT_ONCE: Final = 1000

_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Overview:
    """The brokers of a cluster by id, and its topics with their numbers of partitions.

    ``ids`` are the topics' ids (KIP-516) as text, empty if the brokers send none; a topic that is created again gets
    another id. ``leaderless`` are the partitions that currently have no leader.
    """

    brokers: tuple[int, ...]
    topics: dict[str, int]
    ids: dict[str, str]
    leaderless: frozenset[TopicPartition]


def overview(cluster: Cluster) -> Overview:
    """Return the cluster's brokers and topics, including topics that currently have no leaders."""

    async def ask(client: Client) -> Overview:
        answer = await client.metadata()
        topics = {topic.name: topic for topic in answer.topics if topic.name and topic.partitions}
        return Overview(
            tuple(broker.node_id for broker in answer.brokers),
            {name: len(topic.partitions) for name, topic in topics.items()},
            {name: "" if topic.topic_id == ZERO_UUID else str(topic.topic_id) for name, topic in topics.items()},
            frozenset(
                TopicPartition(name, one.partition_index)
                for name, topic in topics.items()
                for one in topic.partitions
                if one.leader_id < 0
            ),
        )

    return cluster.retry(ask)


# Topics and their settings.


def create_topics(
    cluster: Cluster, topics: Mapping[str, int], replicas: int, settings: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    """Create topics with these numbers of partitions, with ``replicas`` replicas each, and with their ``settings``.
    Returns the error messages by topic. An existing topic is not an error.
    """
    kind = CreateTopicsRequest
    wanted = [
        kind.CreatableTopic(
            name=name,
            num_partitions=count,
            replication_factor=replicas,
            assignments=[],
            configs=[kind.CreatableTopicConfig(name=key, value=value) for key, value in settings.get(name, {}).items()],
        )
        for name, count in topics.items()
    ]

    async def ask(client: Client) -> dict[str, str]:
        request = kind(topics=wanted, timeout_ms=_TIMEOUT_MS)
        answer = await client.send(request, node=await client.controller())
        return _problems((one.name, one) for one in answer.topics if one.error_code != ErrorCode.TOPIC_ALREADY_EXISTS)

    return cluster.retry(ask) if wanted else {}


def grow_topics(cluster: Cluster, topics: Mapping[str, int]) -> dict[str, str]:
    """Increase the topics' numbers of partitions to these numbers. Returns the error messages by topic.

    A topic that already has this many partitions is not an error.
    """
    kind = CreatePartitionsRequest
    wanted = [kind.CreatePartitionsTopic(name=name, count=count, assignments=None) for name, count in topics.items()]

    async def ask(client: Client) -> dict[str, str]:
        request = kind(topics=wanted, timeout_ms=_TIMEOUT_MS)
        answer = await client.send(request, node=await client.controller())
        return _problems((one.name, one) for one in answer.results if one.error_code != ErrorCode.INVALID_PARTITIONS)

    return cluster.retry(ask) if wanted else {}


def _problems(answers: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """Return the error messages by name, without entries that have no error. Raises KafkaError for a
    temporary error.
    """
    found = {}
    for name, one in answers:
        if one.error_code:
            code = ErrorCode(one.error_code)
            if code.retriable:
                raise KafkaError(code, name)
            found[name] = f"{code.name}: {one.error_message or code.message}"
    return found


def topic_settings(cluster: Cluster, topics: Sequence[str]) -> dict[str, dict[str, Setting]]:
    """Return all settings of topics. Deleted topics are left out."""
    kind = DescribeConfigsRequest
    requested = [
        kind.DescribeConfigsResource(resource_type=_TOPIC, resource_name=name, configuration_keys=None)
        for name in topics
    ]

    async def ask(client: Client) -> dict[str, dict[str, Setting]]:
        answer = await client.send(kind(resources=requested))
        return {
            one.resource_name: {
                each.name: Setting(each.value, each.config_source, each.read_only, each.is_sensitive)
                for each in one.configs
            }
            for one in answer.results
            if not one.error_code
        }

    return cluster.retry(ask) if requested else {}


def alter_settings(cluster: Cluster, changes: Mapping[str, Sequence[Change]]) -> dict[str, str]:
    """Set settings of topics, and remove those whose new value is None. Returns the error messages by topic."""
    kind = IncrementalAlterConfigsRequest
    wanted = [
        kind.AlterConfigsResource(
            resource_type=_TOPIC,
            resource_name=name,
            configs=[
                kind.AlterableConfig(
                    name=change.name, config_operation=_DELETE if change.value is None else _SET, value=change.value
                )
                for change in some
            ],
        )
        for name, some in changes.items()
        if some
    ]

    async def ask(client: Client) -> dict[str, str]:
        answer = await client.send(kind(resources=wanted))
        return _problems((one.resource_name, one) for one in answer.responses)

    return cluster.retry(ask) if wanted else {}


# Consumer groups.


def consumer_groups(cluster: Cluster) -> list[str]:
    """Return the ids of all groups of consumers, sorted. Groups of Connect and of other protocols are left out."""

    async def ask(client: Client) -> list[str]:
        found: set[str] = set()
        for broker in (await client.metadata([])).brokers:
            answer = await client.send(ListGroupsRequest(), node=broker.node_id)
            check_code(answer.error_code, "groups")
            found |= {one.group_id for one in answer.groups if one.protocol_type in ("", "consumer")}
        return sorted(found)

    return cluster.retry(ask)


def group_state(cluster: Cluster, group: str) -> str:
    """Return the state of a group, as DescribeGroups names it; "" if the cluster has no such group."""

    async def ask(client: Client) -> str:
        answer = await client.send(DescribeGroupsRequest(groups=[group]), node=await client.coordinator(group))
        found = answer.groups[0]
        if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return ""
        check_code(found.error_code, f"group {group}")
        return str(found.group_state)

    return cluster.retry(ask)


def committed(cluster: Cluster, group: str) -> dict[TopicPartition, Committed]:
    """Return all offsets that a group has committed."""
    return cluster.retry(lambda client: group_offsets.committed(client, group))


def commit(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, Committed]) -> dict[TopicPartition, str]:
    """Commit offsets for a group without members. Returns the error names of rejected offsets, by partition."""
    refused = cluster.retry(lambda client: group_offsets.commit(client, group, offsets)) if offsets else {}
    return {place: ErrorCode(code).name for place, code in refused.items()}


# Internal topics.


def write(cluster: Cluster, partition: TopicPartition, some: Sequence[Encoded], timestamp: int) -> None:
    """Append records with acks=all. ``timestamp`` is in ms. A write that is repeated after a temporary error may
    duplicate records.
    """
    for at in range(0, len(some), _RECORDS_AT_ONCE):
        listed = [Record(0, timestamp, *one) for one in some[at : at + _RECORDS_AT_ONCE]]
        data = ProduceRequest.PartitionProduceData(index=partition.partition, records=bytes(build(listed)))
        topic = ProduceRequest.TopicProduceData(name=partition.topic, partition_data=[data])
        cluster.retry(_Sent(partition, ProduceRequest(acks=-1, timeout_ms=_TIMEOUT_MS, topic_data=[topic])).send)


class _Sent:
    def __init__(self, partition: TopicPartition, request: ProduceRequest) -> None:
        self._partition, self._request, self._fresh = partition, request, False

    async def send(self, client: Client) -> None:
        fresh, self._fresh = self._fresh, True
        node = await client.leader(*self._partition, fresh=fresh)
        version = min(await client.version_for(ProduceRequest, node=node), _PRODUCE_NAMES_MAX)
        answer = await client.send(self._request, node=node, version=version)
        found = answer.responses[0].partition_responses[0]
        check_code(found.error_code, f"writing to {self._partition}: {found.error_message or 'refused'}")


def read_all(cluster: Cluster, topic: str, partitions: int) -> Iterator[tuple[TopicPartition, Record]]:
    """Yield every record that a topic has now, with its partition, one partition after another."""
    places = [TopicPartition(topic, number) for number in range(partitions)]
    begins = cluster.offsets(dict.fromkeys(places, EARLIEST))
    ends = cluster.offsets(dict.fromkeys(places, LATEST))
    for place in places:
        for fetched in cluster.fetch(place, begins[place], ends[place]):
            for pos, header in headers(fetched.records):
                if not header.is_control:
                    for record in records(fetched.records, pos):
                        yield place, record


def read_decoded(cluster: Cluster, topic: str, decode: Callable[[bytes | None, bytes | None], T]) -> Iterator[T]:
    """Yield the decoded records of an internal topic. Skips tombstones, and skips malformed records with a log line."""
    partitions = overview(cluster).topics.get(topic, 0)
    for place, record in read_all(cluster, topic, partitions):
        if record.value is None:
            continue
        try:
            yield decode(record.key, record.value)
        except MalformedRecord as error:
            _log.warning("skipping offset %d of %s: %s", record.offset, place, error)
