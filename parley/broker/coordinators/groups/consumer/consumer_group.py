"""A consumer group, as its records describe it: its epochs, members, target assignment and regular expressions.

It changes only when records are applied (``GroupShard.replay``). Decisions return records (``group_change.py``).

* The *group epoch* rises whenever a new target assignment is needed.
* The *target epoch* is the group epoch for which the target assignment was computed.
* A *member epoch* is the target epoch that the member has reached or is about to reach.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from enum import Enum
from typing import Final, NamedTuple

from parley.broker.coordinators.groups.consumer.member import (
    NEW,
    NOTHING,
    Assignment,
    Member,
    MemberDetails,
    MemberState,
    Owned,
    Progress,
)
from parley.light_dataclasses import dataclass
from parley.protocol.uuids import UUID

FIRST_EPOCH: Final = 1
"""The epoch of a group without records, and of its target assignment. In a heartbeat, epoch 0 means joining."""


class ConsumerGroupState(Enum):
    """The states of a consumer group, as ConsumerGroupDescribe and ListGroups return them."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """A new target assignment is needed and not computed yet."""
    RECONCILING = "Reconciling"
    """Some members do not have their target assignment yet."""
    STABLE = "Stable"
    DEAD = "Dead"


class ResolvedRegex(NamedTuple):
    """The topics that match a regular expression, the version of the metadata that it was matched against, and the time
    of the match."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


