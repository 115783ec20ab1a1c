"""The changes that one event makes to a consumer group: new values of members and epochs, and their records.

The stored state of the group changes when the records are replayed, the rest of its state when ``Decision.change`` is
called. Until then, reads through a ``GroupChange`` include its changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from parley.broker.coordinators.decision import Decision, KeyValue, Timer
from parley.broker.coordinators.groups.consumer.consumer_group import ConsumerGroup, ResolvedRegex
from parley.broker.coordinators.groups.consumer.consumer_records import (
    current_record,
    epoch_record,
    member_record,
    member_tombstones,
    old_metadata_tombstone,
    regex_record,
    regex_tombstone,
    target_epoch_record,
    target_record,
)
from parley.broker.coordinators.groups.consumer.member import Assignment, Member, MemberDetails, Progress
from parley.broker.coordinators.groups.consumer.target_assignment import (
    LARGE,
    assign,
    group_spec,
    preferred_assignor,
    size_of,
)
from parley.broker.coordinators.groups.consumer.topics import metadata_hash
from parley.broker.coordinators.groups.decided_targets import NOT_ENCODED, DecidedTargets, decided_targets
from parley.broker.coordinators.groups.group_shard import GroupShard, Note
from parley.broker.coordinators.groups.modern_group_change import ModernGroupChange
from parley.broker.coordinators.groups.timer_kinds import OF_CONSUMER_MEMBER, TimerKind

T = TypeVar("T")

_log = logging.getLogger(__name__)


class GroupChange(ModernGroupChange[ConsumerGroup, Member]):
    """The changes that one event makes to a consumer group, with the resulting timers and records."""

    def __init__(self, shard: GroupShard, group: ConsumerGroup, now_ms: int, records: Iterable[KeyValue] = ()) -> None:
        """``records`` are written before the records of the change. They convert a classic group to ``group``, if
        necessary."""
        super().__init__(shard, group, now_ms)
        self.records += records
        self.released: Mapping[Hashable, object] = {}
        self.regexes: dict[str, ResolvedRegex] = dict(group.regexes) if group.regexes else {}
        self._targets: dict[str, Assignment | None] = {}
        self._notes: list[Note] = []
        self._effects: list[Callable[[], None]] = []
        self._rebalanced = False

    def decision(self, reply: T) -> Decision[T]:
        """Return the change as a decision with this reply."""
        is_plain = not (self._checked_metadata or self._notes or self._effects)
        return Decision(
            reply,
            self.records,
            is_divisible=True,
            timers=self.timers,
            released=self.released,
            change=None if is_plain else self._apply,
            then=self.shard.on_epoch_begun if self._rebalanced else None,
        )

    def _apply(self) -> None:
        group = self.shard.consumer_group(self.group.group_id)
        if group is not None and self._checked_metadata:
            group.metadata_checked = True
        for message, facts in self._notes:
            _log.info(message, extra={"group": self.group.group_id, **facts})
        for effect in self._effects:
            effect()

    def note(self, message: str, **facts: object) -> None:
        """Log ``message`` with ``facts`` when the change is applied."""
        self._notes.append((message, facts))

    def afterwards(self, effect: Callable[[], None]) -> None:
        """Call ``effect`` as soon as the records are applied to the group, before they are replicated
        (``Decision.change``)."""
        self._effects.append(effect)

    # --- Reading ---

    def member(self, member_id: str) -> Member | None:
        """Return a member, or None if it does not exist or was removed."""
        if member_id in self._members:
            return self._members[member_id]
        return self.group.members.get(member_id)

    def changed_members(self) -> list[Member]:
        """Return the members that the event has added or changed."""
        return [each for each in self._members.values() if each is not None]

    def target_of(self, member: Member) -> Assignment:
        """Return a member's target assignment, which is empty if it has none."""
        target = self._targets.get(member.member_id)
        if target is not None:
            return target
        return self.group.target_of(member.member_id, member.details.instance_id)

    def subscribers_of(self, regex: str) -> int:
        """Return the number of members that subscribe to a regular expression."""
        return self.group.regex_subscribers.get(regex, 0) + sum(
            (new is not None and new.details.regex == regex) - (old is not None and old.details.regex == regex)
            for old, new in self._replaced()
        )

    def _replaced(self) -> list[tuple[Member | None, Member | None]]:
        return [(self.group.members.get(member_id), new) for member_id, new in self._members.items()]

    def subscribed_topics(self) -> set[str]:
        """Return the names of all topics that any member subscribes to."""
        counts = dict(self.group.topic_subscribers)
        for old, new in self._replaced():
            for name in () if new is None else new.details.topics:
                counts[name] = counts.get(name, 0) + 1
            for name in () if old is None else old.details.topics:
                counts[name] -= 1
        names = {name for name, count in counts.items() if count}
        return names.union(*(resolved.topics for resolved in self.regexes.values()))

    # --- Members ---

    def put_details(self, member_id: str, details: MemberDetails) -> Member:
        """Add a member, or replace its details. Returns the changed member."""
        known = self.member(member_id)
        member = Member(member_id, details) if known is None else replace(known, details=details)
        self._put(member, member_record(self.group_id, member))
        return member

    def put_progress(self, member: Member, progress: Progress) -> Member:
        """Replace a member's epochs and partitions. Returns the changed member."""
        member = replace(member, progress=progress)
        self._put(member, current_record(self.group_id, member))
        return member

    def remove(self, member: Member) -> None:
        """Remove a member and its timers. Does not change the group epoch."""
        self._members[member.member_id] = None
        self.records += member_tombstones(self.group_id, member.member_id)
        for kind in OF_CONSUMER_MEMBER:
            self.timers[kind, self.group_id, member.member_id] = None

    def replace_static(self, old: Member, new_id: str) -> Member:
        """Replace a static member's previous incarnation with the restarted one, and return the restarted one. It keeps
        its partitions and target."""
        target = self.group.targets.get(old.member_id, {})
        self.remove(old)
        new = Member(new_id, old.details, replace(old.progress, epoch=0, previous_epoch=0))
        self._put(new, member_record(self.group_id, new))
        self._targets[new_id] = target
        self.records.append(target_record(self.group_id, new_id, target))
        self.records.append(current_record(self.group_id, new))
        return new

    # --- Epochs ---

    def check_metadata(self, *, bump: bool) -> None:
        """Start a new epoch if ``bump`` is True, or if the topics that members subscribe to have changed. Raises
        UNKNOWN_SERVER_ERROR if the group is in the highest epoch."""
        found = metadata_hash(self.shard.image(), self.subscribed_topics())
        self._checked_metadata = True
        if bump or found != self.group.metadata_hash:
            self.bump(found)
        if self.group.has_old_metadata:
            self.records.append(old_metadata_tombstone(self.group_id))

    def bump(self, found_hash: int | None = None) -> None:
        """Start a new group epoch, which needs a new target assignment. Raises UNKNOWN_SERVER_ERROR if the group is in
        the highest epoch.

        ``found_hash`` is the hash of the topics that the members subscribe to; if it is None, it is computed.
        """
        if found_hash is None:
            found_hash = metadata_hash(self.shard.image(), self.subscribed_topics())
            self._checked_metadata = True
        self._raise_epoch()
        self._rebalanced = True
        self.records.append(epoch_record(self.group_id, self.epoch, found_hash))

    def put_regex(self, regex: str, resolved: ResolvedRegex) -> None:
        """Store the topics that match a regular expression."""
        self.regexes[regex] = resolved
        self.records.append(regex_record(self.group_id, regex, resolved))

    def remove_regex(self, regex: str) -> None:
        """Remove a regular expression to which no member subscribes anymore."""
        self.regexes.pop(regex, None)
        self.records.append(regex_tombstone(self.group_id, regex))

    # --- The target assignment ---

    def update_target(self) -> None:
        """Compute a new target assignment if the last one is for an earlier group epoch.

        The computation waits until ``consumer.assignment.interval.ms`` have passed since the last one. A large target
        assignment is computed in a thread. Until then, the last target assignment stays valid. Raises
        UNKNOWN_SERVER_ERROR if the assignor fails.
        """
        if self.epoch <= self.target_epoch or self.group.is_assigning:
            return
        interval_ms = self.shard.settings(self.group_id).assignment_interval_ms
        passed_ms = self.now_ms - self.group.target_since_ms
        if 0 <= passed_ms < interval_ms:  # below 0: the clock of the previous coordinator is ahead
            self.timers[TimerKind.ASSIGN, self.group_id] = Timer(
                interval_ms - passed_ms, partial(assignment_due, self.group_id)
            )
            return
        members = self.members()
        targets = self.group.targets
        if self._targets:
            targets = targets | {each: target for each, target in self._targets.items() if target is not None}
        if size_of(len(members), self.subscribed_topics(), self.shard.image()) >= LARGE:
            self.afterwards(partial(self.shard.assign_in_thread, self.group_id))
            return
        spec = group_spec(members, targets, self.regexes, self.shard.image())
        assignor = preferred_assignor(members, self.shard.assignors)
        self.put_targets(assign(assignor, spec), self.epoch)

    def put_targets(
        self, decided: Mapping[str, Assignment], epoch: int, encoded: Mapping[str, KeyValue] = NOT_ENCODED
    ) -> None:
        """Store the target assignment of an epoch. Writes only the targets that have changed.

        ``encoded`` contains the records of targets that a thread has already encoded, by member id.
        """
        for member_id, target in decided.items():
            known = self._targets.get(member_id, self.group.targets.get(member_id))
            if known is None or known != target:
                record = encoded.get(member_id)
                self.records.append(target_record(self.group_id, member_id, target) if record is None else record)
            self._targets[member_id] = target
        self.records.append(target_epoch_record(self.group_id, epoch, self.now_ms))
        self.target_epoch = epoch
        # Log one line for all epochs since the last assignment: members that join together cause hundreds per second.
        self.note("consumer group has a new target assignment", epoch=epoch, members=len(decided))


