"""Producer ids, and the state of idempotent producers."""

from __future__ import annotations

import asyncio

from parley import Broker
from parley.broker.coordinators.producer_ids import PRODUCER_IDS
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.produce import ProduceRequest
from parley.protocol.messages.producers import DescribeProducersRequest, InitProducerIdRequest
from parley.protocol.messages.topics import CreateTopicsRequest
from parley.protocol.records.batch import build
from parley.protocol.records.record import Record
from tests.broker.memory_store import memory_backend

PATIENCE_S = 30.0
PAUSE_S = 0.01


async def produce(
    client: Client, producer_id: int, epoch: int, sequence: int, *, transactional: bool = False
) -> tuple[ErrorCode, int]:
    batch = build(
        [Record(0, 1, None, b"v", ())],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    partition = ProduceRequest.PartitionProduceData(index=0, records=batch)
    data = ProduceRequest.TopicProduceData(name="t", partition_data=[partition])
    answer = await client.send(ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[data]), version=9)
    (response,) = answer.responses[0].partition_responses
    return ErrorCode(response.error_code), response.base_offset


async def test_an_idempotent_producer_is_remembered_and_held_to_its_sequence() -> None:
    async with Broker() as broker, Client(broker.bootstrap_servers) as client:
        topic = CreateTopicsRequest.CreatableTopic(
            name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
        await client.send(CreateTopicsRequest(topics=[topic], timeout_ms=5000))
        first = await client.send(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000))
        second = await client.send(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000))
        assert first.error_code == second.error_code == 0
        assert first.producer_id != second.producer_id
        me = first.producer_id
        assert await produce(client, me, 0, 0) == (ErrorCode.NONE, 0)
        assert await produce(client, me, 0, 1) == (ErrorCode.NONE, 1)
        assert await produce(client, me, 0, 1) == (ErrorCode.NONE, 1), "a repetition is answered as the first time"
        assert (await produce(client, me, 0, 5))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await produce(client, me, 1, 0) == (ErrorCode.NONE, 2)
        assert (await produce(client, me, 0, 2))[0] == ErrorCode.INVALID_PRODUCER_EPOCH
        in_no_transaction = await produce(client, second.producer_id, 0, 0, transactional=True)
        refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert in_no_transaction[0] == refused, "a request without a transactional id"
        asked = DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0, 7])
        answer = await client.send(DescribeProducersRequest(topics=[asked]))
        known, unknown = answer.topics[0].partitions
        (producer,) = known.active_producers
        assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (me, 1, 0)
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_broker_has_producer_ids_before_a_producer_asks() -> None:
    """New idempotent producers work while the store does not respond, also with a broker that has just started."""
    async with Broker() as broker, Client(broker.bootstrap_servers) as client:
        parts = broker.server.parts
        async with asyncio.timeout(PATIENCE_S):
            while await parts.lifecycle.store.get(PRODUCER_IDS) is None:  # noqa: ASYNC110
                await asyncio.sleep(PAUSE_S)
        backend = memory_backend(parts.store_move.store.backend)
        backend.disconnect()
        answer = await client.send(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000))
        backend.reconnect()  # a stop would wait for it
        assert answer.error_code == ErrorCode.NONE
