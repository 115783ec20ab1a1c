"""How a member approaches its target assignment: a pure decision, made in each of its heartbeats.

1. Partitions that the target does not have are revoked first. The member keeps its epoch until it says that it no
   longer has them.
2. Then it enters the target's epoch, and gets those partitions of the target that no other member has.
3. It gets the others in later heartbeats, when their members have given them up.

A partition of a topic that the member no longer subscribes to is revoked at once, whatever the target says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from uuid import UUID

from parley.broker.coordinators.groups.consumer.member import (
    NOTHING,
    Assignment,
    MemberState,
    Owned,
    Progress,
)
from parley.protocol.errors import ErrorCode, KafkaError


@dataclass(frozen=True, slots=True)
class Target:
    """What a member is to have, and the epoch of that."""

    epoch: int
    partitions: Assignment


@dataclass(frozen=True, slots=True)
class Situation:
    """What a decision about a member depends on, beside its progress."""

    target: Target
    subscribed: Set[UUID]
    """The topics that the member subscribes to."""
    subscription_changed: bool
    """True if the subscription has changed in this heartbeat."""
    reported: Assignment | None
    """The partitions that the member says it has; None if it does not say."""
    is_free: Callable[[UUID, int], bool]
    """True if no member, this one included, has the partition or must still give it up."""


def reconciled(progress: Progress, situation: Situation) -> Progress:
    """Return the progress of a member after a heartbeat; the same object if nothing changes.

    Raises FENCED_MEMBER_EPOCH for a member in a state of a later version, unless it says that it has no partitions.
    """
    following = _following(progress, situation)
    return progress if following == progress else following


def _following(progress: Progress, situation: Situation) -> Progress:
    match progress.state:
        case MemberState.STABLE:
            if progress.epoch != situation.target.epoch:
                return _next(progress, progress.epoch, situation)
        case MemberState.UNREVOKED_PARTITIONS:
            if not _still_has(progress.revoking, situation.reported):
                return _next(progress, progress.epoch, situation)
        case MemberState.UNRELEASED_PARTITIONS:
            return _next(progress, progress.epoch, situation)
        case MemberState.UNKNOWN:
            if situation.reported is None or situation.reported:
                raise KafkaError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    "The member is in a state that this broker does not know. It must give up its partitions and join "
                    "again.",
                )
            return _next(progress, situation.target.epoch, situation)
    return _without_unsubscribed(progress, situation) if situation.subscription_changed else progress


def _still_has(partitions: Owned, reported: Assignment | None) -> bool:
    """True if the member has one of these partitions, or does not say."""
    if reported is None:
        return True
    return any(
        partition in partitions.get(topic, NOTHING) for topic, indexes in reported.items() for partition in indexes
    )


def _next(progress: Progress, epoch: int, situation: Situation) -> Progress:
    target, subscribed = situation.target, situation.subscribed
    kept: dict[UUID, dict[int, int]] = {}
    revoked: dict[UUID, dict[int, int]] = {}
    granted: dict[UUID, list[int]] = {}
    waits = False
    for topic in dict.fromkeys((*target.partitions, *progress.assigned)):
        wanted = frozenset(target.partitions.get(topic, ())) if topic in subscribed else frozenset()
        has = progress.assigned.get(topic, NOTHING)
        _put(kept, topic, {each: since for each, since in has.items() if each in wanted})
        _put(revoked, topic, {each: since for each, since in has.items() if each not in wanted})
        mine = progress.revoking.get(topic, NOTHING)
        missing = sorted(wanted - has.keys())
        free = [each for each in missing if each in mine or situation.is_free(topic, each)]
        waits = waits or len(free) < len(missing)
        if free:
            granted[topic] = free
    if revoked and _still_has(revoked, situation.reported):
        return progress.moved_to(epoch, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, revoking=revoked)
    for topic, partitions in granted.items():
        since = kept.get(topic, {}) | dict.fromkeys(partitions, target.epoch)
        kept[topic] = dict(sorted(since.items()))
    state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
    return progress.moved_to(target.epoch, state=state, assigned=kept, revoking=NOTHING)


def _without_unsubscribed(progress: Progress, situation: Situation) -> Progress:
    """Revoke the partitions of topics that the member no longer subscribes to."""
    gone = [topic for topic in progress.assigned if topic not in situation.subscribed]
    if not gone:
        return progress
    kept = {topic: each for topic, each in progress.assigned.items() if topic in situation.subscribed}
    revoked = {topic: dict(each) for topic, each in progress.revoking.items()}
    for topic in gone:
        revoked[topic] = {**revoked.get(topic, {}), **progress.assigned[topic]}
    if _still_has(revoked, situation.reported):
        return progress.moved_to(
            progress.epoch, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, revoking=revoked
        )
    return progress.moved_to(progress.epoch, assigned=kept)


def _put(into: dict[UUID, dict[int, int]], topic: UUID, partitions: dict[int, int]) -> None:
    if partitions:
        into[topic] = partitions


def has_no_others(reported: Assignment | None, assigned: Mapping[UUID, Iterable[int]]) -> bool:
    """True if the member says what it has, and that is nothing but what it was assigned."""
    if reported is None:
        return False
    return all(topic in assigned and set(indexes) <= set(assigned[topic]) for topic, indexes in reported.items())
