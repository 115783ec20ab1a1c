"""The changes that one event makes to a streams group: new values of members and epochs, and their records.

The stored state of the group changes when the records are replayed, the rest of its state when ``Decision.change`` is
called. Until then, reads through a ``StreamsGroupChange`` include its changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from parley.broker.coordinators.decision import Decision, KeyValue, Timer
from parley.broker.coordinators.groups.consumer.topics import metadata_hash
from parley.broker.coordinators.groups.decided_targets import NOT_ENCODED, DecidedTargets, decided_targets
from parley.broker.coordinators.groups.group_shard import GroupShard
from parley.broker.coordinators.groups.modern_group_change import ModernGroupChange
from parley.broker.coordinators.groups.streams.configuration import Configured, Status, StatusCode, configure
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
from parley.broker.coordinators.groups.streams.target_assignment import LARGE, deciding, size_of
from parley.broker.coordinators.groups.streams.tasks import NO_TARGET, MemberTasks
from parley.broker.coordinators.groups.streams.topology import Topology
from parley.broker.coordinators.groups.timer_kinds import TimerKind

T = TypeVar("T")

_log = logging.getLogger(__name__)

BEING_COMPUTED: Final = "The assignment is being computed."


class StreamsGroupChange(ModernGroupChange[StreamsGroup, StreamsMember]):
    """The changes that one event makes to a streams group, with the resulting timers and records."""

    def __init__(self, shard: GroupShard, group: StreamsGroup, now_ms: int) -> None:
        super().__init__(shard, group, now_ms)
        self.settings = shard.streams_settings(group.group_id)
        self.is_new = shard.streams_group(group.group_id) is not group
        """True if the group does not exist yet."""
        self.statuses: list[Status] = []
        self.configured = group.configured
        self.is_delayed = group.is_delayed
        self.shutdown_by = group.shutdown_by
        self.endpoint_epoch = group.endpoint_epoch
        self._targets: Mapping[str, MemberTasks] = group.targets
        self._metadata_hash = group.metadata_hash
        self._bumps = False
        self._rebalanced = False
        self._decided: Mapping[str, object] | None = None
        self._defers_target = False

    def decision(self, reply: T) -> Decision[T]:
        """Return the change as a decision with this reply."""
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
        if self._decided is not None:
            _log.info("streams group has a new target assignment", extra=self._decided)
        group.is_delayed = self.is_delayed
        group.configured = self.configured
        if self._defers_target:
            self.shard.assign_in_thread(self.group_id)
        if was_new:
            return  # as in Kafka, the next heartbeat determines the rest again
        group.metadata_checked = group.metadata_checked or self._checked_metadata
        if group.members:
            group.shutdown_by = self.shutdown_by
        group.endpoint_epoch = self.endpoint_epoch

    # --- Members ---

    @property
    def _size(self) -> int:
        known = self.group.members
        return len(known) + sum((new is not None) - (each in known) for each, new in self._members.items())

    def put_member(self, member: StreamsMember) -> None:
        """Add a member, or replace its details. ``begin_epoch_if_changed`` then starts a new epoch."""
        self._put(member, member_record(self.group_id, member))
        self._bumps = True

    def put_progress(self, member: StreamsMember, progress: Progress) -> StreamsMember:
        """Replace a member's epochs and tasks. Returns the changed member."""
        member = replace(member, progress=progress)
        self._put(member, current_record(self.group_id, member))
        return member

    def remove(self, member: StreamsMember) -> None:
        """Remove a member, and start a new epoch. Raises UNKNOWN_SERVER_ERROR if the group is in the highest epoch."""
        group, member_id = self.group, member.member_id
        self._members[member_id] = None
        self.records += member_tombstones(self.group_id, member_id)
        self.timers[TimerKind.STREAMS_SESSION, self.group_id, member_id] = None
        self.timers[TimerKind.STREAMS_REBALANCE, self.group_id, member_id] = None
        self._begin_epoch(group.metadata_hash, group.validated_epoch, group.last_settings)

    # --- The topology ---

    def put_topology(self, topology: Topology) -> None:
        """Store the topology of the group."""
        self.records.append(topology_record(self.group_id, topology))

    def configure(self, topology: Topology) -> Configured:
        """Return the configured topology. Configures it again if its topics may have changed.

        Raises the errors of ``configuration.configure``.
        """
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
        """Start a new epoch if the members, the topics or the settings of the assignor have changed. Raises
        UNKNOWN_SERVER_ERROR if the group is in the highest epoch.

        ``validated_epoch`` is the epoch of the topology if all of its topics exist, otherwise -1. A change of it also
        starts a new epoch.
        """
        settings = self.settings.of_assignor()
        has_changed = validated_epoch != self.group.validated_epoch or settings != self.group.last_settings
        if self._bumps or has_changed:
            self._begin_epoch(self._metadata_hash, validated_epoch, settings)
            self._rebalanced = True

    def _begin_epoch(self, found_hash: int, validated_epoch: int, settings: Mapping[str, str]) -> None:
        self._raise_epoch()
        self.records.append(epoch_record(self.group_id, self.epoch, found_hash, validated_epoch, settings))

    # --- The target assignment ---

    def delay_first_assignment(self) -> None:
        """If the group has no members yet, delay its first assignment so that more members can join."""
        delay_ms = self.settings.initial_rebalance_delay_ms
        if not self.group.members and not self.is_delayed and delay_ms > 0:
            self.is_delayed = True
            self.timers[TimerKind.STREAMS_DELAY, self.group_id] = Timer(delay_ms, partial(delay_ended, self.group_id))

    def update_target(self, settings: Mapping[str, str]) -> None:
        """Compute a new target assignment if the last one is for an earlier group epoch. ``settings`` are those of the
        assignor.

        The computation waits until ``streams.assignment.interval.ms`` have passed since the last one. A large target
        assignment is computed in a thread. Until then, the last target assignment stays valid, and a status tells the
        member about the delay.
        """
        if self.is_delayed:
            self._note_delay("Assignment delayed due to the configured initial rebalance delay.")
            return
        if self.epoch <= self.target_epoch:
            return
        if self.group.is_assigning:
            self._note_delay(BEING_COMPUTED)
            return
        passed_ms = self.now_ms - self.group.target_since_ms
        if self.group.target_since_ms and 0 <= passed_ms < self.settings.assignment_interval_ms:
            self._note_delay("Assignment delayed due to the configured assignment interval.")
            return
        if size_of(self._size, self.configured, settings) >= LARGE:
            self._defers_target = True
            self._note_delay(BEING_COMPUTED)
            return
        self.put_targets(deciding(self.members(), self.group.targets, self.configured, settings)(), self.epoch)

    def _note_delay(self, text: str) -> None:
        self.statuses.append(Status(StatusCode.ASSIGNMENT_DELAYED, text))

    def put_targets(
        self, decided: Mapping[str, MemberTasks], epoch: int, encoded: Mapping[str, KeyValue] = NOT_ENCODED
    ) -> None:
        """Store the target assignment of an epoch. Writes only the targets that have changed.

        ``encoded`` contains the records of targets that a thread has already encoded, by member id.
        """
        for member_id, target in decided.items():
            if self.group.targets.get(member_id) != target:
                record = encoded.get(member_id)
                self.records.append(target_record(self.group_id, member_id, target) if record is None else record)
        self._targets = decided
        self.records.append(target_epoch_record(self.group_id, epoch, self.now_ms))
        self.target_epoch = epoch
        self._decided = {"group": self.group_id, "epoch": epoch, "members": len(decided)}

    def target_of(self, member_id: str) -> MemberTasks:
        """Return a member's target assignment. It is empty while the first assignment is delayed."""
        return NO_TARGET if self.is_delayed else self._targets.get(member_id, NO_TARGET)


