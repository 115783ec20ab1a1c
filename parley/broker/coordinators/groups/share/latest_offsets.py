"""The latest offsets of partitions, from their leaders. The coordinator needs them to compute the lag of a group."""

from __future__ import annotations

from typing import Final

from parley.broker.metadata.current import Metadata
from parley.broker.metadata.types import NO_LEADER
from parley.broker.network.peers import Peers
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.offsets import ListOffsetsRequest

_CONSUMER: Final = -1
"""The replica id of a consumer, which sees records up to the high watermark."""

_LATEST: Final = -1
"""The special timestamp that requests the latest offset."""


class LatestOffsets:
    """A client that requests the latest offsets of partitions from their leaders."""

    def __init__(self, broker_id: int, partitions: HostedPartitions, metadata: Metadata, peers: Peers) -> None:
        self._broker_id = broker_id
        self._partitions = partitions
        self._metadata = metadata
        self._peers = peers

    async def of(self, topic: str, index: int) -> int:
        """Return the high watermark of a partition. Raises KafkaError if its leader is unknown, cannot be reached
        (NETWORK_EXCEPTION), or returns an error."""
        state = self._metadata.image.partition(topic, index)
        if state is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if state.leader == self._broker_id:
            replica = self._partitions.find(topic, index)
            replica.check_leader()
            return replica.high_watermark
        if state.leader == NO_LEADER:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
        make = ListOffsetsRequest
        requested = make.ListOffsetsPartition(partition_index=index, timestamp=_LATEST)
        topics = [make.ListOffsetsTopic(name=topic, partitions=[requested])]
        request = make(replica_id=_CONSUMER, topics=topics)
        try:
            response = await self._peers.ask(state.leader, request)
        except OSError as error:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, str(error)) from error
        found = response.topics[0].partitions[0]
        if found.error_code != ErrorCode.NONE:
            raise KafkaError(ErrorCode(found.error_code))
        return int(found.offset)
