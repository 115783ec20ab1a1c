"""Where the replicas of new partitions are placed, and which brokers a manual assignment may name.

Leaders are spread round-robin over the brokers, from a random start. The followers of a partition are placed on the
brokers that follow the leader's, at a shift that grows with every full round, so that the followers of one broker's
leaders spread over all brokers. With racks (KIP-36), brokers are first ordered so that racks alternate, and a replica
goes to a rack that has no replica of the partition while there is such a rack. Among these brokers it goes to the host
(``broker.host.label``) that has the fewest replicas of the partition. Registered brokers that are not alive get a
replica only if there are too few live brokers, and are never the preferred leader: a topic can be created without them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from random import Random

from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import BrokerRegistration
from parley.protocol.errors import ErrorCode, KafkaError


class ReplicaPlacement:
    """Places replicas on these brokers. One object places all topics of a request, because it computes the order of the
    brokers only once, and reuses the sets of replicas that it has chosen."""

    def __init__(self, brokers: Sequence[BrokerRegistration]) -> None:
        self._registered = len(brokers)
        self._order = _alternate_racks([broker for broker in brokers if not broker.fenced])
        self._racks = [_rack(broker) for broker in self._order]
        self._hosts = [_host(broker) for broker in self._order]
        self._away = sorted(broker.broker_id for broker in brokers if broker.fenced)
        self._chosen: dict[tuple[int, int, int], tuple[int, ...]] = {}
        """(Leader's position, shift, number of replicas) -> the live replicas. There are few combinations."""

    def place(
        self,
        partitions: int,
        replication_factor: int,
        rng: Random,
        *,
        first_index: int = 0,
        first_leader: int | None = None,
    ) -> list[tuple[int, ...]]:
        """Return the replicas of ``partitions`` new partitions, the preferred leader of each first.

        To continue the placement of an existing topic, pass the index of the first new partition as ``first_index``,
        and the preferred leader of partition 0 as ``first_leader``. Raises INVALID_REPLICATION_FACTOR if there are
        fewer brokers than replicas, or no broker is alive.
        """
        order, away = self._order, self._away
        if not order:
            raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, "All brokers are currently fenced.")
        if replication_factor > self._registered:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"Replication factor {replication_factor} is larger than the number of registered brokers, "
                f"{self._registered}; start more brokers or request fewer replicas.",
            )
        missing = max(0, replication_factor - len(order))
        start, shift = rng.randrange(len(order)), rng.randrange(len(order))
        start = next((at for at, broker in enumerate(order) if broker.broker_id == first_leader), start)
        placed = []
        for index in range(first_index, first_index + partitions):
            if index and index % len(order) == 0:
                shift += 1
            at = ((start + index) % len(order), shift % max(1, len(order) - 1), replication_factor - missing)
            replicas = self._chosen.get(at)
            if replicas is None:
                replicas = self._chosen[at] = self._replicas(*at)
            if missing:
                replicas += tuple(away[(index + step) % len(away)] for step in range(missing))
            placed.append(replicas)
        return placed

    def _replicas(self, leader: int, shift: int, count: int) -> tuple[int, ...]:
        racks, hosts, others = self._racks, self._hosts, len(self._order) - 1
        chosen = [leader]
        candidates = [(leader + 1 + (shift + step) % others) % len(racks) for step in range(others)]
        racks_used, racks_total = {racks[leader]}, len(set(racks))
        on_host = Counter([hosts[leader]])
        while len(chosen) < count:
            fresh_rack_wanted = len(racks_used) < racks_total
            pick = min(
                (at for at in candidates if at not in chosen and not (fresh_rack_wanted and racks[at] in racks_used)),
                key=lambda at: on_host[hosts[at]],
            )
            chosen.append(pick)
            racks_used.add(racks[pick])
            on_host[hosts[pick]] += 1
        return tuple(self._order[at].broker_id for at in chosen)


def _alternate_racks(brokers: Sequence[BrokerRegistration]) -> list[BrokerRegistration]:
    """Order the brokers so that racks alternate, and hosts within a rack. Without racks, hosts alternate."""
    by_id = sorted(brokers, key=lambda broker: broker.broker_id)
    return _alternate(
        _alternate(by_id, _host), lambda broker: broker.rack if broker.rack is not None else _host(broker)
    )


def _alternate(
    brokers: Sequence[BrokerRegistration], group: Callable[[BrokerRegistration], str]
) -> list[BrokerRegistration]:
    groups: dict[str, list[BrokerRegistration]] = defaultdict(list)
    for broker in brokers:
        groups[group(broker)].append(broker)
    rounds = zip_longest(*(groups[name] for name in sorted(groups)))
    return [broker for broker in chain.from_iterable(rounds) if broker is not None]


def _rack(broker: BrokerRegistration) -> str:
    """Return the broker's rack. A broker without a rack counts as a separate rack."""
    return broker.rack if broker.rack is not None else _alone(broker)


def _host(broker: BrokerRegistration) -> str:
    """Return the broker's host label. A broker without a label counts as a separate host."""
    return broker.host_label or _alone(broker)


def _alone(broker: BrokerRegistration) -> str:
    return f"\0{broker.broker_id:010d}"


def check_replicas(image: MetadataImage, partition: str, replicas: Sequence[int]) -> None:
    """Raise INVALID_REPLICA_ASSIGNMENT unless these are distinct, registered brokers. They need not be alive."""
    problem = ""
    if not replicas:
        problem = "has no replicas"
    elif len(set(replicas)) != len(replicas):
        problem = f"names a broker twice: {list(replicas)}"
    elif unknown := [broker for broker in replicas if broker not in image.brokers]:
        problem = f"names unknown brokers: {unknown}"
    if problem:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Partition {partition} {problem}.")
