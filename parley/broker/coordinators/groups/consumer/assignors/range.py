"""The assignor ``range``: divides the partitions of each topic into ranges, one for each subscriber, in the same order.

Members that subscribe to the same topics therefore get the same partitions of each topic, as joins of topics require.
"""

from __future__ import annotations

from collections.abc import Mapping

from parley.broker.coordinators.groups.consumer.assignors.assignor import GroupSpec, PartitionAssignor
from parley.broker.coordinators.groups.consumer.member import Assignment
from parley.protocol.uuids import UUID


class RangeAssignor(PartitionAssignor):
    """An assignor that gives each subscriber of a topic a range of the topic's partitions."""

    name = "range"

    def assign(self, group: GroupSpec) -> Mapping[str, Assignment]:
        """Return the partitions of each member. Static members come first, in the order of their instance ids."""
        order = sorted(
            group.members.items(),
            key=lambda item: (item[1].instance_id is None, item[1].instance_id or "", item[0]),
        )
        subscribers: dict[UUID, list[str]] = {topic: [] for topic in group.topics}
        for member_id, member in order:
            for topic in member.topics:
                subscribers[topic].append(member_id)
        result: dict[str, dict[UUID, tuple[int, ...]]] = {member_id: {} for member_id in group.members}
        for topic, spec in group.topics.items():
            members = subscribers[topic]
            share, extra = divmod(spec.partitions, max(len(members), 1))
            first = 0
            for index, member_id in enumerate(members):
                end = first + share + (index < extra)
                if end > first:
                    result[member_id][topic] = tuple(range(first, end))
                first = end
        return result
