"""Where records are kept on disk, for how long, and how they are flushed and cleaned."""

from __future__ import annotations

from parley.broker.config.definition import (
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
from parley.broker.config.keys.reasons import COMPACTION, NOT_COMPACTED, TIERED

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
SEGMENT_BYTES_MIN = 1 << 20
"""Of every topic (KIP-1030): each segment costs open files and a scan at the start."""


class LogKeys(Keys, title="Logs"):
    """Where records are kept on disk, for how long, and how they are flushed and cleaned."""

    log_dir = strings(
        "log.dir",
        ("/tmp/kafka-logs",),
        "The directory for data where log.dirs is not given.",
        importance=HIGH,
    )
    log_dirs = strings(
        "log.dirs",
        None,
        "The directories for data, best one per disk. A new partition goes where the fewest are; when a disk "
        "fails only its partitions are lost to this broker. By default log.dir.",
        importance=HIGH,
    )
    cordoned_log_dirs = strings(
        "cordoned.log.dirs",
        (),
        "Directories of log.dirs (or * for all) that take no new partitions, to empty a disk before it is removed.",
        dynamic=PER_BROKER,
        since="4.3 (KIP-1066)",
        ignored="Every directory takes new partitions in this release.",
    )
    log_dir_failure_timeout_ms = long(
        "log.dir.failure.timeout.ms",
        30_000,
        "How long a broker whose directory has failed tries to tell the controller before it stops, so that "
        "the partitions in it get other leaders.",
        at_least=1,
        unit="ms",
        importance=LOW,
        since="3.8 (KIP-858)",
        ignored="A broker that lost a directory reports it until the controller responds; there is no time limit.",
    )
    num_recovery_threads_per_data_dir = integer(
        "num.recovery.threads.per.data.dir",
        2,
        "Threads per directory that check logs after an unclean stop. Raise it on fast disks to start sooner.",
        at_least=1,
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
    )
    num_replica_alter_log_dirs_threads = integer(
        "num.replica.alter.log.dirs.threads",
        None,
        "How many partitions are moved between the directories of this broker at a time; by default as many as there "
        "are directories.",
        importance=HIGH,
        since="1.1 (KIP-113)",
    )
    log_segment_bytes = integer(
        "log.segment.bytes",
        1_073_741_824,
        "When the file that is written has this size, the next is begun. Records are deleted, and compacted, "
        "by whole files.",
        at_least=SEGMENT_BYTES_MIN,
        unit="bytes",
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
    )
    log_roll_ms = duration(
        "log.roll.ms",
        "When the file that is written is this old, by its records' timestamps, the next is begun, so that "
        "old records can be deleted though few come. By default log.roll.hours.",
        at_least=1,
        unit="ms",
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
        or_else=(("log.roll.hours", HOUR_MS),),
    )
    log_roll_hours = integer(
        "log.roll.hours",
        168,
        "log.roll.ms in hours, used where that is not given.",
        at_least=1,
        unit="h",
        importance=HIGH,
    )
    log_roll_jitter_ms = duration(
        "log.roll.jitter.ms",
        "Up to this much less than log.roll.ms is taken, at random, so that not every partition begins a file "
        "at one moment. By default log.roll.jitter.hours.",
        at_least=0,
        unit="ms",
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
        or_else=(("log.roll.jitter.hours", HOUR_MS),),
    )
    log_roll_jitter_hours = integer(
        "log.roll.jitter.hours",
        0,
        "log.roll.jitter.ms in hours, used where that is not given.",
        at_least=0,
        unit="h",
        importance=HIGH,
    )
    log_retention_ms = duration(
        "log.retention.ms",
        "How long records are kept: a file is deleted when its newest record is older. -1: for ever. By "
        "default log.retention.minutes, then log.retention.hours.",
        at_least=-1,
        unit="ms",
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
        or_else=(("log.retention.minutes", MINUTE_MS), ("log.retention.hours", HOUR_MS)),
    )
    log_retention_minutes = integer(
        "log.retention.minutes",
        None,
        "log.retention.ms in minutes, used where that is not given.",
        at_least=-1,
        unit="min",
        importance=HIGH,
    )
    log_retention_hours = integer(
        "log.retention.hours",
        168,
        "log.retention.ms in hours, used where neither that nor log.retention.minutes is given.",
        at_least=-1,
        unit="h",
        importance=HIGH,
    )
    log_retention_bytes = long(
        "log.retention.bytes",
        -1,
        "The size a partition may have; when it is larger its oldest files are deleted. -1: any. It counts "
        "per partition and replica: times their number it is what the disks need.",
        at_least=-1,
        unit="bytes",
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
    )
    log_retention_check_interval_ms = long(
        "log.retention.check.interval.ms",
        300_000,
        "How often partitions are looked over for files to delete.",
        at_least=1,
        unit="ms",
    )
    log_cleanup_policy = strings(
        "log.cleanup.policy",
        ("delete",),
        "What becomes of old records: delete drops them by age and size, compact keeps the newest of each "
        "key, both do both.",
        allowed=("compact", "delete"),
        ignored_values={"compact": NOT_COMPACTED},
        dynamic=CLUSTER_WIDE,
    )
    log_segment_delete_delay_ms = long(
        "log.segment.delete.delay.ms",
        60_000,
        "How long a deleted file stays on disk, renamed, for those still reading it.",
        at_least=0,
        unit="ms",
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
    )
    log_index_size_max_bytes = integer(
        "log.index.size.max.bytes",
        10_485_760,
        "The size of a segment's index; when it is full the next segment is begun. Enough as it is unless "
        "log.index.interval.bytes is made small.",
        at_least=4,
        unit="bytes",
        dynamic=CLUSTER_WIDE,
    )
    log_index_interval_bytes = integer(
        "log.index.interval.bytes",
        4_096,
        "About every how many bytes of records the index has an entry. Less finds an offset with less "
        "reading, and makes larger indexes.",
        at_least=0,
        unit="bytes",
        dynamic=CLUSTER_WIDE,
    )
    log_preallocate = boolean(
        "log.preallocate",
        False,
        "Whether a new segment's file takes its whole size at once. Useful on file systems that grow files badly.",
        dynamic=CLUSTER_WIDE,
    )
    log_flush_interval_messages = long(
        "log.flush.interval.messages",
        MAX_LONG,
        "How many records may be written to a partition before it is flushed to the disk. By default the "
        "operating system decides, and replicas keep records safe.",
        at_least=1,
        unit="records",
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
    )
    log_flush_interval_ms = duration(
        "log.flush.interval.ms",
        "How long a record may be unflushed. By default log.flush.scheduler.interval.ms.",
        at_least=0,
        unit="ms",
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
        or_else=(("log.flush.scheduler.interval.ms", 1),),
    )
    log_flush_scheduler_interval_ms = long(
        "log.flush.scheduler.interval.ms",
        MAX_LONG,
        "How often it is looked whether a partition has to be flushed by time.",
        at_least=1,
        unit="ms",
        importance=HIGH,
    )
    log_flush_offset_checkpoint_interval_ms = integer(
        "log.flush.offset.checkpoint.interval.ms",
        60_000,
        "How often it is noted up to where each log is flushed; only what is later has to be checked after an "
        "unclean stop.",
        at_least=0,
        unit="ms",
        importance=HIGH,
    )
    log_flush_start_offset_checkpoint_interval_ms = integer(
        "log.flush.start.offset.checkpoint.interval.ms",
        60_000,
        "How often it is noted where each log begins after records were deleted by request.",
        at_least=0,
        unit="ms",
        importance=HIGH,
        since="0.11.0 (KIP-107)",
    )
    log_initial_task_delay_ms = long(
        "log.initial.task.delay.ms",
        30_000,
        "How long after the start retention, flushing and checkpoints begin.",
        at_least=0,
        unit="ms",
        importance=LOW,
        since="3.8",
        ignored="Retention, flushing and checkpoints first come after one of their intervals.",
    )
    log_local_retention_bytes = long(
        "log.local.retention.bytes",
        -2,
        "What part of a partition stays on the broker's own disks.",
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
        "Whether compaction runs. Without it partitions with cleanup.policy=compact, the committed offsets "
        "among them, grow without bound.",
        ignored=COMPACTION,
    )
    log_cleaner_threads = integer(
        "log.cleaner.threads",
        1,
        "How many partitions are compacted at a time.",
        at_least=0,
        dynamic=CLUSTER_WIDE,
        ignored=COMPACTION,
    )
    log_cleaner_dedupe_buffer_size = long(
        "log.cleaner.dedupe.buffer.size",
        134_217_728,
        "Memory for the newest offsets of keys, shared by all cleaner threads. More compacts a larger part of "
        "a log at once.",
        at_least=1,
        unit="bytes",
        dynamic=CLUSTER_WIDE,
        ignored=COMPACTION,
    )
    log_cleaner_io_buffer_size = integer(
        "log.cleaner.io.buffer.size",
        524_288,
        "Memory for reading and writing, shared by all cleaner threads.",
        at_least=0,
        unit="bytes",
        dynamic=CLUSTER_WIDE,
        ignored=COMPACTION,
    )
    log_cleaner_io_buffer_load_factor = double(
        "log.cleaner.io.buffer.load.factor",
        0.9,
        "How full the table of keys may be, from 0 to 1. Fuller takes more keys at once with more collisions.",
        dynamic=CLUSTER_WIDE,
        ignored=COMPACTION,
    )
    log_cleaner_io_max_bytes_per_second = double(
        "log.cleaner.io.max.bytes.per.second",
        MAX_DOUBLE,
        "How much the cleaner reads and writes in a second at most.",
        unit="bytes/s",
        dynamic=CLUSTER_WIDE,
        ignored=COMPACTION,
    )
    log_cleaner_backoff_ms = long(
        "log.cleaner.backoff.ms",
        15_000,
        "How long the cleaner sleeps when no partition needs it.",
        at_least=0,
        unit="ms",
        dynamic=CLUSTER_WIDE,
        ignored=COMPACTION,
    )
    log_cleaner_min_cleanable_ratio = double(
        "log.cleaner.min.cleanable.ratio",
        0.5,
        "What part of a log has to be new, from 0 to 1, before it is compacted again. Lower wastes less space "
        "and works more.",
        at_least=0,
        at_most=1,
        dynamic=CLUSTER_WIDE,
        ignored=COMPACTION,
    )
    log_cleaner_min_compaction_lag_ms = long(
        "log.cleaner.min.compaction.lag.ms",
        0,
        "How long every record stays in a compacted log, for readers that have to see each value.",
        at_least=0,
        unit="ms",
        dynamic=CLUSTER_WIDE,
        since="0.10.1 (KIP-58)",
        ignored=COMPACTION,
    )
    log_cleaner_max_compaction_lag_ms = long(
        "log.cleaner.max.compaction.lag.ms",
        MAX_LONG,
        "When a record has to be compacted at the latest, however little is new.",
        at_least=1,
        unit="ms",
        dynamic=CLUSTER_WIDE,
        since="2.3 (KIP-354)",
        ignored=COMPACTION,
    )
    log_cleaner_delete_retention_ms = long(
        "log.cleaner.delete.retention.ms",
        86_400_000,
        "How long the mark that a key was deleted stays in a compacted log. A reader that begins at offset 0 "
        "has to finish within it to learn of every deletion.",
        at_least=0,
        unit="ms",
        dynamic=CLUSTER_WIDE,
        ignored=COMPACTION,
    )
