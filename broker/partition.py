"""One replica of a partition on this broker: its role, its log, how far its replicas are, what clients may see.

Rules of this module:

* Only the leader appends for clients, under the leader epoch the controller gave it; a request that names another
  epoch is refused (KIP-320).
* The high watermark is the end of what every member of the ISR has. It only grows while this broker leads; clients
  read below it, followers read to the end of the log.
* ``min.insync.replicas`` is checked before the append (NOT_ENOUGH_REPLICAS), and when the high watermark passes what
  was appended (NOT_ENOUGH_REPLICAS_AFTER_APPEND).
* The log comes after the partition (opening waits for the disk) and may go before it (a disk fails); without it every
  request is refused with an error that clients retry.

Synchronous and without I/O of its own beside the log's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from uuid import UUID

from broker.metadata.types import PartitionState
from broker.metrics import TopicMetrics
from broker.purgatory import Purgatory
from protocol.errors import ErrorCode, KafkaError
from protocol.records.produce import ProduceRules
from storage.config import NEVER, LogConfig
from storage.log import AppendInfo, Log, LogRead

NO_EPOCH = -1
"""The leader epoch of a request that does not know one: it is not checked."""


class Isolation(IntEnum):
    """What a reader may see; the first two with the numbers of the Fetch API (KIP-98)."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1
    LOG_END = 2
    """A follower's view: everything there is."""


@dataclass(frozen=True, slots=True)
class Purgatories:
    """Where answers wait that partitions' changes complete."""

    produce: Purgatory
    fetch: Purgatory


@dataclass(slots=True)
class FollowerProgress:
    """What the leader knows of one follower from its fetches; times are monotonic seconds."""

    log_end_offset: int = -1
    log_start_offset: int = -1
    last_fetch_s: float = 0.0
    last_caught_up_s: float = 0.0
    broker_epoch: int = -1


