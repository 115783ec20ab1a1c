"""Sends batches to the leaders of their partitions: in order, several at a time, each written exactly once.

A ``Sender`` belongs to a cluster's event loop. Rules:

* Batches of a partition get their sequence numbers when they are added (KIP-98). They are written in that order and
  once, even if they are sent again: the broker recognizes a batch by its number.
* At most ``WINDOW`` batches of a partition are in flight, because a broker remembers that many (KIP-679). After a
  temporary error, the failed batches are sent again in order, one at a time: they may have been written already, and
  the broker would not recognize them after later batches.
* The number of bytes that wait or are in flight is limited; ``add`` waits for room.
* A batch that is larger than its topic allows is split. Only a single record can be too large.
* A permanent error, or a batch that is not written in time, ends the sender: later batches of that partition could not
  keep their order. Every later call raises that error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final, NamedTuple

from parley.pipeline.client.fetching import TopicPartition
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.produce import ProduceRequest
from parley.protocol.records.batch import build, records
from parley.protocol.records.batch_header import INT32_MAX, TRANSACTIONAL_BIT, read_header, write_header
from parley.protocol.records.crc import seal

WINDOW: Final = 5

_PRODUCE_VERSION_MAX: Final = 11
"""Version 12 implicitly adds partitions to the transaction (KIP-890), and version 13 names topics by id (KIP-516)."""
_ACKS_ALL: Final = -1
_BACKOFF_FIRST_S: Final = 0.05
_BACKOFF_MAX_S: Final = 1.0
_NOT_PASSING: Final = frozenset({ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD})


class ProducerId(NamedTuple):
    """A producer's identity in its batches: the id that a broker has allocated to it, and its epoch (KIP-98)."""

    producer_id: int
    epoch: int


class Written(NamedTuple):
    """A range of a partition's log that was written: ``records`` records from ``base_offset`` on, without gaps."""

    partition: TopicPartition
    base_offset: int
    records: int


@dataclass(slots=True)
class _Batch:
    """A batch that was added, but not yet acknowledged by the broker."""

    data: bytearray
    count: int
    deadline: float
    alone: bool = False
    """True if it was sent while no other batch of its partition was in flight."""
    again: bool = False
    """True if it was sent before."""
    task: asyncio.Task[int] | None = None

    @property
    def error(self) -> BaseException | None:
        return None if self.task is None else self.task.exception()


@dataclass(slots=True)
class _Lane:
    """The batches of one partition, in order: first those in flight, then those that wait."""

    partition: TopicPartition
    next_sequence: int = 0
    waiting: deque[_Batch] = field(default_factory=deque)
    flying: deque[_Batch] = field(default_factory=deque)
    pause: float = _BACKOFF_FIRST_S
    driver: asyncio.Task[None] | None = None


