"""A future log: a copy of a log in another directory, which will replace the log (KIP-113).

The copy follows the log as a follower follows its leader: batch by batch, truncated where the two diverge. Its
directory is named ``topic-partition.<unique>-future``, as in Kafka. Once complete, the copy is renamed to the log's
name, and then the log is deleted. In between, both directories contain a log of the partition; the file ``REPLACES`` in
the copy's directory means that the other log is outdated.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from parley.protocol.sentinels import NO_EPOCH
from parley.storage.checkpoints import sync_directory
from parley.storage.cut_files import copy_on_disk, cut_files
from parley.storage.log import Log
from parley.storage.log_directory import partition_name

REPLACES = "replaces-other"


def future_name(topic: str, partition: int, random: Random) -> str:
    """Return a new, unique name for the directory of a copy."""
    return f"{partition_name(topic, partition)}.{random.getrandbits(128):032x}-future"


def copy_some(log: Log, copy: Log, max_bytes: int) -> int:
    """Copy up to ``max_bytes``, but at least one batch. Returns the number of bytes copied; 0 if the copy is complete.

    Blocks. Raises ``KafkaError`` KAFKA_STORAGE_ERROR, CORRUPT_MESSAGE.
    """
    cut_like(log, copy)
    if copy.log_end_offset >= log.log_end_offset:
        _take_over_facts(log, copy)
        return 0
    read = log.read(copy.log_end_offset, max_bytes, up_to=log.log_end_offset)
    return copy.append_as_follower(read.read()).size_bytes


def cut_like(log: Log, copy: Log) -> None:
    """Truncate the copy to the part that it shares with the log. Blocks. Raises the errors of ``Log.truncate_to``."""
    last, _ = copy.epochs_at_end
    removed_up_to = log.tombstones_removed_up_to
    if removed_up_to > max(copy.log_end_offset, copy.tombstones_removed_up_to):
        copy.truncate_fully_and_start_at(log.log_start_offset, tombstones_removed_up_to=removed_up_to)
    elif copy.log_end_offset < log.log_start_offset:
        copy.truncate_fully_and_start_at(log.log_start_offset)
    elif copy.log_end_offset > log.log_end_offset:
        copy.truncate_to(log.log_end_offset)
    elif last != NO_EPOCH:
        epoch, end = log.end_offset_for_epoch(last)
        if epoch < last:
            copy.truncate_to(min(copy.end_offset_for_epoch(epoch)[1], end) if epoch >= 0 else log.log_start_offset)
        elif end < copy.log_end_offset:
            copy.truncate_to(end)


def _take_over_facts(log: Log, copy: Log) -> None:
    """Copy the state that is not in batches: epochs without records, the high watermark, the offset up to which the log
    is compacted, and the log start offset."""
    copy.store_epoch(log.stored_epoch)
    if log.latest_epoch is not None:
        copy.leader_epochs.begin(log.latest_epoch, copy.log_end_offset)
    copy.high_watermark = log.high_watermark
    copy.cleaned_up_to = log.cleaned_up_to
    if copy.log_start_offset < log.log_start_offset:
        copy.advance_log_start(log.log_start_offset)


def mark_successor(log: Log, copy: Log) -> None:
    """Flush a copy, copy the log's cut files to it, and mark it as the successor of the log. Blocks.

    Raises ``OSError``, ``KafkaError`` KAFKA_STORAGE_ERROR.
    """
    copy.flush()
    for file in cut_files(log.directory) if log.is_written else ():
        copy_on_disk(file.path, copy.directory / file.path.name)
    (copy.directory / REPLACES).touch()
    sync_directory(copy.directory)


def unmark_successor(directory: Path) -> None:
    """Remove the mark, because the replaced log no longer has the partition's name. Blocks. Raises ``OSError``."""
    (directory / REPLACES).unlink(missing_ok=True)
