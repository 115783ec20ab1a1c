"""Find the start position in each partition, then read with librdkafka, without a group.

The last records of all partitions are collected until each partition has reached the end offset that it had at the
start, and are then shown by time. Later records are shown as they arrive. Partitions that are added later are read too.
"""

from __future__ import annotations

import heapq
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from parley.protocol.topic_partition import TopicPartition
from parley.tools.cli import leaderless
from parley.tools.cli.cluster_client import check, on_cluster
from parley.tools.cli.consume.formatting import Formatter, json_formatter
from parley.tools.cli.consume.reading import MISSING
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.librdkafka import Connection, connect, reason_of, topic_right, translated
from parley.tools.cli.tail.lines import line
from parley.tools.cli.topic_offsets import EARLIEST, LATEST, list_offsets

if TYPE_CHECKING:
    from parley.protocol.client import Client

_REFRESH_S: Final = 5.0
"""The interval at which new partitions are discovered."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to show: the topics, and either the number of last records or the time to start with (``since``: ms since
    1970, or ``EARLIEST``)."""

    topics: tuple[str, ...]
    last: int
    since: int | None
    follow: bool


@dataclass(frozen=True, slots=True)
class Span:
    """The start position in a partition, and the partition's end offset at the start."""

    begin: int
    end: int


def show(wanted: Wanted, bootstrap: str, properties: Mapping[str, str], *, as_json: bool) -> None:
    """Print the records from the start position on, until Ctrl-C or, without ``follow``, up to the end offsets. Raises
    ``CommandError`` if no broker responds or a topic cannot be read."""
    from confluent_kafka import Consumer

    spans = on_cluster(bootstrap, _for_requests(properties), lambda client: positions(client, wanted))
    settings = {
        "client.id": "parley-tail",
        **translated(properties),
        "bootstrap.servers": bootstrap,
        "group.id": "parley-tail",  # librdkafka requires a name; without subscriptions and commits it is not used
        "enable.auto.commit": "false",
        "enable.partition.eof": "true",
        "auto.offset.reset": "earliest",
        "allow.auto.create.topics": "false",
    }
    consumer, connection = connect(Consumer, settings, verbose=False)
    connection.reached = True
    shown: Formatter = (
        json_formatter({}) if as_json else lambda message: line(message, with_topic=len(wanted.topics) > 1)
    )
    try:
        _Tail(consumer, connection, shown, spans).run(wanted)
    finally:
        consumer.close()


