"""One fetch of one partition: the request, and the interpretation of its response."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError, check_code
from parley.protocol.messages.fetch import FetchRequest, FetchResponse
from parley.protocol.messages.offsets import ListOffsetsRequest
from parley.protocol.records.batch_header import headers
from parley.protocol.records.errors import CorruptRecord

LATEST: Final = -1
"""Used as a timestamp, this requests the offset after the last readable record."""
EARLIEST: Final = -2
"""Used as a timestamp, this requests the offset of the first record."""
FETCH_BYTES: Final = 4 * 1024 * 1024
"""The default limit of a response: large enough that the cost of a request does not matter."""
_NAMES_VERSION_MAX: Final = 12
"""The last version that identifies topics by name. Later versions use topic ids (KIP-516)."""
_V2_BATCHES_VERSION: Final = 4
"""The first version whose responses may contain batches of magic 2. For earlier versions, the broker converts them."""
_MAX_WAIT_MS: Final = 500
_NOTHING: Final = FetchResponse.PartitionData(partition_index=-1, high_watermark=-1, records=None)


class TopicPartition(NamedTuple):
    """A partition, identified by its topic's name and its number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Isolation(IntEnum):
    """The isolation level of a read: which records of transactions it returns (``isolation.level``, KIP-98)."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class OffsetOutOfRange(KafkaError):
    """Raised if the log does not contain the offset: retention deleted it, or a change of leader truncated it.

    Attributes: ``partition``, ``offset``, ``log_start`` and ``log_end``. At the time of the error, the log contained
    the offsets [``log_start``, ``log_end``). The caller decides: continuing at ``log_start`` accepts the loss of data.
    """

    def __init__(self, partition: TopicPartition, offset: int, log_start: int, log_end: int) -> None:
        what = "records before it were deleted" if offset < log_start else "the log was truncated"
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{partition} has offsets {log_start} to {log_end}, not {offset}: {what}; start again from {log_start}"
            " to accept the loss",
        )
        self.partition = partition
        self.offset = offset
        self.log_start = log_start
        self.log_end = log_end


class LogEnded(KafkaError):
    """Raised if the log ends at ``offset``, before the requested range: it was truncated, or never reached further.

    It is not an ``OffsetOutOfRange``, because nothing before the offset is missing. Attributes: ``partition``,
    ``offset``.
    """

    def __init__(self, partition: TopicPartition, offset: int) -> None:
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{partition} ends at offset {offset}: the requested records were never written, or were truncated",
        )
        self.partition = partition
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of one fetch: whole batches, unchanged from the log."""

    partition: TopicPartition
    start: int
    """The requested offset. The first batch may start before it."""
    next_offset: int
    """The offset after the last batch; ``start`` if there is none."""
    records: bytes
    aborted: tuple[tuple[int, int], ...]
    """The producer id and the first offset of each aborted transaction in the batches. Only with READ_COMMITTED."""
    log_start: int
    high_watermark: int
    last_stable: int
    """All transactions below this offset have ended. It is the high watermark if the broker does not return it."""


async def fetch_once(
    client: Client, partition: TopicPartition, offset: int, isolation: Isolation, max_bytes: int
) -> Fetched:
    """Fetch once from the partition's leader. The result may contain no batches.

    Raises KafkaError: the partition's error; ``OffsetOutOfRange``; CorruptRecord if the bytes are not batches; or
    UNSUPPORTED_VERSION if the broker does not support READ_COMMITTED. Before it raises an error that a change of leader
    may explain, this function looks up the leader again.
    """
    try:
        node = await client.leader(*partition)
        version = min(await client.version_for(FetchRequest, node=node), _NAMES_VERSION_MAX)
        if version < _V2_BATCHES_VERSION and isolation is Isolation.READ_COMMITTED:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, f"the broker of {partition} does not support read_committed"
            )
        request = _request(partition, offset, isolation, max_bytes)
        answer = await client.send(request, node=node, version=version)
        # A throttled client gets a response without partitions.
        data = answer.responses[0].partitions[0] if answer.responses else _NOTHING
        code = answer.error_code or data.error_code
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise await _out_of_range(client, partition, offset, node)
        if code:
            raise KafkaError(ErrorCode(code), f"fetching {partition} from offset {offset}")
    except KafkaError as error:
        if error.code.retriable or error.code is ErrorCode.BROKER_NOT_AVAILABLE:
            await _forget_leader(client, partition)
        raise
    if answer.throttle_time_ms:
        await asyncio.sleep(answer.throttle_time_ms / 1000)  # the client itself waits (KIP-219)
    fetched = fetched_in(partition, offset, data)
    # The high watermark was read before the records. If it may have risen since, the broker is asked again.
    seems_beyond = fetched.records and fetched.next_offset > fetched.high_watermark
    if seems_beyond and fetched.next_offset > await _bound(client, partition, LATEST, node):
        raise _misplaced(partition, offset, f"up to {fetched.next_offset - 1}, beyond the end of the log")
    return fetched


