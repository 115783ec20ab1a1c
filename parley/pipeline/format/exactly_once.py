"""Finds what an earlier attempt of a task has written, so that each row of an epoch is in its topic once.

Spark runs a failed task again, and a whole epoch (micro-batch) if its checkpoint did not record that it was done. A
task leaves a note in the cluster: its epoch and its producer. The next attempt of the same task and epoch finds the
note, reads back what that producer has written, and writes only the missing rows.

* The note is the metadata of an offset that a group with the task's name has committed. Any partition's offset will
  do: topics may get more partitions, and rows may come in another order.
* Without transactions, the note is left before the first row is written. The next attempt waits until followers have
  the earlier rows. It does not see batches that an earlier attempt is still sending because Spark wrongly considers
  that attempt dead.
* With transactions, the note and the rows are committed together, so the rows of a note are all there. A task first
  fences older attempts and then looks for the note. It looks again before it commits, because its first request may
  have gone to a coordinator that had been replaced. An epoch older than the note's is refused. The notes stay after
  the write, because an attempt may start after it.
  * Rows are compared by content and, if they name a partition, by partition, not by order. Rows that moved to another
    task in the meantime are written by that task, so some may be written twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise, starmap
from typing import Any, Final

import pyarrow as pa

from parley.pipeline.client.cluster import Cluster, TopicPartition
from parley.pipeline.client.decode import decode
from parley.pipeline.client.group_offsets import Committed, commit, committed
from parley.pipeline.client.sending import ProducerId
from parley.pipeline.client.transactions import producer_id
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.groups import DeleteGroupsRequest
from parley.protocol.records.batch_header import headers

CLOCK_MARGIN_MS: Final = 60_000
"""How far the clock of a broker, which may set the records' timestamps, may be behind the task's clock."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """One task in one epoch of a sink."""

    sink: str
    """The query's id, which a restart keeps. Each batch write has a new id."""
    number: int
    task: int
    transactional_id_prefix: str | None = None
    """The prefix of the transactional id; None if the task writes without a transaction."""

    @property
    def group(self) -> str:
        """The group whose committed offsets have the task's notes as metadata. A task has one group for all its
        topics."""
        return f"{self.transactional_id_prefix or 'parley-sink'}-{self.sink}-{self.task}"

    @property
    def transactional_id(self) -> str | None:
        """The id under which the task writes its transaction, the same in every epoch; None without a transaction."""
        return None if self.transactional_id_prefix is None else self.group


@dataclass(frozen=True, slots=True)
class Note:
    """The note that a task leaves in the cluster about its epoch and its producers."""

    epoch: int
    task: int
    since_ms: int
    """A lower bound of the timestamps of the task's records."""
    producers: tuple[ProducerId, ...]
    """The producers that write its rows, including those of earlier attempts."""

    def follows(self, earlier: Note | None) -> Note:
        """Return this note, extended by the producers and the earlier ``since_ms`` of an earlier attempt's note."""
        if earlier is None:
            return self
        producers = tuple(dict.fromkeys((*earlier.producers, *self.producers)))
        return replace(self, since_ms=min(self.since_ms, earlier.since_ms), producers=producers)

    @property
    def text(self) -> str:
        """The note as text, to be stored as the metadata of a committed offset.

        A cluster accepts 4,096 bytes of metadata by default, enough for hundreds of attempts.
        """
        steps = [after - before for before, after in pairwise((0, *(one.producer_id for one in self.producers)))]
        note: dict[str, Any] = {"task": self.task, "since_ms": self.since_ms, "steps": steps}
        if any(one.epoch for one in self.producers):
            note["epochs"] = [one.epoch for one in self.producers]
        return json.dumps(note, separators=(",", ":"))

    @classmethod
    def parse(cls, offset: int, text: str) -> Note | None:
        """Return the note in the metadata ``text`` of a committed offset; None if the text is not a note. The
        ``offset`` is the note's epoch.
        """
        try:
            found = json.loads(text)
            ids = list(accumulate(map(int, found["steps"])))
            epochs = map(int, found.get("epochs", [0] * len(ids)))
            producers = tuple(starmap(ProducerId, zip(ids, epochs, strict=True)))
            return cls(offset, int(found["task"]), int(found["since_ms"]), producers)
        except (ValueError, KeyError, TypeError):
            return None


