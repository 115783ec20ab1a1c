"""A share partition at the leader of its partition: what it stores, its locks, and the fetches that wait for it.

The states::

    LOADING   the state is being read; fetches wait
    ACTIVE    members acquire and acknowledge records
    ENDED     this broker no longer leads the partition in this epoch, or the state could not be read or was replaced
              (final): the next fetch begins again with what is stored

Writes do not overlap. While the share coordinator stores one, further acknowledgements collect for the next, so a busy
share partition writes large batches. One timer serves all locks.
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
from parley.broker.coordinators.share_state.share_partition import SharePartitionKey
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
    """What the leader does with a share partition."""

    LOADING = 0
    ACTIVE = 1
    ENDED = 2


class LeadingEvent(IntEnum):
    """What happens to a share partition at its leader."""

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
"""The errors of members for those of the share coordinator; UNKNOWN_SERVER_ERROR for all others."""

_ENDING: Final = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.FENCED_STATE_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.INVALID_REQUEST,  # the state was deleted, with the group or by DeleteShareGroupOffsets
    }
)
"""The errors after which what is in memory no longer holds."""

WRITE_AGAIN_S: Final = 10.0
"""The pause before a write that failed is tried again. The persister has tried it several times by then."""

_MOVED: Final = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "This broker no longer leads the share partition.")
_UNUSED: Final = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "The share group has no members at this broker.")


class LedSharePartition:
    """A share partition at the leader of its partition. A key of the purgatory of share fetches."""

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
        """``on_ended`` is called when the share partition must be loaded again."""
        self.key = key
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.state = LeadingState.LOADING
        self.error: KafkaError = _MOVED
        """Why it has ended."""
        self.share: SharePartition
        """What the group has acquired; from ACTIVE on."""
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
        """The present settings of the group."""
        return self._settings_of(self.key.group_id)

    def on_change(self, key: Hashable, amount: int) -> None:
        """Note a change of the partition (as a ``Subscriber`` of the purgatory of fetches)."""
        if not self.partition.is_leader or self.partition.leader_epoch != self.leader_epoch:
            self.end(_MOVED)
        elif self.is_active:
            self._share_fetches.notify(self, amount)

    def end(self, error: KafkaError) -> None:
        """Drop what is in memory. Acknowledgements that are not stored, and waiting fetches, get ``error``."""
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
        """Drop what is in memory, because the group has no members here: at once, or after the last write."""
        self._is_unused = True
        if not self._is_writing:
            self.end(_UNUSED)

    def use(self) -> None:
        """Keep what is in memory: the group has members here."""
        self._is_unused = False

    async def _load(self) -> None:
        began = self._loop.time()
        try:
            stored = await self._persister.read(*self.key, self.leader_epoch)
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

    async def _store_again(self, stored: ShareState, start: int) -> None:
        """Replace the state: it has records that the log has lost, in an unclean election or a crash.

        Records that get their offsets now are others, and must be delivered. A write could not take back that the lost
        ones were acknowledged.
        """
        facts = {"group": self.key.group_id, "topic": self.partition.topic, "partition": self.key.partition}
        _log.warning("share state is ahead of the log", extra={**facts, "log_end": self.partition.log.log_end_offset})
        await self._persister.initialize(*self.key, stored.state_epoch, start, self.leader_epoch)

    async def _start_offset(self, stored: ShareState) -> int:
        """Return where the group begins. An offset behind the log, after an unclean election, is moved to its end."""
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
        """Return the first offset with a record that a member may acquire; None if there can be none now."""
        self.share.log_start_moved(self.partition.log.log_start_offset)
        return self.share.next_offset(self.settings.limits)

    def acquire(self, member: str, offset: int, batches: Sequence[LogBatch], wanted: Wanted) -> list[Acquired]:
        """Acquire records for a member, out of the ``batches`` that the log has from ``offset`` on."""
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
        """Take the acknowledgements of a member. Returns a future of their storing; None if nothing is stored.

        Raises INVALID_RECORD_STATE or INVALID_REQUEST as ``SharePartition.acknowledge`` does, and then takes none.
        """
        settings = self.settings
        lock_s = settings.lock_duration_ms / 1000
        must_store = self.share.acknowledge(member, batches, settings.limits, self._loop.time() + lock_s)
        if any(RENEW in each.types for each in batches):
            self._watch_locks(lock_s)  # the group may have got a shorter duration since the timer was set
        return self._stored() if must_store else None

    def release_member(self, member: str) -> asyncio.Future[None] | None:
        """Release the records of a member that leaves. Returns as ``acknowledge`` does."""
        return self._stored() if self.share.release_member(member, self.settings.limits) else None

    # --- Locks ---

    def _watch_locks(self, within_s: float) -> None:
        """See to it that locks are looked at in ``within_s`` at the latest."""
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
        """Return a future of the next write."""
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
        """Store all changes, and those that come meanwhile. After a failure the next change tries again, or a timer."""
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
        finally:  # also if the task is cancelled, or fails unexpectedly
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
            _log.warning("share state not stored", extra={**facts, "error": error.code.name, "reason": str(error)})
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
                future.exception()  # a client that has disconnected does not ask for it
        awaiting.clear()


def _for_client(error: KafkaError) -> KafkaError:
    return KafkaError(_FOR_CLIENTS.get(error.code, ErrorCode.UNKNOWN_SERVER_ERROR), str(error))
