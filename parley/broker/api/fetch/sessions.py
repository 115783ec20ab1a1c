"""Fetch sessions (KIP-227): the broker remembers a client's partitions, so that both sides send only the changes.

Rules of this module:

* Epoch -1 marks a request outside any session, and epoch 0 requests a new session. A higher epoch continues the
  session with the given id, and must be its next epoch. A session id with epoch -1 or 0 ends that session.
* An incremental response contains only partitions with records, an error, or a changed high watermark or log start.
* A partition that returned records moves to the end, so that all get their turn under a byte limit. If a request
  names a partition twice, the last entry counts.
* As in Kafka, a session may contain partitions that do not exist or that the client may not read. Memory is therefore
  limited: the sessions of all consumers together contain at most ``CONSUMED_PARTITIONS_MAX`` partitions, and no name
  that is too long for a topic. A client that gets no session, or loses its session, continues with full requests.
  Followers have a separate limit, because without an authorizer, a client of the brokers' listener can pose as a
  follower.

See docs/architecture.md, "How a fetch travels", for how a session notices changes and which session is evicted.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from random import Random
from typing import Protocol

from parley.broker.metadata.topic_names import NAME_LENGTH_MAX
from parley.broker.replication.follower_progress import FetchClock
from parley.broker.replication.partition import Partition
from parley.broker.runtime.purgatory import Purgatory
from parley.broker.security.principal import Principal
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.fetch import FetchRequest, FetchResponse
from parley.protocol.sentinels import NO_EPOCH
from parley.protocol.uuids import UUID

PartitionData = FetchResponse.PartitionData

EVICTION_S = 120.0
"""A session that was used within this many seconds is ended only for a new session that outranks it: a follower's, or
one with more partitions. The value is Kafka's."""
NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_EPOCH_MAX = 2**31 - 1
PARTITIONS_MAX = 20_000
"""The maximum number of partitions in a request, and in a consumer's session. They are counted before any object is
created for them. A follower adds the partitions of its session in several requests."""
CONSUMED_PARTITIONS_MAX = 200_000
"""The maximum number of partitions in the sessions of all consumers together. They take 65 MB, or 125 MB with the
longest names."""
FOLLOWED_PARTITIONS_MAX = 400_000
"""The maximum number of partitions in the sessions of all followers together. A broker may lead about ten thousand
partitions, each with a few followers."""
LOOK_AT_ALL_S = 5.0
"""The time, in seconds, after which a session looks at all its partitions again. Retention moves a log start without a
notification."""
_UNKNOWN_HIGH_WATERMARK = 2**63 - 1
"""The high watermark in requests of clients that do not send their own."""


class ChangeListener(Protocol):
    """A fetch that waits for changes in its session."""

    def partition_changed(self, target: FetchTarget, amount: int) -> None:
        """Handle a change in a partition: ``amount`` bytes were appended, or something else changed if
        ``amount`` is 0."""


class FetchTarget:
    """One partition that a client fetches: the offset, the size limits, and what the client knows about the
    partition."""

    __slots__ = (
        "index",
        "is_verified",
        "known_high_watermark",
        "known_log_start",
        "last_fetched_epoch",
        "leader_epoch",
        "log_start_offset",
        "max_bytes",
        "offset",
        "partition",
        "session",
        "stored_epoch",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str, topic_id: UUID, requested: FetchRequest.FetchPartition) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = requested.partition
        self.partition: Partition | None = None  # as last looked up
        self.session: FetchSession | None = None
        self.known_high_watermark = (
            -1 if requested.high_watermark == _UNKNOWN_HIGH_WATERMARK else requested.high_watermark
        )
        self.known_log_start = -1
        self.update(requested)

    def update(self, requested: FetchRequest.FetchPartition) -> None:
        """Store what the client now requests from this partition."""
        self.offset = requested.fetch_offset
        self.max_bytes = requested.partition_max_bytes
        self.leader_epoch = requested.current_leader_epoch
        self.last_fetched_epoch = requested.last_fetched_epoch
        self.stored_epoch = requested.stored_epoch
        self.log_start_offset = requested.log_start_offset
        self.is_verified = False
        """True once the client's log is known to agree with this broker's log up to ``offset``, under its
        ``leader_epoch``."""

    def bind(self, partition: Partition | None) -> None:
        """Store the partition, so that the session notices its changes. Pass None when the client no longer fetches the
        partition."""
        if partition is not self.partition:
            if self.session is not None:
                self.session.move_subscription(self, self.partition, partition)
            self.partition = partition

    def on_change(self, key: Hashable, amount: int) -> None:
        """Handle a change in the partition (as a ``Subscriber`` of the purgatory)."""
        session = self.session
        if session is not None:
            session.changed[self] = None
            if session.waiting is not None:
                session.waiting.partition_changed(self, amount)

    def update_known(self, data: PartitionData) -> bool:
        """Store what the client learns from ``data``. Returns True if an incremental response must include ``data``."""
        is_new = (
            bool(data.records)
            or data.preferred_read_replica != -1
            or data.diverging_epoch.epoch != NO_EPOCH
            or data.must_store_epoch
        )
        if data.high_watermark != self.known_high_watermark or data.log_start_offset != self.known_log_start:
            is_new = True
            self.known_high_watermark = data.high_watermark
            self.known_log_start = data.log_start_offset
        if data.error_code:
            # The next response without an error must be sent, even if nothing else has changed.
            self.known_high_watermark = -1
            return True
        return is_new


