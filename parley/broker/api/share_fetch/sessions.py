"""Share sessions: what each member of a share group fetches from this broker (KIP-932).

Rules of this module:

* Epoch 0 starts a session. A higher epoch continues the session and must be its next epoch. Epoch -1 ends the session.
  A session belongs to a group, a member and a principal: no other principal can continue or end it.
* A session also ends with its connection. The records that its member has acquired are then released.
* Clients choose the partitions of a session. Their number is limited, in one session and in all sessions together. A
  session that exceeds a limit ends, and its records are released, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from parley.broker.metrics.catalogue.share_groups import ShareGroupMetrics
from parley.broker.network.request_context import ConnectedClient, RequestContext
from parley.broker.security.principal import Principal
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.uuids import UUID

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_EPOCH_MAX = 2**31 - 1
PARTITIONS_MAX = 20_000
"""The maximum number of partitions in one session."""
ALL_PARTITIONS_MAX = 200_000
"""The maximum number of partitions in all sessions together."""


class TopicPartition(NamedTuple):
    """A partition as clients of share groups identify it."""

    topic_id: UUID
    partition: int


class SessionKey(NamedTuple):
    """The identity of a share session: the group, the member, and the principal that started the session."""

    group_id: str
    member_id: str
    owner: Principal


class ShareSession:
    """The partitions that one member fetches."""

    __slots__ = ("client", "epoch", "has_ended", "key", "partitions")

    def __init__(self, key: SessionKey, partitions: Iterable[TopicPartition], client: ConnectedClient) -> None:
        self.key = key
        self.client = client
        self.epoch = INITIAL_EPOCH
        """The epoch of the last request that used the session."""
        self.has_ended = False
        """True if no further request can use the session. Its member must not acquire more records."""
        self.partitions = dict.fromkeys(partitions, True)
        """The partitions in the order of the member's requests. The value is True until a response has included the
        partition."""

    def in_turn(self) -> list[TopicPartition]:
        """Return the partitions, starting at a different partition in each request, so that all get their turn."""
        partitions = list(self.partitions)
        first = self.epoch % len(partitions) if partitions else 0
        return partitions[first:] + partitions[:first]


class ShareSessions:
    """The share sessions of one broker."""

    def __init__(
        self,
        most: Callable[[], int],
        metrics: ShareGroupMetrics,
        *,
        release: Callable[[ShareSession], object],
        on_last_ended: Callable[[str], None],
    ) -> None:
        """``most()`` returns ``group.share.max.share.sessions``. ``release`` releases the records of a session that
        ends without a request from its member. ``on_last_ended`` is called with a group id after the group's last
        session has ended."""
        self._most = most
        self._metrics = metrics
        self._release = release
        self._on_last_ended = on_last_ended
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._of_group: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def has(self, session: ShareSession) -> bool:
        """Return True if the session has neither ended nor been replaced."""
        return self._sessions.get(session.key) is session

    def has_any_of(self, group_id: str) -> bool:
        """Return True if a member of the group has a session."""
        return group_id in self._of_group

    def begin(self, key: SessionKey, context: RequestContext, partitions: Iterable[TopicPartition]) -> ShareSession:
        """Start a session, replacing any earlier session with this key.

        Raises KafkaError: SHARE_SESSION_LIMIT_REACHED if the broker has too many sessions, or INVALID_REQUEST if the
        new session, or all sessions together, would have too many partitions. No session with this key remains after
        INVALID_REQUEST.
        """
        before = self._sessions.get(key)
        if before is None and len(self._sessions) >= self._most():
            raise KafkaError(
                ErrorCode.SHARE_SESSION_LIMIT_REACHED,
                "This broker has as many share sessions as group.share.max.share.sessions allows: retry later, or "
                "raise that limit.",
            )
        session = ShareSession(key, partitions, context.client)
        if before is not None:
            self._remove(before)
        self._sessions[key] = session
        self._metrics.sessions += 1
        self._metrics.session_partitions += len(session.partitions)
        self._of_group[key.group_id] = self._of_group.get(key.group_id, 0) + 1
        context.client.on_disconnect[key] = lambda: self._disconnected(session)
        self._check_size(session)
        return session

    def resume(
        self,
        key: SessionKey,
        epoch: int,
        added: Iterable[TopicPartition] = (),
        forgotten: Iterable[TopicPartition] = (),
    ) -> ShareSession:
        """Return the session that a request continues, after adding and removing the partitions that the request names.
        If ``epoch`` is ``FINAL_EPOCH``, the session is returned unchanged, and the caller must end it.

        Raises KafkaError: SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH, or INVALID_REQUEST for too many
        partitions, which ends the session.
        """
        session = self._sessions.get(key)
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        if epoch == FINAL_EPOCH:
            return session
        if epoch != (1 if session.epoch == _EPOCH_MAX else session.epoch + 1):
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        session.epoch = epoch
        size = len(session.partitions)
        for partition in added:
            session.partitions.setdefault(partition, True)
        for partition in forgotten:
            session.partitions.pop(partition, None)
        grown = len(session.partitions) - size
        self._metrics.session_partitions += grown
        if grown > 0:
            self._check_size(session)
        return session

    def _check_size(self, session: ShareSession) -> None:
        if len(session.partitions) > PARTITIONS_MAX or self._metrics.session_partitions > ALL_PARTITIONS_MAX:
            self._release(session)
            self.end(session)
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"A share session may have at most {PARTITIONS_MAX} partitions, and all sessions of a broker together "
                f"{ALL_PARTITIONS_MAX}: fetch fewer partitions.",
            )

    def end(self, session: ShareSession) -> None:
        """Remove a session. The caller must have released its records."""
        if self._remove(session):
            self._on_last_ended(session.key.group_id)

    def _disconnected(self, session: ShareSession) -> None:
        if self.has(session):
            self._metrics.disconnected += 1
            self._release(session)
            self.end(session)

    def _remove(self, session: ShareSession) -> bool:
        """Remove a session. Returns True if it was the last session of its group."""
        if not self.has(session):
            return False
        del self._sessions[session.key]
        session.has_ended = True
        self._metrics.sessions -= 1
        self._metrics.session_partitions -= len(session.partitions)
        session.client.on_disconnect.pop(session.key, None)
        group_id = session.key.group_id
        self._of_group[group_id] -= 1
        if self._of_group[group_id]:
            return False
        del self._of_group[group_id]
        return True
