"""Batches appended to a partition in such a way that its log refuses what it has already.

An idempotent producer's batches carry a sequence number, and the log takes only the one that follows (KIP-98). Here
**the sequence number of a record is its offset**: so a batch is appended where it was meant to stand or not at all. A
copier that was killed, and whose last request is still on its way, a second one started by mistake, a request that is
sent again because no answer came: none of them can append anything twice. And who looks at a batch in the log sees
whether it was written like this: then its producer id is taken up where it left off (`tail`), since the log
keeps its state for the id, or, having forgotten it, takes any sequence number (KIP-360).

When others write to the same partition a batch may land behind where it was meant to. That is seen in the answer; a new
producer id is taken from there on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pipeline.cluster import EARLIEST, LATEST, Cluster
from pipeline.fetching import TopicPartition
from protocol.client import Client
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.produce import ProduceRequest
from protocol.messages.producers import InitProducerIdRequest
from protocol.records.batch import assemble
from protocol.records.header import (
    INT32_MAX,
    NO_LEADER_EPOCH,
    BatchHeader,
    Buffer,
    headers,
)

IN_FLIGHT: Final = 5
"""A log remembers the last five batches of a producer, so no more may need to be recognised."""
_TIMEOUT_MS: Final = 30_000
_NAMES_VERSION_MAX: Final = 12
_DISPLACED: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})


class Overtaken(Exception):
    """Somebody else has appended what was to be appended: begin again at the log's end."""


class Batch(NamedTuple):
    """A batch to be appended: a v2 header, whose offset and producer do not matter, and the bytes of its records."""

    header: BatchHeader
    body: Buffer


class ProducerId(NamedTuple):
    """A producer id and its epoch."""

    id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a partition's log; ``producer`` wrote the last batch, if it was written as this module does."""

    end: int
    producer: ProducerId | None


def is_ours(header: BatchHeader) -> bool:
    """Whether a batch was written by an `Appender`, at the offset it was meant for."""
    return header.has_producer and header.base_sequence == header.base_offset & INT32_MAX


def tail(cluster: Cluster, partition: TopicPartition) -> Tail:
    """Look at the end of a log. Raises KafkaError."""
    end = cluster.offsets({partition: LATEST})[partition]
    last: BatchHeader | None = None
    try:
        for fetched in cluster.fetch(partition, end - 1, end) if end else ():
            last = [header for _, header in headers(fetched.records)][-1]
    except KafkaError as error:
        if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:  # nothing is left in the log
            raise
    if last is None or not is_ours(last):
        return Tail(end, None)
    return Tail(end, ProducerId(last.producer_id, last.producer_epoch))


def ours_between(cluster: Cluster, partition: TopicPartition, start: int, end: int) -> int:
    """How many records from ``start`` on were written by an `Appender`. Raises KafkaError.

    Those that retention has taken away by now are counted as such.
    """
    begin = min(max(start, cluster.offsets({partition: EARLIEST})[partition]), end)
    return begin - start + sum(_ours(cluster, partition, begin, end))


def _ours(cluster: Cluster, partition: TopicPartition, start: int, end: int) -> Iterator[int]:
    for fetched in cluster.fetch(partition, start, end):
        for _, header in headers(fetched.records):
            if is_ours(header) and header.base_offset < end:
                yield header.next_offset - max(header.base_offset, start)


class Appender:
    """Appends to one partition, from an offset on that is the end of its log."""

    def __init__(
        self, cluster: Cluster, partition: TopicPartition, found: Tail, producer: ProducerId | None = None
    ) -> None:
        """``producer`` is the id to go on with where the end of the log tells none; without it a new one is taken."""
        self.partition = partition
        self.next_offset = found.end
        self._cluster = cluster
        self._producer = found.producer or producer

    def append(self, batches: Sequence[Batch]) -> list[int]:
        """Append in this order; the offset that each begins at.

        Raises `Overtaken`, or KafkaError for what the partition refuses: MESSAGE_TOO_LARGE and the like.
        """
        places: list[int] = []
        while len(places) < len(batches):
            if self._producer is None:
                self._producer = new_producer(self._cluster)
            window = batches[len(places) : len(places) + IN_FLIGHT]
            places += self._cluster.retry(_Window(self.partition, self._producer, self.next_offset, window).send)
            expected = places[-1] + window[-1].header.last_offset_delta + 1
            if expected != self.next_offset + sum(batch.header.last_offset_delta + 1 for batch in window):
                self._producer = None
            self.next_offset = expected
        return places


class _Window:
    """A few batches, sent at once and again until all are there."""

    def __init__(
        self, partition: TopicPartition, producer: ProducerId, next_offset: int, batches: Sequence[Batch]
    ) -> None:
        self._partition = partition
        self._requests = list(_requests(partition, producer, next_offset, batches))
        self._places: dict[int, int] = {}
        self._tried = False

    async def send(self, client: Client) -> list[int]:
        """Where each batch stands. Raises `Overtaken` and KafkaError; may be called again after one that passes."""
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
            raise Overtaken(f"{self._partition} has been written to by another copier")
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
    partition: TopicPartition, producer: ProducerId, next_offset: int, batches: Iterable[Batch]
) -> Iterator[ProduceRequest]:
    for batch in batches:
        records = stamped(batch, producer, next_offset)
        next_offset += batch.header.last_offset_delta + 1
        data = ProduceRequest.PartitionProduceData(index=partition.partition, records=records)
        topic = ProduceRequest.TopicProduceData(name=partition.topic, partition_data=[data])
        yield ProduceRequest(acks=-1, timeout_ms=_TIMEOUT_MS, topic_data=[topic])


def stamped(batch: Batch, producer: ProducerId, offset: int) -> bytes:
    """The batch as it is sent: of this producer, with the sequence numbers of the offsets it is meant for."""
    header = batch.header._replace(
        base_offset=0,
        partition_leader_epoch=NO_LEADER_EPOCH,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        base_sequence=offset & INT32_MAX,
    )
    return bytes(assemble(header, batch.body))


def new_producer(cluster: Cluster) -> ProducerId:
    """An id that nobody else has. Raises KafkaError."""

    async def ask(client: Client) -> ProducerId:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_TIMEOUT_MS)
        answer = await client.send(request)
        if answer.error_code:
            raise KafkaError(ErrorCode(answer.error_code), "no producer id was given")
        return ProducerId(answer.producer_id, answer.producer_epoch)

    return cluster.retry(ask)
