"""Send records with librdkafka and report those that were not acknowledged."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from parley.tools.cli.invocation import CommandError
from parley.tools.cli.librdkafka import Connection, topic_right
from parley.tools.cli.produce.line_reader import InputRecord, LineFormat, parse_line
from parley.tools.cli.produce.silence import Silence
from parley.tools.plurals import plural

_SAYS_WHY: Final = 8
"""The first version of Produce whose response contains the reason why a batch was rejected (KIP-467)."""
_PATIENCE_S: Final = 5.0
"""How long to wait for an acknowledgement, in seconds, before looking for the reason that none arrives."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A record that was not acknowledged, and librdkafka's reason."""

    reason: str
    code: str
    topic: str
    partition: int
    record: InputRecord


@dataclass(slots=True)
class Sender:
    """A librdkafka producer that counts acknowledged and failed records."""

    producer: Any
    connection: Connection
    topic: str
    is_idempotent: bool
    acknowledged: int = 0
    failed: int = 0
    last_failure: Failure | None = None
    warned: str = ""
    """The reason given in the latest warning, which is not repeated."""

    @property
    def silence(self) -> Silence:
        return Silence(self.connection, self.topic, self.is_idempotent)

    def send(self, record: InputRecord, *, wait: bool) -> None:
        """Queue a record, waiting for space in the queue. With ``wait``, also waits until all records are acknowledged
        or have failed. Raises ``CommandError`` if librdkafka rejects the record or reports a fatal error."""
        from confluent_kafka import KafkaException

        def delivered(error: Any, message: Any) -> None:
            self._delivered(error, message, record)

        while True:
            try:
                self.producer.produce(
                    self.topic, record.value, record.key, headers=list(record.headers), on_delivery=delivered
                )
                break
            except BufferError:
                self._poll(0.1)
            except KafkaException as error:
                raise CommandError(refused_by_client(error.args[0])) from error
        if wait:
            self.finish()
        else:
            self._poll(0)

    def _poll(self, timeout_s: float) -> None:
        with _fatal_errors():
            self.producer.poll(timeout_s)

    def finish(self) -> None:
        """Wait until every record is acknowledged or has failed. While no record is acknowledged for some seconds,
        warns of the reason if it is known. Raises ``CommandError`` if librdkafka reports a fatal error."""
        done = -1
        while self._flush():
            before, done = done, self.acknowledged + self.failed
            if before == done or not done:
                self._warn(self.silence.reason())

    def _flush(self) -> int:
        """Wait some seconds for acknowledgements. Returns the number of records that are still not acknowledged."""
        with _fatal_errors():
            return int(self.producer.flush(_PATIENCE_S))

    def _warn(self, reason: str) -> None:
        if reason and reason != self.warned:
            self.warned = reason
            print(f"Warning: no record is acknowledged: {reason}; waiting.", file=sys.stderr, flush=True)

    def _delivered(self, error: Any, message: Any, record: InputRecord) -> None:
        if error is None:
            self.acknowledged += 1
            self.connection.on_response()
        else:
            self.failed += 1
            self.last_failure = Failure(error.str(), error.name(), message.topic(), message.partition(), record)


@contextmanager
def _fatal_errors() -> Iterator[None]:
    """Turn a fatal error of librdkafka, after which the producer sends nothing, into ``CommandError``.

    librdkafka's binding raises it while it calls the callbacks of the records, so it may be the cause of a SystemError.
    """
    from confluent_kafka import KafkaException

    try:
        yield
    except (KafkaException, SystemError) as error:
        fatal: BaseException | None = error
        while fatal is not None and not isinstance(fatal, KafkaException):
            fatal = fatal.__cause__ or fatal.__context__
        if fatal is None:
            raise
        raise CommandError(f"The client cannot send any record: {_fatal_reason(fatal.args[0])}") from error


