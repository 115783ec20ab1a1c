"""Log lines about data: replication, damaged records, log directories, recovery and compaction."""

from __future__ import annotations

from typing import Final

from parley.broker.docs.log_lines.line import DEFECT, NOTHING, Line, Section

_DISK: Final = "Check the disk."

_REPLICATION: Final = Section(
    "Replication",
    (
        Line(
            "a leader does not respond: retrying until a new leader is elected",
            "A follower cannot fetch from that broker, for the `reason`. The line is repeated at growing intervals.",
            "Check that broker, and the network between the two.",
        ),
        Line(
            "partitions cannot be fetched at the moment; this broker tries again",
            "The `leader` refuses to serve these partitions, or this broker cannot store them, for the `reason`.",
            "Nothing, if it ends within seconds, as after an election. Otherwise check the reason: often a disk.",
        ),
        Line(
            "fetching from a leader failed",
            "The follower retries.",
            DEFECT,
        ),
        Line(
            "following a partition failed",
            "The follower retries.",
            DEFECT,
        ),
        Line(
            "checking followers failed",
            "A follower that is too slow stays in the ISR. The check is repeated.",
            DEFECT,
        ),
        Line(
            "proposing ISRs failed",
            "The ISR remains unchanged; the leader retries.",
            DEFECT,
        ),
        Line(
            "a log contains a higher leader epoch than the controller's: the replica waits",
            "The coordination store was rolled back; the controller catches up when all brokers have registered.",
            "Start all brokers. ([details](coordination.md#a-store-that-was-rolled-back))",
        ),
        Line(
            "a replica starts over: ...",
            "It fetches a log again, so that no deleted key comes back: it was offline for longer than "
            "`delete.retention.ms`, or its log is damaged and the other replicas were compacted differently.",
            NOTHING,
        ),
        Line(
            "committed records were removed from a log to match its leader's",
            "The line contains their offsets, and the file that keeps them.",
            "See [committed records that a truncation would "
            "remove](storage.md#committed-records-that-a-truncation-would-remove).",
        ),
        Line(
            "a replica stops following: its leader lacks committed records that the replica has",
            "It would have to remove them, which the topic's setting forbids; `remedy` says what you can do.",
            "See [committed records that a truncation would "
            "remove](storage.md#committed-records-that-a-truncation-would-remove).",
        ),
        Line(
            "replicas on failed disks are out of service",
            "The partitions of a log directory that went offline; other brokers lead them.",
            "See the line about the directory.",
        ),
        Line(
            "failed to open a log",
            "See `error`. The replica is offline.",
            "Repair the disk or the permissions.",
        ),
        Line(
            "failed to delete a log",
            "See `error`. The files of the log remain.",
            "Repair the disk or the permissions of the folder.",
        ),
        Line(
            "failed to move a replica",
            "A replica could not move to another log directory, for the `reason`. It stays in its directory.",
            "Correct the cause, and start the move again.",
        ),
    ),
)

