"""What a task that is run again has written before: so that the rows of an epoch stand in their topics once.

Spark runs a task again when it failed, and a whole epoch (micro-batch) when it ended before its checkpoint knew that it
was done. A task that begins leaves a note with the cluster: its epoch, and the id of its producer. The same task of the
same epoch, run again, finds the note, reads back what that producer has written, and writes only the rows that are not
there.

* The note is an offset that a group of the task's name has committed, with the note as its metadata: every cluster
  since 0.11 keeps that, and nothing else has to be made or deleted. What it is an offset of does not matter: topics
  may get more partitions, and rows may come in another order.
* What an earlier attempt has left with a leader is waited for until followers have it: only then can it be read back.
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
from itertools import accumulate, pairwise
from typing import Any, Final

import pyarrow as pa

from parley.pipeline.cluster import Cluster, TopicPartition
from parley.pipeline.committed import Committed, commit, committed
from parley.pipeline.decode import decode
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.groups import DeleteGroupsRequest
from parley.protocol.records.batch_header import headers

__all__ = ["Earlier", "Epoch", "Note", "forget", "group_of", "leave", "look_up"]

CLOCK_MARGIN_MS: Final = 60_000
"""How far a broker's clock, which may date the records, may be behind that of the task."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """A task of one epoch of a sink."""

    sink: str
    """The query's id, which a restart keeps; of a batch write, an id of its own."""
    number: int
    task: int


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
        producers = tuple(dict.fromkeys((*earlier.producers, *self.producers)))
        return replace(self, since_ms=min(self.since_ms, earlier.since_ms), producers=producers)

    @property
    def text(self) -> str:
        """Short, because a cluster keeps 4,096 bytes: for some eight hundred attempts whose ids are near each other."""
        steps = [after - before for before, after in pairwise((0, *self.producers))]
        return json.dumps({"task": self.task, "since_ms": self.since_ms, "steps": steps}, separators=(",", ":"))

    @classmethod
    def parse(cls, offset: int, text: str) -> Note | None:
        """None for what is no note."""
        try:
            found = json.loads(text)
            return cls(offset, int(found["task"]), int(found["since_ms"]), tuple(accumulate(map(int, found["steps"]))))
        except (ValueError, KeyError, TypeError):
            return None


def group_of(epoch: Epoch) -> str:
    """The group whose committed offsets are a task's notes. One for each task, whatever it writes to."""
    return f"parley-sink-{epoch.sink}-{epoch.task}"


def look_up(cluster: Cluster, epoch: Epoch) -> Note | None:
    """What earlier attempts at this task of this epoch have noted. Raises KafkaError."""
    found: Note | None = None
    for one in cluster.retry(lambda client: committed(client, group_of(epoch))).values():
        note = Note.parse(one.offset, one.metadata)
        if note is not None and (note.epoch, note.task) == (epoch.number, epoch.task):
            found = note.follows(found)
    return found


def leave(cluster: Cluster, epoch: Epoch, topic: str, note: Note) -> None:
    """Keep a note; as an offset is one of a topic, of any that the task writes to. Raises KafkaError."""
    place, kept = TopicPartition(topic, 0), Committed(note.epoch, note.text)

    async def keep(client: Client) -> None:
        for code in (await commit(client, group_of(epoch), {place: kept})).values():
            raise KafkaError(ErrorCode(code), f"leaving a note with group {group_of(epoch)!r}")

    cluster.retry(keep)


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
        ends = cluster.settled(partitions)
        starts = cluster.offsets(dict.fromkeys(partitions, note.since_ms))
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
        parts = [key, value, *(part for pair in pairs or () if pair for part in (pair["key"], pair["value"]))]
        yield hashlib.blake2b(b"".join(map(_told_apart, parts)), digest_size=16).digest()


def _told_apart(part: Any) -> bytes:
    if part is None:
        return b"-"
    data = part.encode() if isinstance(part, str) else part
    return b"%d:%b" % (len(data), data)
