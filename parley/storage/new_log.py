"""A log that was created but not used yet: its state before the first append.

Most partitions are rarely used, and a topic may have thousands. A new log therefore has no files, and keeps only its
names, its configuration and the epoch of its leader in memory. ``NewLog`` itself implements the operations whose
results are clear for an empty log. All others need the parts of a log (segments, producers, epochs, locks): the first
use of a part creates all parts and turns the object itself into a plain ``Log``.

Rules:

1. A ``NewLog`` has no records and no files. Its offsets are 0, and it knows at most one leader epoch, which starts at
   offset 0. A later epoch replaces it, as in a ``LeaderEpochCache``.
2. What must survive a restart is in ``unwritten-log-checkpoint`` (``parley.storage.unwritten_logs``), not here.
3. Creating the parts touches no file; the first append creates the files. A plain ``Log`` never becomes new again.
4. Any thread may call any method. Another thread may create the parts while a method of this class runs, so a method
   that changes something checks the class again under the lock: the object may already be a plain ``Log``.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.sentinels import NO_EPOCH
from parley.protocol.topic_partition import TopicPartition
from parley.protocol.uuids import UUID
from parley.storage.damage.appended_epochs import APPENDED_EPOCHS, AppendedEpochs
from parley.storage.damage.damaged_ranges import DamagedRange
from parley.storage.damage.recorded_damage import RECORDED_DAMAGE, RecordedDamage
from parley.storage.leader_epoch_cache import CHECKPOINT, LeaderEpochCache
from parley.storage.loaded_log import LogState, unwritten
from parley.storage.log import Log
from parley.storage.log_directory import partition_name
from parley.storage.log_place import LogPlace, SharedByLogs
from parley.storage.log_reader import LogRead
from parley.storage.producer_state import ProducerState

_MAKING = threading.RLock()
"""Held while the parts of a log are created, and while a method checks whether they exist. Never held while waiting for
a disk."""


class NewLog(Log):
    """A new, empty log without parts and without files."""

    __slots__ = ()

    def __init__(self, key: TopicPartition, topic_id: UUID | None, shared: SharedByLogs) -> None:
        self.topic, self.partition = key
        self.topic_id = topic_id
        self.config = shared.settings.config
        self.log_start_offset = self.log_end_offset = 0
        self.is_written = self._closed = False
        self.cleaned_up_to = None
        self.disown()
        self._led_epoch = NO_EPOCH
        self._shared = shared

    if not TYPE_CHECKING:  # hidden from type checkers, so that they report attributes that no log has

        def __getattr__(self, name: str) -> Any:
            """Create the parts, because Python did not find an attribute that belongs to one of them."""
            with _MAKING:
                if type(self) is NewLog:
                    self._make_parts()
            return getattr(self, name)

    def _make_parts(self) -> None:
        """Become a plain log. Touches no file."""
        shared = self._shared
        settings = replace(shared.settings, config=self.config)
        directory = shared.root / partition_name(self.topic, self.partition)
        producers = ProducerState(directory, expiration_ms=settings.producer_expiration_ms, is_new=True)
        epochs = LeaderEpochCache(directory / CHECKPOINT, is_new=True)
        epochs.begin(self._led_epoch, 0)
        appended = AppendedEpochs(directory / APPENDED_EPOCHS)
        damage = RecordedDamage(directory / RECORDED_DAMAGE)
        state = LogState(producers, epochs, appended, damage)
        empty = unwritten(directory, state, settings.now_ms())
        place = LogPlace(directory, self.topic, self.partition, self.topic_id, shared.events)
        on_damage, kept_from, is_closed = self.on_damage, self.tombstones_kept_from, self._closed
        Log.__init__(self, place, settings, empty)
        self.on_damage, self.tombstones_kept_from, self._closed = on_damage, kept_from, is_closed
        self.__class__ = Log  # type: ignore[assignment]  # mypy does not support objects that change their class

    # --- The state of an empty log ---

    @property
    def size_bytes(self) -> int:
        return 0

    @property
    def recovery_point(self) -> int:
        return 0

    @property
    def removals(self) -> int:
        return 0

    @property
    def tombstones_removed_up_to(self) -> int:
        return 0

    @property
    def damage(self) -> tuple[DamagedRange, ...]:
        return ()

    @property
    def latest_epoch(self) -> int | None:
        return None if self._led_epoch == NO_EPOCH else self._led_epoch

    @property
    def stored_epoch(self) -> int:
        return NO_EPOCH

    @property
    def epochs_at_end(self) -> tuple[int, int]:
        return NO_EPOCH, NO_EPOCH

    @property
    def high_watermark(self) -> int:
        return 0

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        pass  # it stays 0, between the log start and the log end

    @property
    def last_stable_offset(self) -> int:
        return 0

    def read(
        self, offset: int, max_bytes: int, *, up_to: int, min_one_batch: bool = True, nowait: bool = False
    ) -> LogRead:
        if self._closed:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self!r} is closed")
        if offset:
            raise self._outside(offset)
        return LogRead(offset, offset, -1, None, 0, 0, self._failed)

    def begin_leading(self, leader_epoch: int) -> None:
        with _MAKING:
            if type(self) is NewLog:
                self._led_epoch = leader_epoch
                return
        Log.begin_leading(self, leader_epoch)  # ``super()`` needs a ``NewLog``, which this is no longer

    # --- Closing ---

    def close(self) -> None:
        if not _closed_without_parts(self):
            Log.close(self)

    def release(self) -> None:
        if not _closed_without_parts(self):
            Log.release(self)

    def has_directory(self) -> bool:
        return (self._shared.root / partition_name(self.topic, self.partition)).exists()

    def rest(self) -> None:
        pass  # there are no files to close


def _closed_without_parts(log: Log) -> bool:
    """Close a log without parts and return True. Returns False if its parts exist. After a close, an append that
    creates the parts is rejected."""
    with _MAKING:
        if type(log) is not NewLog:
            return False
        log._closed = True
        return True
