"""The planner's working state: the replicas as moved so far, and the resulting loads and free space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

from parley.tools.balance.cluster import Cluster
from parley.tools.balance.loads import (
    RESOURCES,
    Loads,
    Shares,
    leader_loads,
    loads_of,
    of_racks,
    replica_loads,
    shares_of,
    total_of,
)
from parley.tools.balance.plan import Duty, Goals

_ROOM: Final = 0.8
"""The fraction of a broker's free space that a plan may fill. The rest is for records produced in the meantime."""
_RACK_PAIR: Final = 1 << 20
"""The weight of a pair of replicas in one rack, if a pair on one host has weight 1. No partition has so many pairs."""


class Layout:
    """The working state of a plan. A partition's number is its position in ``cluster.partitions``."""

    def __init__(self, cluster: Cluster, goals: Goals) -> None:
        self.cluster = cluster
        self.goals = goals
        self.brokers = [broker for broker in cluster.brokers if broker.id not in goals.emptied]
        """The brokers that may hold replicas."""
        self.ids = [broker.id for broker in self.brokers]
        self.rack_of = {broker.id: broker.rack_name for broker in cluster.brokers}
        self.host_of = {broker.id: broker.host_name for broker in cluster.brokers}
        self.replicas = [one.replicas for one in cluster.partitions]
        self.loads = loads_of(cluster, {*self.ids, *goals.emptied})
        racks = len({broker.rack_name for broker in self.brokers}) or 1
        self.shares: Shares = shares_of(
            self.brokers,
            total_of(self.loads.values()),
            of_racks(cluster.partitions, racks, self.loads),
            goals.tolerance,
        )
        self.on: dict[int, set[int]] = {broker: set() for broker in self.loads}
        """The numbers of the partitions with a replica on each broker."""
        for number, replicas in enumerate(self.replicas):
            for broker in replicas:
                if broker in self.on:
                    self.on[broker].add(number)
        self.costs = {broker: self.shares.cost(broker, self.loads[broker]) for broker in self.ids}
        self._leads = [replica_loads(one, leads=True) for one in cluster.partitions]
        self._follows = [replica_loads(one, leads=False) for one in cluster.partitions]
        self.copied = 0
        """The bytes that the moves so far will copy."""
        self._room = {one.id: None if one.free is None else int(one.free * _ROOM) for one in self.brokers}
        self._incoming = dict.fromkeys(self.ids, 0)

    @cached_property
    def ranks(self) -> list[list[int]]:
        """The rank of each partition by the load of its leader, for each resource. Rank 0 is the highest load."""
        return [_ranks(self.cluster, at) for at in range(len(RESOURCES))]

    @cached_property
    def average_size(self) -> float:
        """The mean size of a replica in bytes, or 1 if all replicas are empty."""
        partitions = self.cluster.partitions
        return sum(one.size for one in partitions) / max(len(partitions), 1) or 1.0

    def move(self, number: int, replicas: tuple[int, ...]) -> None:
        """Assign these replicas, the preferred leader first, to a partition, and update all loads."""
        one = self.cluster.partitions[number]
        before = self.replicas[number]
        for sign, each in ((-1, before), (1, replicas)):
            for position, broker in enumerate(each):
                if broker in self.loads:
                    load = self.loads[broker]
                    for at, amount in enumerate(replica_loads(one, leads=position == 0)):
                        load[at] += sign * amount
        for broker in {*before, *replicas} & self.loads.keys():
            (self.on[broker].add if broker in replicas else self.on[broker].discard)(number)
            if broker in self.costs:
                self.costs[broker] = self.shares.cost(broker, self.loads[broker])
        for sign, each in ((-1, before), (1, replicas)):
            for broker in set(each).difference(one.replicas):
                self._incoming[broker] += sign * one.size
                self.copied += sign * one.size
        self.replicas[number] = replicas

    def gain(self, source: int, target: int, load: Sequence[int]) -> float:
        """Return how much the skew falls if this load moves from one broker to another (negative: rises). Returns 0
        without a computation if both are balanced."""
        costs, loads, cost = self.costs, self.loads, self.shares.cost
        now = costs[source] + costs[target]
        return now and now - cost(source, loads[source], load, -1) - cost(target, loads[target], load)

    def gain_of(self, number: int, replicas: tuple[int, ...]) -> float:
        """Return how much the skew falls if the partition is assigned these replicas (negative: rises)."""
        change: dict[int, list[int]] = {}
        one = self.cluster.partitions[number]
        for sign, each in ((-1, self.replicas[number]), (1, replicas)):
            for position, broker in enumerate(each):
                if broker in self.costs:
                    load = change.setdefault(broker, list(self.loads[broker]))
                    for at, amount in enumerate(replica_loads(one, leads=position == 0)):
                        load[at] += sign * amount
        return sum(self.costs[broker] - self.shares.cost(broker, load) for broker, load in change.items())

    def skew(self) -> float:
        """Return the skew, which says how far the cluster is from balanced: 0 if it is balanced."""
        return sum(self.costs[broker] for broker in self.ids)

    def collisions(self, replicas: Sequence[int]) -> int:
        """Return how badly the replicas are spread: the weighted number of pairs in the same rack or on the same host.

        One pair in the same rack outweighs all pairs on the same host. The result is 0 if there are no such pairs.
        A broker that is offline or has no rack and no host label counts as a rack and a host by itself.
        """
        return _RACK_PAIR * _pairs(self.rack_of, replicas) + _pairs(self.host_of, replicas)

    def is_apart(self, one: int, other: int) -> bool:
        """Return True if these brokers are in different racks or on different hosts."""
        return self.rack_of[one] != self.rack_of[other] or self.host_of[one] != self.host_of[other]

    def duty(self, before: Sequence[int], after: Sequence[int]) -> Duty:
        """Return the reason for a move that lowers ``collisions``: RACK if fewer pairs share a rack afterwards,
        otherwise HOST."""
        racks = {broker.id: broker.rack for broker in self.cluster.brokers if broker.rack}
        return Duty.RACK if _pairs(racks, after) < _pairs(racks, before) else Duty.HOST

    def may_receive(self, number: int, broker: int) -> bool:
        """Return True if the partition may be assigned a replica on this broker.

        It may if the broker still holds the data. Otherwise the broker must have room for it, and the plan's limit must
        allow the copy. A broker that is already assigned a replica may not get another.
        """
        one = self.cluster.partitions[number]
        if broker in self.replicas[number]:
            return False
        if broker in one.replicas:
            return True  # it still holds the data
        return self.has_room(number, broker) and self.may_copy([number])

    def may_copy(self, numbers: Sequence[int]) -> bool:
        """Return True if the plan may copy a replica of each of these partitions without exceeding its limit."""
        limit = self.goals.max_bytes
        sizes = sum(self.cluster.partitions[number].size for number in numbers)
        return limit is None or self.copied + sizes <= limit

    def has_room(self, number: int, broker: int) -> bool:
        """Return True if the broker's disk has room for a replica of the partition. Ignores the plan's limit."""
        room = self._room[broker]
        return room is None or self._incoming[broker] + self.cluster.partitions[number].size <= room

    def crowding(self, broker: int, load: Sequence[int]) -> float:
        """Return how undesirable this additional load is on a broker.

        This is the increase of the squares of the broker's loads relative to its shares. Unlike the skew, it also ranks
        brokers that are all within the tolerance.
        """
        return sum(
            ((amount + each) ** 2 - amount**2) / scale**2
            for amount, each, (_, _, scale) in zip(self.loads[broker], load, self.shares.bounds[broker], strict=True)
        )

    def load_of(self, number: int, *, leads: bool) -> Loads:
        """Return the load of a replica of the partition, as a leader or as a follower."""
        return self._leads[number] if leads else self._follows[number]

    def leader_load_of(self, number: int) -> Loads:
        """Return the load that the partition's leader has in addition to a follower's."""
        return leader_loads(self.cluster.partitions[number])


def _pairs(places: Mapping[int, str], replicas: Sequence[int]) -> int:
    """Return the number of pairs of replicas in the same place. A broker without a place shares it with no other."""
    names = [places.get(broker, broker) for broker in replicas]
    return sum(count * (count - 1) // 2 for count in (names.count(name) for name in set(names)))


def _ranks(cluster: Cluster, at: int) -> list[int]:
    def load(number: int) -> tuple[int, int, int]:
        one = cluster.partitions[number]
        return -replica_loads(one, leads=True)[at], -one.size, number

    ranks = [0] * len(cluster.partitions)
    for place, number in enumerate(sorted(range(len(ranks)), key=load)):
        ranks[number] = place
    return ranks


def exchanged(replicas: tuple[int, ...], source: int, target: int) -> tuple[int, ...]:
    """Return the replicas with ``source`` replaced by ``target``."""
    return tuple(target if broker == source else broker for broker in replicas)


def led_by(replicas: tuple[int, ...], leader: int) -> tuple[int, ...]:
    """Return the replicas with ``leader`` as the preferred leader; it swaps places with the current one."""
    return tuple(
        leader if at == 0 else replicas[0] if broker == leader else broker for at, broker in enumerate(replicas)
    )
