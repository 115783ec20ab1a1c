"""Topics as Arrow tables, without Spark: for data that fits into memory, or is processed piece by piece.

``read_topic("localhost:9092", "clicks")`` returns the topic up to its end at the time of the call. ``scan_topic``
yields the same rows in batches and keeps only a few MiB of them in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

import pyarrow as pa

from parley.pipeline.client.cluster import EARLIEST, LATEST, Cluster, Connection, Isolation, LogEnded, TopicPartition
from parley.pipeline.client.decode import decode, kafka_schema
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.security.client_security import SecurityProperties

Where = str | int | datetime | Mapping[int, int]
"""A position in a topic: ``"earliest"``, ``"latest"``, a time (ms since 1970, or a datetime with a time zone), or an
offset for each partition. The position of a time is the first record that is not older."""


def read_topic(
    bootstrap: str,
    topic: str,
    *,
    start: Where = "earliest",
    end: Where = "latest",
    partitions: Iterable[int] | None = None,
    isolation: Isolation = Isolation.READ_COMMITTED,
    include_headers: bool = True,
    client: Mapping[str, str] | None = None,
) -> pa.Table:
    """Read the records from ``start`` up to but excluding ``end``, partition by partition, in the columns of Spark's
    source.

    ``partitions`` limits the read to these partitions. ``client`` contains properties of a Java client for TLS and
    login.

    Raises ValueError for an invalid position or unusable security settings, and KafkaError, for example
    BROKER_NOT_AVAILABLE if no broker responds; UNKNOWN_TOPIC_OR_PARTITION, also for a partition that the topic lacks;
    ``OffsetOutOfRange`` or ``LogEnded`` (``parley.pipeline.client.fetching``) for an offset that the log does not
    contain; ``parley.pipeline.client.decode.BadBatch`` for a batch that cannot be read.
    """
    found = scan_topic(
        bootstrap,
        topic,
        start=start,
        end=end,
        partitions=partitions,
        isolation=isolation,
        include_headers=include_headers,
        client=client,
    )
    return pa.Table.from_batches(found, kafka_schema(include_headers=include_headers))


def scan_topic(
    bootstrap: str,
    topic: str,
    *,
    start: Where = "earliest",
    end: Where = "latest",
    partitions: Iterable[int] | None = None,
    isolation: Isolation = Isolation.READ_COMMITTED,
    include_headers: bool = True,
    client: Mapping[str, str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a topic as Arrow batches, as they arrive. Takes the arguments of ``read_topic``, and raises
    the same errors.
    """
    with Cluster(Connection(bootstrap=bootstrap, security=SecurityProperties.of(client or {}))) as cluster:
        cluster.contact()
        known = cluster.partitions([topic])[topic]
        chosen = known if partitions is None else tuple(partitions)
        for number in chosen:
            if number not in known:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has no partition {number}")
        wanted = [TopicPartition(topic, number) for number in chosen]
        ends = _offsets(cluster, wanted, end, isolation)
        for partition, begin in _offsets(cluster, wanted, start, isolation).items():
            if isinstance(start, Mapping) and end == "latest" and begin > ends[partition]:
                log_end = cluster.offsets({partition: LATEST})[partition]
                if begin > log_end:  # without this check, a truncated log would look like a log without new records
                    raise LogEnded(partition, log_end)
            for fetched in cluster.fetch(partition, begin, ends[partition], isolation):
                yield from decode(fetched, begin, ends[partition], include_headers=include_headers)


def _offsets(
    cluster: Cluster, wanted: list[TopicPartition], where: Where, isolation: Isolation
) -> dict[TopicPartition, int]:
    """Return the offset of a position in each partition. Raises ValueError for an invalid position, and KafkaError."""
    if isinstance(where, Mapping):
        missing = [partition.partition for partition in wanted if partition.partition not in where]
        if missing:
            raise ValueError(f"no offset is given for partition {missing[0]}")
        given = {partition: where[partition.partition] for partition in wanted}
        for partition, offset in given.items():
            if offset < 0:
                raise ValueError(f"{offset} is not a position in {partition}: an offset must not be negative")
        return given
    latest = cluster.offsets(dict.fromkeys(wanted, LATEST), isolation)
    time = _time(where)
    if time == LATEST:
        return latest
    found = cluster.offsets(dict.fromkeys(wanted, time), isolation)
    return {partition: latest[partition] if offset < 0 else offset for partition, offset in found.items()}


def _time(where: str | int | datetime) -> int:
    if isinstance(where, datetime):
        if where.tzinfo is None:
            raise ValueError(f"{where} has no time zone")
        return round(where.timestamp() * 1000)
    if isinstance(where, int) and where >= 0:
        return where
    if where == "earliest":
        return EARLIEST
    if where == "latest":
        return LATEST
    raise ValueError(f"{where!r} is not a position: 'earliest', 'latest', a time, or an offset for each partition")