@dataclass(slots=True, eq=False)
class ConsumerGroup:
    """A group of the consumer protocol, without its committed offsets."""

    group_id: str
    epoch: int = FIRST_EPOCH
    metadata_hash: int = 0
    """The hash of the topics that the members subscribe to. If it changes, a new target assignment is needed."""
    members: dict[str, Member] = field(default_factory=dict)
    static_ids: dict[str, str] = field(default_factory=dict)
    """The member ids of static members, by instance id."""
    target_epoch: int = FIRST_EPOCH
    target_since_ms: int = 0
    """When the target assignment was computed, or 0 if it never was."""
    targets: dict[str, Assignment] = field(default_factory=dict)
    regexes: dict[str, ResolvedRegex] = field(default_factory=dict)
    owners: dict[UUID, dict[int, str]] = field(default_factory=dict)
    """The member that owns each partition, or still has to revoke it."""
    topic_subscribers: dict[str, int] = field(default_factory=dict)
    """The number of members that subscribe to each topic by name. Subscriptions by regular expression are not
    counted."""
    regex_subscribers: dict[str, int] = field(default_factory=dict)
    has_old_metadata: bool = False
    """True if the log contains topic metadata that an older broker (until Kafka 4.0) has stored."""
    metadata_checked: bool = False
    """True if ``metadata_hash`` is the hash of the current topics. Not stored: a loaded group checks again."""
    is_assigning: bool = False
    """True while a thread computes the target assignment. Not stored."""
    is_resolving: bool = False
    """True while a thread matches the regular expressions. Not stored."""
    match_tried_ms: int = 0
    """When a thread last started matching the regular expressions, or 0 if the last match succeeded. Not stored."""
    unmatched_regexes: set[str] = field(default_factory=set)
    """The regular expressions for which a failure to match has been logged. Not stored."""
    joining_again: set[str] = field(default_factory=set)
    """The members of the classic protocol that got REBALANCE_IN_PROGRESS and have not rejoined yet. Not stored."""

    # --- Reading ---

    def state(self) -> ConsumerGroupState:
        """Return the state of the group, which follows from the epochs."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.progress.is_reconciled_to(self.target_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def owner(self, topic: UUID, partition: int) -> str | None:
        """Return the id of the member that owns a partition or still has to revoke it; None if there is none."""
        return self.owners.get(topic, {}).get(partition)

    def target_of(self, member_id: str, instance_id: str | None) -> Assignment:
        """Return a member's target assignment, which is empty if it has none. A new static member gets the target of
        its previous incarnation."""
        known = self.targets.get(member_id)
        if known is None and instance_id is not None:
            known = self.targets.get(self.static_ids.get(instance_id, ""))
        return NOTHING if known is None else known

    def subscribed_topics(self) -> set[str]:
        """Return the names of all topics that any member subscribes to."""
        return set(self.topic_subscribers).union(*(each.topics for each in self.regexes.values()))

    # --- Records ---

    def put_details(self, member_id: str, details: MemberDetails) -> None:
        """Add a member, or replace its details."""
        known = self.members.get(member_id)
        if known is not None:
            self._uncount(known.details)
            self._forget_instance(known)
        self._count(details)
        self.members[member_id] = Member(member_id, details) if known is None else replace(known, details=details)
        if details.instance_id is not None:
            self.static_ids[details.instance_id] = member_id

    def remove_member(self, member_id: str) -> None:
        """Remove a member, and release its partitions."""
        known = self.members.pop(member_id, None)
        self.joining_again.discard(member_id)
        if known is None:
            return
        self._uncount(known.details)
        self._disown(member_id, known.progress)
        self._forget_instance(known)

    def put_progress(self, member_id: str, progress: Progress) -> None:
        """Replace a member's epochs and partitions. Adds the member if it is unknown: compaction can move the record of
        its details after this one."""
        known = self.members.get(member_id)
        if known is None:
            self.put_details(member_id, MemberDetails())
            known = self.members[member_id]
        self._disown(member_id, known.progress)
        for owned in (progress.assigned, progress.revoking):
            for topic, partitions in owned.items():
                self.owners.setdefault(topic, {}).update(dict.fromkeys(partitions, member_id))
        self.members[member_id] = replace(known, progress=progress)

    def remove_progress(self, member_id: str) -> None:
        """Reset a member's epochs and partitions to those of a member that has just joined. Does nothing if the member
        is unknown."""
        if member_id in self.members:
            self.put_progress(member_id, NEW)

    def _forget_instance(self, member: Member) -> None:
        instance_id = member.details.instance_id
        if instance_id is not None and self.static_ids.get(instance_id) == member.member_id:
            del self.static_ids[instance_id]

    def _disown(self, member_id: str, progress: Progress) -> None:
        for topic, partition in _each(progress):
            owners = self.owners.get(topic)
            if owners is not None and owners.get(partition) == member_id:
                del owners[partition]
                if not owners:
                    del self.owners[topic]

    def _count(self, details: MemberDetails) -> None:
        _add(self.topic_subscribers, details.topics)
        if details.regex:
            _add(self.regex_subscribers, (details.regex,))

    def _uncount(self, details: MemberDetails) -> None:
        _subtract(self.topic_subscribers, details.topics)
        if details.regex:
            _subtract(self.regex_subscribers, (details.regex,))


def _each(progress: Progress) -> Iterator[tuple[UUID, int]]:
    owned: Owned
    for owned in (progress.assigned, progress.revoking):
        for topic, partitions in owned.items():
            for partition in partitions:
                yield topic, partition


def _add(counts: dict[str, int], names: tuple[str, ...]) -> None:
    for name in names:
        counts[name] = counts.get(name, 0) + 1


def _subtract(counts: dict[str, int], names: tuple[str, ...]) -> None:
    for name in names:
        left = counts[name] - 1
        if left:
            counts[name] = left
        else:
            del counts[name]


def is_waiting_for_release(group: ConsumerGroup, member: Member, target: Assignment) -> bool:
    """Return True if the member is in the state UNRELEASED_PARTITIONS, and a partition of ``target`` that it lacks
    still has an owner."""
    if member.progress.state is not MemberState.UNRELEASED_PARTITIONS:
        return False
    mine: Mapping[UUID, Mapping[int, int]] = member.progress.assigned
    return any(
        partition not in mine.get(topic, {}) and group.owner(topic, partition) is not None
        for topic, partitions in target.items()
        for partition in partitions
    )
