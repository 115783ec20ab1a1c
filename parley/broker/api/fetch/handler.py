"""The Fetch API: returns records to consumers and followers, immediately or when there are enough of them.

Rules of this module:

* Partitions are served in the order of the request, or of the session if there is one, until the response reaches the
  size limit of the client or of ``fetch.max.bytes`` (``plan``).
* A fetch that finds less than ``min_bytes`` waits (``pending_fetch``).
* A consumer that exceeds its quota gets a response without records, and is throttled.
* A follower must fetch with the broker epoch under which it is registered (KIP-903).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

from parley.broker.api.fetch.dependencies import UNLIMITED, FetchDependencies, FetchQuotas
from parley.broker.api.fetch.params import TOPIC_IDS_VERSION, FetchParams, params_of
from parley.broker.api.fetch.pending_fetch import PendingFetch
from parley.broker.api.fetch.sessions import FetchSessions, FetchTarget, targets_of
from parley.broker.api.leader_errors import MayBeSuperseded, never_superseded
from parley.broker.logging.unexpected_errors import FailureLog
from parley.broker.metadata.current import Metadata
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.replication import ReplicaSelector
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.throttle import ReplicationThrottle
from parley.broker.runtime.purgatory import Delayed, Purgatory
from parley.broker.runtime.tasks import TaskSet
from parley.broker.runtime.threads import LOOP_THREADS, Threads
from parley.broker.runtime.turns import next_turn
from parley.broker.security.authorization import EVERYONE_MAY, Authorization
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.fetch import FetchRequest, FetchResponse

_log = logging.getLogger(__name__)

LOOKED_AT_IN_A_TURN: Final = 500
"""The number of partitions that a fetch looks at before the event loop serves other clients. Each takes about 10
microseconds."""


class FetchApi:
    """Handler of Fetch, for consumers and followers."""

    def __init__(
        self,
        partitions: HostedPartitions,
        metadata: Metadata,
        sessions: FetchSessions,
        purgatory: Purgatory,
        tasks: TaskSet,
        *,
        max_bytes: int,
        threads: Threads = LOOP_THREADS,
        selector: ReplicaSelector | None = None,
        throttle: ReplicationThrottle | None = None,
        may_be_superseded: MayBeSuperseded = never_superseded,
        authorization: Authorization = EVERYONE_MAY,
        quotas: FetchQuotas = UNLIMITED,
    ) -> None:
        """Create the handler. ``FetchDependencies`` describes the arguments."""
        self._dependencies = FetchDependencies(
            partitions=partitions,
            metadata=metadata,
            sessions=sessions,
            purgatory=purgatory,
            tasks=tasks,
            max_bytes=max_bytes,
            threads=threads,
            selector=selector,
            throttle=throttle,
            may_be_superseded=may_be_superseded,
            authorization=authorization,
            quotas=quotas,
            failures=FailureLog(_log),
            conversion=asyncio.Lock(),
        )

    def routes(self) -> dict[int, Handler]:
        """Return the handlers by API key."""
        return {FetchRequest.API_KEY: self.fetch}

    def fetch(
        self, context: RequestContext, request: FetchRequest
    ) -> FetchResponse | Delayed[FetchResponse] | Coroutine[Any, Any, FetchResponse | Delayed[FetchResponse]]:
        """Return the response, a future if the fetch must wait for more records, or a coroutine if it needs the disk or
        has more than ``LOOKED_AT_IN_A_TURN`` partitions to look at.

        A new session is created when the response is built (``render.build_response``). Raises KafkaError for an error
        of the whole request: a session error, STALE_BROKER_EPOCH, or INVALID_REQUEST for too many partitions.
        """
        params = params_of(context, request)
        if params.is_follower:
            context.is_from_follower = True
            self._check_broker_epoch(params)
        if self._dependencies.quotas.is_active:
            self._limit_bytes(context, request)
        sessions = self._dependencies.sessions
        session = sessions.resume(request, uses_ids=context.api_version >= TOPIC_IDS_VERSION, owner=context.principal)
        fetch = PendingFetch(self._dependencies, params, session)
        targets = targets_of(request) if session is None else session.next_targets()
        wait_s = request.max_wait_ms / 1000
        if len(targets) > LOOKED_AT_IN_A_TURN:
            return _look_in_turns(fetch, targets, wait_s)
        fetch.look_at(targets)
        return _respond_or_wait(fetch, wait_s)

    def _limit_bytes(self, context: RequestContext, request: FetchRequest) -> None:
        """Reduce the limits of the request to what the client's quota allows in one response."""
        bytes_max = self._dependencies.quotas.fetch_bytes_max(context)
        request.max_bytes = min(request.max_bytes, bytes_max)
        request.min_bytes = min(request.min_bytes, bytes_max)

    def _check_broker_epoch(self, params: FetchParams) -> None:
        """Raise KafkaError (STALE_BROKER_EPOCH) if the follower has since registered with a newer epoch (KIP-903)."""
        if params.broker_epoch >= 0:
            broker = self._dependencies.metadata.image.brokers.get(params.replica_id)
            if broker is not None and params.broker_epoch < broker.epoch:
                raise KafkaError(
                    ErrorCode.STALE_BROKER_EPOCH,
                    f"Broker {params.replica_id} is registered with epoch {broker.epoch}, not {params.broker_epoch}.",
                )


def _respond_or_wait(
    fetch: PendingFetch, wait_s: float
) -> FetchResponse | PendingFetch | Coroutine[Any, Any, FetchResponse]:
    if fetch.is_ready:
        return fetch.respond()
    fetch.wait(wait_s)
    return fetch


async def _look_in_turns(
    fetch: PendingFetch, targets: list[FetchTarget], wait_s: float
) -> FetchResponse | Delayed[FetchResponse]:
    """Look at many partitions in several turns, then respond or wait. Other clients are served between the turns."""
    for start in range(0, len(targets), LOOKED_AT_IN_A_TURN):
        fetch.look_at(targets[start : start + LOOKED_AT_IN_A_TURN])
        await next_turn()
    fetch.look_at_what_was_missed()
    response = _respond_or_wait(fetch, wait_s)
    return await response if asyncio.iscoroutine(response) else response
