"""End a transaction by force: in one partition by a marker, or at its coordinator by fencing the producer."""

from __future__ import annotations

from dataclasses import dataclass

from parley.protocol.client import Client
from parley.protocol.messages.producers import InitProducerIdRequest
from parley.protocol.messages.transactions import WriteTxnMarkersRequest
from parley.tools.cli.cluster_client import TIMEOUT_MS, check, until_ready
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.transactions.states import describe_producers, describe_transaction, of_coordinator, unknown_id


@dataclass(frozen=True, slots=True)
class Marker:
    """An abort marker for one partition."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int


async def marker_for(client: Client, topic: str, partition: int, start_offset: int) -> Marker:
    """Return the marker that aborts the transaction starting at an offset. Raises ``CommandError`` if there is none."""
    async for _, producers in describe_producers(client, [(topic, partition)]):
        for one in producers:
            if one.start_offset == start_offset:
                epoch = max(one.coordinator_epoch, 0)
                return Marker(topic, partition, one.producer_id, one.producer_epoch, epoch)
    raise CommandError(
        f"No open transaction starts at offset {start_offset} in {topic}-{partition}. "
        f"`parley transactions find-hanging --topic {topic}` shows those that hang."
    )


async def abort(client: Client, marker: Marker) -> None:
    """Write an abort marker to the partition without involving the coordinator. Raises ``CommandError`` if the leader
    rejects it."""
    topics = [WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=marker.topic, partition_indexes=[marker.partition])]
    request = WriteTxnMarkersRequest(
        markers=[
            WriteTxnMarkersRequest.WritableTxnMarker(
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                transaction_result=False,
                topics=topics,
                coordinator_epoch=marker.coordinator_epoch,
            )
        ]
    )

    async def ask() -> int:
        node = await client.leader(marker.topic, marker.partition, fresh=True)
        answer = await client.send(request, node=node)
        return int(answer.markers[0].topics[0].partitions[0].error_code)

    code = await until_ready(ask, lambda code: code, TIMEOUT_MS)
    check(code, doing=f"Failed to abort the transaction of producer {marker.producer_id}")


async def force_terminate(client: Client, transactional_id: str) -> None:
    """Abort the open transaction of a transactional id, and fence its producers. Returns when the abort is complete.

    The coordinator handles the request like a new producer with this id. Raises ``CommandError`` if the coordinator
    rejects it, or does not know the id, because the request would create it.
    """
    if await describe_transaction(client, transactional_id) is None:
        raise unknown_id(transactional_id)
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS)
    _, answer = await of_coordinator(client, transactional_id, request, lambda answer: int(answer.error_code))
    check(answer.error_code, doing=f"Failed to force terminate transactional-id `{transactional_id}`")
