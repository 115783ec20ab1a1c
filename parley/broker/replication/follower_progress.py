"""A follower's progress, as its leader knows it from the follower's fetches. No clock: times are arguments.

A follower is caught up at the time of a fetch that starts at the leader's log end. Under a steady load, no fetch starts
there, because records arrive between two fetches. So, as in Kafka, a fetch that starts where the leader's log ended at
the previous fetch shows that the follower was caught up at the time of that previous fetch.

A fetch session does not name partitions in which nothing has changed. The time of its last fetch, which is the same for
all of them, is stored once, in a ``FetchClock``.
"""

from __future__ import annotations

from parley.protocol.sentinels import NO_EPOCH

NEVER_S = float("-inf")


class FetchClock:
    """The times of a session's last two fetches, for all its partitions, in monotonic seconds."""

    __slots__ = ("last_s", "previous_s")

    def __init__(self) -> None:
        self.last_s = NEVER_S
        self.previous_s = NEVER_S

    def fetched(self, now_s: float) -> None:
        """Record the time of a fetch."""
        self.previous_s = self.last_s
        self.last_s = now_s


_NO_FETCH = FetchClock()
"""The clock of followers that have not fetched. It is never updated."""


class FollowerProgress:
    """The progress of one follower of one partition under one leader epoch."""

    __slots__ = (
        "_caught_up_s",
        "_clock",
        "_leader_end",
        "broker_epoch",
        "counted_end",
        "is_joining",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self) -> None:
        self.log_end_offset = -1
        self.counted_end = -1
        """The log end for the high watermark and the ISR; -1 while the follower's log does not show the required epoch
        (``Partition.required_epoch``)."""
        self.log_start_offset = -1
        self.broker_epoch = NO_EPOCH
        self.is_joining = False
        """True while the high watermark waits for the follower although the follower is outside the ISR. The follower
        was caught up recently, and might never reach a high watermark that does not wait for it."""
        self._leader_end = -1  # at its last fetch
        self._caught_up_s = NEVER_S
        self._clock = _NO_FETCH

    def fetched(
        self, fetch_offset: int, log_start_offset: int, leader_end: int, clock: FetchClock, *, counts: bool = True
    ) -> None:
        """Record that the follower has everything before ``fetch_offset``. ``clock`` has already recorded the fetch.

        ``counts`` is False if the follower's log does not show the required epoch yet.
        """
        counted = fetch_offset if counts else -1
        if counted >= leader_end:
            self._caught_up_s = max(self._caught_up_s, clock.last_s)
        elif counted >= self._leader_end >= 0:
            self._caught_up_s = max(self._caught_up_s, clock.previous_s if clock is self._clock else self._clock.last_s)
        self.log_end_offset = fetch_offset
        self.counted_end = counted
        self.log_start_offset = log_start_offset
        self._leader_end = leader_end
        self._clock = clock

    def session_ended(self) -> None:
        """Record that the session no longer includes the partition: its fetches no longer show the follower's
        progress."""
        self._caught_up_s = self.last_caught_up_s
        self._clock = _NO_FETCH

    def forget_arrival(self) -> None:
        """Forget that the follower has caught up: only later fetches show that it is in sync, because it may be about
        to remove its log.

        Its previous progress still determines which records must be kept for it.
        """
        self.is_joining = False
        self._leader_end = -1
        self._caught_up_s = NEVER_S

    @property
    def has_fetched(self) -> bool:
        """True if the follower has fetched since the leader epoch began, and since the last ``forget_arrival``."""
        return self._leader_end >= 0

    def is_reported_by(self, clock: FetchClock) -> bool:
        """Return True if the last progress came from the session with this clock and not from another fetch."""
        return clock is self._clock

    def was_in_sync(self, now_s: float) -> None:
        """Record that the follower is in the ISR at the start of a leader epoch, and therefore counts as caught up at
        ``now_s``."""
        self._caught_up_s = now_s

    @property
    def last_fetched_s(self) -> float:
        """The time of the follower's last fetch, in monotonic seconds; minus infinity if it has not fetched."""
        return self._clock.last_s

    @property
    def last_caught_up_s(self) -> float:
        """The last time at which the follower had the leader's whole log, in monotonic seconds; minus infinity if that
        is not known."""
        if self.counted_end >= self._leader_end >= 0:  # then it was caught up at every fetch of its session since
            return max(self._caught_up_s, self._clock.last_s)
        return self._caught_up_s

    def is_caught_up(self, leader_end: int, now_s: float, lag_max_s: float) -> bool:
        """Return True if the follower has the whole log, or had it at most ``lag_max_s`` ago."""
        return self.counted_end == leader_end or now_s - self.last_caught_up_s <= lag_max_s
