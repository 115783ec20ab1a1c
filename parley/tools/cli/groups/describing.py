"""Describe groups: members, assignments, committed offsets and lag."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parley.protocol.client import Client
from parley.protocol.codec import decode_from
from parley.protocol.errors import ErrorCode, KafkaError, MalformedMessage
from parley.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest
from parley.protocol.messages.group_offsets import OffsetFetchRequest
from parley.protocol.messages.groups import DescribeGroupsRequest
from parley.protocol.messages.stored import ConsumerProtocolAssignment
from parley.protocol.topic_partition import TopicPartition
from parley.tools.cli.cluster_client import check, of_coordinator
from parley.tools.cli.topic_offsets import list_offsets

_BY_NAME_VERSION_MAX = 9
"""The last version of OffsetFetch and OffsetCommit that identifies topics by name instead of id."""

_CONSUMER_MEMBER = 1
"""The type of members that use the consumer protocol, in ConsumerGroupDescribe (KIP-1099)."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group. The epochs and the target assignment are None in classic groups."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: Mapping[str, Sequence[int]]
    epoch: int | None = None
    target_epoch: int | None = None
    target: Mapping[str, Sequence[int]] | None = None
    upgraded: bool | None = None
    """True if the member uses the consumer protocol, False if it does not yet, None if the coordinator does not report
    it."""

    @property
    def partitions(self) -> list[TopicPartition]:
        return [(topic, index) for topic, indexes in self.assignment.items() for index in indexes]


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The broker that coordinates a group; ``host`` is None if the cluster no longer knows the broker."""

    id: int
    host: str | None = None
    port: int | None = None

    def __str__(self) -> str:
        return f"({self.id})" if self.host is None else f"{self.host}:{self.port}  ({self.id})"


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed offset, with its leader epoch and the metadata that the client committed with it."""

    offset: int
    leader_epoch: int
    metadata: str


@dataclass(frozen=True, slots=True)
class Group:
    """A group as described by its coordinator, with its offsets. If ``error`` is set, all other fields except ``name``
    have their defaults."""

    name: str
    state: str = "Dead"
    strategy: str = ""
    coordinator: Coordinator | None = None
    members: Sequence[Member] = ()
    committed: Mapping[TopicPartition, Committed] = field(default_factory=dict)
    end_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    epoch: int | None = None
    target_epoch: int | None = None
    error: str = ""

    @property
    def is_inactive(self) -> bool:
        """True if the group's offsets may be reset because it has no active members."""
        return self.state in ("Empty", "Dead")


async def describe(client: Client, names: Sequence[str], *, timeout_ms: int) -> list[Group]:
    """Describe these groups. The description of a group that does not exist contains an error. Raises ``CommandError``
    if a coordinator rejects a request."""
    return [await describe_one(client, name, timeout_ms=timeout_ms) for name in dict.fromkeys(names)]


async def describe_one(client: Client, name: str, *, timeout_ms: int) -> Group:
    """Describe one group, with its offsets and the end offsets of its partitions. Sets ``error`` if the group does not
    exist. Raises ``CommandError`` if the coordinator rejects a request."""
    described = await _consumer_group(client, name, timeout_ms)
    if described is None:
        described = await _classic_group(client, name, timeout_ms)
    if described is None:
        return Group(
            name, error=f"Consumer group '{name}' does not exist. `parley groups --list` shows the existing groups."
        )
    node = await client.coordinator(name)
    brokers = {broker.node_id: broker for broker in (await client.metadata([])).brokers}
    where = Coordinator(node, brokers[node].host, brokers[node].port) if node in brokers else Coordinator(node)
    committed = await committed_offsets(client, name, timeout_ms=timeout_ms)
    partitions = {*committed, *(where for member in described["members"] for where in member.partitions)}
    ends = await _ends(client, partitions)
    return Group(name=name, coordinator=where, committed=committed, end_offsets=ends, **described)


