"""The follower's side of a fetch session (KIP-227): requests contain only what the leader does not remember. No I/O.

A new session starts without partitions, so its first requests name all of them. Later requests contain only partitions
whose position has changed and partitions that are no longer followed, so that quiet partitions cost nothing. Every
failure ends the session, and the next requests name every partition again. A new epoch of this broker also ends the
session, because the leader records that epoch with each partition in a request.

A request names at most ``NAMED_MAX`` partitions. While partitions remain for the next request, it asks the leader to
respond immediately. If the leader has no room for a session, the requests name all partitions in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple

from parley.protocol.errors import ErrorCode
from parley.protocol.messages.fetch import FetchRequest, FetchResponse
from parley.protocol.sentinels import NO_EPOCH
from parley.protocol.uuids import UUID
from parley.storage.log import Log

Key = tuple[UUID, int]
"""A partition: topic id and index."""


class Position(NamedTuple):
    """A follower's position in one partition, as its fetch names it.

    ``last_fetched_epoch`` is the leader epoch of its last record, and ``stored_epoch`` the epoch that it has stored
    since, if that is newer. Each is NO_EPOCH if there is none.
    """

    offset: int
    leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int
    stored_epoch: int
    high_watermark: int


def position_of(log: Log, leader_epoch: int) -> Position:
    """Return the next fetch position of a follower with this log, for the leader of ``leader_epoch``."""
    last, stored = log.epochs_at_end
    return Position(log.log_end_offset, leader_epoch, last, log.log_start_offset, stored, log.high_watermark)


NAMED_MAX = 1000
"""The maximum number of partitions that one request adds or changes: encoding a thousand takes 8 ms, and so does
decoding them. A request with tens of thousands would exceed what the leader accepts in one message."""
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
    """The partitions that are fetched on one connection, and what the leader remembers about them."""

    def __init__(self) -> None:
        self._wanted: dict[Key, Position] = {}
        self._changed: dict[Key, None] = {}  # in the order in which the requests name them
        self._forgotten: dict[Key, None] = {}
        self._id = 0
        self._epoch = _INITIAL_EPOCH
        self._broker_epoch = NO_EPOCH

    def __len__(self) -> int:
        return len(self._wanted)

    def __contains__(self, key: Key) -> bool:
        return key in self._wanted

    def ask(self, key: Key, position: Position) -> None:
        """Fetch this partition from ``position`` from the next request on. If only the high watermark has changed,
        nothing is sent, because the change came from the leader."""
        known = self._wanted.get(key)
        self._wanted[key] = position
        if known is None or known[:_HIGH_WATERMARK_AT] != position[:_HIGH_WATERMARK_AT]:
            self._changed[key] = None

    def forget(self, key: Key) -> None:
        """Stop fetching this partition."""
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
        """Return the next request. Either ``take_response`` or ``restart`` must follow."""
        if replica.replica_epoch != self._broker_epoch:
            self._broker_epoch = replica.replica_epoch
            self.restart()
        if self._epoch == _INITIAL_EPOCH:
            self._forgotten = {}
        named = list(islice(self._changed, NAMED_MAX))
        for key in named:
            del self._changed[key]
            self._forgotten.pop(key, None)  # a request that both named and forgot it would forget it
        request = FetchRequest(
            replica_state=replica,
            max_wait_ms=0 if self._changed else max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            session_id=self._id,
            session_epoch=self._epoch,
            topics=_by_topic(self._wanted, named, partition_max_bytes),
            forgotten_topics_data=_forgotten_by_topic(self._forgotten),
            stores_epochs=self._epoch == _INITIAL_EPOCH,  # the leader remembers it for the session
        )
        self._forgotten = {}
        return request

    def take_response(self, response: FetchResponse) -> None:
        """Process the response to the last request. An error in it, or a leader without room for a session, starts a
        new session with the next request."""
        if response.error_code:
            if response.error_code in SESSION_ENDED:
                self._id = 0
            self.restart()
        elif self._epoch == _INITIAL_EPOCH:
            self._id = response.session_id
            if self._id:
                self._epoch = 1
            elif not self._changed:  # the leader remembers nothing, and every partition has had its turn
                self.restart()
        else:
            self._epoch = 1 if self._epoch == _EPOCH_MAX else self._epoch + 1

    def restart(self) -> None:
        """Start a new session with the next request, because it is unknown what the leader remembers."""
        self._epoch = _INITIAL_EPOCH
        self._changed = dict.fromkeys(self._wanted)


def _by_topic(
    positions: Mapping[Key, Position], keys: Iterable[Key], partition_max_bytes: int
) -> list[FetchRequest.FetchTopic]:
    topics: dict[UUID, list[FetchRequest.FetchPartition]] = {}
    for key in keys:
        topic_id, index = key
        at = positions[key]
        requested = FetchRequest.FetchPartition(
            partition=index,
            current_leader_epoch=at.leader_epoch,
            fetch_offset=at.offset,
            last_fetched_epoch=at.last_fetched_epoch,
            log_start_offset=at.log_start_offset,
            partition_max_bytes=partition_max_bytes,
            high_watermark=at.high_watermark,
            stored_epoch=at.stored_epoch,
        )
        topics.setdefault(topic_id, []).append(requested)
    return [FetchRequest.FetchTopic(topic_id=topic_id, partitions=requested) for topic_id, requested in topics.items()]


def _forgotten_by_topic(keys: Iterable[Key]) -> list[FetchRequest.ForgottenTopic]:
    topics: dict[UUID, list[int]] = {}
    for topic_id, index in keys:
        topics.setdefault(topic_id, []).append(index)
    return [FetchRequest.ForgottenTopic(topic_id=topic_id, partitions=indexes) for topic_id, indexes in topics.items()]
