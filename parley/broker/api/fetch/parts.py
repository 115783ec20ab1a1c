"""The parts of a broker that every fetch uses."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from parley.broker.api.fetch.sessions import FetchSessions
from parley.broker.api.leader_errors import MayBeSuperseded
from parley.broker.logging.unexpected_errors import FailureLog
from parley.broker.metadata.current import Metadata
from parley.broker.replication import ReplicaSelector
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.throttle import ReplicationThrottle
from parley.broker.runtime.purgatory import Purgatory
from parley.broker.runtime.tasks import TaskSet
from parley.broker.runtime.threads import Threads


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchParts:
    """The parts of the broker that the handler passes to each fetch."""

    partitions: HostedPartitions
    metadata: Metadata
    sessions: FetchSessions
    purgatory: Purgatory
    tasks: TaskSet
    max_bytes: int
    """The bound of every response: ``fetch.max.bytes``."""
    threads: Threads
    selector: ReplicaSelector | None
    """Sends consumers to nearer replicas (``replica.selector.class``). If there is one, followers learn a new high
    watermark at once, because consumers may read from them."""
    throttle: ReplicationThrottle | None
    """Bounds the bytes sent to followers that are not in sync."""
    may_be_superseded: MayBeSuperseded
    failures: FailureLog
    conversion: asyncio.Lock
    """Held while one partition's batches are converted for an old client, so that memory holds one conversion."""
