"""Describing groups: their members, what these are assigned, and how far each partition is read."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from protocol.client import Client
from protocol.codec import decode_from
from protocol.errors import ErrorCode, KafkaError, MalformedMessage
from protocol.messages.consumer_groups import ConsumerGroupDescribeRequest
from protocol.messages.group_offsets import OffsetFetchRequest
from protocol.messages.groups import DescribeGroupsRequest
from protocol.messages.stored import ConsumerProtocolAssignment
from tools.cli.cluster import TopicPartition, check, of_coordinator
from tools.cli.groups.listing import list_groups
from tools.cli.topic_offsets import list_offsets

_BY_NAME_VERSION_MAX = 9
"""From version 10 on OffsetFetch and OffsetCommit name topics by id."""
_NOTHING = "-"
_REBALANCING = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group. Epochs and target are None in classic groups, which have none."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: Mapping[str, Sequence[int]]
    epoch: int | None = None
    target_epoch: int | None = None
    target: Mapping[str, Sequence[int]] | None = None

    @property
    def partitions(self) -> list[TopicPartition]:
        return [(topic, index) for topic, indexes in self.assignment.items() for index in indexes]


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed offset."""

    offset: int
    leader_epoch: int
    metadata: str


@dataclass(frozen=True, slots=True)
class Group:
    """A group as its coordinator describes it, with its offsets. ``error`` is why there is nothing else."""

    name: str
    state: str = "Dead"
    strategy: str = ""
    coordinator: str = ""
    members: Sequence[Member] = ()
    committed: Mapping[TopicPartition, Committed] = field(default_factory=dict)
    end_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    epoch: int | None = None
    target_epoch: int | None = None
    error: str = ""

    @property
    def is_inactive(self) -> bool:
        """Whether its offsets may be set from outside."""
        return self.state in ("Empty", "Dead")


async def describe(client: Client, names: Sequence[str] | None, *, timeout_ms: int) -> list[Group]:
    """The groups of these names, or all. One that does not exist has an error."""
    if names is None:
        names = [group.name for group in await list_groups(client)]
    return [await describe_one(client, name, timeout_ms=timeout_ms) for name in dict.fromkeys(names)]


async def describe_one(client: Client, name: str, *, timeout_ms: int) -> Group:
    """One group, with offsets and the ends of its partitions."""
    described = await _consumer_group(client, name, timeout_ms)
    if described is None:
        described = await _classic_group(client, name, timeout_ms)
    if described is None:
        return Group(name, error=f"Consumer group '{name}' does not exist. `parley groups --list` shows those that do.")
    node = await client.coordinator(name)
    brokers = {broker.node_id: broker for broker in (await client.metadata([])).brokers}
    where = f"{brokers[node].host}:{brokers[node].port}  ({node})" if node in brokers else f"({node})"
    committed = await committed_offsets(client, name, timeout_ms=timeout_ms)
    partitions = {*committed, *(where for member in described["members"] for where in member.partitions)}
    ends = await _ends(client, partitions)
    return Group(name=name, coordinator=where, committed=committed, end_offsets=ends, **described)


async def _consumer_group(client: Client, name: str, timeout_ms: int) -> dict[str, Any] | None:
    """A group of the new protocol; None if it is of the classic one, or the broker only knows that."""
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
    """The partitions in a classic member's assignment; none where it is no consumer's."""
    if len(data) < 2:
        return {}
    # A version that is not known yet is read as the highest that is, and what follows is ignored.
    version = min(int.from_bytes(data[:2], "big"), ConsumerProtocolAssignment.VERSIONS.max)
    try:
        assignment, _ = decode_from(ConsumerProtocolAssignment, version, data, 2)
    except MalformedMessage:
        return {}
    return {part.topic: list(part.partitions) for part in assignment.assigned_partitions}


async def committed_offsets(client: Client, group: str, *, timeout_ms: int) -> dict[TopicPartition, Committed]:
    """What the group has committed for every partition. Raises :class:`CommandError`."""
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
    """Where the partitions end, as far as they have leaders."""
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


# ---- showing ---------------------------------------------------------------------------------------------------------


def show(groups: Sequence[Group], view: str, *, verbose: bool, as_json: bool) -> bool:
    """Print the groups; whether all of them exist."""
    if as_json:
        print(json.dumps([_as_data(group) for group in groups], indent=2))
    for group in groups:
        if group.error:
            print(f"\nError: {group.error}", file=sys.stderr)
        elif not as_json:
            _warn(group)
            table = {"offsets": offsets_table, "members": members_table, "state": state_table}[view]
            print()
            for line in table(group, verbose=verbose):
                print(line)
    return not any(group.error for group in groups)


def _warn(group: Group) -> None:
    sys.stdout.flush()
    if group.state == "Empty":
        print(f"\nConsumer group '{group.name}' has no active members.", file=sys.stderr, flush=True)
    elif group.state in _REBALANCING:
        print(f"\nWarning: Consumer group '{group.name}' is rebalancing.", file=sys.stderr, flush=True)


