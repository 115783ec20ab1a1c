"""WriteTxnMarkers: writes the markers that end transactions to the partitions that this broker leads.

The transaction coordinator calls ``write`` for the partitions that its own broker leads, and sends the request to the
other leaders. A marker for a partition of ``__consumer_offsets`` goes through the group coordinator, which applies the
offsets together with the marker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import NamedTuple

from parley.broker.api.requested_names import once
from parley.broker.api.transactional.verifications import Verifications
from parley.broker.metadata.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.partition import Partition
from parley.broker.runtime.purgatory import Delayed, Purgatory
from parley.broker.runtime.threads import LOOP_THREADS, Threads
from parley.broker.runtime.turns import next_turn
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from parley.protocol.records.control_batch import ControlMarker, ControlType, build_marker
from parley.protocol.sentinels import NO_PRODUCER_ID
from parley.storage.log import Log, Origin

Marker = WriteTxnMarkersRequest.WritableTxnMarker
AppendToOffsets = Callable[[int, Marker], "asyncio.Future[None]"]
"""Appends a marker to a partition of ``__consumer_offsets``. The future completes when all in-sync replicas have the
marker. Raises KafkaError, or the future fails with a KafkaError."""
_Outcome = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult

TURN_S = 0.01
"""How long, in seconds, markers are appended before the event loop serves other clients. The first append to a log
creates its files, so a limit on the number of markers would not bound the time."""


class _Appended(NamedTuple):
    """A marker in this leader's log that the followers must still fetch."""

    partition: Partition
    log: Log
    offset: int
    outcome: _Outcome


