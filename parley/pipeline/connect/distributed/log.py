"""A compacted topic as a log of keyed records. Every worker reads it from the start and then follows it.

Configurations, statuses and offsets are kept in a ``Log``: a topic (``TopicLog``), or memory for a standalone worker
(``MemoryLog``). Rules:

1. ``on_record`` gets the records of a partition in order, each at least once, including those that this worker sends.
2. ``start`` returns when it has read all existing records, ``read_to_end`` when it has read all records that existed
   when it was called. So a worker that sends a record and then reads to the end has read that record.
3. Temporary errors (a leader moves, a broker returns) are retried until the log is stopped. ``send`` fails after
   ``SEND_SECONDS``.
4. Records of aborted transactions are left out. ``read_to_end`` therefore waits until the transactions that are open
   below that end have ended.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from parley.pipeline.client.cluster import EARLIEST, LATEST, Lookup
from parley.pipeline.client.decode import visible
from parley.pipeline.client.fetching import Isolation, TopicPartition, fetched_in
from parley.pipeline.client.partitioner import partition_of
from parley.pipeline.connect.distributed.topics import TopicPlan, prepare
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError, check_code
from parley.protocol.messages.fetch import FetchRequest
from parley.protocol.messages.produce import ProduceRequest
from parley.protocol.records import batch
from parley.protocol.records.batch_header import headers
from parley.protocol.records.record import Record
from parley.protocol.security.client_security import ClientSecurity

SEND_SECONDS: Final = 30.0
_NAMES_UNTIL: Final = 12
"""The last version of Produce and Fetch that names topics. Later versions use topic ids."""
_FETCH_WAIT_MS: Final = 500
_FETCH_BYTES: Final = 1 << 20
_FIRST_PAUSE_S: Final = 0.05
_LAST_PAUSE_S: Final = 1.0
_log = logging.getLogger(__name__)

OnRecord = Callable[["Keyed"], None]


class Keyed(NamedTuple):
    """A record of a log: its offset, key and value. A record without a value deletes the key."""

    offset: int
    key: bytes
    value: bytes | None


class Log(ABC):
    """A log of keyed records, which any number of workers append to and follow."""

    @abstractmethod
    async def start(self, on_record: OnRecord) -> None:
        """Read all existing records, and follow the log from then on. Calls ``on_record`` with each record. Raises
        ConnectError if the log cannot be used.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Stop following the log."""

    @abstractmethod
    async def send(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Append pairs of key and value, in this order within a partition. Raises KafkaError."""

    @abstractmethod
    async def read_to_end(self) -> None:
        """Wait until everything that exists now has been read."""


