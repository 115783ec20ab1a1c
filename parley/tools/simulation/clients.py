"""Clients of a simulated cluster. They report every acknowledgement and every record read to the ledger.

The producer is idempotent and retries each batch until it is acknowledged. At the end of a run, every record that it
has sent must therefore be in the log exactly once, and in order. The reader follows KIP-320: it never goes back to an
older leader epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any, NamedTuple

from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.link import Link
from parley.protocol.messages.fetch import FetchRequest
from parley.protocol.messages.offsets import ListOffsetsRequest
from parley.protocol.messages.produce import ProduceRequest
from parley.protocol.messages.producers import InitProducerIdRequest
from parley.protocol.records.batch import build, records
from parley.protocol.records.batch_header import BatchHeader, headers
from parley.protocol.records.control_batch import ControlType, read_marker
from parley.protocol.records.crc import verify_crc
from parley.tools.simulation.client_invariants import Ledger
from parley.tools.simulation.keyed_records import DELETED, record_of, text_of
from parley.tools.simulation.machines import EPOCH_MS
from parley.tools.simulation.transaction_ledger import TransactionLedger

REQUEST_TIMEOUT_S = 4.0
IN_FLIGHT_MAX = 5
"""The maximum number of a producer's in-flight batches to a partition: brokers remember this many batches of each
producer."""
TOMBSTONES = 0.25
"""The fraction of keyed records that are tombstones."""
PRODUCE_VERSION = 9
FETCH_VERSION = 12
_FATAL = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)
"""Errors that no fault of a machine or network may cause: they imply that acknowledged records were lost."""


class _User:
    """A named client that acts at random moments."""

    def __init__(self, name: str, bootstrap: Iterable[tuple[str, int]], ledger: Ledger, rng: Random) -> None:
        self.name = name
        self.stopping = False
        """Set it to make the client finish its current work and start nothing new."""
        self.client = Client(bootstrap, client_id=name, timeout=REQUEST_TIMEOUT_S, connect_timeout=REQUEST_TIMEOUT_S)
        self.ledger = ledger
        self.rng = rng
        self._stale_leaders: set[tuple[str, int]] = set()  # partitions whose leader may have changed

    async def pause(self, longest: float) -> None:
        await asyncio.sleep(self.rng.uniform(0.0, longest))

    async def retry_later(self, what: str, error: KafkaError | ErrorCode) -> None:
        """Record a temporary failure, and pause before the retry."""
        name = error.code.name if isinstance(error, KafkaError) else error.name
        self.ledger.history.trace(f"{self.name} {what}: {name}")
        await self.pause(0.3)


class _Batch(NamedTuple):
    values: list[str]
    data: bytearray


class Producer(_User):
    """A producer that sends batches to the partitions of a topic, with one or several in flight per partition.

    Like a real client, it sends nothing more after a batch has failed until it has received the responses to all
    batches in flight. Then it sends the unacknowledged batches again, in order. The acknowledgement of a batch also
    acknowledges all batches before it.
    """

    def __init__(
        self,
        name: str,
        bootstrap: Iterable[tuple[str, int]],
        ledger: Ledger,
        rng: Random,
        keys: Sequence[str] = (),
    ) -> None:
        """``keys`` are the keys of the records. If it is empty, records have no key."""
        super().__init__(name, bootstrap, ledger, rng)
        self._keys = keys

    async def run(self, topic: str, partitions: Iterable[int], *, pause_s: float) -> None:
        """Produce until ``stopping`` is set, and then until every batch is acknowledged.

        After an error that implies the loss of acknowledged records, nothing more is sent to that partition.
        """
        producer_id, epoch = await self._identity()
        await asyncio.gather(*(self._lane(topic, each, producer_id, epoch, pause_s) for each in partitions))
        await self.client.close()

    async def _identity(self) -> tuple[int, int]:
        while True:
            try:
                request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
                response = await self.client.send(request)
            except KafkaError as error:
                await self.retry_later("init", error)
                continue
            if not response.error_code:
                return response.producer_id, response.producer_epoch
            await self.retry_later("init", ErrorCode(response.error_code))

    async def _lane(self, topic: str, partition: int, producer_id: int, epoch: int, pause_s: float) -> None:
        in_flight_max = self.rng.choice((1, IN_FLIGHT_MAX))
        sequence = 0
        waiting: list[_Batch] = []
        while waiting or not self.stopping:
            while len(waiting) < in_flight_max and not self.stopping:
                values = [self._text(partition, sequence + i) for i in range(self.rng.randint(1, 3))]
                waiting.append(_Batch(values, _batch(values, producer_id, epoch, sequence)))
                sequence += len(values)
                self.ledger.sent(self.name, topic, partition, values)
            acknowledged, failure = await self._deliver(topic, partition, waiting)
            del waiting[:acknowledged]
            if failure in _FATAL:
                return
            if failure is not None:
                await self.retry_later(f"produce {waiting[0].values[0]}" if waiting else "produce", failure)
            else:
                await self.pause(pause_s)

    def _text(self, partition: int, sequence: int) -> str:
        text = f"{self.name}-{partition}-{sequence}"
        if self._keys:
            deleted = f"/{DELETED}" if self.rng.random() < TOMBSTONES else ""
            text = f"{self.rng.choice(self._keys)}/{text}{deleted}"
        return text

    async def _deliver(self, topic: str, partition: int, batches: list[_Batch]) -> tuple[int, ErrorCode | None]:
        """Send these batches, several of them in flight at the same time, until one fails.

        Returns the number of batches, from the first on, that are acknowledged, and the first error or None. After an
        error the next call looks up the leader again.
        """
        try:
            node = await self.client.leader(topic, partition, fresh=(topic, partition) in self._stale_leaders)
            link = await self.client._link(node)  # one connection, on which no batch overtakes another
        except KafkaError as error:
            self._stale_leaders.add((topic, partition))
            return 0, error.code
        gap_s = self.rng.choice((0.0005, 0.005, 0.02))  # mostly several in flight, or mostly one
        sent: list[asyncio.Task[ErrorCode]] = []
        for batch in batches:
            if any(task.done() and task.result() for task in sent):
                break
            sent.append(asyncio.ensure_future(self._send(link, node, topic, partition, batch)))
            await self.pause(gap_s)
        codes = await asyncio.gather(*sent)
        acknowledged = max((i + 1 for i, code in enumerate(codes) if not code), default=0)
        failure = next((code for code in codes if code), None)
        self._stale_leaders.discard((topic, partition))
        if failure is not None:
            self._stale_leaders.add((topic, partition))
        for i, batch in enumerate(batches[:acknowledged]):
            if codes[i]:  # a later acknowledgement proves that this batch was appended
                self.ledger.acknowledged(self.name, topic, partition, batch.values, -1, node)
        return acknowledged, failure

    async def _send(self, link: Link, node: int, topic: str, partition: int, batch: _Batch) -> ErrorCode:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                response: Any = await link.ask(_produce(topic, partition, batch.data), PRODUCE_VERSION)
        except TimeoutError:
            return ErrorCode.REQUEST_TIMED_OUT
        except KafkaError as error:
            return error.code
        result = response.responses[0].partition_responses[0]
        code = ErrorCode(result.error_code)
        if code in _FATAL:
            self.ledger.refused(self.name, topic, partition, batch.values, code, node)
        elif code is ErrorCode.NONE:
            self.ledger.acknowledged(self.name, topic, partition, batch.values, result.base_offset, node)
        return code


def _batch(values: list[str], producer_id: int, epoch: int, sequence: int) -> bytearray:
    now_ms = EPOCH_MS + int(asyncio.get_running_loop().time() * 1000)
    return build(
        [record_of(text, i, now_ms) for i, text in enumerate(values)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def _produce(topic: str, partition: int, batch: bytearray) -> ProduceRequest:
    data = ProduceRequest.PartitionProduceData(index=partition, records=bytes(batch))
    return ProduceRequest(
        acks=-1, timeout_ms=3000, topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])]
    )


class Reader(_User):
    """A reader of partitions, from their beginning. It also requests their end offsets.

    With a ledger of transactions it reads committed records only, as specified by KIP-98: up to the last stable offset,
    and without the aborted transactions that the leader lists.
    """

    def __init__(
        self,
        name: str,
        bootstrap: Iterable[tuple[str, int]],
        ledger: Ledger,
        rng: Random,
        transactions: TransactionLedger | None = None,
    ) -> None:
        super().__init__(name, bootstrap, ledger, rng)
        self._transactions = transactions
        self._isolation_level = 0 if transactions is None else 1

    async def run(self, topic: str, partitions: Iterable[int], *, until_ends: bool = False) -> None:
        """Read until ``stopping`` is set, or with ``until_ends`` up to the current end offsets."""
        await asyncio.gather(*(self._lane(topic, each, until_ends) for each in partitions))
        await self.client.close()

    async def _lane(self, topic: str, partition: int, until_ends: bool) -> None:
        position, known_epoch, end = 0, -1, -1
        while not self.stopping:
            try:
                node, known_epoch = await self._leader(topic, partition, known_epoch)
                while not self.stopping:
                    if end < 0 or self.rng.random() < 0.1:
                        end = await self._end(topic, partition, node, known_epoch)
                    position = await self._fetch(topic, partition, position, node, known_epoch)
                    if until_ends and position >= end:
                        self.ledger.read_to_end(self.name, topic, partition, position)
                        return
                    await self.pause(0.1)
            except KafkaError as error:
                await self.retry_later(f"read {topic}-{partition}", error)

    async def _leader(self, topic: str, partition: int, known_epoch: int) -> tuple[int, int]:
        metadata = await self.client.metadata([topic])
        found = metadata.topics[0]
        if found.error_code:
            raise KafkaError(ErrorCode(found.error_code))
        for each in found.partitions:
            if each.partition_index == partition:
                if each.leader_id < 0 or each.leader_epoch < known_epoch:
                    raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
                return each.leader_id, each.leader_epoch
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    async def _end(self, topic: str, partition: int, node: int, epoch: int) -> int:
        wanted = ListOffsetsRequest.ListOffsetsPartition(
            partition_index=partition, current_leader_epoch=epoch, timestamp=-1
        )
        topics = [ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[wanted])]
        request = ListOffsetsRequest(replica_id=-1, isolation_level=self._isolation_level, topics=topics)
        response = await self.client.send(request, node=node)
        found = response.topics[0].partitions[0]
        if found.error_code:
            raise KafkaError(ErrorCode(found.error_code))
        self.ledger.saw_end(self.name, topic, partition, found.offset, node, epoch)
        return int(found.offset)

    async def _fetch(self, topic: str, partition: int, position: int, node: int, epoch: int) -> int:
        wanted = FetchRequest.FetchPartition(
            partition=partition, current_leader_epoch=epoch, fetch_offset=position, partition_max_bytes=4096
        )
        request = FetchRequest(
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=4096,
            isolation_level=self._isolation_level,
            topics=[FetchRequest.FetchTopic(topic=topic, partitions=[wanted])],
        )
        response = await self.client.send(request, node=node, version=FETCH_VERSION)
        if response.error_code:
            raise KafkaError(ErrorCode(response.error_code))
        found = response.responses[0].partitions[0]
        if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self.ledger.out_of_range(self.name, topic, partition, position, node, epoch)
        if found.error_code:
            raise KafkaError(ErrorCode(found.error_code))
        data = bytes(found.records or b"")
        aborted = AbortedTransactions(found.aborted_transactions or ())
        for at, header in headers(data):
            try:
                verify_crc(data, at, header)
            except KafkaError as error:
                self.ledger.read_damaged(self.name, topic, partition, header.base_offset, node, str(error))
                raise
            visible = () if aborted.skips(header, data, at) else records(data[at : at + header.size_bytes])
            for record in visible:
                if record.offset >= position:
                    position = record.offset + 1
                    value = text_of(record)
                    self.ledger.read(self.name, topic, partition, record.offset, value, node)
                    if self._transactions is not None:
                        self._transactions.read(self.name, value)
            position = max(position, header.next_offset)  # compaction may have removed the last records of the batch
        return position


class AbortedTransactions:
    """The aborted transactions that a fetch response lists. Pass its batches to ``skips`` in order."""

    def __init__(self, named: Iterable[Any]) -> None:
        self._to_come = sorted((each.first_offset, each.producer_id) for each in named)
        self._producers: dict[int, None] = {}

    def skips(self, header: BatchHeader, data: bytes, at: int) -> bool:
        """Return True if a consumer skips the batch: a control batch, or a batch of an aborted transaction.

        The batch begins at the position ``at`` of ``data``.
        """
        while self._to_come and self._to_come[0][0] <= header.last_offset:
            self._producers[self._to_come.pop(0)[1]] = None
        if header.is_control:
            marker = read_marker(data, at)
            if marker is not None and marker.type is ControlType.ABORT:
                self._producers.pop(header.producer_id, None)
            return True
        return header.is_transactional and header.producer_id in self._producers
