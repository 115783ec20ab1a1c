"""The group coordinator of one broker: its groups, on the runtime that coordinators have in common.

A broker coordinates the groups in those partitions of ``__consumer_offsets`` that it leads (``runtime.py``). Offsets
and assigned generations are records, which decisions write (``offset_decisions.py``). Membership is the state of
requests in progress (``membership.py``). It is not stored, and becomes STABLE when the replicas have the generation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import TypeVar

from parley.broker.config import BrokerConfig
from parley.broker.coordinators.decision import Decision, KeyValue, ProducerIdentity
from parley.broker.coordinators.groups import offset_decisions
from parley.broker.coordinators.groups.group import CommittedOffset, Group, GroupState, TopicPartition
from parley.broker.coordinators.groups.group_records import group_record
from parley.broker.coordinators.groups.group_shard import GroupShard
from parley.broker.coordinators.groups.membership import GroupMembership
from parley.broker.coordinators.groups.offset_decisions import Committer
from parley.broker.coordinators.groups.offset_expiry import expired_offsets
from parley.broker.coordinators.internal_topic import ShardStore
from parley.broker.coordinators.runtime import CoordinatorRuntime, NotCommittedInTime
from parley.broker.metadata.changes import Delta, TopicDeleted
from parley.broker.metadata.image import MetadataImage
from parley.broker.metrics import GroupOffsetMetrics
from parley.broker.runtime.tasks import TaskSet
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.transactions import WriteTxnMarkersRequest

T = TypeVar("T")

_log = logging.getLogger(__name__)


class GroupCoordinator:
    """The groups that this broker coordinates."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        store: ShardStore,
        partition_count: Callable[[], int],
        now_ms: Callable[[], int],
        tasks: TaskSet,
        rng: Random,
    ) -> None:
        self.membership = GroupMembership(config, self, now_ms, rng, self.drop_unused)
        self.runtime = CoordinatorRuntime(
            store,
            lambda partition: GroupShard(partition, self.membership),
            partition_count,
            now_ms=now_ms,
            timeout_ms=lambda: config().offsets_commit_timeout_ms,
            tasks=tasks,
        )
        self._config = config
        self._now_ms = now_ms
        self._commits = 0
        self._expired = 0
        self._tasks = tasks

    # --- Lookup ---

    def check_owned(self, group_id: str) -> None:
        """Raise INVALID_GROUP_ID, NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS if the group cannot be used here."""
        self._shard(group_id)

    def _shard(self, group_id: str, *, may_be_unnamed: bool = False) -> GroupShard:
        if not group_id and not may_be_unnamed:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        return self.runtime.state_of(group_id)

    def find(self, group_id: str) -> Group | None:
        """Return a group, or None if it does not exist. Raises as ``check_owned`` does.

        Its offsets may not be replicated yet: ``read`` shows those that are.
        """
        return self._shard(group_id).groups.get(group_id)

    def find_or_create(self, group_id: str) -> Group:
        """Return a group, after creating it if it does not exist. Raises as ``check_owned`` does."""
        return self._shard(group_id).find_or_create(group_id)

    def all(self) -> list[Group]:
        """Return all groups of this broker. Raises COORDINATOR_LOAD_IN_PROGRESS while a partition is being loaded."""
        if self.runtime.is_loading:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return self._all_groups()

    def _all_groups(self) -> list[Group]:
        return [group for _, shard in self.runtime.states() for group in shard.groups.values()]

    def counts_by_state(self) -> dict[GroupState, int]:
        """Return the number of groups in each state."""
        counts = dict.fromkeys(GroupState, 0)
        for group in self._all_groups():
            counts[group.state] += 1
        return counts

    def metrics(self) -> GroupOffsetMetrics:
        """Return the work of this coordinator."""
        return GroupOffsetMetrics(
            offsets=sum(len(group.offsets) for group in self._all_groups()),
            commits=self._commits,
            expired=self._expired,
            rebalances=self.membership.completed_rebalances,
        )

    def drop_unused(self, group: Group) -> None:
        """Remove a group that was never used, so that arbitrary group ids do not accumulate."""
        self.runtime.state_of(group.partition).drop_unused(group)

    # --- Offsets ---

    def check_commit(self, committer: Committer) -> None:
        """Check that a client may commit offsets, and count the commit as a heartbeat. Raises KafkaError if not."""
        group = self._shard(committer.group_id, may_be_unnamed=True).groups.get(committer.group_id)
        offset_decisions.check_may_commit(group, committer)
        if group is not None:
            self.membership.committed(group, committer.member_id)

    async def commit(self, committer: Committer, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Commit offsets of a group, which is created if it does not exist. The empty id is a group, too: clients older
        than KIP-289 commit to it.

        Raises KafkaError if the client may not commit, or if the log does not have the offsets.
        """
        await self._write(
            committer.group_id,
            lambda shard, now_ms: offset_decisions.commit(shard, committer, offsets),
            ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
        )
        self._commits += len(offsets)

    async def commit_transactional(
        self,
        committer: Committer,
        producer: ProducerIdentity,
        offsets: Mapping[TopicPartition, CommittedOffset],
        check_verified: Callable[[], None],
    ) -> None:
        """Commit offsets in a producer's transaction; they count when its commit marker is in the log.

        The caller has verified the transaction with its coordinator. ``check_verified`` raises KafkaError if a marker
        has ended that transaction since; it is called immediately before the offsets are written.

        Raises KafkaError as ``commit`` does, and INVALID_PRODUCER_EPOCH for a fenced producer.
        """
        self.check_owned(committer.group_id)

        def decide(shard: GroupShard, now_ms: int) -> Decision[None]:
            check_verified()
            return offset_decisions.commit_transactional(shard, committer, producer, offsets)

        await self._write(committer.group_id, decide, ErrorCode.INVALID_COMMIT_OFFSET_SIZE)

    def append_marker(self, partition: int, marker: WriteTxnMarkersRequest.WritableTxnMarker) -> asyncio.Future[None]:
        """End a transaction in a partition of the offsets topic; see ``CoordinatorRuntime.append_marker``."""
        return self.runtime.append_marker(
            partition,
            marker.producer_id,
            marker.producer_epoch,
            committed=marker.transaction_result,
            coordinator_epoch=marker.coordinator_epoch,
            transaction_version=marker.transaction_version,
        )

    def read(self, group_id: str, look: Callable[[Group | None], T]) -> asyncio.Future[T]:
        """Return what ``look`` finds in a group, None if it does not exist, once the replicas have all of it.

        Raises KafkaError, or the future fails with it.
        """
        return self.runtime.submit(group_id, lambda shard, now_ms: Decision(look(shard.groups.get(group_id))))

    async def delete_offsets(
        self, group_id: str, wanted: Mapping[TopicPartition, ErrorCode]
    ) -> dict[TopicPartition, ErrorCode]:
        """Delete committed offsets; see ``offset_decisions.delete_offsets``."""
        self.check_owned(group_id)
        return await self._write(
            group_id, lambda shard, now_ms: offset_decisions.delete_offsets(shard, group_id, wanted)
        )

    async def _write(
        self,
        key: str | int,
        decide: Callable[[GroupShard, int], Decision[T]],
        too_large: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR,
    ) -> T:
        """Submit a decision. Raises KafkaError, with the code ``too_large`` if its records are."""
        try:
            return await self.runtime.submit(key, decide)
        except KafkaError as error:
            if error.code is ErrorCode.MESSAGE_TOO_LARGE:
                raise KafkaError(too_large, str(error)) from error
            raise

    # --- Generations ---

    def store_group(self, group: Group, assignments: Mapping[str, bytes] | None = None) -> asyncio.Future[None]:
        """Store the group's generation as it is now, with ``assignments`` in place of the members' own if given.

        The future fails with KafkaError if the log does not have it; REBALANCE_IN_PROGRESS if the replicas are slow.
        """
        record: KeyValue = group_record(group, assignments)
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            written = self.runtime.submit(group.partition, lambda shard, now_ms: Decision(None, [record]))
        except KafkaError as error:
            stored.set_exception(error)
        else:
            written.add_done_callback(partial(_pass_on, stored))
        return stored

    # --- Deletion and expiry ---

    async def delete(self, group_id: str) -> None:
        """Delete a group without members, and its offsets. Raises NON_EMPTY_GROUP or GROUP_ID_NOT_FOUND."""
        self.check_owned(group_id)
        await self._write(group_id, lambda shard, now_ms: offset_decisions.delete_group(shard, group_id))

    async def expire(self) -> None:
        """Expire offsets and groups periodically; runs until it is cancelled."""
        while True:
            await asyncio.sleep(self._config().offsets_retention_check_interval_ms / 1000)
            for group in self._all_groups():
                await self.expire_group(group)

    async def expire_group(self, group: Group) -> None:
        """Remove a group's expired offsets, and the group itself if it then has neither members nor offsets."""
        now_ms, retention_ms = self._now_ms(), self._config().offsets_retention_minutes * 60_000
        expired = expired_offsets(group, now_ms, retention_ms)
        if expired or (group.state is GroupState.EMPTY and not group.offsets):
            decide = partial(offset_decisions.expire, group.group_id, now_ms, retention_ms)
            self._expired += await self._remove(group, decide, "expired offsets were not removed")

    async def _remove(self, group: Group, decide: Callable[[GroupShard, int], Decision[int]], failed: str) -> int:
        """Submit ``decide``, which removes some offsets, until none are left, and return how many it has removed.

        Logs ``failed`` if it fails.
        """
        removed = 0
        try:
            while last := await self.runtime.submit(group.partition, decide):
                removed += last
        except KafkaError as error:
            _log.warning(failed, extra={"group": group.group_id, "error": error.code.name})
        return removed

    def apply(self, delta: Delta, image: MetadataImage) -> None:
        """Remove the committed offsets of topics that were deleted."""
        for change in delta.changes:
            if isinstance(change, TopicDeleted) and change.name != self.runtime.topic:
                work = self.on_topic_deleted(change.name)
                self._tasks.start(work, name=f"forget offsets of {change.name}")

    async def on_topic_deleted(self, topic: str) -> None:
        """Remove the offsets that groups committed for a deleted topic."""
        for group in self._all_groups():
            if any(partition[0] == topic for partition in group.partitions_in_log()):
                decide = partial(offset_decisions.forget_topic, group.group_id, topic)
                await self._remove(group, decide, "offsets of a deleted topic remain")


def _pass_on(stored: asyncio.Future[None], written: asyncio.Future[None]) -> None:
    """Give the outcome of writing a generation to the membership, with the error that members understand."""
    error = written.exception()
    if stored.done():
        return
    if error is None:
        stored.set_result(None)
    elif isinstance(error, NotCommittedInTime):
        stored.set_exception(KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, str(error)))
    elif isinstance(error, KafkaError) and error.code is ErrorCode.MESSAGE_TOO_LARGE:
        stored.set_exception(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)))
    else:
        stored.set_exception(error)
