"""The group coordinator of one broker: submits requests about groups to the runtime of coordinators.

A broker coordinates the groups in the partitions of ``__consumer_offsets`` that it leads
(``parley/broker/coordinators/runtime.py``). Requests are decided in ``classic_requests.py`` (classic protocol), in
``consumer/``, ``share/`` and ``streams/``, and in ``offset_decisions.py``. ``group_shard.py`` contains the state.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from random import Random
from typing import Final, TypeVar

from parley.broker.config import BrokerConfig
from parley.broker.coordinators.decision import Decision, ProducerIdentity
from parley.broker.coordinators.groups import offset_decisions
from parley.broker.coordinators.groups.background import BackgroundWork, Visible
from parley.broker.coordinators.groups.classic.member_decisions import Joiner
from parley.broker.coordinators.groups.classic.membership import GroupState
from parley.broker.coordinators.groups.classic_requests import heartbeat, join, leave, sync
from parley.broker.coordinators.groups.committed_offsets import CommittedOffset
from parley.broker.coordinators.groups.consumer import heartbeats
from parley.broker.coordinators.groups.consumer.assignors.assignor import PartitionAssignor
from parley.broker.coordinators.groups.consumer.consumer_group import ConsumerGroupState
from parley.broker.coordinators.groups.consumer.heartbeats import Sender
from parley.broker.coordinators.groups.consumer.settings import settings_of
from parley.broker.coordinators.groups.consumer.topics import version_of
from parley.broker.coordinators.groups.group import Group
from parley.broker.coordinators.groups.group_shard import GroupShard, Surroundings
from parley.broker.coordinators.groups.loaded_sessions import begin_sessions
from parley.broker.coordinators.groups.offset_decisions import Committer
from parley.broker.coordinators.groups.offset_expiry import expired_offsets
from parley.broker.coordinators.groups.share.initialization import forget_deleted_topics
from parley.broker.coordinators.groups.share.settings import members_settings
from parley.broker.coordinators.groups.share.share_group import ShareGroupState
from parley.broker.coordinators.groups.share.share_groups import LatestOffset, ShareGroups
from parley.broker.coordinators.groups.streams import heartbeats as streams_heartbeats
from parley.broker.coordinators.groups.streams.settings import streams_settings
from parley.broker.coordinators.groups.streams.streams_group import StreamsGroupState
from parley.broker.coordinators.internal_topic import ShardStore
from parley.broker.coordinators.runtime import CoordinatorRuntime
from parley.broker.coordinators.share_state.persister import Persister
from parley.broker.metadata.changes import BrokerRegistered, Delta, PartitionsAdded, TopicCreated, TopicDeleted
from parley.broker.metadata.image import MetadataImage
from parley.broker.metrics.catalogue.coordinators import GroupOffsetMetrics
from parley.broker.network.request_context import RequestContext
from parley.broker.runtime.tasks import TaskSet
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from parley.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from parley.protocol.messages.streams_groups import StreamsGroupHeartbeatRequest
from parley.protocol.messages.transactions import WriteTxnMarkersRequest
from parley.protocol.topic_partition import TopicPartition
from parley.protocol.uuids import UUID

T = TypeVar("T")

_ABOUT_TOPICS: Final = (TopicCreated, TopicDeleted, PartitionsAdded, BrokerRegistered)
"""The metadata changes after which a group may need a new target assignment."""

_log = logging.getLogger(__name__)

NAME_IN_ID_MAX: Final = 249
"""The maximum number of characters that a member id copies from the client id or instance id, so that it fits a
protocol string."""


@dataclass(frozen=True, slots=True)
class ConsumerGroupsNeed:
    """The parts of the broker that the group coordinator needs for consumer groups and not for classic groups."""

    image: Callable[[], MetadataImage]
    """The cluster's metadata."""
    assignors: Mapping[str, PartitionAssignor]
    """The assignors, the default one first."""
    visible: Visible
    """Returns the topics that a client may describe."""
    executor: Executor | None = None
    """The threads for slow work; None means the event loop's default executor."""