def assignment_due(group_id: str, shard: GroupShard, now_ms: int) -> Decision[Any]:
    """Compute the target assignment of a group, because enough time has passed since the last one."""
    group = shard.consumer_group(group_id)
    if group is None or not group.members:
        return Decision(None)
    change = GroupChange(shard, group, now_ms)
    change.update_target()
    return change.decision(None)


def in_steps(
    shard: GroupShard, group: ConsumerGroup
) -> tuple[Callable[[], Any], Callable[[Any, GroupShard, int], Decision[None]]]:
    """Return two functions for a large target assignment. The first one computes the assignment, and may be called in a
    thread. It raises UNKNOWN_SERVER_ERROR if the assignor fails. The second one takes the result of the first one, and
    returns the decision that stores the assignment."""
    members = list(group.members.values())
    spec = group_spec(members, group.targets, group.regexes, shard.image())
    instances = {
        member_id: member.instance_id for member_id, member in spec.members.items() if member.instance_id is not None
    }
    decide = partial(assign, preferred_assignor(members, shard.assignors), spec)
    with_records = partial(decided_targets, decide, dict(group.targets), partial(target_record, group.group_id))
    return with_records, partial(install_targets, group, group.epoch, instances)


def install_targets(
    group: ConsumerGroup,
    epoch: int,
    instances: Mapping[str, str],
    decided: DecidedTargets[Assignment],
    shard: GroupShard,
    now_ms: int,
) -> Decision[None]:
    """Store a target assignment that a thread has computed for ``epoch``.

    Skips members that left in the meantime. ``instances`` maps the ids of static members to their instance ids: a
    member that has replaced one of them gets its target. Stores nothing if ``group`` was replaced by another group with
    the same id, or already has a target assignment for this epoch or a later one.
    """
    if shard.consumer_group(group.group_id) is not group or not group.target_epoch < epoch <= group.epoch:
        return Decision(None)
    present: dict[str, Assignment] = {}
    for member_id, target in decided.targets.items():
        now_id = group.static_ids.get(instances.get(member_id, ""), member_id)
        if now_id in group.members:
            present[now_id] = target
    change = GroupChange(shard, group, now_ms)
    encoded = {each: record for each, record in decided.records.items() if present.get(each) is decided.targets[each]}
    change.put_targets(present, epoch, encoded)
    return change.decision(None)
