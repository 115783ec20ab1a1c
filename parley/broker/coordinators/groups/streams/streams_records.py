"""The records of streams groups in ``__consumer_offsets``, in Kafka's formats.

=====================  =================================================  ==========================
key (first two bytes)  key                                                value
=====================  =================================================  ==========================
17                     group                                              group epoch, hash of its topics
19                     group, member                                      a member
20                     group                                              epoch of the target assignment
21                     group, member                                      a member's target assignment
22                     group, member                                      a member's epochs and tasks
23                     group                                              the topology
=====================  =================================================  ==========================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from parley.broker.coordinators.decision import KeyValue
from parley.broker.coordinators.groups.streams.streams_group import (
    FIRST_EPOCH,
    MemberDetails,
    MemberState,
    Progress,
    StreamsGroup,
    StreamsMember,
)
from parley.broker.coordinators.groups.streams.tasks import NOTHING, CurrentTasks, MemberTasks, Tasks, TasksSince
from parley.broker.coordinators.groups.streams.topology import InternalTopic, Subtopology, Topology, topology_of
from parley.protocol.codec import decode_stored, encode_stored
from parley.protocol.messages.stored_streams_groups import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
)

GROUP, MEMBER, TARGET_EPOCH, TARGET, CURRENT, TOPOLOGY = 17, 19, 20, 21, 22, 23
"""The kinds of records, as in the first two bytes of their keys."""

_VALUE_VERSION: Final = 0


# --- Writing ---


def epoch_record(
    group_id: str, epoch: int, metadata_hash: int, validated_epoch: int, settings: Mapping[str, str]
) -> KeyValue:
    """Return the record of a group's epoch. It also contains the hash of the topology's topics, the epoch of the
    validated topology, and the settings of the assignor, as in ``StreamsGroup``."""
    make = StreamsGroupMetadataValue.LastAssignmentConfig
    value = StreamsGroupMetadataValue(
        epoch=epoch,
        metadata_hash=metadata_hash,
        validated_topology_epoch=validated_epoch,
        last_assignment_configs=[make(key=key, value=text) for key, text in settings.items()],
    )
    return _group_key(group_id), encode_stored(value, _VALUE_VERSION)


def member_record(group_id: str, member: StreamsMember) -> KeyValue:
    """Return the record of a member."""
    details, kind = member.details, StreamsGroupMemberMetadataValue
    endpoint = details.endpoint
    value = kind(
        instance_id=details.instance_id,
        rack_id=details.rack_id,
        client_id=details.client_id,
        client_host=details.client_host,
        rebalance_timeout_ms=details.rebalance_timeout_ms,
        topology_epoch=details.topology_epoch,
        process_id=details.process_id,
        user_endpoint=None if endpoint is None else kind.Endpoint(host=endpoint[0], port=endpoint[1]),
        client_tags=[kind.KeyValue(key=key, value=tag) for key, tag in details.tags],
    )
    return _member_key(group_id, member.member_id), encode_stored(value, _VALUE_VERSION)


def topology_record(group_id: str, topology: Topology) -> KeyValue:
    """Return the record of the topology."""
    value = StreamsGroupTopologyValue(
        epoch=topology.epoch, subtopologies=[_stored_subtopology(each) for each in topology.subtopologies]
    )
    return _topology_key(group_id), encode_stored(value, _VALUE_VERSION)


def _stored_subtopology(found: Subtopology) -> StreamsGroupTopologyValue.Subtopology:
    make = StreamsGroupTopologyValue.CopartitionGroup
    return StreamsGroupTopologyValue.Subtopology(
        subtopology_id=found.id,
        source_topics=list(found.sources),
        source_topic_regex=list(found.regexes),
        state_changelog_topics=_stored_topics(found.changelogs),
        repartition_sink_topics=list(found.sinks),
        repartition_source_topics=_stored_topics(found.repartitions),
        copartition_groups=[
            make(
                source_topics=list(each.sources),
                source_topic_regex=list(each.regexes),
                repartition_source_topics=list(each.repartitions),
            )
            for each in found.copartition_groups
        ],
    )


def _stored_topics(topics: Sequence[InternalTopic]) -> list[StreamsGroupTopologyValue.TopicInfo]:
    make = StreamsGroupTopologyValue.TopicConfig
    return [
        StreamsGroupTopologyValue.TopicInfo(
            name=topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            topic_configs=[make(key=key, value=text) for key, text in topic.configs],
        )
        for topic in topics
    ]


def target_epoch_record(group_id: str, epoch: int, since_ms: int) -> KeyValue:
    """Return the record of the epoch of a target assignment, which was computed at the time ``since_ms``."""
    value = StreamsGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=since_ms)
    return _target_epoch_key(group_id), encode_stored(value, _VALUE_VERSION)


def target_record(group_id: str, member_id: str, target: MemberTasks) -> KeyValue:
    """Return the record of a member's target assignment."""
    make = StreamsGroupTargetAssignmentMemberValue.TaskIds

    def stored(tasks: Tasks) -> list[StreamsGroupTargetAssignmentMemberValue.TaskIds]:
        return [make(subtopology_id=each, partitions=sorted(tasks[each])) for each in sorted(tasks)]

    value = StreamsGroupTargetAssignmentMemberValue(
        active_tasks=stored(target.active), standby_tasks=stored(target.standby), warmup_tasks=stored(target.warmup)
    )
    return _target_key(group_id, member_id), encode_stored(value, _VALUE_VERSION)


