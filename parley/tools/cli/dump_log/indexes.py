"""Dump the indexes of a segment, and compare them with the segment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import Struct

from parley.protocol.errors import KafkaError
from parley.protocol.records.batch_header import BatchHeader, headers, read_header
from parley.storage.offset_index import OffsetIndex
from parley.storage.time_index import TimeIndex
from parley.storage.transaction_index import CorruptTransactionIndex, TransactionIndex
from parley.tools.cli.dump_log.batches import mapped
from parley.tools.cli.dump_log.output import DumpOptions, Line, base_offset, problem

_INT64_MAX = (1 << 63) - 1


def dump_offsets(path: Path, options: DumpOptions) -> Iterator[Line]:
    """Dump an ``.index`` file. Yields lines, among them a problem for each entry whose offset is not the last offset of
    the batch at its position. With ``sanity_check``, only checks the index as a broker does. Raises ``OSError`` if the
    index or its segment cannot be read."""
    first = base_offset(path)
    log = path.with_suffix(".log")
    if options.sanity_check:
        yield from _sanity(path, OffsetIndex.ENTRY, log.stat().st_size)
        return
    with mapped(log) as data:
        for at, (relative, position) in _entries(path, OffsetIndex.ENTRY):
            if relative == position == 0:
                return  # the rest is preallocated
            offset = first + relative
            if not options.verify_only:
                yield Line(f"offset: {offset} position: {position}", {"offset": offset, "position": position})
            if not 0 <= position < len(data):
                yield problem(f"entry {at}: {log.name} has no byte {position}", entry=at)
                continue
            try:
                header = read_header(data, position)
            except KafkaError as error:
                yield problem(f"entry {at}: at byte {position} of {log.name}: {error.message}", entry=at)
                continue
            if header.last_offset != offset:
                yield problem(f"entry {at}: Index offset: {offset}, log offset: {header.last_offset}", entry=at)
            if header.size_bytes > options.batch_bytes_max:
                yield problem(f"entry {at}: the batch has {header.size_bytes} bytes, more than --max-message-size")


def dump_times(path: Path, options: DumpOptions) -> Iterator[Line]:
    """Dump a ``.timeindex`` file. Yields lines, among them a problem for each entry that is not the maximum timestamp
    of the batch at its offset, or is earlier than the entry before it. With ``sanity_check``, only checks the index as
    a broker does. Raises ``OSError`` if the index or its segment cannot be read."""
    first = base_offset(path)
    log = path.with_suffix(".log")
    if options.sanity_check:
        yield from _sanity(path, TimeIndex.ENTRY, None)
        return
    with mapped(log) as data:
        walk = headers(data)
        header: BatchHeader | None = None
        previous = -1
        for at, (timestamp, relative) in _entries(path, TimeIndex.ENTRY):
            if timestamp == relative == 0:
                return  # the rest is preallocated
            offset = first + relative
            if not options.verify_only:
                yield Line(f"timestamp: {timestamp} offset: {offset}", {"timestamp": timestamp, "offset": offset})
            # Entries and batches are both in order, so one pass through the segment is enough.
            while header is None or header.last_offset < offset:
                following = next(walk, None)
                if following is None:
                    break
                header = following[1]
            yield from _wrong_time(at, timestamp, offset, header, previous)
            previous = timestamp


def _wrong_time(at: int, timestamp: int, offset: int, header: BatchHeader | None, previous: int) -> Iterator[Line]:
    if header is None or header.last_offset < offset:
        yield problem(f"entry {at}: offset {offset} is not found in the segment", entry=at)
    elif header.max_timestamp != timestamp:
        yield problem(f"entry {at}: Index timestamp: {timestamp}, log timestamp: {header.max_timestamp}", entry=at)
    if timestamp < previous:
        yield problem(f"entry {at}: Index timestamp: {timestamp}, Previously indexed timestamp: {previous}", entry=at)


def dump_transactions(path: Path) -> Iterator[Line]:
    """Yield a line for each aborted transaction in a ``.txnindex`` file, or a problem if it is corrupt."""
    index = TransactionIndex(path)
    try:
        index.sanity_check()
        for one in index.find(0, _INT64_MAX)[0]:
            fields = {
                "version": 0,
                "producerId": one.producer_id,
                "firstOffset": one.first_offset,
                "lastOffset": one.last_offset,
                "lastStableOffset": one.last_stable_offset,
            }
            yield Line(" ".join(f"{name}: {value}" for name, value in fields.items()), fields)
    except CorruptTransactionIndex as error:
        yield problem(str(error))
    finally:
        index.close()


def _entries(path: Path, entry: Struct) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield the number and the fields of each entry. Ignores bytes after the last complete entry."""
    data = path.read_bytes()
    whole = memoryview(data)[: len(data) - len(data) % entry.size]
    for at, fields in enumerate(entry.iter_unpack(whole)):
        yield at, (fields[0], fields[1])


def _sanity(path: Path, entry: Struct, log_bytes: int | None) -> Iterator[Line]:
    """Check an index as a broker does when opening it: complete entries in order, and positions inside the segment.
    Yields one line: a problem, or that the index is sound."""
    left = path.stat().st_size % entry.size
    if left:
        yield problem(f"the last {left} bytes are not a complete entry of {entry.size} bytes")
        return
    previous = (-1, -1)
    count = 0
    for at, fields in _entries(path, entry):
        if not any(fields):
            break  # the rest is preallocated
        if at > 0 and (fields[0] <= previous[0] or fields[1] < previous[1]):
            yield problem(f"entry {at}: {fields} is not above {previous}", entry=at)
            return
        if log_bytes is not None and not 0 <= fields[1] < max(log_bytes, 1):
            yield problem(f"entry {at}: byte {fields[1]} is outside the segment's {log_bytes} bytes", entry=at)
            return
        previous = fields
        count += 1
    yield Line(f"{path} passed sanity check.", {"sane": True, "entries": count})
