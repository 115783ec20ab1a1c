"""The loads of brokers, and how far they are from balanced.

A broker has a load of each resource. All brokers have equal shares of a resource, except that shares of the disk space
are proportional to the sizes of the brokers' disks if all sizes are known. A load within the tolerance of the share is
balanced and costs nothing, so a plan stops as soon as all loads are good enough and moves no more data than necessary.
Beyond the tolerance the cost is the square of the distance, so that the most unbalanced broker is relieved first. The
skew of a cluster is the sum of all costs.

Loads are integers, so that sums do not depend on the order of moves, and the same input always gives the same plan.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, floor
from typing import Final

from parley.tools.balance.cluster import Broker, Cluster, Partition


class Resource(StrEnum):
    """A resource to balance. The values are keys of the JSON output."""

    REPLICAS = "replicas"
    LEADERS = "leaders"
    DISK = "disk"
    BYTES_IN = "bytesIn"
    BYTES_OUT = "bytesOut"


RESOURCES: Final = tuple(Resource)
DISK: Final = RESOURCES.index(Resource.DISK)
Loads = tuple[int, int, int, int, int]
"""Replicas, leaders, bytes on disk, bytes per second in, and bytes per second out, in the order of ``RESOURCES``."""
_NOISE: Final = (0, 0, 1 << 20, 10_000, 10_000)
"""Smaller differences count as balanced, by resource: 1 MiB on a disk or 10 kB/s are negligible."""
_NONE: Final = (0,) * len(RESOURCES)


def replica_loads(one: Partition, *, leads: bool) -> Loads:
    """Return the load that a replica of the partition puts on its broker."""
    return (1, 1, one.size, one.bytes_in, one.bytes_out) if leads else (1, 0, one.size, one.bytes_in, 0)


def leader_loads(one: Partition) -> Loads:
    """Return the load that a leader of the partition has in addition to a follower's."""
    return (0, 1, 0, 0, one.bytes_out)


def loads_of(cluster: Cluster, brokers: Iterable[int]) -> dict[int, list[int]]:
    """Return the loads of these brokers, assuming that the preferred leader leads each partition."""
    found = {broker: [0] * len(RESOURCES) for broker in brokers}
    for one in cluster.partitions:
        for position, broker in enumerate(one.replicas):
            if broker in found:
                load = found[broker]
                for at, amount in enumerate(replica_loads(one, leads=position == 0)):
                    load[at] += amount
    return found


@dataclass(frozen=True, slots=True)
class Shares:
    """The share of each broker, and the range of loads that count as balanced, by broker and resource."""

    shares: Mapping[int, Sequence[float]]
    bounds: Mapping[int, Sequence[tuple[float, float, float]]]
    """The lowest and the highest balanced load, and the scale of costs: the mean share of all brokers, at least 1."""

    def excess(self, broker: int, load: Sequence[int], at: int) -> float:
        """Return by how much the load of a resource exceeds the highest balanced load, or, as a negative number, falls
        short of the lowest. Returns 0 if it is balanced. ``at`` is the index of the resource."""
        least, most, _ = self.bounds[broker][at]
        return load[at] - most if load[at] > most else min(0.0, load[at] - least)

    def cost(self, broker: int, load: Sequence[int], change: Sequence[int] = _NONE, sign: int = 1) -> float:
        """Return the cost of a load on a broker, after ``change`` was added to it (``sign`` 1) or subtracted (-1).

        The cost is 0 if that load is balanced.
        """
        total = 0.0
        for amount, each, (least, most, scale) in zip(load, change, self.bounds[broker], strict=True):
            amount += sign * each
            if amount > most:
                total += ((amount - most) / scale) ** 2
            elif amount < least:
                total += ((least - amount) / scale) ** 2
        return total

    def fill(self, broker: int, load: Sequence[int], at: int) -> float:
        """Return the load of a resource as a fraction of the broker's share: 1 if it equals the share, or if the share
        is 0."""
        share = self.shares[broker][at]
        return load[at] / share if share else 1.0


