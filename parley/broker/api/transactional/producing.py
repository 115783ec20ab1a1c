"""The transactional batches of produce requests: which of them need a verification, and which may be appended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, cast

from parley.broker.api.transactional.verifications import Verification
from parley.broker.api.transactional.verifying import ClientSupport, Outcomes, Verifying, produce_support
from parley.broker.replication.partition import Partition
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.produce import ProduceRequest
from parley.protocol.records.batch_header import MAGIC_V2, BatchHeader, Buffer, read_header
from parley.protocol.records.errors import CorruptRecord

_Data = ProduceRequest.PartitionProduceData

_RETRIED = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Errors of the coordinator that a producer does not expect in a produce response. The producer gets
NOT_ENOUGH_REPLICAS instead, and sends the batch again without refreshing its metadata, as in Kafka."""


class Unverified(NamedTuple):
    """The transactional batches of one request that may begin a transaction in their partitions."""

    producer_id: int
    epoch: int
    data: dict[Partition, tuple[_Data, BatchHeader]]

    def sequences(self) -> dict[Partition, int]:
        """Return the first sequence number of each partition's batch."""
        return {partition: header.base_sequence for partition, (_, header) in self.data.items()}


class ProducerTransactions:
    """The verification and the checks of the transactional batches in produce requests."""

    def __init__(self, verifying: Verifying) -> None:
        self._verifying = verifying

    def unverified(self, batches: Iterable[tuple[_Data, Partition]], version: int) -> Unverified | None:
        """Return the batches of a request that need a verification, or None.

        ``batches`` pairs each batch with its partition, which this broker leads. The append reports malformed batches.

        Raises KafkaError (INVALID_PRODUCER_ID_MAPPING) if the batches come from several producers.
        """
        producers: set[tuple[int, int]] = set()
        found: dict[Partition, tuple[_Data, BatchHeader]] = {}
        for data, partition in batches:
            header = _transactional(cast("Buffer | None", data.records))
            if header is None:
                continue
            producers.add((header.producer_id, header.producer_epoch))
            if len(producers) > 1:
                raise KafkaError(
                    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                    "All transactional batches of a request must come from one producer.",
                )
            if not partition.log.producers.has_open_transaction(header.producer_id, header.producer_epoch):
                found[partition] = data, header
        if not found or not (produce_support(version).adds or self._verifying.is_required):
            return None
        (producer,) = producers
        return Unverified(*producer, found)

    async def verify(
        self, transactional_id: str, unverified: Unverified, version: int
    ) -> dict[int, Verification | KafkaError]:
        """Verify the batches. Returns the verification to pass to ``check``, or the error for the client, by id() of
        the batch's data. Batches that no longer need a verification are omitted."""
        support = produce_support(version)
        outcomes = await self._verifying.verify(
            transactional_id, unverified.producer_id, unverified.epoch, unverified.sequences(), support
        )
        return self._verified(unverified, outcomes, support)

    def verify_at_once(
        self, transactional_id: str, unverified: Unverified, version: int
    ) -> dict[int, Verification | KafkaError] | None:
        """Verify the batches like ``verify``, but without waiting. Returns None if that is impossible."""
        support = produce_support(version)
        outcomes = self._verifying.verify_at_once(
            transactional_id, unverified.producer_id, unverified.epoch, unverified.sequences(), support
        )
        return None if outcomes is None else self._verified(unverified, outcomes, support)

    @staticmethod
    def _verified(
        unverified: Unverified, outcomes: Outcomes, support: ClientSupport
    ) -> dict[int, Verification | KafkaError]:
        return {
            id(unverified.data[partition][0]): _produce_error(outcome, support)
            if isinstance(outcome, KafkaError)
            else outcome
            for partition, outcome in outcomes.items()
            if outcome is not None
        }

    def check(
        self, transactional_id: str | None, partition: Partition, header: BatchHeader, verification: Verification | None
    ) -> None:
        """Check a transactional batch immediately before it is appended.

        Raises KafkaError: TRANSACTIONAL_ID_AUTHORIZATION_FAILED if the request contains no transactional id, and the
        errors of ``Verifications.check``.
        """
        if transactional_id is None:
            raise KafkaError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "The request contains transactional batches, but no transactional id.",
            )
        self._verifying.verifications.check(
            partition,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            verification,
            is_required=self._verifying.is_required,
        )

    def appended(self, partition: Partition, header: BatchHeader) -> None:
        """Record that a transactional batch was appended."""
        self._verifying.verifications.settle(partition, header.producer_id)


def _transactional(records: Buffer | None) -> BatchHeader | None:
    """Return the header of a transactional batch; None for other or malformed records."""
    try:
        header = read_header(records or b"")
    except CorruptRecord:
        return None
    is_transactional = header.magic == MAGIC_V2 and header.has_producer and header.is_transactional
    return header if is_transactional else None


def _produce_error(error: KafkaError, support: ClientSupport) -> KafkaError:
    """Return the error of a verification as it appears in a produce response."""
    code = error.code
    if code in _RETRIED or (code is ErrorCode.CONCURRENT_TRANSACTIONS and not support.adds):
        return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, f"The partition cannot be verified yet. {error.message}")
    return error
