"""One replica of a partition on this broker: its role, its log, how far its replicas are, what clients may see.

Rules of this module:

* Only the leader appends for clients, under the leader epoch the controller gave it; a request that names another
  epoch is refused (KIP-320).
* The high watermark is the end of what every member of the ISR has. It only grows while this broker leads; clients
  read below it, followers read to the end of the log. While the controller is asked for another ISR, the members of
  both count (KIP-497). A follower that is close to being in sync counts too, or it would never get there. The high
  watermark stands still while fewer than ``min.insync.replicas`` are in sync (KIP-966).
* A follower copies its leader's batches and takes over the leader's high watermark as far as its own log goes. A log
  that is being cut changes its role only when that is done.
* ``min.insync.replicas`` is checked before the append (NOT_ENOUGH_REPLICAS), and as long as a producer waits for the
  replicas of what was appended (NOT_ENOUGH_REPLICAS_AFTER_APPEND).
* The log comes after the partition (opening waits for the disk) and may go before it (a disk fails); without it every
  request is refused with an error that clients retry.

Synchronous and without I/O of its own beside the log's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol
from uuid import UUID

from parley.broker.metadata.types import BrokerRegistration, PartitionState
from parley.broker.metrics import TopicMetrics
from parley.broker.replication.follower_progress import FetchClock, FollowerProgress
from parley.broker.runtime.purgatory import Purgatory
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch_header import BatchHeader
from parley.protocol.records.produce_validation import ProduceRules
from parley.protocol.schema import Buffer
from parley.protocol.sentinels import NO_EPOCH
from parley.storage.log import AppendInfo, Log, LogRead
from parley.storage.log_config import NEVER, LogConfig

LOW_WATERMARK = "low watermark"
"""With the partition the key, in the purgatory of producers, of whoever waits for its low watermark."""


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


class IsrPolicy(Protocol):
    """Who decides which followers are in sync."""

    def term_began(self, partition: Partition) -> None:
        """This broker leads the partition, under a new leader epoch; nothing is known of its followers yet."""

    def outsider_fetched(self, partition: Partition, replica: int, now_s: float) -> None:
        """A follower that is not in sync has fetched: it may be by now."""

    def broker_changed(self, broker_id: int) -> None:
        """The metadata tell something new of a broker: it may be in sync, or may not any more."""


class FixedIsr:
    """The ISR stays what it is."""

    def term_began(self, partition: Partition) -> None:
        pass

    def outsider_fetched(self, partition: Partition, replica: int, now_s: float) -> None:
        pass

    def broker_changed(self, broker_id: int) -> None:
        pass


class Partition:
    """A hosted replica. Compared and hashed by identity; it is a key of the purgatories."""

    __slots__ = (
        "_asked_isr",
        "_awaited",
        "_deferred",
        "_is_being_cut",
        "_isr_keeper",
        "_log",
        "_purgatories",
        "_why_no_log",
        "broker_id",
        "counters",
        "followers",
        "index",
        "is_leader",
        "leader_epoch",
        "produce_rules",
        "state",
        "term_start",
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
        isr_keeper: IsrPolicy | None = None,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.broker_id = broker_id
        self.counters = counters
        """What is counted of the topic at this broker."""
        self.followers: dict[int, FollowerProgress] = {}
        self.is_leader = False
        self.leader_epoch = NO_EPOCH
        self._log: Log | None = None
        self._why_no_log = ErrorCode.NOT_LEADER_OR_FOLLOWER
        self._purgatories = purgatories
        self.produce_rules: tuple[LogConfig, ProduceRules, ProduceRules] | None = None
        """What the log's configuration demands of records, made by :mod:`parley.broker.api.produce` at first use."""
        self.term_start = 0
        """The log's end when this broker became leader."""
        self._isr_keeper: IsrPolicy = isr_keeper or FixedIsr()
        self._asked_isr: tuple[int, ...] = ()  # the one the controller is asked for; empty: none is
        self._awaited: tuple[FollowerProgress, ...] = ()  # those the high watermark waits for
        self._is_being_cut = False
        self._deferred: PartitionState | None = None
        self.state = state
        self._take_up(state)

    def __repr__(self) -> str:
        return f"Partition({self.topic}-{self.index}, {'leader' if self.is_leader else 'follower'})"

    # Role.

    def change(self, state: PartitionState) -> None:
        """Take over what the controller decided: leader, ISR, replicas, epochs. A state of the past is ignored."""
        if state.partition_epoch < self.state.partition_epoch:
            return
        if self._is_being_cut:
            self._deferred = state
        else:
            self._take_up(state)

    def _take_up(self, state: PartitionState) -> None:
        leads = state.leader == self.broker_id
        new_term = state.leader_epoch != self.leader_epoch
        if new_term or state.partition_epoch != self.state.partition_epoch:
            self._asked_isr = ()  # not by the same state again, which an answer and the metadata both bring
        self.state = state
        self.leader_epoch = state.leader_epoch
        self.is_leader = leads
        known = {} if new_term or not leads else self.followers
        others = [replica for replica in state.replicas if replica != self.broker_id] if leads else []
        self.followers = {replica: known.get(replica) or FollowerProgress() for replica in others}
        self._choose_awaited()
        if leads and new_term and self._log is not None:
            self._begin_term(self._log)
        if new_term:
            self._tell_all()
        if leads and self._log is not None:
            self._advance_high_watermark(0)
            if not self.has_enough_replicas:
                self._purgatories.produce.notify(self)

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
        self.term_start = log.log_end_offset
        log.leader_epochs.assign(self.leader_epoch, self.term_start)
        self._isr_keeper.term_began(self)

    @property
    def knows_high_watermark(self) -> bool:
        """Whether this leader's high watermark has reached what its predecessor may have shown to clients (KIP-207)."""
        return self.log.high_watermark >= self.term_start

    def close(self) -> None:
        """The replica is no longer hosted here: those who wait for it must hear so."""
        self.is_leader = False
        self._tell_all()

    def _tell_all(self) -> None:
        self._purgatories.produce.notify(self)
        self._purgatories.fetch.notify(self)
        self.tell_low_watermark()

    def check_leader(self, known_epoch: int = NO_EPOCH) -> None:
        """Raise unless this broker leads, under ``known_epoch`` if the client named one (KIP-320)."""
        if known_epoch != NO_EPOCH:
            self.check_epoch(known_epoch)
        if not self.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def check_replica(self, known_epoch: int = NO_EPOCH) -> None:
        """Raise unless this broker can be read from as leader or follower, under ``known_epoch`` if one is named."""
        if known_epoch != NO_EPOCH:
            self.check_epoch(known_epoch)

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

    def append(
        self, batches: bytearray | memoryview, *, acks: int, now_ms: int, header: BatchHeader | None = None
    ) -> AppendInfo:
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
        info = self.log.append_as_leader(batches, leader_epoch=self.leader_epoch, now_ms=now_ms, header=header)
        if not info.duplicate:
            self._advance_high_watermark(info.size_bytes)
        return info

    def must_flush(self, now_ms: int) -> bool:
        """Whether ``flush.messages`` wants the log on disk before anybody hears of what was appended to it."""
        return self.log.config.flush_messages != NEVER and self.log.flush_due(now_ms)

    @property
    def must_flush_copy(self) -> bool:
        """Whether ``flush.messages`` wants a follower's log on disk before its leader hears of what was copied."""
        log = self._log
        return log is not None and log.log_end_offset - log.recovery_point >= log.config.flush_messages

    def is_acknowledged(self, offset: int) -> ErrorCode | None:
        """What became of records up to ``offset`` appended with ``acks=-1``; None while replicas still lack them."""
        if not self.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self._log is None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if not self.has_enough_replicas:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE if self.log.high_watermark > offset else None

    # Followers.

    @property
    def maximal_isr(self) -> frozenset[int]:
        """The ISR, and the one that the controller is asked for (KIP-497)."""
        return frozenset(self.state.isr).union(self._asked_isr)

    @property
    def is_asking(self) -> bool:
        """Whether the controller is being asked for another ISR."""
        return bool(self._asked_isr)

    def ask_isr(self, isr: tuple[int, ...]) -> None:
        """The controller is being asked for this ISR; :meth:`change` or :meth:`give_up_isr` follows."""
        self._asked_isr = isr
        self._choose_awaited()

    def give_up_isr(self) -> None:
        """The controller has refused the ISR it was asked for."""
        self._asked_isr = ()
        self._choose_awaited()
        if self.is_leader and self._log is not None:
            self._advance_high_watermark(0)

    def wait_for(self, replica: int, is_close: bool) -> None:
        """Whether the high watermark waits for a follower that is not in sync, because it is about to be."""
        progress = self.followers.get(replica)
        if progress is not None and progress.is_close is not is_close:
            progress.is_close = is_close
            self._choose_awaited()
            if self._log is not None and not is_close:
                self._advance_high_watermark(0)

    def _choose_awaited(self) -> None:
        isr = self.maximal_isr
        self._awaited = tuple(
            progress for replica, progress in self.followers.items() if replica in isr or progress.is_close
        )

    def follower_fetched(
        self, replica: int, fetch_offset: int, log_start_offset: int, clock: FetchClock, broker_epoch: int = NO_EPOCH
    ) -> None:
        """A follower fetches from ``fetch_offset``, at the time ``clock`` has noted: it has everything before.

        Raises UNKNOWN_LEADER_EPOCH where it is no replica as far as this broker knows.
        """
        progress = self.followers.get(replica)
        if progress is None:
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"Broker {replica} is no replica of {self!r}")
        had, began = progress.log_end_offset, progress.log_start_offset
        progress.fetched(fetch_offset, log_start_offset, self.log.log_end_offset, clock)
        progress.broker_epoch = broker_epoch
        if replica not in self.state.isr and replica not in self._asked_isr:
            self._isr_keeper.outsider_fetched(self, replica, clock.last_s)
        if fetch_offset != had:
            self._advance_high_watermark(0)
        if log_start_offset != began:
            self.tell_low_watermark()

    def delete_before(self, offset: int) -> None:
        """Delete the records below ``offset`` as leader; followers hear of it at once. Raises OFFSET_OUT_OF_RANGE."""
        self.log.advance_log_start(offset)
        self._purgatories.fetch.notify(self)

    def low_watermark(self, brokers: Mapping[int, BrokerRegistration]) -> int:
        """The offset below which no replica on a living broker has records any more."""
        return min(
            [self.log.log_start_offset]
            + [
                progress.log_start_offset
                for replica, progress in self.followers.items()
                if replica in brokers and not brokers[replica].fenced
            ]
        )

    def tell_low_watermark(self) -> None:
        """The low watermark may have moved: tell those who wait for it."""
        self._purgatories.produce.notify((self, LOW_WATERMARK))

    def reconsider(self) -> None:
        """What the high watermark depends on may have changed beside the state: the configuration."""
        if self.is_leader and self._log is not None:
            self._advance_high_watermark(0)

    def _advance_high_watermark(self, appended_bytes: int) -> None:
        """Move the high watermark to what the whole ISR has, and tell those who wait for it.

        ``appended_bytes`` says how much has come since the last call. Waiting fetches are told of bytes when those
        become visible: at once where the ISR is this broker alone, else with the high watermark.
        """
        log = self.log
        reached = log.log_end_offset
        for progress in self._awaited:
            if progress.log_end_offset < reached:
                reached = progress.log_end_offset
        if reached > log.high_watermark and self.has_enough_replicas:
            log.high_watermark = reached
            self._purgatories.produce.notify(self)
            self._purgatories.fetch.notify(self, appended_bytes)
        elif appended_bytes and len(self.state.replicas) > 1:
            self._purgatories.fetch.notify(self, appended_bytes)

    # Following.

    def append_fetched(self, records: Buffer | None, *, high_watermark: int, log_start_offset: int) -> int:
        """Append what the leader answered to a fetch from the log's end, and take over how far it is committed.

        Answers how many bytes were appended. Raises what the log raises, CORRUPT_MESSAGE and KAFKA_STORAGE_ERROR.
        """
        log = self.log
        size = log.append_as_follower(records).size_bytes if records else 0
        if high_watermark > log.high_watermark:
            log.high_watermark = high_watermark  # which goes no further than the log
            self._purgatories.fetch.notify(self, size)
        if log_start_offset > log.log_start_offset:
            log.advance_log_start(min(log_start_offset, log.high_watermark))
        self.counters.replication_bytes_in += size
        return size

    @property
    def is_being_cut(self) -> bool:
        """Whether a thread is at the log's end."""
        return self._is_being_cut

    def change_log(self, log: Log) -> None:
        """The same log is in another directory from now on."""
        log.config = self.log.config
        self._log = log

    def begin_cut(self) -> None:
        """The log is going to be cut, in a thread: the role stays what it is until :meth:`end_cut`."""
        self._is_being_cut = True

    def end_cut(self) -> None:
        """The log is whole again; a change of the state that came meanwhile is taken over."""
        self._is_being_cut = False
        state, self._deferred = self._deferred, None
        if state is not None:
            self._take_up(state)

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
