"""One replica of a partition on this broker: its role, its log, and what clients may see.

Rules of this module:

* Only the leader appends for clients, with the leader epoch from the controller (KIP-320).
* The high watermark is the offset up to which every member of the ISR has the log (``followers.py`` lists the other
  followers for which it waits). It never decreases while this broker leads. It does not move while fewer than
  ``min.insync.replicas`` are in sync (KIP-966).
* While its log is being truncated, a replica keeps its role; a change is applied afterwards. A replica whose log
  contains a higher leader epoch than the controller's neither leads nor follows.
* Until the log is opened, and after its disk has failed, every request fails with a retriable error.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import IntEnum
from typing import Protocol

from parley.broker.metadata.types import NO_LEADER, BrokerRegistration, PartitionState
from parley.broker.metrics.catalogue.clients import TopicMetrics
from parley.broker.replication.follower_progress import FetchClock
from parley.broker.replication.followers import Followers
from parley.broker.replication.unhealed_range import UnhealedRange
from parley.broker.runtime.purgatory import Purgatory
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch_header import BatchHeader
from parley.protocol.records.produce_validation import ProduceRules
from parley.protocol.schema import Buffer
from parley.protocol.sentinels import NO_EPOCH
from parley.protocol.uuids import UUID
from parley.storage.damage.damaged_ranges import DamagedRange
from parley.storage.damage.log_integrity import DamagedOffset
from parley.storage.log import AppendInfo, Log, LogRead, Origin
from parley.storage.log_config import NEVER, LogConfig

_log = logging.getLogger(__name__)

LOW_WATERMARK = "low watermark"
"""(partition, LOW_WATERMARK) is the key, in the produce purgatory, of requests that wait for the low watermark."""


class Isolation(IntEnum):
    """The records that a reader may see. The numbers of the first two levels are those of the Fetch API (KIP-98)."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1
    LOG_END = 2
    """A follower reads to the end of the log."""


@dataclass(frozen=True, slots=True)
class Purgatories:
    """The purgatories whose responses wait for changes in partitions."""

    produce: Purgatory
    """Requests that wait until the high watermark advances: produce requests, writes of coordinators and of transaction
    markers, and deletions of records."""
    fetch: Purgatory
    """Fetches that wait for more records."""


class IsrPolicy(Protocol):
    """Decides which followers join and leave the ISR of the partitions that this broker leads."""

    def leader_epoch_began(self, partition: Partition) -> None:
        """React to a new leader epoch under which this broker leads the partition. Nothing is known about the followers
        yet."""

    def outsider_fetched(self, partition: Partition, replica: int, now_s: float) -> None:
        """React to a fetch of a follower outside the ISR: it may be in sync now. ``now_s`` is in monotonic seconds."""

    def outsider_changed(self, partition: Partition, replica: int) -> None:
        """React to a change in the broker of a follower outside the ISR. It has registered, or has been fenced or
        unfenced, so its eligibility for the ISR may have changed."""


class FixedIsr:
    """An ``IsrPolicy`` that never changes the ISR."""

    def leader_epoch_began(self, partition: Partition) -> None:
        pass

    def outsider_fetched(self, partition: Partition, replica: int, now_s: float) -> None:
        pass

    def outsider_changed(self, partition: Partition, replica: int) -> None:
        pass


