"""Validates the records of a produce request for one partition and prepares them for the log.

``prepare`` returns one v2 batch, with unchanged bytes if possible. A v2 batch (produce v3 and later: exactly one) must
be consistent and comply with the topic's rules. Its maximum timestamp is corrected in place if necessary, and its
records are compressed again if the topic has another codec. Messages of magic 0 or 1 (produce before v3) are converted
to one v2 batch (``up_conversion.py``). The log sets offsets, leader epoch and, for LogAppendTime, the timestamp.
docs/architecture.md, "The checks of a produced batch", lists the checks in order, with their error codes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from parley.named_tuples import new_tuple
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records import batch
from parley.protocol.records._walk import Walk
from parley.protocol.records.batch_header import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_V2,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    TimestampType,
    headers,
    read_header,
)
from parley.protocol.records.batch_patch import set_max_timestamp
from parley.protocol.records.compression import Compression, compress
from parley.protocol.records.crc import verify_crc
from parley.protocol.records.errors import BatchTooLarge, DecompressedTooLarge, InvalidRecord
from parley.protocol.records.record import Record
from parley.protocol.records.up_conversion import legacy_records
from parley.protocol.sentinels import NO_PRODUCER_ID, NO_TIMESTAMP

ONE_BATCH_VERSION: Final = 3
"""From this request version on, the records are exactly one v2 batch (KIP-98)."""
ZSTD_VERSION: Final = 7
"""From this request version on, the client may compress with zstd (KIP-110)."""
RECORD_ERRORS_MAX: Final = 100
"""The maximum number of invalid records in a response."""
LISTED_BYTES_MAX: Final = 16 << 20
"""The maximum decompressed size of a batch whose invalid records are listed. To list them, the broker holds all records
of the batch in memory."""

_UNBOUNDED: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRules:
    """The topic's requirements for produced records. Times are in ms."""

    max_message_bytes: int = 1048588
    """The maximum size of a batch in the log (``max.message.bytes``)."""
    decompressed_bytes_max: int = 128 << 20
    """The maximum decompressed size of a batch's records. They are never all in memory at the same time."""
    timestamp_type: TimestampType = TimestampType.CREATE
    timestamp_before_max_ms: int = _UNBOUNDED
    """The maximum age of a record's timestamp (``message.timestamp.before.max.ms``)."""
    timestamp_after_max_ms: int = _UNBOUNDED
    compression: Compression | None = None
    """The codec of the topic; None keeps the producer's codec (``compression.type=producer``)."""
    compression_level: int | None = None
    require_keys: bool = False
    """True if the topic is compacted."""


class Prepared(NamedTuple):
    """Records that are ready to be appended: one v2 batch with base offset 0.

    ``batches`` is writable. If nothing had to be rewritten and the received buffer is writable, it is that buffer.
    """

    batches: bytearray | memoryview
    header: BatchHeader
    """The batch's header. Its maximum timestamp is the latest CreateTime of the records; -1 if they have none."""
    conversions: int
    """The number of records that were rewritten in another format or codec; 0 if none were."""


