"""The parts of the broker that every fetch uses, and the interface of consumers' quotas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from parley.broker.api.fetch.sessions import FetchSessions
from parley.broker.api.leader_errors import MayBeSuperseded
from parley.broker.logging.unexpected_errors import FailureLog
from parley.broker.metadata.current import Metadata
from parley.broker.network.request_context import RequestContext
from parley.broker.replication import ReplicaSelector
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.throttle import ReplicationThrottle
from parley.broker.runtime.purgatory import Purgatory
from parley.broker.runtime.tasks import TaskSet
from parley.broker.runtime.threads import Threads
from parley.broker.security.authorization import Authorization
from parley.light_dataclasses import dataclass


class FetchQuotas(Protocol):
    """The quotas of consumers. If ``is_active`` is False, no client has a quota, and nothing is counted."""

    @property
    def is_active(self) -> bool: ...

    def fetch_bytes_max(self, context: RequestContext) -> int:
        """Return the maximum number of bytes that the client's quota allows in one response."""

    def throttle_fetch_ms(self, context: RequestContext, size: int, *, has_more: bool = False) -> int:
        """Count the ``size`` bytes of records that a fetch would return, unless they exceed a quota.

        Returns the throttle time in milliseconds. If it is not 0, the fetch must respond without records. ``has_more``
        is True if the fetch also returns records whose size is still unknown.
        """

    def record_fetch(self, context: RequestContext, size: int) -> None:
        """Count ``size`` bytes of records that a fetch returns regardless of the quota."""

    def time_step(self, context: RequestContext, step: Callable[[], None]) -> None:
        """Run a step of a waiting fetch, and count its time toward the client's request quota."""


class _Unlimited:
    is_active = False

    def fetch_bytes_max(self, context: RequestContext) -> int:
        return 2**31 - 1

    def throttle_fetch_ms(self, context: RequestContext, size: int, *, has_more: bool = False) -> int:
        return 0

    def record_fetch(self, context: RequestContext, size: int) -> None:
        return

    def time_step(self, context: RequestContext, step: Callable[[], None]) -> None:
        step()


UNLIMITED: Final = _Unlimited()
"""The quotas of a broker on which no consumer has a quota."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchDependencies:
    """The parts and settings of the broker that the handler passes to each fetch."""

    partitions: HostedPartitions
    metadata: Metadata
    sessions: FetchSessions
    purgatory: Purgatory
    tasks: TaskSet
    max_bytes: int
    """The size limit of every response: ``fetch.max.bytes``."""
    threads: Threads
    selector: ReplicaSelector | None
    """Sends consumers to nearer replicas (``replica.selector.class``). If set, followers get a new high watermark
    immediately, because consumers may read from them."""
    throttle: ReplicationThrottle | None
    """Limits the bytes sent to followers that are not in sync."""
    may_be_superseded: MayBeSuperseded
    authorization: Authorization
    quotas: FetchQuotas
    failures: FailureLog
    conversion: asyncio.Lock
    """Held while the batches of one partition are converted for an old client, so that only one conversion takes
    memory."""
