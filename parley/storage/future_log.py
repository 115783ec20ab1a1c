"""A copy of a log in another directory, made to take the log's place (KIP-113).

The copy follows the log as a follower follows its leader: batch by batch, and cut where the two have parted, since the
log may be cut meanwhile. Its directory is called ``topic-partition.<unique>-future``, as Kafka's. When it has all there
is, it is given the log's name, and the log is set aside after that: in between, both directories hold a log of the
partition, and :data:`REPLACES` in the copy's says to whoever finds them that the other one is out of date.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from parley.storage.checkpoints import sync_directory
from parley.storage.log import Log
from parley.storage.log_directory import partition_name

REPLACES = "replaces-other"


def future_name(topic: str, partition: int, random: Random) -> str:
    """What the directory of a copy is called."""
    return f"{partition_name(topic, partition)}.{random.getrandbits(128):032x}-future"


def copy_some(log: Log, copy: Log, max_bytes: int) -> int:
    """Bring the copy nearer to the log, by up to ``max_bytes`` or one batch; the bytes copied, 0 if it has all.

    Blocks. Raises ``KafkaError`` KAFKA_STORAGE_ERROR, CORRUPT_MESSAGE.
    """
    cut_like(log, copy)
    if copy.log_end_offset >= log.log_end_offset:
        _take_over_facts(log, copy)
        return 0
    read = log.read(copy.log_end_offset, max_bytes, up_to=log.log_end_offset)
    return copy.append_as_follower(read.read()).size_bytes


def cut_like(log: Log, copy: Log) -> None:
    """Cut the copy to what it shares with the log. Blocks."""
    last = copy.leader_epochs.latest_epoch
    if copy.log_end_offset < log.log_start_offset:
        copy.truncate_fully_and_start_at(log.log_start_offset)
    elif copy.log_end_offset > log.log_end_offset:
        copy.truncate_to(log.log_end_offset)
    elif last is not None:
        epoch, end = log.end_offset_for_epoch(last)
        if epoch < last:
            copy.truncate_to(min(copy.end_offset_for_epoch(epoch)[1], end) if epoch >= 0 else log.log_start_offset)
        elif end < copy.log_end_offset:
            copy.truncate_to(end)


def _take_over_facts(log: Log, copy: Log) -> None:
    """What no batch tells: epochs without records, how far it is committed, records deleted meanwhile."""
    for entry in log.leader_epochs.entries:
        if entry.epoch > (copy.leader_epochs.latest_epoch or -1):
            copy.leader_epochs.assign(entry.epoch, entry.start_offset)
    copy.high_watermark = log.high_watermark
    if copy.log_start_offset < log.log_start_offset:
        copy.advance_log_start(log.log_start_offset)


def mark_successor(copy: Log) -> None:
    """Bring a copy to disk, with the note that it replaces another log. Blocks.

    Raises ``OSError``, ``KafkaError`` KAFKA_STORAGE_ERROR.
    """
    copy.flush()
    (copy.directory / REPLACES).touch()
    sync_directory(copy.directory)


def unmark_successor(directory: Path) -> None:
    """The other one is out of the way. Blocks. Raises ``OSError``."""
    (directory / REPLACES).unlink(missing_ok=True)
