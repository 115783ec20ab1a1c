"""Compact a log in this process, as a broker does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from parley.protocol.records.batch import records
from parley.protocol.records.batch_header import BatchHeader, headers
from parley.protocol.records.control_batch import ControlMarker, ControlType, build_marker, read_marker
from parley.protocol.records.record import Record
from parley.storage.checkpoints import INT64_MAX
from parley.storage.compaction.compactor import CompactedGroup, CompactionResult, compact
from parley.storage.log import Log, Origin
from tests.storage.logs import NOW


def settled(log: Log) -> Log:
    """Return the log, with all records committed and on disk, so that its sealed segments may be compacted."""
    log.high_watermark = log.log_end_offset
    log.flush()
    log.checkpointed(log.recovery_point)
    return log


def compacted(
    log: Log,
    *,
    now_ms: int = NOW,
    map_bytes: int = 1 << 20,
    tombstones_kept_from: int = INT64_MAX,
    removed: Callable[[list[Path]], None] | None = None,
) -> CompactionResult:
    """Compact all sealed segments of a log, and remove the files of the old ones."""
    settled(log)
    with log.begin_compaction(
        log.dirtiness(now_ms), now_ms=now_ms, map_bytes=map_bytes, tombstones_kept_from=tombstones_kept_from
    ) as compaction:

        def adopt(group: CompactedGroup) -> None:
            paths = compaction.adopt(group)
            if removed is not None:
                removed(paths)
            for path in paths:
                path.unlink()

        result = compact(compaction.request, adopt)
        compaction.finish(result)
    return result


def batches(log: Log, start: int | None = None) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yield the batches of a log from an offset on, as a consumer fetches them."""
    offset = log.log_start_offset if start is None else start
    while offset < log.log_end_offset:
        data = bytes(log.read(offset, 1 << 20, up_to=log.log_end_offset).read())
        if not data:
            return
        for position, header in headers(data):
            yield header, data[position : position + header.size_bytes]
            offset = header.next_offset


def committed(log: Log) -> Iterator[tuple[BatchHeader, Record]]:
    """Yield the records that a consumer with ``read_committed`` sees, with the headers of their batches."""
    aborted = sorted(
        log.aborted_transactions(log.log_start_offset, log.log_end_offset), key=lambda each: each.first_offset
    )
    skipped: set[int] = set()
    for header, data in batches(log):
        while aborted and aborted[0].first_offset <= header.last_offset:
            skipped.add(aborted.pop(0).producer_id)
        if header.is_control:
            marker = read_marker(data)
            if marker is not None and marker.type is ControlType.ABORT:
                skipped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in skipped):
            for record in records(data):
                if record.offset >= log.log_start_offset:
                    yield header, record


def table(log: Log) -> dict[bytes, bytes]:
    """Return the last value of each key, without the deleted keys."""
    values: dict[bytes, bytes] = {}
    for _, record in committed(log):
        assert record.key is not None
        if record.value is None:
            values.pop(record.key, None)
        else:
            values[record.key] = record.value
    return values


def end_transaction(log: Log, producer_id: int, epoch: int, kind: ControlType, now_ms: int = NOW) -> int:
    """Append a marker as the transaction coordinator does, and return its offset."""
    marker = build_marker(ControlMarker(kind, 0), producer_id=producer_id, producer_epoch=epoch, timestamp=now_ms)
    return log.append_as_leader(marker, leader_epoch=0, now_ms=now_ms, origin=Origin.COORDINATOR).first_offset
