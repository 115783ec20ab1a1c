"""The progress of a flow's partitions, stored on the target in Connect's topic of stored offsets (KIP-382).

A note is written before anything is appended under its producer id (``appending``), and again at intervals. It may be
outdated, because the target's log shows what was copied since. Therefore the last note of a partition is enough to
continue from any machine. MirrorMaker 2 continues from Parley's notes, and Parley from MirrorMaker's, which contain no
producer id: records that MirrorMaker copied after its last note are copied again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from parley.pipeline.client.cluster import Cluster
from parley.pipeline.client.fetching import TopicPartition
from parley.pipeline.client.partitioner import partition_of
from parley.pipeline.client.sending import ProducerId
from parley.pipeline.mirror import admin
from parley.pipeline.mirror.copying import Anchor
from parley.pipeline.mirror.internal_records import Encoded, StoredOffset
from parley.protocol.records.batch_header import INT32_MAX


@dataclass(frozen=True, slots=True)
class Place:
    """The progress of a partition, and the id of the source's topic (empty if unknown)."""

    anchor: Anchor
    topic_id: str = ""


class Notes:
    """The stored offsets of the source ``alias``, in ``topic`` of the target. Its methods raise KafkaError."""

    def __init__(self, target: Cluster, topic: str, alias: str, now_ms: Callable[[], int]) -> None:
        self.topic = topic
        self._target = target
        self._alias = alias
        self._now_ms = now_ms
        self._partitions = 0
        self._stored: dict[TopicPartition, StoredOffset] = {}

    def read(self, partitions: int) -> None:
        """Read the notes from the topic, which has this many partitions."""
        self._partitions = partitions
        self._stored = {TopicPartition(one.topic, one.partition): one for one in self._read()}

    def place(self, partition: TopicPartition) -> Place | None:
        """Return the progress in a partition's last note; None if there is none, or if MirrorMaker wrote it."""
        stored = self._stored.get(partition)
        return None if stored is None else _place(stored)

    def upstream(self, partition: TopicPartition) -> int | None:
        """Return the next offset to copy from the source, according to the last note of any mirror; None if there is
        none.
        """
        stored = self._stored.get(partition)
        return None if stored is None else stored.offset + 1

    def first(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Place]:
        """Return each partition's first note by Parley after the last note by MirrorMaker.

        If several mirrors start at the same moment, all of them use this note.
        """
        wanted = set(partitions)
        found: dict[TopicPartition, Place] = {}
        for stored in self._read():
            partition, place = TopicPartition(stored.topic, stored.partition), _place(stored)
            if place is None:
                found.pop(partition, None)
            elif partition in wanted:
                found.setdefault(partition, place)
        return found

    def write(self, places: Mapping[TopicPartition, Place]) -> None:
        """Store how far each of these partitions has been copied. Later calls for a partition replace its note."""
        stored = {partition: _stored(self._alias, partition, place) for partition, place in places.items()}
        by_partition: dict[int, list[Encoded]] = {}
        for one in stored.values():
            encoded = one.encode()
            by_partition.setdefault(partition_of(encoded.key, self._partitions), []).append(encoded)
        for number, some in by_partition.items():
            admin.write(self._target, TopicPartition(self.topic, number), some, self._now_ms())
        self._stored |= stored

    def _read(self) -> Iterable[StoredOffset]:
        for stored in admin.read_decoded(self._target, self.topic, StoredOffset.decode):
            if stored is not None and stored.cluster == self._alias:
                yield stored


def _place(stored: StoredOffset) -> Place | None:
    """Return the progress in a note; None if it has no producer id. In an older format, sequence numbers
    were offsets.
    """
    if stored.downstream is None or stored.producer is None:
        return None
    sequence = stored.downstream & INT32_MAX if stored.sequence is None else stored.sequence
    anchor = Anchor(stored.offset + 1, stored.downstream, ProducerId(*stored.producer), sequence)
    return Place(anchor, stored.topic_id)


def _stored(alias: str, partition: TopicPartition, place: Place) -> StoredOffset:
    anchor = place.anchor
    return StoredOffset(
        alias,
        *partition,
        anchor.upstream - 1,
        anchor.downstream,
        (anchor.producer.producer_id, anchor.producer.epoch),
        anchor.sequence,
        place.topic_id,
    )
