"""Restores the producers of a log from its batches, if the producer snapshots lack them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

from parley.protocol.records.batch_header import BatchHeader
from parley.protocol.records.errors import CorruptRecord
from parley.storage.producer_state import ProducerState
from parley.storage.producer_updates import marker_of
from parley.storage.segment import Segment
from parley.storage.segment_file import LOOKUP_CHUNK, read_batch

RECALLED_BYTES: Final = 4 << 20
"""The number of bytes before the log end that are searched for the last batches of a producer. This takes a few
milliseconds."""

_log = logging.getLogger(__name__)


def replay(segment: Segment, offset: int, producers: ProducerState, now_ms: int) -> bool:
    """Apply the batches of a segment, from ``offset`` on, to ``producers``. The transaction index of the segment must
    be complete.

    Ignores batches after a damaged batch, and then returns False. Blocks. Raises ``OSError``.
    """
    try:
        begin = segment.find(offset)
        for position, header in segment.batches(begin[0]) if begin is not None else ():
            if header.producer_id >= 0:  # the first batch may start before ``offset``, and contain it
                marker = None
                if header.is_control:
                    marker = marker_of(header, read_batch(segment.file, position, header), 0)
                producers.apply(header, now_ms=min(header.max_timestamp, now_ms), control=marker)
    except CorruptRecord as error:
        _log.error("cannot restore all producers of %r: %s", segment, error)
        return False
    return True


def recall(segments: Sequence[Segment], producers: ProducerState, producer_id: int) -> None:
    """Restore the last batches of a producer from the end of the log, because its snapshot contains only one of them.

    Called at most once for each producer of a snapshot. Reads headers only. Raises ``OSError``.
    """
    headers = headers_near_end(segments)
    producers.recall(producer_id, [each for each in headers if each.producer_id == producer_id and not each.is_control])


def headers_near_end(segments: Sequence[Segment]) -> Iterator[BatchHeader]:
    """Yield the headers of the batches in the last ``RECALLED_BYTES`` of a log, in log order. Leaves out the batches
    after a damaged batch in the same segment, and logs this. Raises ``OSError``."""
    left = RECALLED_BYTES
    parts: list[tuple[Segment, int]] = []
    for segment in reversed(segments):
        begin = segment.offset_index.lookup_position(max(0, segment.size - left)).position
        parts.append((segment, begin))
        left -= segment.size - begin
        if left <= 0:
            break
    for segment, begin in reversed(parts):
        try:
            for _, header in segment.batches(begin, chunk=LOOKUP_CHUNK):
                yield header
        except CorruptRecord as error:
            _log.error("cannot find all batches at the end of %r: %s", segment, error)
