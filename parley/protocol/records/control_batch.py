"""Control batches: records for brokers and clients, which are not data of the topic.

A control batch has the control bit in its attributes and contains one record. The record's key is a version and a type
(two 16-bit numbers); its value depends on the type (``EndTxnMarker`` and ``LeaderChangeMessage`` in
``parley.protocol.messages.stored``). Partitions of topics contain only the markers that end a transaction (KIP-98);
readers ignore other types.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from parley.protocol.records.batch import build, records
from parley.protocol.records.batch_header import HEADER_SIZE, MAGIC_V2, Buffer, read_header
from parley.protocol.records.compression import Compression
from parley.protocol.records.errors import InvalidRecord
from parley.protocol.records.record import Record

_KEY: Final = struct.Struct(">hh")
_END_TXN: Final = struct.Struct(">hi")
_KEY_VERSION: Final = 0
_END_TXN_VERSION: Final = 0

_MARKER: Final = struct.Struct(">5shhBhiB")
"""The usual record of a marker: the fields before the key, the key, the length of the value, the value, and the number
of headers."""
_BEFORE_KEY: Final = b"\x20\0\0\0\x08"  # a record of 16 bytes, no attributes, no deltas, a key of 4 bytes
_VALUE_LENGTH: Final = 12  # 6 bytes, zigzag-encoded


class ControlType(IntEnum):
    """The type of a control record: the second number of its key."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


_ENDS: Final = {0: ControlType.ABORT, 1: ControlType.COMMIT}


class ControlMarker(NamedTuple):
    """The marker that ends a transaction: COMMIT or ABORT, and the epoch of the coordinator that wrote it."""

    type: ControlType
    coordinator_epoch: int


def control_type(record: Record) -> ControlType | None:
    """Return the type of a control record; None for an unknown, newer type. Raises InvalidRecord if the key is
    malformed."""
    if record.key is None or len(record.key) < _KEY.size:
        raise InvalidRecord("the key of a control record is too short")
    version, kind = _KEY.unpack_from(record.key)
    if version < _KEY_VERSION:
        raise InvalidRecord(f"the key of a control record has unknown version {version}")
    try:
        return ControlType(kind)
    except ValueError:
        return None


def marker_of(record: Record) -> ControlMarker | None:
    """Return the transaction marker in a control record; None for any other type. Raises InvalidRecord if it is
    malformed."""
    kind = control_type(record)
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    if record.value is None or len(record.value) < _END_TXN.size:
        raise InvalidRecord("the value of a transaction marker is too short")
    version, epoch = _END_TXN.unpack_from(record.value)
    if version < _END_TXN_VERSION:
        raise InvalidRecord(f"a transaction marker has unknown version {version}")
    return ControlMarker(kind, epoch)


def read_marker(buf: Buffer, pos: int = 0) -> ControlMarker | None:
    """Return the transaction marker in the control batch at ``pos``.

    Returns None if the record has another type, or if compaction has removed the record. Raises the errors of
    ``batch.records``, and InvalidRecord if the marker is malformed.
    """
    # Every append of a marker calls this, so the usual form has a fast path.
    if len(buf) >= pos + HEADER_SIZE + _MARKER.size:
        before, key_version, kind, length, version, epoch, headers = _MARKER.unpack_from(buf, pos + HEADER_SIZE)
        if (before, key_version, length, version, headers) == (_BEFORE_KEY, _KEY_VERSION, _VALUE_LENGTH, 0, 0):
            header = read_header(buf, pos)
            is_whole = header.magic == MAGIC_V2 and header.size_bytes == HEADER_SIZE + _MARKER.size
            if is_whole and header.compression is Compression.NONE and header.record_count == 1 and kind in _ENDS:
                return ControlMarker(_ENDS[kind], epoch)
    for record in records(buf, pos):
        return marker_of(record)
    return None


def build_marker(
    marker: ControlMarker, *, producer_id: int, producer_epoch: int, timestamp: int, base_offset: int = 0
) -> bytearray:
    """Build the control batch that ends a producer's transaction at ``timestamp`` (ms)."""
    key = _KEY.pack(_KEY_VERSION, marker.type)
    value = _END_TXN.pack(_END_TXN_VERSION, marker.coordinator_epoch)
    return build(
        [Record(base_offset, timestamp, key, value)],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )
