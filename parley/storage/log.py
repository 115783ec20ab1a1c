"""The log of one partition: segments that are appended to at the end, truncated at both ends, and read anywhere.

Rules (docs/storage.md has them all):

1. ``log_start_offset <= high_watermark <= log_end_offset``; the last stable offset is at most the high watermark.
2. An append writes whole batches or nothing. Every disk failure is reported to ``on_io_error`` and raised as
   KAFKA_STORAGE_ERROR.
3. Only methods whose docstring says "Blocks" wait for the disk; call them in a thread.
4. Any thread may call any method. Changes take the lock; ``Log.read`` does not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch_header import BatchHeader, Buffer
from parley.protocol.uuids import UUID
from parley.storage import producer_recovery, recovery, retention
from parley.storage.append_checks import AppendInfo, Origin
from parley.storage.appending import append_as_follower, append_as_leader
from parley.storage.checkpoints import INT64_MAX
from parley.storage.compaction.compactor import MAP_BYTES, MAP_LOAD_FACTOR
from parley.storage.compaction.dirtiness import Dirtiness, measure
from parley.storage.compaction.segment_replacement import LogToCompact, SegmentReplacement
from parley.storage.compaction.tombstone_checkpoint import CHECKPOINT as TOMBSTONE_CHECKPOINT
from parley.storage.damage.appended_epochs import APPENDED_EPOCHS, AppendedEpochs
from parley.storage.damage.damaged_ranges import DamagedRange
from parley.storage.damage.mending import MendedLog, Mending
from parley.storage.damage.recorded_damage import RECORDED_DAMAGE, RecordedDamage
from parley.storage.index import MAX_RELATIVE_OFFSET
from parley.storage.last_batches import LastBatches, completed
from parley.storage.leader_epoch_cache import CHECKPOINT, LeaderEpochCache
from parley.storage.loaded_log import LastKnown, LoadedLog, LogState
from parley.storage.log_directory import FULL
from parley.storage.log_place import LogPlace, LogSettings
from parley.storage.log_reader import LogRead
from parley.storage.partition_metadata import write_partition_metadata
from parley.storage.producer_state import ProducerState
from parley.storage.readable_log import ReadableLog, ignore_damage
from parley.storage.segment import Segment
from parley.storage.segment_appends import takes
from parley.storage.timestamp_lookup import FoundRecord

__all__ = ["AppendInfo", "FoundRecord", "LastKnown", "Log", "LogRead", "Origin"]

_CLIENT = Origin.CLIENT  # an attribute of an enum costs more than a global


def needs_no_tombstones(now_s: float) -> int:
    """Return a value for ``tombstones_kept_from`` that lets compaction remove all expired tombstones, because no
    partition owns the log."""
    return INT64_MAX


class Log(ReadableLog):
    """A partition's log: an existing one from ``open``, or a ``NewLog``. ``config`` may be assigned at any time."""

    __slots__ = (
        "_compaction",
        "_is_half_changed",
        "_is_mending",
        "_led_epoch",
        "_removal_lock",
        "_shared",
        "cleaned_up_to",
        "tombstones_kept_from",
    )

    def __init__(self, place: LogPlace, settings: LogSettings, loaded: LoadedLog) -> None:
        super().__init__(place, settings, loaded)
        self.cleaned_up_to = loaded.cleaned_up_to
        """The offset up to which the log was last compacted; None if it never was. The checkpoint must not be higher:
        otherwise compaction could remove a tombstone but keep the records that the tombstone deletes."""
        self.tombstones_kept_from: Callable[[float], int] = needs_no_tombstones
        """Returns the offset at and after which a replica that is catching up needs the tombstones. The argument is the
        monotonic time in seconds. Assigned after ``open``."""
        self._removal_lock = threading.RLock()  # held while segments are removed; acquired before ``_lock``
        self._is_half_changed = False  # an append ended midway: only recovery can find out what it changed
        self._is_mending = False
        self._compaction: SegmentReplacement | None = None

    @classmethod
    def open(
        cls,
        place: LogPlace,
        settings: LogSettings,
        known: LastKnown = LastKnown(),  # noqa: B008 (a frozen value)
    ) -> Log:
        """Open the log in an existing directory; an empty directory becomes an empty log.

        ``known`` is the state that the previous process left: whether it shut down cleanly, and its checkpoints.
        Blocks; after a crash, until everything above the recovery point has been scanned. Raises ``OSError``.
        """
        directory = place.directory
        state = LogState(
            ProducerState(directory, expiration_ms=settings.producer_expiration_ms),
            LeaderEpochCache(directory / CHECKPOINT),
            AppendedEpochs.open(directory / APPENDED_EPOCHS, same_boot=known.same_boot),
            RecordedDamage.open(directory / RECORDED_DAMAGE),
        )
        now_ms = settings.now_ms()
        loaded = recovery.load(directory, settings.config, known, state, now_ms)
        log = cls(place, settings, loaded)
        if known.is_kafkas:  # from now on, segments may end early only below the recovery point
            log._durability.sync(
                directory, log.log_end_offset, log._segments.active, state.producers, state.epochs, now_ms
            )
        return log

    def identify(self, topic_id: UUID) -> None:
        """Set the id of the topic, which was unknown until now, in memory and in the directory. Blocks. Raises
        ``OSError``."""
        with self._lock:
            if self.is_written:
                write_partition_metadata(self.directory, topic_id, self.partition)
                self._durability.topic_id_written()
            self.topic_id = topic_id

    def _begin_files(self) -> None:
        """Create the directory and the files, unless they exist. The next flush makes their names durable."""
        if not self.is_written:
            if self.topic_id is not None:
                self._events.on_first_files(self.topic, self.partition, self.topic_id)
            self.directory.mkdir(exist_ok=True)
            if self.topic_id is not None:
                write_partition_metadata(self.directory, self.topic_id, self.partition)
            self._durability.directory_created()
            self._segments.begin_files(self.config, self._now_ms())
            self.is_written = True
            self._events.on_files()

    # --- Appending ---

    def append_as_leader(
        self,
        batches: bytearray | memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        header: BatchHeader | None = None,
        transaction_version: int = 0,
    ) -> AppendInfo:
        """Append whole, validated v2 batches at the log end, after setting their offsets and leader epoch.

        A batch of an idempotent producer must be the only batch. If the log already contains it, nothing is appended,
        and the result is that of the first append (``AppendInfo.duplicate``). ``header`` is the first batch's header,
        if the caller has parsed it. ``transaction_version`` applies to a marker. Appends nothing if it raises
        ``KafkaError``: MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, CORRUPT_MESSAGE, INVALID_RECORD, KAFKA_STORAGE_ERROR,
        and the errors of ``ProducerState.check_append`` and ``check_marker``.
        """
        return append_as_leader(
            self,
            batches,
            leader_epoch=leader_epoch,
            now_ms=now_ms,
            is_client=origin is _CLIENT,
            header=header,
            transaction_version=transaction_version,
        )

    def _recalls(self, error: KafkaError, header: BatchHeader) -> bool:
        """If the state of the rejected batch's producer is incomplete, read the producer's last batches from the log.
        Returns True if it was incomplete, so that the caller repeats the check."""
        if error.code != ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER or not self.producers.lacks_batches(header):
            return False
        with self._disk():
            producer_recovery.recall(self.segments, self.producers, header.producer_id)
        return True

    def append_as_follower(self, batches: Buffer) -> AppendInfo:
        """Append the batches of a leader's response to a fetch from ``log_end_offset``. Ignores an incomplete batch at
        the end.

        Appends batches of any magic unchanged. Raises ``KafkaError``: CORRUPT_MESSAGE (a wrong checksum, or offsets
        that do not increase from the log end), KAFKA_STORAGE_ERROR. If a response fills more than one segment, the
        segments before the failure have been appended.
        """
        return append_as_follower(self, batches, self._now_ms())

    def _segment_for(self, size: int, last_offset: int, latest_timestamp: int, now_ms: int) -> Segment:
        segments, config = self._segments, self.config
        if not segments.active.is_writable():
            self._begin_files()
            segments.active.reopen(config)
        if not takes(segments, size, last_offset, latest_timestamp, config, now_ms):
            self._roll(max(self.log_end_offset, last_offset - MAX_RELATIVE_OFFSET))
            segments.active.reopen(config)
        return segments.active

    # --- Segments ---

    def roll(self) -> None:
        """Start a new segment, unless the active one is empty. Raises ``KafkaError`` KAFKA_STORAGE_ERROR."""
        with self._lock, self._disk():
            if self._segments.active.size:
                self._roll(self.log_end_offset)

    def _roll(self, base_offset: int) -> None:
        self.producers.take_snapshot(self.log_end_offset, sync=False)
        self._segments.roll(base_offset, self.config, self._now_ms())

    def pass_old_segments(self, now_ms: int) -> int | None:
        """Advance the log start past the segments that retention no longer keeps (``parley.storage.retention``).

        Returns the end offset of these segments, or None if retention keeps all segments. The caller writes the
        checkpoint of log start offsets before it deletes the segments with ``delete_segments_below``: otherwise, after
        a crash, the first segments of the log would seem to be lost. Blocks. Raises ``KafkaError`` KAFKA_STORAGE_ERROR.
        """
        with self._disk():
            if not self._expired(now_ms):  # first without the lock, because it reads files; the results are cached
                return None
            with self._lock:
                if not (count := self._expired(now_ms)):
                    return None
                end = [*[segment.base_offset for segment in self.segments], self.log_end_offset][count]
                self._start_at(max(self.log_start_offset, end))
                return end

    def delete_segments_below(self, offset: int) -> list[Path]:
        """Delete the segments that end at or below ``offset``, which must not be above the log start offset.

        Returns their renamed files, to be removed after ``file.delete.delay.ms``. Blocks. Raises ``KafkaError``
        KAFKA_STORAGE_ERROR.
        """
        with self._removal_lock, self._disk(), self._lock:
            count = retention.ending_by(offset, self.segments, self.log_end_offset)
            if count == len(self.segments):
                self._roll(self.log_end_offset)
            self.producers.remove_snapshots_before(self.segments[count].base_offset)
            return self._segments.drop_first(count) if count else []

    def _expired(self, now_ms: int) -> int:
        return retention.expired(
            self.segments,
            self.config,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            high_watermark=self._high_watermark,
            now_ms=now_ms,
        )

    def advance_log_start(self, offset: int) -> int:
        """Delete the records below ``offset`` (DeleteRecords). Returns the new log start offset.

        Periodic maintenance deletes their segments later. The new log start offset is durable once the checkpoint of
        log start offsets is written. Raises ``KafkaError`` OFFSET_OUT_OF_RANGE if ``offset`` is above the high
        watermark.
        """
        with self._lock:
            if offset > self._high_watermark:
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset} is above the high watermark {self._high_watermark}"
                )
            self._start_at(max(self.log_start_offset, offset))
            return self.log_start_offset

    def _start_at(self, offset: int) -> None:
        self.log_start_offset = offset
        self._integrity.start_at(offset)
        self._high_watermark = max(self._high_watermark, offset)
        self.leader_epochs.truncate_from_start(offset)
        self.producers.on_log_start_advanced(offset)

    # --- Damage ---

    def mend(self, damaged: DamagedRange) -> Mending:
        """Start to mend a range of ``damage`` with batches of an intact replica. Only one range can be mended at a
        time. Blocks.

        Raises ``KafkaError``: OFFSET_OUT_OF_RANGE if the range is no longer in ``damage``; KAFKA_STORAGE_ERROR if the
        disk fails, or the log is closed, being mended or being compacted; CORRUPT_MESSAGE if the file of the damaged
        segment has become shorter.
        """
        with self._lock:
            self._dirty_from(damaged.first_offset)
            self._check_idle()
            found = self._integrity.locate(self.segments, damaged)
            if found is not None and found[0] is self._segments.active:
                self.roll()
            log = MendedLog(
                config=self.config,
                segments=self._segments,
                integrity=self._integrity,
                durability=self._durability,
                producers=self.producers,
                epochs=self.leader_epochs,
                appended_epochs=self._appended_epochs,
                tombstones_removed_up_to=self.tombstones_removed_up_to,
                lock=self._lock,
                removal_lock=self._removal_lock,
                now_ms=self._now_ms(),
                writing=self._rewrites,
                is_closed=lambda: self._closed,
                ended=self._mended,
            )
            self._is_mending = True
        return Mending(log, damaged, *(found or (None, None)))

    def _mended(self) -> None:
        self._is_mending = False

    def _check_idle(self) -> None:
        """Raise KAFKA_STORAGE_ERROR if the log is closed, being mended or being compacted."""
        if self._closed or self._is_mending or self._compaction is not None:
            state = "closed" if self._closed else "already being mended" if self._is_mending else "being compacted"
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self!r} is {state}")

    @contextmanager
    def _rewrites(self) -> Iterator[None]:
        """Report disk failures while segments are rewritten, like ``_disk``. A full disk only ends the mending or the
        compaction: the log stays online."""
        try:
            yield
        except OSError as error:
            if error.errno in FULL:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self!r} cannot be rewritten: {error}") from error
            raise self._failed(error) from error

    # --- Compaction ---

    def dirtiness(self, now_ms: int, *, if_flushed: bool = False) -> Dirtiness:
        """Measure how much of the log has not been compacted yet (``parley.storage.compaction.dirtiness``). Blocks.

        With ``if_flushed``, measures as if all sealed segments were flushed and the checkpoint written. Raises
        ``KafkaError`` KAFKA_STORAGE_ERROR.
        """
        with self._removal_lock, self._disk():
            first, limit = self._cleanable()
            if if_flushed:
                limit = self.last_stable_offset
            return measure(self.segments, self.config, first_dirty_offset=first, limit=limit, now_ms=now_ms)

    def _cleanable(self) -> tuple[int, int]:
        """Return the first dirty offset, and the offset up to which the log may be compacted (exclusive)."""
        cleaned, start = self.cleaned_up_to, self.log_start_offset
        if cleaned is None or not start <= cleaned <= self.log_end_offset:
            cleaned = start
        return cleaned, min(self.last_stable_offset, self._durability.checkpointed)

    def begin_compaction(
        self,
        dirtiness: Dirtiness,
        *,
        now_ms: int,
        map_bytes: int = MAP_BYTES,
        map_load_factor: float = MAP_LOAD_FACTOR,
        tombstones_kept_from: int = INT64_MAX,
    ) -> SegmentReplacement:
        """Start to compact the part that was just measured. The caller passes ``request`` and ``adopt`` of the result
        to ``compact``. ``map_bytes`` limits the offset map. Tombstones at or above the offset ``tombstones_kept_from``
        stay. Blocks.

        Raises ``KafkaError``: KAFKA_STORAGE_ERROR if the disk fails, or the log is closed, being mended or compacted,
        or was truncated or mended after it was measured; CORRUPT_MESSAGE if a segment to be compacted is damaged, or
        records between the segments are missing.
        """
        with self._removal_lock:
            last_batches = self._last_batches()
            with self._lock:
                self._check_idle()
                first, limit = self._cleanable()
                if dirtiness.first_dirty_offset > first or dirtiness.end_offset > max(first, limit):
                    raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self!r} was changed after it was measured")
                if any(damaged.first_offset < dirtiness.end_offset for damaged in self.damage):
                    raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{self!r} is damaged: heal it before compacting it")
                log = LogToCompact(
                    name=f"{self.topic}-{self.partition}",
                    config=self.config,
                    segments=self._segments,
                    producers=self.producers,
                    last_batches=last_batches,
                    lock=self._lock,
                    removal_lock=self._removal_lock,
                    now_ms=now_ms,
                    writing=self._rewrites,
                    tombstone_checkpoint=self._tombstone_checkpoint,
                    tombstones_kept_from=tombstones_kept_from,
                    is_closed=lambda: self._closed,
                    ended=self._compacted,
                )
                self._compaction = SegmentReplacement(
                    log, dirtiness, map_bytes=map_bytes, map_load_factor=map_load_factor
                )
                return self._compaction

    def _last_batches(self) -> dict[int, LastBatches]:
        """Return the last batches of each producer. Does not block appends, because a log may have very many producers.

        The caller holds the removal lock, so that no segment is removed meanwhile.
        """
        with self._lock:
            listed, segments = self.producers.frozen_batches(), () if self._closed else self.segments
        found = listed()
        if all(each.is_complete for each in found.values()):
            return found
        with self._rewrites():
            return completed(found, producer_recovery.headers_near_end(segments))

    def _compacted(self, cleaned_up_to: int | None) -> None:
        with self._lock:
            self._compaction = None
            if cleaned_up_to is not None:
                self.cleaned_up_to = cleaned_up_to

    def _dirty_from(self, offset: int) -> None:
        """Record that the records from ``offset`` on are dirty, and cancel a compaction in progress."""
        if self._compaction is not None:
            self._compaction.cancel()
        if self.cleaned_up_to is not None:
            self.cleaned_up_to = min(self.cleaned_up_to, offset)

    # --- Truncating ---

    def begin_leading(self, leader_epoch: int) -> None:
        """Record that this broker is now the leader and will append records of ``leader_epoch`` at the log end.

        Blocks only if tombstones may be missing above the log end, because this log is an incomplete copy of its
        leader's. Such a replica becomes leader only in an unclean election.
        """
        with self._lock:
            self.leader_epochs.begin(leader_epoch, self.log_end_offset)
        if self.tombstones_removed_up_to > self.log_end_offset:
            with suppress(KafkaError), self._removal_lock, self._disk():
                self._lower_tombstone_checkpoint(self.log_end_offset)

    def store_epoch(self, leader_epoch: int) -> None:
        """Record that the log contains all of its leader's records from before ``leader_epoch``, although it has no
        record of that epoch. Does nothing if it has one, or knows a later epoch.

        The epoch is then as durable as an acknowledged record: a file is written without a sync. Blocks only if every
        append is synced (``flush.messages=1``). Raises ``KafkaError`` KAFKA_STORAGE_ERROR.
        """
        with self._lock, self._disk():
            epochs = self.leader_epochs
            if epochs.latest_stored < leader_epoch >= (epochs.latest_epoch or 0):
                epochs.assign(leader_epoch, self.log_end_offset)
                try:
                    if self.is_written:
                        epochs.flush(sync=self.config.flush_messages == 1)
                except OSError:
                    epochs.remove_from(self.log_end_offset)  # the log must not show what the file lacks
                    raise

    def truncate_to(self, offset: int) -> None:
        """Remove everything from ``offset`` on, because the follower's log diverged from the leader's.

        A batch that starts before ``offset`` and contains it is also removed; the log then ends before that batch.
        Blocks. The recovery point moves back: the caller must write its checkpoint before the next append. Raises
        ``KafkaError`` KAFKA_STORAGE_ERROR, CORRUPT_MESSAGE.
        """
        with self._removal_lock, self._lock, self._disk():
            if offset >= self.log_end_offset:
                self.leader_epochs.truncate_from_end(offset)
                if not self.is_written:
                    return
            elif offset < self.segments[0].base_offset:
                self._restart_at(offset)
            else:
                self._cut(offset)
            self.leader_epochs.flush()

    def truncate_fully_and_start_at(self, offset: int, *, tombstones_removed_up_to: int = 0) -> None:
        """Remove all records; the log is then empty and starts at ``offset``. Otherwise like ``truncate_to``. Blocks.

        ``tombstones_removed_up_to`` is the value of the log that will be copied to this log.
        """
        with self._removal_lock, self._lock, self._disk():
            self._begin_files()
            self._restart_at(offset)
            self.leader_epochs.flush()
            self._tombstone_checkpoint.set(tombstones_removed_up_to)

    def _cut(self, offset: int) -> None:
        self._integrity.verify_around(self._segments.reader.view.from_offset(offset)[0], offset)
        self._dirty_from(offset)
        self._lower_tombstone_checkpoint(offset)
        self.log_end_offset = end = self._segments.cut(offset, self.config)
        self._dirty_from(end)  # below ``offset`` if a batch that contains it was removed
        self.log_start_offset = min(self.log_start_offset, end)
        self._high_watermark = min(self._high_watermark, end)
        self.leader_epochs.truncate_from_end(end)
        self._appended_epochs.truncate_from_end(end)
        self.producers.truncate(end)
        now_ms = self._now_ms()
        replay_from = self.producers.load(self.log_start_offset, end, now_ms)
        for segment in self._segments.reader.view.from_offset(replay_from):
            producer_recovery.replay(segment, replay_from, self.producers, now_ms)
        self._integrity.record()

    def _restart_at(self, offset: int) -> None:
        self._dirty_from(offset)
        self._lower_tombstone_checkpoint(0)
        self._segments.restart(offset, self.config, self._now_ms())
        self.log_start_offset = self.log_end_offset = self._high_watermark = offset
        self.leader_epochs.clear()
        self._appended_epochs.truncate_from_end(0)
        self.producers.truncate_fully(offset)
        self._integrity.record()

    def _lower_tombstone_checkpoint(self, offset: int) -> None:
        """Record that tombstones from ``offset`` on are no longer missing, because new records will follow there."""
        self._tombstone_checkpoint.set(min(self.tombstones_removed_up_to, offset))

    def expire_producers(self, now_ms: int) -> int:
        """Remove the producers that have not written for ``producer.id.expiration.ms``. Returns their number."""
        with self._lock:
            return self.producers.expire(now_ms)

    # --- Flushing and closing ---

    def checkpointed(self, recovery_point: int) -> None:
        """Record that the checkpoint contains ``recovery_point``, which was the log's recovery point when the
        checkpoint was written."""
        with self._lock:
            self._durability.written(recovery_point)

    def flush_due(self, now_ms: int) -> bool:
        """Return True if ``flush.messages`` or ``flush.ms`` requires a flush now. With ``flush.messages=1``, this is
        the case after each append."""
        return self._durability.due(self.log_end_offset, self.config, now_ms)

    def flush(self, up_to: int | None = None) -> None:
        """Sync everything below ``up_to`` (default: the log end) to disk and advance the recovery point to it.

        Blocks, but does not delay appends and reads. Raises ``KafkaError`` KAFKA_STORAGE_ERROR.
        """
        synced = not self.is_written
        while not synced:
            with self._lock:
                end = self.log_end_offset if up_to is None else min(up_to, self.log_end_offset)
                active = self._segments.active
            with self._disk():
                synced = self._durability.sync(
                    self.directory, end, active, self.producers, self.leader_epochs, self._now_ms()
                )

    def close(self) -> None:
        """Flush, write a producer snapshot, and trim and close the files, so that the next startup scans nothing.

        A log without changes since a clean shutdown is closed without a sync. Blocks. Idempotent. If this raises
        ``KafkaError`` KAFKA_STORAGE_ERROR, the log was not closed cleanly.
        """
        with self._lock:
            if self._is_half_changed:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self!r}: memory ran out in the middle of an append")
            if self._closed:
                return
            try:
                with self._disk():
                    if self.log_end_offset:
                        self.producers.take_snapshot(self.log_end_offset)
                    active = self._segments.active
                    if active.damage and active.damage[-1].end == active.size:
                        self._roll(self.log_end_offset)  # otherwise recovery would cut off the damage at the end
                        active = self._segments.active
                    if active.is_writable() or self._durability.has_changes:
                        active.trim(self.log_end_offset)
                        self._durability.sealed(active)
                    self.flush()
            finally:
                self.release()

    def release(self) -> None:
        """Close the files without flushing, for example after a disk failure. Idempotent."""
        with self._lock:
            self._closed = True
            self._segments.release()

    def has_directory(self) -> bool:
        """Return True if the log's directory exists. Blocks."""
        return self.directory.exists()

    def disown(self) -> None:
        """Stop calling the partition that owned the log, so that the log does not keep it in memory."""
        self.on_damage, self.tombstones_kept_from = ignore_damage, needs_no_tombstones

    def rest(self) -> None:
        """Close the files until they are needed again. Takes no lock: a read in progress keeps its files."""
        for segment in self.segments:
            segment.rest()

    def moved(self, directory: Path) -> None:
        """Record that the log's directory was renamed to ``directory``."""
        with self._lock:
            self.directory = self.producers.directory = directory
            self.leader_epochs.path = directory / CHECKPOINT
            self._appended_epochs.path = directory / APPENDED_EPOCHS
            self._integrity.recorded.path = directory / RECORDED_DAMAGE
            self._tombstone_checkpoint.path = directory / TOMBSTONE_CHECKPOINT
            self._segments.moved(directory)
