"""Following leaders, and keeping the set of replicas that are in sync."""

from parley.broker.replication.replica_selector import (
    ConsumerView,
    RackAwareReplicaSelector,
    ReplicaSelector,
    ReplicaView,
)

__all__ = ["ConsumerView", "RackAwareReplicaSelector", "ReplicaSelector", "ReplicaView"]