class MemoryLog(Log):
    """A log in memory: sent records are read immediately. It ends with the process."""

    def __init__(self) -> None:
        self._on_record: OnRecord | None = None
        self._offset = 0

    async def start(self, on_record: OnRecord) -> None:
        self._on_record = on_record

    async def stop(self) -> None:
        self._on_record = None

    async def send(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        for key, value in records:
            if self._on_record is not None:
                self._on_record(Keyed(self._offset, key, value))
            self._offset += 1

    async def read_to_end(self) -> None:
        return


class TopicLog(Log):
    """A topic as a log. ``bootstrap`` and ``client_id`` are the worker's. ``now_ms`` timestamps new records."""

    def __init__(
        self, bootstrap: str, plan: TopicPlan, *, client_id: str, security: ClientSecurity, now_ms: Callable[[], int]
    ) -> None:
        self._plan = plan
        self._now_ms = now_ms
        # Two clients: a fetch that waits for records delays later requests on the same connection.
        self._reader = Client(bootstrap, client_id=client_id, security=security)
        self._writer = Client(bootstrap, client_id=client_id, security=security)
        self._positions: dict[int, int] = {}
        self._waiting: list[tuple[dict[int, int], asyncio.Future[None]]] = []
        self._following: asyncio.Task[None] | None = None
        self._sending = asyncio.Lock()
        self._on_aborted: OnRecord | None = None

    async def start(self, on_record: OnRecord, on_aborted: OnRecord | None = None) -> None:
        """Read all existing records, and follow the topic from then on. Calls ``on_record`` with each record, and
        ``on_aborted`` with the records of aborted transactions that are still in the topic.

        Raises ConnectError if the topic cannot be created, or does not meet the requirements.
        """
        self._on_aborted = on_aborted
        partitions = await prepare(self._writer, self._plan)
        self._positions = dict.fromkeys(range(partitions), 0)
        self._positions.update(await self._offsets(EARLIEST))
        self._following = asyncio.create_task(self._follow(on_record))
        await self.read_to_end()

    async def stop(self) -> None:
        if self._following is not None:
            self._following.cancel()
            with suppress(asyncio.CancelledError):
                await self._following
        for _, waiting in self._waiting:
            waiting.cancel()
        await self._reader.close()
        await self._writer.close()

    # Reading.

    async def read_to_end(self) -> None:
        ends = await self._offsets(LATEST)
        if self._has_read(ends):
            return
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append((ends, waiting))
        await waiting

    def _has_read(self, ends: Mapping[int, int]) -> bool:
        return all(self._positions.get(partition, 0) >= end for partition, end in ends.items())

    async def _offsets(self, timestamp: int) -> dict[int, int]:
        """Return the first (EARLIEST) or the end offset (LATEST) of every partition. Retries until all are known."""
        lookup = Lookup({TopicPartition(self._plan.name, one): timestamp for one in self._positions})
        pause = _FIRST_PAUSE_S
        while True:
            try:
                return {place.partition: offset for place, offset in (await lookup.run(self._writer)).items()}
            except KafkaError as error:
                _log.warning("%s: the worker cannot get its offsets: %s", self._plan.name, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE_S)

    async def _leaders(self, *, fresh: bool) -> dict[int, list[int]]:
        """Return the numbers of the partitions that each node leads. ``fresh`` looks up the leaders again. Raises
        KafkaError.
        """
        by_node: dict[int, list[int]] = {}
        for partition in self._positions:
            node = await self._reader.leader(self._plan.name, partition, fresh=fresh)
            by_node.setdefault(node, []).append(partition)
            fresh = False  # the lookup refreshed all partitions
        return by_node

    async def _follow(self, on_record: OnRecord) -> None:
        pause, fresh = _FIRST_PAUSE_S, False
        while True:
            try:
                leaders = await self._leaders(fresh=fresh)
                whole = await asyncio.gather(*(self._fetch(node, of, on_record) for node, of in leaders.items()))
                fresh = not all(whole)
            except KafkaError as error:
                _log.warning("%s cannot be read at the moment: %s", self._plan.name, error)
                fresh = True
            pause = min(2 * pause, _LAST_PAUSE_S) if fresh else _FIRST_PAUSE_S
            if fresh:
                await asyncio.sleep(pause)

    async def _fetch(self, node: int, partitions: Sequence[int], on_record: OnRecord) -> bool:
        """Fetch once from the partitions that the node leads. Returns False if the node no longer leads one of them.

        Raises KafkaError.
        """
        requested = [
            FetchRequest.FetchPartition(
                partition=one, fetch_offset=self._positions[one], partition_max_bytes=_FETCH_BYTES
            )
            for one in partitions
        ]
        request = FetchRequest(
            max_wait_ms=_FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=8 * _FETCH_BYTES,
            isolation_level=Isolation.READ_COMMITTED,
            topics=[FetchRequest.FetchTopic(topic=self._plan.name, partitions=requested)],
        )
        version = min(await self._reader.version_for(FetchRequest, node=node), _NAMES_UNTIL)
        answer = await self._reader.send(request, node=node, version=version)
        check_code(answer.error_code, self._plan.name)
        whole = True
        for topic in answer.responses:
            for one in topic.partitions:
                whole &= self._take(one, on_record)
        self._wake()
        return whole

    def _take(self, one: Any, on_record: OnRecord) -> bool:
        partition = one.partition_index
        if one.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._positions[partition] = max(one.log_start_offset, 0)
            return True
        if one.error_code:
            return False
        position = self._positions[partition]
        fetched = fetched_in(TopicPartition(self._plan.name, partition), position, one)
        shown = {at for at, _ in visible(fetched, position)}
        for at, header in headers(fetched.records):
            take = on_record if at in shown else None if header.is_control else self._on_aborted
            if take is None:
                continue
            for record in batch.records(fetched.records, at):
                if record.offset >= position and record.key is not None:
                    take(Keyed(record.offset, record.key, record.value))
        self._positions[partition] = fetched.next_offset
        return True

    def _wake(self) -> None:
        for ends, waiting in self._waiting:
            if not waiting.done() and self._has_read(ends):
                waiting.set_result(None)
        self._waiting = [one for one in self._waiting if not one[1].done()]

    # Writing.

    async def send(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        by_partition: dict[int, list[tuple[bytes, bytes | None]]] = {}
        for key, value in records:
            by_partition.setdefault(partition_of(key, len(self._positions)), []).append((key, value))
        async with self._sending:  # one call at a time, so that no record overtakes a retried record
            for partition, of_it in by_partition.items():
                await self._produce(partition, of_it)

    async def _produce(self, partition: int, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        now = self._now_ms()
        made = bytes(batch.build([Record(0, now, key, value) for key, value in records]))
        loop = asyncio.get_running_loop()
        give_up, pause, fresh = loop.time() + SEND_SECONDS, _FIRST_PAUSE_S, False
        while True:
            try:
                await self._produce_once(partition, made, fresh=fresh)
                return
            except KafkaError as error:
                if not error.code.retriable or loop.time() + pause > give_up:
                    raise
            await asyncio.sleep(pause)
            pause, fresh = min(2 * pause, _LAST_PAUSE_S), True

    async def _produce_once(self, partition: int, made: bytes, *, fresh: bool) -> None:
        node = await self._writer.leader(self._plan.name, partition, fresh=fresh)
        data = ProduceRequest.PartitionProduceData(index=partition, records=made)
        topic = ProduceRequest.TopicProduceData(name=self._plan.name, partition_data=[data])
        version = min(await self._writer.version_for(ProduceRequest, node=node), _NAMES_UNTIL)
        request = ProduceRequest(acks=-1, timeout_ms=int(1000 * SEND_SECONDS), topic_data=[topic])
        answer = await self._writer.send(request, node=node, version=version)
        check_code(answer.responses[0].partition_responses[0].error_code, f"{self._plan.name}-{partition}")
