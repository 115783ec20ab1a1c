"""Brokers' requests to the share coordinator about the stored state of share partitions (KIP-932).

The handlers translate between messages and ``parley.broker.coordinators.share_state``. Each share partition of a
request succeeds or fails independently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from parley.broker.coordinators.share_state.coordinator import ShareCoordinator
from parley.broker.coordinators.share_state.persister import StateBatch
from parley.broker.coordinators.share_state.share_partition_key import SharePartitionKey
from parley.broker.network.request_context import Handler, RequestContext
from parley.protocol.errors import KafkaError
from parley.protocol.messages.share_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)
from parley.protocol.uuids import UUID

AT_ONCE: Final = 1_000
"""The maximum number of share partitions of a request that are handled concurrently."""


class ShareStateApi:
    """Handlers of requests about the state of share partitions."""

    def __init__(self, coordinator: ShareCoordinator) -> None:
        self._coordinator = coordinator

    def routes(self) -> dict[int, Handler]:
        return {
            InitializeShareGroupStateRequest.API_KEY: self.initialize,
            ReadShareGroupStateRequest.API_KEY: self.read,
            WriteShareGroupStateRequest.API_KEY: self.write,
            DeleteShareGroupStateRequest.API_KEY: self.delete,
            ReadShareGroupStateSummaryRequest.API_KEY: self.summarize,
        }

    async def initialize(
        self, context: RequestContext, request: InitializeShareGroupStateRequest
    ) -> InitializeShareGroupStateResponse:
        """Initialize the state of share partitions, each at the start offset in the request."""
        make = InitializeShareGroupStateResponse.PartitionResult

        async def initialized(
            key: SharePartitionKey, requested: InitializeShareGroupStateRequest.PartitionData
        ) -> InitializeShareGroupStateResponse.PartitionResult:
            await self._coordinator.initialize(
                key, requested.state_epoch, requested.start_offset, requested.leader_epoch
            )
            return make(partition=requested.partition)

        topic = InitializeShareGroupStateResponse.InitializeStateResult
        return InitializeShareGroupStateResponse(results=await _each(request, initialized, topic, make))

    async def read(self, context: RequestContext, request: ReadShareGroupStateRequest) -> ReadShareGroupStateResponse:
        """Return the state of share partitions to the leaders of these partitions, and fence earlier leaders."""
        make = ReadShareGroupStateResponse.PartitionResult

        async def found(
            key: SharePartitionKey, requested: ReadShareGroupStateRequest.PartitionData
        ) -> ReadShareGroupStateResponse.PartitionResult:
            state = await self._coordinator.read(key, requested.leader_epoch)
            return make(
                partition=requested.partition,
                state_epoch=state.state_epoch,
                start_offset=state.start_offset,
                state_batches=[ReadShareGroupStateResponse.StateBatch(**each._asdict()) for each in state.batches],
            )

        topic = ReadShareGroupStateResponse.ReadStateResult
        failed = partial(make, state_epoch=0, start_offset=0, state_batches=[])  # 0, as in Kafka
        return ReadShareGroupStateResponse(results=await _each(request, found, topic, failed))

    async def write(
        self, context: RequestContext, request: WriteShareGroupStateRequest
    ) -> WriteShareGroupStateResponse:
        """Store changes to the state of share partitions."""
        make = WriteShareGroupStateResponse.PartitionResult

        async def written(
            key: SharePartitionKey, requested: WriteShareGroupStateRequest.PartitionData
        ) -> WriteShareGroupStateResponse.PartitionResult:
            batches = [
                StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
                for each in requested.state_batches
            ]
            await self._coordinator.write(
                key,
                requested.leader_epoch,
                requested.state_epoch,
                requested.start_offset,
                requested.delivery_complete_count,
                batches,
            )
            return make(partition=requested.partition)

        topic = WriteShareGroupStateResponse.WriteStateResult
        return WriteShareGroupStateResponse(results=await _each(request, written, topic, make))

    async def delete(
        self, context: RequestContext, request: DeleteShareGroupStateRequest
    ) -> DeleteShareGroupStateResponse:
        """Delete the state of share partitions."""
        make = DeleteShareGroupStateResponse.PartitionResult

        async def deleted(
            key: SharePartitionKey, requested: DeleteShareGroupStateRequest.PartitionData
        ) -> DeleteShareGroupStateResponse.PartitionResult:
            await self._coordinator.delete(key, requested.state_epoch)
            return make(partition=requested.partition)

        topic = DeleteShareGroupStateResponse.DeleteStateResult
        return DeleteShareGroupStateResponse(results=await _each(request, deleted, topic, make))

    async def summarize(
        self, context: RequestContext, request: ReadShareGroupStateSummaryRequest
    ) -> ReadShareGroupStateSummaryResponse:
        """Return the state of share partitions without their batches."""
        make = ReadShareGroupStateSummaryResponse.PartitionResult

        async def found(
            key: SharePartitionKey, requested: ReadShareGroupStateSummaryRequest.PartitionData
        ) -> ReadShareGroupStateSummaryResponse.PartitionResult:
            summary = await self._coordinator.summarize(key)
            return make(
                partition=requested.partition,
                state_epoch=summary.state_epoch,
                leader_epoch=summary.leader_epoch,
                start_offset=summary.start_offset,
                delivery_complete_count=summary.delivery_complete_count,
            )

        topic = ReadShareGroupStateSummaryResponse.ReadStateSummaryResult
        failed = partial(make, state_epoch=0, leader_epoch=0, start_offset=0)  # 0, as in Kafka
        return ReadShareGroupStateSummaryResponse(results=await _each(request, found, topic, failed))


async def _each(
    request: Any,
    handle: Callable[[SharePartitionKey, Any], Awaitable[Any]],
    topic_result: Callable[..., Any],
    failed: Callable[..., Any],
) -> list[Any]:
    """Return the result for each share partition of a request, by topic; an empty list if the request names no group.

    If ``handle`` raises a KafkaError, ``failed`` makes the result.
    """
    if not request.group_id:
        return []

    async def result(topic_id: UUID, requested: Any) -> Any:
        try:
            return await handle(SharePartitionKey(request.group_id, topic_id, requested.partition), requested)
        except KafkaError as error:
            return failed(partition=requested.partition, error_code=error.code, error_message=error.message)

    flat = [(topic.topic_id, each) for topic in request.topics for each in topic.partitions]
    results: list[Any] = []
    for begin in range(0, len(flat), AT_ONCE):
        results += await asyncio.gather(*(result(*each) for each in flat[begin : begin + AT_ONCE]))
    remaining = iter(results)
    return [
        topic_result(topic_id=topic.topic_id, partitions=[next(remaining) for _ in topic.partitions])
        for topic in request.topics
    ]
