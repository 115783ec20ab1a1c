"""AddPartitionsToTxn requests that partition leaders send to the transaction coordinators (KIP-890).

A leader verifies that a partition was added to a transaction, or adds it. While the maximum number of requests to one
coordinator is in flight, further transactions are collected and sent together when a request completes. If this broker
is the coordinator, it verifies without a request, so that a produce request need not wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Iterable, Mapping
from typing import NamedTuple, Protocol

from parley.broker.coordinators.decision import ProducerIdentity
from parley.broker.coordinators.internal_topic import partition_of
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.topic_names import TRANSACTIONS_TOPIC
from parley.broker.metadata.types import NO_LEADER
from parley.broker.network.peers import Peers
from parley.broker.runtime.tasks import TaskSet
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from parley.protocol.topic_partition import TopicPartition

_log = logging.getLogger(__name__)

PURPOSE = "transactions"
BROKERS_VERSION = 5
"""The version of AddPartitionsToTxn that brokers send. It supports several transactions in one request, and
TRANSACTION_ABORTABLE."""
REQUESTS_IN_FLIGHT = 5
"""The maximum number of requests in flight to one coordinator. Each uses a separate connection, because the coordinator
may delay a response until the markers of the previous transaction are written."""
PARTITIONS_MAX = 10_000
"""The maximum number of partitions in one request. Further partitions wait for the next request."""

Transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
Errors = dict[TopicPartition, ErrorCode]
"""The partitions that are not in the transaction, with the errors. All other partitions are in the transaction."""


class LocalCoordinator(Protocol):
    """The transaction coordinator of this broker."""

    def add_for_brokers(self, request: AddPartitionsToTxnRequest) -> Awaitable[AddPartitionsToTxnResponse]:
        """Verify or add the partitions in a request about one transaction. The response contains an error code for each
        partition. A KafkaError that is raised applies to all of them."""
        ...

    def verify_at_once(
        self, transactional_id: str, producer: ProducerIdentity, partitions: frozenset[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode] | None:
        """Return the verification's result for each partition: NONE if the transaction contains it, or an error.

        Returns None if this cannot be decided without waiting. The caller must then use ``add_for_brokers``.
        """
        ...


class _Requested(NamedTuple):
    transaction: Transaction
    errors: asyncio.Future[Errors]


class CoordinatorRequests:
    """The requests to the transaction coordinators about the partitions that this broker leads."""

    def __init__(
        self,
        broker_id: int,
        metadata: Metadata,
        peers: Peers,
        local: LocalCoordinator,
        tasks: TaskSet,
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._peers = peers
        self._local = local
        self._tasks = tasks
        self._waiting: defaultdict[int, list[_Requested]] = defaultdict(list)  # broker -> content of its next request
        self._free: defaultdict[int, list[int]] = defaultdict(lambda: list(range(REQUESTS_IN_FLIGHT)))
        # broker -> the numbers of its free connections

    async def ask(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Iterable[TopicPartition], *, adds: bool
    ) -> Errors:
        """Return the partitions that are not in the producer's open transaction, each with the coordinator's error.

        With ``adds``, the coordinator adds the partitions to the transaction, if the transaction's state allows it.
        Otherwise the coordinator only verifies that the transaction contains them.

        If the coordinator is unknown or unreachable, the error is COORDINATOR_NOT_AVAILABLE or NETWORK_EXCEPTION for
        each partition.
        """
        transaction = Transaction(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            verify_only=not adds,
            topics=_by_topic(partitions),
        )
        coordinator = self._coordinator_of(transactional_id)
        if coordinator == NO_LEADER:
            return _all_fail(transaction, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if coordinator == self._broker_id:
            return await self._ask_here(transaction)
        requested = _Requested(transaction, asyncio.get_running_loop().create_future())
        self._waiting[coordinator].append(requested)
        self._send_next(coordinator)
        return await requested.errors

    def verify_at_once(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
    ) -> Errors | None:
        """Verify like ``ask`` without ``adds``, but without waiting. Returns None if another broker is the coordinator,
        or if the coordinator cannot decide without waiting."""
        if self._coordinator_of(transactional_id) != self._broker_id:
            return None
        producer = ProducerIdentity(producer_id, epoch)
        outcome = self._local.verify_at_once(transactional_id, producer, frozenset(partitions))
        if outcome is None:
            return None
        return {place: code for place, code in outcome.items() if code is not ErrorCode.NONE}

    def _coordinator_of(self, transactional_id: str) -> int:
        image = self._metadata.image
        topic = image.topics.get(TRANSACTIONS_TOPIC)
        if topic is None or not topic.partitions:
            return NO_LEADER
        return topic.partitions[partition_of(transactional_id, len(topic.partitions))].leader

    async def _ask_here(self, transaction: Transaction) -> Errors:
        try:
            response = await self._local.add_for_brokers(AddPartitionsToTxnRequest(transactions=[transaction]))
        except KafkaError as error:
            return _all_fail(transaction, error.code)
        return _errors_of(transaction, response)

    def _send_next(self, broker: int) -> None:
        """Send the next request to a coordinator, unless too many are in flight or nothing is waiting."""
        if self._waiting[broker] and self._free[broker]:
            requested, self._waiting[broker] = _next_request(self._waiting[broker])
            connection = self._free[broker].pop()
            self._tasks.start(self._send(broker, connection, requested), name=f"add partitions at {broker}")

    async def _send(self, broker: int, connection: int, requested: list[_Requested]) -> None:
        response = None
        try:
            response = await self._response(broker, connection, requested)
        finally:
            for each in requested:
                errors = (
                    _all_fail(each.transaction, ErrorCode.NETWORK_EXCEPTION)
                    if response is None
                    else _errors_of(each.transaction, response)
                )
                if not each.errors.done():  # else the client has disconnected
                    each.errors.set_result(errors)
            self._free[broker].append(connection)
            self._send_next(broker)

    async def _response(
        self, broker: int, connection: int, requested: list[_Requested]
    ) -> AddPartitionsToTxnResponse | None:
        """Return the coordinator's response; None if the coordinator is unreachable."""
        request = AddPartitionsToTxnRequest(transactions=[each.transaction for each in requested])
        try:
            response: AddPartitionsToTxnResponse = await self._peers.ask(
                broker, request, version=BROKERS_VERSION, purpose=f"{PURPOSE}-{connection}"
            )
        except KafkaError as error:
            facts = {"broker": broker, "error": error.code.name}
            _log.warning("a transaction coordinator is unreachable", extra=facts)
            return None
        return response


