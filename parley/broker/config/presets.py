"""What a broker is started with where nobody wrote a properties file: the one place for it.

Two ways to start need no file: ``parley start``, and an embedded ``parley.Broker``; both have a form for several
brokers. Whatever they are given counts more than what stands here, and what stands here more than the keys' own
defaults. With a file none of it counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_ALONE = {
    "offsets.topic.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
}
"""A broker without a file is alone: there is nobody to replicate to, and no crowd of members to wait for."""

COMMAND: Mapping[str, str] = MappingProxyType(
    {
        "listeners": "PLAINTEXT://127.0.0.1:9092",
        "log.dirs": "./parley-data",
        "metrics.listener": "127.0.0.1:9464",
        **_ALONE,
    }
)
"""``parley start``. Where somebody has the port of the metrics, any free one is taken."""

EMBEDDED: Mapping[str, str] = MappingProxyType(
    {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "coordination.url": "memory:",
        **_ALONE,
    }
)
"""``Broker()``. The store is in memory only where no folder is named; with one it is the embedded store in it."""


def of_cluster(brokers: int) -> dict[str, str]:
    """What every broker of a cluster on one machine is started with: topics have as many replicas as make sense.

    So no single broker that dies takes anything with it: neither records, nor the groups' offsets.
    """
    replicas = str(min(brokers, 3))
    return {
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "group.initial.rebalance.delay.ms": "0",
    }


EMBEDDED_CLUSTER: Mapping[str, str] = MappingProxyType(
    {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "offsets.topic.num.partitions": "10",
    }
)
"""``Cluster()``, besides ``of_cluster``: few partitions for offsets, as tests use few groups."""

IN_ONE_LOOP: Mapping[str, str] = MappingProxyType({"coordination.session.timeout.ms": "1000"})
"""``Cluster()`` with its store in memory: brokers and store share one event loop, so that a loop that is busy for long
stops the clock of a session as well as its renewal."""
