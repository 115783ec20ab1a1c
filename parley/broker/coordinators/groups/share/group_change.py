"""The changes that one event makes to a share group: new values of members and epochs, and their records.

The stored state of the group changes when the records are replayed, the rest of its state when ``Decision.change`` is
called. Until then, reads through a ``ShareGroupChange`` include its changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from parley.broker.coordinators.decision import Decision, Timer
from parley.broker.coordinators.groups.consumer.topics import metadata_hash, topic_ids
from parley.broker.coordinators.groups.group_shard import GroupShard
from parley.broker.coordinators.groups.modern_group_change import ModernGroupChange
from parley.broker.coordinators.groups.share.share_group import (
    NOTHING,
    Assignment,
    ShareGroup,
    ShareMember,
    Stored,
    TopicPartitions,
)
from parley.broker.coordinators.groups.share.share_records import (
    current_record,
    epoch_record,
    member_record,
    member_tombstones,
    stored_record,
    target_epoch_record,
    target_record,
)
from parley.broker.coordinators.groups.share.simple_assignor import assign
from parley.broker.coordinators.groups.timer_kinds import TimerKind
from parley.protocol.uuids import UUID

T = TypeVar("T")

_log = logging.getLogger(__name__)


class ShareGroupChange(ModernGroupChange[ShareGroup, ShareMember]):
    """The changes that one event makes to a share group, with the resulting timers and records."""

    def __init__(self, shard: GroupShard, group: ShareGroup, now_ms: int) -> None:
        super().__init__(shard, group, now_ms)
        self.then: Callable[[], None] | None = None
        """Called after the in-sync replicas have the records (``Decision.then``)."""
        self._targets: dict[str, Assignment] = {}
        self._begun: tuple[UUID, ...] = ()

    def decision(self, reply: T) -> Decision[T]:
        """Return the change as a decision with this reply."""
        return Decision(
            reply,
            self.records,
            is_divisible=True,
            timers=self.timers,
            change=self._apply if self._checked_metadata or self._begun or self.epoch != self.group.epoch else None,
            then=self.then,
        )

    def _apply(self) -> None:
        group = self.shard.share_group(self.group_id)
        if group is None:
            return
        if self._checked_metadata:
            group.metadata_checked = True
        group.initializing_since_ms.update(dict.fromkeys(self._begun, self.now_ms))
        if group.epoch != self.group.epoch or self.records:
            _log.debug("share group changed", extra={"group": self.group_id, "epoch": group.epoch})

    # --- Members ---

    def put_member(self, member: ShareMember) -> None:
        """Add a member, or replace its details."""
        self._put(member, member_record(self.group_id, member))

    def put_progress(self, member: ShareMember) -> None:
        """Replace a member's epochs and partitions."""
        self._put(member, current_record(self.group_id, member))

    def remove(self, member: ShareMember) -> None:
        """Remove a member, and start a new epoch. Raises UNKNOWN_SERVER_ERROR if the group is in the highest epoch."""
        self._members[member.member_id] = None
        self.records += member_tombstones(self.group_id, member.member_id)
        self.timers[TimerKind.SHARE_SESSION, self.group_id, member.member_id] = None
        self._bump(metadata_hash(self.shard.image(), self.subscribed_topics()))

    def subscribed_topics(self) -> set[str]:
        """Return the names of all topics that any member subscribes to."""
        return {name for member in self.members() for name in member.topics}

    def target_of(self, member_id: str) -> Assignment:
        """Return a member's target assignment, which is empty if it has none."""
        return self._targets.get(member_id, self.group.targets.get(member_id, NOTHING))

    # --- Epochs ---

    def check_metadata(self, *, bump: bool) -> bool:
        """Start a new epoch if ``bump`` is True, or if the topics that members subscribe to have changed.

        Returns True if it has started a new epoch. Raises UNKNOWN_SERVER_ERROR if the group is in the highest epoch.
        """
        found = metadata_hash(self.shard.image(), self.subscribed_topics())
        self._checked_metadata = True
        if bump or found != self.group.metadata_hash:
            self._bump(found)
            return True
        return False

    def _bump(self, found_hash: int) -> None:
        self._raise_epoch()
        self.records.append(epoch_record(self.group_id, self.epoch, found_hash))

    # --- The target assignment ---

    def update_target(self) -> None:
        """Compute a new target assignment if the last one is for an earlier group epoch.

        The computation waits until ``share.assignment.interval.ms`` have passed since the last one. Until then, the
        last target assignment stays valid.
        """
        if self.epoch <= self.target_epoch:
            return
        interval_ms = self.shard.share_settings(self.group_id).assignment_interval_ms
        passed_ms = self.now_ms - self.group.target_since_ms
        if 0 <= passed_ms < interval_ms:  # below 0: the clock of the previous coordinator is ahead
            event = partial(assignment_due, self.group_id)
            self.timers[TimerKind.SHARE_ASSIGN, self.group_id] = Timer(interval_ms - passed_ms, event)
            return
        decided = self._assigned()
        for member_id, target in decided.items():
            if self.group.targets.get(member_id) != target:
                self.records.append(target_record(self.group_id, member_id, target))
        self._targets = dict(decided)
        self.records.append(target_epoch_record(self.group_id, self.epoch, self.now_ms))
        self.target_epoch = self.epoch

    def _assigned(self) -> Mapping[str, Assignment]:
        image = self.shard.image()
        subscriptions = {each.member_id: topic_ids(image, each.topics) for each in self.members()}
        assignable = {topic_id: sorted(each.partitions) for topic_id, each in self.group.stored.initialized.items()}
        return assign(subscriptions, assignable, self.group.targets)

    # --- Stored share partitions ---

    def put_stored(self, stored: Stored) -> None:
        """Replace the set of stored share partitions."""
        self.records.append(stored_record(self.group_id, stored))

    def note_begun(self, topics: Mapping[UUID, TopicPartitions]) -> None:
        """Record that the initialization of topics has started now, so that it is not started again too soon."""
        self._begun = tuple(topics)


def assignment_due(group_id: str, shard: GroupShard, now_ms: int) -> Decision[Any]:
    """Compute the target assignment of a group, because enough time has passed since the last one."""
    group = shard.share_group(group_id)
    if group is None or not group.members:
        return Decision(None)
    change = ShareGroupChange(shard, group, now_ms)
    change.update_target()
    return change.decision(None)
