"""The Produce API: validates and appends records, and responds when enough replicas have them.

* A partition that a request names twice is rejected, because the order of its batches would be unclear.
* Each partition succeeds or fails independently. Batches are validated, and converted if necessary, before the append.
* With ``acks=0`` there is no response, and an error closes the connection, as in Kafka. With ``acks=1`` the response is
  sent after the append. With ``acks=-1`` it is sent when the ISR has the records: immediately if this broker is the
  only member of the ISR.
* Batches that an idempotent producer sent after a rejected batch are rejected, too (``api.refused_batches``).
* The first batch of a transaction in a partition is verified with the transaction coordinator (``api.transactional``).
* Records that take a long time to decompress or convert are prepared in a thread. A request for many partitions is
  appended in several turns of the event loop. Meanwhile, and during verification, the request is work in progress: no
  later request of the connection is appended before it. A request is dropped if its client disconnects while it waits
  for a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import Any

from parley.broker.api.delayed_produce import DelayedProduce, Waiting
from parley.broker.api.leader_errors import (
    MOVED,
    MayBeSuperseded,
    current_leader,
    endpoints_of,
    never_superseded,
    withheld,
)
from parley.broker.api.produce_preparation import (
    LEGACY_ON_LOOP_BYTES,
    OFF_LOOP_BYTES,
    PreparingThreads,
    may_be_costly,
    prepare_records,
    records_of,
    rules_and_bounds,
    rules_of,
)
from parley.broker.api.refused_batches import Refusals
from parley.broker.api.requested_names import more_than_once, named_twice
from parley.broker.api.transactional.producing import ProducerTransactions, Unverified
from parley.broker.api.transactional.verifications import Verification
from parley.broker.logging.unexpected_errors import FailureLog
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.topic_names import INTERNAL_TOPICS
from parley.broker.network.request_context import Disconnect, Handler, RequestContext
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.partition import Partition
from parley.broker.runtime.purgatory import Delayed, Purgatory
from parley.broker.runtime.threads import LOOP_THREADS, Threads
from parley.broker.runtime.turns import next_turn
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.produce import ProduceRequest, ProduceResponse
from parley.protocol.records.batch_header import is_compressed, is_legacy
from parley.protocol.records.errors import DecompressedTooLarge
from parley.protocol.records.produce_validation import Prepared, RecordErrors
from parley.protocol.schema import constructor
from parley.storage.log import Log
from parley.storage.resource_exhaustion import reserve_for

_log = logging.getLogger(__name__)

TURN_S = 0.01
"""How long, in seconds, one request may prepare or append records on the event loop before other clients are served."""
ALL_REPLICAS = -1
_KNOWN_ACKS = (1, ALL_REPLICAS, 0)
_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
_INVALID = (
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
)
LEADERS_SINCE = 10
"""The first version of Produce whose responses name the current leaders (KIP-951)."""
ADMIN_CLIENT = "__admin_client"
"""The only client id that may write to internal topics, as in Kafka."""

_Data = ProduceRequest.PartitionProduceData
_Outcome = ProduceResponse.PartitionProduceResponse
_NO_ERRORS: list[ProduceResponse.BatchIndexAndErrorMessage] = []

MaybeResponse = ProduceResponse | None
"""A response, or None for a request with ``acks=0``."""
_Pending = MaybeResponse | Delayed[ProduceResponse] | Coroutine[Any, Any, MaybeResponse | Delayed[ProduceResponse]]
"""A response, a future of a response that waits for replicas, or a coroutine that returns either of them."""
Preparations = dict[int, Prepared | Exception]
"""id() of a partition's data -> its prepared records, or the error of the preparation."""
Verified = dict[int, Verification]
"""id() of a partition's data -> the verification of its batch, which may begin a transaction."""


class _Constructors:
    """The constructors of a response and its parts. They are made for the first request, because making them would
    delay a broker's startup by half a millisecond."""

    __slots__ = ("outcome", "response", "topic")

    def __init__(self) -> None:
        self.response = constructor(ProduceResponse)
        self.topic = constructor(ProduceResponse.TopicProduceResponse)
        self.outcome = constructor(_Outcome)