class Sender:
    """Sends one producer's batches in order, each within ``delivery_timeout_s`` after ``add``."""

    def __init__(
        self,
        client: Client,
        producer: ProducerId,
        *,
        transactional_id: str | None,
        in_flight_bytes: int,
        request_timeout_s: float,
        delivery_timeout_s: float,
    ) -> None:
        self._client = client
        self._producer = producer
        self._transactional_id = transactional_id
        self._bytes_max = in_flight_bytes
        self._request_timeout_s = request_timeout_s
        self._delivery_timeout_s = delivery_timeout_s
        self._lanes: dict[TopicPartition, _Lane] = {}
        self._refused_bytes: dict[str, int] = {}
        """The size of the smallest batch that each topic has rejected."""
        self._bytes = 0
        self._changed = asyncio.Condition()
        self._failed: Exception | None = None
        self._written: list[Written] = []

    async def add(self, batches: list[tuple[TopicPartition, bytearray]]) -> None:
        """Add sealed v2 batches, to be sent in this order. Modifies them in place. Waits while too many bytes are in
        flight.

        Raises the error that has ended the sender, if there is one.
        """
        now = asyncio.get_running_loop().time
        for partition, data in batches:
            async with self._changed:
                size = len(data)
                while not self._failed and self._bytes and self._bytes + size > self._bytes_max:
                    await self._changed.wait()
                self._check()
                self._bytes += size
            lane = self._lanes.get(partition)
            if lane is None:
                lane = self._lanes[partition] = _Lane(partition)
            count = self._number(lane, data)
            lane.waiting.append(_Batch(data, count, now() + self._delivery_timeout_s))
            if lane.driver is None:
                lane.driver = asyncio.create_task(self._drive(lane))

    async def drain(self) -> list[Written]:
        """Wait until all added batches are written. Returns what was written since the last call; adjacent ranges are
        joined.

        Raises the error that has ended the sender, if there is one.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self._failed or not self._bytes)
        self._check()
        written, self._written = self._written, []
        return written

    async def stop(self, *, settle: bool = False) -> None:
        """Stop sending, and discard the waiting batches. Batches in flight may still be written; with ``settle``, this
        call waits for their responses.
        """
        drivers = [lane.driver for lane in self._lanes.values() if lane.driver is not None]
        flying = [batch.task for lane in self._lanes.values() for batch in lane.flying if batch.task is not None]
        for task in drivers if settle else (*drivers, *flying):
            task.cancel()
        await asyncio.gather(*drivers, *flying, return_exceptions=True)

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _number(self, lane: _Lane, data: bytearray) -> int:
        """Give the batch the producer's next sequence numbers. Returns the number of its records."""
        header = read_header(data)
        bit = TRANSACTIONAL_BIT if self._transactional_id is not None else 0
        header = header._replace(
            producer_id=self._producer.producer_id,
            producer_epoch=self._producer.epoch,
            base_sequence=lane.next_sequence,
            attributes=header.attributes & ~TRANSACTIONAL_BIT | bit,
        )
        write_header(data, 0, header)
        seal(data, 0, len(data))
        lane.next_sequence = (lane.next_sequence + header.record_count) & INT32_MAX
        return header.record_count

    # One partition.

    async def _drive(self, lane: _Lane) -> None:
        """Send the batches of the lane until it is empty."""
        try:
            while lane.waiting or lane.flying:
                self._launch(lane)
                first = lane.flying[0]
                assert first.task is not None
                await asyncio.wait((first.task,))
                if first.error is None:
                    lane.flying.popleft()
                    lane.pause = _BACKOFF_FIRST_S
                    await self._settle(lane, first)
                else:
                    await self._recover(lane, first)
        except Exception as error:
            async with self._changed:
                self._failed = self._failed or error
                self._changed.notify_all()
        finally:
            lane.driver = None

    def _launch(self, lane: _Lane) -> None:
        while lane.waiting and len(lane.flying) < WINDOW:
            if lane.flying and (lane.flying[-1].again or lane.waiting[0].again):
                return
            batch = self._fitting(lane)
            batch.alone = not lane.flying
            batch.task = asyncio.create_task(self._send(lane.partition, batch.data))
            lane.flying.append(batch)

    def _fitting(self, lane: _Lane) -> _Batch:
        """Return the first waiting batch, or its first part if the topic has rejected batches of its size."""
        refused = self._refused_bytes.get(lane.partition.topic, INT32_MAX)
        batch = lane.waiting.popleft()
        while len(batch.data) >= refused and batch.count > 1:
            parts = [
                replace(batch, data=data, count=read_header(data).record_count, task=None)
                for data in _cut(batch.data, min(len(batch.data) // refused + 1, batch.count))
            ]
            self._bytes += sum(len(part.data) for part in parts) - len(batch.data)
            batch = parts[0]
            lane.waiting.extendleft(reversed(parts[1:]))
        return batch

    async def _settle(self, lane: _Lane, batch: _Batch) -> None:
        assert batch.task is not None
        base_offset = batch.task.result()
        if base_offset >= 0:
            last = self._written[-1] if self._written else None
            if last and last.partition == lane.partition and last.base_offset + last.records == base_offset:
                self._written[-1] = Written(lane.partition, last.base_offset, last.records + batch.count)
            else:
                self._written.append(Written(lane.partition, base_offset, batch.count))
        async with self._changed:
            self._bytes -= len(batch.data)
            self._changed.notify_all()

    async def _recover(self, lane: _Lane, first: _Batch) -> None:
        """Wait for the batches in flight, and put failed batches back at the head of the lane. Raises a permanent
        error, and a temporary one after the deadline of ``first``.
        """
        error = first.error
        if not isinstance(error, KafkaError):
            assert error is not None
            raise error
        too_large = error.code is ErrorCode.MESSAGE_TOO_LARGE and first.count > 1
        if too_large:
            self._refused_bytes[lane.partition.topic] = len(first.data)
        elif not _passes(error, first.alone) or asyncio.get_running_loop().time() >= first.deadline:
            raise KafkaError(error.code, f"writing to {lane.partition}: {error.message}")
        await asyncio.wait([batch.task for batch in lane.flying if batch.task is not None])
        failed = [batch for batch in lane.flying if batch.error is not None]
        for batch in lane.flying:
            batch.again = True
            if batch.error is None:
                await self._settle(lane, batch)
        lane.flying.clear()
        lane.waiting.extendleft(reversed(failed))
        if too_large:
            return
        await asyncio.sleep(lane.pause)
        lane.pause = min(2 * lane.pause, _BACKOFF_MAX_S)
        try:
            await self._client.metadata([lane.partition.topic])
        except KafkaError:
            return  # the next attempt reports it if it persists

    async def _send(self, partition: TopicPartition, data: bytearray) -> int:
        """Produce one batch. Returns its offset, or -1 if the broker no longer knows the offset. Raises KafkaError."""
        node = await self._client.leader(*partition)
        version = min(await self._client.version_for(ProduceRequest, node=node), _PRODUCE_VERSION_MAX)
        content = ProduceRequest.PartitionProduceData(index=partition.partition, records=data)
        request = ProduceRequest(
            transactional_id=self._transactional_id,
            acks=_ACKS_ALL,
            timeout_ms=int(self._request_timeout_s * 1000),
            topic_data=[ProduceRequest.TopicProduceData(name=partition.topic, partition_data=[content])],
        )
        # The broker waits for the replicas for as long as the request allows, and its response takes a moment longer.
        answer = await self._client.send(request, node=node, version=version, timeout=self._request_timeout_s + 5)
        result = answer.responses[0].partition_responses[0]
        if result.error_code and result.error_code != ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            code = ErrorCode(result.error_code)
            raise KafkaError(code, result.error_message or code.message)
        return int(result.base_offset)


def _cut(data: bytearray, parts: int) -> Iterator[bytearray]:
    """Split a batch into ``parts`` batches with about equal numbers of records, which keep their sequence numbers."""
    header = read_header(data)
    found = list(records(data))
    for begin, end in pairwise(len(found) * number // parts for number in range(parts + 1)):
        yield build(
            found[begin:end],
            compression=header.compression,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=(header.base_sequence + begin) & INT32_MAX,
            transactional=header.is_transactional,
        )


def _passes(error: KafkaError, alone: bool) -> bool:
    """Return True if the error is temporary, so that the batch must be sent again.

    OUT_OF_ORDER_SEQUENCE_NUMBER is temporary unless the batch was sent alone: an earlier batch may have been delayed or
    have failed.
    """
    if error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
        return not alone
    passing = error.code.retriable or error.code is ErrorCode.BROKER_NOT_AVAILABLE
    return passing and error.code not in _NOT_PASSING
