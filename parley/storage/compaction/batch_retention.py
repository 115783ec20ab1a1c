"""Decides which batches a compaction keeps for reasons other than their keys: transactions, markers, producers.

Rules:

1. The records of an aborted transaction are removed. A marker may be removed once no batch of its transaction is left,
   and ``delete.retention.ms`` has passed since a compaction first found no such batch (KIP-534), because a consumer may
   have read the records before they were removed.
2. The last batch of a producer stays, if necessary without its records, so that recovering the log restores the
   producer's last sequence. Earlier batches that would count as retries if they were sent again also stay, unless they
   are transactional. If the only batch of a producer's latest epoch is a marker, the marker stays: it fences older
   epochs.
3. The last batch of each new segment stays, if necessary without its records. Otherwise a replica that copies the log
   from the beginning might not reach its end, and recovery could mistake the missing end for lost records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from parley.light_dataclasses import dataclass
from parley.protocol.records.batch_header import BatchHeader
from parley.protocol.records.control_batch import ControlMarker, ControlType
from parley.storage.last_batches import LastBatches
from parley.storage.transaction_index import AbortedTransaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The decision of a compaction about one batch."""

    keeps_records: bool
    """True if the batch's records stay. Records with keys stay only if no later record supersedes them."""
    keeps_empty: bool = False
    """True if the batch stays even if none of its records does."""
    expires: bool = False
    """True for a marker that no remaining batch needs: it gets a delete horizon, unless it already has one."""


class InconsistentTransactions(ValueError):
    """Raised if the transaction indexes do not agree with the markers in the log."""


class TransactionsSeen:
    """Tracks the transactions of batches that are passed in log order. ``aborted`` are the aborted transactions in the
    transaction indexes."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._aborted = deque(sorted(aborted, key=lambda each: each.first_offset))
        self._ending_in_abort: dict[int, AbortedTransaction] = {}
        self._with_aborted_batches: set[int] = set()
        self._with_committed_batches: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Return True if a data batch belongs to an aborted transaction. Must be called for every data batch."""
        self._reach(header.last_offset)
        if not header.is_transactional:
            return False
        producer_id = header.producer_id
        aborted = self._ending_in_abort.get(producer_id)
        if aborted is not None and header.base_offset < aborted.last_offset:
            self._with_aborted_batches.add(producer_id)
            return True
        self._with_committed_batches.add(producer_id)
        return False

    def end(self, header: BatchHeader, marker: ControlMarker) -> tuple[bool, AbortedTransaction | None]:
        """Record a marker. Returns True if a batch of its transaction is left, and the transaction's index entry. The
        entry is None unless the transaction was aborted and a batch is left.

        Raises ``InconsistentTransactions`` if batches were treated as committed but the marker aborts them, or vice
        versa.
        """
        self._reach(header.last_offset)
        producer_id = header.producer_id
        aborted = self._ending_in_abort.pop(producer_id, None)
        has_committed = producer_id in self._with_committed_batches
        has_aborted = producer_id in self._with_aborted_batches
        self._with_committed_batches.discard(producer_id)
        self._with_aborted_batches.discard(producer_id)
        if has_committed if marker.type is ControlType.ABORT else has_aborted:
            raise InconsistentTransactions(
                f"the transaction index does not agree with the marker of producer {producer_id} at offset "
                f"{header.base_offset}"
            )
        return has_committed or has_aborted, aborted if has_aborted else None

    def _reach(self, offset: int) -> None:
        while self._aborted and self._aborted[0].first_offset <= offset:
            aborted = self._aborted.popleft()
            self._ending_in_abort[aborted.producer_id] = aborted


def retention_of_data(
    header: BatchHeader, producer: LastBatches | None, *, is_aborted: bool, is_last: bool
) -> Retention:
    """Decide what to do with a data batch. ``producer`` holds its producer's last batches; None if the log does not
    know the producer. ``is_last`` is True if the batch must stay as the last one of a new segment."""
    needed = producer is not None and (
        header.last_offset == producer.last_offset
        or (not header.is_transactional and 0 <= producer.first_offset <= header.last_offset)
    )
    return Retention(keeps_records=not is_aborted, keeps_empty=is_last or needed)


def retention_of_control(
    header: BatchHeader, producer: LastBatches | None, *, covers_batches: bool, is_last: bool, is_expired: bool
) -> Retention:
    """Decide what to do with a control batch. ``covers_batches`` is True if a batch that its record refers to is left;
    ``is_expired`` is True if its delete horizon has passed. The other arguments are those of ``retention_of_data``."""
    fences = producer is not None and producer.last_offset < 0 and header.producer_epoch == producer.epoch
    if covers_batches or fences:
        return Retention(keeps_records=True)
    return Retention(keeps_records=not is_expired, keeps_empty=is_last, expires=True)