class _Appends:
    """The state of one request's appends: the settings that all its partitions share, and what the response must wait
    for."""

    __slots__ = ("acks", "new", "now_ms", "preparations", "to_flush", "transactional_id", "verified", "waiting")

    def __init__(
        self,
        new: _Constructors,
        now_ms: int,
        acks: int,
        transactional_id: str | None,
        preparations: Preparations,
        verified: Verified,
    ) -> None:
        self.new = new
        self.now_ms = now_ms
        self.acks = acks
        self.transactional_id = transactional_id
        self.preparations = preparations
        self.verified = verified
        self.waiting: Waiting = {}
        self.to_flush: list[tuple[Log, _Outcome]] = []

    def prepared(self, data: _Data) -> Prepared | None:
        """Return the records if they have already been prepared, else None. Raises the error of the preparation."""
        made = self.preparations.get(id(data))
        if isinstance(made, Exception):
            raise made
        return made


class ProduceApi:
    """Handler of Produce: appends the records that clients send.

    The methods call each other in this order. Those on the right wait, and are called only if that is necessary::

        produce            a request arrives   _verify_and_produce   for the transaction coordinator
        _produce           prepares records    _produce_costly       for a thread that prepares records
        _append_all        appends, in turns   _take_other_turns     for other clients
        _finish                                _respond_flushed      for a thread that flushes logs
        _respond           builds a response   DelayedProduce        for the replicas, with acks=-1
    """

    def __init__(
        self,
        partitions: HostedPartitions,
        metadata: Metadata,
        purgatory: Purgatory,
        transactions: ProducerTransactions,
        *,
        wall_ms: Callable[[], int],
        monotonic: Callable[[], float],
        threads: Threads = LOOP_THREADS,
        may_be_superseded: MayBeSuperseded = never_superseded,
    ) -> None:
        self._partitions = partitions
        self._metadata = metadata
        self._purgatory = purgatory
        self._transactions = transactions
        self._wall_ms = wall_ms
        self._monotonic = monotonic
        self._threads = threads
        self._preparing = PreparingThreads(threads)
        self._may_be_superseded = may_be_superseded
        self._failures = FailureLog(_log)
        self._refusals = Refusals()
        self._new: _Constructors | None = None

    def routes(self) -> dict[int, Handler]:
        """Return the handlers by API key."""
        return {ProduceRequest.API_KEY: self.produce}

    def produce(self, context: RequestContext, request: ProduceRequest) -> _Pending:
        """Append the records of every partition, and respond as ``acks`` requires.

        Errors are in the response. With ``acks=0``, returns None, or raises Disconnect after an error.
        """
        preparations = _named_twice(request)
        if request.transactional_id is not None:
            try:
                unverified = self._transactions.unverified(
                    self._led(context, request, preparations), context.api_version
                )
            except KafkaError as error:
                everything = (data for topic in request.topic_data for data in topic.partition_data)
                preparations = {id(data): KafkaError(error.code, error.message) for data in everything}
            else:
                if unverified is not None:
                    return self._verify_and_produce(context, request, preparations, unverified)
        return self._produce(context, request, preparations, {})

    def _led(
        self, context: RequestContext, request: ProduceRequest, preparations: Preparations
    ) -> Iterator[tuple[_Data, Partition]]:
        """Yield the data of each partition that this broker leads, with the partition. Data with an error in
        ``preparations`` is left out."""
        for topic in request.topic_data:
            for data in topic.partition_data:
                try:
                    partition = self._partitions.find(self._topic_name(context, topic), data.index)
                    if partition.is_leader and partition.is_open and id(data) not in preparations:
                        yield data, partition
                except KafkaError:
                    continue  # the append reports the same error

    def _verify_and_produce(
        self, context: RequestContext, request: ProduceRequest, preparations: Preparations, unverified: Unverified
    ) -> _Pending:
        """Have the transaction coordinator verify the batches that may begin a transaction, then append everything."""
        transactional_id = request.transactional_id or ""
        outcomes = self._transactions.verify_at_once(transactional_id, unverified, context.api_version)
        if outcomes is None:
            return self._produce_verified(context, request, preparations, unverified)
        return self._produce(context, request, preparations, _verified(outcomes, preparations))

    async def _produce_verified(
        self, context: RequestContext, request: ProduceRequest, preparations: Preparations, unverified: Unverified
    ) -> MaybeResponse | Delayed[ProduceResponse]:
        """Wait for the verification, then append everything."""
        transactional_id = request.transactional_id or ""
        outcomes = await self._transactions.verify(transactional_id, unverified, context.api_version)
        return await _awaited(self._produce(context, request, preparations, _verified(outcomes, preparations)))

    def _produce(
        self, context: RequestContext, request: ProduceRequest, preparations: Preparations, verified: Verified
    ) -> _Pending:
        """Prepare and append every partition's records."""
        topics = request.topic_data
        large = [(topic, data) for topic in topics for data in topic.partition_data if may_be_costly(data.records)]
        if large:
            turn_ends = self._monotonic() + TURN_S
            costly = {
                id(data)
                for topic, data in large
                if id(data) not in preparations
                and not self._prepare_on_loop(context, topic, data, preparations, turn_ends)
            }
            if costly:
                return self._produce_costly(context, request, preparations, verified, costly)
        return self._append_all(context, request, preparations, verified)

    def _prepare_on_loop(
        self,
        context: RequestContext,
        topic: ProduceRequest.TopicProduceData,
        data: _Data,
        preparations: Preparations,
        turn_ends: float,
    ) -> bool:
        """Prepare the records on the event loop if that is quick. Returns False if they must be prepared in a thread.

        Adds the prepared records, or the error, to ``preparations``. Large records that need only validation are left
        to the append. After ``turn_ends`` (monotonic seconds) all other records go to a thread, because the request
        names many partitions.
        """
        records = records_of(data)
        try:
            partition = self._partitions.find(self._topic_name(context, topic), data.index)
            _, rules, bounded = rules_and_bounds(partition)
            size, is_packed = len(records or b""), is_compressed(records)
            if is_legacy(records) and (is_packed or size >= LEGACY_ON_LOOP_BYTES):
                return False
            if size >= OFF_LOOP_BYTES:
                return rules.compression is None and not is_packed
            if self._monotonic() > turn_ends:
                return False
            preparations[id(data)] = prepare_records(records, bounded, self._wall_ms(), context.api_version)
        except DecompressedTooLarge:
            return False
        except Exception as error:
            preparations[id(data)] = error
        return True

    async def _produce_costly(
        self,
        context: RequestContext,
        request: ProduceRequest,
        preparations: Preparations,
        verified: Verified,
        costly: set[int],
    ) -> MaybeResponse | Delayed[ProduceResponse]:
        """Prepare the costly records in a thread, then append everything."""
        may_have_left = request.acks == 0  # such a client may disconnect as soon as it has sent its records
        for topic in request.topic_data:
            for data in topic.partition_data:
                if id(data) not in costly:
                    continue
                try:
                    partition = self._partitions.find(self._topic_name(context, topic), data.index)
                    prepare = partial(self._prepare, context, partition, data)
                    preparations[id(data)] = await self._preparing.run(
                        context.client, prepare, may_have_left=may_have_left
                    )
                except Disconnect:
                    raise
                except Exception as error:
                    preparations[id(data)] = error
        return await _awaited(self._append_all(context, request, preparations, verified))

    def _prepare(self, context: RequestContext, partition: Partition, data: _Data) -> Prepared:
        return prepare_records(records_of(data), rules_of(partition), self._wall_ms(), context.api_version)

    def _append_all(
        self, context: RequestContext, request: ProduceRequest, preparations: Preparations, verified: Verified
    ) -> _Pending:
        """Append the records in ``preparations``. Prepare and append the other records."""
        new = self._new = self._new or _Constructors()
        appends = _Appends(new, self._wall_ms(), request.acks, request.transactional_id, preparations, verified)
        if _is_single(request):  # one partition is one step: there is nothing to divide into turns
            topic = request.topic_data[0]
            outcomes = [self._append_partition(context, appends, topic, topic.partition_data[0])]
            named = new.topic(name=topic.name, topic_id=topic.topic_id, partition_responses=outcomes)
            return self._finish(context, request, new.response(responses=[named]), appends)
        response = new.response(responses=[])
        steps = self._steps(context, request, appends, response)
        if self._take_turn(steps):
            return self._finish(context, request, response, appends)
        return self._take_other_turns(context, request, response, appends, steps)

    def _steps(
        self, context: RequestContext, request: ProduceRequest, appends: _Appends, response: ProduceResponse
    ) -> Iterator[None]:
        """Append the records of one partition at each step."""
        for topic in request.topic_data:
            outcomes: list[_Outcome] = []
            named = appends.new.topic(name=topic.name, topic_id=topic.topic_id, partition_responses=outcomes)
            response.responses.append(named)
            for data in topic.partition_data:
                outcomes.append(self._append_partition(context, appends, topic, data))
                yield

    def _take_turn(self, steps: Iterator[None]) -> bool:
        """Append records for one turn of the event loop. Returns False if steps may be left."""
        turn_ends = self._monotonic() + TURN_S
        for _ in steps:  # noqa: SIM110 (``any`` takes another generator)
            if self._monotonic() > turn_ends:
                return False
        return True

    async def _take_other_turns(
        self,
        context: RequestContext,
        request: ProduceRequest,
        response: ProduceResponse,
        appends: _Appends,
        steps: Iterator[None],
    ) -> MaybeResponse | Delayed[ProduceResponse]:
        """Append the rest of a request that needs several turns. Other clients are served between the turns."""
        is_done = False
        while not is_done:
            await next_turn()
            is_done = self._take_turn(steps)
        return await _awaited(self._finish(context, request, response, appends))

    def _finish(
        self, context: RequestContext, request: ProduceRequest, response: ProduceResponse, appends: _Appends
    ) -> _Pending:
        if appends.to_flush:
            return self._respond_flushed(context, request, response, appends)
        return self._respond(context, request, response, appends.waiting)

    async def _respond_flushed(
        self, context: RequestContext, request: ProduceRequest, response: ProduceResponse, appends: _Appends
    ) -> MaybeResponse | Delayed[ProduceResponse]:
        """Flush the logs whose ``flush.messages`` requires it, then respond."""
        loop = asyncio.get_running_loop()
        for log, outcome in appends.to_flush:
            try:
                await loop.run_in_executor(self._threads.upkeep, log.flush)
            except KafkaError as error:
                outcome.error_code, outcome.error_message = error.code, error.message or error.code.message
                outcome.base_offset = -1
        return self._respond(context, request, response, appends.waiting)

    def _respond(
        self, context: RequestContext, request: ProduceRequest, response: ProduceResponse, waiting: Waiting
    ) -> MaybeResponse | Delayed[ProduceResponse]:
        if waiting:
            delayed = DelayedProduce(response, waiting, partial(self._name_leaders, context))
            self._purgatory.watch(delayed, waiting, max(0, request.timeout_ms) / 1000)
            delayed.check_all()
            return delayed
        if request.acks == 0:
            _disconnect_on_error(response)
            return None
        self._name_leaders(context, response)
        return response

    def _append_partition(
        self, context: RequestContext, appends: _Appends, topic: ProduceRequest.TopicProduceData, data: _Data
    ) -> _Outcome:
        """Append the records of one partition, and record in ``appends`` what the response must wait for."""
        partition = None
        try:
            if appends.acks not in _KNOWN_ACKS:
                raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
            partition = self._partitions.find(self._topic_name(context, topic), data.index)
            prepared = appends.prepared(data)
            if prepared is None:
                prepared = prepare_records(records_of(data), rules_of(partition), appends.now_ms, context.api_version)
            header = prepared.header
            if self._refusals and partition.is_leader:
                producers = partition.log.producers
                self._refusals.check(topic.name or topic.topic_id, data.index, header, producers)
            is_transactional = header.is_transactional
            if is_transactional and partition.is_leader:
                verification = appends.verified.get(id(data))
                self._transactions.check(appends.transactional_id, partition, header, verification)
            info = partition.append(prepared.batches, acks=appends.acks, now_ms=appends.now_ms, header=header)
            if is_transactional:
                self._transactions.appended(partition, header)
            log = partition.log
        except Exception as error:
            return self._failed(context, partition, topic, data, error)
        counters = partition.counters
        counters.produce_requests += 1
        if not info.duplicate:
            counters.bytes_in += info.size_bytes
            counters.records_in += info.record_count
            if prepared.conversions:
                counters.produce_conversions += 1
        outcome = appends.new.outcome(
            index=data.index,
            base_offset=info.first_offset,
            log_append_time_ms=info.log_append_time_ms,
            log_start_offset=info.log_start_offset,
            record_errors=_NO_ERRORS,
        )
        if partition.must_flush(appends.now_ms):
            appends.to_flush.append((log, outcome))
        if appends.acks == ALL_REPLICAS and log.high_watermark <= info.last_offset:
            appends.waiting[partition] = (info.last_offset, outcome)
        return outcome

    def _topic_name(self, context: RequestContext, topic: ProduceRequest.TopicProduceData) -> str:
        """Return the name of the topic.

        Raises KafkaError: UNKNOWN_TOPIC_ID for an unknown id, or INVALID_TOPIC_EXCEPTION for an internal topic.
        """
        name = topic.name
        if context.api_version >= 13:
            found = self._metadata.image.topic_names.get(topic.topic_id)
            if found is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            name = found
        if name in INTERNAL_TOPICS and context.client_id != ADMIN_CLIENT:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Only brokers may write to {name}.")
        return name

    def _failed(
        self,
        context: RequestContext,
        partition: Partition | None,
        topic: ProduceRequest.TopicProduceData,
        data: _Data,
        error: Exception,
    ) -> _Outcome:
        """Count a failed append, and return the outcome that reports it."""
        if not isinstance(error, KafkaError):
            facts = {"topic": topic.name or topic.topic_id, "partition": data.index}
            self._failures.report("Produce failed", error, context.received_at, **facts)
            is_shortage = reserve_for(error) is not None  # producers retry KAFKA_STORAGE_ERROR only
            error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR if is_shortage else ErrorCode.UNKNOWN_SERVER_ERROR)
        if error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._may_be_superseded():
            error = withheld(error)
        place = (topic.name or topic.topic_id, data.index)
        self._refusals.note(*place, records_of(data), error.code, host=context.client_host)
        if partition is not None:
            counters = partition.counters
            counters.produce_requests += 1
            counters.failed_produce_requests += 1
            if error.code in _TOO_LARGE:
                counters.bytes_rejected += len(records_of(data) or b"")
            elif error.code in _INVALID:
                counters.invalid_records += 1
        outcome = _Outcome(
            index=data.index, error_code=error.code, base_offset=-1, error_message=error.message or error.code.message
        )
        if isinstance(error, RecordErrors):
            outcome.record_errors = [
                ProduceResponse.BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
                for index, message in error.record_errors
            ]
        return outcome

    def _name_leaders(self, context: RequestContext, response: ProduceResponse) -> None:
        """Add the current leader, and its address, of each partition that this broker does not lead (KIP-951)."""
        if context.api_version < LEADERS_SINCE:
            return
        image, leaders = self._metadata.image, []
        for topic in response.responses:
            for outcome in topic.partition_responses:
                if outcome.error_code in MOVED:
                    name = topic.name or image.topic_names.get(topic.topic_id, "")
                    leader, epoch = current_leader(image, name, outcome.index)
                    outcome.current_leader = ProduceResponse.LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
                    leaders.append(leader)
        if leaders:
            response.node_endpoints = endpoints_of(image, leaders, context.listener, ProduceResponse.NodeEndpoint)


