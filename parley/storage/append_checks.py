"""The checks before an append to a log, and the result of the append."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple

from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch_header import MAGIC_V2, BatchHeader, Buffer, headers, read_header
from parley.protocol.records.batch_patch import assign
from parley.protocol.records.crc import verify_crc
from parley.protocol.records.errors import CorruptRecord, InvalidRecord
from parley.protocol.sentinels import NO_TIMESTAMP
from parley.storage.index import MAX_RELATIVE_OFFSET
from parley.storage.log_config import LogConfig
from parley.storage.producer_row import Duplicate

LOG_APPEND_TIME: Final = "LogAppendTime"

PlacedBatch = tuple[int, BatchHeader]
"""The position of a batch in a buffer, and its header."""


class Origin(Enum):
    """The source of the appended batches."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    """A coordinator of this broker: group and transaction state, offset commits, end markers."""


class AppendInfo(NamedTuple):
    """The result of an append. For a ``duplicate``, the result of the first append of the same batch.

    ``log_append_time_ms`` is -1 if the records keep the producer's timestamps. If nothing was appended (a follower
    fetched no complete batch), ``record_count`` is 0 and the last offset is lower than the first.
    """

    first_offset: int
    last_offset: int
    max_timestamp: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool
    record_count: int
    size_bytes: int


def place(
    batches: bytearray | memoryview,
    found: Iterable[PlacedBatch],
    offset: int,
    leader_epoch: int,
    append_time: int | None,
) -> list[PlacedBatch]:
    """Assign offsets to the batches in place, starting with ``offset``, and set their leader epoch. If ``append_time``
    (ms) is given, also set it as the timestamp of each batch. Returns the batches with their new headers."""
    placed = []
    for at, header in found:
        placed.append((at, assign(batches, at, header, offset, leader_epoch, append_time)))
        offset += header.last_offset_delta + 1
    return placed


def first_append(known: Duplicate, header: BatchHeader, config: LogConfig, log_start_offset: int) -> AppendInfo:
    """Return the result of the first append of a batch that was sent again. ``known`` is that append, ``header`` the
    header of the repeated batch."""
    own_time = config.message_timestamp_type != LOG_APPEND_TIME
    return AppendInfo(
        first_offset=known.first_offset,
        last_offset=known.last_offset,
        max_timestamp=known.timestamp,
        log_append_time_ms=NO_TIMESTAMP if own_time else known.timestamp,
        log_start_offset=log_start_offset,
        duplicate=True,
        record_count=header.record_count,
        size_bytes=header.size_bytes,
    )


def whole_batches(buffer: Buffer, first: BatchHeader | None = None) -> list[PlacedBatch]:
    """Return the batches that fill the buffer exactly, all of magic 2. ``first`` is the header of the first batch, if
    known.

    Raises ``CorruptRecord`` if the buffer is empty, is malformed or ends inside a batch, and ``InvalidRecord`` if a
    batch has another magic or its last offset precedes its base offset.
    """
    header = read_header(buffer) if first is None else first
    if header.size_bytes == len(buffer):
        found = [(0, header)]
    else:
        found = list(headers(buffer))
        if not found or found[-1][0] + found[-1][1].size_bytes != len(buffer):
            raise CorruptRecord("the data ends inside a batch")
    for _, header in found:
        if header.magic != MAGIC_V2 or header.last_offset_delta < 0:
            raise InvalidRecord(f"unsupported batch: magic {header.magic}, {header.last_offset_delta + 1} offsets")
    return found


def check_sizes(found: Sequence[PlacedBatch], total_bytes: int, config: LogConfig) -> None:
    """Raise ``KafkaError`` MESSAGE_TOO_LARGE or RECORD_LIST_TOO_LARGE if the batches exceed a limit of the topic.

    max.message.bytes does not apply to markers, because an open transaction must be able to end.
    """
    limit = config.max_message_bytes
    for _, header in found:
        if header.size_bytes > limit and not header.is_control:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE, f"a batch is {header.size_bytes} bytes, but max.message.bytes is {limit}"
            )
    if total_bytes > config.segment_bytes:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"the batches are {total_bytes} bytes, but segment.bytes is {config.segment_bytes}",
        )


def fetched_batches(buffer: Buffer, log_end_offset: int) -> list[PlacedBatch]:
    """Return the whole batches in a leader's response to a fetch from ``log_end_offset``.

    Leaves out an incomplete batch at the end. Raises ``CorruptRecord`` if a header is malformed, a checksum is wrong,
    or the offsets do not increase from the log end offset.
    """
    found, expected = [], log_end_offset
    for at, header in headers(buffer):
        verify_crc(buffer, at, header)
        if header.base_offset < expected or header.last_offset_delta < 0:
            raise CorruptRecord(
                f"offsets {header.base_offset} to {header.last_offset} come after offset {expected - 1}"
            )
        found.append((at, header))
        expected = header.next_offset
    return found


def runs(found: Sequence[PlacedBatch], segment_bytes: int) -> Iterator[list[PlacedBatch]]:
    """Split the batches into groups that each fit in one segment. A batch larger than a segment forms its own group."""
    run: list[PlacedBatch] = []
    size = 0
    for at, header in found:
        too_large = size + header.size_bytes > segment_bytes
        if run and (too_large or header.last_offset - run[0][1].base_offset > MAX_RELATIVE_OFFSET):
            yield run
            run, size = [], 0
        run.append((at, header))
        size += header.size_bytes
    if run:
        yield run
