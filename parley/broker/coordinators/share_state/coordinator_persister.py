"""The implementation of ``Persister``: calls the share coordinators, on this broker and on others.

The persister sends one request at a time to each broker, for each kind of request and group. The next request contains
the calls that arrived in the meantime, at most one for each share partition. Calls to this broker's own share
coordinator need no request.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from parley.broker.coordinators.internal_topic import partition_of
from parley.broker.coordinators.share_state.coordinator import ShareCoordinator
from parley.broker.coordinators.share_state.persister import (
    NO_CHECK,
    UNKNOWN_COUNT,
    ShareState,
    ShareStateSummary,
    StateBatch,
)
from parley.broker.coordinators.share_state.share_partition_key import SharePartitionKey
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.topic_names import SHARE_STATE_TOPIC
from parley.broker.metadata.types import NO_LEADER
from parley.broker.runtime.tasks import TaskSet
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.share_state import (
    DeleteShareGroupStateRequest,
    InitializeShareGroupStateRequest,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    WriteShareGroupStateRequest,
)
from parley.protocol.uuids import UUID

T = TypeVar("T")

RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 1.0
"""The first and the longest pause before a call is retried, in seconds. The pause doubles after each attempt."""

PATIENCE_S: Final = 10.0
"""How long a call is retried, in seconds. Clients wait longer than that."""

PARTITIONS_PER_REQUEST: Final = 1_000
"""The maximum number of share partitions in a request."""

_PASSING: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
"""The errors after which the coordinator is looked up again and the call is retried."""

Ask = Callable[[int, Any], Awaitable[Any]]
"""A function that sends a request to another broker, and returns the response. Raises KafkaError or OSError."""

CreateTopic = Callable[[str], Awaitable[None]]
"""A function that creates an internal topic if it does not exist. Raises KafkaError if the topic cannot be created."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """The classes of a kind of request, and of its structs for a topic and for a partition."""

    request: type[Any]
    topic: type[Any]
    partition: type[Any]


_INITIALIZE: Final = _Kind(
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateRequest.InitializeStateData,
    InitializeShareGroupStateRequest.PartitionData,
)
_READ: Final = _Kind(
    ReadShareGroupStateRequest, ReadShareGroupStateRequest.ReadStateData, ReadShareGroupStateRequest.PartitionData
)
_WRITE: Final = _Kind(
    WriteShareGroupStateRequest, WriteShareGroupStateRequest.WriteStateData, WriteShareGroupStateRequest.PartitionData
)
_DELETE: Final = _Kind(
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateRequest.DeleteStateData,
    DeleteShareGroupStateRequest.PartitionData,
)
_SUMMARIZE: Final = _Kind(
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryRequest.ReadStateSummaryData,
    ReadShareGroupStateSummaryRequest.PartitionData,
)


@dataclass(slots=True, eq=False)
class _Call:
    """A call that waits to be sent in a request."""

    key: SharePartitionKey
    data: Any
    result: asyncio.Future[Any]


_Line = tuple[int, type[Any], str]
"""Identifies calls that may share a request: the broker, the kind of request and the group."""


class CoordinatorPersister:
    """A client of the share coordinators, which store the state of share partitions. Implements ``Persister``."""

    def __init__(
        self,
        broker_id: int,
        metadata: Metadata,
        coordinator: ShareCoordinator,
        ask: Ask,
        create_topic: CreateTopic,
        tasks: TaskSet,
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._coordinator = coordinator
        self._ask = ask
        self._create_topic = create_topic
        self._tasks = tasks
        self._lines: dict[_Line, list[_Call]] = defaultdict(list)
        self._busy: set[_Line] = set()

    # --- Persister ---

    async def initialize(
        self,
        group_id: str,
        topic_id: UUID,
        partition: int,
        state_epoch: int,
        start_offset: int,
        leader_epoch: int = NO_CHECK,
    ) -> None:
        """Initialize the state of a share partition, as ``Persister.initialize`` describes."""
        key = SharePartitionKey(group_id, topic_id, partition)
        data = _INITIALIZE.partition(
            partition=partition, state_epoch=state_epoch, start_offset=start_offset, leader_epoch=leader_epoch
        )
        await self._call(
            key,
            _INITIALIZE,
            data,
            lambda: self._coordinator.initialize(key, state_epoch, start_offset, leader_epoch),
        )

    async def read(self, group_id: str, topic_id: UUID, partition: int, leader_epoch: int) -> ShareState:
        """Return the state of a share partition, and fence earlier leaders, as ``Persister.read`` describes. If another
        broker coordinates the share partition, the ``delivery_complete_count`` is ``UNKNOWN_COUNT``: the response does
        not contain it."""
        key = SharePartitionKey(group_id, topic_id, partition)
        data = _READ.partition(partition=partition, leader_epoch=leader_epoch)
        found = await self._call(key, _READ, data, lambda: self._coordinator.read(key, leader_epoch))
        if isinstance(found, ShareState):
            return found
        batches = [
            StateBatch(b.first_offset, b.last_offset, b.delivery_state, b.delivery_count) for b in found.state_batches
        ]
        return ShareState(found.state_epoch, found.start_offset, UNKNOWN_COUNT, tuple(batches))

    async def write(
        self,
        group_id: str,
        topic_id: UUID,
        partition: int,
        leader_epoch: int,
        state_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> None:
        """Store a change in the state of a share partition, as ``Persister.write`` describes."""
        key = SharePartitionKey(group_id, topic_id, partition)
        data = _WRITE.partition(
            partition=partition,
            state_epoch=state_epoch,
            leader_epoch=leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=delivery_complete_count,
            state_batches=[WriteShareGroupStateRequest.StateBatch(**each._asdict()) for each in batches],
        )
        await self._call(
            key,
            _WRITE,
            data,
            lambda: self._coordinator.write(
                key, leader_epoch, state_epoch, start_offset, delivery_complete_count, batches
            ),
        )

    async def delete(self, group_id: str, topic_id: UUID, partition: int, state_epoch: int) -> None:
        """Delete the state of a share partition, as ``Persister.delete`` describes."""
        key = SharePartitionKey(group_id, topic_id, partition)
        data = _DELETE.partition(partition=partition, state_epoch=state_epoch)
        await self._call(key, _DELETE, data, lambda: self._coordinator.delete(key, state_epoch))

    async def summary(self, group_id: str, topic_id: UUID, partition: int, leader_epoch: int) -> ShareStateSummary:
        """Return the state of a share partition, without its batches, as ``Persister.summary`` describes."""
        key = SharePartitionKey(group_id, topic_id, partition)
        data = _SUMMARIZE.partition(partition=partition, leader_epoch=leader_epoch)
        found = await self._call(key, _SUMMARIZE, data, lambda: self._coordinator.summarize(key))
        if isinstance(found, ShareStateSummary):
            return found
        return ShareStateSummary(
            found.state_epoch, found.start_offset, found.delivery_complete_count, found.leader_epoch
        )

    # --- Coordinators ---

    async def _call(self, key: SharePartitionKey, kind: _Kind, data: Any, locally: Callable[[], Awaitable[Any]]) -> Any:
        """Return the result of a call. Retries if the coordinator moves. Raises the KafkaError of the last attempt."""
        loop = asyncio.get_running_loop()
        deadline, pause_s = loop.time() + PATIENCE_S, RETRY_FIRST_S
        while True:
            try:
                broker = await self._coordinator_of(key)
                if broker == self._broker_id:
                    return await locally()
                call = _Call(key, data, loop.create_future())
                return await self._enqueue((broker, kind.request, key.group_id), kind, call)
            except KafkaError as error:
                if error.code not in _PASSING or loop.time() + pause_s >= deadline:
                    raise
            except OSError as error:
                if loop.time() + pause_s >= deadline:
                    raise KafkaError(ErrorCode.NETWORK_EXCEPTION, str(error)) from error
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    async def _coordinator_of(self, key: SharePartitionKey) -> int:
        """Return the id of the broker that coordinates a share partition, and create the topic if it does not exist.

        Raises COORDINATOR_NOT_AVAILABLE if the share partition has no coordinator now.
        """
        topic = self._metadata.image.topics.get(SHARE_STATE_TOPIC)
        if topic is None:
            await self._create_topic(SHARE_STATE_TOPIC)
            topic = self._metadata.image.topics.get(SHARE_STATE_TOPIC)
        leader = NO_LEADER
        if topic is not None:
            leader = topic.partitions[partition_of(key.text, len(topic.partitions))].leader
        if leader == NO_LEADER:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, "The share partition has no coordinator at the moment."
            )
        return leader

    # --- Requests ---

    def _enqueue(self, line: _Line, kind: _Kind, call: _Call) -> asyncio.Future[Any]:
        self._lines[line].append(call)
        if line not in self._busy:
            self._busy.add(line)
            self._tasks.start(self._drain(line, kind), name=f"share state at {line[0]}")
        return call.result

    async def _drain(self, line: _Line, kind: _Kind) -> None:
        """Send the calls of a line in one request after another, until no call is left."""
        try:
            await asyncio.sleep(0)  # let calls from the same turn of the event loop share the first request
            while self._lines[line]:
                await self._send(line, kind, self._taken(line))
        finally:
            self._busy.discard(line)
            for call in self._lines.pop(line, ()):
                _fail(call, KafkaError(ErrorCode.NETWORK_EXCEPTION, "The broker is stopping."))

    def _taken(self, line: _Line) -> list[_Call]:
        """Remove and return the calls for the next request, at most one for each share partition. The remaining calls
        keep their order."""
        taken: dict[SharePartitionKey, _Call] = {}
        left: list[_Call] = []
        for call in self._lines[line]:
            if call.key in taken or len(taken) >= PARTITIONS_PER_REQUEST:
                left.append(call)
            else:
                taken[call.key] = call
        self._lines[line] = left
        return list(taken.values())

    async def _send(self, line: _Line, kind: _Kind, calls: list[_Call]) -> None:
        broker, _, group_id = line
        by_topic: dict[UUID, list[Any]] = defaultdict(list)
        for call in calls:
            by_topic[call.key.topic_id].append(call.data)
        topics = [kind.topic(topic_id=topic_id, partitions=each) for topic_id, each in by_topic.items()]
        try:
            response = await self._ask(broker, kind.request(group_id=group_id, topics=topics))
        except (KafkaError, OSError) as error:
            for call in calls:
                _fail(call, error)
            return
        except BaseException as error:
            for call in calls:
                _fail(call, KafkaError(ErrorCode.NETWORK_EXCEPTION, repr(error)))
            raise
        results = {(topic.topic_id, each.partition): each for topic in response.results for each in topic.partitions}
        for call in calls:
            _settle(call, results.get((call.key.topic_id, call.key.partition)))


def _settle(call: _Call, result: Any) -> None:
    if result is None:
        _fail(call, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "The share coordinator's response lacks a partition."))
    elif result.error_code != ErrorCode.NONE:
        _fail(call, KafkaError(ErrorCode(result.error_code), result.error_message or ""))
    elif not call.result.done():
        call.result.set_result(result)


def _fail(call: _Call, error: Exception) -> None:
    if not call.result.done():
        call.result.set_exception(error)
