"""Decisions about the stored share partitions of a group: initializing and deleting them.

Each operation has two decisions. The first decision stores what the persister is about to do, and the second one
stores that it is done. If the coordinator dies in between, the next coordinator starts the operation again: the share
coordinator accepts a repeated request.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from parley.broker.coordinators.decision import Decision
from parley.broker.coordinators.groups.group_shard import GroupShard
from parley.broker.coordinators.groups.share.group_change import ShareGroupChange
from parley.broker.coordinators.groups.share.share_group import (
    NOTHING,
    ShareGroup,
    Stored,
    TopicPartitions,
    joined,
    without,
)
from parley.broker.metadata.image import MetadataImage
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.uuids import UUID

RETRY_MS: Final = 30_000
"""The time after which an initialization that has not ended is started again, as in Kafka: a coordinator that has
failed since then may have started it."""


def is_assignment_pending(group: ShareGroup, image: MetadataImage) -> bool:
    """Return True if a subscribed topic has initialized partitions that are not assigned to any member."""
    if not group.members or not group.stored.initialized:
        return False
    assigned: dict[UUID, set[int]] = {}
    for target in group.targets.values():
        for topic_id, partitions in target.items():
            assigned.setdefault(topic_id, set()).update(partitions)
    return any(
        each.name in group.subscribers
        and topic_id in image.topic_names
        and assigned.get(topic_id, set()) != set(each.partitions)
        for topic_id, each in group.stored.initialized.items()
    )


def begin_initialization(change: ShareGroupChange) -> None:
    """Record in ``change`` the partitions that members subscribe to and that are not initialized yet. Their
    initialization starts when the in-sync replicas have the record."""
    missing = _missing(change)
    if not missing:
        return
    _put_initializing(change, missing)
    change.then = partial(change.shard.initialize_share_partitions, change.group_id, change.epoch, missing)


def _missing(change: ShareGroupChange) -> dict[UUID, TopicPartitions]:
    image, group, missing = change.shard.image(), change.group, {}
    for name in sorted(change.subscribed_topics()):
        topic = image.topics.get(name)
        if topic is None:
            continue
        all_partitions = frozenset(range(len(topic.partitions)))
        known = _known(group, topic.topic_id, change.now_ms)
        if len(known) < len(all_partitions):
            missing[topic.topic_id] = TopicPartitions(name, all_partitions - known)
    return missing


def _known(group: ShareGroup, topic_id: UUID, now_ms: int) -> frozenset[int]:
    """Return the partitions of a topic that are initialized, or whose initialization started less than ``RETRY_MS``
    ago."""
    initialized = group.stored.initialized.get(topic_id)
    initializing = group.stored.initializing.get(topic_id)
    known = frozenset[int]() if initialized is None else initialized.partitions
    since_ms = group.initializing_since_ms.get(topic_id)
    if initializing is not None and since_ms is not None and now_ms - since_ms < RETRY_MS:
        known |= initializing.partitions
    return known


def end_initialization(
    group_id: str, done: Mapping[UUID, TopicPartitions], shard: GroupShard, now_ms: int
) -> Decision[None]:
    """Record that these partitions have been initialized."""
    group = shard.share_group(group_id)
    if group is None or not done:
        return Decision(None)
    change = ShareGroupChange(shard, group, now_ms)
    stored = group.stored
    change.put_stored(
        replace(
            stored,
            initializing=without(stored.initializing, done),
            initialized=joined(stored.initialized, done),
        )
    )
    return change.decision(None)


def abandon_initialization(
    group_id: str, failed: Mapping[UUID, TopicPartitions], shard: GroupShard, now_ms: int
) -> Decision[None]:
    """Record that these partitions could not be initialized. The next heartbeat starts their initialization again."""
    group = shard.share_group(group_id)
    if group is None or not group.stored.initializing or not failed:
        return Decision(None)
    change = ShareGroupChange(shard, group, now_ms)
    change.put_stored(replace(group.stored, initializing=without(group.stored.initializing, failed)))
    return change.decision(None)


class Begun(NamedTuple):
    """The share partitions whose state is about to be set or deleted, and the epoch of their group."""

    epoch: int
    topics: Mapping[UUID, TopicPartitions]

    def topic_ids(self) -> dict[str, UUID]:
        """Return the ids of the topics by name."""
        return {each.name: topic_id for topic_id, each in self.topics.items()}


# --- Alteration ---


def begin_alteration(
    group_id: str, wanted: Mapping[str, Collection[int]], shard: GroupShard, now_ms: int
) -> Decision[Begun]:
    """Record that share partitions are about to get new start offsets. The reply contains the partitions that exist.

    Creates the group if it does not exist. Starts a new epoch if the state of a topic is still being deleted, because a
    slow deletion spares only state with a higher epoch. Raises GROUP_ID_NOT_FOUND for a group of another type, or
    NON_EMPTY_GROUP.
    """
    known = shard.groups.get(group_id)
    group = ShareGroup(group_id) if known is None else known.share
    if group is None:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group.")
    if group.members:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
    topics: dict[UUID, TopicPartitions] = {}
    for name, indexes in wanted.items():
        topic = shard.image().topics.get(name)
        if topic is not None:
            existing = frozenset(index for index in indexes if 0 <= index < len(topic.partitions))
            if existing:
                topics[topic.topic_id] = TopicPartitions(name, existing)
    change = ShareGroupChange(shard, group, now_ms)
    if topics:
        if topics.keys() & group.stored.deleting.keys():
            change.check_metadata(bump=True)
        _put_initializing(change, topics)
    elif wanted and known is None:
        change.put_stored(group.stored)  # as in Kafka, create the group even if none of the partitions exists
    return change.decision(Begun(change.epoch, topics))


def _put_initializing(change: ShareGroupChange, topics: Mapping[UUID, TopicPartitions]) -> None:
    stored = change.group.stored
    deleting = {topic_id: name for topic_id, name in stored.deleting.items() if topic_id not in topics}
    change.put_stored(replace(stored, initializing=joined(stored.initializing, topics), deleting=deleting))
    change.note_begun(topics)


# --- Deletion ---


def begin_deletion(group: ShareGroup, image: MetadataImage, shard: GroupShard, now_ms: int) -> Decision[Begun]:
    """Record that the state of all share partitions of a group is about to be deleted.

    The reply contains these share partitions, including those of an earlier deletion that failed.
    """
    stored = group.stored
    if not group.has_stored_record:
        return Decision(Begun(group.epoch, {}))
    gone = joined(joined(stored.initialized, stored.initializing), _all_of(stored.deleting, image))
    change = ShareGroupChange(shard, group, now_ms)
    change.put_stored(Stored(NOTHING, NOTHING, {topic_id: each.name for topic_id, each in gone.items()}))
    return change.decision(Begun(group.epoch, gone))


def _all_of(deleting: Mapping[UUID, str], image: MetadataImage) -> dict[UUID, TopicPartitions]:
    """Return all partitions of the topics in ``deleting`` that still exist."""
    found = {}
    for topic_id in deleting:
        name = image.topic_names.get(topic_id)
        if name is not None:
            found[topic_id] = TopicPartitions(name, frozenset(range(len(image.topics[name].partitions))))
    return found


def begin_topic_deletion(group: ShareGroup, names: Iterable[str], shard: GroupShard, now_ms: int) -> Decision[Begun]:
    """Record that the state of topics is about to be deleted. The reply contains those of the topics that have
    state."""
    image, stored = shard.image(), group.stored
    gone: dict[UUID, TopicPartitions] = {}
    initialized, deleting = dict(stored.initialized), dict(stored.deleting)
    for name in names:
        topic = image.topics.get(name)
        if topic is None:
            continue
        topic_id = topic.topic_id
        known = initialized.pop(topic_id, None) or _all_of(deleting, image).get(topic_id)
        if known is not None:
            gone[topic_id] = known
            deleting[topic_id] = name
    if not gone:
        return Decision(Begun(group.epoch, gone))
    change = ShareGroupChange(shard, group, now_ms)
    change.put_stored(replace(stored, initialized=initialized, deleting=deleting))
    return change.decision(Begun(group.epoch, gone))


def end_topic_deletion(group_id: str, done: Iterable[UUID], shard: GroupShard, now_ms: int) -> Decision[None]:
    """Record that the state of topics has been deleted."""
    group = shard.share_group(group_id)
    gone = set(done)
    if group is None or not gone:
        return Decision(None)
    left = {topic_id: name for topic_id, name in group.stored.deleting.items() if topic_id not in gone}
    change = ShareGroupChange(shard, group, now_ms)
    change.put_stored(replace(group.stored, deleting=left))
    return change.decision(None)


def forget_deleted_topics(shard: GroupShard, now_ms: int) -> Decision[None]:
    """Remove topics that no longer exist from all share groups. The share coordinator deletes the state of these topics
    without being asked."""
    names = shard.image().topic_names
    records = []
    for known in shard.groups.values():
        group = known.share
        if group is None:
            continue
        stored = group.stored
        topics = {*stored.initializing, *stored.initialized, *stored.deleting}
        if topics <= names.keys():
            continue
        change = ShareGroupChange(shard, group, now_ms)
        change.put_stored(
            Stored(
                {topic_id: each for topic_id, each in stored.initializing.items() if topic_id in names},
                {topic_id: each for topic_id, each in stored.initialized.items() if topic_id in names},
                {topic_id: each for topic_id, each in stored.deleting.items() if topic_id in names},
            )
        )
        records += change.records
    return Decision(None, records, is_divisible=True)
