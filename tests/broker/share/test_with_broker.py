"""Share partitions of a real broker: acknowledgements are stored, and acknowledged records are not redelivered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parley import Broker
from parley.broker.coordinators.share_state.share_partition_key import SharePartitionKey
from parley.broker.share.acknowledgements import ACCEPT, RELEASE
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.produce import ProduceRequest
from parley.protocol.messages.share_groups import ShareFetchRequest
from parley.protocol.messages.share_state import InitializeShareGroupStateRequest
from parley.protocol.messages.topics import CreateTopicsRequest
from parley.protocol.uuids import UUID
from tests.broker.api.bench import batch

pytestmark = pytest.mark.slow

SIZE = 20_000
"""The bytes of a record: responses with it are sent from the file."""


async def test_a_restart_delivers_unacknowledged_records(tmp_path: Path) -> None:
    settings = {"share.coordinator.state.topic.num.partitions": 1, "group.share.record.lock.duration.ms": 15_000}
    with Broker(settings, data_dir=tmp_path) as broker:
        async with Client([("127.0.0.1", broker.server.endpoints[0].port)]) as client:
            topic_id = await _topic_with_records(client)
            acquired = await _fetch(client, topic_id, 0)
            assert acquired == [(0, 9, 1)]
            assert await _fetch(client, topic_id, 1, (0, 3, ACCEPT), (4, 4, RELEASE)) == [(4, 4, 2)]
    with Broker(settings, data_dir=tmp_path) as broker:
        async with Client([("127.0.0.1", broker.server.endpoints[0].port)]) as client:
            assert await _fetch(client, topic_id, 0) == [(4, 4, 3), (5, 9, 2)]
            assert await _fetch(client, topic_id, 1, (4, 9, ACCEPT), max_wait_ms=0) == []


async def _topic_with_records(client: Client) -> UUID:
    make = CreateTopicsRequest.CreatableTopic
    topic = make(name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[])
    topic_id: UUID = (await client.send(CreateTopicsRequest(topics=[topic]))).topics[0].topic_id
    state = InitializeShareGroupStateRequest
    partition = state.PartitionData(partition=0, state_epoch=0, start_offset=0)
    begin = state(group_id="group", topics=[state.InitializeStateData(topic_id=topic_id, partitions=[partition])])
    code: int = ErrorCode.COORDINATOR_NOT_AVAILABLE
    while code in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR):
        await client.coordinator(SharePartitionKey("group", topic_id, 0).text, 2)
        code = (await client.send(begin)).results[0].partitions[0].error_code
    assert code == ErrorCode.NONE
    data = ProduceRequest.PartitionProduceData(index=0, records=bytes(batch(10, size=SIZE)))
    named = ProduceRequest.TopicProduceData(name="t", topic_id=topic_id, partition_data=[data])
    await client.send(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[named]))
    return topic_id


async def _fetch(
    client: Client, topic_id: UUID, epoch: int, *acknowledged: tuple[int, int, int], **values: Any
) -> list[tuple[int, int, int]]:
    make = ShareFetchRequest
    batches = [
        make.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=[kind])
        for first, last, kind in acknowledged
    ]
    partition = make.FetchPartition(partition_index=0, acknowledgement_batches=batches)
    request = {"max_wait_ms": 30_000, "min_bytes": 1, "max_records": 500, "batch_size": 500, **values}
    response = await client.send(
        make(
            group_id="group",
            member_id="member",
            share_session_epoch=epoch,
            topics=[make.FetchTopic(topic_id=topic_id, partitions=[partition])],
            forgotten_topics_data=[],
            **request,
        )
    )
    assert response.error_code == ErrorCode.NONE
    data = response.responses[0].partitions[0]
    assert (data.error_code, data.acknowledge_error_code) == (0, 0), data.error_message
    if data.acquired_records:
        assert len(data.records) > 10 * SIZE
    return [(each.first_offset, each.last_offset, each.delivery_count) for each in data.acquired_records]