class RecordErrors(KafkaError):
    """Some records of a batch break the topic's rules, so the whole batch is rejected (KIP-467).

    ``record_errors`` lists the first of these records, each with its index in the batch and the reason.
    """

    def __init__(self, code: ErrorCode, message: str, record_errors: tuple[tuple[int, str], ...]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


def prepare(records: Buffer | None, rules: ProduceRules, *, now_ms: int, version: int) -> Prepared:
    """Check the records of a produce request of ``version`` for one partition, and return them as one batch.

    Raises KafkaError with the code of the first failed check, and ``RecordErrors`` if single records break the topic's
    rules; ``records`` is then unchanged. Decompresses the records, so the caller must not run it on the event loop for
    large compressed batches.
    """
    if records is None or len(records) <= LOG_OVERHEAD:
        raise InvalidRecord("no record batch")
    header = _first_header(records)
    if header.magic != MAGIC_V2:
        if version >= ONE_BATCH_VERSION:
            raise InvalidRecord(f"produce version {version} requires batches of magic 2, not {header.magic}")
        return _prepare_legacy(records, rules, now_ms)
    if len(records) != header.length + LOG_OVERHEAD:
        records = _only_batch(records, header)
    _check_header(header, rules, version)
    verify_crc(records, 0, header)
    seen = batch.walk(records, 0, header, consecutive=True, max_bytes=rules.decompressed_bytes_max)
    if _breaks_rules(seen, rules, now_ms):
        try:
            _check_records(_suspects(records, header, rules, now_ms), rules, now_ms)
        except DecompressedTooLarge:
            raise _unlisted(seen, rules) from None
    source = header.attributes & COMPRESSION_MASK
    if rules.compression is not None and rules.compression != source:
        return _recompressed(records, header, seen, rules)
    if isinstance(records, bytes) or (isinstance(records, memoryview) and records.readonly):
        records = bytearray(records)
    if seen.max_timestamp != header.max_timestamp:
        header = set_max_timestamp(records, 0, header, seen.max_timestamp)
    return new_tuple(Prepared, (records, header, 0))


def _first_header(records: Buffer) -> BatchHeader:
    """Return the header of the first batch. Raises InvalidRecord if the batch is incomplete, CorruptRecord if the
    header is malformed."""
    if len(records) >= HEADER_SIZE:
        header = read_header(records)
        if header.length + LOG_OVERHEAD <= len(records):
            return header
    for _, header in headers(records):
        return header
    raise InvalidRecord("the record batch is truncated")


def _only_batch(records: Buffer, header: BatchHeader) -> Buffer:
    """Return the first batch, without an incomplete batch after it. Raises InvalidRecord if a second whole batch
    follows."""
    for _ in headers(records, header.size_bytes):
        raise InvalidRecord("more than one record batch for a partition")
    return memoryview(records)[: header.size_bytes]


def _check_header(header: BatchHeader, rules: ProduceRules, version: int) -> None:
    """Check the header. Raises KafkaError with the code of the first failed check."""
    attributes = header.attributes
    if version < ZSTD_VERSION and attributes & COMPRESSION_MASK == Compression.ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"produce version {version} does not support zstd; version {ZSTD_VERSION} does",
        )
    if header.length + LOG_OVERHEAD > rules.max_message_bytes:
        raise BatchTooLarge(header.size_bytes, rules.max_message_bytes)
    if header.base_offset != 0:
        raise InvalidRecord(f"the base offset of a produced batch must be 0, but is {header.base_offset}")
    if header.record_count <= 0 or header.last_offset_delta != header.record_count - 1:
        raise InvalidRecord(
            f"the header of a batch claims {header.record_count} records, but its last offset delta is "
            f"{header.last_offset_delta}"
        )
    if attributes & CONTROL_BIT:
        raise InvalidRecord("clients must not write control batches")
    if attributes & DELETE_HORIZON_BIT:
        raise InvalidRecord("clients must not set the delete horizon of a batch")
    if header.producer_id > NO_PRODUCER_ID:
        if header.base_sequence < 0 or header.producer_epoch < 0:
            raise InvalidRecord(
                f"a batch of producer {header.producer_id} has epoch {header.producer_epoch} and sequence "
                f"number {header.base_sequence}"
            )
    elif attributes & TRANSACTIONAL_BIT:
        raise InvalidRecord("a transactional batch has no producer id")
    if attributes & TIMESTAMP_TYPE_BIT:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "clients must not set the timestamp type to LogAppendTime")


def _breaks_rules(seen: Walk, rules: ProduceRules, now_ms: int) -> bool:
    """Return True if at least one of the records breaks the topic's rules."""
    if rules.require_keys and seen.first_null_key >= 0:
        return True
    # The minimum timestamp is above the maximum only if no record has a timestamp.
    return (
        rules.timestamp_type is TimestampType.CREATE
        and seen.min_timestamp <= seen.max_timestamp
        and (
            seen.max_timestamp - now_ms > rules.timestamp_after_max_ms
            or now_ms - seen.min_timestamp > rules.timestamp_before_max_ms
        )
    )