def current_record(group_id: str, member: StreamsMember) -> KeyValue:
    """Return the record of a member's epochs and tasks."""
    progress = member.progress
    value = StreamsGroupCurrentMemberAssignmentValue(
        member_epoch=progress.epoch,
        previous_member_epoch=progress.previous_epoch,
        state=progress.state,
        active_tasks=_stored_active(progress.assigned.active),
        standby_tasks=_stored_tasks(progress.assigned.standby),
        warmup_tasks=_stored_tasks(progress.assigned.warmup),
        active_tasks_pending_revocation=_stored_active(progress.revoking.active),
        standby_tasks_pending_revocation=_stored_tasks(progress.revoking.standby),
        warmup_tasks_pending_revocation=_stored_tasks(progress.revoking.warmup),
    )
    return _current_key(group_id, member.member_id), encode_stored(value, _VALUE_VERSION)


def _stored_tasks(tasks: Tasks) -> list[StreamsGroupCurrentMemberAssignmentValue.TaskIds]:
    make = StreamsGroupCurrentMemberAssignmentValue.TaskIds
    return [make(subtopology_id=each, partitions=sorted(tasks[each])) for each in sorted(tasks)]


def _stored_active(tasks: TasksSince) -> list[StreamsGroupCurrentMemberAssignmentValue.TaskIds]:
    make = StreamsGroupCurrentMemberAssignmentValue.TaskIds
    return [
        make(
            subtopology_id=each,
            partitions=sorted(tasks[each]),
            assignment_epochs=[tasks[each][partition] for partition in sorted(tasks[each])],
        )
        for each in sorted(tasks)
    ]


def member_tombstones(group_id: str, member_id: str) -> list[KeyValue]:
    """Return the records that delete a member, in Kafka's order."""
    return [
        (_current_key(group_id, member_id), None),
        (_target_key(group_id, member_id), None),
        (_member_key(group_id, member_id), None),
    ]


def group_tombstones(group: StreamsGroup) -> list[KeyValue]:
    """Return the records that delete a group, in Kafka's order: its members first."""
    group_id = group.group_id
    records: list[KeyValue] = [(_current_key(group_id, member_id), None) for member_id in group.members]
    records += [(_target_key(group_id, member_id), None) for member_id in group.targets]
    records.append((_target_epoch_key(group_id), None))
    records += [(_member_key(group_id, member_id), None) for member_id in group.members]
    return [*records, (_group_key(group_id), None), (_topology_key(group_id), None)]


def _group_key(group_id: str) -> bytes:
    return encode_stored(StreamsGroupMetadataKey(group_id=group_id), GROUP)


def _member_key(group_id: str, member_id: str) -> bytes:
    return encode_stored(StreamsGroupMemberMetadataKey(group_id=group_id, member_id=member_id), MEMBER)


def _target_epoch_key(group_id: str) -> bytes:
    return encode_stored(StreamsGroupTargetAssignmentMetadataKey(group_id=group_id), TARGET_EPOCH)


def _target_key(group_id: str, member_id: str) -> bytes:
    return encode_stored(StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), TARGET)


def _current_key(group_id: str, member_id: str) -> bytes:
    return encode_stored(StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), CURRENT)


def _topology_key(group_id: str) -> bytes:
    return encode_stored(StreamsGroupTopologyKey(group_id=group_id), TOPOLOGY)


# --- Reading ---

_KEYS: Final[dict[int, Any]] = {
    GROUP: StreamsGroupMetadataKey,
    MEMBER: StreamsGroupMemberMetadataKey,
    TARGET_EPOCH: StreamsGroupTargetAssignmentMetadataKey,
    TARGET: StreamsGroupTargetAssignmentMemberKey,
    CURRENT: StreamsGroupCurrentMemberAssignmentKey,
    TOPOLOGY: StreamsGroupTopologyKey,
}

Change = Callable[[StreamsGroup], None]


def is_of_streams_group(kind: int) -> bool:
    """Return True if keys of this kind belong to records of streams groups."""
    return kind in _KEYS


