"""Read records with librdkafka and print them until a limit is reached."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from parley.tools.cli import leaderless
from parley.tools.cli.consume.consumer_config import EARLIEST, LATEST
from parley.tools.cli.consume.formatting import Formatter
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.librdkafka import WAITED_FOR, Connection, reach, reason_of

_OFFSETS_S: Final = 10.0
_MISSING: Final = "UNKNOWN_TOPIC_OR_PART"
MISSING: Final = "The topic '{topic}' does not exist. `parley topics --create --topic {topic}` creates it."


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop. None means no limit."""

    messages: int | None
    silence_ms: int | None


@dataclass(slots=True)
class Printed:
    """The number of records printed so far. It is also correct after an interrupt."""

    count: int = 0


@dataclass(frozen=True, slots=True)
class Source:
    """What to read: a topic, topics that match a regular expression, or one partition from an offset."""

    topic: str = ""
    include: str = ""
    partition: int | None = None
    offset: str = LATEST


def begin(consumer: Any, connection: Connection, source: Source) -> bool:
    """Connect, and subscribe to the topics or assign the partition. Returns False if the topic does not exist.

    Warns if the topic or partition does not exist yet, or has no leader. Raises ``CommandError`` if no broker responds
    or the topic cannot be read.
    """
    metadata = reach(consumer, connection, source.topic or None)
    is_there = not source.topic or _warn_if_missing(metadata.topics[source.topic], source)
    if source.topic:
        leaderless.warn(leaderless.ask(connection, metadata.topics[source.topic], source.partition))
    if source.partition is None:
        consumer.subscribe([source.topic or f"^({source.include})$"])
    else:
        consumer.assign([_position(consumer, source, source.partition)])
    return is_there


def check_topic(consumer: Any, connection: Connection, topic: str) -> None:
    """Raise ``CommandError`` if the topic does not exist, or if no broker responds."""
    error = reach(consumer, connection, topic).topics[topic].error
    if error is not None and error.name() == _MISSING:
        raise CommandError(MISSING.format(topic=topic))


def warn_of_missing(topic: str) -> None:
    """Warn that the topic does not exist yet."""
    _warn(f"the topic '{topic}' does not exist (UNKNOWN_TOPIC_OR_PARTITION); waiting for it.")


def _warn_if_missing(topic: Any, source: Source) -> bool:
    if topic.error is not None and topic.error.name() not in WAITED_FOR:
        raise CommandError(f"The topic '{source.topic}' cannot be read: {reason_of(topic.error)}")
    if topic.error is not None and topic.error.name() == _MISSING:
        warn_of_missing(source.topic)
        return False
    if topic.partitions and source.partition is not None and source.partition not in topic.partitions:
        _warn(
            f"the topic '{source.topic}' has no partition {source.partition}, only 0 to {max(topic.partitions)}; "
            "waiting for it."
        )
    return True


def _position(consumer: Any, source: Source, partition: int) -> Any:
    from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition

    named = {EARLIEST: OFFSET_BEGINNING, LATEST: OFFSET_END}
    if source.offset in named:
        return TopicPartition(source.topic, partition, named[source.offset])
    offset = int(source.offset)
    if offset < 0:
        _, end = consumer.get_watermark_offsets(TopicPartition(source.topic, partition), timeout=_OFFSETS_S)
        offset = max(0, end + offset)
    return TopicPartition(source.topic, partition, offset)


@dataclass(slots=True)
class Reader:
    """The loop that reads a consumer's records and prints them."""

    consumer: Any
    connection: Connection
    write: BinaryIO
    line: Formatter
    skip_errors: bool
    after: Callable[[Any, bool], object] = lambda message, is_written: None
    """Called with each message after it was written (True), or skipped because it cannot be formatted (False)."""

    def run(self, limits: Limits, printed: Printed) -> None:
        """Print records until a limit is reached.

        Raises ``CommandError`` for a fatal error of the consumer or a record that cannot be formatted. With
        ``skip_errors``, prints a warning instead and continues.
        """
        quiet_since = time.monotonic()
        while limits.messages is None or printed.count < limits.messages:
            message = self._next(limits, quiet_since)
            if message is None:
                if limits.silence_ms is not None and (time.monotonic() - quiet_since) * 1000 >= limits.silence_ms:
                    break
            elif message.error() is not None:
                self._on_error(message.error())
            else:
                self.connection.on_response()
                printed.count += 1
                self._print(message)
                quiet_since = time.monotonic()
        self.write.flush()

    def _next(self, limits: Limits, quiet_since: float) -> Any:
        """Return the next message, or None if none arrives within a second or before the limit of silence. Flushes the
        output before waiting."""
        message = self.consumer.poll(0)
        if message is not None:
            return message
        self.write.flush()
        if limits.silence_ms is None:
            return self.consumer.poll(1.0)
        left = limits.silence_ms / 1000 - (time.monotonic() - quiet_since)
        return self.consumer.poll(min(1.0, max(0.0, left)))

    def _print(self, message: Any) -> None:
        try:
            self.write.write(self.line(message))
        except CommandError as error:
            if not self.skip_errors:
                raise
            where = f"{message.topic()}-{message.partition()} at offset {message.offset()}"
            _warn(f"skipping {where}: {error}")
            self.after(message, False)
        else:
            self.after(message, True)

    def _on_error(self, error: Any) -> None:
        if error.name() in WAITED_FOR:
            return  # begin() has already warned
        if not error.retriable() and not self.skip_errors:
            raise CommandError(reason_of(error))
        _warn(reason_of(error))


def _warn(text: str) -> None:
    print(f"Warning: {text}", file=sys.stderr, flush=True)
