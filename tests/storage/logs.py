"""Functions that open and fill logs, and checks that hold for every log."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from parley.protocol.records.batch import build, records
from parley.protocol.records.batch_header import BatchHeader, headers
from parley.protocol.records.record import Record
from parley.storage.damage.log_integrity import DamagedOffset
from parley.storage.loaded_log import LastKnown
from parley.storage.log import Log
from parley.storage.log_config import LogConfig
from parley.storage.log_place import LogEvents, LogPlace, LogSettings
from parley.storage.producer_state import ProducerState
from parley.storage.readable_segment import UNSEALED
from parley.storage.segment import Segment

NOW = 1_790_000_000_000
SMALL = LogConfig(segment_bytes=4096, segment_index_bytes=1024, index_interval_bytes=200)


def open_log(directory: Path, config: LogConfig = SMALL, **known: Any) -> Log:
    """Open the log in ``directory``; ``known`` is the content of the checkpoints and of the clean shutdown marker."""
    settings = LogSettings(config=config, now_ms=known.pop("now_ms", lambda: NOW), random=Random(1))
    place = LogPlace(directory, "topic", 0, events=LogEvents(known.pop("on_io_error", lambda error: None)))
    return Log.open(place, settings, LastKnown(**known))


def reopened(log: Log, *, clean: bool, **known: Any) -> Log:
    """Open the same log again, after a clean shutdown or after a crash that left the files as they are."""
    if clean:
        log.close()
    else:
        log.release()
    known = {"recovery_point": log.recovery_point, "log_start_offset": log.log_start_offset, **known}
    return open_log(log.directory, log.config, clean=clean, **known)


def apply_retention(log: Log, now_ms: int) -> list[Path]:
    """Delete the segments that retention no longer keeps. Returns their renamed files."""
    end = log.pass_old_segments(now_ms)
    return [] if end is None else log.delete_segments_below(end)


def batch_of(*values: bytes, timestamp: int = NOW, **fields: Any) -> bytearray:
    """Return a batch with one record for each value, all with one timestamp."""
    return build([Record(0, timestamp, b"key", value) for value in values or (b"value",)], **fields)


def append(log: Log, *values: bytes, epoch: int = 0, **fields: Any) -> int:
    """Append one batch. Returns its first offset."""
    return log.append_as_leader(batch_of(*values, **fields), leader_epoch=epoch, now_ms=NOW).first_offset


def fill(log: Log, count: int, *, size: int = 100, **fields: Any) -> list[bytes]:
    """Append ``count`` batches of one record each. Returns the values; their indexes are offsets if the
    log was empty."""
    values = [b"%d:" % (log.log_end_offset + n) + b"v" * size for n in range(count)]
    for value in values:
        append(log, value, **fields)
    return values


def batches_in(log: Log) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yield every batch in the log's files, found by their sizes alone, except damaged ones."""
    for segment in log.segments:
        data = segment.path_of(".log").read_bytes()[: segment.size]
        for position, header in segment.batches():
            yield header, data[position : position + header.size_bytes]


def values_of(log: Log) -> dict[int, bytes | None]:
    """Return the values of all data records from the log start on, by offset, as read by a consumer that
    skips damage."""
    found = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        try:
            log.read(offset, 1, up_to=log.log_end_offset)
        except DamagedOffset as refused:
            offset = refused.damaged.last_offset + 1
            continue
        read = log.read(offset, 1 << 20, up_to=log.log_end_offset)
        data = read.read()
        assert data, f"nothing at {offset} of {log!r}"
        for position, header in headers(data):
            if not header.is_control:
                found.update({r.offset: r.value for r in records(data, position) if r.offset >= log.log_start_offset})
            offset = header.next_offset
        assert read.next_offset is None or read.next_offset >= offset
    return found


def check(log: Log) -> None:
    """Check that segments, indexes, epochs and producers of the log agree with its batches."""
    assert log.log_start_offset <= log.high_watermark <= log.log_end_offset
    assert log.last_stable_offset <= log.high_watermark
    assert log.recovery_point <= log.log_end_offset
    assert log.segments[-1].end_offset == UNSEALED
    end = None
    missing = {each.first_offset: each.last_offset + 1 for each in log.damage}
    for segment, following in zip(log.segments, log.segments[1:], strict=False):
        assert following.base_offset in (segment.end_offset, missing.get(segment.end_offset))
    for segment in log.segments:
        end = check_segment(segment)
    if log.segments[-1].size:
        assert end is not None
        assert end == log.log_end_offset
    _check_producers(log)
    epochs = [(entry.epoch, entry.start_offset) for entry in log.leader_epochs.entries]
    assert epochs == sorted(epochs)
    assert sorted(start for _, start in epochs) == [start for _, start in epochs]


def check_segment(segment: Segment) -> int:
    """Check that the batches and the indexes of the segment agree. Returns the offset after its last batch."""
    boundaries, largest, positions, position = {}, {}, [], 0
    expected, timestamp = segment.base_offset, -1
    for position, header in segment.batches():
        assert expected <= header.base_offset
        assert header.last_offset < segment.end_offset
        expected, timestamp = header.next_offset, max(timestamp, header.max_timestamp)
        boundaries[header.last_offset] = position
        largest[header.last_offset] = (header.max_timestamp, timestamp)
        positions.append(position)
        position += header.size_bytes
    if segment.damage and segment.damage[-1].end > position:
        position, expected = segment.damage[-1].end, segment.damage[-1].last_offset + 1
    assert position == segment.size
    assert segment.largest.timestamp == timestamp or segment.damage
    entries = [entry for entry in segment.offset_index.entries() if not in_damage(segment, entry.position)]
    for offset, position in entries:
        assert boundaries.get(offset) == position > 0
    assert [e.offset for e in entries] == sorted({e.offset for e in entries})
    times = segment.time_index.entries()
    for stamp, offset in times:
        assert segment.damage or largest[offset] == (stamp, stamp)
    assert [t.timestamp for t in times] == sorted({t.timestamp for t in times})
    return expected


def in_damage(segment: Segment, position: int) -> bool:
    """Return True if ``position`` lies in damaged bytes."""
    return any(damaged.position <= position < damaged.end for damaged in segment.damage)


def _check_producers(log: Log) -> None:
    """Check that the log's producer state matches its batches.

    A producer whose batches all lie below the log start may be forgotten, as in Kafka.
    """
    with tempfile.TemporaryDirectory() as empty:
        fresh = ProducerState(Path(empty))
        fresh.load(0, 0, NOW)
    for header, data in batches_in(log):
        if header.producer_id >= 0 and not header.is_control and header.last_offset >= log.log_start_offset:
            fresh.apply(header, now_ms=NOW)
        assert len(data) == header.size_bytes
    known = {entry.producer_id: entry for entry in log.producers.entries}
    for entry in fresh.entries:
        seen = known[entry.producer_id]
        assert (seen.epoch, seen.last_sequence, seen.last_offset) == (
            entry.epoch,
            entry.last_sequence,
            entry.last_offset,
        )