def delay_ended(group_id: str, shard: GroupShard, now_ms: int) -> Decision[Any]:
    """Compute the first target assignment, because members have had time to join."""
    group = shard.streams_group(group_id)
    if group is None:
        return Decision(None)
    change = StreamsGroupChange(shard, group, now_ms)
    change.is_delayed = False
    if group.members and group.configured is not None:
        change.update_target(group.last_settings)
    return change.decision(None)


def in_steps(
    group: StreamsGroup,
) -> tuple[Callable[[], Any], Callable[[Any, GroupShard, int], Decision[None]]]:
    """Return two functions for a large target assignment. The first one computes the assignment, and may be called in a
    thread. The second one takes the result of the first one, and returns the decision that stores the assignment."""
    decide = deciding(group.members.values(), group.targets, group.configured, group.last_settings)
    with_records = partial(decided_targets, decide, dict(group.targets), partial(target_record, group.group_id))
    return with_records, partial(install_targets, group, group.epoch)


def install_targets(
    group: StreamsGroup, epoch: int, decided: DecidedTargets[MemberTasks], shard: GroupShard, now_ms: int
) -> Decision[None]:
    """Store a target assignment that a thread has computed for ``epoch``.

    Skips members that left in the meantime. Stores nothing if ``group`` was replaced by another group with the same id,
    or already has a target assignment for this epoch or a later one.
    """
    if shard.streams_group(group.group_id) is not group or not group.target_epoch < epoch <= group.epoch:
        return Decision(None)
    change = StreamsGroupChange(shard, group, now_ms)
    present = {each: target for each, target in decided.targets.items() if each in group.members}
    change.put_targets(present, epoch, decided.records)
    return change.decision(None)
