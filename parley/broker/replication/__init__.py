"""A partition's replicas: hosting and leading them, fetching from leaders, and maintaining the ISR."""

from parley.broker.replication.replica_selector import (
    ConsumerView,
    RackAwareReplicaSelector,
    ReplicaSelector,
    ReplicaView,
)

__all__ = ["ConsumerView", "RackAwareReplicaSelector", "ReplicaSelector", "ReplicaView"]