class TransactionMarkers:
    """Handler of WriteTxnMarkers."""

    def __init__(
        self,
        partitions: HostedPartitions,
        purgatory: Purgatory,
        verifications: Verifications,
        append_to_offsets: AppendToOffsets,
        *,
        wall_ms: Callable[[], int],
        monotonic: Callable[[], float],
        timeout_s: float,
        threads: Threads = LOOP_THREADS,
    ) -> None:
        """``purgatory`` is ``Purgatories.produce``. ``timeout_s`` (``request.timeout.ms``) limits the wait for the
        replicas, in seconds."""
        self._partitions = partitions
        self._purgatory = purgatory
        self._verifications = verifications
        self._append_to_offsets = append_to_offsets
        self._wall_ms = wall_ms
        self._monotonic = monotonic
        self._timeout_s = timeout_s
        self._threads = threads

    def routes(self) -> dict[int, Handler]:
        return {WriteTxnMarkersRequest.API_KEY: self.write_markers}

    async def write_markers(self, context: RequestContext, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        """Write the markers of a request. Each partition of each marker succeeds or fails independently."""
        return await self.write(request)

    async def write(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        """Append all markers in the order of the request, and wait for at most ``timeout_s`` until all in-sync replicas
        have them. The response contains an error code for each partition of each marker.

        After these errors, the coordinator sends the marker again: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER,
        NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND, REQUEST_TIMED_OUT, KAFKA_STORAGE_ERROR, and the errors of
        the group coordinator for ``__consumer_offsets``. INVALID_PRODUCER_EPOCH and TRANSACTION_COORDINATOR_FENCED mean
        that the partition knows a later epoch.
        """
        appended: list[_Appended] = []
        offsets: list[tuple[_Outcome, asyncio.Future[None]]] = []
        results = []
        turn_ends = self._monotonic() + TURN_S
        for marker in request.markers:
            batch = self._batch(marker)
            topics = []
            for name, indexes in once(((topic.name, topic.partition_indexes) for topic in marker.topics), int).items():
                outcomes = []
                for index in indexes:
                    outcome = _Outcome(partition_index=index)
                    outcomes.append(outcome)
                    self._append(marker, batch, name, outcome, appended, offsets)
                    if self._monotonic() > turn_ends:
                        await next_turn()
                        turn_ends = self._monotonic() + TURN_S
                topics.append(WriteTxnMarkersResponse.WritableTxnMarkerTopicResult(name=name, partitions=outcomes))
            results.append(
                WriteTxnMarkersResponse.WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics)
            )
        await self._flush(appended)
        waiting = _WaitingMarkers(appended)
        if not waiting.done():
            self._purgatory.watch(waiting, waiting.partitions, self._timeout_s)
            await waiting
        for outcome, future in offsets:
            try:
                await future
            except KafkaError as error:
                outcome.error_code = error.code
        return WriteTxnMarkersResponse(markers=results)

    def _append(
        self,
        marker: Marker,
        batch: bytearray,
        topic: str,
        outcome: _Outcome,
        appended: list[_Appended],
        offsets: list[tuple[_Outcome, asyncio.Future[None]]],
    ) -> None:
        try:
            if topic == TRANSACTIONS_TOPIC:
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)  # no transaction writes to this topic
            if marker.producer_id == NO_PRODUCER_ID:
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)  # Kafka's code for a marker without a producer
            if marker.producer_epoch < 0:
                raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)  # no producer has such an epoch
            partition = self._partitions.find(topic, outcome.partition_index)
            partition.check_leader()
            if topic == OFFSETS_TOPIC:
                offsets.append((outcome, self._append_to_offsets(outcome.partition_index, marker)))
            else:
                appended.append(_Appended(partition, partition.log, self._append_to(partition, marker, batch), outcome))
            self._verifications.settle(partition, marker.producer_id)
        except KafkaError as error:
            outcome.error_code = error.code

    def _batch(self, marker: Marker) -> bytearray:
        """Return the marker as a batch without offsets. Each partition appends a copy."""
        kind = ControlType.COMMIT if marker.transaction_result else ControlType.ABORT
        return build_marker(
            ControlMarker(kind, marker.coordinator_epoch),
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            timestamp=self._wall_ms(),
        )

    def _append_to(self, partition: Partition, marker: Marker, batch: bytearray) -> int:
        """Append a copy of a marker's batch to an ordinary partition and return its offset. Raises the errors of
        ``Partition.append``."""
        info = partition.append(
            bytearray(batch),
            acks=-1,
            now_ms=self._wall_ms(),
            origin=Origin.COORDINATOR,
            transaction_version=marker.transaction_version,
        )
        return info.last_offset

    async def _flush(self, appended: list[_Appended]) -> None:
        """Flush the logs whose ``flush.messages`` requires it."""
        now_ms = self._wall_ms()
        loop = asyncio.get_running_loop()
        for each in appended:
            try:
                if each.partition.must_flush(now_ms):
                    await loop.run_in_executor(self._threads.upkeep, each.log.flush)
            except KafkaError as error:
                each.outcome.error_code = error.code


class _WaitingMarkers(Delayed[None]):
    """A future that completes when all in-sync replicas of each partition have its markers."""

    def __init__(self, appended: list[_Appended]) -> None:
        super().__init__()
        self._waiting: dict[Partition, list[_Appended]] = {}
        for each in appended:
            if not each.outcome.error_code:
                self._waiting.setdefault(each.partition, []).append(each)
        self.partitions = tuple(self._waiting)
        if not self.partitions:
            self.complete(None)
        for partition in self.partitions:
            self.on_change(partition, 0)

    def on_change(self, key: Hashable, amount: int) -> bool:
        assert isinstance(key, Partition)
        waiting = self._waiting.get(key)
        if waiting is None:
            return True
        left = []
        for each in waiting:
            code = key.append_outcome(each.offset)
            if code is None:
                left.append(each)
            else:
                each.outcome.error_code = code
        if left:
            self._waiting[key] = left
            return False
        del self._waiting[key]
        if not self._waiting:
            self.complete(None)
        return True

    def expired(self) -> None:
        for waiting in self._waiting.values():
            for each in waiting:
                each.outcome.error_code = ErrorCode.REQUEST_TIMED_OUT
        self.complete(None)
