"""The group coordinator's calls to the share coordinator, for the share partitions of its groups.

A decision (``initialization.py``) first stores what to initialize or delete. Then ``ShareGroups`` calls the persister,
and submits the decision that stores the outcome.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from parley.broker.coordinators.decision import Decision
from parley.broker.coordinators.groups.group_shard import GroupShard
from parley.broker.coordinators.groups.share import heartbeats
from parley.broker.coordinators.groups.share.initialization import (
    Begun,
    abandon_initialization,
    begin_alteration,
    begin_deletion,
    begin_topic_deletion,
    end_initialization,
    end_topic_deletion,
)
from parley.broker.coordinators.groups.share.share_group import TopicPartitions, without
from parley.broker.coordinators.runtime import CoordinatorRuntime
from parley.broker.coordinators.share_state.persister import (
    NO_CHECK,
    UNINITIALIZED_OFFSET,
    UNKNOWN_COUNT,
    Persister,
    ShareStateSummary,
)
from parley.broker.metadata.image import MetadataImage
from parley.broker.network.request_context import RequestContext
from parley.broker.runtime.tasks import TaskSet
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.share_groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from parley.protocol.uuids import UUID

_log = logging.getLogger(__name__)

UNKNOWN_LAG: Final = -1
NO_LEADER_EPOCH: Final = 0

CALLS_AT_ONCE: Final = 1_000
"""The maximum number of concurrent calls to the persister for one request."""

SharePartition = tuple[UUID, int]

LatestOffset = Callable[[str, int], Awaitable[int]]
"""A function that returns the latest offset of a partition, from its leader. Raises KafkaError if it cannot get the
offset."""


class SharePartitionOffset(NamedTuple):
    """The result of DescribeShareGroupOffsets for a partition. The defaults stand for unknown values."""

    start_offset: int = UNINITIALIZED_OFFSET
    leader_epoch: int = NO_LEADER_EPOCH
    lag: int = UNKNOWN_LAG
    error: KafkaError | None = None


class ShareGroups:
    """The share groups that this broker coordinates.

    Each coroutine also raises the errors of ``CoordinatorRuntime.submit``.
    """

    def __init__(
        self,
        runtime: CoordinatorRuntime[GroupShard],
        image: Callable[[], MetadataImage],
        persister: Persister,
        latest_offset: LatestOffset,
        tasks: TaskSet,
    ) -> None:
        self._runtime = runtime
        self._image = image
        self._persister = persister
        self._latest_offset = latest_offset
        self._tasks = tasks
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def _turn(self, group_id: str) -> asyncio.Lock:
        """Return the lock that serializes calls to the persister for a group. It exists only while it is in use.

        The persister retries each call independently. Without the lock, a deletion could take effect after an
        initialization that was decided later.
        """
        return self._turns.setdefault(group_id, asyncio.Lock())

    def heartbeat(
        self, context: RequestContext, request: ShareGroupHeartbeatRequest
    ) -> ShareGroupHeartbeatResponse | asyncio.Future[ShareGroupHeartbeatResponse]:
        """Let a member join, stay or leave, and return its partitions. Raises KafkaError, or the future fails with
        it."""
        return self._runtime.decide_when_committed(request.group_id, partial(heartbeats.heartbeat, request, context))

    # --- Initialization ---

    def begin_initialization(
        self, shard: GroupShard, group_id: str, state_epoch: int, topics: Mapping[UUID, TopicPartitions]
    ) -> None:
        """Start initializing share partitions that a group subscribes to, in the state epoch ``state_epoch``. A failure
        is logged, and a later heartbeat starts the initialization again."""
        self._tasks.start(
            self._initialize_missing(shard, group_id, state_epoch, topics),
            name=f"initialize share partitions of {group_id}",
        )

    async def _initialize_missing(
        self, shard: GroupShard, group_id: str, state_epoch: int, topics: Mapping[UUID, TopicPartitions]
    ) -> None:
        """Initialize share partitions, except those that an earlier call initialized in the meantime: their members may
        have acknowledged records, and initialization with a higher state epoch would discard that state."""
        async with self._turn(group_id):
            group = shard.share_group(group_id)
            missing = {} if group is None else without(topics, group.stored.initialized)
            offsets = dict.fromkeys(_each(missing), UNINITIALIZED_OFFSET)
            if offsets:
                await self._initialize(group_id, state_epoch, missing, offsets)

    async def _initialize(
        self,
        group_id: str,
        state_epoch: int,
        topics: Mapping[UUID, TopicPartitions],
        offsets: Mapping[SharePartition, int],
    ) -> dict[SharePartition, KafkaError]:
        """Initialize share partitions with these start offsets, and store the outcome in the group. Returns the error
        of each share partition that could not be initialized, or whose outcome could not be stored."""
        failed = await self._each_call(
            [*offsets],
            lambda topic_id, index: self._persister.initialize(
                group_id, topic_id, index, state_epoch, offsets[topic_id, index]
            ),
        )
        if failed:
            facts = {"group": group_id, "partitions": len(failed), "error": str(next(iter(failed.values())))}
            _log.warning("share partitions could not be initialized", extra=facts)
        done = _without(topics, failed)
        try:
            if done:
                await self._runtime.submit(group_id, partial(end_initialization, group_id, done))
            if failed:
                undone = _without(topics, {each: None for each in offsets if each not in failed})
                await self._runtime.submit(group_id, partial(abandon_initialization, group_id, undone))
                await self._delete_orphans(group_id, failed)
        except KafkaError as error:  # the next coordinator starts again
            facts = {"group": group_id, "error": str(error)}
            _log.warning("the initialization of share partitions could not be recorded", extra=facts)
            failed |= {each: error for each in offsets if each not in failed}
        return failed

    async def _delete_orphans(self, group_id: str, failed: Mapping[SharePartition, KafkaError]) -> None:
        """Delete state with a higher epoch than the group's, which would make every initialization fail.

        Such state was left by a deleted group with the same id: a coordinator that had already been superseded
        initialized it late. This broker has not been superseded, because its last decision was committed.
        """
        orphans = [each for each, error in failed.items() if error.code is ErrorCode.FENCED_STATE_EPOCH]
        await self._delete(group_id, orphans, NO_CHECK)

    async def _each_call(
        self, partitions: Sequence[SharePartition], call: Callable[[UUID, int], Awaitable[None]]
    ) -> dict[SharePartition, KafkaError]:
        """Call the persister for each share partition. Returns the errors of the share partitions that failed."""
        failed: dict[SharePartition, KafkaError] = {}

        async def attempt(topic_id: UUID, index: int) -> None:
            try:
                await call(topic_id, index)
            except KafkaError as error:
                failed[topic_id, index] = error

        for begin in range(0, len(partitions), CALLS_AT_ONCE):
            await asyncio.gather(*(attempt(*each) for each in partitions[begin : begin + CALLS_AT_ONCE]))
        return failed

    # --- Offsets ---

    async def describe_offsets(
        self, group_id: str, requested: Mapping[str, Iterable[int]] | None
    ) -> dict[str, dict[int, SharePartitionOffset]]:
        """Return the offsets of share partitions by topic name and partition. If ``requested`` is None, return all
        initialized partitions.

        As in Kafka, a partition whose state cannot be read is returned without an offset and without an error. A
        partition whose latest offset cannot be read is returned with the error. Raises KafkaError if this broker does
        not coordinate the group.
        """
        if requested is None:
            initialized = await self._runtime.submit(group_id, partial(_initialized, group_id))
            names = self._image().topic_names
            wanted = {names[topic_id]: each for topic_id, each in initialized.items() if topic_id in names}
        else:
            self._runtime.state_of(group_id)
            wanted = {name: frozenset(indexes) for name, indexes in requested.items()}
        pairs = [(name, index) for name, indexes in wanted.items() for index in sorted(indexes)]
        found: dict[str, dict[int, SharePartitionOffset]] = {name: {} for name in wanted}
        for begin in range(0, len(pairs), CALLS_AT_ONCE):
            slice_ = pairs[begin : begin + CALLS_AT_ONCE]
            for (name, index), offset in zip(
                slice_, await asyncio.gather(*(self._offset(group_id, *each) for each in slice_)), strict=True
            ):
                found[name][index] = offset
        return found

    async def _offset(self, group_id: str, name: str, index: int) -> SharePartitionOffset:
        topic = self._image().topics.get(name)
        if topic is None:
            return SharePartitionOffset()
        try:
            summary = await self._persister.summary(group_id, topic.topic_id, index, -1)
        except KafkaError:
            return SharePartitionOffset()
        if summary.start_offset == UNINITIALIZED_OFFSET or summary.delivery_complete_count == UNKNOWN_COUNT:
            return SharePartitionOffset(summary.start_offset, summary.leader_epoch)
        return await self._with_lag(summary, name, index)

    async def _with_lag(self, summary: ShareStateSummary, name: str, index: int) -> SharePartitionOffset:
        try:
            end = await self._latest_offset(name, index)
        except KafkaError as error:
            return SharePartitionOffset(0, error=error)
        lag = end - summary.start_offset - summary.delivery_complete_count
        return SharePartitionOffset(summary.start_offset, summary.leader_epoch, lag)

    async def alter_offsets(
        self, group_id: str, wanted: Mapping[str, Mapping[int, int]]
    ) -> dict[str, dict[int, ErrorCode]]:
        """Set the start offsets of a group without members, and create the group if it does not exist. ``wanted``
        contains the start offsets by topic name and partition.

        Returns the outcome of each partition, which is UNKNOWN_TOPIC_OR_PARTITION if it does not exist. Raises
        GROUP_ID_NOT_FOUND for a group of another type, NON_EMPTY_GROUP, or the errors of ``CoordinatorRuntime.submit``.
        """
        async with self._turn(group_id):
            begun = await self._runtime.submit(group_id, partial(begin_alteration, group_id, wanted))
            offsets = {
                (topic_id, index): wanted[each.name][index]
                for topic_id, each in begun.topics.items()
                for index in each.partitions
            }
            failed = await self._initialize(group_id, begun.epoch, begun.topics, offsets) if offsets else {}
        ids = begun.topic_ids()
        return {
            name: {index: _outcome(ids.get(name), index, begun.topics, failed) for index in indexes}
            for name, indexes in wanted.items()
        }

    async def delete_offsets(self, group_id: str, names: Iterable[str]) -> dict[str, KafkaError | None]:
        """Delete the offsets of topics in a group without members. Returns the error of each topic, or None: for
        example, UNKNOWN_TOPIC_OR_PARTITION for a topic without offsets.

        Raises GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, or the errors of ``CoordinatorRuntime.submit``.
        """
        requested = list(dict.fromkeys(names))

        def decide(shard: GroupShard, now_ms: int) -> Decision[Begun]:
            group = heartbeats.require_empty(group_id, shard)
            return begin_topic_deletion(group, requested, shard, now_ms)

        async with self._turn(group_id):
            begun = await self._runtime.submit(group_id, decide)
            failed = await self._delete(group_id, list(_each(begun.topics)), begun.epoch)
            errors = {topic_id: error for (topic_id, _), error in failed.items()}
            done = [topic_id for topic_id in begun.topics if topic_id not in errors]
            await self._runtime.submit(group_id, partial(end_topic_deletion, group_id, done))
        ids = begun.topic_ids()
        return {name: self._deleted(name, ids, errors) for name in requested}

    def _deleted(self, name: str, ids: Mapping[str, UUID], errors: Mapping[UUID, KafkaError]) -> KafkaError | None:
        if name in ids:
            return errors.get(ids[name])
        if name in self._image().topics:
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "There is no offset information to delete.")
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    async def delete_state(self, group_id: str) -> None:
        """Delete the state of all share partitions of a group, before the group is deleted.

        Raises GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, the error of the persister, or the errors of
        ``CoordinatorRuntime.submit``. If it raises, the caller must not delete the group.
        """

        def decide(shard: GroupShard, now_ms: int) -> Decision[Begun]:
            group = heartbeats.require_empty(group_id, shard)
            return begin_deletion(group, shard.image(), shard, now_ms)

        async with self._turn(group_id):
            begun = await self._runtime.submit(group_id, decide)
            failed = await self._delete(group_id, list(_each(begun.topics)), begun.epoch)
        if failed:
            raise next(iter(failed.values()))

    async def _delete(
        self, group_id: str, partitions: Sequence[SharePartition], state_epoch: int
    ) -> dict[SharePartition, KafkaError]:
        """Delete the state of share partitions, except state with a higher epoch than ``state_epoch``. Returns the
        error of each partition that still has state."""
        failed = await self._each_call(
            partitions, lambda topic_id, index: self._persister.delete(group_id, topic_id, index, state_epoch)
        )
        gone = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE)  # no state is left: it is deleted with its topic
        return {each: error for each, error in failed.items() if error.code not in gone}


def _each(topics: Mapping[UUID, TopicPartitions]) -> Iterable[SharePartition]:
    return ((topic_id, index) for topic_id, each in topics.items() for index in sorted(each.partitions))


def _without(
    topics: Mapping[UUID, TopicPartitions], removed: Mapping[SharePartition, object]
) -> dict[UUID, TopicPartitions]:
    result = {}
    for topic_id, each in topics.items():
        left = frozenset(index for index in each.partitions if (topic_id, index) not in removed)
        if left:
            result[topic_id] = each._replace(partitions=left)
    return result


def _outcome(
    topic_id: UUID | None,
    index: int,
    topics: Mapping[UUID, TopicPartitions],
    failed: Mapping[SharePartition, KafkaError],
) -> ErrorCode:
    if topic_id is None or index not in topics[topic_id].partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    error = failed.get((topic_id, index))
    return ErrorCode.NONE if error is None else error.code


def _initialized(group_id: str, shard: GroupShard, now_ms: int) -> Decision[dict[UUID, frozenset[int]]]:
    group = shard.share_group(group_id)
    stored = {} if group is None else group.stored.initialized
    return Decision({topic_id: each.partitions for topic_id, each in stored.items()})
