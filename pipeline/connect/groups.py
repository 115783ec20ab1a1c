"""The consumer group that a sink connector's offsets are kept in (``connect-<name>``): read, committed, forgotten.

Nobody joins the group: tasks share out partitions by their numbers, so offsets are committed as for a group without
members. Calls block and raise KafkaError; what may pass is retried as :mod:`pipeline.cluster` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pipeline.cluster import Cluster
from pipeline.fetching import TopicPartition
from protocol.client import Client
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.group_offsets import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest

__all__ = ["commit", "committed", "forget", "group_of"]

_COMMIT_NAMES_MAX: Final = 9
_FETCH_ONE_GROUP_MAX: Final = 7
"""Later versions name topics by id, or ask for several groups."""


def group_of(connector: str, config: Mapping[str, str]) -> str:
    """The group of a sink connector; it may be given another (``consumer.override.group.id``)."""
    return config.get("consumer.override.group.id") or f"connect-{connector}"


def committed(cluster: Cluster, group: str) -> dict[TopicPartition, int]:
    """All offsets that were committed for the group."""

    async def ask(client: Client) -> dict[TopicPartition, int]:
        node = await client.coordinator(group)
        version = min(await client.version_for(OffsetFetchRequest, node=node), _FETCH_ONE_GROUP_MAX)
        answer = await client.send(OffsetFetchRequest(group_id=group, topics=None), node=node, version=version)
        _check(answer.error_code, f"offsets of group {group}")
        return {
            TopicPartition(topic.name, one.partition_index): one.committed_offset
            for topic in answer.topics
            for one in topic.partitions
            if not one.error_code and one.committed_offset >= 0
        }

    return cluster.retry(ask)


def commit(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit offsets for the group. Raises KafkaError(UNKNOWN_MEMBER_ID) where somebody has joined it."""
    kind = OffsetCommitRequest
    topics: dict[str, Any] = {}
    for (name, index), offset in offsets.items():
        topic = topics.setdefault(name, kind.OffsetCommitRequestTopic(name=name, partitions=[]))
        topic.partitions.append(
            kind.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
        )

    async def ask(client: Client) -> None:
        node = await client.coordinator(group)
        version = min(await client.version_for(kind, node=node), _COMMIT_NAMES_MAX)
        answer = await client.send(kind(group_id=group, topics=list(topics.values())), node=node, version=version)
        for topic in answer.topics:
            for one in topic.partitions:
                _check(one.error_code, f"committing {topic.name}-{one.partition_index} for group {group}")

    if topics:
        cluster.retry(ask)


def forget(cluster: Cluster, group: str, partitions: Iterable[TopicPartition]) -> None:
    """Delete the group's offsets of these partitions; those that have none are left out."""
    kind = OffsetDeleteRequest
    topics: dict[str, Any] = {}
    for name, index in partitions:
        topic = topics.setdefault(name, kind.OffsetDeleteRequestTopic(name=name, partitions=[]))
        topic.partitions.append(kind.OffsetDeleteRequestPartition(partition_index=index))

    async def ask(client: Client) -> None:
        request = kind(group_id=group, topics=list(topics.values()))
        answer = await client.send(request, node=await client.coordinator(group))
        if answer.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
            _check(answer.error_code, f"forgetting offsets of group {group}")

    if topics:
        cluster.retry(ask)


def _check(code: int, what: str) -> None:
    if code:
        raise KafkaError(ErrorCode(code), what)
