"""Rebuilds the transaction index of a segment from a scan of its batches.

After a kill, the index cannot be trusted: its segment may have no digest, and an altered entry hides committed records
from consumers, or gives them aborted ones. The batches decide, unless they are damaged: if a marker or the first batch
of a transaction is damaged, only the index knows where transactions begin and end.
"""

from __future__ import annotations

from collections.abc import Sequence

from parley.protocol.records.batch_header import BatchHeader
from parley.protocol.records.control_batch import ControlMarker, ControlType
from parley.storage.damage.damaged_ranges import DamagedBytes
from parley.storage.producer_state import ProducerState
from parley.storage.producer_updates import apply
from parley.storage.transaction_index import AbortedTransaction


class TransactionScan:
    """The aborted transactions that a scan of one segment finds. Pass every batch of a producer to ``note``."""

    def __init__(self, known: Sequence[AbortedTransaction]) -> None:
        """``known`` are the entries of the index before the scan."""
        self._known = known
        self._found: dict[int, AbortedTransaction] = {}  # by the offset of the marker, like the next one
        self._aborting_producers: dict[int, int] = {}

    def note(self, header: BatchHeader, marker: ControlMarker | None, producers: ProducerState, now_ms: int) -> None:
        """Update ``producers`` with the next batch, and remember the transaction that it aborts."""
        aborted = apply(header, marker, producers, now_ms)
        if marker is not None and marker.type is ControlType.ABORT:
            self._aborting_producers[header.base_offset] = header.producer_id
        if aborted is not None:
            self._found[aborted.last_offset] = aborted

    def entries(self, damage: Sequence[DamagedBytes], *, is_whole: bool) -> list[AbortedTransaction]:
        """Return the entries of the rebuilt index. ``damage`` is the damage of the segment.

        ``is_whole`` is True if all batches before the segment are intact. If there is no damage in or before the
        segment, the scan alone determines the entries. Otherwise, a known entry replaces what the scan found for its
        marker, if that marker is damaged or is an abort by the same producer. The scan may be wrong about where the
        transaction began: its first batch, or the marker that ended the producer's previous transaction, may be
        damaged.
        """
        found = dict(self._found)
        for known in () if is_whole and not damage else self._known:
            marker = known.last_offset
            is_damaged = any(each.first_offset <= marker <= each.last_offset for each in damage)
            if is_damaged or self._aborting_producers.get(marker) == known.producer_id:
                found[marker] = known
        return [found[marker] for marker in sorted(found)]
