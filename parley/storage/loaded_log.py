"""The state of a log when it is opened: what is known before (``LastKnown``), its parts other than the
segments (``LogState``), and the result of recovery (``LoadedLog``)."""

from __future__ import annotations

from pathlib import Path

from parley.light_dataclasses import dataclass
from parley.protocol.sentinels import NO_EPOCH
from parley.storage.damage.appended_epochs import AppendedEpochs
from parley.storage.damage.damaged_ranges import DamagedRange
from parley.storage.damage.recorded_damage import RecordedDamage
from parley.storage.damage.verified_files import Versions
from parley.storage.leader_epoch_cache import LeaderEpochCache
from parley.storage.producer_state import ProducerState
from parley.storage.segment import Segment


@dataclass(frozen=True, slots=True)
class LastKnown:
    """The facts about a log that are known before it is opened: whether the previous process shut down cleanly, and its
    checkpoints."""

    clean: bool = False
    recovery_point: int = 0
    log_start_offset: int = 0
    knows_log_start: bool = False
    """True if ``log_start_offset`` is known from a checkpoint or from the leader epochs. In that case, if the first
    segment starts above it, segments are missing."""
    same_boot: bool = False
    """True if the machine has not restarted since the previous process ran. No write was lost then, so bad or missing
    batches are damage."""
    cleaned_up_to: int | None = None
    """The offset up to which the log was last compacted; None if it never was."""
    highest_leader_epoch: int = NO_EPOCH
    """The highest leader epoch of any partition that the broker knows. NO_EPOCH if the data directories do not contain
    it, as with directories of Apache Kafka: then no leader epoch counts as altered."""
    is_kafkas: bool = False
    """True if only Apache Kafka has used the log directory. In that case, any segment may end early."""
    verified: Versions | None = None
    """The files of the log that need no verification if they have not changed since; None if there are none."""

    def unflushed(self, end_offset: int) -> bool:
        """Return True if the last shutdown was not clean and the segment that ends at ``end_offset`` was not synced."""
        return not self.clean and end_offset > self.recovery_point

    def in_doubt(self, end_offset: int) -> bool:
        """Return True if a crash of the machine may have lost any part of the segment that ends at ``end_offset``."""
        return self.unflushed(end_offset) and not self.same_boot


@dataclass(frozen=True, slots=True)
class LogState:
    """The state of a log apart from its segments. Recovery updates it to the log end."""

    producers: ProducerState
    epochs: LeaderEpochCache
    appended_epochs: AppendedEpochs
    recorded_damage: RecordedDamage


@dataclass(frozen=True, slots=True)
class LoadedLog:
    """A log after recovery; its last segment is the active one."""

    segments: tuple[Segment, ...]
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    state: LogState
    missing: tuple[DamagedRange, ...]
    """The ranges, between segments or before the first one, whose batches are in no file."""
    cleaned_up_to: int | None
    """The offset up to which the log was last compacted; None if it never was."""
    is_on_disk: bool
    """True if the log is unchanged since a clean shutdown, and therefore on disk."""
    is_written: bool = True
    """False if the log has no files yet (``parley.storage.unwritten_logs``)."""


def unwritten(directory: Path, state: LogState, now_ms: int) -> LoadedLog:
    """Return a new, empty log. Touches no file."""
    segments = (Segment.unwritten(directory, now_ms),)
    return LoadedLog(segments, 0, 0, 0, state, (), None, False, is_written=False)
