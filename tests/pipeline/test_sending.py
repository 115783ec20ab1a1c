"""A sender whose requests and responses get lost. Its leader remembers the last five batches, as a broker does."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from parley.pipeline.client import sending
from parley.pipeline.client.fetching import TopicPartition
from parley.pipeline.client.sending import WINDOW, ProducerId, Sender
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.produce import ProduceRequest, ProduceResponse
from parley.protocol.records.batch import build, records
from parley.protocol.records.batch_header import read_header
from parley.protocol.records.record import Record
from tests.support.proportion import examples

PLACE = TopicPartition("t", 0)
WRITTEN, UNANSWERED, LOST = "written", "unanswered", "lost"


class Leader:
    """A leader: ``fates`` contains the fate of each request. All later requests succeed."""

    def __init__(self, fates: list[str]) -> None:
        self._fates = iter(fates)
        self._known: deque[tuple[int, int]] = deque(maxlen=WINDOW)
        self.values: list[bytes | None] = []

    async def leader(self, topic: str, partition: int) -> int:
        return 1

    async def metadata(self, topics: list[str]) -> None:
        pass

    async def version_for(self, request: type[ProduceRequest], *, node: int) -> int:
        return 11

    async def send(self, request: ProduceRequest, **_: Any) -> ProduceResponse:
        fate = next(self._fates, WRITTEN)
        data = cast(bytearray, request.topic_data[0].partition_data[0].records)
        code = ErrorCode.NONE if fate == LOST else self._append(data)
        await asyncio.sleep(0)
        if fate != WRITTEN:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, fate)
        one = ProduceResponse.PartitionProduceResponse(index=0, error_code=code, base_offset=-1)
        return ProduceResponse(responses=[ProduceResponse.TopicProduceResponse(name="t", partition_responses=[one])])

    def _append(self, data: bytearray) -> ErrorCode:
        header = read_header(data)
        if (header.base_sequence, header.record_count) in self._known:
            return ErrorCode.DUPLICATE_SEQUENCE_NUMBER
        if header.base_sequence != len(self.values):
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        self._known.append((header.base_sequence, header.record_count))
        self.values += [record.value for record in records(data)]
        return ErrorCode.NONE


async def sent(leader: Leader, count: int) -> None:
    sender = Sender(
        cast(Client, leader),
        ProducerId(1, 0),
        transactional_id=None,
        in_flight_bytes=1 << 20,
        request_timeout_s=30,
        delivery_timeout_s=30,
    )
    batches = [build([Record(0, 1, None, b"%d" % number)]) for number in range(count)]
    await sender.add([(PLACE, batch) for batch in batches])
    await sender.drain()


@settings(max_examples=examples(100))
@example(fates=[UNANSWERED, UNANSWERED, *[WRITTEN] * 4, *[UNANSWERED] * 5])
@given(st.lists(st.sampled_from((WRITTEN, UNANSWERED, LOST)), max_size=30))
def test_each_batch_is_written_once_and_in_order(fates: list[str]) -> None:
    leader = Leader(fates)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sending, "_BACKOFF_FIRST_S", 0.0)
        patch.setattr(sending, "_BACKOFF_MAX_S", 0.0)
        asyncio.run(sent(leader, 12))
    assert leader.values == [b"%d" % number for number in range(12)]
