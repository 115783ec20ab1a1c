"""InitProducerId for idempotent producers (KIP-98), DescribeProducers (KIP-664), and the refusal of transactions."""

from __future__ import annotations

from parley.broker.api.requested_names import once
from parley.broker.coordinators.producer_ids import ProducerIds
from parley.broker.network.dispatch import Handler, RequestContext
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from parley.protocol.sentinels import NO_EPOCH, NO_PRODUCER_ID


def no_transactions() -> KafkaError:
    """The error for a client that wants transactions, which this broker does not offer.

    Kafka has no error code for that. Of the codes that clients expect here, CLUSTER_AUTHORIZATION_FAILED is the one on
    which every client gives up at once and shows the message: on UNSUPPORTED_VERSION and most others librdkafka retries
    until its timeout, and on TRANSACTIONAL_ID_AUTHORIZATION_FAILED the Java client replaces the message by its own.
    """
    return KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Transactions are not offered by this broker yet.")


class ProducersApi:
    """Handlers of InitProducerId and DescribeProducers."""

    def __init__(self, partitions: HostedPartitions, producer_ids: ProducerIds) -> None:
        self._partitions = partitions
        self._producer_ids = producer_ids

    def routes(self) -> dict[int, Handler]:
        return {
            InitProducerIdRequest.API_KEY: self.init_producer_id,
            DescribeProducersRequest.API_KEY: self.describe_producers,
        }

    async def init_producer_id(self, context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
        """Return a new producer id with epoch 0.

        The id that the client had before does not matter: without a transactional id there is no state to resume.
        """
        try:
            if request.transactional_id is not None:
                raise no_transactions() if request.transactional_id else KafkaError(ErrorCode.INVALID_REQUEST)
            return InitProducerIdResponse(producer_id=await self._producer_ids.take(), producer_epoch=0)
        except KafkaError as error:
            return InitProducerIdResponse(error_code=error.code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_EPOCH)

    def describe_producers(
        self, context: RequestContext, request: DescribeProducersRequest
    ) -> DescribeProducersResponse:
        """Return the producers known to each requested partition that this broker leads."""
        return DescribeProducersResponse(
            topics=[
                DescribeProducersResponse.TopicResponse(
                    name=name, partitions=[self._producers(name, index) for index in indexes]
                )
                for name, indexes in once(((t.name, t.partition_indexes) for t in request.topics), int).items()
            ]
        )

    def _producers(self, topic: str, index: int) -> DescribeProducersResponse.PartitionResponse:
        try:
            partition = self._partitions.find(topic, index)
            partition.check_leader()
            producers = partition.log.producers.entries
        except KafkaError as error:
            return DescribeProducersResponse.PartitionResponse(
                partition_index=index, error_code=error.code, error_message=str(error) or None, active_producers=[]
            )
        return DescribeProducersResponse.PartitionResponse(
            partition_index=index,
            active_producers=[
                DescribeProducersResponse.ProducerState(
                    producer_id=producer.producer_id,
                    producer_epoch=producer.epoch,
                    last_sequence=producer.last_sequence,
                    last_timestamp=producer.timestamp,
                    coordinator_epoch=producer.coordinator_epoch,
                    current_txn_start_offset=producer.transaction_first_offset,
                )
                for producer in producers
            ],
        )
