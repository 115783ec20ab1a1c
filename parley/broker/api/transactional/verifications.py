"""Remembers which partitions were verified to belong to a producer's transaction (KIP-890). Pure decisions, no I/O.

Rules of this module:

* The first batch of a transaction in a partition needs a verification: the transaction coordinator confirms that the
  producer's open transaction contains the partition. Later batches need none, because the log knows the transaction
  until its marker is appended.
* A marker ends the verifications of its producer. Otherwise a request that was verified before the marker could begin a
  transaction after it, which no marker would ever end.
* A batch must not overtake a batch with a lower sequence number that has been or is being verified.
* The table is bounded: the oldest verifications without a request in progress are dropped first.
"""

from __future__ import annotations

from parley.broker.metrics.catalogue.coordinators import VerificationMetrics
from parley.broker.replication.partition import Partition
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.sentinels import NO_SEQUENCE
from parley.protocol.uuids import UUID
from parley.storage.producer_state import OPEN_TRANSACTIONS_MAX, ProducerState

VERIFICATIONS_MAX = 20_000
"""The maximum number of verifications to remember (10 MB). The number of connections limits the requests in
progress."""

_Place = tuple[UUID, int, int]
"""The topic id, the partition and the producer id."""


class Verification:
    """A producer's verification in one partition. It is valid as long as ``Verifications`` contains it."""

    __slots__ = ("adds", "epoch", "leader_epoch", "lowest_sequence", "requests")

    def __init__(self, epoch: int, sequence: int, leader_epoch: int, *, adds: bool) -> None:
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.leader_epoch = leader_epoch
        self.adds = adds
        """True if the broker adds the partition to the transaction for the client. Each transaction of the producer
        then has its own epoch, with sequence numbers from 0."""
        self.requests = 0
        """The number of requests that are waiting for this verification."""

    def note(self, epoch: int, sequence: int) -> None:
        """Record a batch that waits for this verification. Keeps the newest epoch and its lowest sequence number."""
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence
        elif epoch == self.epoch and sequence < self.lowest_sequence:
            self.lowest_sequence = sequence


class Verifications:
    """The verifications of one broker, for the partitions that it leads."""

    def __init__(self) -> None:
        self.metrics = VerificationMetrics()
        self._known: dict[_Place, Verification] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._known)

    def begin(
        self, partition: Partition, producer_id: int, epoch: int, sequence: int = NO_SEQUENCE, *, adds: bool
    ) -> Verification | None:
        """Return the verification that a transactional batch needs; None if its transaction is open in the log.

        The caller must ask the coordinator, call ``finished``, and pass the verification to ``check`` before the
        append. ``sequence`` is the batch's first sequence number, or -1 for offset commits, which have none. ``adds``
        is True if the broker adds the partition to the transaction for the client.

        Raises KafkaError: NOT_LEADER_OR_FOLLOWER, and the errors of ``Partition.log``.
        """
        partition.check_leader()
        if partition.log.producers.has_open_transaction(producer_id, epoch):
            return None
        place = (partition.topic_id, partition.index, producer_id)
        known = self._known.get(place)
        if known is None or known.leader_epoch != partition.leader_epoch:
            known = self._known[place] = Verification(epoch, sequence, partition.leader_epoch, adds=adds)
            if len(self._known) > VERIFICATIONS_MAX:
                self._drop_oldest()
        else:
            known.note(epoch, sequence)
        known.requests += 1
        return known

    def _drop_oldest(self) -> None:
        for place, known in self._known.items():
            if not known.requests:
                del self._known[place]
                return

    @staticmethod
    def finished(verification: Verification) -> None:
        """End the wait of one request that called ``begin``: the coordinator has responded, or the request has
        failed."""
        verification.requests -= 1

    def is_current(self, partition: Partition, producer_id: int, verification: Verification) -> bool:
        """Return True if neither a marker nor another leader epoch has ended the verification."""
        known = self._known.get((partition.topic_id, partition.index, producer_id))
        return known is verification and known.leader_epoch == partition.leader_epoch

    def _require_current(self, partition: Partition, producer_id: int, verification: Verification | None) -> None:
        name = f"{partition.topic}-{partition.index}"
        if verification is None:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"Producer {producer_id} has no open transaction that contains {name}.",
            )
        if not self.is_current(partition, producer_id, verification):
            # The coordinator has confirmed the transaction. It may have confirmed it after the marker, or the marker
            # may be a late copy. So the producer must not get a final error: the retry is verified again.
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS, f"{name} has changed since it was verified for producer {producer_id}."
            )

    def check(
        self,
        partition: Partition,
        producer_id: int,
        epoch: int,
        sequence: int,
        verification: Verification | None,
        *,
        is_required: bool,
    ) -> None:
        """Check a transactional batch immediately before it is appended. Changes nothing.

        ``verification`` is the verification that the coordinator has confirmed for this request, if any.
        ``is_required`` is False if ``transaction.partition.verification.enable`` is off.

        Raises INVALID_TXN_STATE if the transaction is not known to be open, OUT_OF_ORDER_SEQUENCE_NUMBER if an earlier
        batch has not been appended yet, NOT_ENOUGH_REPLICAS (which clients retry) if the verification is no longer
        valid or the partition has too many open transactions, and the errors of ``Partition.log``.
        """
        producers = partition.log.producers
        if producers.has_open_transaction(producer_id, epoch):
            return
        known = self._known.get((partition.topic_id, partition.index, producer_id))
        if is_required:
            self._require_current(partition, producer_id, verification)
        if known is not None and sequence > NO_SEQUENCE:
            _check_sequence(partition, producers, known, producer_id, sequence)
        if producers.open_transactions >= OPEN_TRANSACTIONS_MAX:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{OPEN_TRANSACTIONS_MAX} transactions are open in {partition.topic}-{partition.index}: retry later.",
            )

    def settle(self, partition: Partition, producer_id: int) -> None:
        """End the verification after an append. After a transactional batch, the log knows the transaction. After a
        marker, earlier verifications are no longer valid."""
        self._known.pop((partition.topic_id, partition.index, producer_id), None)


def _check_sequence(
    partition: Partition, producers: ProducerState, known: Verification, producer_id: int, sequence: int
) -> None:
    if known.adds and sequence != 0 and not producers.knows(producer_id):
        expected = 0
    elif sequence > known.lowest_sequence:
        expected = known.lowest_sequence
    else:
        return
    raise KafkaError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"{partition.topic}-{partition.index}: producer {producer_id} has sequence {sequence} instead of {expected}",
    )
