"""List and describe streams groups: members, tasks, committed offsets and lag."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from parley.protocol.client import Client
from parley.protocol.messages.streams_groups import StreamsGroupDescribeRequest
from parley.protocol.topic_partition import TopicPartition
from parley.tools.cli.cluster_client import described, of_coordinator
from parley.tools.cli.groups.describing import Coordinator, committed_offsets
from parley.tools.cli.groups.of_type import list_groups_of_type
from parley.tools.cli.topic_offsets import EARLIEST, LATEST, list_offsets

STATES: Final = ("Empty", "NotReady", "Stable", "Assigning", "Reconciling", "Dead")
_STREAMS: Final = "streams"

_INTERNAL: Final = re.compile(
    r".*(-changelog|-repartition|-subscription-registration-topic|-subscription-response-topic"
    r"|.-KTABLE-FK-JOIN-SUBSCRIPTION-(REGISTRATION|RESPONSE)-\d+-topic)"
)
"""The forms of the names that Kafka Streams gives to the topics that it creates."""

Tasks = Mapping[str, Sequence[int]]


class Assignment(NamedTuple):
    """The tasks of a member: active, standby and warm-up tasks, each by subtopology."""

    active: Tasks
    standby: Tasks
    warmup: Tasks


class Member(NamedTuple):
    """A member of a streams group, with its current tasks and the tasks that it will have."""

    member_id: str
    process_id: str
    client_id: str
    host: str
    epoch: int
    topology_epoch: int
    is_classic: bool
    assignment: Assignment
    target: Assignment


class Subtopology(NamedTuple):
    """A subtopology and its topics, by their role."""

    id: str
    sources: Sequence[str]
    repartitions: Sequence[str]
    changelogs: Sequence[str]


class Offset(NamedTuple):
    """The progress of a group in a partition. The committed offset and its leader epoch are None if the group has not
    committed any."""

    current: int | None
    leader_epoch: int | None
    end: int
    lag: int


@dataclass(frozen=True, slots=True)
class StreamsGroup:
    """A streams group as described by its coordinator. If ``error`` is set, all other fields except ``name`` have their
    defaults."""

    name: str
    state: str = "Dead"
    coordinator: Coordinator | None = None
    epoch: int = 0
    target_epoch: int = 0
    topology_epoch: int = 0
    subtopologies: Sequence[Subtopology] = ()
    members: Sequence[Member] = ()
    offsets: Mapping[TopicPartition, Offset] = field(default_factory=dict)
    error: str = ""

    def source_topics(self) -> set[str]:
        """Return the topics that the application reads but did not create."""
        return {name for each in self.subtopologies for name in each.sources}

    def internal_topics(self) -> list[str]:
        """Return the topics that were created for the application, recognized by their role in the topology and their
        name."""
        names = {name for each in self.subtopologies for name in (*each.repartitions, *each.changelogs)}
        return sorted(name for name in names - self.source_topics() if is_internal(name, self.name))


def is_internal(topic: str, group: str) -> bool:
    """Return True if the name has the form of Kafka Streams' internal topics for this application."""
    return topic.startswith(f"{group}-") and _INTERNAL.fullmatch(topic) is not None


async def list_streams_groups(client: Client, states: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return the names and states of streams groups, sorted. Raises ``CommandError`` for an unknown state, or if a
    broker cannot list its groups."""
    return await list_groups_of_type(client, _STREAMS, STATES, states)


async def describe(
    client: Client, names: Sequence[str] | None, *, with_offsets: bool, timeout_ms: int
) -> list[StreamsGroup]:
    """Describe these streams groups, or all if ``names`` is None, sorted by name. The description of a missing group
    contains an error. Raises ``CommandError`` if offsets cannot be read."""
    if names is None:
        names = [name for name, _ in await list_streams_groups(client)]
    wanted = sorted(set(names))
    return [await describe_one(client, name, with_offsets=with_offsets, timeout_ms=timeout_ms) for name in wanted]


async def describe_one(client: Client, name: str, *, with_offsets: bool = False, timeout_ms: int) -> StreamsGroup:
    """Describe one streams group. If the coordinator rejects the request, for example because the group does not exist,
    ``error`` is set. With ``with_offsets``, raises ``CommandError`` if the offsets cannot be read."""
    answer = await of_coordinator(
        client,
        name,
        StreamsGroupDescribeRequest(group_ids=[name]),
        lambda answer: int(answer.groups[0].error_code),
        timeout_ms=timeout_ms,
    )
    (group,) = answer.groups
    if group.error_code:
        return StreamsGroup(name, error=described(group.error_code, group.error_message))
    node = await client.coordinator(name)
    brokers = {broker.node_id: broker for broker in (await client.metadata([])).brokers}
    where = Coordinator(node, brokers[node].host, brokers[node].port) if node in brokers else Coordinator(node)
    subtopologies = [
        Subtopology(
            each.subtopology_id,
            each.source_topics,
            [topic.name for topic in each.repartition_source_topics],
            [topic.name for topic in each.state_changelog_topics],
        )
        for each in (group.topology.subtopologies if group.topology is not None else None) or ()
    ]
    members = [_member(each) for each in sorted(group.members, key=lambda each: str(each.member_id))]
    offsets = await _offsets(client, name, subtopologies, members, timeout_ms) if with_offsets else {}
    return StreamsGroup(
        name,
        group.group_state,
        where,
        group.group_epoch,
        group.assignment_epoch,
        group.topology.epoch if group.topology is not None else 0,
        subtopologies,
        members,
        offsets,
    )


def _member(found: Any) -> Member:
    return Member(
        found.member_id,
        found.process_id,
        found.client_id,
        found.client_host,
        found.member_epoch,
        found.topology_epoch,
        found.is_classic,
        _assignment(found.assignment),
        _assignment(found.target_assignment),
    )


def _assignment(found: Any) -> Assignment:
    return Assignment(_tasks(found.active_tasks), _tasks(found.standby_tasks), _tasks(found.warmup_tasks))


def _tasks(found: Iterable[Any]) -> Tasks:
    return {each.subtopology_id: sorted(each.partitions) for each in found}


async def _offsets(
    client: Client, name: str, subtopologies: Sequence[Subtopology], members: Sequence[Member], timeout_ms: int
) -> dict[TopicPartition, Offset]:
    """Return the group's progress in the partitions that the active tasks of its members read."""
    inputs = {each.id: (*each.sources, *each.repartitions) for each in subtopologies}
    read = {
        (topic, index)
        for member in members
        for subtopology, indexes in member.assignment.active.items()
        for topic in inputs.get(subtopology, ())
        for index in indexes
    }
    partitions = sorted(await existing(client, read))
    committed = await committed_offsets(client, name, timeout_ms=timeout_ms)
    first, last = await list_offsets(client, partitions, EARLIEST), await list_offsets(client, partitions, LATEST)
    found = {}
    for where in partitions:
        known, end = committed.get(where), last[where].offset
        begin = first[where].offset if known is None else known.offset
        found[where] = Offset(
            None if known is None else known.offset,
            None if known is None or known.leader_epoch < 0 else known.leader_epoch,
            end,
            end - begin,
        )
    return found


async def existing(client: Client, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
    """Return the partitions that have a leader. A topic may have fewer partitions than its subtopology has tasks."""
    wanted = set(partitions)
    topics = sorted({topic for topic, _ in wanted})
    metadata = await client.metadata(topics) if topics else None
    return wanted & {
        (topic.name or "", one.partition_index)
        for topic in (metadata.topics if metadata else ())
        for one in topic.partitions
        if one.leader_id >= 0
    }