_DAMAGE: Final = Section(
    "Damaged records",
    (
        Line(
            "records are damaged or missing",
            "The line contains the partition, the offsets and the reason. Another replica's copy replaces the "
            "records, if there is one.",
            "Check the disk. ([damage](damage.md))",
        ),
        Line(
            "damaged records were replaced from another replica",
            "The records are intact again.",
            "Check the disk, and replace it if it happens again.",
        ),
        Line(
            "damaged records have no intact copy: fetches of them return CORRUPT_MESSAGE",
            "No live replica has an intact copy.",
            "Start the brokers that may have a copy. If none is left, "
            "[skip the range](damage.md#skipping-records-that-are-lost).",
        ),
        Line(
            "healing a log was interrupted",
            "See `reason`. The broker retries.",
            "Nothing, if it ends. Otherwise check the reason.",
        ),
        Line(
            "a leader with a damaged log has handed over its leadership",
            "An intact replica leads the partition now, and this one fetches its copy.",
            "Check the disk.",
        ),
        Line(
            "a leader with a damaged log failed to hand over its leadership",
            "See `reason`; for example, no other replica is in sync.",
            "Start the other replicas' brokers.",
        ),
        Line(
            "healing a log failed",
            "The damage remains; the broker retries.",
            DEFECT,
        ),
        Line(
            "the digest of intact records is wrong and will be rewritten",
            "The records match their own checksums.",
            _DISK,
        ),
        Line(
            "cannot record the damage of a log",
            "The disk is full. The damage is known until the broker restarts; the next start may not find it again.",
            "Make room on the disk.",
        ),
        Line(
            "the scrubber of ... pauses: ...",
            "The disk cannot be read, or the process has no file descriptors left.",
            _DISK,
        ),
        Line(
            "ignoring the digest ...: ...",
            "The segment is verified without the digest, and gets a new one.",
            _DISK,
        ),
        Line(
            "ignoring the digest ...: it is a directory, but must be a file. Remove it",
            "The folder of a log contains something else.",
            "Remove it.",
        ),
        Line(
            "the oldest removed records of a log are deleted to make room for newer ones; "
            "log.cut.retention.bytes limits them",
            "The records that this replica had to remove take more room than the limit.",
            "Inspect the `*.cut` files soon with `parley log-repair`, or raise the limit.",
        ),
        Line(
            "... is damaged at ...: reading without the index",
            "An index was altered on disk. Reads continue without it, more slowly.",
            "Check the disk, and restart the broker: it builds the index again.",
        ),
        Line(
            "... is damaged: ...",
            "An index or a segment cannot be used as it is.",
            _DISK,
        ),
    ),
)

_DIRECTORIES: Final = Section(
    "Log directories",
    (
        Line(
            "... is offline, and its ... logs with it: .... .... ..., then restart the broker",
            "A disk failed or is full. When no log directory is left, the broker exits with code 74.",
            "Repair it, or make room ([a full disk](operations.md#a-full-disk)), and restart the broker.",
        ),
        Line(
            "... is offline: ...",
            "A disk failed while its logs were opened.",
            "Repair it, or free some space, and restart the broker.",
        ),
        Line(
            "log directories of this broker are missing: they were emptied or replaced, or log.dirs has "
            "changed; fetching their replicas again from other brokers",
            "A disk was not mounted, or `log.dirs` has changed.",
            "If a disk was not mounted: stop the broker and mount it. Otherwise let it fetch its replicas again.",
        ),
        Line(
            "the log directories of this broker were replaced by an older copy: fetching the replicas again from other "
            "brokers",
            "The broker has since registered with a higher broker epoch than the directories contain: a backup or a "
            "snapshot of them was restored.",
            "Nothing, if that was intended. The broker was in no ISR until its replicas had caught up.",
        ),
        Line(
            "logs with committed records are missing: their directories were removed; the records are fetched again "
            "from other replicas",
            "`names` lists the first ones. `parley topics --describe` shows when the replicas are in sync again.",
            "Without other replicas: restore the directories before clients write.",
        ),
        Line(
            "ignoring a folder: its name is not a partition's",
            "The broker does not touch it.",
            "Remove it, if it is not needed.",
        ),
        Line(
            "ignoring a folder with the name of a partition: it does not contain a log",
            "The broker does not touch it.",
            "Remove it, if it is not needed.",
        ),
        Line(
            "ignoring a replica that was set aside",
            "The broker does not touch it.",
            "Remove it, if its records are not needed.",
        ),
        Line(
            "ignoring a copy of a log that does not exist",
            "A move between log directories has not been completed.",
            "Remove it.",
        ),
        Line(
            "a stray log is set aside: remove it if its records are not needed",
            "A log of a partition that was moved away while the broker was down, or of a topic that the cluster "
            "does not know, perhaps an earlier topic of the same name. Its name now ends in `-stray`.",
            "Remove it, if its records are not needed.",
        ),
        Line(
            "a stray log cannot be set aside",
            "See `reason`. The broker retries at its next start.",
            "Repair the disk or the permissions of the folder.",
        ),
        Line(
            "cannot remove deleted files: ...",
            "They remain, and take up space.",
            "Repair the disk or the permissions.",
        ),
        Line(
            "... in ... ended early: ...",
            "Maintenance of the logs stopped at a failing disk.",
            _DISK,
        ),
        Line(
            "... in ... failed; the next attempt is in ... ms",
            "Maintenance of the logs failed.",
            DEFECT,
        ),
        Line(
            "maintenance of ... failed: ...",
            "Retention or a flush of one log failed; the broker retries.",
            _DISK,
        ),
        Line(
            "ignoring ...: it is a directory, but must be a file. Remove it",
            "A log directory contains something else.",
            "Remove it.",
        ),
        Line(
            "... cannot be shut down cleanly: ...",
            "The disk failed during the shutdown; the next start recovers the logs.",
            _DISK,
        ),
        Line(
            "... cannot be closed cleanly: ...",
            "The disk failed during the shutdown; the next start recovers the log.",
            _DISK,
        ),
        Line(
            "cannot truncate ... to ... bytes: ...",
            "The disk could not truncate a file after a failed write; the next append overwrites the rest.",
            _DISK,
        ),
    ),
)

