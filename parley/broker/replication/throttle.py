"""Replication throttles (KIP-73): a bandwidth limit for replicas that are catching up.

The configuration of a topic lists its throttled replicas by partition and broker, or all of them. A broker has one rate
limit for what it sends to them as leader, and another for what it fetches as follower. Replicas that are in sync are
never throttled, because they would leave the ISR. The rate is measured over sliding windows, so a burst delays the
bytes that follow it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from parley.broker.config import BrokerConfig
from parley.broker.config.key_definition import MAX_LONG
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import ResourceType

LEADER = "leader.replication.throttled.replicas"
FOLLOWER = "follower.replication.throttled.replicas"
ALL = "*"


class MeasuredRate:
    """Bytes per second over the last ``windows`` windows of ``window_s`` seconds. No clock: times are arguments."""

    def __init__(self, windows: int, window_s: float) -> None:
        self._windows = windows
        self._window_s = window_s
        self._samples: deque[tuple[float, int]] = deque()  # the start time and the byte count of each window
        self._total = 0

    def record(self, size: int, now_s: float) -> None:
        """Count ``size`` bytes that were sent or fetched at ``now_s``."""
        self._forget(now_s)
        if self._samples and now_s - self._samples[-1][0] < self._window_s:
            began_s, before = self._samples.pop()
            self._samples.append((began_s, before + size))
        else:
            self._samples.append((now_s, size))
        self._total += size

    def _forget(self, now_s: float) -> None:
        while self._samples and now_s - self._samples[0][0] >= self._windows * self._window_s:
            self._total -= self._samples.popleft()[1]

    def wait_s(self, limit: float, now_s: float) -> float:
        """Return the number of seconds to wait until the rate falls to ``limit``; 0 if it does not exceed the limit."""
        self._forget(now_s)
        if not self._samples:
            return 0.0
        began_s = self._samples[0][0]
        elapsed_s = max(now_s - began_s, self._window_s)
        if self._total <= limit * elapsed_s:
            return 0.0
        forgotten_s = began_s + self._windows * self._window_s - now_s
        return min(self._total / limit - (now_s - began_s), forgotten_s) if limit > 0 else forgotten_s


def throttled_partitions(text: str, broker_id: int) -> frozenset[int] | None:
    """Return the partitions that ``text``, a topic's list of throttled replicas (``partition:broker,...``), names for a
    broker. None means all partitions (``*``)."""
    pairs = [pair.strip().partition(":") for pair in text.split(",") if pair.strip()]
    if any(partition == ALL for partition, _, _ in pairs):
        return None
    return frozenset(int(partition) for partition, _, broker in pairs if broker == str(broker_id))


class ReplicationThrottle:
    """One of the two throttles of a broker."""

    def __init__(
        self,
        broker_id: int,
        key: str,
        rate: Callable[[], int],
        config: BrokerConfig,
        monotonic: Callable[[], float],
    ) -> None:
        """``key`` is the topic's list, LEADER or FOLLOWER. ``rate`` returns the allowed bytes per second."""
        self._broker_id = broker_id
        self._key = key
        self._limit = rate
        self._rate = MeasuredRate(config.replication_quota_window_num, config.replication_quota_window_size_seconds)
        self._monotonic = monotonic
        self._named: dict[str, tuple[Mapping[str, str], frozenset[int] | None]] = {}

    @property
    def is_set(self) -> bool:
        """True if a rate is configured."""
        return self._limit() < MAX_LONG

    def covers(self, image: MetadataImage, topic: str, partition: int) -> bool:
        """Return True if the topic lists this broker's replica as throttled."""
        entries = image.config(ResourceType.TOPIC, topic)
        known = self._named.get(topic)
        if known is None or known[0] is not entries:
            found = throttled_partitions(entries.get(self._key, ""), self._broker_id)
            known = self._named[topic] = (entries, found)
        return known[1] is None or partition in known[1]

    def record_if_covered(self, image: MetadataImage, topic: str, partition: int, size: int) -> None:
        """Count ``size`` bytes of a replica if the topic lists it as throttled."""
        if self.covers(image, topic, partition):
            self._rate.record(size, self._monotonic())

    @property
    def wait_s(self) -> float:
        """The number of seconds that throttled replicas must wait; 0 if they need not wait."""
        return self._rate.wait_s(self._limit(), self._monotonic())


def leader_throttle(
    broker_id: int, config: Callable[[], BrokerConfig], monotonic: Callable[[], float]
) -> ReplicationThrottle:
    """Return the throttle of what this broker sends as leader (``leader.replication.throttled.rate``)."""
    return ReplicationThrottle(
        broker_id, LEADER, lambda: config().leader_replication_throttled_rate, config(), monotonic
    )


def follower_throttle(
    broker_id: int, config: Callable[[], BrokerConfig], monotonic: Callable[[], float]
) -> ReplicationThrottle:
    """Return the throttle of what this broker fetches (``follower.replication.throttled.rate``)."""
    return ReplicationThrottle(
        broker_id, FOLLOWER, lambda: config().follower_replication_throttled_rate, config(), monotonic
    )