async def _consumer_group(client: Client, name: str, timeout_ms: int) -> dict[str, Any] | None:
    """Describe a group of the consumer protocol. Returns None if the group is classic or the broker is too old. Raises
    ``CommandError`` if the coordinator returns another error."""
    request = ConsumerGroupDescribeRequest(group_ids=[name])
    try:
        answer = await of_coordinator(
            client, name, request, lambda answer: int(answer.groups[0].error_code), timeout_ms=timeout_ms
        )
    except KafkaError as error:
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        return None
    (group,) = answer.groups
    if group.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
        return None
    check(group.error_code, group.error_message, doing=f"Group '{name}'")
    members = [
        Member(
            one.member_id,
            one.instance_id,
            one.client_id,
            one.client_host,
            {part.topic_name: part.partitions for part in one.assignment.topic_partitions},
            one.member_epoch,
            group.assignment_epoch,
            {part.topic_name: part.partitions for part in one.target_assignment.topic_partitions},
            None if one.member_type < 0 else one.member_type == _CONSUMER_MEMBER,
        )
        for one in group.members
    ]
    return {
        "state": group.group_state,
        "strategy": group.assignor_name,
        "members": members,
        "epoch": group.group_epoch,
        "target_epoch": group.assignment_epoch,
    }


async def _classic_group(client: Client, name: str, timeout_ms: int) -> dict[str, Any] | None:
    request = DescribeGroupsRequest(groups=[name])
    answer = await of_coordinator(
        client, name, request, lambda answer: int(answer.groups[0].error_code), timeout_ms=timeout_ms
    )
    (group,) = answer.groups
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND or (not group.error_code and group.group_state == "Dead"):
        return None
    check(group.error_code, group.error_message, doing=f"Group '{name}'")
    members = [
        Member(one.member_id, one.group_instance_id, one.client_id, one.client_host, assigned(one.member_assignment))
        for one in group.members
    ]
    return {"state": group.group_state, "strategy": group.protocol_data, "members": members}


def assigned(data: bytes) -> dict[str, list[int]]:
    """Decode the assignment of a classic member. Returns an empty assignment if the member is not a consumer."""
    if len(data) < 2:
        return {}
    # A newer version is read as the newest known one; the rest of the data is ignored.
    version = min(int.from_bytes(data[:2], "big"), ConsumerProtocolAssignment.VERSIONS.max)
    try:
        assignment, _ = decode_from(ConsumerProtocolAssignment, version, data, 2)
    except MalformedMessage:
        return {}
    return {part.topic: list(part.partitions) for part in assignment.assigned_partitions}


async def committed_offsets(client: Client, group: str, *, timeout_ms: int) -> dict[TopicPartition, Committed]:
    """Return the committed offsets of a group. Raises ``CommandError`` if the coordinator rejects the request."""
    node = await client.coordinator(group)
    version = min(await client.version_for(OffsetFetchRequest, node=node), _BY_NAME_VERSION_MAX)
    if version >= 8:
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)], require_stable=False
        )
    else:
        request = OffsetFetchRequest(group_id=group, topics=None)
    answer = await client.send(request, node=node, version=version, timeout=timeout_ms / 1000)
    found = answer.groups[0] if version >= 8 else answer
    check(found.error_code, doing=f"The offsets of group '{group}'")
    return {
        (topic.name, one.partition_index): Committed(
            one.committed_offset, one.committed_leader_epoch, one.metadata or ""
        )
        for topic in found.topics
        for one in topic.partitions
        if not one.error_code and one.committed_offset >= 0
    }


async def _ends(client: Client, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the end offsets of the partitions. Omits partitions without a leader, or whose leader returns an error."""
    topics = sorted({topic for topic, _ in partitions})
    metadata = await client.metadata(topics) if topics else None
    led = {
        (topic.name or "", one.partition_index)
        for topic in (metadata.topics if metadata else ())
        for one in topic.partitions
        if one.leader_id >= 0
    }
    found = await list_offsets(client, sorted(led & set(partitions)))
    return {where: one.offset for where, one in found.items() if not one.error}