def decode_change(kind: int, key: bytes, value: bytes | None) -> tuple[str, Change, bool]:
    """Decode a record whose key is of ``kind``, for which ``is_of_streams_group`` is true. Returns its group id, a
    function that applies it to the group, and True if it deletes the group.

    Raises MalformedMessage if the record cannot be decoded.
    """
    found = decode_stored(_KEYS[kind], key)[0]
    return found.group_id, _CHANGES[kind](found, value), kind == GROUP and value is None


def _epoch(key: StreamsGroupMetadataKey, value: bytes | None) -> Change:
    stored = StreamsGroupMetadataValue(epoch=FIRST_EPOCH, metadata_hash=0, validated_topology_epoch=0)
    if value is not None:
        stored = decode_stored(StreamsGroupMetadataValue, value)[0]
    settings = {each.key: each.value for each in stored.last_assignment_configs or ()}

    def change(group: StreamsGroup) -> None:
        group.epoch = stored.epoch
        group.metadata_hash = stored.metadata_hash
        group.validated_epoch = stored.validated_topology_epoch
        group.last_settings = settings

    return change


def _member(key: StreamsGroupMemberMetadataKey, value: bytes | None) -> Change:
    if value is None:
        return lambda group: group.remove_member(key.member_id)
    stored = decode_stored(StreamsGroupMemberMetadataValue, value)[0]
    endpoint = stored.user_endpoint
    details = MemberDetails(
        stored.instance_id,
        stored.rack_id,
        stored.client_id,
        stored.client_host,
        stored.rebalance_timeout_ms,
        stored.topology_epoch,
        stored.process_id,
        None if endpoint is None else (endpoint.host, endpoint.port),
        tuple((each.key, each.value) for each in stored.client_tags),
    )
    return lambda group: group.put_details(key.member_id, details)


def _target_epoch(key: StreamsGroupTargetAssignmentMetadataKey, value: bytes | None) -> Change:
    stored = None if value is None else decode_stored(StreamsGroupTargetAssignmentMetadataValue, value)[0]

    def change(group: StreamsGroup) -> None:
        group.target_epoch = FIRST_EPOCH if stored is None else stored.assignment_epoch
        group.target_since_ms = 0 if stored is None else stored.assignment_timestamp

    return change


def _target(key: StreamsGroupTargetAssignmentMemberKey, value: bytes | None) -> Change:
    target = None
    if value is not None:
        stored = decode_stored(StreamsGroupTargetAssignmentMemberValue, value)[0]
        target = MemberTasks(_tasks(stored.active_tasks), _tasks(stored.standby_tasks), _tasks(stored.warmup_tasks))

    def change(group: StreamsGroup) -> None:
        if target is None:
            group.targets.pop(key.member_id, None)
        else:
            group.targets[key.member_id] = target

    return change


def _current(key: StreamsGroupCurrentMemberAssignmentKey, value: bytes | None) -> Change:
    if value is None:
        return lambda group: group.remove_progress(key.member_id)
    stored = decode_stored(StreamsGroupCurrentMemberAssignmentValue, value)[0]
    progress = Progress(
        stored.member_epoch,
        stored.previous_member_epoch,
        _state(stored.state),
        CurrentTasks(
            _active(stored.active_tasks, stored.member_epoch),
            _tasks(stored.standby_tasks),
            _tasks(stored.warmup_tasks),
        ),
        CurrentTasks(
            _active(stored.active_tasks_pending_revocation, stored.member_epoch),
            _tasks(stored.standby_tasks_pending_revocation),
            _tasks(stored.warmup_tasks_pending_revocation),
        ),
    )
    return lambda group: group.put_progress(key.member_id, progress)


def _state(number: int) -> MemberState:
    known = MemberState.__members__.values()
    return MemberState(number) if number in known else MemberState.UNKNOWN


def _tasks(stored: Sequence[Any]) -> Tasks:
    return {each.subtopology_id: frozenset(each.partitions) for each in stored} or NOTHING


def _active(stored: Sequence[StreamsGroupCurrentMemberAssignmentValue.TaskIds], member_epoch: int) -> TasksSince:
    found: dict[str, dict[int, int]] = {}
    for each in stored:
        epochs = each.assignment_epochs or ()
        if len(epochs) != len(each.partitions):  # Kafka before 4.3 stored no epochs
            epochs = [member_epoch] * len(each.partitions)
        found[each.subtopology_id] = dict(zip(each.partitions, epochs, strict=True))
    return found or NOTHING


def _topology(key: StreamsGroupTopologyKey, value: bytes | None) -> Change:
    topology = None if value is None else topology_of(decode_stored(StreamsGroupTopologyValue, value)[0])
    return lambda group: group.put_topology(topology)


_CHANGES: Final[dict[int, Callable[[Any, bytes | None], Change]]] = {
    GROUP: _epoch,
    MEMBER: _member,
    TARGET_EPOCH: _target_epoch,
    TARGET: _target,
    CURRENT: _current,
    TOPOLOGY: _topology,
}
