"""The follower's end of a fetch session (KIP-227): what has to be said, since the leader remembers the rest.

The first request of a session is full: it names every partition. Each later one names the partitions whose position has
changed, and those that are no longer followed; so quiet partitions cost nothing. Whatever goes wrong ends the session,
and the next request is a full one; so does another epoch of this broker, since the leader notes that with each
partition it hears of. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from parley.broker.replication.follower_decisions import Position
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.fetch import FetchRequest, FetchResponse
from parley.protocol.sentinels import NO_EPOCH

Key = tuple[UUID, int]
"""A partition: topic id and index."""

_INITIAL_EPOCH = 0
_EPOCH_MAX = 2**31 - 1
_HIGH_WATERMARK_AT = Position._fields.index("high_watermark")
SESSION_ENDED = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


class FollowerFetchSession:
    """The partitions followed on one connection, and what the leader knows of them."""

    def __init__(self) -> None:
        self._wanted: dict[Key, Position] = {}
        self._changed: dict[Key, None] = {}
        self._forgotten: dict[Key, None] = {}
        self._id = 0
        self._epoch = _INITIAL_EPOCH
        self._broker_epoch = NO_EPOCH

    def __len__(self) -> int:
        return len(self._wanted)

    def __contains__(self, key: Key) -> bool:
        return key in self._wanted

    def ask(self, key: Key, position: Position) -> None:
        """Fetch this partition from ``position`` on. (A high watermark that alone is new came from the leader.)"""
        known = self._wanted.get(key)
        self._wanted[key] = position
        if known is None or known[:_HIGH_WATERMARK_AT] != position[:_HIGH_WATERMARK_AT]:
            self._changed[key] = None
            self._forgotten.pop(key, None)

    def forget(self, key: Key) -> None:
        """Fetch this partition no longer."""
        if self._wanted.pop(key, None) is not None:
            self._changed.pop(key, None)
            self._forgotten[key] = None

    def request(
        self,
        *,
        replica: FetchRequest.ReplicaState,
        max_wait_ms: int,
        min_bytes: int,
        max_bytes: int,
        partition_max_bytes: int,
    ) -> FetchRequest:
        """The next request; either :meth:`answered` or :meth:`lost` must follow."""
        if replica.replica_epoch != self._broker_epoch:
            self._broker_epoch = replica.replica_epoch
            self.lost()
        full = self._epoch == _INITIAL_EPOCH
        request = FetchRequest(
            replica_state=replica,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            session_id=self._id,
            session_epoch=self._epoch,
            topics=_by_topic(self._wanted, self._wanted if full else self._changed, partition_max_bytes),
            forgotten_topics_data=[] if full else _forgotten_by_topic(self._forgotten),
        )
        self._changed = {}
        self._forgotten = {}
        return request

    def answered(self, answer: FetchResponse) -> None:
        """Take note of an answer, which may have ended the session."""
        if answer.error_code:
            if answer.error_code in SESSION_ENDED:
                self._id = 0
            self.lost()
        elif self._epoch == _INITIAL_EPOCH:
            self._id = answer.session_id
            self._epoch = 1 if answer.session_id else _INITIAL_EPOCH
        else:
            self._epoch = 1 if self._epoch == _EPOCH_MAX else self._epoch + 1

    def lost(self) -> None:
        """No answer came: nobody knows what the leader has heard, so the next request tells everything."""
        self._epoch = _INITIAL_EPOCH


def _by_topic(
    positions: Mapping[Key, Position], keys: Iterable[Key], partition_max_bytes: int
) -> list[FetchRequest.FetchTopic]:
    topics: dict[UUID, list[FetchRequest.FetchPartition]] = {}
    for key in keys:
        topic_id, index = key
        at = positions[key]
        asked = FetchRequest.FetchPartition(
            partition=index,
            current_leader_epoch=at.leader_epoch,
            fetch_offset=at.offset,
            last_fetched_epoch=at.last_fetched_epoch,
            log_start_offset=at.log_start_offset,
            partition_max_bytes=partition_max_bytes,
            high_watermark=at.high_watermark,
        )
        topics.setdefault(topic_id, []).append(asked)
    return [FetchRequest.FetchTopic(topic_id=topic_id, partitions=asked) for topic_id, asked in topics.items()]


def _forgotten_by_topic(keys: Iterable[Key]) -> list[FetchRequest.ForgottenTopic]:
    topics: dict[UUID, list[int]] = {}
    for topic_id, index in keys:
        topics.setdefault(topic_id, []).append(index)
    return [FetchRequest.ForgottenTopic(topic_id=topic_id, partitions=indexes) for topic_id, indexes in topics.items()]
