"""Fetch sessions (KIP-227): the broker remembers what a client fetches, and both sides then name only what changes.

Rules of this module:

* A request with epoch -1 is outside any session; epoch 0 asks for a new one; a higher epoch continues the session of
  the given id and must be the one expected next. An id given with epoch -1 or 0 ends that session.
* An incremental answer holds only partitions that have records, an error, or a changed high watermark or log start.
* A session subscribes to its partitions (:meth:`parley.broker.runtime.purgatory.Purgatory.subscribe`), so that a fetch looks
  only at
  those that have changed, and at those the client names: a session of thousands that are quiet costs nothing. What
  nobody tells of (a log's start moves by retention) is found by a look at all of them from time to time.
* A partition that returned records moves behind the others, so that all get their turn under a byte limit.
* A partition is fetched once, however often it is named; what is said of it last counts.
* What a session remembers is bounded; a request that would exceed it, or names more, is an INVALID_REQUEST.
* The cache is bounded. A new session takes the place of one idle for ``EVICTION_S``, or else of a smaller one that is
  not a follower's; failing that the client gets no session (id 0) and goes on with full requests.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sized
from random import Random
from typing import Protocol
from uuid import UUID

from parley.broker.replication.follower_progress import FetchClock
from parley.broker.replication.partition import Partition
from parley.broker.runtime.purgatory import Purgatory
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.fetch import FetchRequest, FetchResponse
from parley.protocol.sentinels import NO_EPOCH

PartitionData = FetchResponse.PartitionData

EVICTION_S = 120.0
"""How long a session is safe from being evicted for a new one, as Kafka has it."""
NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_EPOCH_MAX = 2**31 - 1
PARTITIONS_MAX = 20_000
"""Partitions that one client may fetch at a time. A full request is looked at in one go."""
LOOK_AT_ALL_S = 5.0
"""How often every partition of a session is looked at, changed or not."""
_NOT_TOLD = 2**63 - 1
"""The high watermark in a request of a client that does not tell its own."""


class WaitingFetch(Protocol):
    """A fetch of a session that waits for news."""

    def news_of(self, target: Target, amount: int) -> None:
        """A partition has changed; ``amount`` bytes have come, or something else has happened."""


class Target:
    """One partition a client fetches: where from, how much, and what it was last told."""

    __slots__ = (
        "index",
        "is_settled",
        "last_fetched_epoch",
        "leader_epoch",
        "log_start_offset",
        "max_bytes",
        "offset",
        "partition",
        "session",
        "told_high_watermark",
        "told_log_start",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str, topic_id: UUID, asked: FetchRequest.FetchPartition) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = asked.partition
        self.partition: Partition | None = None  # as last found
        self.session: FetchSession | None = None
        self.told_high_watermark = -1 if asked.high_watermark == _NOT_TOLD else asked.high_watermark
        self.told_log_start = -1
        self.update(asked)

    def update(self, asked: FetchRequest.FetchPartition) -> None:
        """Take over what the client now asks of this partition."""
        self.offset = asked.fetch_offset
        self.max_bytes = asked.partition_max_bytes
        self.leader_epoch = asked.current_leader_epoch
        self.last_fetched_epoch = asked.last_fetched_epoch
        self.log_start_offset = asked.log_start_offset
        self.is_settled = False
        """Whether the client's log agrees with ours up to ``offset``, as was found under its ``leader_epoch``."""

    def bind(self, partition: Partition | None) -> None:
        """This is the partition meant, as far as is known; a session hears of its changes."""
        if partition is not self.partition:
            if self.session is not None:
                self.session.listen(self, self.partition, partition)
            self.partition = partition

    def on_news(self, key: Hashable, amount: int) -> None:
        """The partition has changed (as :class:`parley.broker.runtime.purgatory.Subscriber`)."""
        session = self.session
        if session is not None:
            session.changed[self] = None
            if session.waiting is not None:
                session.waiting.news_of(self, amount)

    def is_news(self, data: PartitionData) -> bool:
        """Whether an incremental answer must hold ``data``; what it then tells the client is remembered."""
        news = bool(data.records) or data.preferred_read_replica != -1 or data.diverging_epoch.epoch != NO_EPOCH
        if data.high_watermark != self.told_high_watermark or data.log_start_offset != self.told_log_start:
            news = True
            self.told_high_watermark = data.high_watermark
            self.told_log_start = data.log_start_offset
        if data.error_code:
            # The next answer without an error must be told, even if nothing else has changed.
            self.told_high_watermark = -1
            return True
        return news


