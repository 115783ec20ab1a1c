"""The assignor ``simple`` of share groups, which may assign a partition to several members.

If all members subscribe to the same topics, it distributes the partitions of all topics together, otherwise topic by
topic. Each partition gets ``ceil(members / partitions)`` members, and the members' numbers of partitions differ by at
most one. A member keeps its partitions unless this balance requires a move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from parley.broker.coordinators.groups.share.share_group import Assignment
from parley.protocol.uuids import UUID

SIMPLE: Final = "simple"
"""The name of the assignor."""

_Partition = tuple[UUID, int]
_Assigned = dict[_Partition, None]
"""Partitions in the order in which they were assigned."""


def assign(
    subscriptions: Mapping[str, frozenset[UUID]],
    assignable: Mapping[UUID, Sequence[int]],
    before: Mapping[str, Assignment],
) -> dict[str, dict[UUID, frozenset[int]]]:
    """Return the partitions of each member.

    ``subscriptions`` contains the topics to which each member subscribes, ``assignable`` the partitions of each topic
    that may be assigned, and ``before`` the members' previous partitions.
    """
    topics = sorted(frozenset[UUID]().union(*subscriptions.values()), key=lambda topic: topic.bytes)
    if len(set(subscriptions.values())) <= 1:
        groups: list[tuple[UUID, ...]] = [tuple(topics)]
    else:
        groups = [(topic,) for topic in topics]
    decided: dict[str, dict[UUID, set[int]]] = {member: {} for member in sorted(subscriptions)}
    for together in groups:
        members = [member for member in decided if subscriptions[member].issuperset(together)]
        partitions = [(topic, index) for topic in together for index in assignable.get(topic, ())]
        for member, shared in _shared_out(members, partitions, before).items():
            for topic, index in shared:
                decided[member].setdefault(topic, set()).add(index)
    return {
        member: {topic: frozenset(indexes) for topic, indexes in topics_of.items()}
        for member, topics_of in decided.items()
    }


def _shared_out(
    members: Sequence[str], partitions: Sequence[_Partition], before: Mapping[str, Assignment]
) -> dict[str, _Assigned]:
    """Distribute partitions among members that subscribe to all of their topics."""
    if not members or not partitions:
        return {}
    sharing = -(-len(members) // len(partitions))
    quotas = _quotas(members, sharing * len(partitions))
    holders = dict.fromkeys(partitions, 0)
    kept: dict[str, _Assigned] = {}
    for member in members:
        mine: _Assigned = {}
        for topic, indexes in before.get(member, {}).items():
            for index in sorted(indexes):
                has_room = len(mine) < quotas[member] and holders.get((topic, index), sharing) < sharing
                if has_room:
                    mine[topic, index] = None
                    holders[topic, index] += 1
        kept[member] = mine
    _fill(kept, quotas, holders, sharing)
    return kept


def _quotas(members: Sequence[str], assignments: int) -> dict[str, int]:
    """Return the number of partitions for each member. The numbers differ by at most one."""
    count = len(members)
    return {
        member: -(-assignments * (i + 1) // count) - -(-assignments * i // count) for i, member in enumerate(members)
    }


def _fill(kept: dict[str, _Assigned], quotas: Mapping[str, int], holders: dict[_Partition, int], sharing: int) -> None:
    """Assign partitions with too few members to members with too few partitions, round by round.

    A member cannot get a partition twice. If no other member has room, the partition gets fewer members, which is
    harmless.
    """
    unfilled = {member: None for member in kept if len(kept[member]) < quotas[member]}
    for partition in holders:
        while holders[partition] < sharing:
            member = next((each for each in unfilled if partition not in kept[each]), None)
            if member is None:
                break
            kept[member][partition] = None
            holders[partition] += 1
            del unfilled[member]
            if len(kept[member]) < quotas[member]:
                unfilled[member] = None  # move it after the other members
