"""Writes records of tasks to topics, idempotently or in transactions, and creates topics."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from parley.pipeline.client.cluster import Cluster
from parley.pipeline.client.writing import Producer, Writing
from parley.pipeline.connect.errors import ConnectError
from parley.pipeline.connect.tasks.conversion import Outgoing
from parley.pipeline.connect.tasks.spec import ClientSettings
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.topics import CreateTopicsRequest
from parley.protocol.records.compression import Compression

_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("timestamp", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", _HEADERS),
    ]
)
_TIMEOUT_MS: Final = 30_000
_DELIVERY_MS: Final = 120_000
_TRANSACTION_MS: Final = 60_000
_log = logging.getLogger(__name__)


class TopicWriter:
    """Writes the records of one task, idempotently.

    After an error it gets a new producer id, so records that failed may be in the topic twice."""

    def __init__(self, cluster: Cluster, settings: ClientSettings) -> None:
        self._cluster = cluster
        self._writing = Writing(
            compression=_compression(settings.given.get("compression.type", "none")),
            delivery_timeout_ms=settings.integer("delivery.timeout.ms", _DELIVERY_MS),
        )
        self._producer: Producer | None = None

    def write(self, records: Sequence[Outgoing]) -> None:
        """Write the records. They are in their topics when this returns. Raises KafkaError, or ValueError if one cannot
        be a record.
        """
        if not records:
            return
        if self._producer is None:
            self._producer = Producer(self._cluster, self._writing)
        try:
            self._producer.write(_rows(records))
            self._producer.flush()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()


class TransactionWriter:
    """Writes records of one task in transactions.

    A transaction starts with the first record after the end of the previous one. Every method may raise KafkaError.
    After an error, only ``close`` may be called.
    """

    def __init__(self, cluster: Cluster, settings: ClientSettings, transactional_id: str) -> None:
        writing = Writing(
            transactional_id=transactional_id,
            compression=_compression(settings.given.get("compression.type", "none")),
            delivery_timeout_ms=settings.integer("delivery.timeout.ms", _DELIVERY_MS),
            transaction_timeout_ms=settings.integer("transaction.timeout.ms", _TRANSACTION_MS),
        )
        self._producer = Producer(cluster, writing)
        self._is_open = False

    def claim(self) -> None:
        """Fence earlier owners of the transactional id, and abort their open transactions."""
        self._producer.identity()

    def write(self, records: Sequence[Outgoing]) -> None:
        """Add records to the transaction. Raises ValueError if one cannot be a record."""
        if records:
            self._add(_rows(records), None)

    def write_keyed(self, topic: str, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Add pairs of key and value, at least one, to the transaction, each to the partition of its key."""
        keys, values = zip(*records, strict=True)
        columns = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
        self._add(pa.RecordBatch.from_pydict(columns), topic)

    def _add(self, rows: pa.RecordBatch, topic: str | None) -> None:
        if not self._is_open:
            self._producer.begin()
            self._is_open = True
        self._producer.write(rows, topic=topic)

    def flush(self) -> None:
        """Wait until all added records are in their topics. Readers of committed records do not see them yet."""
        if self._is_open:
            self._producer.flush()

    def commit(self) -> None:
        """Commit the transaction, if one is open."""
        if self._is_open:
            self._producer.commit()
            self._is_open = False

    def abort(self) -> bool:
        """Abort the transaction. Returns False if none is open."""
        was_open, self._is_open = self._is_open, False
        if was_open:
            self._producer.abort()
        return was_open

    def close(self) -> None:
        """Abort an open transaction if possible. Otherwise the id's next owner does, or the broker after a timeout."""
        try:
            self.abort()
        except (KafkaError, RuntimeError) as error:
            _log.warning("a transaction stays open: %s", error)
        finally:
            self._producer.close()


def _rows(records: Sequence[Outgoing]) -> pa.RecordBatch:
    *columns, headers = (list(column) for column in zip(*records, strict=True))
    columns.append([[{"key": key, "value": value} for key, value in one] or None for one in headers])
    arrays = [pa.array(column, kind) for column, kind in zip(columns, _SCHEMA.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _compression(name: str) -> Compression:
    try:
        return Compression[name.strip().upper()]
    except KeyError:
        raise ConnectError(f"Invalid value {name} for configuration compression.type") from None


def create_topic(
    cluster: Cluster, name: str, partitions: int, replicas: int, configs: Mapping[str, str] | None = None
) -> None:
    """Create a topic if it is missing. With -1 partitions or replicas, the broker's default applies. Raises
    ConnectError with the broker's reason.
    """
    kind = CreateTopicsRequest
    settings = [kind.CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()]
    topic = kind.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=replicas, assignments=[], configs=settings
    )

    async def ask(client: Client) -> Any:
        if any(one.name == name and not one.error_code for one in (await client.metadata([name])).topics):
            return None
        return await client.send(kind(topics=[topic], timeout_ms=_TIMEOUT_MS), node=await client.controller())

    try:
        answer = cluster.retry(ask)
    except KafkaError as error:
        raise ConnectError(f"The topic {name} could not be created: {error.message}") from error
    if answer is None:
        return
    made = answer.topics[0]
    if made.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
        reason = made.error_message or ErrorCode(made.error_code).message
        raise ConnectError(f"The topic {name} could not be created with {replicas} replicas: {reason}")