def _for_requests(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties used by the requests for offsets. librdkafka's client warns about the others."""
    from parley.protocol.security.client_security import is_security_key

    return {name: value for name, value in properties.items() if is_security_key(name)}


async def positions(client: Client, wanted: Wanted) -> dict[TopicPartition, Span]:
    """Look up the start position and the end offset of each partition. Raises ``CommandError`` if a topic cannot be
    read or a partition has no leader."""
    partitions = await _partitions(client, wanted.topics)

    async def offsets(timestamp: int) -> dict[TopicPartition, int]:
        found = await list_offsets(client, partitions, timestamp)
        for (topic, index), one in found.items():
            check(one.error, doing=f"Partition {index} of the topic '{topic}'")
        return {place: one.offset for place, one in found.items()}

    ends, starts = await offsets(LATEST), await offsets(EARLIEST)
    if wanted.since is None:
        return {one: Span(max(starts[one], ends[one] - wanted.last), ends[one]) for one in partitions}
    if wanted.since == EARLIEST:
        return {one: Span(starts[one], ends[one]) for one in partitions}
    since = await offsets(wanted.since)  # -1: all records are older than the time
    return {one: Span(ends[one] if since[one] < 0 else since[one], ends[one]) for one in partitions}


async def _partitions(client: Client, topics: Sequence[str]) -> list[TopicPartition]:
    from parley.protocol.errors import ErrorCode

    found = []
    for topic in (await client.metadata(topics)).topics:
        name = topic.name or ""
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise CommandError(MISSING.format(topic=name))
        if topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise CommandError(
                f"The user lacks the right Describe or Read on the topic '{name}'. {topic_right('Read')}"
            )
        check(topic.error_code, doing=f"The topic '{name}' cannot be read")
        if reason := leaderless.described_in(topic):
            raise CommandError(f"{reason}. Records can be read only from a leader.")
        found += [(name, one.partition_index) for one in topic.partitions]
    return found


@dataclass(slots=True)
class _Tail:
    """A reader of partitions, which it assigns to itself without a group."""

    consumer: Any
    connection: Connection
    shown: Formatter
    spans: dict[TopicPartition, Span]
    ahead: set[TopicPartition] = field(default_factory=set)
    """The partitions that have not been read up to the end offset that they had at the start."""

    def run(self, wanted: Wanted) -> None:
        """Print the existing records from the start position on, and then new records if ``wanted.follow``."""
        self.ahead = {place for place, span in self.spans.items() if span.begin < span.end}
        self._assign({place: span.begin for place, span in self.spans.items()})
        if wanted.since is None:
            self._show_last(wanted.last)
            if wanted.follow:
                # Records that arrived meanwhile were dropped, so that a busy partition does not fill the memory.
                self._assign({place: span.end for place, span in self.spans.items()})
        elif not wanted.follow:
            self._show_to_the_ends()
        if wanted.follow:
            self._follow(wanted.topics)

    def _assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        from confluent_kafka import TopicPartition as Position

        self.consumer.assign([Position(*place, offset) for place, offset in offsets.items()])

    def _show_last(self, count: int) -> None:
        """Print the newest ``count`` records of all partitions together, sorted by time."""
        newest: list[tuple[int, TopicPartition, int, Any]] = []
        while self.ahead:
            message = self._next(1.0)
            if message is None or self._is_later(message):
                continue
            entry = (message.timestamp()[1], (message.topic(), message.partition()), message.offset(), message)
            (heapq.heappush if len(newest) < count else heapq.heappushpop)(newest, entry)
        self._print([entry[-1] for entry in sorted(newest, key=lambda entry: entry[:3])])

    def _show_to_the_ends(self) -> None:
        while self.ahead:
            message = self._next(1.0)
            if message is not None and not self._is_later(message):
                self._print([message])

    def _is_later(self, message: Any) -> bool:
        """Return True if the record was written after the end offsets were looked up."""
        return bool(message.offset() >= self.spans[message.topic(), message.partition()].end)

    def _follow(self, topics: Sequence[str]) -> None:
        while True:
            refresh = time.monotonic() + _REFRESH_S
            while time.monotonic() < refresh:
                if (message := self._next(1.0)) is not None:
                    self._print([message])
            self._add_new_partitions(topics)

    def _add_new_partitions(self, topics: Sequence[str]) -> None:
        from confluent_kafka import OFFSET_BEGINNING, KafkaException
        from confluent_kafka import TopicPartition as Position

        new = []
        for topic in topics:
            try:
                metadata = self.consumer.list_topics(topic, timeout=1.0)
            except KafkaException:  # no broker responds; the client warns, and reconnects
                return
            new += [(topic, index) for index in metadata.topics[topic].partitions if (topic, index) not in self.spans]
        if new:
            self.spans.update(dict.fromkeys(new, Span(0, 0)))
            self.consumer.incremental_assign([Position(*one, OFFSET_BEGINNING) for one in new])

    def _next(self, timeout_s: float) -> Any:
        """Return the next record, or None if none arrives within the timeout. Records which partitions have reached
        their end offsets. Raises ``CommandError`` for an error that librdkafka does not retry."""
        message = self.consumer.poll(timeout_s)
        if message is None:
            return None
        place = (message.topic(), message.partition())
        error = message.error()
        if error is None:
            self.connection.on_response()
            if message.offset() >= self.spans[place].end - 1:
                self.ahead.discard(place)
            return message
        if error.name() == "_PARTITION_EOF":
            self.ahead.discard(place)
        elif not error.retriable():
            raise CommandError(reason_of(error))
        return None

    def _print(self, messages: Sequence[Any]) -> None:
        for message in messages:
            sys.stdout.buffer.write(self.shown(message))
        sys.stdout.buffer.flush()
