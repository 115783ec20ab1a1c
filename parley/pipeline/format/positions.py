"""Resolves the positions in the user's options to existing partitions and their offsets."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from parley.pipeline.client.cluster import EARLIEST, LATEST, Cluster, TopicPartition
from parley.pipeline.format.offset_decisions import Offsets, Range
from parley.pipeline.format.options import AtTime, Chosen, Extreme, OptionError, Position, SourceOptions, Specific
from parley.protocol.errors import ErrorCode, KafkaError

_ALL: Final = re.compile(".*")


def chosen_partitions(cluster: Cluster, chosen: Chosen, *, missing_ok: bool = False) -> frozenset[TopicPartition]:
    """Return the chosen partitions that exist. Raises ``OptionError`` if a named topic or partition does not exist,
    unless ``missing_ok`` is set, and KafkaError.

    Called when a query is planned. If no broker is listening, it fails quickly (``Cluster.contact``).
    """
    cluster.contact()
    if chosen.pattern is not None:
        pattern = re.compile(chosen.pattern)
        found = {name: numbers for name, numbers in cluster.partitions(_ALL).items() if pattern.search(name)}
    else:
        topics = chosen.topics or tuple(dict.fromkeys(partition.topic for partition in chosen.partitions or ()))
        found = _topics(cluster, topics, missing_ok)
    there = frozenset(TopicPartition(topic, number) for topic, numbers in found.items() for number in numbers)
    if chosen.partitions is None:
        return there
    missing = frozenset(chosen.partitions) - there
    if missing and not missing_ok:
        raise OptionError(f"'assign' names {', '.join(map(str, sorted(missing)))}, which do not exist in the cluster")
    return there & frozenset(chosen.partitions)


def _topics(cluster: Cluster, topics: Iterable[str], missing_ok: bool) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for topic in topics:
        try:
            found.update(cluster.partitions([topic]))
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            if not missing_ok:
                raise OptionError(
                    f"topic {topic!r} does not exist in the cluster at {cluster.connection.bootstrap}; create it, or"
                    " use 'subscribePattern' for topics that may be created later"
                ) from None
    return found


def earliest(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the first offset of each partition. Raises KafkaError."""
    return cluster.offsets(dict.fromkeys(partitions, EARLIEST))


def latest(cluster: Cluster, partitions: Iterable[TopicPartition], options: SourceOptions) -> dict[TopicPartition, int]:
    """Return the offset after the last readable record of each partition. Raises KafkaError."""
    return cluster.offsets(dict.fromkeys(partitions, LATEST), options.isolation)


def resolve_start(
    cluster: Cluster, options: SourceOptions, partitions: frozenset[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the start offset of each partition.

    Raises ``OptionError`` if the options do not match the existing partitions, or if all records are before the
    starting timestamp and the options do not allow this. Raises KafkaError.
    """
    found = _resolve(cluster, options, options.start, partitions, "startingOffsets")
    without = sorted(partition for partition, offset in found.items() if offset < 0)
    if not without:
        return found
    if options.later_than_all is None:
        raise OptionError(
            f"no record of {', '.join(map(str, without))} is as late as the starting timestamp; choose an earlier one,"
            " or set 'startingOffsetsByTimestampStrategy' to latest to start after the last record"
        )
    return found | latest(cluster, without, options)


def resolve_end(
    cluster: Cluster, options: SourceOptions, partitions: frozenset[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the exclusive end offset of each partition.

    Raises ``OptionError`` if the options do not match the existing partitions, and KafkaError.
    """
    found = _resolve(cluster, options, options.end, partitions, "endingOffsets")
    return found | latest(cluster, [partition for partition, offset in found.items() if offset < 0], options)


def not_before(cluster: Cluster, timestamp_ms: int, whole: Iterable[Range]) -> list[Range]:
    """Return the ranges, each starting at its first record at or after the timestamp. Ranges without such a record are
    left out. Raises KafkaError.

    The ends of the ranges must be determined before this call. Otherwise a record that is appended now could be in a
    range that was left out.
    """
    found = list(whole)
    starts = cluster.offsets({one.partition: timestamp_ms for one in found})
    late = (replace(one, start=max(one.start, starts[one.partition])) for one in found if starts[one.partition] >= 0)
    return [one for one in late if len(one)]


def check_order(start: Offsets, end: Offsets) -> None:
    """Raise ``OptionError`` if a partition's start is after its end, as Spark's Kafka source does."""
    for partition in sorted(start.keys() & end.keys()):
        if start[partition] > end[partition]:
            raise OptionError(
                f"{partition} would be read from offset {start[partition]} to {end[partition]}, which is before it;"
                " start earlier, or end later, but not after the last record"
            )


def _resolve(
    cluster: Cluster, options: SourceOptions, position: Position, partitions: frozenset[TopicPartition], name: str
) -> dict[TopicPartition, int]:
    """Return the offset of the position in each partition; -1 if all records are before the timestamp.

    ``name`` is the option of the position, for ``OptionError``.
    """
    if isinstance(position, Extreme):
        return cluster.offsets(dict.fromkeys(partitions, position.value), options.isolation)
    if isinstance(position, AtTime):
        return cluster.offsets(dict.fromkeys(partitions, position.timestamp_ms), options.isolation)
    specific = isinstance(position, Specific)
    given = position.offsets if isinstance(position, Specific) else position.timestamps_ms
    if given.keys() != partitions:
        missing = ", ".join(map(str, sorted(partitions - given.keys()))) or "none"
        unknown = ", ".join(map(str, sorted(given.keys() - partitions))) or "none"
        raise OptionError(
            f"'{name if specific else f'{name}ByTimestamp'}' must name every partition of {options.chosen} and no"
            f" other; missing: {missing}, not there: {unknown}" + ("; -1 means latest, -2 earliest" if specific else "")
        )
    requested = {partition: number for partition, number in given.items() if not specific or number < 0}
    return dict(given) | cluster.offsets(requested, options.isolation)
