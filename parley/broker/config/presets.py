"""The settings of a broker that is started without a properties file.

``parley start`` and an embedded ``parley.Broker`` need no file, and clusters of several brokers do not need one either.
The user's settings override these presets, and the presets override the defaults of the keys. They do not apply if
there is a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

ALONE: Mapping[str, str] = MappingProxyType(
    {
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
)
"""The presets of a single broker without a file: there are no other replicas, and groups need not wait for more
members."""

COMMAND: Mapping[str, str] = MappingProxyType(
    {
        "listeners": "PLAINTEXT://127.0.0.1:9092",
        "log.dirs": "./parley-data",
        "metrics.listener": "127.0.0.1:9464",
        **ALONE,
    }
)
"""The presets of ``parley start``. If the metrics port is in use, the broker uses any free port."""

CONTAINER: Mapping[str, str] = MappingProxyType(
    {
        "listeners": "PLAINTEXT://0.0.0.0:9092",
        "advertised.listeners": "PLAINTEXT://localhost:9092",
        "log.dirs": "/var/lib/parley/data",
        "metrics.listener": "0.0.0.0:9464",
    }
)
"""The presets of ``parley start --from-environment``. ``ALONE`` applies as well if there is no properties file and no
setting selects a store. A file overrides both."""

EMBEDDED: Mapping[str, str] = MappingProxyType(
    {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "coordination.url": "memory:",
        **ALONE,
    }
)
"""The presets of ``Broker()``. Without a data folder, the store is in memory; with one, it is the embedded store in
that folder."""


def of_cluster(brokers: int) -> dict[str, str]:
    """Return the presets for each broker of a cluster of ``brokers`` brokers on one machine.

    Topics have up to three replicas. With two or more brokers, neither committed records nor committed offsets are lost
    if a single broker dies.
    """
    replicas = str(min(brokers, 3))
    return {
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": "2" if brokers > 2 else "1",
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": "2" if brokers > 2 else "1",
        "group.initial.rebalance.delay.ms": "0",
    }


EMBEDDED_CLUSTER: Mapping[str, str] = MappingProxyType(
    {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "offsets.topic.num.partitions": "10",
        "transaction.state.log.num.partitions": "10",
        "share.coordinator.state.topic.num.partitions": "10",
    }
)
"""The presets of ``Cluster()``, in addition to ``of_cluster``: few partitions for coordinators, because tests use few
groups."""

IN_ONE_LOOP: Mapping[str, str] = MappingProxyType({"coordination.session.timeout.ms": "1000"})
"""The presets of ``Cluster()`` if its store is in memory.

Brokers and store share one event loop: if the loop is blocked, sessions neither expire nor are renewed. Their timeouts
can therefore be short.
"""