def _fatal_reason(error: Any) -> str:
    if error.name() == "CLUSTER_AUTHORIZATION_FAILED":  # for a producer id, the user needs the right Write on any topic
        return _without_right(error.str())
    return f"{error.str()}."


def refused_by_client(error: Any) -> str:
    """Return why librdkafka did not queue a record, such as its size or missing rights."""
    if error.name() == "TOPIC_AUTHORIZATION_FAILED":
        return f"A record was refused by the client: {_without_right(error.str())}"
    larger = " For larger records set --producer-property message.max.bytes=..."
    return f"A record was refused by the client: {error.str()}.{larger if error.name() == 'MSG_SIZE_TOO_LARGE' else ''}"


def _without_right(text: str) -> str:
    return f"{text}. The user lacks the right Write on the topic. {topic_right('Write')}"


def send_lines(lines: Iterable[bytes], form: LineFormat, sender: Sender, *, sync: bool) -> None:
    """Send all lines, and wait for the acknowledgements. Raises ``CommandError`` immediately for a line that cannot be
    parsed or queued, and at the end if any record was not acknowledged."""
    try:
        for number, line in enumerate(lines, start=1):
            sender.send(parse_line(line, form, number), wait=sync)
    finally:
        sender.finish()
    if sender.last_failure is not None:
        why = reason(sender.last_failure, sender)
        raise CommandError(f"{plural(sender.failed, 'record')} not acknowledged; the last one: {why}")


def reason(failure: Failure, sender: Sender) -> str:
    """Return why a record was not acknowledged, as sentences, with the broker's message if it sends one."""
    match failure.code:
        case "INVALID_RECORD":
            return f"{_message_of_broker(failure, sender.connection) or failure.reason} ({failure.code})."
        case "TOPIC_AUTHORIZATION_FAILED":
            return _without_right(failure.reason)
        case "_MSG_TIMED_OUT":
            why = sender.silence.reason() or sender.warned
            return f"{failure.reason}: {why}." if why else f"{failure.reason}."
    return f"{failure.reason}."


def _message_of_broker(failure: Failure, connection: Connection) -> str:
    """Return the broker's message for a rejected record, or an empty string. librdkafka does not report it, so the
    record is sent again to get it."""
    from parley.tools.cli.cluster_client import on_cluster

    try:
        return on_cluster(connection.bootstrap, connection.security, _Offer(failure).ask)
    except CommandError:  # the broker no longer responds, or only librdkafka can use the login settings
        return ""


@dataclass(frozen=True, slots=True)
class _Offer:
    """A rejected record, which is sent again in a separate Produce request."""

    failure: Failure

    async def ask(self, client: Any) -> str:
        """Return the broker's message. The message is empty if the broker sends none, or if it accepts the record this
        time."""
        from parley.broker.runtime.clock import SYSTEM_CLOCK
        from parley.protocol.messages.produce import ProduceRequest
        from parley.protocol.records.batch import build
        from parley.protocol.records.record import Record

        failure, record = self.failure, self.failure.record
        batch = build([Record(0, SYSTEM_CLOCK.wall_ms(), record.key, record.value, record.headers)])
        node = await client.leader(failure.topic, failure.partition)
        version = min(await client.version_for(ProduceRequest, node=node), 12)  # later versions identify topics by id
        if version < _SAYS_WHY:
            return ""
        part = ProduceRequest.PartitionProduceData(index=failure.partition, records=bytes(batch))
        topic = ProduceRequest.TopicProduceData(name=failure.topic, partition_data=[part])
        request = ProduceRequest(acks=1, timeout_ms=10_000, topic_data=[topic])
        answer = await client.send(request, node=node, version=version)
        found = answer.responses[0].partition_responses[0]
        said = (found.error_message or "").rstrip(".")
        details = [(one.batch_index_error_message or "").rstrip(".") for one in found.record_errors]
        return ": ".join([said, *(one for one in details[:1] if one and one not in said)])
