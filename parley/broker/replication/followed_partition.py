"""A partition that a fetcher follows, and what the fetcher is doing with it.

The states::

    NEW            assigned to the fetcher
    FETCHING       included in the fetch requests
    TRUNCATING     its log is being truncated to match the leader's log
    ASKING_RANGE   its fetch was outside the leader's log: the fetcher asks the leader where the log begins and ends
    BACKING_OFF    something failed: it is fetched again later
    THROTTLED      the replication throttle is exhausted: it is fetched again later (KIP-73)
    SUPERSEDED     its leader or epoch has changed: the new metadata assigns it to this fetcher or to another
    LEFT           this fetcher no longer follows it (final)
"""

from __future__ import annotations

import asyncio
from enum import IntEnum, auto

from parley.broker.replication.follower_fetch_session import Key
from parley.broker.replication.partition import Partition
from parley.broker.runtime.states import IllegalStep


class FollowState(IntEnum):
    """The state of a followed partition. The module docstring explains each one."""

    NEW = auto()
    FETCHING = auto()
    TRUNCATING = auto()
    ASKING_RANGE = auto()
    BACKING_OFF = auto()
    THROTTLED = auto()
    SUPERSEDED = auto()
    LEFT = auto()


class FollowEvent(IntEnum):
    """An event in the life of a followed partition."""

    FETCH = auto()
    TRUNCATE = auto()
    ASK_RANGE = auto()
    FAIL = auto()
    THROTTLE = auto()
    SUPERSEDE = auto()
    LEAVE = auto()


_S, _E = FollowState, FollowEvent
_STEPS: dict[tuple[FollowState, FollowEvent], FollowState] = {
    (_S.NEW, _E.FETCH): _S.FETCHING,
    (_S.NEW, _E.SUPERSEDE): _S.SUPERSEDED,
    (_S.FETCHING, _E.TRUNCATE): _S.TRUNCATING,
    (_S.FETCHING, _E.ASK_RANGE): _S.ASKING_RANGE,
    (_S.FETCHING, _E.FAIL): _S.BACKING_OFF,
    (_S.FETCHING, _E.THROTTLE): _S.THROTTLED,
    (_S.TRUNCATING, _E.FETCH): _S.FETCHING,
    (_S.TRUNCATING, _E.FAIL): _S.BACKING_OFF,
    (_S.TRUNCATING, _E.SUPERSEDE): _S.SUPERSEDED,
    (_S.ASKING_RANGE, _E.FETCH): _S.FETCHING,
    (_S.ASKING_RANGE, _E.TRUNCATE): _S.TRUNCATING,
    (_S.ASKING_RANGE, _E.FAIL): _S.BACKING_OFF,
    (_S.ASKING_RANGE, _E.SUPERSEDE): _S.SUPERSEDED,
    (_S.BACKING_OFF, _E.FETCH): _S.FETCHING,
    (_S.BACKING_OFF, _E.SUPERSEDE): _S.SUPERSEDED,
    (_S.THROTTLED, _E.FETCH): _S.FETCHING,
    (_S.THROTTLED, _E.SUPERSEDE): _S.SUPERSEDED,
    **{(state, _E.LEAVE): _S.LEFT for state in _S if state is not _S.LEFT},
}


class FollowedPartition:
    """One partition that is followed under one leader epoch."""

    __slots__ = ("failure", "failures", "first_request", "key", "lag", "leader_epoch", "partition", "state", "timer")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.key: Key = (partition.topic_id, partition.index)
        self.leader_epoch = partition.leader_epoch
        self.state = FollowState.NEW
        self.lag = -1
        """The number of committed records beyond this log's end; -1 if it is unknown."""
        self.failure = ""
        """Why the last fetch failed; "" if it did not."""
        self.failures = 0
        """The number of consecutive failures."""
        self.first_request = 0
        """The number of the first request that contains the partition in its present FETCHING state. Responses to
        earlier requests are ignored."""
        self.timer: asyncio.TimerHandle | None = None

    def step(self, event: FollowEvent) -> None:
        """Move to the state that follows ``event``, and cancel the timer of the previous state. Raises IllegalStep if
        the table does not contain the transition."""
        try:
            self.state = _STEPS[self.state, event]
        except KeyError:
            raise IllegalStep(f"following {self.partition!r}", self.state, event) from None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    @property
    def is_current(self) -> bool:
        """True if the partition's log is open and the partition still follows the leader epoch for which it was
        assigned."""
        partition = self.partition
        return partition.is_open and not partition.is_leader and partition.leader_epoch == self.leader_epoch

    @property
    def facts(self) -> dict[str, object]:
        """The fields that name the partition in a log line."""
        return {"topic": self.partition.topic, "partition": self.partition.index}