def shares_of(brokers: Sequence[Broker], total: Sequence[int], of_racks: OfRacks, tolerance: float) -> Shares:
    """Divide a total load evenly among these brokers, as far as the bounds of racks allow. ``tolerance`` is a fraction
    of a share."""
    disks = [float(broker.disk or 0) for broker in brokers]
    even = [1.0] * len(brokers)
    shares: dict[int, list[float]] = {broker.id: [] for broker in brokers}
    for at, amount in enumerate(total):
        weights = disks if at == DISK and all(disks) else even
        for broker, share in zip(brokers, _divided(brokers, weights, amount, of_racks.get(at)), strict=True):
            shares[broker.id].append(share)
    scale = [max(amount / max(len(brokers), 1), 1.0) for amount in total]
    bounds = {}
    for broker_id, each in shares.items():
        slack = [max(tolerance * share, _NOISE[at]) for at, share in enumerate(each)]
        # A count is an integer, so it can only be as close to its share as the nearest integers.
        bounds[broker_id] = [
            (min(share - slack[at], floor(share)), max(share + slack[at], ceil(share)), scale[at])
            for at, share in enumerate(each)
        ]
    return Shares(shares, bounds)


OfRacks = Mapping[int, tuple[float, float]]
"""The bounds of a rack's load: the lowest and the highest load if replicas are spread over racks, by index in
``RESOURCES``."""


def of_racks(partitions: Iterable[Partition], racks: int, brokers: Container[int]) -> OfRacks:
    """Return the bounds of a rack's load if replicas are spread over ``racks`` racks.

    The result contains only the resources that followers use. Replicas on brokers outside ``brokers`` do not count,
    because an offline broker keeps its replicas.
    """
    least, most = [0] * len(RESOURCES), [0] * len(RESOURCES)
    for one in partitions:
        fewest, rest = divmod(sum(broker in brokers for broker in one.replicas), racks)
        for at, amount in enumerate(replica_loads(one, leads=False)):
            least[at] += fewest * amount
            most[at] += (fewest + bool(rest)) * amount
    return {at: (least[at], most[at]) for at, amount in enumerate(most) if amount}


def _divided(
    brokers: Sequence[Broker], weights: Sequence[float], amount: int, bounds: tuple[float, float] | None
) -> list[float]:
    """Divide an amount among the brokers in proportion to the weights, and keep the sum of each rack within the
    bounds."""
    free = dict.fromkeys(broker.rack_name for broker in brokers)
    weight_of = {
        rack: sum(weight for broker, weight in zip(brokers, weights, strict=True) if broker.rack_name == rack)
        for rack in free
    }
    fixed: dict[str, float] = {}
    while bounds is not None and (open_ := [rack for rack in free if rack not in fixed]):
        rest, weight = amount - sum(fixed.values()), sum(weight_of[rack] for rack in open_)
        wanted = {rack: rest * weight_of[rack] / weight for rack in open_}
        beyond = {rack: max(bounds[0] - each, each - bounds[1]) for rack, each in wanted.items()}
        worst = max(open_, key=lambda rack: beyond[rack])
        if beyond[worst] <= 1e-9 * amount:
            break
        fixed[worst] = min(max(wanted[worst], bounds[0]), bounds[1])
    rest = amount - sum(fixed.values())
    weight = sum(weight_of[rack] for rack in free if rack not in fixed)
    return [
        fixed[broker.rack_name] * each / weight_of[broker.rack_name]
        if broker.rack_name in fixed
        else rest * each / weight
        for broker, each in zip(brokers, weights, strict=True)
    ]


def total_of(loads: Iterable[Sequence[int]]) -> list[int]:
    """Return the sum of these loads, by resource."""
    return [sum(each) for each in zip(*loads, strict=True)] or [0] * len(RESOURCES)
