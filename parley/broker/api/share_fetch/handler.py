"""ShareFetch and ShareAcknowledge (KIP-932, KIP-1206, KIP-1222).

Rules of this module:

* Both requests need a share session, except for the ShareFetch that starts a session. When a request ends a session,
  its acknowledgements are processed first. Then the member's remaining records are released.
* Acknowledgements in a fetch are processed before the fetch acquires records. The response waits until they are stored.
* A request that renews locks fetches nothing.
* Members may acknowledge each record differently. Long lists of acknowledgements are processed in parts, between
  which the event loop serves other clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from parley.broker.api.fetch.dependencies import UNLIMITED, FetchQuotas
from parley.broker.api.share_fetch.acknowledging import RELEASED_IN_A_TURN, Acknowledging, releasing
from parley.broker.api.share_fetch.dependencies import ShareDependencies
from parley.broker.api.share_fetch.pending_share_fetch import PendingShareFetch
from parley.broker.api.share_fetch.render import rendering
from parley.broker.api.share_fetch.sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    SessionKey,
    ShareSession,
    ShareSessions,
    TopicPartition,
)
from parley.broker.logging.unexpected_errors import FailureLog
from parley.broker.metadata.current import Metadata
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.runtime.steps import Steps, each_of, in_turns, now_or_in_turns, run_now
from parley.broker.runtime.tasks import TaskSet
from parley.broker.runtime.threads import LOOP_THREADS, Threads
from parley.broker.security.authorization import EVERYONE_MAY, Authorization
from parley.broker.security.operations import Operation
from parley.broker.security.resources import ResourceType
from parley.broker.share.leading import LedSharePartition
from parley.broker.share.share_partitions import SharePartitions
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.share_groups import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from parley.protocol.uuids import UUID

_log = logging.getLogger(__name__)

MEMBER_ID_MAX = 36
"""The maximum length, in characters, of a member id, which is a UUID."""
ACKNOWLEDGED_IN_A_TURN = 500
"""The number of acknowledgements processed before the event loop serves other clients. Each takes up to 8
microseconds."""
REFUSED_MAX_S = 5.0
"""The maximum delay, in seconds, of the response to a client whose session was refused. Without a delay, the client
would retry immediately."""


class ShareFetchApi:
    """Handlers of requests that share group members send to partition leaders."""

    def __init__(
        self,
        share_partitions: SharePartitions,
        partitions: HostedPartitions,
        metadata: Metadata,
        tasks: TaskSet,
        *,
        sessions_max: Callable[[], int],
        is_offered: Callable[[], bool],
        max_bytes: int,
        threads: Threads = LOOP_THREADS,
        authorization: Authorization = EVERYONE_MAY,
        quotas: FetchQuotas = UNLIMITED,
    ) -> None:
        """``is_offered()`` returns True if the cluster supports share groups. ``sessions_max()`` returns the maximum
        number of share sessions."""
        self._dependencies = ShareDependencies(
            share_partitions=share_partitions,
            partitions=partitions,
            metadata=metadata,
            authorization=authorization,
            quotas=quotas,
            tasks=tasks,
            threads=threads,
            max_bytes=max_bytes,
            failures=FailureLog(_log),
        )
        self._is_offered = is_offered
        self.sessions = ShareSessions(
            sessions_max,
            share_partitions.metrics,
            release=self._release,
            on_last_ended=self._forget_group,
        )

    def routes(self) -> dict[int, Handler]:
        """Return the handlers by API key."""
        return {ShareFetchRequest.API_KEY: self.fetch, ShareAcknowledgeRequest.API_KEY: self.acknowledge}

    # --- ShareFetch ---

    def fetch(self, context: RequestContext, request: ShareFetchRequest) -> Any:
        """Acquire records for a member, and process its acknowledgements. Returns the response, or an awaitable of it.

        Raises KafkaError for an error of the whole request: a session error, an authorization error, or
        INVALID_REQUEST.
        """
        key = self._key(context, request.group_id, request.member_id)
        _check_renewal(request)
        has_acknowledgements = any(
            partition.acknowledgement_batches for topic in request.topics for partition in topic.partitions
        )
        named = _named(
            (topic.topic_id, (each.partition_index for each in topic.partitions)) for topic in request.topics
        )
        epoch = request.share_session_epoch
        if epoch == INITIAL_EPOCH:
            if has_acknowledgements:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "The request that begins a session must not acknowledge records."
                )
            try:
                session = self.sessions.begin(key, context, named)
            except KafkaError as error:
                if error.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED:
                    return _raised_later(error, request.max_wait_ms / 1000)
                raise
        else:
            forgotten = _named((topic.topic_id, topic.partitions) for topic in request.forgotten_topics_data)
            session = self.sessions.resume(key, epoch, named, forgotten)
        acknowledging = Acknowledging(self._dependencies, context, key.group_id, key.member_id)

        def acknowledged() -> Any:
            if epoch == FINAL_EPOCH:
                acknowledging.release(session)
                self.sessions.end(session)
                return self._final(acknowledging, partial(self._rendered_end, context, session, acknowledging))
            if not self.sessions.has(session):  # it ended with its connection: the member must not acquire more
                raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND)
            return PendingShareFetch(self._dependencies, context, request, session, acknowledging).first_look()

        return now_or_in_turns(_taking(self._take(context, request, key.group_id, acknowledging), acknowledged))

    def _release(self, session: ShareSession) -> None:
        """Release the records of a session that has ended without a request from its member."""
        steps = releasing(self._dependencies, session)
        if len(session.partitions) <= RELEASED_IN_A_TURN:
            run_now(steps)
        else:
            self._dependencies.tasks.start(in_turns(steps), name="release of a share session")

    def _forget_group(self, group_id: str) -> None:
        """Drop the share partitions of a group without sessions, unless a new session starts in the meantime."""
        unused = self._dependencies.share_partitions.of_group(group_id)

        def drop(led: LedSharePartition) -> None:
            if not self.sessions.has_any_of(group_id):
                led.end_when_stored()

        steps = each_of(unused, RELEASED_IN_A_TURN, drop)
        if len(unused) <= RELEASED_IN_A_TURN:
            run_now(steps)
        else:
            self._dependencies.tasks.start(in_turns(steps), name="end of the share partitions of a group")

    def _rendered_end(
        self, context: RequestContext, session: ShareSession, acknowledging: Acknowledging
    ) -> ShareFetchResponse:
        session.partitions.clear()
        return run_now(rendering(self._dependencies, context, session, {}, acknowledging))

    def _key(self, context: RequestContext, group_id: str | None, member_id: str | None) -> SessionKey:
        if not self._is_offered():
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                "The cluster does not support share groups: share.version is 0, or a broker is too old.",
            )
        if group_id is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid group id in the request.")
        authorization = self._dependencies.authorization
        if authorization.is_enforced and not authorization.may(context, Operation.READ, ResourceType.GROUP, group_id):
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if not member_id or len(member_id) > MEMBER_ID_MAX:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid member id in the request.")
        return SessionKey(group_id, member_id, context.principal)

    def _take(
        self,
        context: RequestContext,
        request: ShareFetchRequest | ShareAcknowledgeRequest,
        group_id: str,
        acknowledging: Acknowledging,
    ) -> Iterator[int]:
        """Process the acknowledgements partition by partition. Yields the number of acknowledgements of
        each partition."""
        may_renew = context.api_version >= 2 and request.is_renew_ack
        for topic in request.topics:
            for each in topic.partitions:
                if each.acknowledgement_batches:
                    target = TopicPartition(topic.topic_id, each.partition_index)
                    acknowledging.take(target, each.acknowledgement_batches, may_renew=may_renew)
                    yield sum(len(batch.acknowledge_types) for batch in each.acknowledgement_batches)

    def _final(self, acknowledging: Acknowledging, rendered: Callable[[], Any]) -> Any:
        if acknowledging.is_done:
            return rendered()

        async def later() -> Any:
            await acknowledging.stored()
            return rendered()

        return later()

    # --- ShareAcknowledge ---

    def acknowledge(self, context: RequestContext, request: ShareAcknowledgeRequest) -> Any:
        """Process the acknowledgements of a member. Returns the response, or an awaitable of it.

        Raises KafkaError for an error of the whole request: a session error, an authorization error, or
        INVALID_REQUEST.
        """
        key = self._key(context, request.group_id, request.member_id)
        epoch = request.share_session_epoch
        if epoch == INITIAL_EPOCH:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        session = self.sessions.resume(key, epoch)
        acknowledging = Acknowledging(self._dependencies, context, key.group_id, key.member_id)

        def acknowledged() -> Any:
            if epoch == FINAL_EPOCH:
                acknowledging.release(session)
                self.sessions.end(session)
            return self._final(acknowledging, partial(self._acknowledged, context, key.group_id, acknowledging))

        return now_or_in_turns(_taking(self._take(context, request, key.group_id, acknowledging), acknowledged))

    def _acknowledged(
        self, context: RequestContext, group_id: str, acknowledging: Acknowledging
    ) -> ShareAcknowledgeResponse:
        topics: dict[UUID, list[ShareAcknowledgeResponse.PartitionData]] = {}
        leaders: list[int] = []
        for target in acknowledging.partitions:
            error = acknowledging.errors.get(target)
            code = ErrorCode.NONE if error is None else error.code
            leader, epoch = self._dependencies.leader_of(*target, code)
            leaders.append(leader)
            data = ShareAcknowledgeResponse.PartitionData(
                partition_index=target.partition,
                error_code=code,
                error_message=None if error is None else error.message or None,
                current_leader=ShareAcknowledgeResponse.LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch),
            )
            topics.setdefault(target.topic_id, []).append(data)
        make = ShareAcknowledgeResponse.ShareAcknowledgeTopicResponse
        return ShareAcknowledgeResponse(
            acquisition_lock_timeout_ms=self._dependencies.share_partitions.settings_of(group_id).lock_duration_ms,
            responses=[make(topic_id=topic_id, partitions=partitions) for topic_id, partitions in topics.items()],
            node_endpoints=self._dependencies.endpoints(context, ShareAcknowledgeResponse.NodeEndpoint, leaders),
        )


def _named(topics: Iterable[tuple[UUID, Iterable[int]]]) -> list[TopicPartition]:
    return [TopicPartition(topic_id, index) for topic_id, indexes in topics for index in indexes]


def _taking(work: Iterator[int], then: Callable[[], Any]) -> Steps[Any]:
    """Do the work in steps of ``ACKNOWLEDGED_IN_A_TURN``, then return the result of ``then``. ``work`` yields the
    numbers of acknowledgements that it has processed."""
    done = 0
    for size in work:
        done += size
        if done >= ACKNOWLEDGED_IN_A_TURN:
            yield
            done = 0
    return then()


def _check_renewal(request: ShareFetchRequest) -> None:
    if request.is_renew_ack and (request.max_wait_ms or request.min_bytes or request.max_bytes or request.max_records):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "A request that renews locks must not fetch: its maximum wait, bytes and records must be 0.",
        )


async def _raised_later(error: KafkaError, wait_s: float) -> ShareFetchResponse:
    await asyncio.sleep(min(wait_s, REFUSED_MAX_S))
    raise error
