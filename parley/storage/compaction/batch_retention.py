"""Which batches a compaction keeps, apart from the keys of their records: transactions, markers, producers.

Rules:

1. The records of an aborted transaction are removed. A marker may be removed when no batch of its transaction is left,
   and ``delete.retention.ms`` after a compaction first found it so (KIP-534), because a consumer may have read the
   records before.
2. The last batch of a producer stays, if need be without its records: a log that is read back has its last sequence. So
   do the others that count as retries when they are sent again. A batch of a transaction that has ended does not. A
   producer whose latest epoch has only a marker keeps the marker, which fences older epochs.
3. The last batch of each new segment stays, if need be without its records. Otherwise a replica that copies the log
   from the beginning might not reach its end, and a recovery could take what is missing for lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from parley.protocol.records.batch_header import BatchHeader
from parley.protocol.records.control_batch import ControlMarker, ControlType
from parley.storage.last_batches import LastBatches
from parley.storage.transaction_index import AbortedTransaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What is done with a batch."""

    keeps_records: bool
    """True if its records stay, those with keys as far as no later record supersedes them."""
    keeps_empty: bool = False
    """True if the batch stays when none of its records does."""
    expires: bool = False
    """True for a marker of which nothing is left to be marked: it gets a delete horizon, unless it has one."""


class InconsistentTransactions(ValueError):
    """The transaction indexes do not agree with the markers in the log."""


class TransactionsSeen:
    """The transactions of the batches in the order of the log. ``aborted`` are those that the indexes name."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._aborted = deque(sorted(aborted, key=lambda each: each.first_offset))
        self._ending_in_abort: dict[int, AbortedTransaction] = {}
        self._with_aborted_batches: set[int] = set()
        self._with_committed_batches: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """True if a data batch belongs to an aborted transaction. Call this for every data batch."""
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
        """Note a marker. Returns True if a batch of its transaction is left, and the entry of an aborted one.

        Raises ``InconsistentTransactions`` if batches were taken for committed ones that the marker aborts, or the
        other way round.
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
    """What is done with a data batch. ``producer`` has its producer's last batches, if the log knows the producer."""
    needed = producer is not None and (
        header.last_offset == producer.last_offset
        or (not header.is_transactional and 0 <= producer.first_offset <= header.last_offset)
    )
    return Retention(keeps_records=not is_aborted, keeps_empty=is_last or needed)


def retention_of_control(
    header: BatchHeader, producer: LastBatches | None, *, covers_batches: bool, is_last: bool, is_expired: bool
) -> Retention:
    """What is done with a control batch. ``covers_batches`` is True if something is left that its record refers to,
    ``is_expired`` if its delete horizon has passed."""
    fences = producer is not None and producer.last_offset < 0 and header.producer_epoch == producer.epoch
    if covers_batches or fences:
        return Retention(keeps_records=True)
    return Retention(keeps_records=not is_expired, keeps_empty=is_last, expires=True)