_RECOVERY: Final = Section(
    "Recovery",
    (
        Line(
            "a log directory was not shut down cleanly: its logs are recovered",
            "The broker checks its logs, which takes a while if they are large; lines `logs are open` show the "
            "progress.",
            NOTHING,
        ),
        Line(
            "a log lacks committed records: it ends below its persisted high watermark",
            "The disk lost writes, or files were removed while the broker was down. The replica fetches the "
            "records from its leader; a partition without another replica has lost them.",
            _DISK,
        ),
        Line(
            "...: the disk has lost records, or files were removed",
            "The log ends below the offset up to which it was synced. The replica fetches the records from its leader, "
            "if there is one.",
            _DISK,
        ),
        Line(
            "... ends at ..., so its log start cannot be ...: the checkpoint of log start offsets is damaged. The log "
            "begins at its first segment",
            "Records that DeleteRecords or retention had removed may be readable again.",
            _DISK,
        ),
        Line(
            "... ends at ..., before its log start ...: deleting all of it",
            "After a power cut: the remaining records had been deleted before it.",
            NOTHING,
        ),
        Line(
            "... lost its segments from ... to ...: deleting the rest",
            "After a power cut: the remaining segments have a gap. The replica fetches the log from its leader.",
            _DISK,
        ),
        Line(
            "... is damaged (...): treating it as missing",
            "A checkpoint with the offsets of many logs was damaged; it is rebuilt from the logs. If it contained the "
            "log start offsets, records that were deleted with DeleteRecords may be visible again.",
            "Check the disk.",
        ),
        Line(
            "... has a damaged checksum: its offsets are not verified",
            "In a checkpoint, only the line with the checksum was damaged. The offsets in the checkpoint count.",
            _DISK,
        ),
        Line(
            "... is malformed (...): treating it as missing",
            "A checkpoint, or the file of damaged ranges, was damaged; it is rebuilt from the logs.",
            "Check the disk if it happens again.",
        ),
        Line(
            "... is malformed (...): tombstones may be missing from the whole log",
            "The `removed-tombstones-checkpoint` of a log was damaged. A replica that has fetched less than this log "
            "contained at the broker's start fetches its whole log again.",
            "Check the disk if it happens again.",
        ),
        Line(
            "... is malformed: treating it as missing",
            "The file of appended epochs was damaged; it is rebuilt.",
            "Check the disk if it happens again.",
        ),
        Line(
            "...; treating the file as missing",
            "A file of the directory is damaged, or of another version; it is rebuilt.",
            "Check the disk if it happens again.",
        ),
        Line(
            "...: removing ..., which contradict epoch ... from offset ...",
            "The file of leader epochs does not match the records; the records take precedence.",
            NOTHING,
        ),
        Line(
            "cannot use the producer snapshot ...: ...",
            "An older one, or the records, are read instead.",
            NOTHING,
        ),
        Line(
            "new producers are refused",
            "So many producers have written to the partition `log` in the last 15 minutes that none may be forgotten: "
            "idempotent producers that it does not know get NOT_ENOUGH_REPLICAS, and retry. Other producers continue.",
            "Look for a client that creates a new producer for each record.",
        ),
        Line(
            "cannot restore all producers of ...: ...",
            "A damaged batch hides what a producer wrote last: an idempotent producer may get "
            "OUT_OF_ORDER_SEQUENCE_NUMBER.",
            "Heal the [damage](damage.md).",
        ),
        Line(
            "cannot find all batches at the end of ...: ...",
            "A damaged batch hides what a producer wrote last: an idempotent producer may get "
            "OUT_OF_ORDER_SEQUENCE_NUMBER.",
            "Heal the [damage](damage.md).",
        ),
        Line(
            "ignoring a control batch of producer ... at offset ...: ...",
            "A marker in the log cannot be read: its transaction stays open.",
            "See `parley transactions find-hanging`.",
        ),
        Line(
            "scanning ...: its digest is for ... bytes",
            "A segment has changed since it was completed; its batches are read one by one.",
            NOTHING,
        ),
        Line(
            "scanning ...: its digest is for ... bytes up to offset ...",
            "A segment has changed since it was completed; its batches are read one by one.",
            NOTHING,
        ),
        Line(
            "... is wrong: it has leader epoch ... for offset ..., whose batch has ...",
            "`leader-epoch-checkpoint` of a log was altered. The broker reads the epochs from the batches.",
            "Check the disk if this was not a restored or edited file.",
        ),
        Line(
            "scanning ...: its transaction index is damaged or missing",
            "The index is written again from the batches.",
            "Check the disk if this was not a restored or edited file.",
        ),
        Line(
            "scanning ...: ... lacks the leader epoch of its last batch",
            "The epochs are read from the batches.",
            NOTHING,
        ),
        Line(
            "scanning the last segment of ...: ...",
            "Its batches are read one by one.",
            NOTHING,
        ),
        Line(
            "rebuilding the indexes of segment ... of ...: ...",
            "They are missing, or do not match the segment.",
            NOTHING,
        ),
        Line(
            "the digest of ... is wrong: rewriting it",
            "The records match their own checksums.",
            _DISK,
        ),
        Line(
            "deleting ...: it begins after the end of ...",
            "After a crash: the log ends in an earlier segment. The replica fetches the missing records from its "
            "leader.",
            NOTHING,
        ),
        Line(
            "removing ... bytes from the end of ...: ...",
            "After a crash: the last batch was not completely written. It was not acknowledged, or other "
            "replicas have it. If the machine has restarted, an altered last batch looks the same, and a topic with "
            "one replica loses it.",
            NOTHING,
        ),
        Line(
            "the compacted segment ... is damaged: ...",
            "The old segments after the damage are kept.",
            _DISK,
        ),
        Line(
            "removing an index without a segment",
            "An index was left after a crash.",
            NOTHING,
        ),
    ),
)

_COMPACTION: Final = Section(
    "Compaction",
    (
        Line(
            "a compaction failed and will be retried",
            "See `reason`: the disk is full, the worker process was killed (by the kernel, if memory ran out), "
            "or the log was changed meanwhile.",
            "Nothing, if it is rare. Otherwise free some space, or lower `log.cleaner.dedupe.buffer.size`.",
        ),
        Line(
            "a log cannot be compacted: it is set aside",
            "See `reason`. The log is used as before and grows.",
            "Fix the cause and restart the broker, or move the replica to another broker.",
        ),
        Line(
            "compaction removed records without a key",
            "They were written before the topic was compacted.",
            NOTHING,
        ),
    ),
)

SECTIONS: Final = (_REPLICATION, _DAMAGE, _DIRECTORIES, _RECOVERY, _COMPACTION)
