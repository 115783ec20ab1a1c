"""Appends batches to a partition so that its log refuses batches that it already contains.

An idempotent producer's batches carry sequence numbers, and the log accepts only the next one (KIP-98). Here **the
sequence number identifies the record**: the n-th record written under a producer id has the number n. A batch is
either appended in its place or not at all. A killed copier whose last request is still in flight, a second copier
started by mistake, a request that is sent again because its response was lost: none of them can append a record twice.
The last batch of the id in the log shows how many records there are (``tail``), whatever other producers have written
and compaction has removed.

Rules:

* A task stores its producer id where the next task finds it (the note) **before** it writes anything under the id. Only
  an id in a note is used again. No other producer can have it, because brokers allocate each id once.
* A log that has forgotten an id accepts any sequence number (KIP-360). So the first batch is sent alone: otherwise the
  log could accept the second batch without the first.
* If batches of an id are refused, but the log contains no more of the id's batches than expected (``is_settled``), the
  id is useless: the note needs a new id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from parley.pipeline.client.cluster import EARLIEST, LATEST, Cluster
from parley.pipeline.client.fetching import Isolation, OffsetOutOfRange, TopicPartition, fetch_once
from parley.pipeline.client.sending import ProducerId
from parley.pipeline.client.transactions import producer_id
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.produce import ProduceRequest
from parley.protocol.records.batch import assemble
from parley.protocol.records.batch_header import INT32_MAX, BatchHeader, Buffer, headers
from parley.protocol.sentinels import NO_EPOCH

IN_FLIGHT: Final = 5
"""The maximum number of batches in flight. A log recognizes only the last five batches of a producer."""
_TIMEOUT_MS: Final = 30_000
_NAMES_VERSION_MAX: Final = 12
_DISPLACED: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)


class Overtaken(Exception):
    """Raised if the log refuses the batch as the next one: another task has appended it, or the log was truncated.

    The caller must look at the log again (``tail``). ``sequence`` is the refused number, or a number shortly before it.
    """

    def __init__(self, sequence: int, text: str) -> None:
        super().__init__(text)
        self.sequence = sequence


class Batch(NamedTuple):
    """A batch to append: a v2 header, whose offset and producer are ignored, and the bytes of its records."""

    header: BatchHeader
    body: Buffer


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a partition's log, and the last batch of a producer id from offset ``start`` on.

    ``sequence`` is the number that follows that batch, and ``last`` is the offset of its last record. Both are None if
    there is no such batch from ``start`` on. If the log ends before ``start``, the whole log is searched.
    """

    start: int
    end: int
    sequence: int | None = None
    last: int | None = None

    def count_since(self, sequence: int) -> int:
        """Return how many records of the producer id the log contains from ``start`` on, if the first had this number.

        The result is negative if records before ``start`` are lost. The numbers start again after 2**31, so there may
        be at most 2**31 records of other producers between them.
        """
        if self.sequence is None:
            return 0
        span = self.end - self.start
        return span - ((span - (self.sequence - sequence)) & INT32_MAX)


def tail(cluster: Cluster, partition: TopicPartition, producer: ProducerId, start: int) -> Tail:
    """Return the end of a log, and the last batch of a producer in it from ``start`` on. Raises KafkaError.

    Reads the last batch of the log first. If another producer has written that, reads everything from ``start`` on.
    """
    end = cluster.offsets({partition: LATEST})[partition]
    if end == start:
        return Tail(start, end)
    first = cluster.offsets({partition: EARLIEST})[partition]
    for begin in (end - 1, start if start < end else first):
        last = _last_of(cluster, partition, producer, max(begin, first), end)
        if last is not None:
            return Tail(start, end, (last.last_sequence + 1) & INT32_MAX, last.last_offset)
    return Tail(start, end)


def _last_of(
    cluster: Cluster, partition: TopicPartition, producer: ProducerId, start: int, end: int
) -> BatchHeader | None:
    found = None
    for fetched in cluster.fetch(partition, start, end):
        for _, header in headers(fetched.records):
            # The log may have grown since its end was looked up.
            if header.base_offset < end and written_by(producer, header):
                found = header
    return found


def written_by(producer: ProducerId, header: BatchHeader) -> bool:
    """Return True if the batch contains records that were written under this id."""
    return (header.producer_id, header.producer_epoch) == producer and not header.is_control


def is_settled(cluster: Cluster, partition: TopicPartition) -> bool:
    """Return True if every record in the leader's log is replicated, and therefore readable. Raises KafkaError."""
    end = cluster.offsets({partition: LATEST})[partition]
    try:
        cluster.retry(partial(peek, partition=partition, offset=end + 1))
    except OffsetOutOfRange:
        return True
    return False


