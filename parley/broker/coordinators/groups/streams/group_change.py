"""What one event changes in a streams group: new values of members and epochs, with the records that say so.

It changes nothing itself. It looks at the group through its own changes, as if they were made already.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from parley.broker.coordinators.decision import Decision, KeyValue, Timer
from parley.broker.coordinators.groups.consumer.topics import metadata_hash
from parley.broker.coordinators.groups.group_shard import GroupShard
from parley.broker.coordinators.groups.streams.configuration import Configured, Status, StatusCode, configure
from parley.broker.coordinators.groups.streams.settings import STANDBY_REPLICAS
from parley.broker.coordinators.groups.streams.sticky_assignor import MemberSpec, SubtopologySpec, assign
from parley.broker.coordinators.groups.streams.streams_group import Progress, StreamsGroup, StreamsMember
from parley.broker.coordinators.groups.streams.streams_records import (
    current_record,
    epoch_record,
    member_record,
    member_tombstones,
    target_epoch_record,
    target_record,
    topology_record,
)
from parley.broker.coordinators.groups.streams.tasks import NO_TARGET, TargetTasks
from parley.broker.coordinators.groups.streams.topology import Topology
from parley.protocol.errors import ErrorCode, KafkaError

T = TypeVar("T")

_log = logging.getLogger(__name__)

EPOCH_MAX: Final = (1 << 31) - 1


class StreamsGroupChange:
    """A streams group as one event changes it, with the timers and records that result."""

    def __init__(self, shard: GroupShard, group: StreamsGroup, now_ms: int) -> None:
        self.shard = shard
        self.group = group
        self.now_ms = now_ms
        self.settings = shard.streams_settings(group.group_id)
        self.records: list[KeyValue] = []
        self.timers: dict[Hashable, Timer | None] = {}
        self.statuses: list[Status] = []
        self.epoch = group.epoch
        self.target_epoch = group.target_epoch
        self.configured = group.configured
        self.is_delayed = group.is_delayed
        self.shutdown_by = group.shutdown_by
        self.endpoint_epoch = group.endpoint_epoch
        self._members = dict(group.members)
        self._targets: Mapping[str, TargetTasks] = group.targets
        self._metadata_hash = group.metadata_hash
        self._checked_metadata = False
        self._bumps = False
        self._rebalanced = False
        self._begun: Mapping[str, object] | None = None

    @property
    def group_id(self) -> str:
        return self.group.group_id

    @property
    def is_new(self) -> bool:
        """True if the group does not exist yet."""
        return self.shard.streams_group(self.group_id) is not self.group

    def decision(self, reply: T) -> Decision[T]:
        """Return all of it as a decision."""
        return Decision(
            reply,
            self.records,
            is_divisible=True,
            timers=self.timers,
            change=partial(self._apply, self.is_new),
            then=self.shard.on_streams_epoch_begun if self._rebalanced else None,
        )

    def _apply(self, was_new: bool) -> None:
        group = self.shard.streams_group(self.group_id)
        if group is None:
            return
        if self._begun is not None:
            _log.info("streams group begins an epoch", extra=self._begun)
        group.is_delayed = self.is_delayed
        if was_new:
            return  # the rest is found again, as in Kafka
        group.configured = self.configured
        group.metadata_checked = group.metadata_checked or self._checked_metadata
        if group.members:
            group.shutdown_by = self.shutdown_by
        group.endpoint_epoch = self.endpoint_epoch

    # --- Members ---

    def put_member(self, member: StreamsMember) -> None:
        """Add a member, or replace its details: the group will begin another epoch."""
        self._members[member.member_id] = member
        self.records.append(member_record(self.group_id, member))
        self._bumps = True

    def put_progress(self, member: StreamsMember, progress: Progress) -> StreamsMember:
        """Replace a member's epochs and tasks."""
        member = replace(member, progress=progress)
        self._members[member.member_id] = member
        self.records.append(current_record(self.group_id, member))
        return member

    def remove(self, member: StreamsMember) -> None:
        """Remove a member, and begin another epoch."""
        group, member_id = self.group, member.member_id
        del self._members[member_id]
        self.records += member_tombstones(self.group_id, member_id)
        self.timers["streams-session", self.group_id, member_id] = None
        self.timers["streams-rebalance", self.group_id, member_id] = None
        self._begin_epoch(group.metadata_hash, group.validated_epoch, group.last_settings)

    # --- The topology ---

    def put_topology(self, topology: Topology) -> None:
        """Store the topology of the group."""
        self.records.append(topology_record(self.group_id, topology))

    def configure(self, topology: Topology) -> Configured:
        """Find the topics of the topology, if they may have changed. Raises what ``configuration.configure`` does."""
        group = self.group
        is_unknown = group.topology is None or self.configured is None
        if is_unknown or not group.metadata_checked:
            self._metadata_hash = metadata_hash(self.shard.image(), topology.required_topics())
            self._checked_metadata = True
            has_changed = self._metadata_hash != group.metadata_hash
            self._bumps = self._bumps or has_changed
            if is_unknown or has_changed:
                self.configured = configure(topology, self.shard.image())
        assert self.configured is not None
        return self.configured

    # --- Epochs ---

    def begin_epoch_if_changed(self, validated_epoch: int) -> None:
        """Begin another epoch if the members, the topics or the settings of the assignor have changed."""
        settings = self.settings.of_assignor()
        has_changed = validated_epoch != self.group.validated_epoch or settings != self.group.last_settings
        if self._bumps or has_changed:
            self._begin_epoch(self._metadata_hash, validated_epoch, settings)
            self._rebalanced = True

    def _begin_epoch(self, found_hash: int, validated_epoch: int, settings: Mapping[str, str]) -> None:
        if self.epoch >= EPOCH_MAX:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "The group has no further epoch: delete it.")
        self.epoch += 1
        self.records.append(epoch_record(self.group_id, self.epoch, found_hash, validated_epoch, settings))
        self._begun = {"group": self.group_id, "epoch": self.epoch, "members": len(self._members)}

    # --- The target assignment ---

    def delay_first_assignment(self) -> None:
        """Let the first assignment wait for more members, if the group has none yet."""
        delay_ms = self.settings.initial_rebalance_delay_ms
        if not self.group.members and not self.is_delayed and delay_ms > 0:
            self.is_delayed = True
            self.timers["streams-delay", self.group_id] = Timer(delay_ms, partial(delay_ended, self.group_id))

    def update_target(self, settings: Mapping[str, str]) -> None:
        """Decide the target assignment if the group has another epoch than it.

        That waits until ``streams.assignment.interval.ms`` after the last one; in the meantime the last one holds.
        """
        if self.is_delayed:
            text = "Assignment delayed due to the configured initial rebalance delay."
            self.statuses.append(Status(StatusCode.ASSIGNMENT_DELAYED, text))
            return
        if self.epoch <= self.target_epoch:
            return
        passed_ms = self.now_ms - self.group.target_since_ms
        if self.group.target_since_ms and 0 <= passed_ms < self.settings.assignment_interval_ms:
            text = "Assignment delayed due to the configured assignment interval."
            self.statuses.append(Status(StatusCode.ASSIGNMENT_DELAYED, text))
            return
        decided = self._assigned(int(settings.get(STANDBY_REPLICAS, "0")))
        for member_id, target in decided.items():
            if self.group.targets.get(member_id) != target:
                self.records.append(target_record(self.group_id, member_id, target))
        self._targets = decided
        self.records.append(target_epoch_record(self.group_id, self.epoch, self.now_ms))
        self.target_epoch = self.epoch

    def _assigned(self, standby_replicas: int) -> dict[str, TargetTasks]:
        configured = self.configured
        if configured is None or not configured.is_ready or configured.subtopologies is None:
            return dict.fromkeys(self._members, NO_TARGET)
        members = {
            member_id: MemberSpec(member.details.process_id, self.group.target_of(member_id))
            for member_id, member in sorted(self._members.items())
        }
        subtopologies = {
            name: SubtopologySpec(each.tasks, each.is_stateful) for name, each in configured.subtopologies.items()
        }
        return assign(members, subtopologies, standby_replicas)

    def target_of(self, member_id: str) -> TargetTasks:
        """Return a member's target assignment; none while the first one is delayed."""
        return NO_TARGET if self.is_delayed else self._targets.get(member_id, NO_TARGET)

    def members(self) -> Mapping[str, StreamsMember]:
        """Return the members."""
        return self._members


def delay_ended(group_id: str, shard: GroupShard, now_ms: int) -> Decision[Any]:
    """Decide the first target assignment, now that members had time to join."""
    group = shard.streams_group(group_id)
    if group is None:
        return Decision(None)
    change = StreamsGroupChange(shard, group, now_ms)
    change.is_delayed = False
    if group.members and group.configured is not None:
        change.update_target(group.last_settings)
    return change.decision(None)
