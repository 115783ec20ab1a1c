"""Look up offsets of partitions by time or position, with ListOffsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.offsets import ListOffsetsRequest
from parley.protocol.topic_partition import TopicPartition
from parley.tools.cli.cluster_client import by_leader, by_topic

_AT_ONCE: Final = 2000
"""The maximum number of partitions in one request."""
LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3


@dataclass(frozen=True, slots=True)
class FoundOffset:
    """The response of a partition's leader. ``offset`` is -1 if no offset was found."""

    offset: int
    timestamp: int
    leader_epoch: int
    error: ErrorCode


async def list_offsets(
    client: Client, wanted: Iterable[TopicPartition], timestamp: int = LATEST
) -> dict[TopicPartition, FoundOffset]:
    """Look up a time (ms since 1970) or a position (``LATEST``, ``EARLIEST``) in each partition. An error of a
    partition is in its result. Raises ``KafkaError`` if a partition has no leader, or a broker does not respond."""
    return await list_offsets_of(client, await by_leader(client, wanted), timestamp)


async def list_offsets_of(
    client: Client, led: Mapping[int, Sequence[TopicPartition]], timestamp: int = LATEST
) -> dict[TopicPartition, FoundOffset]:
    """Look up a time or position in the partitions that each broker leads, as ``list_offsets`` does. ``led`` has the
    partitions by the id of their leader. Raises ``KafkaError`` if a broker does not respond."""
    found: dict[TopicPartition, FoundOffset] = {}
    for node, partitions in led.items():
        for begin in range(0, len(partitions), _AT_ONCE):
            answer = await client.send(_request(partitions[begin : begin + _AT_ONCE], timestamp), node=node)
            for topic in answer.topics:
                for one in topic.partitions:
                    found[topic.name, one.partition_index] = FoundOffset(
                        one.offset, one.timestamp, one.leader_epoch, ErrorCode(one.error_code)
                    )
    return found


def _request(partitions: Iterable[TopicPartition], timestamp: int) -> ListOffsetsRequest:
    return ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsRequest.ListOffsetsTopic(
                name=topic,
                partitions=[
                    ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=timestamp)
                    for index in indexes
                ],
            )
            for topic, indexes in by_topic(partitions).items()
        ],
    )
