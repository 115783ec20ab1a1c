"""The group coordinator of one broker: which groups live here, from election to resignation.

A broker coordinates the groups of those partitions of ``__consumer_offsets`` that it leads. When it becomes leader it
reads the partition back (requests for its groups get COORDINATOR_LOAD_IN_PROGRESS meanwhile); when it stops being
leader it forgets the groups and answers NOT_COORDINATOR.
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

log = logging.getLogger(__name__)

READ_AGAIN_FIRST_S, READ_AGAIN_MAX_S = 0.1, 10.0
"""The pause before a partition that cannot be read is tried again: it doubles from the first to the longest."""


class OffsetsReader(Protocol):
    """Reads a partition of ``__consumer_offsets`` back."""

    async def replay(self, replay: GroupReplay) -> None:
        """Feed every record of its partition, up to the end of the log, to ``replay``. Raises KafkaError."""
        ...


@dataclass(slots=True)
class _Ownership:
    """A partition that this broker leads, and its groups by id."""

    partition: int
    leader_epoch: int
    loading: asyncio.Task[None] | None = None
    groups: dict[str, Group] = field(default_factory=dict)


class GroupCoordinator:
    """The groups of this broker."""

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

    # -- which partitions are ours -----------------------------------------------------------------------------

    def on_elected(self, partition: int, leader_epoch: int) -> None:
        """This broker leads the partition from now on: load its groups."""
        known = self._owned.get(partition)
        if known is not None and known.leader_epoch >= leader_epoch:
            return
        self.on_resigned(partition)
        ownership = self._owned[partition] = _Ownership(partition, leader_epoch)
        ownership.loading = self._tasks.start(self._load(ownership), name=f"load groups of {partition}")

    def on_resigned(self, partition: int) -> None:
        """This broker leads the partition no more: forget its groups."""
        ownership = self._owned.pop(partition, None)
        if ownership is None:
            return
        if ownership.loading is not None:
            ownership.loading.cancel()
        for group in ownership.groups.values():
            self.membership.abandon(group, ErrorCode.NOT_COORDINATOR)

    def resign_all(self) -> None:
        """The topic is gone: forget all groups."""
        for partition in list(self._owned):
            self.on_resigned(partition)

    async def until_loaded(self, timeout_s: float, group_id: str | None = None) -> None:
        """Wait until the partitions owned now, or only that of a group, have been read, at most so long."""
        homes = self._owned.values() if group_id is None else [self._home_of(group_id)]
        loading = [home.loading for home in homes if home is not None and home.loading is not None]
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
            log.info("groups loaded", extra={"partition": ownership.partition, "groups": len(groups)})
        if replay.skipped:
            log.warning(
                "records of the offsets topic are left out: they are no groups or offsets",
                extra={"partition": ownership.partition, "records": replay.skipped, "first": replay.why_skipped},
            )

    async def _read(self, partition: int) -> GroupReplay:
        """Read a partition back, as often as it takes: meanwhile its groups are being loaded, and other brokers' turn
        may come. Says why it cannot be read whenever the reason changes."""
        pause_s, known_reason = READ_AGAIN_FIRST_S, ""
        while True:
            replay = GroupReplay(partition)
            try:
                await self._reader.replay(replay)
                return replay
            except Exception as error:
                reason = repr(error)
                if reason != known_reason:
                    log.error(
                        "offsets partition not readable: its groups wait until it is",
                        exc_info=None if isinstance(error, KafkaError) else error,
                        extra={"partition": partition, "error": str(error)},
                    )
                known_reason = reason
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, READ_AGAIN_MAX_S)

    # -- finding a group ---------------------------------------------------------------------------------------

    def check_owned(self, group_id: str) -> None:
        """Raise INVALID_GROUP_ID, NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS unless the group lives here."""
        self._home(group_id)

    def _home(self, group_id: str, *, may_be_unnamed: bool = False) -> _Ownership:
        if not group_id and not may_be_unnamed:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        ownership = self._home_of(group_id)
        if ownership is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if ownership.loading is not None:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return ownership

    def _home_of(self, group_id: str) -> _Ownership | None:
        count = self._partition_count()
        return self._owned.get(group_partition(group_id, count)) if count else None

    def find(self, group_id: str, *, may_be_unnamed: bool = False) -> Group | None:
        """The group, or None where there is none; raises as :meth:`check_owned`.

        Offsets may belong to the group with the empty name, as clients of before KIP-289 wrote them.
        """
        return self._home(group_id, may_be_unnamed=may_be_unnamed).groups.get(group_id)

    def find_or_create(self, group_id: str, *, may_be_unnamed: bool = False) -> Group:
        """The group, which begins empty where there was none; raises as :meth:`check_owned`."""
        home = self._home(group_id, may_be_unnamed=may_be_unnamed)
        group = home.groups.get(group_id)
        if group is None:
            group = home.groups[group_id] = Group(group_id, home.partition, state_since_ms=self._now_ms())
        return group

    def all(self) -> list[Group]:
        """Every group of this broker; raises COORDINATOR_LOAD_IN_PROGRESS while any partition is being read."""
        if any(ownership.loading is not None for ownership in self._owned.values()):
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return self._here()

    def _here(self) -> list[Group]:
        return [group for ownership in self._owned.values() for group in ownership.groups.values()]

    def counts_by_state(self) -> dict[GroupState, int]:
        """How many groups are in each state, for the metrics."""
        counts = dict.fromkeys(GroupState, 0)
        for group in self._here():
            counts[group.state] += 1
        return counts

    # -- forgetting --------------------------------------------------------------------------------------------

    async def delete(self, group_id: str) -> None:
        """Delete a group without members, its offsets with it. Raises NON_EMPTY_GROUP or GROUP_ID_NOT_FOUND."""
        group = self.find(group_id)
        if group is None or group.state is GroupState.DEAD:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        if group.state is not GroupState.EMPTY:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
        # Tombstones of commits under way too: these are in the log already, though nobody was told yet.
        await self.group_log.forget(group, group.all_offsets(), whole_group=True)
        if group.is_idle:
            self._drop(group)
        elif group.state is GroupState.EMPTY:
            group.generation = 0  # begun anew by a later commit, or by somebody about to join

    def drop_unused(self, group: Group) -> None:
        """Forget a group at once that came to nothing, so that strangers' names do not gather here."""
        if group.is_unused:
            self._drop(group)

    def _drop(self, group: Group) -> None:
        ownership = self._owned.get(group.partition)
        if ownership is not None and ownership.groups.get(group.group_id) is group:
            del ownership.groups[group.group_id]
        self.membership.abandon(group, ErrorCode.GROUP_ID_NOT_FOUND)

    async def expire(self) -> None:
        """Forget, again and again, what has outlived its retention; runs until it is cancelled."""
        while True:
            await asyncio.sleep(self._config().offsets_retention_check_interval_ms / 1000)
            for group in self._here():
                await self.expire_group(group)

    async def expire_group(self, group: Group) -> None:
        """Forget a group's expired offsets, and the group itself once it has neither members nor offsets."""
        retention_ms = self._config().offsets_retention_minutes * 60_000
        if group.commits_under_way:
            return  # a tombstone must not overtake a commit; the next round sees its outcome
        gone = expired_offsets(group, self._now_ms(), retention_ms)
        forget_group = group.state is GroupState.EMPTY and len(gone) == len(group.offsets) and not group.pending
        if not gone and not forget_group:
            return
        try:
            await self.group_log.forget(group, gone, whole_group=forget_group)
        except KafkaError as error:
            log.warning("offsets not expired", extra={"group": group.group_id, "error": error.code.name})
            return
        if forget_group and group.is_idle:
            self._drop(group)
        else:
            self.drop_unused(group)

    async def on_topic_deleted(self, topic: str) -> None:
        """Forget what groups committed for a topic that is gone."""
        for group in self._here():
            gone = {partition for partition in group.all_offsets() if partition[0] == topic}
            if gone:
                try:
                    await self.group_log.forget(group, gone, whole_group=False)
                except KafkaError as error:
                    log.warning(
                        "offsets of a deleted topic remain", extra={"group": group.group_id, "error": str(error)}
                    )
                    continue
                self.drop_unused(group)
