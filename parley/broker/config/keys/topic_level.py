"""The keys a topic may have, and the broker's keys they take their defaults from."""

from __future__ import annotations

from parley.broker.config.definition import LOW, MAX_LONG, Keys, boolean, double, integer, long, string, strings
from parley.broker.config.keys.log import SEGMENT_BYTES_MIN
from parley.broker.config.keys.reasons import COMPACTION, DOWN_CONVERSION, FORMAT, NOT_COMPACTED, TIERED


def _throttled_replica(text: str) -> bool:
    partition, _, broker = text.partition(":")
    return text == "*" or (partition.isdecimal() and broker.isdecimal())


class TopicKeys(Keys, title="Topics"):
    """The keys a topic may have, and the broker's keys they take their defaults from."""

    cleanup_policy = strings(
        "cleanup.policy",
        ("delete",),
        "What becomes of old records: delete drops them by age and size, compact keeps the newest of each "
        "key, compact,delete does both. Empty keeps everything.",
        allowed=("compact", "delete"),
        ignored_values={"compact": NOT_COMPACTED},
        server="log.cleanup.policy",
    )
    compression_type = string(
        "compression.type",
        "producer",
        "What records are compressed with in the log: producer keeps what the producer chose, uncompressed "
        "removes it, a codec's name recompresses whatever comes.",
        allowed=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        server="compression.type",
    )
    compression_gzip_level = integer(
        "compression.gzip.level",
        -1,
        "The level for compression.type=gzip: 1 fast to 9 small, -1 the codec's own default.",
        besides=(-1,),
        at_least=1,
        at_most=9,
        since="3.8 (KIP-390)",
        server="compression.gzip.level",
    )
    compression_lz4_level = integer(
        "compression.lz4.level",
        9,
        "The level for compression.type=lz4: 1 fast to 17 small.",
        at_least=1,
        at_most=17,
        since="3.8 (KIP-390)",
        server="compression.lz4.level",
    )
    compression_zstd_level = integer(
        "compression.zstd.level",
        3,
        "The level for compression.type=zstd: 22 is smallest; the lower (also below zero) the faster.",
        at_least=-131_072,
        at_most=22,
        since="3.8 (KIP-390)",
        server="compression.zstd.level",
    )
    delete_retention_ms = long(
        "delete.retention.ms",
        86_400_000,
        "In a compacted topic, how long the mark that a key was deleted stays.",
        at_least=0,
        unit="ms",
        ignored=COMPACTION,
        server="log.cleaner.delete.retention.ms",
    )
    file_delete_delay_ms = long(
        "file.delete.delay.ms",
        60_000,
        "How long a deleted file stays on disk, renamed, for those still reading it.",
        at_least=0,
        unit="ms",
        server="log.segment.delete.delay.ms",
    )
    flush_messages = long(
        "flush.messages",
        MAX_LONG,
        "How many records may be written to a partition before it is flushed to the disk. By default the "
        "operating system decides, and replicas keep records safe.",
        at_least=1,
        unit="records",
        server="log.flush.interval.messages",
    )
    flush_ms = long(
        "flush.ms",
        MAX_LONG,
        "How long a record may be unflushed.",
        at_least=0,
        unit="ms",
        server="log.flush.interval.ms",
    )
    follower_replication_throttled_replicas = strings(
        "follower.replication.throttled.replicas",
        (),
        "The followers that fetch no faster than follower.replication.throttled.rate, as partition:broker "
        "separated by commas, or * for all.",
        check=_throttled_replica,
        form="partition:broker pairs separated by commas, or *",
        since="0.10.1 (KIP-73)",
    )
    leader_replication_throttled_replicas = strings(
        "leader.replication.throttled.replicas",
        (),
        "The replicas whose leader sends to them no faster than leader.replication.throttled.rate, as "
        "partition:broker separated by commas, or * for all.",
        check=_throttled_replica,
        form="partition:broker pairs separated by commas, or *",
        since="0.10.1 (KIP-73)",
    )
    index_interval_bytes = integer(
        "index.interval.bytes",
        4_096,
        "About every how many bytes of records the index has an entry.",
        at_least=0,
        unit="bytes",
        server="log.index.interval.bytes",
    )
    local_retention_bytes = long(
        "local.retention.bytes",
        -2,
        "What part of a partition stays on the broker's own disks; -2: retention.bytes.",
        at_least=-2,
        unit="bytes",
        since="3.0 (KIP-405)",
        ignored=TIERED,
        server="log.local.retention.bytes",
    )
    local_retention_ms = long(
        "local.retention.ms",
        -2,
        "How long records stay on the broker's own disks; -2: retention.ms.",
        at_least=-2,
        unit="ms",
        since="3.0 (KIP-405)",
        ignored=TIERED,
        server="log.local.retention.ms",
    )
    max_compaction_lag_ms = long(
        "max.compaction.lag.ms",
        MAX_LONG,
        "When a record has to be compacted at the latest, however little is new.",
        at_least=1,
        unit="ms",
        since="2.3 (KIP-354)",
        ignored=COMPACTION,
        server="log.cleaner.max.compaction.lag.ms",
    )
    max_message_bytes = integer(
        "max.message.bytes",
        1_048_588,
        "The longest batch of records a producer may send, as compressed by it.",
        at_least=0,
        unit="bytes",
        server="message.max.bytes",
    )
    message_downconversion_enable = boolean(
        "message.downconversion.enable",
        True,
        "Whether batches are converted for consumers so old that they cannot read them; if not, their fetches fail.",
        importance=LOW,
        since="2.0 (KIP-283)",
        server="log.message.downconversion.enable",
        ignored=DOWN_CONVERSION,
    )
    message_format_version = string(
        "message.format.version",
        "3.0-IV1",
        "The format records are stored in, by the Kafka version that brought it.",
        since="0.10.0",
        ignored=FORMAT,
        server="log.message.format.version",
    )
    message_timestamp_type = string(
        "message.timestamp.type",
        "CreateTime",
        "Whose clock stamps records: CreateTime keeps the producer's, LogAppendTime writes the broker's.",
        allowed=("CreateTime", "LogAppendTime"),
        since="0.10.0 (KIP-32)",
        server="log.message.timestamp.type",
    )
    message_timestamp_before_max_ms = long(
        "message.timestamp.before.max.ms",
        MAX_LONG,
        "How much older than the broker's clock a record's timestamp may be; older ones are refused. Only for "
        "CreateTime.",
        at_least=0,
        unit="ms",
        since="3.6 (KIP-937)",
        server="log.message.timestamp.before.max.ms",
    )
    message_timestamp_after_max_ms = long(
        "message.timestamp.after.max.ms",
        3_600_000,
        "How far ahead of the broker's clock a record's timestamp may be; later ones are refused. Only for CreateTime.",
        at_least=0,
        unit="ms",
        since="3.6 (KIP-937)",
        server="log.message.timestamp.after.max.ms",
    )
    message_timestamp_difference_max_ms = long(
        "message.timestamp.difference.max.ms",
        MAX_LONG,
        "Both message.timestamp.before.max.ms and message.timestamp.after.max.ms, as the two were one before "
        "Kafka 3.6. Used for each of them that is not set itself.",
        at_least=0,
        unit="ms",
        since="0.10.0 (KIP-32)",
        deprecated="message.timestamp.before.max.ms, message.timestamp.after.max.ms",
        server="log.message.timestamp.difference.max.ms",
    )
    min_cleanable_dirty_ratio = double(
        "min.cleanable.dirty.ratio",
        0.5,
        "What part of a compacted log has to be new, from 0 to 1, before it is compacted again.",
        at_least=0,
        at_most=1,
        ignored=COMPACTION,
        server="log.cleaner.min.cleanable.ratio",
    )
    min_compaction_lag_ms = long(
        "min.compaction.lag.ms",
        0,
        "How long every record stays in a compacted log, for readers that have to see each value.",
        at_least=0,
        unit="ms",
        since="0.10.1 (KIP-58)",
        ignored=COMPACTION,
        server="log.cleaner.min.compaction.lag.ms",
    )
    min_insync_replicas = integer(
        "min.insync.replicas",
        1,
        "How many replicas in sync, the leader included, a record of a producer with acks=all needs to be accepted.",
        at_least=1,
        server="min.insync.replicas",
    )
    preallocate = boolean(
        "preallocate",
        False,
        "Whether a new segment's file takes its whole size at once.",
        server="log.preallocate",
    )
    remote_storage_enable = boolean(
        "remote.storage.enable",
        False,
        "Whether old segments are moved to a cheaper storage.",
        since="3.0 (KIP-405)",
        ignored=TIERED,
    )
    remote_log_copy_disable = boolean(
        "remote.log.copy.disable",
        False,
        "Whether segments are no longer moved there.",
        since="3.9 (KIP-950)",
        ignored=TIERED,
    )
    remote_log_delete_on_disable = boolean(
        "remote.log.delete.on.disable",
        False,
        "Whether what was moved there is deleted when remote.storage.enable is turned off.",
        since="3.9 (KIP-950)",
        ignored=TIERED,
    )
    retention_bytes = long(
        "retention.bytes",
        -1,
        "The size a partition may have; when it is larger its oldest files are deleted. -1: any.",
        at_least=-1,
        unit="bytes",
        server="log.retention.bytes",
    )
    retention_ms = long(
        "retention.ms",
        604_800_000,
        "How long records are kept: a file is deleted when its newest record is older. -1: for ever.",
        at_least=-1,
        unit="ms",
        server="log.retention.ms",
    )
    segment_bytes = integer(
        "segment.bytes",
        1_073_741_824,
        "When the file that is written has this size, the next is begun. Records are deleted, and compacted, "
        "by whole files.",
        at_least=SEGMENT_BYTES_MIN,
        unit="bytes",
        server="log.segment.bytes",
    )
    segment_index_bytes = integer(
        "segment.index.bytes",
        10_485_760,
        "The size of a segment's index; when it is full the next segment is begun.",
        at_least=4,
        unit="bytes",
        server="log.index.size.max.bytes",
    )
    segment_jitter_ms = long(
        "segment.jitter.ms",
        0,
        "Up to this much less than segment.ms is taken, at random, so that not every partition begins a file "
        "at one moment.",
        at_least=0,
        unit="ms",
        server="log.roll.jitter.ms",
    )
    segment_ms = long(
        "segment.ms",
        604_800_000,
        "When the file that is written is this old, by its records' timestamps, the next is begun, so that "
        "old records can be deleted though few come.",
        at_least=1,
        unit="ms",
        server="log.roll.ms",
    )
    unclean_leader_election_enable = boolean(
        "unclean.leader.election.enable",
        False,
        "Whether a replica that is behind may lead when none in sync is left: available again at the price of "
        "records that had been acknowledged.",
        server="unclean.leader.election.enable",
    )
