"""The assignor ``uniform``: all members get about the same number of partitions, and keep most of their partitions.

If all members subscribe to the same topics, their numbers of partitions differ by at most one. Otherwise, a partition
moves only to a subscriber that has at least two partitions fewer.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush, heapreplace

from parley.broker.coordinators.groups.consumer.assignors.assignor import GroupSpec, MemberSpec, PartitionAssignor
from parley.broker.coordinators.groups.consumer.member import Assignment
from parley.protocol.uuids import UUID


class UniformAssignor(PartitionAssignor):
    """An assignor that gives all members about the same number of partitions."""

    name = "uniform"

    def assign(self, group: GroupSpec) -> Mapping[str, Assignment]:
        """Return the partitions of each member."""
        if not group.members or not group.topics:
            return {}
        return (_Homogeneous(group) if group.is_homogeneous else _Heterogeneous(group)).assign()


class _Draft:
    """An assignment that is being built."""

    def __init__(self, group: GroupSpec) -> None:
        self._group = group
        self._taken = {topic: bytearray(spec.partitions) for topic, spec in group.topics.items()}
        self._has: dict[str, list[tuple[UUID, int]]] = {}

    def _keep(self, member: MemberSpec) -> list[tuple[UUID, int]]:
        """Return the partitions that the member already has and may keep, and mark them as taken."""
        kept = []
        for topic, partitions in member.assigned.items():
            taken = self._taken.get(topic)
            if taken is None or topic not in member.topics:
                continue
            for partition in partitions:
                if 0 <= partition < len(taken) and not taken[partition]:
                    taken[partition] = 1
                    kept.append((topic, partition))
        return kept

    def _untake(self, partition: tuple[UUID, int]) -> None:
        self._taken[partition[0]][partition[1]] = 0

    def _free(self) -> list[tuple[UUID, int]]:
        """Return the partitions that no member has."""
        return [
            (topic, partition)
            for topic, taken in self._taken.items()
            if not all(taken)
            for partition, is_taken in enumerate(taken)
            if not is_taken
        ]

    def _result(self) -> dict[str, Assignment]:
        return {
            member_id: _sorted(partitions, self._group.members[member_id].assigned)
            for member_id, partitions in self._has.items()
        }


def _sorted(partitions: list[tuple[UUID, int]], before: Assignment) -> Assignment:
    """Return partitions by topic: the mapping ``before`` itself if nothing has changed."""
    by_topic: dict[UUID, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    result = {topic: tuple(sorted(each)) for topic, each in by_topic.items()}
    return before if result == before else result


class _Homogeneous(_Draft):
    def assign(self) -> dict[str, Assignment]:
        members = self._group.members
        total = sum(spec.partitions for spec in self._group.topics.values())
        quota, extra = divmod(total, len(members))
        for member_id, member in members.items():
            kept = self._keep(member)
            allowed = quota
            if len(kept) > quota and extra:
                allowed, extra = quota + 1, extra - 1
            for partition in kept[allowed:]:
                self._untake(partition)
            self._has[member_id] = kept[:allowed]
        free = iter(self._free())
        for each in self._has.values():
            for _ in range(quota - len(each)):
                each.append(next(free))
        for each in self._has.values():
            if not extra:
                break
            if len(each) == quota:
                each.append(next(free))
                extra -= 1
        return self._result()


class _Heterogeneous(_Draft):
    """An assignment for members that subscribe to different topics. Each free partition goes to the subscriber with the
    fewest partitions; then the numbers are evened out."""

    def assign(self) -> dict[str, Assignment]:
        for member_id, member in self._group.members.items():
            self._has[member_id] = self._keep(member)
        self._counts = {member_id: len(kept) for member_id, kept in self._has.items()}
        self._subscribers = self._subscribers_by_topic()
        self._give_free()
        self._owners: dict[UUID, dict[int, str]] = {topic: {} for topic in self._group.topics}
        for member_id, partitions in self._has.items():
            for topic, partition in partitions:
                self._owners[topic][partition] = member_id
        # Each move makes the counts more even, so this ends. A few rounds suffice for all but contrived groups.
        for _ in range(ROUNDS_MAX):
            moves = [self._balance(topic) for topic in self._group.topics]
            if not any(moves):
                break
        self._has = {member_id: [] for member_id in self._has}
        for topic, owners in self._owners.items():
            for partition, member_id in owners.items():
                self._has[member_id].append((topic, partition))
        return self._result()

    def _subscribers_by_topic(self) -> dict[UUID, list[str]]:
        subscribers: dict[UUID, list[str]] = {topic: [] for topic in self._group.topics}
        for member_id, member in self._group.members.items():
            for topic in member.topics:
                subscribers[topic].append(member_id)
        return subscribers

    def _give_free(self) -> None:
        """Assign the partitions that no member has, starting with the topics that have the fewest subscribers."""
        free: dict[UUID, list[int]] = {}
        for topic, partition in self._free():
            free.setdefault(topic, []).append(partition)
        for topic in sorted(free, key=lambda topic: len(self._subscribers[topic])):
            fewest = [(self._counts[member_id], member_id) for member_id in self._subscribers[topic]]
            if not fewest:
                continue
            heapify(fewest)
            for partition in free[topic]:
                count, member_id = fewest[0]
                self._has[member_id].append((topic, partition))
                heapreplace(fewest, (count + 1, member_id))
                self._counts[member_id] = count + 1

    def _balance(self, topic: UUID) -> bool:
        """Even out the counts of a topic's subscribers by moving its partitions. Returns True if a partition moved."""
        counts, owners = self._counts, self._owners[topic]
        subscribers = self._subscribers[topic]
        if len(subscribers) < 2:
            return False
        movable: dict[str, list[int]] = {}
        for partition, member_id in owners.items():
            movable.setdefault(member_id, []).append(partition)
        most = [(-counts[member_id], member_id) for member_id in movable]
        fewest = [(counts[member_id], member_id) for member_id in subscribers]
        heapify(most)
        heapify(fewest)
        has_moved = False
        while most and -most[0][0] - fewest[0][0] > 1:
            (_, giver), (_, taker) = most[0], fewest[0]
            owners[movable[giver].pop()] = taker
            counts[giver] -= 1
            counts[taker] += 1
            heappop(most)
            if movable[giver]:
                heappush(most, (-counts[giver], giver))
            heapreplace(fewest, (counts[taker], taker))
            has_moved = True
        return has_moved


ROUNDS_MAX = 16
"""The maximum number of rounds. Each round balances all topics, and may move a partition that an earlier round has
already moved."""