@dataclass(frozen=True, slots=True)
class ShareGroupsNeed:
    """The parts of the broker that the group coordinator needs only for share groups."""

    persister: Persister
    """A client of the share coordinators, which store the state of share partitions."""
    latest_offset: LatestOffset
    """Returns the latest offset of a partition, from its leader."""


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
        need: ConsumerGroupsNeed,
        share_need: ShareGroupsNeed,
    ) -> None:
        background = BackgroundWork(lambda *event: self.runtime.submit(*event), need.visible, tasks, need.executor)
        surroundings = Surroundings(
            config=config,
            image=need.image,
            topics_version=lambda: self._topics_version,
            settings=lambda group_id: settings_of(config(), need.image(), group_id),
            assignors=need.assignors,
            begin_sessions=begin_sessions,
            on_rebalanced=self._count_rebalance,
            on_epoch_begun=self._count_epoch,
            assign_in_thread=background.assign,
            match_in_thread=background.match,
            share_settings=lambda group_id: members_settings(config(), need.image(), group_id),
            initialize_share_partitions=lambda *begun: self.share.begin_initialization(*begun),
            streams_settings=lambda group_id: streams_settings(config(), need.image(), group_id),
            on_streams_epoch_begun=self._count_streams_epoch,
            batch_bytes_max=lambda partition: store.open(partition).batch_bytes_max,
        )
        self.assignors = need.assignors
        self._topics_version = version_of(need.image())
        self.runtime = CoordinatorRuntime(
            store,
            lambda partition: GroupShard(partition, surroundings),
            partition_count,
            now_ms=now_ms,
            timeout_ms=lambda: config().offsets_commit_timeout_ms,
            tasks=tasks,
        )
        self.share = ShareGroups(self.runtime, need.image, share_need.persister, share_need.latest_offset, tasks)
        self._config = config
        self._now_ms = now_ms
        self._rng = rng
        self._commits = 0
        self._expired = 0
        self._rebalances = 0
        self._epochs_begun = 0
        self._streams_epochs_begun = 0
        self._tasks = tasks

    def _count_rebalance(self) -> None:
        self._rebalances += 1

    def _count_epoch(self) -> None:
        self._epochs_begun += 1

    def _count_streams_epoch(self) -> None:
        self._streams_epochs_begun += 1

    # --- Lookup ---

    def check_owned(self, group_id: str) -> None:
        """Raise INVALID_GROUP_ID, NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS if this broker cannot serve the
        group."""
        self._shard(group_id)

    def _shard(self, group_id: str) -> GroupShard:
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        return self.runtime.state_of(group_id)

    def find(self, group_id: str) -> Group | None:
        """Return a group, or None if it does not exist. Raises the errors of ``check_owned``.

        The in-sync replicas may not have all of its offsets yet. To wait for them, use ``read``.
        """
        return self._shard(group_id).groups.get(group_id)

    def all(self) -> list[Group]:
        """Return all groups on this broker. Raises COORDINATOR_LOAD_IN_PROGRESS while a partition is being loaded."""
        if self.runtime.is_loading:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return self._all_groups()

    def loaded_groups(self) -> Iterator[Group]:
        """Iterate over the groups in the partitions that have been loaded."""
        return (group for _, shard in self.runtime.states() for group in shard.groups.values())

    def _all_groups(self) -> list[Group]:
        return list(self.loaded_groups())

    def counts_by_state(self) -> dict[GroupState, int]:
        """Return the number of classic groups in each state."""
        counts = dict.fromkeys(GroupState, 0)
        for group in self._all_groups():
            if group.is_classic:
                counts[group.membership.state] += 1
        return counts

    def consumer_counts_by_state(self) -> dict[ConsumerGroupState, int]:
        """Return the number of consumer groups in each state."""
        counts = dict.fromkeys(ConsumerGroupState, 0)
        for group in self._all_groups():
            if group.consumer is not None:
                counts[group.consumer.state()] += 1
        return counts

    def share_counts_by_state(self) -> dict[ShareGroupState, int]:
        """Return the number of share groups in each state."""
        counts = dict.fromkeys(ShareGroupState, 0)
        for group in self._all_groups():
            if group.share is not None:
                counts[group.share.state()] += 1
        return counts

    def streams_counts_by_state(self) -> dict[StreamsGroupState, int]:
        """Return the number of streams groups in each state."""
        counts = dict.fromkeys(StreamsGroupState, 0)
        for group in self._all_groups():
            if group.streams is not None:
                counts[group.streams.state()] += 1
        return counts

    def metrics(self) -> GroupOffsetMetrics:
        """Return the metrics of the groups' offsets and rebalances."""
        return GroupOffsetMetrics(
            offsets=sum(len(group.offsets) for group in self._all_groups()),
            commits=self._commits,
            expired=self._expired,
            rebalances=self._rebalances,
            consumer_rebalances=self._epochs_begun,
            streams_rebalances=self._streams_epochs_begun,
        )

    # --- Members ---

    def join(
        self, context: RequestContext, request: JoinGroupRequest
    ) -> JoinGroupResponse | asyncio.Future[JoinGroupResponse]:
        """Let a member join or rejoin a group by the classic protocol. The response is usually held until the next
        generation begins. Raises KafkaError, or the future fails with it."""
        client_id = context.client_id or ""
        name = client_id if request.group_instance_id is None else request.group_instance_id
        new_id = "" if request.member_id else self._new_member_id(name)
        joiner = Joiner(client_id, context.client_host, context.api_version, new_id)
        return self._decide(request.group_id, partial(join, request, joiner, context))

    def _new_member_id(self, name: str) -> str:
        return f"{name[:NAME_IN_ID_MAX]}-{UUID(int=self._rng.getrandbits(128), version=4)}"

    def sync(self, request: SyncGroupRequest) -> asyncio.Future[SyncGroupResponse]:
        """Return a member's assignment, as soon as the leader of the group has sent it and the in-sync replicas have
        stored it. Raises KafkaError, or the future fails with it."""
        self.check_owned(request.group_id)
        return self.runtime.submit(request.group_id, partial(sync, request))

    def heartbeat(self, request: HeartbeatRequest) -> ErrorCode:
        """Keep a member's session alive. Returns REBALANCE_IN_PROGRESS if the member must rejoin. Raises the KafkaError
        that the client gets."""
        code = self._decide(request.group_id, partial(heartbeat, request))
        assert not isinstance(code, asyncio.Future), "a heartbeat has no records, and does not wait"
        return code

    def leave(
        self, group_id: str, leaving: Sequence[LeaveGroupRequest.MemberIdentity]
    ) -> list[ErrorCode] | asyncio.Future[list[ErrorCode]]:
        """Remove members that leave, and return an error code for each of them, in the same order. If this requires
        records, for example because no members remain, the reply waits for the in-sync replicas. Raises KafkaError, or
        the future fails with it."""
        return self._decide(group_id, partial(leave, group_id, leaving))

    def _decide(
        self, group_id: str, decide: Callable[[GroupShard, int], Decision[T]], *, may_be_unnamed: bool = False
    ) -> T | asyncio.Future[T]:
        if not group_id and not may_be_unnamed:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        return self.runtime.decide_at_once(group_id, decide)

    def consumer_heartbeat(
        self, context: RequestContext, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse | asyncio.Future[ConsumerGroupHeartbeatResponse]:
        """Let a member of a consumer group join, stay or leave, and move it toward its target assignment (KIP-848). The
        response waits for the in-sync replicas. Raises KafkaError, or the future fails with it."""
        new_id = "" if request.member_id else str(UUID(int=self._rng.getrandbits(128), version=4))
        decide = partial(heartbeats.heartbeat, request, Sender(context, new_id))
        return self.runtime.decide_when_committed(request.group_id, decide)

    def streams_heartbeat(
        self, context: RequestContext, request: StreamsGroupHeartbeatRequest
    ) -> streams_heartbeats.Outcome | asyncio.Future[streams_heartbeats.Outcome]:
        """Let a member of a streams group join, stay or leave, and move it toward its target tasks (KIP-1071). The
        response waits for the in-sync replicas. Raises KafkaError, or the future fails with it."""
        return self.runtime.decide_when_committed(
            request.group_id, partial(streams_heartbeats.heartbeat, request, context)
        )

    # --- Offsets ---

    def check_commit(self, committer: Committer) -> None:
        """Raise the errors of ``offset_decisions.check_commit`` if a client is not allowed to commit offsets now.
        Otherwise, the commit of a member of the classic protocol counts as a heartbeat."""
        self._decide(committer.group_id, partial(offset_decisions.check_commit, committer), may_be_unnamed=True)

    async def commit(self, committer: Committer, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Commit offsets of a group, and create the group if it does not exist. The empty group id is valid: clients
        older than KIP-289 commit to it.

        Raises KafkaError if the client is not allowed to commit, or if the offsets could not be stored, for example
        INVALID_COMMIT_OFFSET_SIZE if they are too large.
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
        """Commit offsets in a producer's transaction. They take effect when its commit marker is in the log.

        The caller must have verified the transaction with its coordinator. ``check_verified`` is called immediately
        before the offsets are written, and raises KafkaError if a marker ended the transaction in the meantime.

        Raises the errors of ``commit``, and INVALID_PRODUCER_EPOCH for a fenced producer.
        """
        self.check_owned(committer.group_id)

        def decide(shard: GroupShard, now_ms: int) -> Decision[None]:
            check_verified()
            return offset_decisions.commit_transactional(shard, committer, producer, offsets)

        await self._write(committer.group_id, decide, ErrorCode.INVALID_COMMIT_OFFSET_SIZE)

    def append_marker(self, partition: int, marker: WriteTxnMarkersRequest.WritableTxnMarker) -> asyncio.Future[None]:
        """Append the marker that ends a transaction in a partition of ``__consumer_offsets``, and apply it.

        Completes and fails like ``CoordinatorRuntime.append_marker``.
        """
        return self.runtime.append_marker(
            partition,
            marker.producer_id,
            marker.producer_epoch,
            committed=marker.transaction_result,
            coordinator_epoch=marker.coordinator_epoch,
            transaction_version=marker.transaction_version,
        )

    def read(self, group_id: str, look: Callable[[Group | None], T]) -> asyncio.Future[T]:
        """Return a future of ``look(group)``, which waits until the in-sync replicas have all records that the result
        depends on.

        ``look`` is passed None if the group does not exist. Raises KafkaError, or the future fails with it.
        """
        return self.runtime.submit(group_id, lambda shard, now_ms: Decision(look(shard.groups.get(group_id))))

    async def delete_offsets(
        self, group_id: str, wanted: Mapping[TopicPartition, ErrorCode]
    ) -> dict[TopicPartition, ErrorCode]:
        """Delete committed offsets, and return the outcome of each partition. ``offset_decisions.delete_offsets``
        describes ``wanted`` and the errors."""
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
        """Submit a decision, and return its reply. Raises KafkaError, with the code ``too_large`` if the records are
        too large."""
        try:
            return await self.runtime.submit(key, decide)
        except KafkaError as error:
            if error.code is ErrorCode.MESSAGE_TOO_LARGE:
                raise KafkaError(too_large, str(error)) from error
            raise

    # --- Deletion and expiry ---

    async def delete(self, group_id: str) -> None:
        """Delete a group without members, and its offsets. If it is a share group, first delete the state of its share
        partitions.

        Raises NON_EMPTY_GROUP or GROUP_ID_NOT_FOUND, the errors of ``check_owned``, or another KafkaError if the
        deletion could not be stored.
        """
        known = self.find(group_id)
        if known is not None and known.share is not None:
            await self.share.delete_state(group_id)
        await self._write(group_id, lambda shard, now_ms: offset_decisions.delete_group(shard, group_id))

    async def expire(self) -> None:
        """Expire offsets and groups periodically. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(self._config().offsets_retention_check_interval_ms / 1000)
            for group in self._all_groups():
                await self.expire_group(group)

    async def expire_group(self, group: Group) -> None:
        """Remove a group's expired offsets, and the group if it then has no members and no offsets. A share group
        stays. A failure is logged."""
        if group.share is not None:
            return  # a share group has no offsets, and stays until it is deleted
        now_ms, retention_ms = self._now_ms(), self._config().offsets_retention_minutes * 60_000
        expired = expired_offsets(group, now_ms, retention_ms)
        if expired or (group.is_empty and not group.offsets):
            decide = partial(offset_decisions.expire, group.group_id, now_ms, retention_ms)
            self._expired += await self._remove(group, decide, "expired offsets could not be removed")

    async def _remove(self, group: Group, decide: Callable[[GroupShard, int], Decision[int]], failed: str) -> int:
        """Submit ``decide`` until its reply, the number of offsets that it has removed, is 0. Returns the total number.

        Logs the message ``failed`` if a submission fails.
        """
        removed = 0
        try:
            while last := await self.runtime.submit(group.partition, decide):
                removed += last
        except KafkaError as error:
            _log.warning(failed, extra={"group": group.group_id, "error": error.code.name})
        return removed

    def apply(self, delta: Delta, image: MetadataImage) -> None:
        """Start removing the committed offsets of deleted topics, and remove deleted topics from share groups. If
        topics or brokers have changed, groups check their subscribed topics again when the next heartbeat arrives."""
        if any(isinstance(change, TopicCreated | TopicDeleted) for change in delta.changes):
            self._topics_version = version_of(image)
        if any(isinstance(change, _ABOUT_TOPICS) for change in delta.changes):
            for group in self._all_groups():
                if group.consumer is not None:
                    group.consumer.metadata_checked = False
                if group.share is not None:
                    group.share.metadata_checked = False
                if group.streams is not None:
                    group.streams.metadata_checked = False
        for change in delta.changes:
            if isinstance(change, TopicDeleted) and change.name != self.runtime.topic:
                forgetting = self._forget_share_topic(change.name)
                self._tasks.start(forgetting, name=f"forget share partitions of {change.name}")
                work = self.on_topic_deleted(change.name)
                self._tasks.start(work, name=f"forget offsets of {change.name}")

    async def _forget_share_topic(self, topic: str) -> None:
        """Remove deleted topics from all share groups. ``topic`` is the one that has just been deleted, for log
        lines."""
        failed: Counter[str] = Counter()
        for partition, _ in self.runtime.states():
            try:
                await self.runtime.submit(partition, forget_deleted_topics)
            except KafkaError as error:  # the next coordinator that loads the group removes the topic
                failed[error.code.name] += 1
        if failed:
            facts = {"topic": topic, "error": ", ".join(failed), "shards": failed.total()}
            _log.warning("share groups still contain a deleted topic", extra=facts)

    async def on_topic_deleted(self, topic: str) -> None:
        """Remove the offsets that groups committed for a deleted topic. A failure is logged.

        Their log offsets are collected before the first offset is removed, because groups may commit for a new topic
        with the same name in the meantime.
        """
        noted = [(group, group.latest_commit_for(topic)) for group in self._all_groups()]
        for group, latest in noted:
            if latest is not None:
                decide = partial(offset_decisions.forget_topic, group.group_id, topic, latest)
                await self._remove(group, decide, "offsets of a deleted topic remain")