def _suspects(records: Buffer, header: BatchHeader, rules: ProduceRules, now_ms: int) -> Iterator[tuple[int, Record]]:
    """Yield the records near those that break the rules, with their indexes in the batch. Raises DecompressedTooLarge
    if all records together exceed ``LISTED_BYTES_MAX``."""
    return batch.suspects(
        records,
        header,
        is_fine=lambda seen: not _breaks_rules(seen, rules, now_ms),
        max_bytes=LISTED_BYTES_MAX,
    )


def _unlisted(seen: Walk, rules: ProduceRules) -> RecordErrors:
    """Return the error for a batch with records that break the rules and are not listed."""
    if rules.require_keys and seen.first_null_key >= 0:
        message = f"A record of a compacted topic must have a key, but record {seen.first_null_key} has none."
        return RecordErrors(ErrorCode.INVALID_RECORD, message, ())
    message = f"Timestamps between {seen.min_timestamp} and {seen.max_timestamp} are too old or too late for the topic."
    return RecordErrors(ErrorCode.INVALID_TIMESTAMP, message, ())


def _check_records(records: Iterable[tuple[int, Record]], rules: ProduceRules, now_ms: int) -> None:
    """Raise RecordErrors if records break the topic's rules. ``records`` are pairs of an index in the batch and a
    record."""
    errors: list[tuple[int, str]] = []
    code = ErrorCode.INVALID_RECORD
    require_keys = rules.require_keys
    least, most = now_ms - rules.timestamp_before_max_ms, now_ms + rules.timestamp_after_max_ms
    if rules.timestamp_type is TimestampType.APPEND:
        least, most = -_UNBOUNDED, _UNBOUNDED
    for index, (_, timestamp, key, _, _) in records:
        if require_keys and key is None:
            errors.append((index, "A record of a compacted topic must have a key."))
        elif least <= timestamp <= most or timestamp == NO_TIMESTAMP:
            continue
        else:
            code = ErrorCode.INVALID_TIMESTAMP
            errors.append((index, f"The timestamp {timestamp} is outside [{least}, {most}]."))
        if len(errors) == RECORD_ERRORS_MAX:
            break
    if errors:
        more = " or more" if len(errors) == RECORD_ERRORS_MAX else ""
        raise RecordErrors(code, f"{len(errors)}{more} records break the topic's rules. {errors[0][1]}", tuple(errors))


def _recompressed(records: Buffer, header: BatchHeader, seen: Walk, rules: ProduceRules) -> Prepared:
    """Return the batch in the topic's codec, with the same record bytes."""
    assert rules.compression is not None
    payload = batch.payload(records, 0, header, max_bytes=rules.decompressed_bytes_max)
    body = compress(rules.compression, payload, rules.compression_level)
    rebuilt = batch.assemble(
        header._replace(
            length=HEADER_SIZE - LOG_OVERHEAD + len(body),
            attributes=header.attributes & ~COMPRESSION_MASK | rules.compression,
            max_timestamp=seen.max_timestamp,
        ),
        body,
    )
    if len(rebuilt) > rules.max_message_bytes:
        raise BatchTooLarge(len(rebuilt), rules.max_message_bytes)
    return Prepared(rebuilt, read_header(rebuilt), seen.count)


def _prepare_legacy(records: Buffer, rules: ProduceRules, now_ms: int) -> Prepared:
    """Build one v2 batch of all messages of the old formats."""
    source, found = legacy_records(
        records, max_message_bytes=rules.max_message_bytes, decompressed_bytes_max=rules.decompressed_bytes_max
    )
    _check_records(enumerate(found), rules, now_ms)
    codec = source if rules.compression is None else rules.compression
    rebuilt = batch.build(found, compression=codec, level=rules.compression_level)
    if len(rebuilt) > rules.max_message_bytes:
        raise BatchTooLarge(len(rebuilt), rules.max_message_bytes)
    return Prepared(rebuilt, read_header(rebuilt), len(found))
