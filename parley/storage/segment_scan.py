"""Scans a segment whose indexes cannot be trusted (recovery) or do not exist yet (mending)."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence

from parley.protocol.records.batch_header import HEADER_SIZE, MAGIC_V2, BatchHeader, Buffer, read_header
from parley.protocol.records.errors import CorruptRecord
from parley.storage.damage import altered_epochs
from parley.storage.damage.checked_batches import CheckedBatch, CheckedBatches
from parley.storage.damage.damaged_ranges import DamagedBytes, joined
from parley.storage.index import MAX_RELATIVE_OFFSET
from parley.storage.log_config import LogConfig
from parley.storage.segment import Segment
from parley.storage.segment_names import LOG_SUFFIX

_log = logging.getLogger(__name__)


class Scan:
    """Reads one segment from its start and adds its good batches to the segment and its indexes (``Segment.adopt``).

    Calls ``learn`` for each good batch, with its header and its bytes. The bytes are empty if the batch is larger than
    ``LARGE_BATCH``.
    """

    def __init__(self, segment: Segment, config: LogConfig, learn: Callable[[BatchHeader, Buffer], None]) -> None:
        self.segment = segment
        self._interval = config.index_interval_bytes
        self._learn = learn
        self._file_bytes = os.fstat(segment.file.fd).st_size
        self.end = segment.base_offset
        """The offset after the last good batch."""
        self.tail: DamagedBytes | None = None
        """The bytes after the last good batch, if any: torn by a crash, or damaged."""

    def run(
        self,
        *,
        past_damage: bool,
        known: Sequence[DamagedBytes] = (),
        is_honest: Callable[[BatchHeader], bool | None] = lambda header: None,
        highest_epoch: int | None = None,
        epoch_before: int | None = None,
    ) -> None:
        """Adopt the good batches: with ``past_damage`` all of them, otherwise those before the first damage.

        ``known`` is damage that was found earlier. ``highest_epoch`` is the highest leader epoch that the broker knows;
        if it is None, no leader epoch counts as altered. ``is_honest`` is ``AppendedEpochs.is_honest`` with the known
        epochs. ``epoch_before`` is the leader epoch before the segment, if known. Raises ``OSError``.
        """
        segment, all_found = self.segment, self._found(known)
        if highest_epoch is not None:
            all_found = altered_epochs.without_altered(
                all_found,
                first_offset=segment.base_offset,
                last_offset=min(segment.end_offset - 1, segment.base_offset + MAX_RELATIVE_OFFSET),
                before=epoch_before,
                highest=highest_epoch,
                is_honest=is_honest,
            )
        for found in all_found:
            if isinstance(found, DamagedBytes):
                self.tail = found if self.tail is None else joined((self.tail,), (found,))[0]
                if past_damage:
                    continue
                return
            if self.tail is not None:
                segment.skip(self.tail)
                self.tail = None
            _, header, data = found
            self._learn(header, b"" if data is None else data)
            segment.adopt(header, data, self._interval)
            self.end = header.next_offset

    def _found(self, known: Sequence[DamagedBytes]) -> Iterator[CheckedBatch | DamagedBytes]:
        segment, position, expected = self.segment, 0, self.segment.base_offset
        checked = CheckedBatches(segment.file, self._file_bytes, segment.base_offset, segment.end_offset)
        for damaged in known:
            for found in checked.walk(position, damaged.position, expected):
                yield found
                if isinstance(found, DamagedBytes):
                    position, expected = found.end, found.last_offset + 1
                else:
                    position, expected = found.position + found.header.size_bytes, found.header.next_offset
            if position < damaged.end:  # otherwise new damage covers the known damage
                yield damaged
                position, expected = damaged.end, damaged.last_offset + 1
        yield from checked.walk(position, self._file_bytes, expected)

    @property
    def is_empty(self) -> bool:
        """True if the segment contains no good batch."""
        return not self.segment.size

    def keep_complete_batches(self, is_epoch_known: Callable[[BatchHeader], bool]) -> None:
        """Count the complete batches at the start of the tail as damaged, not as torn: a killed process leaves at most
        the beginning of the batch that it was writing.

        ``is_epoch_known`` returns True if the leader epoch of a batch is certain. Raises ``OSError``.
        """
        tail, segment = self.tail, self.segment
        if tail is None:
            return
        kept_to, end = tail.position, self.end
        if tail.last_offset < segment.base_offset + MAX_RELATIVE_OFFSET and tail.end == self._file_bytes:
            kept_to, end = tail.end, tail.last_offset + 1  # recorded before the process died
        while (header := self._header(kept_to, end)) is not None and is_epoch_known(header):
            kept_to, end = kept_to + header.size_bytes, header.next_offset
        if kept_to > tail.position:
            segment.skip(DamagedBytes(tail.position, kept_to, self.end, end - 1, tail.reason))
            is_torn = kept_to < self._file_bytes
            self.tail = DamagedBytes(kept_to, tail.end, end, tail.last_offset, "a torn batch") if is_torn else None
            self.end = end

    def _header(self, position: int, expected: int) -> BatchHeader | None:
        """Return the header of a batch that was completely written and has the ``expected`` offset; else None."""
        try:
            header = read_header(self.segment.file.read(HEADER_SIZE, position), 0)
        except CorruptRecord:
            return None
        is_complete = header.magic == MAGIC_V2 and position + header.size_bytes <= self._file_bytes
        is_next = header.base_offset == expected and header.last_offset_delta == header.record_count - 1
        return header if is_complete and is_next else None

    def cut(self) -> None:
        """Remove the bytes after the last good batch, because the log ends there. Raises ``OSError``."""
        if self.tail is not None:
            segment, lost = self.segment, self._file_bytes - self.segment.size
            _log.warning(
                "removing %d bytes from the end of %s: %s", lost, segment.path_of(LOG_SUFFIX), self.tail.reason
            )
            os.ftruncate(segment.file.fd, segment.size)
            segment.transactions.truncate_to(self.end)
            os.fsync(segment.file.fd)
            self.tail = None
