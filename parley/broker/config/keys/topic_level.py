"""The keys of topics, and the broker's keys that contain their defaults."""

from __future__ import annotations

from parley.broker.config.key_definition import LOW, MAX_LONG, Keys, boolean, double, integer, long, string, strings
from parley.broker.config.keys.log import SEGMENT_BYTES_MIN
from parley.broker.config.keys.reasons import DOWN_CONVERSION, FORMAT, TIERED
from parley.broker.config.keys.topic_defaults import RECOVERY_STRATEGIES, RECOVERY_STRATEGY_DOC


def _throttled_replica(text: str) -> bool:
    partition, _, broker = text.partition(":")
    return text == "*" or (partition.isdecimal() and broker.isdecimal())


class TopicKeys(Keys, title="Topics"):
    """The keys of topics, and the broker's keys that contain their defaults."""

    cleanup_policy = strings(
        "cleanup.policy",
        ("delete",),
        "How old records are removed: delete removes them by age and size, compact keeps only the newest record for "
        "each key, and compact,delete does both. An empty value keeps all records.",
        allowed=("compact", "delete"),
        server="log.cleanup.policy",
    )
    compression_type = string(
        "compression.type",
        "producer",
        "The compression of records in the log: producer keeps the producer's choice, uncompressed removes "
        "compression, and the name of a codec recompresses every batch.",
        allowed=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        server="compression.type",
    )
    compression_gzip_level = integer(
        "compression.gzip.level",
        -1,
        "The level for compression.type=gzip, from 1 (fastest) to 9 (smallest); -1 is the codec's default.",
        special_values=(-1,),
        at_least=1,
        at_most=9,
        since="3.8 (KIP-390)",
        server="compression.gzip.level",
    )
    compression_lz4_level = integer(
        "compression.lz4.level",
        9,
        "The level for compression.type=lz4, from 1 (fastest) to 17 (smallest).",
        at_least=1,
        at_most=17,
        since="3.8 (KIP-390)",
        server="compression.lz4.level",
    )
    compression_zstd_level = integer(
        "compression.zstd.level",
        3,
        "The level for compression.type=zstd. 22 gives the smallest batches; lower levels, which can be negative, "
        "are faster.",
        at_least=-131_072,
        at_most=22,
        since="3.8 (KIP-390)",
        server="compression.zstd.level",
    )
    delete_retention_ms = long(
        "delete.retention.ms",
        86_400_000,
        "How long tombstones stay in a compacted topic.",
        at_least=0,
        unit="ms",
        server="log.cleaner.delete.retention.ms",
    )
    file_delete_delay_ms = long(
        "file.delete.delay.ms",
        60_000,
        "How long a deleted segment stays on disk under another name, for requests that still read it.",
        at_least=0,
        unit="ms",
        server="log.segment.delete.delay.ms",
    )
    flush_messages = long(
        "flush.messages",
        MAX_LONG,
        "The number of records that can be written to a partition before it is flushed to disk. By default the "
        "operating system decides when to flush, and replication keeps records safe.",
        at_least=1,
        unit="records",
        server="log.flush.interval.messages",
    )
    flush_ms = long(
        "flush.ms",
        MAX_LONG,
        "How long a record can stay unflushed.",
        at_least=0,
        unit="ms",
        server="log.flush.interval.ms",
    )
    follower_replication_throttled_replicas = strings(
        "follower.replication.throttled.replicas",
        (),
        "The followers whose fetches are throttled to follower.replication.throttled.rate, as partition:broker "
        "separated by commas, or * for all.",
        check=_throttled_replica,
        form="partition:broker pairs separated by commas, or *",
        since="0.10.1 (KIP-73)",
    )
    leader_replication_throttled_replicas = strings(
        "leader.replication.throttled.replicas",
        (),
        "The replicas to which the leader sends records at a rate of at most leader.replication.throttled.rate, as "
        "partition:broker separated by commas, or * for all.",
        check=_throttled_replica,
        form="partition:broker pairs separated by commas, or *",
        since="0.10.1 (KIP-73)",
    )
    index_interval_bytes = integer(
        "index.interval.bytes",
        4_096,
        "The approximate number of bytes of records between two index entries.",
        at_least=0,
        unit="bytes",
        server="log.index.interval.bytes",
    )
    local_retention_bytes = long(
        "local.retention.bytes",
        -2,
        "The maximum size of the part of a partition that stays on the broker's own disks; -2 means retention.bytes.",
        at_least=-2,
        unit="bytes",
        since="3.0 (KIP-405)",
        ignored=TIERED,
        server="log.local.retention.bytes",
    )
    local_retention_ms = long(
        "local.retention.ms",
        -2,
        "How long records stay on the broker's own disks; -2 means retention.ms.",
        at_least=-2,
        unit="ms",
        since="3.0 (KIP-405)",
        ignored=TIERED,
        server="log.local.retention.ms",
    )
    max_compaction_lag_ms = long(
        "max.compaction.lag.ms",
        MAX_LONG,
        "The time after which a record must be compacted, however few records are new.",
        at_least=1,
        unit="ms",
        since="2.3 (KIP-354)",
        server="log.cleaner.max.compaction.lag.ms",
    )
    max_message_bytes = integer(
        "max.message.bytes",
        1_048_588,
        "The maximum size of a batch of records, after compression by the producer.",
        at_least=0,
        unit="bytes",
        server="message.max.bytes",
    )
    message_downconversion_enable = boolean(
        "message.downconversion.enable",
        True,
        "Whether batches are converted for old consumers that cannot read them; otherwise their fetches fail.",
        importance=LOW,
        since="2.0 (KIP-283)",
        server="log.message.downconversion.enable",
        ignored=DOWN_CONVERSION,
    )
    message_format_version = string(
        "message.format.version",
        "3.0-IV1",
        "The message format of stored records, as the Kafka version that introduced it.",
        since="0.10.0",
        ignored=FORMAT,
        server="log.message.format.version",
    )
    message_timestamp_type = string(
        "message.timestamp.type",
        "CreateTime",
        "The timestamp of records: CreateTime keeps the producer's timestamp, LogAppendTime replaces it with "
        "the time of the broker's clock.",
        allowed=("CreateTime", "LogAppendTime"),
        since="0.10.0 (KIP-32)",
        server="log.message.timestamp.type",
    )
    message_timestamp_before_max_ms = long(
        "message.timestamp.before.max.ms",
        MAX_LONG,
        "How far behind the broker's clock the timestamp of a record can be; older records are rejected. Only for "
        "CreateTime.",
        at_least=0,
        unit="ms",
        since="3.6 (KIP-937)",
        server="log.message.timestamp.before.max.ms",
    )
    message_timestamp_after_max_ms = long(
        "message.timestamp.after.max.ms",
        3_600_000,
        "How far ahead of the broker's clock the timestamp of a record can be; later records are rejected. Only "
        "for CreateTime.",
        at_least=0,
        unit="ms",
        since="3.6 (KIP-937)",
        server="log.message.timestamp.after.max.ms",
    )
    message_timestamp_difference_max_ms = long(
        "message.timestamp.difference.max.ms",
        MAX_LONG,
        "Sets both message.timestamp.before.max.ms and message.timestamp.after.max.ms, which were one key before "
        "Kafka 3.6. Used for each of the two keys that is not set itself.",
        at_least=0,
        unit="ms",
        since="0.10.0 (KIP-32)",
        deprecated="message.timestamp.before.max.ms, message.timestamp.after.max.ms",
        server="log.message.timestamp.difference.max.ms",
    )
    min_cleanable_dirty_ratio = double(
        "min.cleanable.dirty.ratio",
        0.5,
        "The proportion of a compacted log, from 0 to 1, that must be new before the log is compacted again.",
        at_least=0,
        at_most=1,
        server="log.cleaner.min.cleanable.ratio",
    )
    min_compaction_lag_ms = long(
        "min.compaction.lag.ms",
        0,
        "The minimum time that every record stays in a compacted log, for consumers that must see each value.",
        at_least=0,
        unit="ms",
        since="0.10.1 (KIP-58)",
        server="log.cleaner.min.compaction.lag.ms",
    )
    min_insync_replicas = integer(
        "min.insync.replicas",
        1,
        "The minimum number of in-sync replicas, including the leader, for a partition to accept records with "
        "acks=all. With 3 replicas, a value of 2 preserves every acknowledged record if one broker is lost.",
        at_least=1,
        server="min.insync.replicas",
    )
    preallocate = boolean(
        "preallocate",
        False,
        "Whether the file of a new segment is preallocated at its full size.",
        server="log.preallocate",
    )
    remote_storage_enable = boolean(
        "remote.storage.enable",
        False,
        "Whether old segments move to tiered storage.",
        since="3.0 (KIP-405)",
        ignored=TIERED,
    )
    remote_log_copy_disable = boolean(
        "remote.log.copy.disable",
        False,
        "Whether no further segments are copied to tiered storage.",
        since="3.9 (KIP-950)",
        ignored=TIERED,
    )
    remote_log_delete_on_disable = boolean(
        "remote.log.delete.on.disable",
        False,
        "Whether the segments in tiered storage are deleted when remote.storage.enable is turned off.",
        since="3.9 (KIP-950)",
        ignored=TIERED,
    )
    retention_bytes = long(
        "retention.bytes",
        -1,
        "The maximum size of a partition. When it is exceeded, the oldest segments are deleted. -1 means no limit.",
        at_least=-1,
        unit="bytes",
        server="log.retention.bytes",
    )
    retention_ms = long(
        "retention.ms",
        604_800_000,
        "How long records are kept: a segment is deleted when its newest record is older. -1 means forever.",
        at_least=-1,
        unit="ms",
        server="log.retention.ms",
    )
    segment_bytes = integer(
        "segment.bytes",
        1_073_741_824,
        "The maximum size of a segment. When the active segment reaches it, a new one is rolled. Records are "
        "deleted and compacted by whole segments.",
        at_least=SEGMENT_BYTES_MIN,
        unit="bytes",
        server="log.segment.bytes",
    )
    segment_index_bytes = integer(
        "segment.index.bytes",
        10_485_760,
        "The maximum size of a segment's index. When it is full, a new segment is rolled.",
        at_least=4,
        unit="bytes",
        server="log.index.size.max.bytes",
    )
    segment_jitter_ms = long(
        "segment.jitter.ms",
        0,
        "The maximum random time subtracted from segment.ms, so that partitions do not all roll segments at the "
        "same time.",
        at_least=0,
        unit="ms",
        server="log.roll.jitter.ms",
    )
    segment_ms = long(
        "segment.ms",
        604_800_000,
        "The maximum age of the active segment, by the timestamps of its records, before a new one is rolled. This "
        "makes old records deletable even if few new ones arrive.",
        at_least=1,
        unit="ms",
        server="log.roll.ms",
    )
    unclean_leader_election_enable = boolean(
        "unclean.leader.election.enable",
        False,
        "Whether a replica outside the ISR and the ELR can become leader if none of these is alive. The partition is "
        "available again, but acknowledged records can be lost. Equivalent to unclean.recovery.strategy=Aggressive.",
        server="unclean.leader.election.enable",
    )
    unclean_recovery_strategy = string(
        "unclean.recovery.strategy",
        "Balanced",
        RECOVERY_STRATEGY_DOC,
        allowed=RECOVERY_STRATEGIES,
        server="unclean.recovery.strategy",
        since="",
    )