class Partition:
    """A hosted replica. Compared and hashed by identity; it is a key of the purgatories."""

    __slots__ = (
        "_log",
        "_purgatories",
        "_term_start",
        "_why_no_log",
        "broker_id",
        "counters",
        "followers",
        "index",
        "is_leader",
        "leader_epoch",
        "produce_rules",
        "state",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        topic: str,
        topic_id: UUID,
        index: int,
        *,
        broker_id: int,
        state: PartitionState,
        purgatories: Purgatories,
        counters: TopicMetrics,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.broker_id = broker_id
        self.counters = counters
        """What is counted of the topic at this broker."""
        self.followers: dict[int, FollowerProgress] = {}
        self.is_leader = False
        self.leader_epoch = -1
        self._log: Log | None = None
        self._why_no_log = ErrorCode.NOT_LEADER_OR_FOLLOWER
        self._purgatories = purgatories
        self.produce_rules: tuple[LogConfig, ProduceRules, ProduceRules] | None = None
        """What the log's configuration demands of records, made by :mod:`broker.api.produce` at first use."""
        self._term_start = 0  # the log's end when this broker became leader
        self.state = state
        self.change(state)

    def __repr__(self) -> str:
        return f"Partition({self.topic}-{self.index}, {'leader' if self.is_leader else 'follower'})"

    # Role.

    def change(self, state: PartitionState) -> None:
        """Take over what the controller decided: leader, ISR, replicas, epochs."""
        leads = state.leader == self.broker_id
        new_term = state.leader_epoch != self.leader_epoch
        self.state = state
        self.leader_epoch = state.leader_epoch
        if leads and new_term:
            self.followers = {replica: FollowerProgress() for replica in state.replicas if replica != self.broker_id}
            if self._log is not None:
                self._begin_term(self._log)
        elif leads:
            for replica in state.replicas:
                if replica != self.broker_id:
                    self.followers.setdefault(replica, FollowerProgress())
        else:
            self.followers = {}
        was_leader, self.is_leader = self.is_leader, leads
        if was_leader and not leads:
            self._tell_all()
        elif leads and self._log is not None:
            self._advance_high_watermark(0)

    @property
    def log(self) -> Log:
        """The partition's log.

        Raises NOT_LEADER_OR_FOLLOWER until it is opened, KAFKA_STORAGE_ERROR once its directory has failed.
        """
        if self._log is None:
            raise KafkaError(self._why_no_log)
        return self._log

    @property
    def has_failed(self) -> bool:
        """Whether the log is out of reach for good: its directory has failed."""
        return self._why_no_log == ErrorCode.KAFKA_STORAGE_ERROR

    @property
    def is_open(self) -> bool:
        """Whether there is a log."""
        return self._log is not None

    def opened(self, log: Log) -> None:
        """The log is there: take up the role."""
        self._log = log
        if self.is_leader:
            self._begin_term(log)
            self._advance_high_watermark(0)

    def lose_log(self) -> None:
        """The log's directory has failed: nothing can be asked of it any more."""
        self._log = None
        self._why_no_log = ErrorCode.KAFKA_STORAGE_ERROR
        self._tell_all()

    def _begin_term(self, log: Log) -> None:
        self._term_start = log.log_end_offset
        log.leader_epochs.assign(self.leader_epoch, self._term_start)

    @property
    def knows_high_watermark(self) -> bool:
        """Whether this leader's high watermark has reached what its predecessor may have shown to clients (KIP-207)."""
        return self.log.high_watermark >= self._term_start

    def close(self) -> None:
        """The replica is no longer hosted here: those who wait for it must hear so."""
        self.is_leader = False
        self._tell_all()

    def _tell_all(self) -> None:
        self._purgatories.produce.notify(self)
        self._purgatories.fetch.notify(self)

    def check_leader(self, known_epoch: int = NO_EPOCH) -> None:
        """Raise unless this broker leads, under ``known_epoch`` if the client named one (KIP-320)."""
        if known_epoch != NO_EPOCH:
            self.check_epoch(known_epoch)
        if not self.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def check_epoch(self, known_epoch: int) -> None:
        """Raise FENCED_LEADER_EPOCH for an epoch of the past, UNKNOWN_LEADER_EPOCH for one not heard of yet."""
        if known_epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        if known_epoch > self.leader_epoch:
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    @property
    def high_watermark(self) -> int:
        """The end of what every member of the ISR has, as far as this broker knows."""
        return self.log.high_watermark

    @property
    def min_in_sync(self) -> int:
        """How many replicas must be in sync for ``acks=-1``: ``min.insync.replicas``, or all if there are fewer."""
        return min(self.log.config.min_insync_replicas, len(self.state.replicas))

    @property
    def has_enough_replicas(self) -> bool:
        """Whether enough replicas are in sync for ``acks=-1``."""
        return len(self.state.isr) >= self.min_in_sync

    # Writing.

    def append(self, batches: bytearray | memoryview, *, acks: int, now_ms: int) -> AppendInfo:
        """Append batches that have been validated, as leader.

        Raises NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS (``acks`` of -1 only), and what the log raises.
        """
        if not self.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if acks == -1 and not self.has_enough_replicas:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"The ISR of {self.topic}-{self.index} is {list(self.state.isr)}, "
                f"smaller than min.insync.replicas={self.log.config.min_insync_replicas}.",
            )
        info = self.log.append_as_leader(batches, leader_epoch=self.leader_epoch, now_ms=now_ms)
        if not info.duplicate:
            self._advance_high_watermark(info.size_bytes)
        return info

    def must_flush(self, now_ms: int) -> bool:
        """Whether ``flush.messages`` wants the log on disk before anybody hears of what was appended to it."""
        return self.log.config.flush_messages != NEVER and self.log.flush_due(now_ms)

    def is_acknowledged(self, offset: int) -> ErrorCode | None:
        """What became of records up to ``offset`` appended with ``acks=-1``; None while replicas still lack them."""
        if not self.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self._log is None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if self.log.high_watermark <= offset:
            return None
        return ErrorCode.NONE if self.has_enough_replicas else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    def follower_fetched(self, replica: int, fetch_offset: int, log_start_offset: int, *, now_s: float) -> None:
        """A follower fetches from ``fetch_offset``: it has everything before."""
        progress = self.followers.get(replica)
        if progress is None:
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"Broker {replica} is no replica of {self!r}")
        if fetch_offset >= self.log.log_end_offset:
            progress.last_caught_up_s = now_s
        progress.last_fetch_s = now_s
        progress.log_start_offset = log_start_offset
        if fetch_offset != progress.log_end_offset:
            progress.log_end_offset = fetch_offset
            self._advance_high_watermark(0)

    def _advance_high_watermark(self, appended_bytes: int) -> None:
        """Move the high watermark to what the whole ISR has, and tell those who wait for it.

        ``appended_bytes`` says how much has come since the last call. Waiting fetches are told of bytes when those
        become visible: at once where the ISR is this broker alone, else with the high watermark.
        """
        log = self.log
        reached = log.log_end_offset
        for replica in self.state.isr:
            if replica != self.broker_id:
                reached = min(reached, self.followers[replica].log_end_offset)
        if reached > log.high_watermark:
            log.high_watermark = reached
            self._purgatories.produce.notify(self)
            self._purgatories.fetch.notify(self, appended_bytes)
        elif appended_bytes and len(self.state.replicas) > 1:
            self._purgatories.fetch.notify(self, appended_bytes)

    # Reading.

    def end_visible(self, isolation: Isolation) -> int:
        """The first offset that a reader of this isolation may not see yet."""
        if isolation is Isolation.READ_UNCOMMITTED:
            return self.log.high_watermark
        return self.log.last_stable_offset if isolation is Isolation.READ_COMMITTED else self.log.log_end_offset

    def read(
        self, offset: int, max_bytes: int, *, isolation: Isolation, min_one_batch: bool, nowait: bool = False
    ) -> LogRead:
        """What is to be read from ``offset`` on; nothing is read yet.

        Raises OFFSET_OUT_OF_RANGE before the log's start or past its end; with ``nowait`` BlockingIOError where the
        disk must be waited for to find the place.
        """
        up_to = self.end_visible(isolation)
        return self.log.read(offset, max_bytes, up_to=up_to, min_one_batch=min_one_batch, nowait=nowait)
