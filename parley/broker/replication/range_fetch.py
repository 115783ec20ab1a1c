"""Fetches a range of committed records from another replica, to replace damaged records.

Rules of this module (docs/storage.md, "Mending", has the reasons):

* The other replica, a leader or a follower, serves the range as it serves a consumer: only below its high watermark.
  Both brokers must know the same leader epoch, so a replica that does not know of a new leader yet is refused.
* Every batch is checked before it is put in place: its checksum, that it continues the previous batch, and that its
  leader epoch is the one in this replica's leader-epoch cache for its offset. So no records of a diverged log are used.
* The part of the range below the log start is not fetched, because the other replica may have removed it, too. Only the
  batch that contains the log start reaches below it.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, cast

from parley.broker.replication.partition import Partition
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.fetch import FetchRequest, FetchResponse
from parley.protocol.records.batch_header import Buffer, headers
from parley.protocol.records.crc import verify_crc
from parley.protocol.records.errors import CorruptRecord
from parley.protocol.schema import Request
from parley.protocol.sentinels import NO_EPOCH
from parley.storage.leader_epoch_cache import LeaderEpochCache

CONSUMER = -1
"""The replica id of requests that a leader or a follower serves up to the high watermark."""
THROTTLES_MAX = 10
"""The maximum number of throttled responses to one fetch. Without an authorizer, consumer quotas apply to brokers,
too."""


class LackedRecords(KafkaError):
    """Raised if the other replica lacks some of the records, or its own copy is damaged: it responded with
    OFFSET_OUT_OF_RANGE or CORRUPT_MESSAGE for an offset in the range.

    No other error proves that the replica lacks them: it may be unreachable or may not have committed them yet, or this
    broker has found the error.
    """


class Ask(Protocol):
    """Sends a request to the other replica (``Client.send``)."""

    async def __call__(self, request: Request) -> Any: ...


class FetchedBatches(NamedTuple):
    """Whole, checked batches, and the offset that follows the last one."""

    data: memoryview
    next_offset: int
    lacks_tombstones: bool = False
    """True if compaction may have removed tombstones above the first offset. The other replica reports this as in a
    response to a follower."""


async def fetch_batches(
    ask: Ask, partition: Partition, offset: int, last_offset: int, *, max_bytes: int, has_gaps: bool
) -> FetchedBatches:
    """Fetch the batches from ``offset`` to ``last_offset``, about ``max_bytes`` at most.

    ``has_gaps`` is True if offsets may be missing between batches, as after compaction. Raises ``KafkaError``: an error
    of the other replica (``LackedRecords`` if it does not have the records), OFFSET_NOT_AVAILABLE if the records are
    not committed there yet, or CORRUPT_MESSAGE if the batches do not belong in this log.
    """
    following = _first_certain_after(partition, last_offset, has_gaps=has_gaps)
    if following is not None:
        await _check_agreement(ask, partition, following)
    start = partition.log.log_start_offset
    try:
        data, records = await _fetch(ask, partition, max(offset, start), max_bytes)
    except KafkaError as error:
        if error.code in (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.CORRUPT_MESSAGE):
            raise LackedRecords(error.code) from error
        raise
    epochs = partition.log.leader_epochs if following is None else None
    batches = checked_batches(records, offset, last_offset, epochs, log_start=start, has_gaps=has_gaps)
    return batches._replace(lacks_tombstones=data.snapshot_id.end_offset > offset)


def _first_certain_after(partition: Partition, last_offset: int, *, has_gaps: bool) -> int | None:
    """Return the first offset with a certain leader epoch after a range that ends with ``last_offset``.

    Recovery learns epochs from the batches that it can read. So an epoch that seems to start with the first batch after
    the range may have started inside the range, and so may earlier epochs. Returns None if the leader-epoch cache
    contains the epochs in the range. With gaps, the first batch may start anywhere after the range.
    """
    log = partition.log
    start = log.leader_epochs.next_start(last_offset)
    if start is None or start >= log.log_end_offset or (start > last_offset + 1 and not has_gaps):
        return None
    return start


async def _check_agreement(ask: Ask, partition: Partition, offset: int) -> None:
    """Check that both logs contain a batch with the same leader epoch at ``offset``. If so, they agree up to there."""
    _, records = await _fetch(ask, partition, offset, max_bytes=1)
    at, header = next(headers(records), (0, None))
    if header is None:
        raise CorruptRecord(f"it has no whole batch at offset {offset}")
    verify_crc(records, at, header)
    first = max(header.base_offset, offset)
    _check_epoch(first, header.partition_leader_epoch, partition.log.leader_epochs.epoch_at(first))


def _check_epoch(offset: int, epoch: int, expected: int | None) -> None:
    if epoch != expected:
        raise CorruptRecord(f"it wrote offset {offset} in leader epoch {epoch}, this replica in {expected}")


async def _fetch(
    ask: Ask, partition: Partition, offset: int, max_bytes: int
) -> tuple[FetchResponse.PartitionData, Buffer]:
    """Fetch at least one batch. Returns the response, and its records.

    Raises ``KafkaError`` if the other broker responds with an error, or has no committed record at ``offset``.
    """
    requested = FetchRequest.FetchPartition(
        partition=partition.index,
        current_leader_epoch=partition.leader_epoch,
        fetch_offset=offset,
        log_start_offset=partition.log.log_start_offset,
        partition_max_bytes=max_bytes,
    )
    request = FetchRequest(
        replica_state=FetchRequest.ReplicaState(replica_id=CONSUMER),
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=max_bytes,
        topics=[FetchRequest.FetchTopic(topic_id=partition.topic_id, partitions=[requested])],
    )
    response: FetchResponse = await ask(request)
    for _ in range(THROTTLES_MAX):
        if not response.throttle_time_ms or response.error_code or response.responses:
            break
        response = await ask(request)  # the client waits for the throttle time before it sends the request
    data = _only_partition(response)
    if not data.records:
        raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, f"offset {offset} is not committed on the other broker yet")
    return data, cast("Buffer", data.records)  # in a decoded response, the records are always a single buffer


def _only_partition(response: FetchResponse) -> FetchResponse.PartitionData:
    codes = [response.error_code]
    found = [data for topic in response.responses for data in topic.partitions]
    codes += [data.error_code for data in found]
    error = next(filter(None, codes), 0)
    if error or not found:
        raise KafkaError(ErrorCode(error or ErrorCode.UNKNOWN_SERVER_ERROR))
    return found[0]


def checked_batches(
    data: Buffer, offset: int, last_offset: int, epochs: LeaderEpochCache | None, *, log_start: int = 0, has_gaps: bool
) -> FetchedBatches:
    """Return the whole batches in ``data`` with offsets from ``offset`` to ``last_offset``.

    Offsets below ``log_start`` may be missing. ``epochs`` is None if the leader epochs in the range are unknown. With
    ``has_gaps``, the result is empty, and continues after ``last_offset``, if the first batch is past the range.
    Otherwise raises ``CorruptRecord`` if there is no whole batch in the range. Also raises it if a batch does not
    belong in a log with these leader epochs.
    """
    expected, end, is_past_range = offset, 0, False
    for at, header in headers(data):
        if header.base_offset > last_offset:
            is_past_range = True
            break
        verify_crc(data, at, header)
        if header.base_offset < expected or (header.base_offset > max(expected, log_start) and not has_gaps):
            raise CorruptRecord(f"its batch begins at offset {header.base_offset}, not at {expected}")
        if header.last_offset > last_offset:
            raise CorruptRecord(f"its batch ends at offset {header.last_offset}, the damage at {last_offset}")
        expected_epoch = None if epochs is None else epochs.epoch_at(header.base_offset)
        if expected_epoch is not None and header.partition_leader_epoch != NO_EPOCH:
            _check_epoch(header.base_offset, header.partition_leader_epoch, expected_epoch)
        expected, end = header.next_offset, at + header.size_bytes
    if not end and not (has_gaps and is_past_range):
        raise CorruptRecord(f"it has no whole batch at offset {offset}")
    return FetchedBatches(memoryview(data)[:end], expected if end else last_offset + 1)