async def _awaited(response: _Pending) -> MaybeResponse | Delayed[ProduceResponse]:
    """Await a coroutine. Any other response is returned as it is: waiting for replicas needs no task."""
    return await response if asyncio.iscoroutine(response) else response


def _disconnect_on_error(response: ProduceResponse) -> None:
    for topic in response.responses:
        for outcome in topic.partition_responses:
            if outcome.error_code:
                name = ErrorCode(outcome.error_code).name
                raise Disconnect(f"{name} for {topic.name or topic.topic_id}-{outcome.index}, produced with acks=0")


def _verified(outcomes: Mapping[int, Verification | KafkaError], preparations: Preparations) -> Verified:
    """Return the verifications by id() of their data. Errors are added to ``preparations``."""
    verified: Verified = {}
    for key, outcome in outcomes.items():
        if isinstance(outcome, KafkaError):
            preparations[key] = outcome
        else:
            verified[key] = outcome
    return verified


def _is_single(request: ProduceRequest) -> bool:
    """Return True if the request names one partition."""
    topics = request.topic_data
    return len(topics) == 1 and len(topics[0].partition_data) == 1


def _named_twice(request: ProduceRequest) -> Preparations:
    """Return an error for each partition that the request names more than once, by id() of its data."""
    if _is_single(request):
        return {}
    everything = [((t.name, t.topic_id, data.index), data) for t in request.topic_data for data in t.partition_data]
    twice = named_twice(partition for partition, _ in everything)
    return {id(data): more_than_once("partition") for partition, data in everything if partition in twice}
