"""What a task that is run again has written before: so that the rows of an epoch stand in their topics once.

Spark runs a task again when it failed, and a whole epoch (micro-batch) when it ended before its checkpoint knew that it
was done. A task that begins leaves a note with the cluster: its epoch, and the id of its producer. The same task of the
same epoch, run again, finds the note, reads back what that producer has written, and writes only the rows that are not
there.

* The note is an offset that a group of the sink's name has committed, with the note as its metadata: every cluster
  since 0.11 keeps that, and nothing else has to be made or deleted. Tasks share a group as long as they have a
  partition of the topic each.
* Rows are compared by what they hold and, if they name it, by their partition, not by where they stand there: a task
  that gets its rows in another order loses none.
  Rows that moved to another task in the meantime are written by it, so that some may then stand twice.
* Batches still on their way from a task that was taken for dead, but lives, are not seen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from pipeline.cluster import LATEST, Cluster, TopicPartition
from pipeline.committed import Committed, commit
from pipeline.decode import decode
from protocol.client import Client
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.group_offsets import OffsetFetchRequest
from protocol.messages.groups import DeleteGroupsRequest
from protocol.records.batch import headers

__all__ = ["Earlier", "Epoch", "Note", "Place", "forget", "leave", "look_up"]

CLOCK_MARGIN_MS: Final = 60_000
"""How far a broker's clock, which may date the records, may be behind that of the task."""
_FETCH_VERSION_MAX: Final = 7
_ATTEMPTS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Epoch:
    """A task of one epoch of a sink."""

    sink: str
    """The query's id, which a restart keeps; of a batch write, an id of its own."""
    number: int
    task: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where the note of a task is kept."""

    group: str
    partition: TopicPartition

    @classmethod
    def of(cls, epoch: Epoch, topic: str, partitions: int) -> Place:
        """``topic`` is one that the task writes to, with that many partitions."""
        row, column = divmod(epoch.task, partitions)
        return cls(f"parley-sink-{epoch.sink}" + (f"-{row}" if row else ""), TopicPartition(topic, column))


@dataclass(frozen=True, slots=True)
class Note:
    """What a task says of itself before it writes."""

    epoch: int
    task: int
    since_ms: int
    """No record of it is dated earlier."""
    producers: tuple[int, ...]
    """The ids under which it writes, those of earlier attempts included."""

    def follows(self, earlier: Note | None) -> Note:
        """This note, with what an earlier attempt at the same has noted."""
        if earlier is None:
            return self
        producers = (*earlier.producers, *self.producers)[-_ATTEMPTS_MAX:]
        return replace(self, since_ms=min(self.since_ms, earlier.since_ms), producers=producers)


def look_up(cluster: Cluster, place: Place, epoch: Epoch) -> Note | None:
    """The note of an earlier attempt at this task of this epoch. Raises KafkaError."""
    offset, text = cluster.retry(lambda client: _committed(client, place))
    if offset != epoch.number:
        return None
    try:
        found = json.loads(text)
        note = Note(offset, found["task"], found["since_ms"], tuple(found["producers"]))
    except (ValueError, KeyError, TypeError):
        return None  # not of ours
    return note if note.task == epoch.task else None


def leave(cluster: Cluster, place: Place, note: Note) -> None:
    """Keep a note in its place. Raises KafkaError."""
    text = json.dumps(
        {"task": note.task, "since_ms": note.since_ms, "producers": note.producers}, separators=(",", ":")
    )
    cluster.retry(lambda client: _commit(client, place, note.epoch, text))


def forget(cluster: Cluster, groups: Iterable[str]) -> None:
    """Delete the notes of a write that is done; those that are gone already do not matter. Raises KafkaError."""
    for group in sorted(groups):

        async def delete(client: Client, group: str = group) -> None:
            node = await client.coordinator(group)
            answer = await client.send(DeleteGroupsRequest(groups_names=[group]), node=node)
            for result in answer.results:
                if result.error_code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
                    raise KafkaError(ErrorCode(result.error_code), f"deleting group {group!r}")

        cluster.retry(delete)


async def _committed(client: Client, place: Place) -> tuple[int, str]:
    node = await client.coordinator(place.group)
    version = min(await client.version_for(OffsetFetchRequest, node=node), _FETCH_VERSION_MAX)
    topic = OffsetFetchRequest.OffsetFetchRequestTopic(
        name=place.partition.topic, partition_indexes=[place.partition.partition]
    )
    request = OffsetFetchRequest(group_id=place.group, topics=[topic])
    answer = await client.send(request, node=node, version=version)
    code = answer.error_code
    for found in answer.topics:
        for one in found.partitions:
            if not code and not one.error_code:
                return one.committed_offset, one.metadata or ""
            code = code or one.error_code
    raise KafkaError(ErrorCode(code or ErrorCode.UNKNOWN_SERVER_ERROR), f"reading the notes of group {place.group!r}")


async def _commit(client: Client, place: Place, offset: int, text: str) -> None:
    refused = await commit(client, place.group, {place.partition: Committed(offset, text)})
    for code in refused.values():
        raise KafkaError(ErrorCode(code), f"leaving a note with group {place.group!r}")


class Earlier:
    """The rows that earlier attempts have written; each is taken off once."""

    def __init__(self, cluster: Cluster, note: Note) -> None:
        self._cluster = cluster
        self._note = note
        self._topics: dict[str, dict[bytes, list[int]]] = {}
        """For each topic the partitions in which rows of the same mark stand."""

    def without(self, rows: pa.RecordBatch, topic: str | None) -> pa.RecordBatch:
        """The rows that are not written yet. They go to ``topic``, or where their column says. Raises KafkaError."""
        topics = [topic] * rows.num_rows if topic is not None else rows.column("topic").to_pylist()
        named = rows.column("partition").to_pylist() if "partition" in rows.schema.names else [None] * rows.num_rows
        missing = [
            not _taken(self._written(name).get(mark), partition)
            for name, mark, partition in zip(topics, _marks(rows), named, strict=True)
        ]
        return rows.filter(pa.array(missing, pa.bool_()))

    def _written(self, topic: str) -> dict[bytes, list[int]]:
        if topic not in self._topics:
            found = self._topics[topic] = {}
            for mark, partition in self._read_back(topic):
                found.setdefault(mark, []).append(partition)
        return self._topics[topic]

    def _read_back(self, topic: str) -> Iterator[tuple[bytes, int]]:
        cluster, note = self._cluster, self._note
        partitions = _partitions(cluster, topic)
        starts = cluster.offsets(dict.fromkeys(partitions, note.since_ms))
        ends = cluster.offsets(dict.fromkeys(partitions, LATEST))
        for partition, start in starts.items():
            if start < 0:
                continue
            for fetched in cluster.fetch(partition, start, ends[partition]):
                own = b"".join(
                    fetched.records[pos : pos + header.size_bytes]
                    for pos, header in headers(fetched.records)
                    if header.producer_id in note.producers
                )
                for rows in decode(replace(fetched, records=own), include_headers=True):
                    yield from ((mark, partition.partition) for mark in _marks(rows))


def _taken(there: list[int] | None, partition: int | None) -> bool:
    """Whether a row stands in the partition, None for any; it is taken off."""
    if not there or (partition is not None and partition not in there):
        return False
    if partition is None:
        there.pop()
    else:
        there.remove(partition)
    return True


def _partitions(cluster: Cluster, topic: str) -> list[TopicPartition]:
    try:
        return [TopicPartition(topic, number) for number in cluster.partitions([topic])[topic]]
    except KafkaError as error:
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return []  # nothing was written to it yet, which would have made it
        raise


def _marks(rows: pa.RecordBatch) -> Iterator[bytes]:
    """For each row a few bytes that are equal where key, value and headers are."""
    columns = [rows.column(name).to_pylist() if name in rows.schema.names else [None] * rows.num_rows
               for name in ("key", "value", "headers")]  # fmt: skip
    for key, value, pairs in zip(*columns, strict=True):
        parts = [key, value, *(part for pair in pairs or () for part in (pair["key"], pair["value"]))]
        yield hashlib.blake2b(b"".join(map(_told_apart, parts)), digest_size=16).digest()


def _told_apart(part: Any) -> bytes:
    if part is None:
        return b"-"
    data = part.encode() if isinstance(part, str) else part
    return b"%d:%b" % (len(data), data)
