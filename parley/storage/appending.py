"""Appends to a log. These are functions, not methods of ``Log``, because this module is compiled and ``Log`` is not.

Threads read a log's attributes without its lock. A native class must not have such attributes: in the code that mypyc
generates, an assignment frees the old value before it stores the new one, so that another thread can read freed memory.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from parley.named_tuples import new_tuple
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch_header import BatchHeader, Buffer
from parley.protocol.sentinels import NO_TIMESTAMP
from parley.storage import segment_appends
from parley.storage.append_checks import (
    LOG_APPEND_TIME,
    AppendInfo,
    PlacedBatch,
    check_sizes,
    fetched_batches,
    first_append,
    place,
    runs,
    whole_batches,
)
from parley.storage.damage.appended_epochs import AppendedEpochs
from parley.storage.leader_epoch_cache import LeaderEpochCache
from parley.storage.log_config import LogConfig
from parley.storage.producer_state import ProducerState
from parley.storage.producer_updates import marker_of, note
from parley.storage.segment import Segment
from parley.storage.segment_appends import takes
from parley.storage.segments import Segments


class AppendableLog(Protocol):
    """The parts of a ``Log`` that an append uses."""

    log_end_offset: int
    _closed: bool
    _is_half_changed: bool

    @property
    def config(self) -> LogConfig: ...

    @property
    def log_start_offset(self) -> int: ...

    @property
    def producers(self) -> ProducerState: ...

    @property
    def leader_epochs(self) -> LeaderEpochCache: ...

    @property
    def _appended_epochs(self) -> AppendedEpochs: ...

    @property
    def _segments(self) -> Segments: ...

    @property
    def _lock(self) -> AbstractContextManager[bool]: ...

    def _recalls(self, error: KafkaError, header: BatchHeader) -> bool: ...

    def _segment_for(self, size: int, last_offset: int, latest_timestamp: int, now_ms: int) -> Segment: ...

    def _failed(self, error: OSError) -> KafkaError: ...


def append_as_leader(
    log: AppendableLog,
    batches: bytearray | memoryview,
    *,
    leader_epoch: int,
    now_ms: int,
    is_client: bool,
    header: BatchHeader | None,
    transaction_version: int,
) -> AppendInfo:
    """Append batches to ``log`` as ``Log.append_as_leader`` describes."""
    found = whole_batches(batches, header)
    with log._lock:
        check_sizes(found, len(batches), log.config)
        for at, header in found:
            if header.producer_id >= 0:
                marker = marker_of(header, batches, at)
                if marker is not None:
                    log.producers.check_marker(header, marker, now_ms=now_ms, transaction_version=transaction_version)
                    continue
                try:
                    known = log.producers.check_append(header, from_client=is_client, now_ms=now_ms)
                except KafkaError as error:
                    if not log._recalls(error, header):
                        raise
                    known = log.producers.check_append(header, from_client=is_client, now_ms=now_ms)
                if known is not None:
                    return first_append(known, header, log.config, log.log_start_offset)
        append_time = now_ms if log.config.message_timestamp_type == LOG_APPEND_TIME else None
        offset = log.log_end_offset
        log.leader_epochs.assign(leader_epoch, offset)
        placed = place(batches, found, offset, leader_epoch, append_time)
        return _write(log, batches, placed, now_ms, NO_TIMESTAMP if append_time is None else append_time)


def append_as_follower(log: AppendableLog, batches: Buffer, now_ms: int) -> AppendInfo:
    """Append fetched batches to ``log`` as ``Log.append_as_follower`` describes."""
    with log._lock:
        first, count, size, largest = log.log_end_offset, 0, 0, NO_TIMESTAMP
        view = memoryview(batches)
        found = fetched_batches(batches, first)
        if found and found[0][1].base_offset > first:
            # Compaction has removed records of the leader, perhaps of other epochs than one that is stored at the end.
            log.leader_epochs.remove_from(first)
        for run in runs(found, log.config.segment_bytes):
            begin, end = run[0][0], run[-1][0] + run[-1][1].size_bytes
            for _, header in run:
                log.leader_epochs.assign(header.partition_leader_epoch, header.base_offset)
            info = _write(log, view[begin:end], [(at - begin, h) for at, h in run], now_ms, NO_TIMESTAMP)
            first = first if count else info.first_offset
            count += info.record_count
            size += info.size_bytes
            largest = max(largest, info.max_timestamp)
        last = log.log_end_offset - 1
        return AppendInfo(first, last, largest, NO_TIMESTAMP, log.log_start_offset, False, count, size)


def _write(log: AppendableLog, batches: Buffer, found: list[PlacedBatch], now_ms: int, append_time: int) -> AppendInfo:
    """Write batches with assigned offsets, in a new segment if they do not fit, and update the producers."""
    placed = [header for _, header in found]
    last, largest, count = placed[-1].last_offset, placed[0].max_timestamp, 0
    for header in placed:
        if header.max_timestamp > largest:
            largest = header.max_timestamp
    if log._closed:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log!r} is closed")
    try:
        segments, config, size = log._segments, log.config, len(batches)
        if takes(segments, size, last, largest, config, now_ms):
            segment = segments.active
        else:
            segment = log._segment_for(size, last, largest, now_ms)
        for header in placed:
            log._appended_epochs.note(header.partition_leader_epoch, header.base_offset)
        segment_appends.append(segment, batches, placed, config.index_interval_bytes)
        log.log_end_offset = last + 1
        segments.appended(last + 1)
        for at, header in found:
            count += header.record_count
            if header.producer_id >= 0:
                note(header, marker_of(header, batches, at), log.producers, segment, now_ms)
    except OSError as error:
        raise log._failed(error) from error
    except MemoryError:
        log._closed = log._is_half_changed = True
        raise
    first, start = placed[0].base_offset, log.log_start_offset
    return new_tuple(AppendInfo, (first, last, largest, append_time, start, False, count, size))
