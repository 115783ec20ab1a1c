"""Fetches and commits the offsets of a consumer group.

Nothing here joins a group: offsets are committed as for a group without members. Call the functions through
``parley.pipeline.client.cluster.Cluster.retry``. They raise KafkaError.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from parley.pipeline.client.fetching import TopicPartition
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, check_code
from parley.protocol.messages.group_offsets import OffsetCommitRequest, OffsetFetchRequest

_COMMIT_NAMES_MAX: Final = 9
_STABLE_VERSION: Final = 7
_FETCH_ONE_GROUP_MAX: Final = 7
"""The last version for one group: later versions name topics by id, or fetch the offsets of several groups."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A group's committed offset (of the next record to read) and its metadata."""

    offset: int
    metadata: str = ""


async def committed(client: Client, group: str, *, stable: bool = False) -> dict[TopicPartition, Committed]:
    """Return all committed offsets of the group; empty if there are none.

    With ``stable``, raises KafkaError(UNSTABLE_OFFSET_COMMIT), which is temporary, if a transaction with a newer commit
    has not ended yet (KIP-447; brokers before 2.5 return the older commit).
    """
    node = await client.coordinator(group)
    version = min(await client.version_for(OffsetFetchRequest, node=node), _FETCH_ONE_GROUP_MAX)
    request = OffsetFetchRequest(group_id=group, topics=None)
    request.require_stable = stable and version >= _STABLE_VERSION
    answer = await client.send(request, node=node, version=version)
    codes = {one.error_code for topic in answer.topics for one in topic.partitions}
    code = ErrorCode.UNSTABLE_OFFSET_COMMIT if ErrorCode.UNSTABLE_OFFSET_COMMIT in codes else answer.error_code
    check_code(code, f"offsets of group {group}")
    return {
        TopicPartition(topic.name, one.partition_index): Committed(one.committed_offset, one.metadata or "")
        for topic in answer.topics
        for one in topic.partitions
        if not one.error_code and one.committed_offset >= 0
    }


async def commit(client: Client, group: str, offsets: Mapping[TopicPartition, Committed]) -> dict[TopicPartition, int]:
    """Commit offsets of a group without members. Returns the error codes of rejected offsets, by partition."""
    kind = OffsetCommitRequest
    topics: dict[str, Any] = {}
    for place, one in offsets.items():
        topic = topics.setdefault(place.topic, kind.OffsetCommitRequestTopic(name=place.topic, partitions=[]))
        topic.partitions.append(
            kind.OffsetCommitRequestPartition(
                partition_index=place.partition, committed_offset=one.offset, committed_metadata=one.metadata
            )
        )
    node = await client.coordinator(group)
    version = min(await client.version_for(kind, node=node), _COMMIT_NAMES_MAX)
    answer = await client.send(kind(group_id=group, topics=list(topics.values())), node=node, version=version)
    return {
        TopicPartition(topic.name, one.partition_index): one.error_code
        for topic in answer.topics
        for one in topic.partitions
        if one.error_code
    }