def look_up(cluster: Cluster, epoch: Epoch, *, stable: bool = True) -> Note | None:
    """Return the note that earlier attempts of this task and epoch have left; None if there is none.

    With ``stable``, waits for the end of an open transaction that contains a note. Otherwise ignores that note. Raises
    KafkaError: PRODUCER_FENCED if the task has committed a transaction of a later epoch.
    """
    found: Note | None = None
    for one in cluster.retry(lambda client: committed(client, epoch.group, stable=stable)).values():
        note = Note.parse(one.offset, one.metadata)
        if note is None or note.task != epoch.task:
            continue
        if epoch.transactional_id is not None and note.epoch > epoch.number:
            raise KafkaError(
                ErrorCode.PRODUCER_FENCED,
                f"epoch {epoch.number} comes too late: {epoch.transactional_id!r} has committed epoch {note.epoch},"
                " so another run of this query is ahead. To write earlier epochs again on purpose, use another"
                " 'transactionalIdPrefix'",
            )
        if note.epoch == epoch.number:
            found = note.follows(found)
    return found


def kept(note: Note, topic: str) -> dict[TopicPartition, Committed]:
    """Return the note as an offset to commit. ``topic`` is any topic that the task writes to; the offset is of its
    partition 0.
    """
    return {TopicPartition(topic, 0): Committed(note.epoch, note.text)}


def leave(cluster: Cluster, epoch: Epoch, topic: str, note: Note) -> None:
    """Commit the note immediately, outside a transaction. Raises KafkaError."""

    async def keep(client: Client) -> None:
        for code in (await commit(client, epoch.group, kept(note, topic))).values():
            raise KafkaError(ErrorCode(code), f"committing the query's epoch to group {epoch.group!r}")

    cluster.retry(keep)


def forget(cluster: Cluster, groups: Iterable[str]) -> None:
    """Delete the notes of a finished write, with their groups. Notes that no longer exist are ignored. Raises
    KafkaError.
    """
    for group in sorted(groups):

        async def delete(client: Client, group: str = group) -> None:
            node = await client.coordinator(group)
            answer = await client.send(DeleteGroupsRequest(groups_names=[group]), node=node)
            for result in answer.results:
                if result.error_code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
                    raise KafkaError(ErrorCode(result.error_code), f"deleting group {group!r}")

        cluster.retry(delete)


def fence(cluster: Cluster, transactional_ids: Iterable[str], timeout_ms: int) -> None:
    """Fence the attempts with these ids that have started, and abort their open transactions. Raises KafkaError.

    ``timeout_ms`` is the transaction timeout. The notes stay: an attempt that starts later must find them.
    """
    for transactional_id in sorted(transactional_ids):
        cluster.retry(partial(producer_id, transactional_id=transactional_id, timeout_ms=timeout_ms))


class Earlier:
    """The rows that earlier attempts have written. Each of them stands for one equal row of this attempt."""

    def __init__(self, cluster: Cluster, note: Note) -> None:
        self._cluster = cluster
        self._note = note
        self._topics: dict[str, dict[bytes, list[int]]] = {}
        """For each topic and mark: the partitions of the rows with this mark that are not matched yet."""

    def without(self, rows: pa.RecordBatch, topic: str | None) -> pa.RecordBatch:
        """Return the rows that no earlier attempt has written. The first call for a topic reads back what was written
        to it.

        The rows go to ``topic`` or, if that is None, to the topic that each row names. Raises KafkaError.
        """
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
                    if ProducerId(header.producer_id, header.producer_epoch) in note.producers
                )
                for rows in decode(replace(fetched, records=own), include_headers=True):
                    yield from ((mark, partition.partition) for mark in _marks(rows))


def _taken(there: list[int] | None, partition: int | None) -> bool:
    """Find an equal row that was written to the partition (None: to any partition). If there is one, remove it and
    return True.

    ``there`` lists the partitions of the equal rows.
    """
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
            return []  # nothing was written to it yet: a write would have created it
        raise


def _marks(rows: pa.RecordBatch) -> Iterator[bytes]:
    """Yield a short digest for each row. Rows with equal key, value and headers have equal digests."""
    columns = [rows.column(name).to_pylist() if name in rows.schema.names else [None] * rows.num_rows
               for name in ("key", "value", "headers")]  # fmt: skip
    for key, value, pairs in zip(*columns, strict=True):
        parts = [key, value, *(part for pair in pairs or () if pair for part in (pair["key"], pair["value"]))]
        yield hashlib.blake2b(b"".join(map(_unambiguous, parts)), digest_size=16).digest()


def _unambiguous(part: Any) -> bytes:
    if part is None:
        return b"-"
    data = part.encode() if isinstance(part, str) else part
    return b"%d:%b" % (len(data), data)
