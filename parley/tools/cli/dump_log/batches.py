"""Dump the batches and records of a segment."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from parley.protocol.codec import decode_stored
from parley.protocol.errors import KafkaError, MalformedMessage
from parley.protocol.messages.stored import EndTxnMarker
from parley.protocol.records.batch import records, validate
from parley.protocol.records.batch_header import BatchHeader, TimestampType, read_header
from parley.protocol.records.crc import verify_crc
from parley.protocol.records.record import Record
from parley.tools.cli.dump_log.decoders import texts
from parley.tools.cli.dump_log.output import DumpOptions, Line, base_offset, problem

_CONTROL_TYPES = {0: "ABORT", 1: "COMMIT", 2: "LEADER_CHANGE", 3: "SNAPSHOT_HEADER", 4: "SNAPSHOT_FOOTER"}
_LEGACY = 2
"""The lowest magic of a batch. Batches with a lower magic are the message sets of older Kafka versions."""


@contextmanager
def mapped(path: Path) -> Iterator[memoryview]:
    """Map a file into memory, and yield a read-only view of it. Raises ``OSError`` if it cannot be opened."""
    with path.open("rb") as file:
        if not file.seek(0, 2):
            yield memoryview(b"")
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as area, memoryview(area) as view:
            yield view


def dump(path: Path, options: DumpOptions) -> Iterator[Line]:
    """Yield lines for the batches of a ``.log`` file, their records if requested, and their problems. Raises
    ``CommandError`` if the file's name is malformed, and ``OSError`` if it cannot be read."""
    first = base_offset(path)
    yield Line(f"Log starting offset: {first}", {"logStartingOffset": first})
    with mapped(path) as data:
        end = min(len(data), options.bytes_max)
        position = 0
        previous = first - 1
        while position < end:
            try:
                header = read_header(data, position)
            except KafkaError as error:
                yield problem(f"at byte {position}: {error.message}", position=position)
                break
            if position + header.size_bytes > end:
                break
            yield from _batch(data, position, header, previous, options)
            previous = header.last_offset
            position += header.size_bytes
        left = end - position
        if left > 0 and end == len(data):
            yield problem(
                f"Found {left} invalid bytes at the end of {path.name}, from byte {position} on",
                position=position,
                invalidBytes=left,
            )


def _batch(data: memoryview, position: int, header: BatchHeader, previous: int, options: DumpOptions) -> Iterator[Line]:
    wrong = _problem_of(data, position, header, deep=options.deep)
    yield Line(*_described(position, header, is_valid=wrong is None))
    if header.size_bytes > options.batch_bytes_max:
        yield Line(
            f"The batch at byte {position} has {header.size_bytes} bytes, more than --max-message-size",
            {"position": position, "sizeBytes": header.size_bytes},
        )
    if header.last_offset <= previous or (header.magic >= _LEGACY and header.base_offset <= previous):
        yield problem(f"at byte {position}: offset {header.base_offset} follows offset {previous}", position=position)
    if wrong is not None:
        yield problem(f"at byte {position}: {wrong}", position=position)
    if options.deep and wrong is None:
        for record in _records(data, position, header):
            if record is not None and not (options.skip_metadata and header.is_control):
                yield _record_line(record, header, options)


def _problem_of(data: memoryview, position: int, header: BatchHeader, *, deep: bool) -> str | None:
    try:
        if deep:
            validate(data, position, header)
        else:
            verify_crc(data, position, header)
    except KafkaError as error:
        return error.message
    return None


def _records(data: memoryview, position: int, header: BatchHeader) -> Iterator[Record]:
    # Copies the batch, so that no record keeps the file mapped.
    return records(bytes(data[position : position + header.size_bytes]))


def _described(position: int, header: BatchHeader, *, is_valid: bool) -> tuple[str, dict[str, Any]]:
    horizon = header.delete_horizon_ms
    codec = header.attributes & 7
    common: dict[str, Any] = {
        "position": position,
        "timestampType": _timestamp_name(header),
        "maxTimestamp": header.max_timestamp,
        "sizeBytes": header.size_bytes,
        "magic": header.magic,
        "compression": header.compression.name.lower() if codec <= 4 else f"unknown ({codec})",
        "crc": header.crc,
        "isValid": is_valid,
    }
    text = (
        f" position: {position} {common['timestampType']}: {header.max_timestamp} size: {header.size_bytes} "
        f"magic: {header.magic} compresscodec: {common['compression']} crc: {header.crc} isvalid: {_lower(is_valid)}"
    )
    if header.magic < _LEGACY:
        return f"offset: {header.last_offset}{text}", {"offset": header.last_offset, **common}
    own: dict[str, Any] = {
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "count": header.record_count,
        "baseSequence": header.base_sequence,
        "lastSequence": header.last_sequence,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.partition_leader_epoch,
        "isTransactional": header.is_transactional,
        "isControl": header.is_control,
    }
    shown = " ".join(f"{name}: {_lower(value)}" for name, value in own.items())
    until = "OptionalLong.empty" if horizon is None else f"OptionalLong[{horizon}]"
    return f"{shown} deleteHorizonMs: {until}{text}", {**own, "deleteHorizonMs": horizon, **common}


def _lower(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _timestamp_name(header: BatchHeader) -> str:
    if header.magic == 0:
        return "NoTimestampType"
    return "LogAppendTime" if header.timestamp_type is TimestampType.APPEND else "CreateTime"


def _record_line(record: Record, header: BatchHeader, options: DumpOptions) -> Line:
    size = [-1 if part is None else len(part) for part in (record.key, record.value)]
    data: dict[str, Any] = {"offset": record.offset, "timestamp": record.timestamp, "keySize": size[0]}
    data["valueSize"] = size[1]
    parts = []
    if not options.skip_metadata:
        text = f"offset: {record.offset} {_timestamp_name(header)}: {record.timestamp}"
        parts.append(f"{text} keySize: {size[0]} valueSize: {size[1]}")
        if header.magic >= _LEGACY:
            data["sequence"] = _sequence(record, header)
            data["headerKeys"] = [name for name, _ in record.headers]
            parts.append(f"sequence: {data['sequence']} headerKeys: [{','.join(data['headerKeys'])}]")
        if header.is_control:
            text, control = _control(record)
            parts.append(text)
            data |= control
    if options.print_data and not header.is_control:
        key, value = texts(record, options)
        parts += [f"key: {key}"] if key is not None else []
        parts += [f"payload: {value}"] if value is not None else []
        data |= {"key": key, "value": value}
    return Line("| " + " ".join(parts), {"record": data})


def _sequence(record: Record, header: BatchHeader) -> int:
    if header.base_sequence < 0:
        return -1
    return (header.base_sequence + record.offset - header.base_offset) & 0x7FFF_FFFF


def _control(record: Record) -> tuple[str, dict[str, Any]]:
    """Decode a control record: the text and the JSON data that describe it. Its key is a version and a type, both
    int16."""
    kind = int.from_bytes((record.key or b"")[2:4], "big", signed=True) if len(record.key or b"") >= 4 else -1
    name = _CONTROL_TYPES.get(kind, "UNKNOWN")
    if kind not in (0, 1):
        return f"controlType: {name}({kind})", {"controlType": name}
    try:
        marker, _ = decode_stored(EndTxnMarker, record.value or b"")
    except MalformedMessage:
        return f"endTxnMarker: {name} malformed", {"controlType": name}
    text = f"endTxnMarker: {name} coordinatorEpoch: {marker.coordinator_epoch}"
    return text, {"controlType": name, "coordinatorEpoch": marker.coordinator_epoch}