class FetchSession:
    """The partitions that one client fetches."""

    __slots__ = (
        "_looked_at_all_s",
        "_purgatory",
        "changed",
        "clock",
        "epoch",
        "id",
        "is_follower",
        "last_used",
        "owner",
        "stores_epochs",
        "targets",
        "uses_ids",
        "waiting",
    )

    def __init__(
        self,
        session_id: int,
        targets: Iterable[FetchTarget],
        purgatory: Purgatory,
        *,
        is_follower: bool,
        uses_ids: bool,
        now_s: float,
        owner: Principal | None = None,
        stores_epochs: bool = False,
    ) -> None:
        self.id = session_id
        self.owner = owner
        self.stores_epochs = stores_epochs
        self.epoch = 1
        self.clock = FetchClock()
        self.is_follower = is_follower
        self.uses_ids = uses_ids
        self.last_used = now_s
        self.waiting: ChangeListener | None = None
        self._purgatory = purgatory
        self._looked_at_all_s = now_s
        self.targets = {_key(target.topic, target.topic_id, target.index, uses_ids): target for target in targets}
        self.changed: dict[FetchTarget, None] = dict.fromkeys(self.targets.values())
        """The targets to look at next, in the order of their turns."""
        for target in self.targets.values():
            target.session = self
            self.move_subscription(target, None, target.partition)

    def move_subscription(self, target: FetchTarget, before: Partition | None, partition: Partition | None) -> None:
        """Subscribe ``target`` to changes in ``partition`` and unsubscribe it from changes in ``before``."""
        if before is not None:
            self._purgatory.unsubscribe(before, target)
        if partition is not None:
            self._purgatory.subscribe(partition, target)

    def end(self) -> None:
        """End the session and remove its partitions."""
        for target in self.targets.values():
            self._forget(target)
        self.targets.clear()
        self.changed.clear()

    def _forget(self, target: FetchTarget) -> None:
        if self.is_follower and target.partition is not None:
            target.partition.followers.session_ended(self.clock)
        target.bind(None)
        target.session = None
        self.changed.pop(target, None)

    def update(self, request: FetchRequest) -> None:
        """Apply the partitions that an incremental request adds, changes and removes.

        Raises KafkaError: INVALID_REQUEST for too many partitions, or FETCH_SESSION_ID_NOT_FOUND for a name that is too
        long for a topic. The caller must then end the session.
        """
        _check_number(sum(len(topic.partitions) for topic in request.topics))
        for topic in request.topics:
            for requested in topic.partitions:
                key = _key(topic.topic, topic.topic_id, requested.partition, self.uses_ids)
                target = self.targets.get(key)
                if target is None:
                    if len(topic.topic) > NAME_LENGTH_MAX:
                        raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
                    target = self.targets[key] = FetchTarget(topic.topic, topic.topic_id, requested)
                    target.session = self
                else:
                    target.update(requested)
                    self.changed.pop(target, None)
                self.changed[target] = None
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                target = self.targets.pop(_key(forgotten.topic, forgotten.topic_id, index, self.uses_ids), None)
                if target is not None:
                    self._forget(target)
        if not self.is_follower:
            _check_number(len(self.targets))

    def next_targets(self) -> list[FetchTarget]:
        """Return the partitions that may have something new for the client; all of them every ``LOOK_AT_ALL_S``."""
        if self.last_used - self._looked_at_all_s >= LOOK_AT_ALL_S:
            self._looked_at_all_s = self.last_used
            return [*self.changed, *(target for target in self.targets.values() if target not in self.changed)]
        return list(self.changed)

    def select_changes(
        self, data_of: list[tuple[FetchTarget, PartitionData]]
    ) -> list[tuple[FetchTarget, PartitionData]]:
        """Return the part of ``data_of`` that is new to the client. Partitions with records move to the end of the
        queue."""
        changes = [(target, data) for target, data in data_of if target.update_known(data)]
        for target, data in changes:
            if data.records and target.session is self:
                self.changed.pop(target, None)
                self.changed[target] = None
        return changes


