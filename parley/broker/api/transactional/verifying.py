"""Verifies with the transaction coordinator that a producer may write to partitions in its transaction (KIP-890).

For Produce version 12 and TxnOffsetCommit version 5 or later, the broker adds the partitions. Older clients have added
them themselves, and the broker verifies that. Error codes depend on what the request's version supports, as in Kafka
(``client_error``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import Enum

from parley.broker.api.transactional.coordinator_requests import CoordinatorRequests, Errors
from parley.broker.api.transactional.verifications import Verification, Verifications
from parley.broker.config import BrokerConfig
from parley.broker.replication.partition import Partition
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.topic_partition import TopicPartition

Outcomes = dict[Partition, Verification | KafkaError | None]
"""Partition -> the verification to check before the append, None if none is needed, or the error for the client."""
_Begun = dict[TopicPartition, tuple[Partition, Verification]]

VOIDED_MAX = 3
"""The maximum number of times that a request is verified again because a marker arrived in the meantime. A transaction
has only one marker."""


class ClientSupport(Enum):
    """The support for transactions in a version of Produce or TxnOffsetCommit."""

    VERIFY = "the client has added the partition, and knows INVALID_TXN_STATE only"
    VERIFY_ABORTABLE = "the client has added the partition, and knows TRANSACTION_ABORTABLE"
    ADD = "the broker adds the partition"

    @property
    def adds(self) -> bool:
        """True if the broker adds partitions to the client's transaction."""
        return self is ClientSupport.ADD


def produce_support(version: int) -> ClientSupport:
    """Return the transaction support of clients that use a version of Produce."""
    return _support(version, abortable_since=11, add_since=12)


def offset_commit_support(version: int) -> ClientSupport:
    """Return the transaction support of clients that use a version of TxnOffsetCommit."""
    return _support(version, abortable_since=4, add_since=5)


def _support(version: int, *, abortable_since: int, add_since: int) -> ClientSupport:
    if version >= add_since:
        return ClientSupport.ADD
    return ClientSupport.VERIFY_ABORTABLE if version >= abortable_since else ClientSupport.VERIFY


def client_error(code: ErrorCode, support: ClientSupport) -> ErrorCode:
    """Return the error that a client with this support gets for the coordinator's error. A fenced producer gets
    INVALID_PRODUCER_EPOCH."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and support is ClientSupport.VERIFY:
        return ErrorCode.INVALID_TXN_STATE
    return code


class Verifying:
    """The verification that partitions led by this broker belong to producers' transactions."""

    def __init__(
        self, verifications: Verifications, requests: CoordinatorRequests, config: Callable[[], BrokerConfig]
    ) -> None:
        self.verifications = verifications
        self._requests = requests
        self._config = config

    @property
    def is_required(self) -> bool:
        """True if no transaction may begin in a log without a verification."""
        return self._config().transaction_partition_verification_enable

    def verify_at_once(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Mapping[Partition, int],
        support: ClientSupport,
    ) -> Outcomes | None:
        """Verify like ``verify``, but without waiting. Returns None if that is impossible: if another broker is the
        coordinator, if replicas do not have the transaction's state yet, or if the coordinator must add the
        partitions."""
        if support.adds:
            return None
        places = [(partition.topic, partition.index) for partition in partitions]
        errors = self._requests.verify_at_once(transactional_id, producer_id, epoch, places)
        if errors is None:
            return None
        outcomes: Outcomes = {}
        begun = self._begin(producer_id, epoch, partitions, support, outcomes)
        for _, verification in begun.values():
            self.verifications.finished(verification)
        self.verifications.metrics.duration.observe(0)
        self._refuse({place: code for place, code in errors.items() if place in begun}, begun, support, outcomes)
        return outcomes

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Mapping[Partition, int],
        support: ClientSupport,
    ) -> Outcomes:
        """Verify or add the partitions, given the first sequence number of each batch (-1 if it has none).

        Returns for each partition the verification to check before the append, None if none is needed, or the error for
        the client. While the producer's previous transaction is ending, adding is retried for
        ``add.partitions.to.txn.retry.backoff.max.ms``, but at most for ``request.timeout.ms``; otherwise the client
        would have to send its records again. A marker that arrives during the verification may belong to the previous
        transaction, so the partition is verified again.
        """
        loop = asyncio.get_running_loop()
        config = self._config()
        ends_at = loop.time() + min(config.add_partitions_to_txn_retry_backoff_max_ms, config.request_timeout_ms) / 1000
        voided = 0
        while True:
            outcomes, errors = await self._verify_once(transactional_id, producer_id, epoch, partitions, support)
            if ErrorCode.CONCURRENT_TRANSACTIONS in errors.values() and support.adds and loop.time() < ends_at:
                await asyncio.sleep(config.add_partitions_to_txn_retry_backoff_ms / 1000)
            elif voided < VOIDED_MAX and self._is_one_voided(producer_id, outcomes):
                voided += 1
            else:
                return outcomes

    def _is_one_voided(self, producer_id: int, outcomes: Outcomes) -> bool:
        """Return True if a marker has ended one of the verifications."""
        return any(
            isinstance(outcome, Verification) and not self.verifications.is_current(partition, producer_id, outcome)
            for partition, outcome in outcomes.items()
        )

    async def _verify_once(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Mapping[Partition, int],
        support: ClientSupport,
    ) -> tuple[Outcomes, Errors]:
        outcomes: Outcomes = {}
        begun = self._begin(producer_id, epoch, partitions, support, outcomes)
        if not begun:
            return outcomes, {}
        metrics, loop = self.verifications.metrics, asyncio.get_running_loop()
        began_s = loop.time()
        try:
            errors = await self._requests.ask(transactional_id, producer_id, epoch, begun, adds=support.adds)
            metrics.duration.observe(int((loop.time() - began_s) * 1e6))
        finally:
            for _, verification in begun.values():
                self.verifications.finished(verification)
        self._refuse(errors, begun, support, outcomes)
        return outcomes, errors

    def _begin(
        self,
        producer_id: int,
        epoch: int,
        partitions: Mapping[Partition, int],
        support: ClientSupport,
        outcomes: Outcomes,
    ) -> _Begun:
        """Start the necessary verifications. Adds each, or the error that prevents it, to ``outcomes``."""
        begun: _Begun = {}
        for partition, sequence in partitions.items():
            try:
                verification = self.verifications.begin(partition, producer_id, epoch, sequence, adds=support.adds)
            except KafkaError as error:
                outcomes[partition] = error
                continue
            outcomes[partition] = verification
            if verification is not None:
                begun[partition.topic, partition.index] = partition, verification
        return begun

    def _refuse(self, errors: Errors, begun: _Begun, support: ClientSupport, outcomes: Outcomes) -> None:
        """Add the coordinator's errors to ``outcomes``."""
        self.verifications.metrics.failures += len(errors)
        for place, code in errors.items():
            partition, _ = begun[place]
            text = f"The transaction coordinator rejected {partition.topic}-{partition.index}: {code.name}."
            outcomes[partition] = KafkaError(client_error(code, support), text)
