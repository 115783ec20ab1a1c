"""InitProducerId for idempotent and transactional producers (KIP-98, KIP-360), and DescribeProducers (KIP-664)."""

from __future__ import annotations

import asyncio
from typing import Final

from parley.broker.api.metadata import is_legal_topic_name
from parley.broker.api.requested_names import in_slices, once
from parley.broker.api.transactions import code_for
from parley.broker.coordinators.decision import ProducerIdentity
from parley.broker.coordinators.producer_ids import ProducerIds
from parley.broker.coordinators.transactions.coordinator import TransactionCoordinator
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.runtime.threads import LOOP_THREADS, Threads
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from parley.protocol.sentinels import NO_EPOCH, NO_PRODUCER_ID
from parley.storage.producer_snapshots import ProducerEntry

KNOWS_FENCED: Final = 4
"""The first version of InitProducerId whose senders understand PRODUCER_FENCED (KIP-588)."""


class ProducersApi:
    """Handlers of InitProducerId and DescribeProducers."""

    def __init__(
        self,
        partitions: HostedPartitions,
        producer_ids: ProducerIds,
        transactions: TransactionCoordinator,
        threads: Threads = LOOP_THREADS,
    ) -> None:
        self._threads = threads
        self._partitions = partitions
        self._producer_ids = producer_ids
        self._transactions = transactions

    def routes(self) -> dict[int, Handler]:
        return {
            InitProducerIdRequest.API_KEY: self.init_producer_id,
            DescribeProducersRequest.API_KEY: self.describe_producers,
        }

    async def init_producer_id(self, context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
        """Return a producer id and an epoch, or an error code and -1 for both.

        A producer without a transactional id always gets a new id, even if the request contains a producer id.
        """
        try:
            expected = _expected(request)
            if request.transactional_id is None:
                return InitProducerIdResponse(producer_id=await self._producer_ids.take(), producer_epoch=0)
            identity = await self._transactions.initialize(
                request.transactional_id,
                request.transaction_timeout_ms,
                expected,
                two_phase_commit=request.enable2_pc,
                keep_prepared=request.keep_prepared_txn,
            )
        except KafkaError as error:
            code = code_for(error, context.api_version, KNOWS_FENCED)
            return InitProducerIdResponse(error_code=code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_EPOCH)
        return InitProducerIdResponse(producer_id=identity.producer_id, producer_epoch=identity.producer_epoch)

    async def describe_producers(
        self, context: RequestContext, request: DescribeProducersRequest
    ) -> DescribeProducersResponse:
        """Return the active producers of each requested partition that this broker leads or follows (KIP-664). Any
        other partition gets an error."""
        named = once(((t.name, t.partition_indexes) for t in request.topics), int)
        return DescribeProducersResponse(
            topics=[
                DescribeProducersResponse.TopicResponse(
                    name=name, partitions=[await self._producers(name, index) for index in indexes]
                )
                for name, indexes in named.items()
            ]
        )

    async def _producers(self, topic: str, index: int) -> DescribeProducersResponse.PartitionResponse:
        try:
            if not is_legal_topic_name(topic):
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
            frozen = self._partitions.find(topic, index).log.producers.frozen()
        except KafkaError as error:
            return DescribeProducersResponse.PartitionResponse(
                partition_index=index, error_code=error.code, error_message=error.message or None, active_producers=[]
            )
        producers = await asyncio.get_running_loop().run_in_executor(self._threads.messages, frozen)
        return DescribeProducersResponse.PartitionResponse(
            partition_index=index, active_producers=await in_slices(_described, producers)
        )


def _described(producer: ProducerEntry) -> DescribeProducersResponse.ProducerState:
    return DescribeProducersResponse.ProducerState(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        last_sequence=producer.last_sequence,
        last_timestamp=producer.timestamp,
        coordinator_epoch=producer.coordinator_epoch,
        current_txn_start_offset=producer.transaction_first_offset,
    )


def _expected(request: InitProducerIdRequest) -> ProducerIdentity | None:
    """Return the producer's current identity if the request contains it.

    Raises KafkaError (INVALID_REQUEST) if it contains only the id or only the epoch.
    """
    if request.producer_id == NO_PRODUCER_ID and request.producer_epoch == NO_EPOCH:
        return None
    if request.producer_id == NO_PRODUCER_ID or request.producer_epoch == NO_EPOCH:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    return ProducerIdentity(request.producer_id, request.producer_epoch)
