"""The requests that brokers send to the share coordinator, on a real broker."""

from __future__ import annotations

from parley import Broker
from parley.broker.coordinators.share_state.share_partition_key import SharePartitionKey
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.groups import FindCoordinatorRequest
from parley.protocol.messages.share_state import (
    DeleteShareGroupStateRequest,
    InitializeShareGroupStateRequest,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadShareGroupStateSummaryRequest,
    WriteShareGroupStateRequest,
)
from parley.protocol.messages.topics import CreateTopicsRequest
from parley.protocol.uuids import UUID

GROUP = "queue:with:colons"


async def test_state_of_share_partitions_is_stored_and_read() -> None:
    with Broker() as broker:
        client = Client([("127.0.0.1", broker.server.endpoints[0].port)])
        try:
            await _check(client)
        finally:
            await client.close()


async def _check(client: Client) -> None:
    make = CreateTopicsRequest.CreatableTopic
    topic = make(name="t", num_partitions=2, replication_factor=1, assignments=[], configs=[])
    topic_id: UUID = (await client.send(CreateTopicsRequest(topics=[topic]))).topics[0].topic_id
    key = SharePartitionKey(GROUP, topic_id, 0)
    assert await _find(client, key.text) is ErrorCode.NONE
    for malformed in ("", "g", "g:x:0", f":{key.text.split(':')[-2]}:0", f"{key.text}x"):
        assert await _find(client, malformed) is ErrorCode.INVALID_REQUEST

    assert await _initialize(client, topic_id, 0, 1, -1, 2) == {
        0: ErrorCode.NONE,
        1: ErrorCode.NONE,
        -1: ErrorCode.INVALID_REQUEST,
        2: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert await _initialize(client, UUID(int=7), 0) == {0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert await _write(client, topic_id, leader_epoch=0, state_epoch=3) is ErrorCode.FENCED_STATE_EPOCH
    assert (await _read(client, topic_id, leader_epoch=0)).start_offset == -1
    assert await _write(client, topic_id, leader_epoch=0, state_epoch=3) is ErrorCode.NONE
    assert await _write(client, topic_id, leader_epoch=0, state_epoch=2) is ErrorCode.FENCED_STATE_EPOCH

    state = await _read(client, topic_id, leader_epoch=4)
    assert (state.state_epoch, state.start_offset) == (3, 5)
    assert [(b.first_offset, b.last_offset, b.delivery_state, b.delivery_count) for b in state.state_batches] == [
        (6, 8, 2, 1)
    ]
    assert await _write(client, topic_id, leader_epoch=3, state_epoch=3) is ErrorCode.FENCED_LEADER_EPOCH

    summary = ReadShareGroupStateSummaryRequest
    wanted = summary.ReadStateSummaryData(
        topic_id=topic_id, partitions=[summary.PartitionData(partition=each, leader_epoch=0) for each in (0, 1)]
    )
    found = (await client.send(summary(group_id=GROUP, topics=[wanted]))).results[0].partitions
    assert [(each.start_offset, each.leader_epoch, each.delivery_complete_count) for each in found] == [
        (5, 4, 2),
        (-1, 0, -1),
    ]

    assert await _delete(client, topic_id, state_epoch=2) is ErrorCode.FENCED_STATE_EPOCH
    assert await _begin_again(client, topic_id, leader_epoch=3) is ErrorCode.FENCED_LEADER_EPOCH
    assert await _begin_again(client, topic_id, leader_epoch=4) is ErrorCode.NONE
    assert (await _read(client, topic_id, leader_epoch=4)).state_batches == []
    for _ in range(2):
        assert await _delete(client, topic_id, state_epoch=3) is ErrorCode.NONE
    assert await _begin_again(client, topic_id, leader_epoch=4) is ErrorCode.INVALID_REQUEST
    assert await _write(client, topic_id, leader_epoch=4, state_epoch=3) is ErrorCode.INVALID_REQUEST


async def _find(client: Client, key: str) -> ErrorCode:
    (found,) = (await client.send(FindCoordinatorRequest(key_type=2, coordinator_keys=[key]))).coordinators
    return ErrorCode(found.error_code)


async def _read(client: Client, topic_id: UUID, *, leader_epoch: int) -> ReadShareGroupStateResponse.PartitionResult:
    make = ReadShareGroupStateRequest
    asked = make.ReadStateData(
        topic_id=topic_id, partitions=[make.PartitionData(partition=0, leader_epoch=leader_epoch)]
    )
    response: ReadShareGroupStateResponse = await client.send(make(group_id=GROUP, topics=[asked]))
    return response.results[0].partitions[0]


async def _begin_again(client: Client, topic_id: UUID, *, leader_epoch: int) -> ErrorCode:
    make = InitializeShareGroupStateRequest
    data = make.PartitionData(partition=0, state_epoch=3, start_offset=5, leader_epoch=leader_epoch)
    topics = [make.InitializeStateData(topic_id=topic_id, partitions=[data])]
    response = await client.send(make(group_id=GROUP, topics=topics))
    return ErrorCode(response.results[0].partitions[0].error_code)


async def _delete(client: Client, topic_id: UUID, *, state_epoch: int) -> ErrorCode:
    make = DeleteShareGroupStateRequest
    data = make.PartitionData(partition=0, state_epoch=state_epoch)
    response = await client.send(
        make(group_id=GROUP, topics=[make.DeleteStateData(topic_id=topic_id, partitions=[data])])
    )
    return ErrorCode(response.results[0].partitions[0].error_code)


async def _initialize(client: Client, topic_id: UUID, *partitions: int) -> dict[int, ErrorCode]:
    make = InitializeShareGroupStateRequest
    data = [make.PartitionData(partition=each, state_epoch=3, start_offset=-1) for each in partitions]
    topics = [make.InitializeStateData(topic_id=topic_id, partitions=data)]
    response = await client.send(make(group_id=GROUP, topics=topics))
    return {each.partition: ErrorCode(each.error_code) for each in response.results[0].partitions}


async def _write(client: Client, topic_id: UUID, *, leader_epoch: int, state_epoch: int) -> ErrorCode:
    make = WriteShareGroupStateRequest
    data = make.PartitionData(
        partition=0,
        state_epoch=state_epoch,
        leader_epoch=leader_epoch,
        start_offset=5,
        delivery_complete_count=2,
        state_batches=[make.StateBatch(first_offset=6, last_offset=8, delivery_state=2, delivery_count=1)],
    )
    response = await client.send(
        make(group_id=GROUP, topics=[make.WriteStateData(topic_id=topic_id, partitions=[data])])
    )
    return ErrorCode(response.results[0].partitions[0].error_code)
