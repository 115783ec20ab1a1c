"""Fetch: reading what producers wrote, waiting for it if need be.

Rules of this module:

* Partitions are served in the order the client gave (its session's order), until the answer has as many bytes as the
  client or ``fetch.max.bytes`` allows; the first one that has records returns at least one batch (KIP-74).
* A fetch that finds fewer than ``min_bytes`` waits (:mod:`parley.broker.api.fetch.waiting`).
* A follower is answered only under the broker epoch it is registered with (KIP-903).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from parley.broker.api.fetch.params import TOPIC_IDS_VERSION, Reader, reader_of
from parley.broker.api.fetch.sessions import FetchSessions, targets_of
from parley.broker.api.fetch.waiting import DelayedFetch
from parley.broker.api.leader_errors import MayBeSuperseded, never_superseded
from parley.broker.logging.unexpected_errors import FailureLog
from parley.broker.metadata.current import Metadata
from parley.broker.network.dispatch import Handler, RequestContext
from parley.broker.replication import ReplicaSelector
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.throttle import ReplicationThrottle
from parley.broker.runtime.purgatory import Delayed, Purgatory
from parley.broker.runtime.tasks import TaskSet
from parley.broker.runtime.threads import LOOPS_OWN, Threads
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.fetch import FetchRequest, FetchResponse

_log = logging.getLogger(__name__)


class FetchApi:
    """Serves consumers and followers from the logs this broker leads."""

    def __init__(
        self,
        partitions: HostedPartitions,
        metadata: Metadata,
        sessions: FetchSessions,
        purgatory: Purgatory,
        tasks: TaskSet,
        *,
        max_bytes: int,
        threads: Threads = LOOPS_OWN,
        selector: ReplicaSelector | None = None,
        throttle: ReplicationThrottle | None = None,
        may_be_superseded: MayBeSuperseded = never_superseded,
    ) -> None:
        """``max_bytes`` bounds every answer (``fetch.max.bytes``).

        ``selector`` sends consumers to the replicas near them (``replica.selector.class``). Then followers are told at
        once how far records are committed; otherwise it would only cost. ``throttle`` bounds what goes to followers.
        """
        self.partitions = partitions
        self.metadata = metadata
        self.sessions = sessions
        self.tasks = tasks
        self.max_bytes = max_bytes
        self.threads = threads
        self.selector = selector
        self.throttle = throttle
        self.may_be_superseded = may_be_superseded
        self.failures = FailureLog(_log)
        self.purgatory = purgatory
        self.conversion = asyncio.Lock()
        """Held while a partition's batches are converted: the threads are for all, and the memory is bounded by one."""

    def routes(self) -> dict[int, Handler]:
        return {FetchRequest.API_KEY: self.fetch}

    def fetch(
        self, context: RequestContext, request: FetchRequest
    ) -> FetchResponse | Delayed[FetchResponse] | Coroutine[Any, Any, FetchResponse]:
        """Answer with what there is, or wait for more; errors of the session fill the whole answer."""
        reader = reader_of(context, request)
        self._check_epoch(reader)
        session = self.sessions.resume(request, uses_ids=context.api_version >= TOPIC_IDS_VERSION)
        targets = targets_of(request) if session is None else session.to_look_at()
        fetch = DelayedFetch(self, context, request, session, reader)
        fetch.look_at(targets)
        if fetch.is_ready:
            return fetch.answer_now()
        fetch.wait(self.purgatory, request.max_wait_ms / 1000)
        return fetch

    def _check_epoch(self, reader: Reader) -> None:
        """Raise STALE_BROKER_EPOCH for a follower that a later run of the same broker has replaced (KIP-903)."""
        if reader.is_follower and reader.broker_epoch >= 0:
            broker = self.metadata.image.brokers.get(reader.replica)
            if broker is not None and reader.broker_epoch < broker.epoch:
                raise KafkaError(
                    ErrorCode.STALE_BROKER_EPOCH, f"Broker {reader.replica} is registered under epoch {broker.epoch}."
                )