def _next_request(waiting: list[_Requested]) -> tuple[list[_Requested], list[_Requested]]:
    """Split ``waiting`` into the next request and the rest. A request contains a transactional id only once."""
    taken: list[_Requested] = []
    left: list[_Requested] = []
    ids: set[str] = set()
    room = PARTITIONS_MAX
    for each in waiting:
        if each.transaction.transactional_id in ids or (taken and room <= 0):
            left.append(each)
            continue
        ids.add(each.transaction.transactional_id)
        taken.append(each)
        room -= sum(len(topic.partitions) for topic in each.transaction.topics)
    return taken, left


def _by_topic(partitions: Iterable[TopicPartition]) -> list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]:
    topics: dict[str, list[int]] = {}
    for name, index in partitions:
        topics.setdefault(name, []).append(index)
    return [
        AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=indexes)
        for name, indexes in topics.items()
    ]


def _all_fail(transaction: Transaction, code: ErrorCode) -> Errors:
    return {(topic.name, index): code for topic in transaction.topics for index in topic.partitions}


def _errors_of(transaction: Transaction, response: AddPartitionsToTxnResponse) -> Errors:
    """Return the errors of one transaction. A partition that the response does not name gets UNKNOWN_SERVER_ERROR."""
    if response.error_code:
        code = ErrorCode(response.error_code)
        if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:  # this broker's fault, not the client's
            code = ErrorCode.INVALID_TXN_STATE
        return _all_fail(transaction, code)
    errors = _all_fail(transaction, ErrorCode.UNKNOWN_SERVER_ERROR)
    for result in response.results_by_transaction:
        if result.transactional_id != transaction.transactional_id:
            continue
        for topic in result.topic_results:
            for partition in topic.results_by_partition:
                place = (topic.name, partition.partition_index)
                code = ErrorCode(partition.partition_error_code)
                if code is ErrorCode.NONE:
                    errors.pop(place, None)
                else:
                    errors[place] = code
    return errors