def targets_of(request: FetchRequest) -> list[FetchTarget]:
    """Return the partitions of a full request. Raises KafkaError (INVALID_REQUEST) if there are too many."""
    _check_number(sum(len(topic.partitions) for topic in request.topics))
    targets = {
        (topic.topic, topic.topic_id, requested.partition): FetchTarget(topic.topic, topic.topic_id, requested)
        for topic in request.topics
        for requested in topic.partitions
    }
    return list(targets.values())


def _check_number(partitions: int) -> None:
    if partitions > PARTITIONS_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST)


def _key(topic: str, topic_id: UUID, index: int, uses_ids: bool) -> tuple[object, int]:
    return (topic_id if uses_ids else topic, index)


class FetchSessions:
    """The fetch sessions of one broker."""

    def __init__(self, slots: int, rng: Random, monotonic: Callable[[], float]) -> None:
        self._slots = slots
        self._rng = rng
        self._monotonic = monotonic
        self._sessions: dict[int, FetchSession] = {}  # least recently used first
        self.evictions = 0

    @property
    def sessions(self) -> int:
        """The number of fetch sessions on this broker."""
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """The number of partitions in all sessions together."""
        return sum(len(session.targets) for session in self._sessions.values())

    def resume(self, request: FetchRequest, *, uses_ids: bool, owner: Principal | None = None) -> FetchSession | None:
        """Update and return the session that an incremental request continues.

        For a full request, end the session that it names, if any, and return None. A principal can neither
        continue nor end another principal's session. Raises KafkaError: FETCH_SESSION_ID_NOT_FOUND,
        INVALID_FETCH_SESSION_EPOCH or FETCH_SESSION_TOPIC_ID_ERROR, after which the client sends a full request, or
        INVALID_REQUEST for too many partitions.
        """
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if (ended := self._sessions.get(request.session_id)) is not None and ended.owner == owner:
                self._end(request.session_id)
            return None
        session = self._sessions.get(request.session_id)
        if session is None or session.owner != owner:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.uses_ids is not uses_ids:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if request.session_epoch != session.epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session.epoch = 1 if session.epoch == _EPOCH_MAX else session.epoch + 1
        session.last_used = self._monotonic()
        self._sessions[session.id] = self._sessions.pop(session.id)
        before = len(session.targets)
        try:
            session.update(request)
            has_grown = len(session.targets) > before
            if has_grown and not self._make_room(0, session.last_used, is_follower=session.is_follower):
                raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        except KafkaError:
            self._end(session.id)
            raise
        return session

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.end()

    def create(
        self,
        targets: list[FetchTarget],
        purgatory: Purgatory,
        *,
        is_follower: bool,
        uses_ids: bool,
        owner: Principal | None = None,
        stores_epochs: bool = False,
    ) -> int:
        """Create a session for the partitions of a full request. Returns its id, or ``NO_SESSION`` if there
        is no room. ``stores_epochs`` is True if the follower understands ``must_store_epoch``."""
        now = self._monotonic()
        if any(len(target.topic) > NAME_LENGTH_MAX for target in targets):
            return NO_SESSION
        if not self._make_room(len(targets), now, is_follower=is_follower):
            return NO_SESSION
        if len(self._sessions) >= self._slots and not self._evict(now, len(targets), is_follower):
            return NO_SESSION
        session_id = self._rng.randrange(1, 2**31)
        while session_id in self._sessions:
            session_id = self._rng.randrange(1, 2**31)
        self._sessions[session_id] = FetchSession(
            session_id,
            targets,
            purgatory,
            is_follower=is_follower,
            uses_ids=uses_ids,
            now_s=now,
            owner=owner,
            stores_epochs=stores_epochs,
        )
        return session_id

    def _make_room(self, more: int, now: float, *, is_follower: bool) -> bool:
        """Make room for ``more`` partitions in the sessions of followers, or of consumers. Returns True on success.

        Idle sessions are ended, oldest first. Sessions in use stay, even smaller ones: otherwise a client could evict
        other sessions by enlarging its own.
        """
        alike = [session for session in self._sessions.values() if session.is_follower is is_follower]
        bound = FOLLOWED_PARTITIONS_MAX if is_follower else CONSUMED_PARTITIONS_MAX
        excess = more + sum(len(session.targets) for session in alike) - bound
        for session in alike:
            if excess <= 0 or now - session.last_used <= EVICTION_S:
                break
            excess -= len(session.targets)
            self._end(session.id)
            self.evictions += 1
        return excess <= 0

    def _evict(self, now: float, size: int, is_follower: bool) -> bool:
        """End one session to make room for a new one of ``size`` partitions. Returns False if no session may be
        ended."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        victim = oldest
        if now - oldest.last_used <= EVICTION_S:
            victim = min(self._sessions.values(), key=lambda session: (session.is_follower, len(session.targets)))
            if (is_follower, size) <= (victim.is_follower, len(victim.targets)):
                return False
        self._end(victim.id)
        self.evictions += 1
        return True
