"""List and describe share groups: members, assignments, offsets and lag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from parley.protocol.client import Client
from parley.protocol.messages.share_groups import DescribeShareGroupOffsetsRequest, ShareGroupDescribeRequest
from parley.protocol.topic_partition import TopicPartition
from parley.tools.cli.cluster_client import check, described, of_coordinator
from parley.tools.cli.groups.describing import Coordinator
from parley.tools.cli.groups.of_type import list_groups_of_type

STATES = ("Empty", "Stable", "Dead")
_SHARE = "share"


class Member(NamedTuple):
    """A member of a share group, with its assigned partitions by topic."""

    member_id: str
    client_id: str
    host: str
    epoch: int
    assignment: Mapping[str, Sequence[int]]

    @property
    def partitions(self) -> int:
        """The number of partitions assigned to the member."""
        return sum(len(indexes) for indexes in self.assignment.values())


class Offset(NamedTuple):
    """The offset at which a share group continues in a partition, with its leader epoch, and the group's lag. Each is
    None if it is unknown."""

    start_offset: int | None
    leader_epoch: int | None
    lag: int | None


@dataclass(frozen=True, slots=True)
class ShareGroup:
    """A share group as described by its coordinator. If ``error`` is set, all other fields except ``name`` have their
    defaults."""

    name: str
    state: str = "Dead"
    coordinator: Coordinator | None = None
    epoch: int = 0
    target_epoch: int = 0
    members: Sequence[Member] = ()
    offsets: Mapping[TopicPartition, Offset] = field(default_factory=dict)
    error: str = ""


async def list_share_groups(client: Client, states: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return the names and states of share groups, sorted. Raises ``CommandError`` for an unknown state, or if a broker
    cannot list its groups."""
    return await list_groups_of_type(client, _SHARE, STATES, states)


async def describe(client: Client, names: Sequence[str] | None, *, timeout_ms: int) -> list[ShareGroup]:
    """Describe these share groups, or all if ``names`` is None, sorted by name. The description of a missing group
    contains an error. Raises ``CommandError`` if offsets cannot be read."""
    if names is None:
        names = [name for name, _ in await list_share_groups(client)]
    return [await describe_one(client, name, timeout_ms=timeout_ms) for name in sorted(set(names))]


async def describe_one(client: Client, name: str, *, timeout_ms: int) -> ShareGroup:
    """Describe one share group, with its offsets. If the coordinator rejects the request, for example because the group
    does not exist, ``error`` is set. Raises ``CommandError`` if the offsets cannot be read."""
    answer = await of_coordinator(
        client,
        name,
        ShareGroupDescribeRequest(group_ids=[name]),
        lambda answer: int(answer.groups[0].error_code),
        timeout_ms=timeout_ms,
    )
    (group,) = answer.groups
    if group.error_code:
        return ShareGroup(name, error=described(group.error_code, group.error_message))
    node = await client.coordinator(name)
    brokers = {broker.node_id: broker for broker in (await client.metadata([])).brokers}
    where = Coordinator(node, brokers[node].host, brokers[node].port) if node in brokers else Coordinator(node)
    members = [
        Member(
            each.member_id,
            each.client_id,
            each.client_host,
            each.member_epoch,
            {topic.topic_name: sorted(topic.partitions) for topic in each.assignment.topic_partitions},
        )
        for each in sorted(group.members, key=lambda each: each.member_id)
    ]
    offsets = await offsets_of(client, name, timeout_ms=timeout_ms)
    return ShareGroup(name, group.group_state, where, group.group_epoch, group.assignment_epoch, members, offsets)


async def offsets_of(client: Client, name: str, *, timeout_ms: int) -> dict[TopicPartition, Offset]:
    """Return the offsets at which a share group continues. Raises ``CommandError`` if they cannot be read."""
    kind = DescribeShareGroupOffsetsRequest
    request = kind(groups=[kind.DescribeShareGroupOffsetsRequestGroup(group_id=name, topics=None)])
    answer = await of_coordinator(
        client, name, request, lambda answer: int(answer.groups[0].error_code), timeout_ms=timeout_ms
    )
    (group,) = answer.groups
    check(group.error_code, group.error_message, doing=f"The offsets of share group '{name}' cannot be read")
    return {
        (topic.topic_name, each.partition_index): _offset(each.start_offset, each.leader_epoch, each.lag)
        for topic in group.topics
        for each in topic.partitions
        if not each.error_code
    }


def _offset(start_offset: int, leader_epoch: int, lag: int) -> Offset:
    if start_offset < 0:
        return Offset(None, None, None)
    return Offset(start_offset, leader_epoch, lag if lag >= 0 else None)