class Partition:
    """A hosted replica. It is compared and hashed by identity, because it is a key in the purgatories."""

    __slots__ = (
        "_deferred",
        "_is_truncating",
        "_isr_policy",
        "_log",
        "_purgatories",
        "_why_no_log",
        "before_start_over",
        "broker_id",
        "counters",
        "epoch_start_offset",
        "followers",
        "index",
        "is_leader",
        "leader_epoch",
        "produce_rules",
        "required_epoch",
        "state",
        "topic",
        "topic_id",
        "unhealed",
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
        isr_policy: IsrPolicy | None = None,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.broker_id = broker_id
        self.counters = counters
        """The topic's metrics at this broker."""
        self.state = state
        self.leader_epoch = state.leader_epoch
        self.is_leader = state.leader == broker_id
        self.followers = Followers(self._follower_ids(state) if self.is_leader else (), state.isr)
        self._log: Log | None = None
        self._why_no_log = ErrorCode.NOT_LEADER_OR_FOLLOWER
        self._purgatories = purgatories
        self.produce_rules: tuple[LogConfig, ProduceRules, ProduceRules] | None = None
        """The validation rules that follow from the log's configuration. ``api.produce`` creates them on first use."""
        self.epoch_start_offset = 0
        """The log end offset when this broker became leader under the current epoch."""
        self.required_epoch = NO_EPOCH
        """The least epoch that a follower's log must show before this leader counts the follower: this leader's epoch
        if older records may still have to be committed, otherwise the newest epoch that this log had stored
        (docs/coordination.md, "Stored epochs")."""
        self._isr_policy: IsrPolicy = isr_policy or FixedIsr()
        self._is_truncating = False
        self._deferred: PartitionState | None = None  # to be applied after the truncation
        self.unhealed: tuple[UnhealedRange, ...] = ()
        """The damaged ranges that no other live replica could supply at the last attempt. ``Healing`` assigns them."""
        self.before_start_over: Callable[[], Awaitable[None]] | None = None
        """Set if this replica must fetch its log again from the beginning. The fetcher stops fetching, calls this
        function, which removes the replica from the ISR, the ELR and the last known ELR, and then removes the log.
        ``Healing`` assigns it."""

    def __repr__(self) -> str:
        return f"Partition({self.topic}-{self.index}, {'leader' if self.is_leader else 'follower'})"

    # --- Role ---

    def change(self, state: PartitionState) -> None:
        """Apply the controller's decision: leader, ISR, replicas, epochs. An outdated state is ignored.

        A higher leader epoch is newer, regardless of the partition epoch: the partition epoch starts again from a lower
        value if the coordination store was rolled back to an older state.
        """
        known = self.state
        if (state.leader_epoch, state.partition_epoch) < (known.leader_epoch, known.partition_epoch):
            return
        if self._is_truncating:
            self._deferred = state
        else:
            self._apply(state)

    def _apply(self, state: PartitionState) -> None:
        leads = state.leader == self.broker_id and not self._is_behind_log(state)
        new_epoch = state.leader_epoch != self.leader_epoch
        is_changed = new_epoch or state.partition_epoch != self.state.partition_epoch
        self.state = state
        self.leader_epoch = state.leader_epoch
        self.is_leader = leads
        others = self._follower_ids(state) if leads else ()
        if self.followers.change(others, state.isr, is_new_epoch=new_epoch, is_new_state=is_changed):
            # The fetch sessions of these followers must look at the partition again, although it has no new records.
            self._purgatories.fetch.notify(self)
        if leads and new_epoch and self._log is not None:
            self._begin_leader_epoch(self._log)
        if new_epoch:
            self._notify_all()
        if leads and self._log is not None:
            self._advance_high_watermark(self._log, 0)
            if not self.has_enough_replicas:
                self._purgatories.produce.notify(self)

    def _follower_ids(self, state: PartitionState) -> list[int]:
        return [replica for replica in state.replicas if replica != self.broker_id]

    @property
    def log(self) -> Log:
        """The partition's log.

        Raises NOT_LEADER_OR_FOLLOWER until it is opened, and KAFKA_STORAGE_ERROR once its directory has failed or the
        log could not be opened.
        """
        if self._log is None:
            raise KafkaError(self._why_no_log)
        return self._log

    @property
    def has_failed(self) -> bool:
        """True if the log's directory has failed or the log could not be opened. The log is then not used again."""
        return self._why_no_log == ErrorCode.KAFKA_STORAGE_ERROR

    @property
    def _why_not_leader(self) -> ErrorCode:
        """The error for clients if this broker does not lead: KAFKA_STORAGE_ERROR if its disk has failed and no other
        broker leads."""
        is_cause = self.has_failed and self.state.leader == NO_LEADER
        return ErrorCode.KAFKA_STORAGE_ERROR if is_cause else ErrorCode.NOT_LEADER_OR_FOLLOWER

    @property
    def is_open(self) -> bool:
        """True if the log is open."""
        return self._log is not None

    def opened(self, log: Log) -> None:
        """Use the opened log from now on, and start leading if this broker is the leader. If the log ``is_outdated``,
        the replica waits instead."""
        self._log = log
        log.tombstones_kept_from = self.followers.tombstones_kept_from
        if self._is_behind_log(self.state):
            self.is_leader = False
            facts = {"topic": self.topic, "partition": self.index, "epoch": self.leader_epoch}
            _log.warning("a log contains a higher leader epoch than the controller's: the replica waits", extra=facts)
        if self.is_leader:
            self._begin_leader_epoch(log)
            self._advance_high_watermark(log, 0)

    @property
    def is_outdated(self) -> bool:
        """True if the log contains a higher leader epoch than the current one: the coordination store was rolled back.

        The replica neither leads nor follows until the controller has raised the epoch. Otherwise it would truncate its
        log, or lose track of the epochs of its records.
        """
        return self._is_behind_log(self.state)

    def _is_behind_log(self, state: PartitionState) -> bool:
        latest = None if self._log is None else self._log.latest_epoch
        return latest is not None and latest > state.leader_epoch

    def lose_log(self) -> None:
        """Stop using the log, because its directory has failed or it cannot be opened. Waiting requests get an
        error."""
        self._log = None
        self._why_no_log = ErrorCode.KAFKA_STORAGE_ERROR
        self._notify_all()

    def _begin_leader_epoch(self, log: Log) -> None:
        end = self.epoch_start_offset = log.log_end_offset
        self.required_epoch = self.leader_epoch if log.high_watermark < end else log.stored_epoch if end else NO_EPOCH
        log.begin_leading(self.leader_epoch)
        self._isr_policy.leader_epoch_began(self)

    @property
    def knows_high_watermark(self) -> bool:
        """True if the high watermark has reached the value that the previous leader may have shown to clients
        (KIP-207). Raises the errors of ``log``."""
        return self.log.high_watermark >= self.epoch_start_offset

    def close(self) -> None:
        """Stop hosting the replica. Waiting requests get an error."""
        self.is_leader = False
        if self._log is not None:
            self._log.disown()
        self._notify_all()

    def _notify_all(self) -> None:
        self._purgatories.produce.notify(self)
        self._purgatories.fetch.notify(self)
        self.notify_low_watermark()

    def check_leader(self, known_epoch: int = NO_EPOCH) -> None:
        """Raise KafkaError unless this broker leads, under ``known_epoch`` if the client specified an epoch (KIP-320).

        The error is that of ``check_epoch``, NOT_LEADER_OR_FOLLOWER, or KAFKA_STORAGE_ERROR if this broker's disk has
        failed and no other broker leads.
        """
        if known_epoch != NO_EPOCH:
            self.check_epoch(known_epoch)
        if not self.is_leader:
            raise KafkaError(self._why_not_leader)

    def check_replica(self, known_epoch: int = NO_EPOCH) -> None:
        """Raise the KafkaError of ``check_epoch`` if the client specified another leader epoch than the current one.
        Consumers may read from a leader or a follower."""
        if known_epoch != NO_EPOCH:
            self.check_epoch(known_epoch)

    def check_epoch(self, known_epoch: int) -> None:
        """Raise KafkaError if a client's leader epoch is not the current one: FENCED_LEADER_EPOCH if it is older,
        UNKNOWN_LEADER_EPOCH if it is newer."""
        if known_epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        if known_epoch > self.leader_epoch:
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    @property
    def high_watermark(self) -> int:
        """The offset up to which every member of the ISR has the log, as far as this broker knows. Raises the errors of
        ``log``."""
        return self.log.high_watermark

    @property
    def min_in_sync(self) -> int:
        """The number of replicas that must be in sync for ``acks=-1``: ``min.insync.replicas``, or all if there are
        fewer. Raises the errors of ``log``."""
        return min(self.log.config.min_insync_replicas, len(self.state.replicas))

    @property
    def has_enough_replicas(self) -> bool:
        """True if at least ``min_in_sync`` replicas are in sync. This is faster than a comparison with ``min_in_sync``.
        Raises the errors of ``log``."""
        return self._has_enough_replicas(self.log)

    def _has_enough_replicas(self, log: Log) -> bool:
        state, in_sync = self.state, len(self.state.isr)
        return in_sync >= log.config.min_insync_replicas or in_sync >= len(state.replicas)

    # --- Writing ---

    def append(
        self,
        batches: bytearray | memoryview,
        *,
        acks: int,
        now_ms: int,
        header: BatchHeader | None = None,
        origin: Origin = Origin.CLIENT,
        transaction_version: int = 0,
    ) -> AppendInfo:
        """Append validated batches as the leader. All arguments except ``acks`` are those of ``Log.append_as_leader``.

        Raises NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR, NOT_ENOUGH_REPLICAS (only with ``acks=-1``), and the errors
        of ``Log.append_as_leader``.
        """
        if not self.is_leader:
            raise KafkaError(self._why_not_leader)
        log = self._log  # the property costs as much as ten attributes
        if log is None:
            raise KafkaError(self._why_no_log)
        if acks == -1 and not self._has_enough_replicas(log):
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"The ISR of {self.topic}-{self.index} is {list(self.state.isr)}, "
                f"smaller than min.insync.replicas={log.config.min_insync_replicas}.",
            )
        info = log.append_as_leader(
            batches,
            leader_epoch=self.leader_epoch,
            now_ms=now_ms,
            origin=origin,
            header=header,
            transaction_version=transaction_version,
        )
        if not info.duplicate:
            self._advance_high_watermark(log, info.size_bytes)
        return info

    def must_flush(self, now_ms: int) -> bool:
        """Return True if ``flush.messages`` requires a flush before the append is acknowledged. Raises the errors of
        ``log``."""
        log = self._log or self.log
        return log.config.flush_messages != NEVER and log.flush_due(now_ms)

    @property
    def must_flush_fetched(self) -> bool:
        """True if ``flush.messages`` requires a flush before fetched records are acknowledged to the leader."""
        log = self._log
        return log is not None and log.log_end_offset - log.recovery_point >= log.config.flush_messages

    def append_outcome(self, offset: int) -> ErrorCode | None:
        """Return the outcome of an append with ``acks=-1`` whose last offset is ``offset``: NONE if all in-sync
        replicas have it, the error for the client, or None (no outcome yet) while the high watermark has not passed the
        offset."""
        if not self.is_leader:
            return self._why_not_leader
        if self._log is None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if not self.has_enough_replicas:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE if self.log.high_watermark > offset else None

    # --- Followers ---

    def withdraw_isr(self) -> None:
        """Record that the controller has rejected the proposed ISR, and advance the high watermark if the current ISR
        allows it."""
        self.followers.withdraw_isr()
        if self.is_leader and self._log is not None:
            self._advance_high_watermark(self._log, 0)

    def set_joining(self, replica: int, is_joining: bool) -> None:
        """Make the high watermark wait for a follower outside the ISR that is about to join. If ``is_joining`` is
        False, the high watermark no longer waits for it."""
        if self.followers.set_joining(replica, is_joining) and not is_joining and self._log is not None:
            self._advance_high_watermark(self._log, 0)

    def follower_fetched(
        self,
        replica: int,
        fetch_offset: int,
        log_start_offset: int,
        clock: FetchClock,
        broker_epoch: int = NO_EPOCH,
        *,
        counts: bool = True,
    ) -> None:
        """Record that a follower fetches from ``fetch_offset``, at the time in ``clock``: the follower's log contains
        everything before that offset. ``counts`` is False if the log does not show ``required_epoch``.

        Raises UNKNOWN_LEADER_EPOCH if this broker does not know the follower as a replica, KAFKA_STORAGE_ERROR if an
        epoch cannot be stored, and the errors of ``log``.
        """
        progress = self.followers.progress.get(replica)
        if progress is None:
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"Broker {replica} is not a replica of {self!r}.")
        log = self.log
        had, began = progress.counted_end, progress.log_start_offset
        if had < 0 and counts and self.required_epoch == self.leader_epoch:
            log.store_epoch(self.leader_epoch)  # the leader must show it, too, before it counts a follower
        progress.fetched(fetch_offset, log_start_offset, log.log_end_offset, clock, counts=counts)
        progress.broker_epoch = broker_epoch
        if self.followers.is_outsider(replica):
            self._isr_policy.outsider_fetched(self, replica, clock.last_s)
        if progress.counted_end != had:
            self._advance_high_watermark(log, 0)
        if log_start_offset != began:
            self.notify_low_watermark()

    def delete_before(self, offset: int) -> None:
        """Delete the records below ``offset``, as the leader. Followers learn about the deletion with their next fetch.

        Raises OFFSET_OUT_OF_RANGE if ``offset`` is above the high watermark, and the errors of ``log``.
        """
        self.log.advance_log_start(offset)
        self._purgatories.fetch.notify(self)

    def low_watermark(self, brokers: Mapping[int, BrokerRegistration]) -> int:
        """Return the offset below which no replica on a live broker has records; -1 while a follower on a live broker
        has not fetched under the current leader epoch. Raises the errors of ``log``."""
        return self.followers.low_watermark(self.log.log_start_offset, brokers)

    def notify_low_watermark(self) -> None:
        """Notify the requests that wait for the low watermark, which may have moved."""
        self._purgatories.produce.notify((self, LOW_WATERMARK))

    def config_changed(self) -> None:
        """Advance the high watermark if the new configuration allows it (``min.insync.replicas``)."""
        if self.is_leader and self._log is not None:
            self._advance_high_watermark(self._log, 0)

    def _advance_high_watermark(self, log: Log, appended_bytes: int) -> None:
        """Move the high watermark to the offset that all awaited followers have reached (the ISR, a proposed ISR, and
        followers about to join), and notify waiting requests.

        It does not move while the ISR is too small, or while there is an ELR or a last known ELR, whose members must
        have all committed records. ``appended_bytes`` is the number of bytes appended since the last call. Waiting
        fetches count bytes when they become visible: immediately if this broker is the only ISR member, otherwise when
        the high watermark moves.
        """
        reached = self.followers.reached(log.log_end_offset)
        if reached > log.high_watermark and self._has_enough_replicas(log) and not self.state.relies_on_elr:
            unstable = log.producers.first_unstable_offset
            log.high_watermark = reached
            self._purgatories.produce.notify(self)
            self._purgatories.fetch.notify(self, appended_bytes)
            if unstable is not None:
                self._wake_if_stable_offset_moved(log, unstable, appended_bytes)
        elif appended_bytes and len(self.state.replicas) > 1:
            self._purgatories.fetch.notify(self, appended_bytes)

    def _wake_if_stable_offset_moved(self, log: Log, unstable: int, appended_bytes: int) -> None:
        """Wake the readers of committed records if the first unstable offset is no longer ``unstable``, its value
        before the high watermark moved.

        A marker makes all records of its transaction visible. Their bytes were counted when they were appended, so
        fetches check again without counting.
        """
        if appended_bytes and log.producers.first_unstable_offset != unstable:
            self._purgatories.fetch.notify(self)

    # --- Following ---

    def append_fetched(self, records: Buffer | None, *, high_watermark: int, log_start_offset: int) -> int:
        """Append fetched records at the end of the log, and adopt the leader's high watermark and log start offset.

        Returns the number of bytes appended. Raises the errors of ``log`` and of ``Log.append_as_follower``:
        CORRUPT_MESSAGE or KAFKA_STORAGE_ERROR.
        """
        log = self.log
        size = log.append_as_follower(records).size_bytes if records else 0
        if high_watermark > log.high_watermark:
            unstable = log.producers.first_unstable_offset
            log.high_watermark = high_watermark  # the log limits it to the log end offset
            self._purgatories.fetch.notify(self, size)
            if unstable is not None:
                self._wake_if_stable_offset_moved(log, unstable, size)
        if log_start_offset > log.log_start_offset:
            log.advance_log_start(min(log_start_offset, log.high_watermark))
        self.counters.replication_bytes_in += size
        return size

    @property
    def is_truncating(self) -> bool:
        """True while a thread is truncating the log."""
        return self._is_truncating

    def replace_log(self, log: Log) -> None:
        """Use ``log``, a complete copy of the log in another directory, from now on. Raises the errors of the property
        ``log``."""
        log.config = self.log.config
        log.on_damage = self.log.on_damage
        log.tombstones_kept_from = self.followers.tombstones_kept_from
        self._log = log

    def begin_truncation(self) -> None:
        """Defer all changes of the role until ``end_truncation``, because a thread is about to truncate the log."""
        self._is_truncating = True

    def end_truncation(self) -> None:
        """Apply the last change of state that arrived during the truncation, if any."""
        self._is_truncating = False
        state, self._deferred = self._deferred, None
        if state is not None:
            self._apply(state)

    # --- Reading ---

    def end_visible(self, isolation: Isolation) -> int:
        """Return the first offset that a reader with this isolation must not see yet. Raises the errors of ``log``."""
        if isolation is Isolation.READ_UNCOMMITTED:
            return self.log.high_watermark
        return self.log.last_stable_offset if isolation is Isolation.READ_COMMITTED else self.log.log_end_offset

    def read(
        self, offset: int, max_bytes: int, *, isolation: Isolation, min_one_batch: bool, nowait: bool = False
    ) -> LogRead:
        """Locate the batches to read from ``offset`` on, without reading them yet.

        With ``min_one_batch``, the first batch may exceed ``max_bytes``. Raises OFFSET_OUT_OF_RANGE if ``offset`` is
        before the log's start or past its end, and the errors of ``log``. If the records are damaged, raises
        KAFKA_STORAGE_ERROR, which clients retry, while another replica may supply them, and CORRUPT_MESSAGE if none
        can. With ``nowait``, raises BlockingIOError if locating the batches would have to wait for the disk.
        """
        up_to = self.end_visible(isolation)
        try:
            return self.log.read(offset, max_bytes, up_to=up_to, min_one_batch=min_one_batch, nowait=nowait)
        except DamagedOffset as error:
            if self.has_no_copy(error.damaged):
                raise
            text = f"{error}; the records are fetched from another replica"
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, text) from error

    def has_no_copy(self, damage: DamagedRange) -> bool:
        """Return True if no other live replica can supply the records of a damaged range."""
        return len(self.state.replicas) == 1 or any(each.covers(damage) for each in self.unhealed)

    def is_lost(self, damage: DamagedRange) -> bool:
        """Return True if no other replica, alive or not, can supply acknowledged records for the whole of a damaged
        range. Can be called from any thread.

        A replica cannot if its own response shows that it lacks some of the range, or if this broker leads and the
        replica's log ended before the range at its last fetch.
        """
        lacked_by = self.followers.ending_before(damage.first_offset)
        lacked_by.update(*(each.lacked_by for each in self.unhealed if each.covers(damage)))
        return lacked_by >= set(self.state.replicas) - {self.broker_id}
