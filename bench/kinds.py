"""The kinds of brokers and clusters that a family measures in turns."""

from __future__ import annotations

from bench.cluster import clusters
from bench.clusters import KAFKA, Kafka, Measured, Parley
from bench.peers import installed_peers
from bench.replication import ReplicatedCluster


def single_brokers(alone: bool, *, peers: bool = False) -> list[type[Measured]]:
    """Return the installed brokers among Apache Kafka, Parley and, with ``peers``, Tansu and kfake.

    With ``alone``, returns only Parley.
    """
    if alone:
        return [Parley]
    kafka: list[type[Measured]] = [Kafka] if KAFKA.exists() else []
    return [*kafka, *(installed_peers() if peers else ()), Parley]


def kinds_of(is_cluster: bool, alone: bool) -> list[type[Measured] | type[ReplicatedCluster]]:
    """Return the kinds to measure: clusters, or single brokers without Tansu and kfake. With ``alone``, only
    Parley's."""
    return [*clusters(alone)] if is_cluster else [*single_brokers(alone)]
