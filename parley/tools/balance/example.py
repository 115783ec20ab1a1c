"""Write an example of a recorded cluster to standard output: that of ``docs/balance.md``, or a larger one.

``python -m parley.tools.balance.example`` writes a cluster of three brokers to which a fourth was added, with two
topics and ``__consumer_offsets``. ``python -m parley.tools.balance.example BROKERS PARTITIONS`` writes a cluster of
that size in three racks, whose last broker is empty. Use it to measure how long planning takes.
"""

from __future__ import annotations

import json
import sys
from random import Random

from parley.tools.balance.cluster import Broker, Cluster, Partition
from parley.tools.balance.recording import as_data

_TOPICS = (("__consumer_offsets", 6, 1, 2), ("clicks", 6, 400, 900), ("orders", 6, 60, 80))
"""Topics: name, number of partitions, MiB per replica, and kB/s produced to the first partition."""


def example() -> Cluster:
    """Return the cluster that the documentation shows, to which broker 4 has been added."""
    found = []
    for topic, count, mebibytes, rate in _TOPICS:
        for index in range(count):
            replicas = tuple(1 + (index + step) % 3 for step in range(2))
            bytes_in = rate * 1000 // (1 + index % 2)
            found.append(Partition(topic, index, replicas, replicas[0], mebibytes << 20, bytes_in, bytes_in * 2))
    return Cluster(tuple(Broker(number, None, 100 << 30, 80 << 30) for number in range(1, 5)), tuple(found))


def large(brokers: int, partitions: int) -> Cluster:
    """Return a cluster in three racks, with three replicas per partition and lognormal sizes and rates. Its last broker
    is empty."""
    random = Random(1)
    members = [[number for number in range(brokers - 1) if number % 3 == rack] for rack in range(3)]
    found = []
    for number in range(partitions):
        racks = random.sample(members, 3)
        replicas = tuple(random.choice(rack) for rack in racks)
        size, bytes_in = int(random.lognormvariate(20, 1.5)), int(random.lognormvariate(9, 1.5))
        found.append(
            Partition(f"topic-{number // 50:05d}", number % 50, replicas, replicas[0], size, bytes_in, bytes_in * 3)
        )
    return Cluster(
        tuple(Broker(number, f"rack-{number % 3}", 10**13, 8 * 10**12) for number in range(brokers)), tuple(found)
    )


if __name__ == "__main__":
    print(json.dumps(as_data(large(*map(int, sys.argv[1:3])) if len(sys.argv) > 2 else example())))