def offsets_table(group: Group, *, verbose: bool = False) -> list[str]:
    """How far each partition is read, in the form of kafka-consumer-groups."""
    holders = {where: member for member in group.members for where in member.partitions}
    rows = [_offset_row(group, where, holders.get(where)) for where in sorted({*group.committed, *holders})]
    head = ("GROUP", "TOPIC", "PARTITION", "LEADER-EPOCH", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG")
    table = [(*head, "CONSUMER-ID", "HOST", "CLIENT-ID"), *rows]
    return _aligned([row if verbose else row[:3] + row[4:] for row in table], _OFFSET_WIDTHS[verbose])


_OFFSET_WIDTHS = {False: (15, 15, 10, 15, 15, 15, 15, 15, 0), True: (15, 15, 10, 15, 15, 15, 15, 15, 15, 0)}


def _offset_row(group: Group, where: TopicPartition, holder: Member | None) -> tuple[str, ...]:
    committed, end = group.committed.get(where), group.end_offsets.get(where)
    lag = end - committed.offset if committed is not None and end is not None else None
    known_epoch = committed is not None and committed.leader_epoch >= 0
    return (
        group.name,
        where[0],
        str(where[1]),
        str(committed.leader_epoch) if committed is not None and known_epoch else _NOTHING,
        _NOTHING if committed is None else str(committed.offset),
        _NOTHING if end is None else str(end),
        _NOTHING if lag is None else str(lag),
        holder.member_id if holder else _NOTHING,
        holder.host if holder else _NOTHING,
        holder.client_id if holder else _NOTHING,
    )


def members_table(group: Group, *, verbose: bool = False) -> list[str]:
    """The members, in the form of kafka-consumer-groups."""
    static = any(member.instance_id for member in group.members)
    rows = [["GROUP", "CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "#PARTITIONS"]]
    rows[0] += ["CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT"]
    for member in group.members:
        identity = [group.name, member.member_id, member.instance_id or _NOTHING, member.host, member.client_id]
        epochs = [_NOTHING if epoch is None else str(epoch) for epoch in (member.epoch, member.target_epoch)]
        target = _NOTHING if member.target is None else _assignment_text(member.target)
        rows.append(
            [*identity, str(len(member.partitions)), epochs[0], _assignment_text(member.assignment), epochs[1], target]
        )
    widths = [15, 15, 17, 15, 15, 15, 15, 20, 15, 20]
    columns = [at for at in range(len(widths)) if (static or at != 2) and (verbose or at < 6)]
    return _aligned([tuple(row[at] for at in columns) for row in rows], tuple(widths[at] for at in columns))


def _assignment_text(assignment: Mapping[str, Sequence[int]]) -> str:
    parts = (f"{topic}:{','.join(map(str, sorted(indexes)))}" for topic, indexes in sorted(assignment.items()))
    return ";".join(parts) or _NOTHING


def state_table(group: Group, *, verbose: bool = False) -> list[str]:
    """Coordinator, strategy and state, in the form of kafka-consumer-groups."""
    head = ["GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE"]
    row = [group.name, group.coordinator, group.strategy or _NOTHING, group.state]
    widths = [15, 25, 20, 20]
    if verbose:
        head += ["GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH"]
        row += [_NOTHING if epoch is None else str(epoch) for epoch in (group.epoch, group.target_epoch)]
        widths += [15, 25]
    return _aligned([(*head, "#MEMBERS"), (*row, str(len(group.members)))], (*widths, 0))


def _aligned(rows: Sequence[Sequence[str]], least: Sequence[int]) -> list[str]:
    """The rows with each column as wide as its longest text, at least ``least``; 0 is the last, without padding."""
    widths = [max([one, *(len(row[at]) for row in rows)]) if one else 0 for at, one in enumerate(least)]
    return [" ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)) for row in rows]


def _as_data(group: Group) -> dict[str, Any]:
    if group.error:
        return {"group": group.name, "error": group.error}
    holders = {where: member for member in group.members for where in member.partitions}
    offsets = []
    for where in sorted({*group.committed, *holders}):
        committed, end, holder = group.committed.get(where), group.end_offsets.get(where), holders.get(where)
        offsets.append(
            {
                "topic": where[0],
                "partition": where[1],
                "currentOffset": committed.offset if committed else None,
                "logEndOffset": end,
                "lag": end - committed.offset if committed and end is not None else None,
                "consumerId": holder.member_id if holder else None,
            }
        )
    members = [
        {
            "consumerId": one.member_id,
            "groupInstanceId": one.instance_id,
            "clientId": one.client_id,
            "host": one.host,
            "assignment": {topic: list(indexes) for topic, indexes in one.assignment.items()},
        }
        for one in group.members
    ]
    return {
        "group": group.name,
        "state": group.state,
        "assignmentStrategy": group.strategy,
        "coordinator": group.coordinator,
        "members": members,
        "offsets": offsets,
    }
