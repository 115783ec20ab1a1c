"""Writes Arrow rows to topics, from blocking code.

A ``Producer`` belongs to one thread and uses a ``Cluster``, which it does not close. It is idempotent: each record is
written to its partition once and in order, however often it is sent. With a transactional id, readers of committed
records see everything that was written between ``begin`` and ``commit``, or nothing.

Rules:

* Memory is limited: rows are collected up to ``buffer_bytes``, then encoded. ``write`` waits while ``in_flight_bytes``
  are in flight.
* Rows are guaranteed to be written only after ``flush`` or ``commit`` has returned.
* After an error the producer cannot be used, because it does not know what was written; ``abort`` makes a transactional
  producer usable again. A KafkaError contains the code. Rows that cannot be records raise ValueError, at ``flush`` at
  the latest.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from parley.pipeline.client import transactions
from parley.pipeline.client.cluster import Cluster, TopicPartition
from parley.pipeline.client.encode import BATCH_BYTES, columns_of, encode
from parley.pipeline.client.group_offsets import Committed
from parley.pipeline.client.partitioner import Partitioner
from parley.pipeline.client.sending import ProducerId, Sender, Written
from parley.protocol.client import Client
from parley.protocol.errors import KafkaError, check_code
from parley.protocol.records.compression import Compression

__all__ = ["Producer", "Writing", "Written"]

_EPOCH_MAX: Final = 0x7FFF
_METADATA_AGE_MS: Final = 300_000
"""The age at which the number of a topic's partitions is looked up again (``metadata.max.age.ms``)."""
_COLUMNS: Final = frozenset({"key", "value", "headers", "timestamp", "topic", "partition"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """The settings of a producer, in a form that can be pickled."""

    transactional_id: str | None = None
    compression: Compression = Compression.NONE
    compression_level: int | None = None
    batch_bytes: int = BATCH_BYTES
    """The size of a batch before compression; at most the topic's ``max.message.bytes``."""
    buffer_bytes: int = 8 * 1024 * 1024
    """How many bytes of rows are encoded together. A larger value means larger batches and fewer requests."""
    in_flight_bytes: int = 32 * 1024 * 1024
    delivery_timeout_ms: int = 120_000
    """How long writing a batch, with all its retries, may take (``delivery.timeout.ms``)."""
    transaction_timeout_ms: int = 60_000
    """The coordinator aborts a transaction that is open for longer (``transaction.timeout.ms``)."""


@dataclass(slots=True)
class _Topic:
    partitions: int
    learned_ms: int
    partitioner: Partitioner


class Producer:
    """Writes rows: ``with Producer(cluster) as producer: producer.write(rows, topic="t")``.

    At the end of the block, an open transaction is aborted. Without a transaction, the rows are flushed.

    ``now_ms`` returns the timestamp of rows without one. ``seed`` decides the first partition of records without a key.
    """

    def __init__(
        self,
        cluster: Cluster,
        writing: Writing | None = None,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        seed: int | None = None,
    ) -> None:
        self._cluster = cluster
        self._writing = writing or Writing()
        self._now_ms = now_ms
        self._random = random.Random(seed)
        self._topics: dict[str, _Topic] = {}
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._producer: ProducerId | None = None
        self._renewed: ProducerId | None = None
        """The next identity, if the cluster need not allocate one."""
        self._sender: Sender | None = None
        self._in_transaction = False
        self._added: set[TopicPartition] = set()
        self._added_groups: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._in_transaction:
                self.abort()
            elif error is None:
                self.flush()
        except KafkaError:
            if error is None:  # otherwise the first error is more informative
                raise
        finally:
            self.close()

    # Writing.

    def write(self, rows: pa.RecordBatch, *, topic: str | None = None) -> None:
        """Add rows. Their columns are those of ``parley.pipeline.client.encode`` and, optionally, ``partition``. If a
        row names no partition, its key decides.

        The rows go to ``topic``, or to the topic in the column ``topic``. A missing topic is created if the broker
        allows it. Rows of one partition keep their order. Raises ValueError for rows that cannot be records, or if a
        transactional producer has no open transaction, and KafkaError if these or earlier rows cannot be written.
        """
        self._check_may_write()
        rows = _prepared(rows, topic)
        if not rows.num_rows:
            return
        if self._held and self._held[0].schema != rows.schema:
            self._send_held()
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        if self._held_bytes >= self._writing.buffer_bytes:
            self._send_held()

    def identity(self) -> ProducerId:
        """Return the identity in this producer's batches. The first call gets it from the cluster.

        Raises KafkaError.
        """
        self._identified()
        assert self._producer is not None
        return self._producer

    def renew(self) -> None:
        """Continue with an identity that no batch has yet: the next epoch of the producer id, with sequences from 0.

        Brokers accept an epoch that they did not allocate (KIP-360), and reject late batches of the previous epoch.
        Topics are looked up again. Raises ValueError if the producer is transactional, and KafkaError if it cannot
        flush.
        """
        if self._writing.transactional_id is not None:
            raise ValueError("the coordinator gives the epochs of a transactional id")
        self.flush()
        self.close()
        used, self._producer = self._producer, None
        if used is not None and used.epoch < _EPOCH_MAX:
            self._renewed = used._replace(epoch=used.epoch + 1)
        self._topics.clear()

    def partition_count(self, topic: str) -> int:
        """Return the number of a topic's partitions. A missing topic is created if the broker allows it. Raises
        KafkaError."""
        return self._known(topic).partitions

    def flush(self) -> list[Written]:
        """Wait until everything is written. Returns what was written since the last call. Raises KafkaError, and
        ValueError for rows that cannot be records.
        """
        self._send_held()
        sender = self._sender
        return [] if sender is None else self._cluster.run(lambda client: sender.drain())

    def close(self) -> None:
        """Discard everything that is not flushed. An open transaction is ended by its timeout, or by the next producer
        with its id."""
        self._stop(settle=False)

    def _stop(self, *, settle: bool) -> None:
        self._held, self._held_bytes = [], 0
        sender, self._sender = self._sender, None
        if sender is not None:
            self._cluster.run(lambda client: sender.stop(settle=settle))

    # Transactions.

    def begin(self) -> None:
        """Open a transaction. The first call fences older producers with this id, and aborts their open transaction.

        Raises ValueError without a transactional id, or if a transaction is already open, and KafkaError.
        """
        if self._writing.transactional_id is None:
            raise ValueError("a transaction needs a transactional id")
        if self._in_transaction:
            raise ValueError("a transaction is already open")
        self._identified()
        self._in_transaction = True

    def add_offsets(self, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Add a group's offsets to the open transaction: they are committed with it, or not at all.

        Raises ValueError if no transaction is open, and KafkaError.
        """
        transactional_id, producer = self._writing.transactional_id, self._producer
        if not self._in_transaction or transactional_id is None or producer is None:
            raise ValueError("no transaction is open")
        self._added_groups.add(group)
        self._cluster.retry(lambda client: transactions.add_group(client, transactional_id, producer, group))
        self._cluster.retry(
            lambda client: transactions.commit_offsets(client, transactional_id, producer, group, offsets)
        )

    def commit(self) -> list[Written]:
        """Write everything and commit the transaction. Returns what was written.

        After a KafkaError the transaction may be committed. ``abort`` then raises INVALID_TXN_STATE; otherwise it
        aborts the transaction. Raises ValueError if no transaction is open, or for rows that cannot be records.
        """
        written = self.flush()
        self._end_transaction(committed=True)
        return written

    def abort(self) -> None:
        """Abort the open transaction, even after an error. Afterwards, the producer can be used again.

        If this raises KafkaError, create a new producer. PRODUCER_FENCED and INVALID_PRODUCER_EPOCH mean that another
        producer has taken over the transactional id, or that the coordinator has aborted the transaction.
        INVALID_TXN_STATE means that the transaction was committed. Raises ValueError if no transaction is open.
        """
        self._stop(settle=True)  # records that arrive after the abort would stay open
        try:
            self._end_transaction(committed=False)
        finally:
            self._forget_transaction()
        self._identified()  # with a new epoch, which fences late batches

    def _end_transaction(self, *, committed: bool) -> None:
        transactional_id, producer = self._writing.transactional_id, self._producer
        if not self._in_transaction or transactional_id is None or producer is None:
            raise ValueError("no transaction is open")
        if self._added or self._added_groups:
            self._cluster.retry(
                lambda client: transactions.end(client, transactional_id, producer, committed=committed)
            )
        self._forget_transaction()

    def _forget_transaction(self) -> None:
        self._in_transaction = False
        self._added.clear()
        self._added_groups.clear()

    def _check_may_write(self) -> None:
        if self._writing.transactional_id is not None and not self._in_transaction:
            raise ValueError("a transactional producer writes only between begin and commit")

    def _identified(self) -> Sender:
        """Return the sender. The first call creates it, with a producer id from the cluster. Raises KafkaError."""
        if self._sender is None:
            writing, current = self._writing, self._producer
            producer = self._renewed or self._cluster.retry(
                lambda client: transactions.producer_id(
                    client, writing.transactional_id, writing.transaction_timeout_ms, current
                )
            )
            self._producer, self._renewed = producer, None
            request_timeout_s = self._cluster.connection.request_timeout_ms / 1000

            async def make(client: Client) -> Sender:
                return Sender(
                    client,
                    producer,
                    transactional_id=writing.transactional_id,
                    in_flight_bytes=writing.in_flight_bytes,
                    request_timeout_s=request_timeout_s,
                    delivery_timeout_s=writing.delivery_timeout_ms / 1000,
                )

            self._sender = self._cluster.run(make)
        return self._sender

    # From rows to batches.

    def _send_held(self) -> None:
        held, self._held, self._held_bytes = self._held, [], 0
        if not held:
            return
        for rows in pa.Table.from_batches(held).combine_chunks().to_batches():
            topics = pc.unique(rows.column("topic")).to_pylist()
            for topic in topics:
                theirs = rows if len(topics) == 1 else rows.filter(pc.equal(rows.column("topic"), topic))
                self._send(self._encoded(topic, theirs))

    def _encoded(self, topic: str, rows: pa.RecordBatch) -> list[tuple[TopicPartition, bytearray]]:
        columns = columns_of(rows, self._now_ms())
        known = self._known(topic)
        partitions = known.partitioner.assign(columns.keys, columns.values, known.partitions)
        if "partition" in rows.schema.names:
            partitions = _chosen(rows.column("partition"), partitions, topic, known.partitions)
        order = np.argsort(partitions, kind="stable")
        ends = np.cumsum(np.bincount(partitions, minlength=known.partitions))
        writing = self._writing
        return [
            (TopicPartition(topic, number), batch)
            for number, (begin, end) in enumerate(zip((0, *ends[:-1]), ends, strict=True))
            if end > begin
            for batch in encode(
                columns,
                order[begin:end],
                batch_bytes=writing.batch_bytes,
                compression=writing.compression,
                level=writing.compression_level,
            )
        ]

    def _known(self, topic: str) -> _Topic:
        known = self._topics.get(topic)
        now_ms = self._now_ms()
        if known is None or now_ms - known.learned_ms > _METADATA_AGE_MS:
            partitions = self._cluster.retry(lambda client: _partition_count(client, topic))
            partitioner = known.partitioner if known else Partitioner(self._random.randrange(partitions))
            known = self._topics[topic] = _Topic(partitions, now_ms, partitioner)
        return known

    def _send(self, batches: list[tuple[TopicPartition, bytearray]]) -> None:
        sender, producer, transactional_id = self._identified(), self._producer, self._writing.transactional_id
        new = {partition for partition, _ in batches} - self._added
        if transactional_id is not None and producer is not None and new:
            self._cluster.retry(
                lambda client: transactions.add_partitions(client, transactional_id, producer, sorted(new))
            )
            self._added |= new
        self._cluster.run(lambda client: sender.add(batches))


async def _partition_count(client: Client, topic: str) -> int:
    """Return the number of a topic's partitions. A missing topic is created if ``auto.create.topics.enable`` is set.
    Raises KafkaError.
    """
    described = (await client.metadata([topic], create=True)).topics[0]
    check_code(described.error_code, f"topic {topic!r}")
    return len(described.partitions)


def _prepared(rows: pa.RecordBatch, topic: str | None) -> pa.RecordBatch:
    """Return the rows with only the columns that records have, and ``topic``. Raises ValueError if a column is missing
    or has a wrong type.
    """
    columns: dict[str, Any] = {name: rows.column(name) for name in rows.schema.names if name in _COLUMNS}
    if "value" not in columns:
        raise ValueError(f"column 'value' is missing. Columns: {', '.join(rows.schema.names)}")
    if topic is not None:
        columns["topic"] = pa.repeat(pa.scalar(topic, pa.string()), rows.num_rows)
    elif "topic" not in columns:
        raise ValueError("no topic is given, and column 'topic' is missing")
    elif not (pa.types.is_string(columns["topic"].type) or pa.types.is_large_string(columns["topic"].type)):
        raise ValueError(f"column 'topic' must be string, not {columns['topic'].type}")
    elif columns["topic"].null_count:
        raise ValueError("column 'topic' is null in some rows")
    if "partition" in columns and not pa.types.is_integer(columns["partition"].type):
        raise ValueError(f"column 'partition' must be an integer, not {columns['partition'].type}")
    return pa.RecordBatch.from_pydict(columns)


def _chosen(column: pa.Array, by_key: npt.NDArray[np.int32], topic: str, partitions: int) -> npt.NDArray[np.int32]:
    """Return the partition of each row: the one that the row names, otherwise the one that its key determines
    (``by_key``). Raises ValueError for a partition that the topic lacks.
    """
    chosen = column.cast(pa.int64()).fill_null(-1).to_numpy()
    named = np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    wrong = chosen[named & ((chosen < 0) | (chosen >= partitions))]
    if len(wrong):
        raise ValueError(f"column 'partition' contains {wrong[0]}; {topic} has partitions 0 to {partitions - 1}")
    return np.where(named, chosen, by_key).astype(np.int32)
