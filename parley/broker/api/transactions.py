"""Requests of transactional producers and tools to the transaction coordinator (KIP-98, KIP-664, KIP-890).

The handlers translate between messages and ``parley.broker.coordinators.transactions``. ``parley.broker.api.producers``
handles InitProducerId, and ``parley.broker.api.transactional`` the markers and offsets of transactions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterable, Iterator, Mapping
from dataclasses import field
from functools import partial
from typing import Any, Final

from parley.broker.api.find_coordinator import InternalTopicCreation
from parley.broker.api.requested_names import in_slices
from parley.broker.coordinators.decision import ProducerIdentity
from parley.broker.coordinators.internal_topic import partition_of
from parley.broker.coordinators.re2_patterns import compiled
from parley.broker.coordinators.transactions.coordinator import TransactionCoordinator
from parley.broker.coordinators.transactions.listing import Filter
from parley.broker.coordinators.transactions.transaction import (
    EPOCH_PER_TRANSACTION,
    FIRST_VERSION,
    Transaction,
    TransactionState,
    by_topic,
)
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.topic_names import INTERNAL_TOPICS, OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.runtime.first_step import at_once
from parley.broker.runtime.steps import each_of, in_turns
from parley.broker.runtime.threads import LOOP_THREADS, Threads
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from parley.protocol.sentinels import NO_EPOCH, NO_PRODUCER_ID
from parley.protocol.topic_partition import TopicPartition

KNOWS_FENCED: Final = 2
"""The first version of AddPartitionsToTxn, AddOffsetsToTxn and EndTxn whose senders understand PRODUCER_FENCED
(KIP-588)."""

BATCHED: Final = 4
"""The first version of AddPartitionsToTxn that can contain several transactions. Only brokers send it (KIP-890)."""

BROKERS_VERSION: Final = 5
"""The version of AddPartitionsToTxn that brokers send. Its senders understand TRANSACTION_ABORTABLE."""

BUMPS_EPOCH: Final = 5
"""The first version of EndTxn whose senders use a new epoch after each transaction (KIP-890, part 2)."""


_WRITTEN_BY_COORDINATORS = frozenset({TRANSACTIONS_TOPIC})
"""Topics that no transaction can contain. Clients may not add any internal topic; AddOffsetsToTxn adds the offsets
topic."""

PARTITIONS_PER_TURN: Final = 500
"""The number of partitions of a request that are handled before the event loop serves other clients. They take about 5
ms."""

_TopicResult = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
_PartitionResult = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
_Outcome = Callable[[TopicPartition], ErrorCode]
"""Returns the result for a partition of a transaction."""
_Pending = _Outcome | Awaitable[Mapping[TopicPartition, ErrorCode]] | Awaitable[None] | None
"""The outcome of a submitted transaction, or an awaitable of it. None means that all partitions were added."""


@dataclass(slots=True)
class _Requested:
    """A transaction in a request to add or verify partitions."""

    transaction: AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
    codes: dict[TopicPartition, ErrorCode] = field(default_factory=dict)
    """The partitions without duplicates. A partition that no transaction can contain has an error."""
    outcome: _Outcome = lambda partition: ErrorCode.NONE


def code_for(error: KafkaError, version: int, knows_fenced: int = KNOWS_FENCED) -> ErrorCode:
    """Return the error code for a response. Clients older than KIP-588 know only INVALID_PRODUCER_EPOCH."""
    if error.code is ErrorCode.PRODUCER_FENCED and version < knows_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error.code


class TransactionsApi:
    """Handlers of AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, DescribeTransactions and ListTransactions."""

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        metadata: Metadata,
        creation: InternalTopicCreation,
        threads: Threads = LOOP_THREADS,
    ) -> None:
        self._coordinator = coordinator
        self._threads = threads
        self._metadata = metadata
        self._creation = creation

    def routes(self) -> dict[int, Handler]:
        return {
            AddPartitionsToTxnRequest.API_KEY: self.add_partitions,
            AddOffsetsToTxnRequest.API_KEY: self.add_offsets,
            EndTxnRequest.API_KEY: self.end_transaction,
            DescribeTransactionsRequest.API_KEY: self.describe_transactions,
            ListTransactionsRequest.API_KEY: self.list_transactions,
        }

    # --- The partitions of a transaction ---

    def add_partitions(
        self, context: RequestContext, request: AddPartitionsToTxnRequest
    ) -> AddPartitionsToTxnResponse | Coroutine[Any, Any, AddPartitionsToTxnResponse]:
        """Add partitions to a transaction, or verify for other brokers that they were added. The response contains an
        error code for each partition."""
        version = context.api_version
        # A request about several transactions does not wait for the markers of one: that would delay the other
        # transactions.
        is_single = version < BATCHED or len(request.transactions) == 1
        return at_once(self._add_partitions(version, request, waits=is_single))

    async def add_for_brokers(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        """Handle a request about one transaction that this broker, as a partition leader, sends to itself."""
        return await self._add_partitions(BROKERS_VERSION, request, waits=True)

    def verify_at_once(
        self, transactional_id: str, producer: ProducerIdentity, partitions: frozenset[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode] | None:
        """Verify partitions for this broker, as their leader, without waiting.

        Returns the result for each partition: NONE if the transaction contains it, or an error. Returns None if the
        verification would have to wait, or if the transaction cannot contain one of the partitions.
        """
        image = self._metadata.image
        if any(_obstacle(image, _WRITTEN_BY_COORDINATORS, each) for each in partitions):
            return None
        try:
            return self._coordinator.verify_at_once(transactional_id, producer, partitions)
        except KafkaError as error:
            return dict.fromkeys(partitions, error.code)

    async def _add_partitions(
        self, version: int, request: AddPartitionsToTxnRequest, *, waits: bool
    ) -> AddPartitionsToTxnResponse:
        # As with topics, a transactional id that is named several times gets one result.
        by_id = {each.transactional_id: each for each in request.transactions}
        requested = [_Requested(each) for each in (by_id.values() if version >= BATCHED else [_single(request)])]
        refused = INTERNAL_TOPICS if version < BATCHED else _WRITTEN_BY_COORDINATORS
        image = self._metadata.image

        def look_up(named: tuple[_Requested, TopicPartition]) -> None:
            transaction, partition = named
            transaction.codes[partition] = _obstacle(image, refused, partition)

        await in_turns(each_of(_partitions(requested), PARTITIONS_PER_TURN, look_up))
        pending = await in_slices(partial(self._add_or_verify, version, waits), requested)
        for each, submitted in zip(requested, pending, strict=True):
            each.outcome = await _outcome(version, submitted)
        results = await _results(requested)
        if version < BATCHED:
            return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results[0])
        return AddPartitionsToTxnResponse(
            results_by_transaction=[
                AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
                    transactional_id=each.transaction.transactional_id, topic_results=topics
                )
                for each, topics in zip(requested, results, strict=True)
            ]
        )

    def _add_or_verify(self, version: int, waits: bool, requested: _Requested) -> _Pending:
        """Submit one transaction of a request. If ``waits``, the markers of the previous transaction must be written
        first."""
        codes, transaction = requested.codes, requested.transaction
        if any(codes.values()):
            return lambda partition: codes[partition] or ErrorCode.OPERATION_NOT_ATTEMPTED
        partitions = frozenset(codes)
        name = transaction.transactional_id
        producer = ProducerIdentity(transaction.producer_id, transaction.producer_epoch)
        try:
            if transaction.verify_only:
                return self._coordinator.verify(name, producer, partitions)
            client_version = EPOCH_PER_TRANSACTION if version >= BATCHED else FIRST_VERSION
            add = self._coordinator.add_when_ended if waits else self._coordinator.add
            # All transactions of a request are decided before it waits for the replicas of the first one.
            added: Awaitable[None] | None = at_once(add(name, producer, partitions, client_version))
            return added
        except KafkaError as error:
            return _same_for_all(code_for(error, version))

    def add_offsets(
        self, context: RequestContext, request: AddOffsetsToTxnRequest
    ) -> AddOffsetsToTxnResponse | Coroutine[Any, Any, AddOffsetsToTxnResponse]:
        """Add the partition that stores a group's offsets to a transaction. Errors are in the response.

        If the offsets topic does not exist, it is created: Kafka's producer looks up the group's coordinator only
        later.
        """
        adding = self._add_offsets(context, request)
        has_topic = OFFSETS_TOPIC in self._metadata.image.topics
        return at_once(adding) if has_topic else adding  # creating the topic needs a task

    async def _add_offsets(self, context: RequestContext, request: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse:
        try:
            if OFFSETS_TOPIC not in self._metadata.image.topics:
                await self._creation.create_internal_topic(OFFSETS_TOPIC)
            topic = self._metadata.image.topics.get(OFFSETS_TOPIC)
            if topic is None:
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            partition = (OFFSETS_TOPIC, partition_of(request.group_id, len(topic.partitions)))
            producer = ProducerIdentity(request.producer_id, request.producer_epoch)
            await self._coordinator.add_when_ended(
                request.transactional_id, producer, frozenset({partition}), FIRST_VERSION
            )
        except KafkaError as error:
            return AddOffsetsToTxnResponse(error_code=code_for(error, context.api_version))
        return AddOffsetsToTxnResponse()

    # --- The end of a transaction ---

    def end_transaction(
        self, context: RequestContext, request: EndTxnRequest
    ) -> EndTxnResponse | Coroutine[Any, Any, EndTxnResponse]:
        """Commit or abort a transaction. Responds when the outcome has been stored. From version 5 on, the response
        contains the producer id and the epoch for the next transaction."""
        return at_once(self._end_transaction(context, request))

    async def _end_transaction(self, context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
        version = EPOCH_PER_TRANSACTION if context.api_version >= BUMPS_EPOCH else FIRST_VERSION
        producer = ProducerIdentity(request.producer_id, request.producer_epoch)
        try:
            following = await self._coordinator.end(
                request.transactional_id, producer, version, committed=request.committed
            )
        except KafkaError as error:
            code = code_for(error, context.api_version)
            return EndTxnResponse(error_code=code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_EPOCH)
        return EndTxnResponse(producer_id=following.producer_id, producer_epoch=following.producer_epoch)

    # --- Administration ---

    async def describe_transactions(
        self, context: RequestContext, request: DescribeTransactionsRequest
    ) -> DescribeTransactionsResponse:
        """Return the state of transactional ids that this broker coordinates. Any other id gets an error code, for
        example TRANSACTIONAL_ID_NOT_FOUND."""
        requested = list(dict.fromkeys(request.transactional_ids))
        pending = await in_slices(self._submit_describe, requested)
        return DescribeTransactionsResponse(
            transaction_states=[await _described(*each) for each in zip(requested, pending, strict=True)]
        )

    def _submit_describe(self, transactional_id: str) -> asyncio.Future[Transaction] | KafkaError:
        try:
            return self._coordinator.describe(transactional_id)
        except KafkaError as error:
            return error

    async def list_transactions(
        self, context: RequestContext, request: ListTransactionsRequest
    ) -> ListTransactionsResponse:
        """List the transactional ids that this broker coordinates and that match the filters. The response also lists
        the unknown states in the filter. The error code is COORDINATOR_LOAD_IN_PROGRESS while a partition is being
        loaded."""
        names = {state.value: state for state in TransactionState}
        states = frozenset(names[each] for each in request.state_filters if each in names)
        filter = Filter(
            states if request.state_filters else None, frozenset(request.producer_id_filters), request.duration_filter
        )
        try:
            # As in Kafka, an empty pattern means no pattern.
            pattern = request.transactional_id_pattern
            regex = compiled(pattern, "TransactionalIdPattern") if pattern else None
            found = await self._coordinator.select(filter)
        except KafkaError as error:
            return ListTransactionsResponse(error_code=error.code, unknown_state_filters=[], transaction_states=[])
        if regex is not None:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._threads.messages, _matching, regex, found)
        return ListTransactionsResponse(
            unknown_state_filters=[each for each in dict.fromkeys(request.state_filters) if each not in names],
            transaction_states=await in_slices(_listed, found),
        )


def _partitions(requested: Iterable[_Requested]) -> Iterator[tuple[_Requested, TopicPartition]]:
    """Yield the partitions in a request, with their transactions."""
    for each in requested:
        for topic in each.transaction.topics:
            for index in topic.partitions:
                yield each, (topic.name, index)


def _obstacle(image: MetadataImage, refused: Container[str], partition: TopicPartition) -> ErrorCode:
    """Return the error if a partition is missing or belongs to a ``refused`` topic; NONE if it can be added."""
    if partition[0] in refused:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if image.partition(*partition) is None else ErrorCode.NONE


def _same_for_all(code: ErrorCode) -> _Outcome:
    return lambda partition: code


async def _outcome(version: int, pending: _Pending) -> _Outcome:
    """Return the outcome of a submitted transaction."""
    if callable(pending):
        return pending
    try:
        verified = None if pending is None else await pending
        return verified.__getitem__ if verified else _same_for_all(ErrorCode.NONE)
    except KafkaError as error:
        return _same_for_all(code_for(error, version))


async def _described(
    transactional_id: str, pending: asyncio.Future[Transaction] | KafkaError
) -> DescribeTransactionsResponse.TransactionState:
    try:
        if isinstance(pending, KafkaError):
            raise pending
        transaction = await pending
    except KafkaError as error:
        return _undescribed(transactional_id, error.code)
    return DescribeTransactionsResponse.TransactionState(
        transactional_id=transactional_id,
        transaction_state=transaction.state.value,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.started_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=[
            DescribeTransactionsResponse.TopicData(topic=topic, partitions=indexes)
            for topic, indexes in by_topic(transaction.partitions).items()
        ],
    )


def _single(request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction:
    return AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )


async def _results(requested: list[_Requested]) -> list[list[_TopicResult]]:
    """Return the results for the topics of each transaction, in the order of the request."""
    topics: list[dict[str, _TopicResult]] = [{} for _ in requested]

    def add(place: tuple[int, TopicPartition]) -> None:
        number, partition = place
        name, index = partition
        topic = topics[number].get(name)
        if topic is None:
            topic = topics[number][name] = _TopicResult(name=name, results_by_partition=[])
        code = requested[number].outcome(partition)
        topic.results_by_partition.append(_PartitionResult(partition_index=index, partition_error_code=code))

    places = ((number, partition) for number, each in enumerate(requested) for partition in each.codes)
    await in_turns(each_of(places, PARTITIONS_PER_TURN, add))
    return [list(each.values()) for each in topics]


def _matching(regex: Any, found: list[tuple[str, Transaction]]) -> list[tuple[str, Transaction]]:
    """Return the transactions whose whole id matches. The pattern comes from a client and may be slow: call it in a
    thread."""
    return [each for each in found if regex.fullmatch(each[0]) is not None]


def _listed(each: tuple[str, Transaction]) -> ListTransactionsResponse.TransactionState:
    transactional_id, transaction = each
    return ListTransactionsResponse.TransactionState(
        transactional_id=transactional_id,
        producer_id=transaction.producer_id,
        transaction_state=transaction.state.value,
    )


def _undescribed(transactional_id: str, code: ErrorCode) -> DescribeTransactionsResponse.TransactionState:
    """Return an error result, with zeros in the fields that Kafka does not set."""
    return DescribeTransactionsResponse.TransactionState(
        error_code=code,
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=0,
        producer_id=0,
        producer_epoch=0,
        topics=[],
    )
