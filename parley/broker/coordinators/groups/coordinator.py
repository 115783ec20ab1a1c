"""The group coordinator of one broker: finds groups, loads them when it is elected, and expires their offsets.

A broker coordinates the groups in those partitions of ``__consumer_offsets`` that it leads. When it becomes the leader
of one, it loads the partition; requests for its groups get COORDINATOR_LOAD_IN_PROGRESS until then. When it is no
longer the leader, it unloads the groups and responds with NOT_COORDINATOR.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from parley.broker.config import BrokerConfig
from parley.broker.coordinators.groups.group import Group, GroupState
from parley.broker.coordinators.groups.group_log import GroupLog
from parley.broker.coordinators.groups.group_records import GroupReplay, group_partition
from parley.broker.coordinators.groups.membership import GroupMembership
from parley.broker.coordinators.groups.offset_expiry import expired_offsets
from parley.broker.runtime.tasks import TaskSet
from parley.protocol.errors import ErrorCode, KafkaError

_log = logging.getLogger(__name__)

READ_AGAIN_FIRST_S, READ_AGAIN_MAX_S = 0.1, 10.0
"""The pause before a partition that cannot be read is read again. It doubles from the first to the longest."""


class OffsetsReader(Protocol):
    """Reads partitions of ``__consumer_offsets``."""

    async def replay(self, replay: GroupReplay) -> None:
        """Apply every record of the partition, up to the end of its log, to ``replay``. Raises KafkaError."""
        ...


@dataclass(slots=True)
class _Ownership:
    """A partition of ``__consumer_offsets`` that this broker leads, and its groups by id."""

    partition: int
    leader_epoch: int
    loading: asyncio.Task[None] | None = None
    groups: dict[str, Group] = field(default_factory=dict)


class GroupCoordinator:
    """The groups that this broker coordinates."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        group_log: GroupLog,
        reader: OffsetsReader,
        partition_count: Callable[[], int],
        now_ms: Callable[[], int],
        tasks: TaskSet,
        rng: Random,
    ) -> None:
        self.membership = GroupMembership(config, group_log, now_ms, tasks, rng, self.drop_unused)
        self.group_log = group_log
        self._config = config
        self._reader = reader
        self._partition_count = partition_count
        self._now_ms = now_ms
        self._tasks = tasks
        self._owned: dict[int, _Ownership] = {}

    # --- Partitions that this broker leads ---

    def on_elected(self, partition: int, leader_epoch: int) -> None:
        """Load the groups of a partition that this broker now leads."""
        known = self._owned.get(partition)
        if known is not None and known.leader_epoch >= leader_epoch:
            return
        self.on_resigned(partition)
        ownership = self._owned[partition] = _Ownership(partition, leader_epoch)
        ownership.loading = self._tasks.start(self._load(ownership), name=f"load groups of {partition}")

    def on_resigned(self, partition: int) -> None:
        """Unload the groups of a partition that this broker no longer leads."""
        ownership = self._owned.pop(partition, None)
        if ownership is None:
            return
        if ownership.loading is not None:
            ownership.loading.cancel()
        for group in ownership.groups.values():
            self.membership.abandon(group, ErrorCode.NOT_COORDINATOR)

    def resign_all(self) -> None:
        """Unload all groups: the broker stops, or the topic was deleted."""
        for partition in list(self._owned):
            self.on_resigned(partition)

    async def until_loaded(self, timeout_s: float, group_id: str | None = None) -> None:
        """Wait at most ``timeout_s`` until all partitions of this broker are loaded, or only the one of a group."""
        owned = self._owned.values() if group_id is None else [self._ownership_of(group_id)]
        loading = [ownership.loading for ownership in owned if ownership is not None and ownership.loading is not None]
        if loading:
            await asyncio.wait(loading, timeout=timeout_s)

    async def _load(self, ownership: _Ownership) -> None:
        replay = await self._read(ownership.partition)
        groups = replay.groups()
        for group in groups:
            ownership.groups[group.group_id] = group
            self.membership.start_sessions(group)
        ownership.loading = None
        if groups:
            _log.info("groups loaded", extra={"partition": ownership.partition, "groups": len(groups)})
        if replay.skipped:
            _log.warning(
                "records of the offsets topic are skipped: they are neither groups nor offsets",
                extra={"partition": ownership.partition, "records": replay.skipped, "first": replay.why_skipped},
            )

    async def _read(self, partition: int) -> GroupReplay:
        """Read a partition, and repeat that until it succeeds. It is cancelled when another broker is elected.

        Logs why the partition cannot be read whenever the reason changes.
        """
        pause_s, known_reason = READ_AGAIN_FIRST_S, ""
        while True:
            replay = GroupReplay(partition)
            try:
                await self._reader.replay(replay)
                return replay
            except Exception as error:
                reason = repr(error)
                if reason != known_reason:
                    _log.error(
                        "a partition of the offsets topic cannot be read: its groups wait until it can",
                        exc_info=None if isinstance(error, KafkaError) else error,
                        extra={"partition": partition, "error": str(error)},
                    )
                known_reason = reason
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, READ_AGAIN_MAX_S)

    # --- Lookup ---

    def check_owned(self, group_id: str) -> None:
        """Raise INVALID_GROUP_ID, NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS if the group cannot be used here."""
        self._require_owned(group_id)

    def _require_owned(self, group_id: str, *, may_be_unnamed: bool = False) -> _Ownership:
        if not group_id and not may_be_unnamed:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        ownership = self._ownership_of(group_id)
        if ownership is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if ownership.loading is not None:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return ownership

    def _ownership_of(self, group_id: str) -> _Ownership | None:
        count = self._partition_count()
        return self._owned.get(group_partition(group_id, count)) if count else None

    def find(self, group_id: str, *, may_be_unnamed: bool = False) -> Group | None:
        """Return a group, or None if it does not exist. Raises as ``check_owned`` does.

        ``may_be_unnamed`` allows the empty group id, with which clients older than KIP-289 commit offsets.
        """
        return self._require_owned(group_id, may_be_unnamed=may_be_unnamed).groups.get(group_id)

    def find_or_create(self, group_id: str, *, may_be_unnamed: bool = False) -> Group:
        """Return a group, after creating it if it does not exist. Raises as ``check_owned`` does."""
        ownership = self._require_owned(group_id, may_be_unnamed=may_be_unnamed)
        group = ownership.groups.get(group_id)
        if group is None:
            group = ownership.groups[group_id] = Group(group_id, ownership.partition, state_since_ms=self._now_ms())
        return group

    def all(self) -> list[Group]:
        """Return all groups of this broker. Raises COORDINATOR_LOAD_IN_PROGRESS while a partition is being loaded."""
        if any(ownership.loading is not None for ownership in self._owned.values()):
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return self._all_groups()

    def _all_groups(self) -> list[Group]:
        return [group for ownership in self._owned.values() for group in ownership.groups.values()]

    def counts_by_state(self) -> dict[GroupState, int]:
        """Return the number of groups in each state."""
        counts = dict.fromkeys(GroupState, 0)
        for group in self._all_groups():
            counts[group.state] += 1
        return counts

    # --- Deletion and expiry ---

    async def delete(self, group_id: str) -> None:
        """Delete a group without members, and its offsets. Raises NON_EMPTY_GROUP or GROUP_ID_NOT_FOUND."""
        group = self.find(group_id)
        if group is None or group.state is GroupState.DEAD:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        if group.state is not GroupState.EMPTY:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
        # Commits in progress need tombstones, too: they are in the log already, though not acknowledged.
        await self.group_log.forget(group, group.all_offsets(), whole_group=True)
        if group.is_idle:
            self._drop(group)
        elif group.state is GroupState.EMPTY:
            group.generation = 0  # a later commit, or a member about to join, has begun it again

    def drop_unused(self, group: Group) -> None:
        """Remove a group that was never used, so that arbitrary group ids do not accumulate."""
        if group.is_unused:
            self._drop(group)

    def _drop(self, group: Group) -> None:
        ownership = self._owned.get(group.partition)
        if ownership is not None and ownership.groups.get(group.group_id) is group:
            del ownership.groups[group.group_id]
        self.membership.abandon(group, ErrorCode.GROUP_ID_NOT_FOUND)

    async def expire(self) -> None:
        """Expire offsets and groups periodically; runs until it is cancelled."""
        while True:
            await asyncio.sleep(self._config().offsets_retention_check_interval_ms / 1000)
            for group in self._all_groups():
                await self.expire_group(group)

    async def expire_group(self, group: Group) -> None:
        """Remove a group's expired offsets, and the group itself if it then has neither members nor offsets."""
        retention_ms = self._config().offsets_retention_minutes * 60_000
        if group.commits_under_way:
            return  # a tombstone must not overtake a commit; the next round knows its outcome
        expired = expired_offsets(group, self._now_ms(), retention_ms)
        forget_group = group.state is GroupState.EMPTY and len(expired) == len(group.offsets) and not group.pending
        if not expired and not forget_group:
            return
        try:
            await self.group_log.forget(group, expired, whole_group=forget_group)
        except KafkaError as error:
            _log.warning("expired offsets were not removed", extra={"group": group.group_id, "error": error.code.name})
            return
        if forget_group and group.is_idle:
            self._drop(group)
        else:
            self.drop_unused(group)

    async def on_topic_deleted(self, topic: str) -> None:
        """Remove the offsets that groups committed for a deleted topic."""
        for group in self._all_groups():
            committed = {partition for partition in group.all_offsets() if partition[0] == topic}
            if committed:
                try:
                    await self.group_log.forget(group, committed, whole_group=False)
                except KafkaError as error:
                    _log.warning(
                        "offsets of a deleted topic remain",
                        extra={"group": group.group_id, "error": str(error)},
                    )
                    continue
                self.drop_unused(group)
