"""A group coordinator over an offsets topic in memory."""

from __future__ import annotations

import asyncio
from random import Random

from parley.broker.config import BrokerConfig
from parley.broker.coordinators.decision import KeyValue
from parley.broker.coordinators.groups.committed_offsets import CommittedOffset
from parley.broker.coordinators.groups.consumer.assignors.registry import load_assignors
from parley.broker.coordinators.groups.consumer.settings import settings_of
from parley.broker.coordinators.groups.coordinator import ConsumerGroupsNeed, GroupCoordinator, ShareGroupsNeed
from parley.broker.coordinators.groups.group import Group
from parley.broker.coordinators.groups.group_shard import GroupShard, Surroundings
from parley.broker.coordinators.groups.loaded_sessions import begin_sessions
from parley.broker.coordinators.groups.offset_decisions import Committer
from parley.broker.coordinators.groups.share.settings import members_settings
from parley.broker.coordinators.groups.streams.settings import streams_settings
from parley.broker.coordinators.share_state.persister import ShareState, ShareStateSummary
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.topic_names import OFFSETS_TOPIC
from parley.broker.runtime.tasks import TaskSet
from parley.protocol.errors import ErrorCode, KafkaError, MalformedMessage
from tests.broker.coordinators.shards import FakeLog, FakeTopic, now_ms

NOT_A_MEMBER = Committer("g", "", None, -1)
"""A client that is not a member."""


def at(offset: int) -> CommittedOffset:
    return CommittedOffset(offset=offset, leader_epoch=-1, metadata="", commit_timestamp_ms=0)


def empty_shard(partition: int = 0, **properties: str) -> GroupShard:
    """Return a shard without groups."""
    return GroupShard(partition, surroundings(MetadataImage("c"), **properties))


ASSIGNORS = load_assignors(("uniform", "range"))


def surroundings(image: MetadataImage, **properties: str) -> Surroundings:
    """Return the environment of a shard that works alone, in a cluster with this metadata."""
    config = BrokerConfig.from_properties(properties)
    return Surroundings(
        config=lambda: config,
        image=lambda: image,
        topics_version=lambda: 0,
        settings=lambda group_id: settings_of(config, image, group_id),
        assignors=ASSIGNORS,
        begin_sessions=begin_sessions,
        on_rebalanced=lambda: None,
        on_epoch_begun=lambda: None,
        assign_in_thread=lambda shard, group_id: None,
        match_in_thread=lambda shard, group_id, context: None,
        share_settings=lambda group_id: members_settings(config, image, group_id),
        initialize_share_partitions=lambda shard, group_id, epoch, topics: None,
        streams_settings=lambda group_id: streams_settings(config, image, group_id),
        on_streams_epoch_begun=lambda: None,
        batch_bytes_max=lambda partition: 1 << 20,
    )


def no_need(image: MetadataImage | None = None) -> ConsumerGroupsNeed:
    """Return the dependencies of consumer groups, in a cluster with this metadata where clients may see every topic."""
    known = MetadataImage("c") if image is None else image
    return ConsumerGroupsNeed(lambda: known, ASSIGNORS, lambda context, names: set(names))


class Unreachable:
    """A persister whose share coordinator cannot be reached."""

    async def initialize(self, *args: object) -> None:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    async def delete(self, *args: object) -> None:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    async def read(self, *args: object) -> ShareState:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    async def write(self, *args: object) -> None:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    async def summary(self, *args: object) -> ShareStateSummary:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)


def no_share_need() -> ShareGroupsNeed:
    """Return the dependencies of share groups, where no share coordinator can be reached."""

    async def latest_offset(topic: str, partition: int) -> int:
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)

    return ShareGroupsNeed(Unreachable(), latest_offset)


class Replay:
    """A shard that is loaded from records, and the number of records skipped."""

    def __init__(self, partition: int = 0) -> None:
        self.shard = empty_shard(partition)
        self.skipped: list[str] = []
        self._offset = 0

    def apply(self, key: bytes, value: bytes | None) -> None:
        try:
            self.shard.replay(key, value, None, self._offset)
        except MalformedMessage as error:
            self.skipped.append(str(error))
        self._offset += 1

    def groups(self) -> list[Group]:
        """Return the groups in their state when serving begins."""
        self.shard.loaded(0)
        return list(self.shard.groups.values())


class Coordinated:
    """A coordinator of one partition."""

    def __init__(
        self,
        *failures: Exception,
        follows: bool = True,
        properties: dict[str, str] | None = None,
        image: MetadataImage | None = None,
        share_need: ShareGroupsNeed | None = None,
    ) -> None:
        config = BrokerConfig.from_properties(properties or {})
        self.topic = FakeTopic(*failures, name=OFFSETS_TOPIC, follows=follows)
        self.partitions = 1
        self.groups = GroupCoordinator(
            lambda: config,
            self.topic,
            lambda: self.partitions,
            now_ms,
            TaskSet(),
            Random(1),
            no_need(image),
            share_need or no_share_need(),
        )

    @property
    def log(self) -> FakeLog:
        return self.topic.log(0)

    async def begin(self) -> GroupShard:
        """Elect this broker, and return the shard once it is loaded."""
        self.groups.runtime.on_elected(0, 1)
        await self.groups.runtime.until_loaded(1)
        return self.groups.runtime.state_of(0)

    def commit(self, partition: int, offset: int, *, topic: str = "t") -> asyncio.Future[None]:
        return asyncio.ensure_future(self.groups.commit(NOT_A_MEMBER, {(topic, partition): at(offset)}))

    def in_log(self) -> dict[tuple[str, int], int]:
        """Return the offsets of the group in the log."""
        shard = empty_shard()
        self.log.replay(shard)
        return {p: found.offset for group in shard.groups.values() for p, found in group.offsets.items()}

    def offsets(self) -> dict[tuple[str, int], int]:
        """Return the offsets of the group in the coordinator."""
        group = self.groups.find("g")
        return {} if group is None else {p: found.offset for p, found in group.offsets.items()}

    def written(self) -> list[KeyValue]:
        """Return all records in the log."""
        return [row for rows in self.log.rows() for row in rows]