async def peek(client: Client, *, partition: TopicPartition, offset: int) -> None:
    """Fetch at the offset to check it. Raises OffsetOutOfRange if the leader's log does not contain the offset, and
    KafkaError.
    """
    await fetch_once(client, partition, offset, Isolation.READ_UNCOMMITTED, 1)


class Appender:
    """Appends to one partition under a producer id that a note contains, starting at a sequence number.

    ``next_offset`` is the offset after the last record appended, ``sequence`` the number of the next record.
    """

    def __init__(
        self, cluster: Cluster, partition: TopicPartition, producer: ProducerId, sequence: int, next_offset: int
    ) -> None:
        self.partition = partition
        self.sequence = sequence
        self.next_offset = next_offset
        self._cluster = cluster
        self._producer = producer
        self._at_once = 1

    def append(self, batches: Sequence[Batch]) -> list[int]:
        """Append batches in this order. Returns the base offset of each.

        Raises ``Overtaken`` if the log refuses them as the next ones, and KafkaError if the partition rejects a batch
        (MESSAGE_TOO_LARGE, for example).
        """
        places: list[int] = []
        while len(places) < len(batches):
            window = batches[len(places) : len(places) + self._at_once]
            places += self._cluster.retry(_Window(self.partition, self._producer, self.sequence, window).send)
            self._at_once = IN_FLIGHT
            self.sequence = (self.sequence + sum(map(_length, window))) & INT32_MAX
            self.next_offset = places[-1] + _length(window[-1])
        return places


def _length(batch: Batch) -> int:
    return batch.header.last_offset_delta + 1


class _Window:
    """A few batches that are sent together. Those that fail are sent again, until all are in the log."""

    def __init__(
        self, partition: TopicPartition, producer: ProducerId, sequence: int, batches: Sequence[Batch]
    ) -> None:
        self._partition = partition
        self._sequence = sequence
        self._requests = list(_requests(partition, producer, sequence, batches))
        self._places: dict[int, int] = {}
        self._tried = False

    async def send(self, client: Client) -> list[int]:
        """Send the batches that have no offset yet. Returns the base offsets of all batches.

        Raises ``Overtaken``, and KafkaError, after which this may be called again.
        """
        tried, self._tried = self._tried, True
        node = await client.leader(*self._partition, fresh=tried)
        version = min(await client.version_for(ProduceRequest, node=node), _NAMES_VERSION_MAX)
        missing = [index for index in range(len(self._requests)) if index not in self._places]
        sent = (client.send(self._requests[index], node=node, version=version) for index in missing)
        first: KafkaError | None = None
        for index, answer in zip(missing, await asyncio.gather(*sent, return_exceptions=True), strict=True):
            error = self._take(index, answer)
            first = first or error
        if first is None:
            return [self._places[index] for index in range(len(self._requests))]
        if first.code in _DISPLACED:
            raise Overtaken(self._sequence, f"{self._partition} has been written to by another copier")
        raise first

    def _take(self, index: int, answer: Any) -> KafkaError | None:
        if isinstance(answer, KafkaError):
            return answer
        if isinstance(answer, BaseException):
            raise answer
        found = answer.responses[0].partition_responses[0]
        if found.error_code:
            return KafkaError(ErrorCode(found.error_code), f"{self._partition}: {found.error_message or 'refused'}")
        self._places[index] = found.base_offset
        return None


def _requests(
    partition: TopicPartition, producer: ProducerId, sequence: int, batches: Iterable[Batch]
) -> Iterator[ProduceRequest]:
    for batch in batches:
        records = stamped(batch, producer, sequence)
        sequence += _length(batch)
        data = ProduceRequest.PartitionProduceData(index=partition.partition, records=records)
        topic = ProduceRequest.TopicProduceData(name=partition.topic, partition_data=[data])
        yield ProduceRequest(acks=-1, timeout_ms=_TIMEOUT_MS, topic_data=[topic])


def stamped(batch: Batch, producer: ProducerId, sequence: int) -> bytes:
    """Return the batch as bytes, with this producer's id and epoch. Its first record has the number ``sequence``."""
    header = batch.header._replace(
        base_offset=0,
        partition_leader_epoch=NO_EPOCH,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence & INT32_MAX,
    )
    return bytes(assemble(header, batch.body))


def new_producer(cluster: Cluster) -> ProducerId:
    """Get a new producer id. Raises KafkaError."""
    return cluster.retry(lambda client: producer_id(client, None, _TIMEOUT_MS))
