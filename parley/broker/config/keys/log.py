"""Where and how long records are stored on disk, and how logs are flushed and cleaned."""

from __future__ import annotations

from parley.broker.config.key_definition import (
    CLUSTER_WIDE,
    HIGH,
    LOW,
    MAX_DOUBLE,
    MAX_LONG,
    PER_BROKER,
    Keys,
    boolean,
    double,
    duration,
    integer,
    long,
    strings,
)
from parley.broker.config.keys.reasons import CLEANER_BUFFER, TIERED

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
SEGMENT_BYTES_MIN = 1 << 20
"""The minimum segment size of every topic, in bytes (KIP-1030): each segment costs open files and a scan when the
broker starts."""


class LogKeys(Keys, title="Logs"):
    """Where and how long records are stored on disk, and how logs are flushed and cleaned."""

    log_dir = strings(
        "log.dir",
        ("/tmp/kafka-logs",),
        "The directory for data. Used only if log.dirs is not set.",
        importance=HIGH,
    )
    log_dirs = strings(
        "log.dirs",
        None,
        "The directories for data, ideally one per disk. A new partition is placed in the directory with the fewest "
        "partitions. If a disk fails, this broker loses only the partitions on that disk. Defaults to log.dir.",
        importance=HIGH,
    )
    cordoned_log_dirs = strings(
        "cordoned.log.dirs",
        (),
        "Directories of log.dirs (or * for all) that accept no new partitions, so that a disk can be emptied before "
        "it is removed.",
        dynamic=PER_BROKER,
        since="4.3 (KIP-1066)",
        ignored="Every directory accepts new partitions.",
    )
    log_dir_failure_timeout_ms = long(
        "log.dir.failure.timeout.ms",
        30_000,
        "How long a broker with a failed directory tries to report it to the controller before it stops.",
        at_least=1,
        unit="ms",
        importance=LOW,
        since="3.8 (KIP-858)",
        ignored="A broker reports a failed directory until the controller responds; there is no time limit.",
    )
    num_recovery_threads_per_data_dir = integer(
        "num.recovery.threads.per.data.dir",
        2,
        "The number of threads per directory that check logs after an unclean shutdown. Raise it on fast disks "
        "for a faster start. At most 64 for all directories together, even if the value is higher. While brokers run, "
        "one change may at most double or halve it.",
        at_least=1,
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
    )
    num_replica_alter_log_dirs_threads = integer(
        "num.replica.alter.log.dirs.threads",
        None,
        "The number of partitions that move between the directories of this broker at a time. Defaults to the number "
        "of directories.",
        importance=HIGH,
        since="1.1 (KIP-113)",
    )
    log_segment_bytes = integer(
        "log.segment.bytes",
        1_073_741_824,
        "The maximum size of a segment. When the active segment reaches it, a new one is rolled. Records are "
        "deleted and compacted by whole segments.",
        at_least=SEGMENT_BYTES_MIN,
        unit="bytes",
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
    )
    log_roll_ms = duration(
        "log.roll.ms",
        "The maximum age of the active segment, by the timestamps of its records, before a new one is rolled. This "
        "makes old records deletable even if few new ones arrive. Defaults to log.roll.hours.",
        at_least=1,
        unit="ms",
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
        or_else=(("log.roll.hours", HOUR_MS),),
    )
    log_roll_hours = integer(
        "log.roll.hours",
        168,
        "log.roll.ms in hours. Used only if log.roll.ms is not set.",
        at_least=1,
        unit="h",
        importance=HIGH,
    )
    log_roll_jitter_ms = duration(
        "log.roll.jitter.ms",
        "The maximum random time subtracted from log.roll.ms, so that partitions do not all roll segments at the "
        "same time. Defaults to log.roll.jitter.hours.",
        at_least=0,
        unit="ms",
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
        or_else=(("log.roll.jitter.hours", HOUR_MS),),
    )
    log_roll_jitter_hours = integer(
        "log.roll.jitter.hours",
        0,
        "log.roll.jitter.ms in hours. Used only if log.roll.jitter.ms is not set.",
        at_least=0,
        unit="h",
        importance=HIGH,
    )
    log_retention_ms = duration(
        "log.retention.ms",
        "How long records are kept: a segment is deleted when its newest record is older. -1 means forever. Defaults "
        "to log.retention.minutes, then log.retention.hours.",
        at_least=-1,
        unit="ms",
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
        or_else=(("log.retention.minutes", MINUTE_MS), ("log.retention.hours", HOUR_MS)),
    )
    log_retention_minutes = integer(
        "log.retention.minutes",
        None,
        "log.retention.ms in minutes. Used only if log.retention.ms is not set.",
        at_least=-1,
        unit="min",
        importance=HIGH,
    )
    log_retention_hours = integer(
        "log.retention.hours",
        168,
        "log.retention.ms in hours. Used only if neither log.retention.ms nor log.retention.minutes is set.",
        at_least=-1,
        unit="h",
        importance=HIGH,
    )
    log_retention_bytes = long(
        "log.retention.bytes",
        -1,
        "The maximum size of a partition. When it is exceeded, the oldest segments are deleted. -1 means no limit. "
        "The limit applies to each replica of each partition, so disks need a multiple of this size.",
        at_least=-1,
        unit="bytes",
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
    )
    log_retention_check_interval_ms = long(
        "log.retention.check.interval.ms",
        300_000,
        "How often the broker looks for segments to delete.",
        at_least=1,
        unit="ms",
    )
    log_cleanup_policy = strings(
        "log.cleanup.policy",
        ("delete",),
        "How old records are removed: delete removes them by age and size, compact keeps only the newest record for "
        "each key. Both can be combined.",
        allowed=("compact", "delete"),
        dynamic=CLUSTER_WIDE,
    )
    log_cut_retention_bytes = long(
        "log.cut.retention.bytes",
        1 << 30,
        "The number of bytes of committed records that a replica keeps in .cut files after it had to remove them "
        "from its log to match its leader's log. The oldest files are removed first. 0 keeps none.",
        at_least=0,
        unit="bytes",
        dynamic=CLUSTER_WIDE,
    )
    log_segment_delete_delay_ms = long(
        "log.segment.delete.delay.ms",
        60_000,
        "How long a deleted segment stays on disk under another name, for requests that still read it.",
        at_least=0,
        unit="ms",
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
    )
    log_index_size_max_bytes = integer(
        "log.index.size.max.bytes",
        10_485_760,
        "The maximum size of a segment's index. When it is full, a new segment is rolled. The default is "
        "sufficient unless log.index.interval.bytes is small.",
        at_least=4,
        unit="bytes",
        dynamic=CLUSTER_WIDE,
    )
    log_index_interval_bytes = integer(
        "log.index.interval.bytes",
        4_096,
        "The approximate number of bytes of records between two index entries. A smaller interval finds offsets "
        "with less reading and makes indexes larger.",
        at_least=0,
        unit="bytes",
        dynamic=CLUSTER_WIDE,
    )
    log_preallocate = boolean(
        "log.preallocate",
        False,
        "Whether the file of a new segment is preallocated at its full size. This is useful on file systems that "
        "handle growing files badly.",
        dynamic=CLUSTER_WIDE,
    )
    log_flush_interval_messages = long(
        "log.flush.interval.messages",
        MAX_LONG,
        "The number of records that can be written to a partition before it is flushed to disk. By default the "
        "operating system decides when to flush, and replication keeps records safe.",
        at_least=1,
        unit="records",
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
    )
    log_flush_interval_ms = duration(
        "log.flush.interval.ms",
        "How long a record can stay unflushed. Defaults to log.flush.scheduler.interval.ms.",
        at_least=0,
        unit="ms",
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
        or_else=(("log.flush.scheduler.interval.ms", 1),),
    )
    log_flush_scheduler_interval_ms = long(
        "log.flush.scheduler.interval.ms",
        MAX_LONG,
        "How often the broker checks which partitions are due to be flushed.",
        at_least=1,
        unit="ms",
        importance=HIGH,
    )
    log_flush_offset_checkpoint_interval_ms = integer(
        "log.flush.offset.checkpoint.interval.ms",
        60_000,
        "How often the broker checkpoints the flushed offset of each log. After an unclean shutdown, only the "
        "records after this offset must be checked.",
        at_least=0,
        unit="ms",
        importance=HIGH,
    )
    log_flush_start_offset_checkpoint_interval_ms = integer(
        "log.flush.start.offset.checkpoint.interval.ms",
        60_000,
        "How often the broker checkpoints the log start offsets that DeleteRecords has changed.",
        at_least=0,
        unit="ms",
        importance=HIGH,
        since="0.11.0 (KIP-107)",
    )
    log_scrub_interval_ms = long(
        "log.scrub.interval.ms",
        7 * 24 * HOUR_MS,
        "How often all data is read and verified again, to find damaged records that no client has read.",
        at_least=1,
        unit="ms",
        dynamic=CLUSTER_WIDE,
        since="",
    )
    log_scrub_max_bytes_per_second = long(
        "log.scrub.max.bytes.per.second",
        16 << 20,
        "The maximum rate at which data is read again, for each log directory. If it is too low, the data is "
        "verified less often than log.scrub.interval.ms requires.",
        at_least=1,
        unit="bytes/s",
        dynamic=CLUSTER_WIDE,
        since="",
    )
    log_initial_task_delay_ms = long(
        "log.initial.task.delay.ms",
        30_000,
        "The delay after the start of the broker before retention, flushing and checkpoints begin.",
        at_least=0,
        unit="ms",
        importance=LOW,
        since="3.8",
        ignored="Retention, flushing and checkpoints run for the first time after one of their intervals.",
    )
    log_local_retention_bytes = long(
        "log.local.retention.bytes",
        -2,
        "The maximum size of the part of a partition that stays on the broker's own disks.",
        at_least=-2,
        unit="bytes",
        dynamic=CLUSTER_WIDE,
        since="3.6 (KIP-405)",
        ignored=TIERED,
    )
    log_local_retention_ms = long(
        "log.local.retention.ms",
        -2,
        "How long records stay on the broker's own disks.",
        at_least=-2,
        unit="ms",
        dynamic=CLUSTER_WIDE,
        since="3.6 (KIP-405)",
        ignored=TIERED,
    )
    log_cleaner_enable = boolean(
        "log.cleaner.enable",
        True,
        "Whether log compaction runs. Without compaction, partitions with cleanup.policy=compact grow without bound, "
        "including those of committed offsets.",
    )
    log_cleaner_threads = integer(
        "log.cleaner.threads",
        1,
        "The number of partitions that are compacted at a time, each in a separate low-priority process. At most 16, "
        "even if the value is higher. 0 disables compaction.",
        at_least=0,
        dynamic=CLUSTER_WIDE,
    )
    log_cleaner_dedupe_buffer_size = long(
        "log.cleaner.dedupe.buffer.size",
        134_217_728,
        "The memory for the table of the newest offset of each key, shared by all cleaner threads, with more than 1 "
        "MiB per thread. With more memory, a larger part of a log is compacted at a time.",
        at_least=1,
        unit="bytes",
        dynamic=CLUSTER_WIDE,
    )
    log_cleaner_io_buffer_size = integer(
        "log.cleaner.io.buffer.size",
        524_288,
        "The memory for reading and writing, shared by all cleaner threads.",
        at_least=0,
        unit="bytes",
        dynamic=CLUSTER_WIDE,
        ignored=CLEANER_BUFFER,
    )
    log_cleaner_io_buffer_load_factor = double(
        "log.cleaner.io.buffer.load.factor",
        0.9,
        "How full the table of keys can get, from 0 to 1. A fuller table holds more keys at a time, but has more "
        "collisions. If the table is full, the log is compacted in several runs.",
        at_least=0.01,
        at_most=1,
        dynamic=CLUSTER_WIDE,
    )
    log_cleaner_io_max_bytes_per_second = double(
        "log.cleaner.io.max.bytes.per.second",
        MAX_DOUBLE,
        "The maximum rate at which the cleaner reads and writes, all threads together.",
        at_least=1,
        unit="bytes/s",
        dynamic=CLUSTER_WIDE,
    )
    log_cleaner_backoff_ms = long(
        "log.cleaner.backoff.ms",
        15_000,
        "How long the cleaner sleeps if no partition needs compaction.",
        at_least=0,
        unit="ms",
        dynamic=CLUSTER_WIDE,
    )
    log_cleaner_min_cleanable_ratio = double(
        "log.cleaner.min.cleanable.ratio",
        0.5,
        "The proportion of a log, from 0 to 1, that must be new before the log is compacted again. A lower value "
        "wastes less space and costs more work.",
        at_least=0,
        at_most=1,
        dynamic=CLUSTER_WIDE,
    )
    log_cleaner_min_compaction_lag_ms = long(
        "log.cleaner.min.compaction.lag.ms",
        0,
        "The minimum time that every record stays in a compacted log, for consumers that must see each value.",
        at_least=0,
        unit="ms",
        dynamic=CLUSTER_WIDE,
        since="0.10.1 (KIP-58)",
    )
    log_cleaner_max_compaction_lag_ms = long(
        "log.cleaner.max.compaction.lag.ms",
        MAX_LONG,
        "The time after which a record must be compacted, however few records are new.",
        at_least=1,
        unit="ms",
        dynamic=CLUSTER_WIDE,
        since="2.3 (KIP-354)",
    )
    log_cleaner_delete_retention_ms = long(
        "log.cleaner.delete.retention.ms",
        86_400_000,
        "How long tombstones stay in a compacted log. A consumer that starts at offset 0 must finish within this "
        "time to see every deletion.",
        at_least=0,
        unit="ms",
        dynamic=CLUSTER_WIDE,
    )
