"""Metrics of logs, their directories, damage, compaction and flushes."""

from __future__ import annotations

from parley.broker.metrics.instruments import Histogram, Instruments, counter, gauge, seconds_histogram

_LOG = "kafka.log:type=Log,name={},topic=*,partition=*"
_CLEANER = "kafka.log:type=LogCleaner,name={}"
_CLEANER_MANAGER = "kafka.log:type=LogCleanerManager,name={}"


class LogMetrics(Instruments, title="Logs", labels=("topic", "partition")):
    """The log of one partition on this broker."""

    size_bytes: int = gauge("parley_log_size_bytes", "Bytes of all segments.", _LOG.format("Size"))
    segments: int = gauge("parley_log_segments", "Segments.", _LOG.format("NumLogSegments"))
    log_start_offset: int = gauge("parley_log_start_offset", "Log start offset.", _LOG.format("LogStartOffset"))
    log_end_offset: int = gauge("parley_log_end_offset", "Log end offset.", _LOG.format("LogEndOffset"))


class LogDirectoryMetrics(Instruments, title="Log directories", labels=("directory",)):
    """A data directory."""

    offline: int = gauge(
        "parley_log_directory_offline",
        "1 if the directory has failed.",
        "kafka.log:type=LogManager,name=LogDirectoryOffline,logDirectory=*",
    )
    total_bytes: int = gauge(
        "parley_log_directory_total_bytes", "Size of the volume that contains the directory; -1 if unknown."
    )
    free_bytes: int = gauge(
        "parley_log_directory_free_bytes",
        "Bytes that the broker can still write there, as of the previous scrape; -1 if unknown.",
    )
    stray_logs: int = gauge(
        "parley_log_directory_stray_logs",
        "Logs in the directory that belong to no topic of the cluster (`-stray`), as of the previous scrape.",
    )


class DamageMetrics(Instruments, title="Damaged records"):
    """Damaged and missing records in the logs of this broker."""

    damaged_partitions: int = gauge("parley_damaged_partitions", "Hosted replicas with damaged records.")
    ranges: int = gauge("parley_damaged_ranges", "Ranges of damaged records that have not been replaced yet.")
    ranges_without_copy: int = gauge(
        "parley_damaged_ranges_without_copy",
        "Ranges of damaged records of which no live replica has an intact copy: fetches of them return "
        "CORRUPT_MESSAGE.",
    )
    healed_ranges: int = counter(
        "parley_damage_healed_ranges", "Ranges of damaged records replaced from another replica."
    )
    healed_bytes: int = counter("parley_damage_healed_bytes", "Bytes of records fetched to replace damaged ones.")
    handed_over: int = counter(
        "parley_damage_handed_over_leaderships", "Leaderships resigned because the leader's log was damaged."
    )
    scrubbed_bytes: int = counter("parley_scrubbed_bytes", "Bytes read again by the scrubber.")
    overdue_bytes: int = gauge(
        "parley_scrub_overdue_bytes",
        "Bytes that the scrubber has not read within log.scrub.interval.ms.",
    )


class CleanerMetrics(Instruments, title="Log cleaner"):
    """The compaction of logs with ``cleanup.policy=compact``. Each log is one partition on this broker."""

    running: int = gauge("parley_cleaner_running", "Logs being compacted; the limit is log.cleaner.threads.")
    max_dirty_percent: float = gauge(
        "parley_cleaner_max_dirty_percent",
        "The proportion of the dirtiest log that compaction had not processed yet when the cleaner last checked.",
        _CLEANER_MANAGER.format("max-dirty-percent"),
    )
    since_last_look_seconds: float = gauge(
        "parley_cleaner_since_last_look_seconds",
        "Time since the cleaner last checked for logs to compact.",
        _CLEANER_MANAGER.format("time-since-last-run-ms"),
    )
    recopy_percent: float = gauge(
        "parley_cleaner_recopy_percent",
        "The proportion of the data read that the last compactions kept.",
        _CLEANER.format("cleaner-recopy-percent"),
    )
    map_utilization_percent: float = gauge(
        "parley_cleaner_max_buffer_utilization_percent",
        "How full the table of keys became in the last compactions. If it is full, a log needs several runs: see "
        "log.cleaner.dedupe.buffer.size.",
        _CLEANER.format("max-buffer-utilization-percent"),
    )
    max_run_seconds: float = gauge(
        "parley_cleaner_max_clean_seconds",
        "Duration of the longest of the last compactions.",
        _CLEANER.format("max-clean-time-secs"),
    )
    max_delay_seconds: float = gauge(
        "parley_cleaner_max_compaction_delay_seconds",
        "By how much the oldest record of the last compactions exceeded max.compaction.lag.ms.",
        _CLEANER.format("max-compaction-delay-secs"),
    )
    runs: int = counter("parley_cleaner_runs", "Compactions that succeeded.")
    failures: int = counter("parley_cleaner_failures", "Compactions that failed.")
    dead_workers: int = counter(
        "parley_cleaner_dead_workers",
        "Worker processes of the cleaner that ended unexpectedly. They are replaced.",
        _CLEANER.format("DeadThreadCount"),
    )
    bytes_read: int = counter("parley_cleaner_read_bytes", "Bytes of compacted logs before their compaction.")
    bytes_kept: int = counter("parley_cleaner_kept_bytes", "Bytes of compacted logs after their compaction.")
    records_read: int = counter("parley_cleaner_read_records", "Records in compacted logs before their compaction.")
    records_kept: int = counter("parley_cleaner_kept_records", "Records in compacted logs after their compaction.")


class UncleanableMetrics(Instruments, title="Uncleanable logs", labels=("directory",)):
    """The logs in a data directory that cannot be compacted, because their compaction failed or they contain damaged
    records."""

    partitions: int = gauge(
        "parley_uncleanable_partitions",
        "Logs that cannot be compacted.",
        _CLEANER_MANAGER.format("uncleanable-partitions-count,logDirectory=*"),
    )
    size_bytes: int = gauge(
        "parley_uncleanable_bytes",
        "Bytes of logs that cannot be compacted.",
        _CLEANER_MANAGER.format("uncleanable-bytes,logDirectory=*"),
    )


class FlushMetrics(Instruments, title="Flushes"):
    """Flushes of logs to disk."""

    flushes: Histogram = seconds_histogram(
        "parley_log_flush_seconds",
        "Duration of flushes of logs to disk.",
        "kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs",
    )
