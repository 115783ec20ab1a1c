"""Reads, commits and deletes the offsets of a sink connector in its consumer group (``connect-<name>``).

The group has no members: tasks share partitions by their numbers, so offsets are committed as for a group without
members. Calls block and raise KafkaError. Temporary errors are retried by the rules of
``parley.pipeline.client.cluster``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from parley.pipeline.client import group_offsets
from parley.pipeline.client.cluster import Cluster
from parley.pipeline.client.fetching import TopicPartition
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, check_code
from parley.protocol.messages.group_offsets import OffsetDeleteRequest


def group_of(connector: str, config: Mapping[str, str]) -> str:
    """Return the consumer group of a sink connector: ``consumer.override.group.id`` if it is set, otherwise
    ``connect-<name>``.
    """
    return config.get("consumer.override.group.id") or f"connect-{connector}"


def committed(cluster: Cluster, group: str) -> dict[TopicPartition, int]:
    """Return all committed offsets of the group."""
    found = cluster.retry(lambda client: group_offsets.committed(client, group))
    return {place: one.offset for place, one in found.items()}


def commit(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int], check: Callable[[], None] | None = None
) -> None:
    """Commit offsets for the group. Raises KafkaError(UNKNOWN_MEMBER_ID) if the group has members.

    ``check`` is called before each attempt, in the event-loop thread of ``cluster``, so it must not block. If it
    raises, there is no further attempt.
    """
    wanted = {place: group_offsets.Committed(offset) for place, offset in offsets.items()}

    async def ask(client: Client) -> None:
        if check is not None:
            check()
        for place, code in (await group_offsets.commit(client, group, wanted)).items():
            check_code(code, f"committing {place.topic}-{place.partition} for group {group}")

    if wanted:
        cluster.retry(ask)


def forget(cluster: Cluster, group: str, partitions: Iterable[TopicPartition]) -> None:
    """Delete the group's offsets of these partitions. Partitions without offsets are ignored.

    Raises KafkaError(GROUP_SUBSCRIBED_TO_TOPIC) if the group has a member that subscribes to one of the topics.
    """
    kind = OffsetDeleteRequest
    topics: dict[str, Any] = {}
    for name, index in partitions:
        topic = topics.setdefault(name, kind.OffsetDeleteRequestTopic(name=name, partitions=[]))
        topic.partitions.append(kind.OffsetDeleteRequestPartition(partition_index=index))

    async def ask(client: Client) -> None:
        request = kind(group_id=group, topics=list(topics.values()))
        answer = await client.send(request, node=await client.coordinator(group))
        if answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return
        check_code(answer.error_code, f"deleting offsets of group {group}")
        for topic in answer.topics:
            for each in topic.partitions:
                if each.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    place = f"{topic.name}-{each.partition_index}"
                    check_code(each.error_code, f"deleting the offset of {place} of group {group}")

    if topics:
        cluster.retry(ask)
