"""A share partition that this broker leads: its stored state, its locks, and the fetches that wait for it.

Its states::

    LOADING   the state is being read; fetches wait
    ACTIVE    members acquire and acknowledge records
    ENDED     (final) this broker no longer leads the partition in this epoch, the group has no members on this
              broker, or the state could not be read or was replaced; the next fetch loads the stored state again

Writes do not overlap. While the share coordinator stores a write, further acknowledgements collect for the next write,
so a busy share partition writes large batches. One timer serves all locks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from enum import IntEnum
from functools import partial
from typing import Final

from parley.broker.config.share_offset_reset import EARLIEST, age_ms
from parley.broker.coordinators.share_state.persister import UNINITIALIZED_OFFSET, Persister, ShareState
from parley.broker.coordinators.share_state.share_partition_key import SharePartitionKey
from parley.broker.metrics.catalogue.share_groups import ShareGroupMetrics
from parley.broker.replication.partition import Partition
from parley.broker.runtime.purgatory import Purgatory
from parley.broker.runtime.states import step
from parley.broker.runtime.tasks import TaskSet
from parley.broker.runtime.threads import Threads
from parley.broker.share.acknowledgements import RENEW, AcknowledgementBatch
from parley.broker.share.settings import SettingsOf, ShareSettings
from parley.broker.share.share_partition import Acquired, LogBatch, SharePartition, Wanted, before
from parley.protocol.errors import ErrorCode, KafkaError

_log = logging.getLogger(__name__)


class LeadingState(IntEnum):
    """The state of a share partition at its leader. The module docstring explains each one."""

    LOADING = 0
    ACTIVE = 1
    ENDED = 2


class LeadingEvent(IntEnum):
    """An event that changes the ``LeadingState``."""

    LOADED = 0
    END = 1


STEPS: Final = {
    (LeadingState.LOADING, LeadingEvent.LOADED): LeadingState.ACTIVE,
    (LeadingState.LOADING, LeadingEvent.END): LeadingState.ENDED,
    (LeadingState.ACTIVE, LeadingEvent.END): LeadingState.ENDED,
}

_FOR_CLIENTS: Final = {
    ErrorCode.NOT_COORDINATOR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.BROKER_NOT_AVAILABLE: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_STATE_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.GROUP_ID_NOT_FOUND: ErrorCode.GROUP_ID_NOT_FOUND,
}
"""Maps errors of the share coordinator to errors for members. All other errors become UNKNOWN_SERVER_ERROR."""

_ENDING: Final = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.FENCED_STATE_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.INVALID_REQUEST,  # the state was deleted, with the group or by DeleteShareGroupOffsets
    }
)
"""The errors after which the state in memory is invalid."""

WRITE_AGAIN_S: Final = 10.0
"""The pause before a failed write is retried, in seconds. The persister has already tried it several times."""

INITIALIZED_PAUSES_S: Final = (0.1, 0.2, 0.4, 0.8, 1.6)
"""The pauses before the state is read again if it has not been initialized yet, in seconds. A new group, or a group
with a new subscription, can initialize thousands of share partitions in this time."""

_MOVED: Final = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "This broker no longer leads the share partition.")
_UNUSED: Final = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "The share group has no members on this broker.")


class LedSharePartition:
    """A share partition that this broker leads. It is also a key in the purgatory of share fetches."""

    def __init__(
        self,
        key: SharePartitionKey,
        partition: Partition,
        *,
        persister: Persister,
        settings_of: SettingsOf,
        share_fetches: Purgatory,
        tasks: TaskSet,
        threads: Threads,
        wall_ms: Callable[[], int],
        metrics: ShareGroupMetrics,
        on_ended: Callable[[LedSharePartition], None],
    ) -> None:
        """``on_ended`` is called when the share partition enters the state ENDED."""
        self.key = key
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.state = LeadingState.LOADING
        self.error: KafkaError = _MOVED
        """The error that ended the share partition. Valid only in the state ENDED."""
        self.share: SharePartition
        """The window of the group's records. Not set while LOADING."""
        self._state_epoch = 0
        self._persister = persister
        self._settings_of = settings_of
        self._share_fetches = share_fetches
        self._tasks = tasks
        self._threads = threads
        self._wall_ms = wall_ms
        self._metrics = metrics
        self._on_ended = on_ended
        self._loop = asyncio.get_running_loop()
        self._awaiting: list[asyncio.Future[None]] = []
        self._is_writing = False
        self._is_unused = False
        self._lock_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._tasks.start(self._load(), name=f"load of share partition {partition.topic}-{key.partition}")

    # --- State ---

    @property
    def is_active(self) -> bool:
        """True if members can acquire and acknowledge records."""
        return self.state is LeadingState.ACTIVE

    @property
    def settings(self) -> ShareSettings:
        """The current settings of the share group to which this share partition belongs."""
        return self._settings_of(self.key.group_id)

    def on_change(self, key: Hashable, amount: int) -> None:
        """Handle a change in the partition, as a ``Subscriber`` of the purgatory of fetches."""
        if not self.partition.is_leader or self.partition.leader_epoch != self.leader_epoch:
            self.end(_MOVED)
        elif self.is_active:
            self._share_fetches.notify(self, amount)

    def end(self, error: KafkaError) -> None:
        """Drop the state in memory. Waiting fetches, and acknowledgements not yet stored, fail with ``error``."""
        if self.state is LeadingState.ENDED:
            return
        self.state = step("share partition", STEPS, self.state, LeadingEvent.END)
        self.error = error
        for timer in (self._lock_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._fail_awaiting(self._awaiting, error)
        self._on_ended(self)
        self._share_fetches.notify(self)

    def end_when_stored(self) -> None:
        """Drop the state in memory, after the current write if there is one. Call this when the group has no members on
        this broker. ``use`` revokes the call until the write has ended."""
        self._is_unused = True
        if not self._is_writing:
            self.end(_UNUSED)

    def use(self) -> None:
        """Keep the state in memory after the current write, because the group has members on this broker again."""
        self._is_unused = False

    async def _load(self) -> None:
        began = self._loop.time()
        try:
            stored = await self._read()
            start = await self._start_offset(stored)
            existing = before(stored.batches, self.partition.log.log_end_offset)
            is_behind = existing != stored.batches
            if is_behind:
                await self._store_again(stored, start)
            share = SharePartition(replace(stored, batches=existing), start, must_store_all=is_behind)
        except KafkaError as error:
            self.end(_for_client(error))
            return
        except Exception:
            self.end(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))
            raise
        if self.state is LeadingState.ENDED:
            return
        self._state_epoch = stored.state_epoch
        self.share = share
        self.state = step("share partition", STEPS, self.state, LeadingEvent.LOADED)
        self._metrics.load_time.observe(int((self._loop.time() - began) * 1_000_000))
        self._write_soon()
        self._share_fetches.notify(self)

    async def _read(self) -> ShareState:
        """Return the stored state. Retries if it does not exist: the group coordinator may still be initializing it."""
        for pause_s in INITIALIZED_PAUSES_S:
            try:
                return await self._persister.read(*self.key, self.leader_epoch)
            except KafkaError as error:
                if error.code is not ErrorCode.INVALID_REQUEST or self.state is LeadingState.ENDED:
                    raise
            await asyncio.sleep(pause_s)
        return await self._persister.read(*self.key, self.leader_epoch)

    async def _store_again(self, stored: ShareState, start: int) -> None:
        """Replace a stored state that contains records that the log lost in an unclean election or a crash.

        Other records will get the offsets of the lost ones, and must be delivered. An ordinary write could not undo the
        acknowledgements of the lost records.
        """
        facts = {"group": self.key.group_id, "topic": self.partition.topic, "partition": self.key.partition}
        _log.warning("share state is ahead of the log", extra={**facts, "log_end": self.partition.log.log_end_offset})
        await self._persister.initialize(*self.key, stored.state_epoch, start, self.leader_epoch)

    async def _start_offset(self, stored: ShareState) -> int:
        """Return the offset at which the group starts. A stored offset is clamped to the log, which may have lost its
        end in an unclean election."""
        log = self.partition.log
        if stored.start_offset != UNINITIALIZED_OFFSET:
            return min(max(stored.start_offset, log.log_start_offset), log.log_end_offset)
        reset = self.settings.offset_reset
        latest = max(log.high_watermark, min(self.partition.epoch_start_offset, log.log_end_offset))
        if reset == EARLIEST:
            return log.log_start_offset
        age = age_ms(reset)
        if age is None:
            return latest
        search = partial(log.offset_for_timestamp, self._wall_ms() - age)
        found = await self._loop.run_in_executor(self._threads.reads, search)
        return latest if found is None else min(found.offset, latest)

    # --- Acquisition ---

    def next_offset(self) -> int | None:
        """Return the first offset from which a member may acquire records, or None if none can be acquired now. Call
        this only if ``is_active``."""
        self.share.log_start_moved(self.partition.log.log_start_offset)
        return self.share.next_offset(self.settings.limits)

    def acquire(self, member: str, offset: int, batches: Sequence[LogBatch], wanted: Wanted) -> list[Acquired]:
        """Acquire records for a member from ``batches``, the batches of the log that follow ``offset``. Returns the
        acquired records; empty if none could be acquired. Call this only if ``is_active``."""
        settings = self.settings
        lock_s = settings.lock_duration_ms / 1000
        lock_until = self._loop.time() + lock_s
        acquired = self.share.acquire(member, offset, batches, wanted, settings.limits, lock_until)
        if acquired:
            self._metrics.acquired += sum(each.last - each.first + 1 for each in acquired)
            self._watch_locks(lock_s)
        self._write_soon()
        return acquired

    # --- Acknowledgement ---

    def acknowledge(self, member: str, batches: Sequence[AcknowledgementBatch]) -> asyncio.Future[None] | None:
        """Apply the acknowledgements of a member, all or none.

        Returns a future that completes when they are stored, and fails with a KafkaError if they cannot be stored.
        Returns None if there is nothing to store. Raises INVALID_RECORD_STATE or INVALID_REQUEST as
        ``SharePartition.acknowledge`` does, and then applies none. As in Kafka, a renewal also raises
        INVALID_RECORD_STATE if the group does not allow renewals.
        """
        settings = self.settings
        is_renewal = any(RENEW in each.types for each in batches)
        if is_renewal and not settings.may_renew:
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "The group does not allow members to renew locks.")
        lock_s = settings.lock_duration_ms / 1000
        must_store = self.share.acknowledge(member, batches, settings.limits, self._loop.time() + lock_s)
        if is_renewal:
            self._watch_locks(lock_s)  # the group's lock duration may have become shorter since the timer was set
        return self._stored() if must_store else None

    def release_member(self, member: str) -> asyncio.Future[None] | None:
        """Release the records of a member that leaves. Returns a future or None, as ``acknowledge`` does."""
        return self._stored() if self.share.release_member(member, self.settings.limits) else None

    # --- Locks ---

    def _watch_locks(self, within_s: float) -> None:
        """Schedule the next check for expired locks in ``within_s`` seconds at the latest."""
        at = self._loop.time() + within_s
        if self._lock_timer is not None:
            if self._lock_timer.when() <= at:
                return
            self._lock_timer.cancel()
        self._lock_timer = self._loop.call_at(at, self._end_locks)

    def _end_locks(self) -> None:
        self._lock_timer = None
        ended = self.share.end_locks(self._loop.time(), self.settings.limits)
        self._metrics.lock_timeouts += ended
        following = self.share.next_lock_end()
        if following is not None:
            self._watch_locks(following - self._loop.time())
        self._write_soon()
        if ended:
            self._share_fetches.notify(self)

    # --- Storing ---

    def _stored(self) -> asyncio.Future[None]:
        """Return a future that completes when the next write is stored, and fails with a KafkaError if that fails."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._awaiting.append(future)
        self._write_soon()
        return future

    def _write_soon(self) -> None:
        if self.share.has_changed and not self._is_writing and self.is_active:
            self._is_writing = True
            name = f"write of share partition {self.partition.topic}-{self.key.partition}"
            self._tasks.start(self._write_all(), name=name)

    async def _write_all(self) -> None:
        """Store all changes, including those that arrive in the meantime. After a failure, the next change or a timer
        retries."""
        try:
            while self.is_active and self.share.has_changed:
                if not await self._write() and not self._awaiting:
                    self._write_later()
                    break
        finally:
            self._is_writing = False
            if self._is_unused:
                self.end(_UNUSED)

    def _write_later(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
        if self.is_active:
            self._write_timer = self._loop.call_later(WRITE_AGAIN_S, self._write_soon)

    async def _write(self) -> bool:
        awaiting, self._awaiting = self._awaiting, []
        write = self.share.begin_write()
        error: KafkaError | None = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        try:
            await self._persister.write(
                *self.key,
                self.leader_epoch,
                self._state_epoch,
                write.start_offset,
                write.delivery_complete_count,
                write.batches,
            )
            error = None
        except KafkaError as refused:
            error = refused
        finally:  # even if the task is cancelled or fails unexpectedly
            self.share.end_write(write, is_stored=error is None)
            self._settle(awaiting, error)
        return error is None

    def _settle(self, awaiting: list[asyncio.Future[None]], error: KafkaError | None) -> None:
        if error is None:
            for future in awaiting:
                if not future.done():
                    future.set_result(None)
        else:
            facts = {"group": self.key.group_id, "topic": self.partition.topic, "partition": self.key.partition}
            reason = {"error": error.code.name, "reason": str(error)}
            _log.warning("share state could not be stored", extra={**facts, **reason})
            self._fail_awaiting(awaiting, _for_client(error))
            if error.code in _ENDING:
                self.end(_for_client(error))
                return
        following = self.share.next_lock_end()
        if following is not None and self.is_active:
            self._watch_locks(following - self._loop.time())
        self._share_fetches.notify(self)

    def _fail_awaiting(self, awaiting: list[asyncio.Future[None]], error: KafkaError) -> None:
        for future in awaiting:
            if not future.done():
                future.set_exception(error)
                future.exception()  # mark it as retrieved: a handler whose client has disconnected never retrieves it
        awaiting.clear()


def _for_client(error: KafkaError) -> KafkaError:
    return KafkaError(_FOR_CLIENTS.get(error.code, ErrorCode.UNKNOWN_SERVER_ERROR), str(error))
