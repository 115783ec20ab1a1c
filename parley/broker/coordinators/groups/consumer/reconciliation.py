"""The steps of a member toward its target assignment: a pure decision, made in each of its heartbeats.

1. Partitions that are not in the target are revoked first. The member keeps its epoch until it reports that it no
   longer owns them.
2. Then it enters the target's epoch, and gets the partitions of the target that no other member owns.
3. It gets the remaining ones in later heartbeats, when other members have revoked them.

A partition of a topic that the member no longer subscribes to is revoked immediately, even if it is in the target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set

from parley.broker.coordinators.groups.consumer.member import (
    NOTHING,
    Assignment,
    MemberState,
    Owned,
    Progress,
)
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.uuids import UUID


@dataclass(frozen=True, slots=True)
class Target:
    """The target assignment of a member, and its epoch."""

    epoch: int
    partitions: Assignment


@dataclass(frozen=True, slots=True)
class Situation:
    """The inputs of ``reconciled``, in addition to the member's progress."""

    target: Target
    subscribed: Set[UUID]
    """The topics that the member subscribes to."""
    subscription_changed: bool
    """True if this heartbeat has changed the subscription."""
    reported: Assignment | None
    """The partitions that the member reports as its own, or None if it does not report them."""
    is_free: Callable[[UUID, int], bool]
    """A function that returns True if no member owns a partition or still has to revoke it, not even this member."""


def reconciled(progress: Progress, situation: Situation) -> Progress:
    """Return the progress of a member after a heartbeat: the same object if nothing has changed.

    Raises FENCED_MEMBER_EPOCH for a member in an unknown state, unless it reports that it owns no partitions.
    """
    after = _after_heartbeat(progress, situation)
    return progress if after == progress else after


def _after_heartbeat(progress: Progress, situation: Situation) -> Progress:
    match progress.state:
        case MemberState.STABLE:
            if progress.epoch != situation.target.epoch:
                return _toward_target(progress, progress.epoch, situation)
        case MemberState.UNREVOKED_PARTITIONS:
            if not _still_has(progress.revoking, situation.reported):
                return _toward_target(progress, progress.epoch, situation)
        case MemberState.UNRELEASED_PARTITIONS:
            return _toward_target(progress, progress.epoch, situation)
        case MemberState.UNKNOWN:
            if situation.reported is None or situation.reported:
                raise KafkaError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    "The consumer group member is in an unknown state. The member must abandon all its partitions and "
                    "rejoin.",
                )
            return _toward_target(progress, situation.target.epoch, situation)
    return _without_unsubscribed(progress, situation) if situation.subscription_changed else progress


def _still_has(partitions: Owned, reported: Assignment | None) -> bool:
    """Return True if the member reports one of these partitions as its own, or reports nothing."""
    if reported is None:
        return True
    return any(
        partition in partitions.get(topic, NOTHING) for topic, indexes in reported.items() for partition in indexes
    )


def _toward_target(progress: Progress, epoch: int, situation: Situation) -> Progress:
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


def reports_only_assigned(reported: Assignment | None, assigned: Mapping[UUID, Iterable[int]]) -> bool:
    """Return True if the member reports its partitions, and all of them were assigned to it."""
    if reported is None:
        return False
    return all(topic in assigned and set(indexes) <= set(assigned[topic]) for topic, indexes in reported.items())
