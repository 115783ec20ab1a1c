"""The settings of one log: Kafka's topic configuration, in Kafka's units, with Kafka's defaults.

Sizes are in bytes, times in milliseconds; -1 means "no limit" if a limit can be disabled. The broker creates one value
per topic from the broker's configuration and the topic's overrides, and assigns a new value to a running log when they
change. A log reads it for each decision, so a change takes effect at the next roll, flush or compaction.
"""

from __future__ import annotations

from typing import Final

from parley.light_dataclasses import dataclass

DAY_MS: Final = 86_400_000
UNLIMITED: Final = -1
NEVER: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The settings of one partition's log. Attribute names are Kafka's topic configuration keys with underscores."""

    # When the active segment is sealed and a new one is started.
    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * DAY_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    preallocate: bool = False

    # Retention.
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    retention_bytes: int = UNLIMITED
    retention_ms: int = 7 * DAY_MS
    file_delete_delay_ms: int = 60_000

    # Compaction.
    delete_retention_ms: int = DAY_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = NEVER
    min_cleanable_dirty_ratio: float = 0.5

    # When the log is flushed to disk, in addition to each roll.
    flush_messages: int = NEVER
    flush_ms: int = NEVER

    # What may be appended.
    max_message_bytes: int = (1 << 20) + 12
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = NEVER
    message_timestamp_after_max_ms: int = 3_600_000
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3

    # Replication.
    min_insync_replicas: int = 1
    unclean_leader_election_enable: bool = False

    def roll_ms(self) -> int:
        """Return how long a segment takes appends, in milliseconds. In a compacted log, this is at most the time that
        its records may stay dirty (KIP-354)."""
        is_compacted = (
            "compact" in self.cleanup_policy
        )  # not ``compact``: a property is slower, and each append calls this
        return min(self.segment_ms, self.max_compaction_lag_ms) if is_compacted else self.segment_ms

    @property
    def delete(self) -> bool:
        """True if old segments are deleted by age and size."""
        return "delete" in self.cleanup_policy

    @property
    def compact(self) -> bool:
        """True if only the last value of each key is kept."""
        return "compact" in self.cleanup_policy