class FetchSession:
    """What one client fetches."""

    __slots__ = (
        "_looked_at_all_s",
        "_purgatory",
        "changed",
        "clock",
        "epoch",
        "id",
        "is_follower",
        "last_used",
        "targets",
        "uses_ids",
        "waiting",
    )

    def __init__(
        self,
        session_id: int,
        targets: Iterable[Target],
        purgatory: Purgatory,
        *,
        is_follower: bool,
        uses_ids: bool,
        now_s: float,
    ) -> None:
        self.id = session_id
        self.epoch = 1
        self.clock = FetchClock()
        self.is_follower = is_follower
        self.uses_ids = uses_ids
        self.last_used = now_s
        self.waiting: WaitingFetch | None = None
        self._purgatory = purgatory
        self._looked_at_all_s = now_s
        self.targets = {_key(target.topic, target.topic_id, target.index, uses_ids): target for target in targets}
        self.changed: dict[Target, None] = dict.fromkeys(self.targets.values())
        """Those to be looked at, in the order in which they get their turn."""
        for target in self.targets.values():
            target.session = self
            self.listen(target, None, target.partition)

    def listen(self, target: Target, before: Partition | None, partition: Partition | None) -> None:
        """Hear of the changes of ``partition``, no longer of those of the one before."""
        if before is not None:
            self._purgatory.unsubscribe(before, target)
        if partition is not None:
            self._purgatory.subscribe(partition, target)

    def end(self) -> None:
        """The client fetches no longer by this session."""
        for target in self.targets.values():
            self._forget(target)
        self.targets.clear()
        self.changed.clear()

    def _forget(self, target: Target) -> None:
        target.bind(None)
        target.session = None
        self.changed.pop(target, None)

    def update(self, request: FetchRequest) -> None:
        """Take over the partitions that an incremental request adds, changes and forgets."""
        for topic in request.topics:
            for asked in topic.partitions:
                key = _key(topic.topic, topic.topic_id, asked.partition, self.uses_ids)
                target = self.targets.get(key)
                if target is None:
                    target = self.targets[key] = Target(topic.topic, topic.topic_id, asked)
                    target.session = self
                else:
                    target.update(asked)
                    self.changed.pop(target, None)
                self.changed[target] = None
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                target = self.targets.pop(_key(forgotten.topic, forgotten.topic_id, index, self.uses_ids), None)
                if target is not None:
                    self._forget(target)
        _check_number(self.targets)

    def to_look_at(self) -> list[Target]:
        """The partitions that may have something to tell."""
        if self.last_used - self._looked_at_all_s >= LOOK_AT_ALL_S:
            self._looked_at_all_s = self.last_used
            return [*self.changed, *(target for target in self.targets.values() if target not in self.changed)]
        return list(self.changed)

    def select_news(self, answers: list[tuple[Target, PartitionData]]) -> list[tuple[Target, PartitionData]]:
        """The part of ``answers`` that the client must be told; whoever got records goes to the end of the order."""
        news = [(target, data) for target, data in answers if target.is_news(data)]
        for target, data in news:
            if data.records and target.session is self:
                self.changed.pop(target, None)
                self.changed[target] = None
        return news


def targets_of(request: FetchRequest) -> list[Target]:
    """The partitions that a full request names. Raises INVALID_REQUEST if they are too many."""
    targets = {
        (topic.topic, topic.topic_id, asked.partition): Target(topic.topic, topic.topic_id, asked)
        for topic in request.topics
        for asked in topic.partitions
    }
    _check_number(targets)
    return list(targets.values())


def _check_number(targets: Sized) -> None:
    if len(targets) > PARTITIONS_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST)


def _key(topic: str, topic_id: UUID, index: int, uses_ids: bool) -> tuple[object, int]:
    return (topic_id if uses_ids else topic, index)


class FetchSessions:
    """The sessions of one broker."""

    def __init__(self, slots: int, rng: Random, monotonic: Callable[[], float]) -> None:
        self._slots = slots
        self._rng = rng
        self._monotonic = monotonic
        self._sessions: dict[int, FetchSession] = {}  # the least recently used first
        self.evictions = 0

    @property
    def sessions(self) -> int:
        """How many sessions there are."""
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """How many partitions all sessions together remember."""
        return sum(len(session.targets) for session in self._sessions.values())

    def resume(self, request: FetchRequest, *, uses_ids: bool) -> FetchSession | None:
        """The session that an incremental request continues, updated; None if the request is a full one.

        Raises FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH or FETCH_SESSION_TOPIC_ID_ERROR: the client
        then begins anew with a full request.
        """
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._end(request.session_id)
            return None
        session = self._sessions.get(request.session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.uses_ids is not uses_ids:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if request.session_epoch != session.epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session.epoch = 1 if session.epoch == _EPOCH_MAX else session.epoch + 1
        session.last_used = self._monotonic()
        self._sessions[session.id] = self._sessions.pop(session.id)
        try:
            session.update(request)
        except KafkaError:
            self._end(session.id)
            raise
        return session

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.end()

    def create(self, targets: list[Target], purgatory: Purgatory, *, is_follower: bool, uses_ids: bool) -> int:
        """A new session over the partitions of a full request: its id, or 0 if there is no room for it."""
        now = self._monotonic()
        if len(self._sessions) >= self._slots and not self._evict(now, len(targets), is_follower):
            return NO_SESSION
        session_id = self._rng.randrange(1, 2**31)
        while session_id in self._sessions:
            session_id = self._rng.randrange(1, 2**31)
        self._sessions[session_id] = FetchSession(
            session_id, targets, purgatory, is_follower=is_follower, uses_ids=uses_ids, now_s=now
        )
        return session_id

    def _evict(self, now: float, size: int, is_follower: bool) -> bool:
        """Make room for a session of ``size`` partitions, if there is one whose place it may take."""
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