async def _forget_leader(client: Client, partition: TopicPartition) -> None:
    """Look up the partition's leader again. Ignores errors, because the next request to the partition reports them."""
    try:
        await client.metadata([partition.topic])
    except KafkaError:
        return


def _request(partition: TopicPartition, offset: int, isolation: Isolation, max_bytes: int) -> FetchRequest:
    requested = FetchRequest.FetchPartition(
        partition=partition.partition, fetch_offset=offset, partition_max_bytes=max_bytes
    )
    return FetchRequest(
        max_wait_ms=_MAX_WAIT_MS,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=isolation,
        topics=[FetchRequest.FetchTopic(topic=partition.topic, partitions=[requested])],
    )


def fetched_in(partition: TopicPartition, offset: int, data: Any) -> Fetched:
    """Return one partition's part of a fetch response as ``Fetched``. ``offset`` is the requested offset.

    Bytes after the last complete batch are left out. Raises CorruptRecord if there are bytes, but no complete batch
    that reaches ``offset``. Raises KafkaError(CORRUPT_MESSAGE) for batches out of order: a batch's checksum does not
    cover its offset, and a wrong offset would look like a gap.
    """
    records = data.records or b""
    used = 0
    next_offset = offset
    end = 0
    try:
        for pos, header in headers(records):
            if header.base_offset < end:
                what = f"from {header.base_offset} on after a batch up to {end - 1}"
                raise _misplaced(partition, offset, what)
            used = pos + header.size_bytes
            end = header.next_offset
            next_offset = max(next_offset, header.next_offset)
        if records and next_offset == offset:
            raise CorruptRecord("the response contains no complete batch that reaches the offset")
    except CorruptRecord as error:
        if next_offset == offset:
            raise CorruptRecord(f"{partition} at offset {next_offset}: {error.message}") from None
    return Fetched(
        partition=partition,
        start=offset,
        next_offset=next_offset,
        records=bytes(records[:used]),
        aborted=tuple((one.producer_id, one.first_offset) for one in data.aborted_transactions or ()),
        log_start=data.log_start_offset,
        high_watermark=data.high_watermark,
        last_stable=data.high_watermark if data.last_stable_offset < 0 else data.last_stable_offset,
    )


def _misplaced(partition: TopicPartition, offset: int, what: str) -> KafkaError:
    return KafkaError(
        ErrorCode.CORRUPT_MESSAGE,
        f"{partition} contains a batch with impossible offsets at or after offset {offset}, {what}: the log is corrupt",
    )


async def check_end(client: Client, partition: TopicPartition, offset: int) -> None:
    """Raise ``LogEnded`` if the log ends at ``offset`` or before it.

    Records of an open transaction count: a reader of committed records waits until the transaction ends. A new leader,
    whose fetches may be empty for a moment, does not respond before it knows its log's end (KIP-207). Temporary errors
    are ignored, because the next fetch reports them; other errors are raised as KafkaError.
    """
    try:
        end = await _bound(client, partition, LATEST, await client.leader(*partition))
    except KafkaError as error:
        if error.code.retriable or error.code is ErrorCode.BROKER_NOT_AVAILABLE:
            return  # the next fetch reports it if it persists
        raise
    if end <= offset:
        raise LogEnded(partition, offset)


async def _out_of_range(client: Client, partition: TopicPartition, offset: int, node: int) -> OffsetOutOfRange:
    log_start, log_end = [await _bound(client, partition, position, node) for position in (EARLIEST, LATEST)]
    return OffsetOutOfRange(partition, offset, log_start, log_end)


async def _bound(client: Client, partition: TopicPartition, position: int, node: int) -> int:
    requested = ListOffsetsRequest.ListOffsetsPartition(partition_index=partition.partition, timestamp=position)
    topic = ListOffsetsRequest.ListOffsetsTopic(name=partition.topic, partitions=[requested])
    request = ListOffsetsRequest(replica_id=-1, topics=[topic])
    found = (await client.send(request, node=node)).topics[0].partitions[0]
    check_code(found.error_code, f"offsets of {partition}")
    return int(found.offset)
