"""The options of ``format("parley")``: those of Spark's Kafka source and sink, with the same names.

Rules: the case of a name does not matter, as in Spark. An option that Spark rejects is rejected. An option that Spark
ignores is ignored, with a warning if it resembles a known one. ``kafka.*`` are settings of the Java client. Some of
them mean the same here. Those that would change what is read or written, and are not supported, are rejected. All
others only tune the Java client and are ignored. Every ``OptionError`` says what to write instead.
"""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from parley.pipeline.client.cluster import EARLIEST, LATEST, Connection, Isolation, TopicPartition
from parley.pipeline.client.fetching import FETCH_BYTES
from parley.pipeline.client.writing import Writing
from parley.protocol.records.batch_header import INT32_MAX, INT64_MAX
from parley.protocol.records.compression import Compression
from parley.protocol.security.client_security import SecurityProperties

if TYPE_CHECKING:
    from parley.pipeline.format.typed import TypedColumn


_CHOICES: Final = ("assign", "subscribe", "subscribePattern")
_POLL_TIMEOUT_MS: Final = 120_000
_API_TIMEOUT_MS: Final = 60_000
_MAX_DELAY_MS: Final = 15 * 60_000
_TRANSACTION_TIMEOUT_MS: Final = 15 * 60_000
"""The default transaction timeout: the longest that brokers allow by default, because a task's transaction is open
while its rows arrive.
"""

_REFUSED_AS_SPARK: Final = {
    "auto.offset.reset": "set the start with 'startingOffsets', and the behavior at data loss with 'failOnDataLoss'",
    "key.deserializer": "keys are columns of bytes; convert them with DataFrame operations",
    "value.deserializer": "values are columns of bytes; convert them with DataFrame operations",
    "enable.auto.commit": "offsets are kept in the query's checkpoint, never committed to the cluster",
    "interceptor.classes": "interceptors are Java classes; use DataFrame operations",
}
_REFUSED_OF_SINK: Final = {
    "key.serializer": "keys are columns of bytes or text; create them with DataFrame operations",
    "value.serializer": "values are columns of bytes or text; create them with DataFrame operations",
    "interceptor.classes": "interceptors are Java classes; use DataFrame operations",
    "partitioner.class": "Kafka's own partitioner, or a column 'partition', determines the partition of a row",
    "transactional.id": "each task has its own id; set their prefix with the option 'transactionalIdPrefix'",
}
_TYPED: Final = (
    *(f"{column}{suffix}" for column in ("key", "value") for suffix in ("Format", "Subject", "SchemaVersion")),
    "mode",
)
"""The options that ``parley.pipeline.format.typed`` reads."""
_OF_SOURCE: Final = (
    *_CHOICES, "kafka.bootstrap.servers", "startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp",
    "startingOffsetsByTimestampStrategy", "endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp",
    "failOnDataLoss", "includeHeaders", "minPartitions", "maxRecordsPerPartition", "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger", "maxTriggerDelay", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs", "groupIdPrefix", *_TYPED,
)  # fmt: skip
_OF_SINK: Final = (
    "kafka.bootstrap.servers",
    "topic",
    "deliveryGuarantee",
    "transactionalIdPrefix",
    "checkpointLocation",
    *_TYPED,
)
_UNITS_MS: Final = {"us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


_log = logging.getLogger(__name__)


class OptionError(ValueError):
    """Raised if an option is not supported or invalid. The message names the option, and says what to write."""


class Extreme(Enum):
    """The beginning or the end of the log."""

    EARLIEST = EARLIEST
    LATEST = LATEST


@dataclass(frozen=True, slots=True)
class Specific:
    """An offset for each partition. ``EARLIEST`` and ``LATEST`` mean the ends of the log."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record at or after a time, in ms since the epoch, in every partition."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class TimesOf:
    """The first record at or after a time in ms since the epoch, with a separate time for each partition."""

    timestamps_ms: Mapping[TopicPartition, int]


Position = Extreme | Specific | AtTime | TimesOf


@dataclass(frozen=True, slots=True)
class Chosen:
    """The partitions to read: exactly one of the three fields is set."""

    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] | None = None

    def __str__(self) -> str:
        if self.topics is not None:
            return f"the topics {', '.join(self.topics)}"
        if self.pattern is not None:
            return f"the topics that match {self.pattern!r}"
        return f"the partitions {', '.join(map(str, self.partitions or ()))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What to read: the partitions, the positions, and the size of the pieces."""

    connection: Connection
    chosen: Chosen
    start: Position
    end: Position
    """The position at which a batch query ends. A streaming query does not use it."""
    later_than_all: Extreme | None
    """What to use if all records are before the starting timestamp: LATEST, or None for an error."""
    isolation: Isolation
    include_headers: bool
    fail_on_data_loss: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    fetch_bytes: int
    typed: tuple[TypedColumn, ...] = ()
    """The columns to read with a schema."""


def source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Read the options of a source. Raises ``OptionError``."""
    given = {key.lower(): value for key, value in options.items()}
    _warn_of_misspelled(given, _OF_SOURCE)
    client = _client_settings(given, _REFUSED_AS_SPARK)
    triggers = given if streaming else {}  # a batch query has none: Spark ignores these options
    fewest = _positive(triggers, "minOffsetsPerTrigger")
    most = _positive(triggers, "maxOffsetsPerTrigger")
    if fewest is not None and most is not None and fewest > most:
        raise OptionError(
            f"'minOffsetsPerTrigger' is {fewest}, more than 'maxOffsetsPerTrigger', which is {most}: lower it"
        )
    return SourceOptions(
        connection=connection(
            client, api_timeout_ms=_bounded(given, "kafkaConsumer.pollTimeoutMs", _POLL_TIMEOUT_MS, prefix="")
        ),
        chosen=_chosen(given),
        start=_start(given, streaming),
        end=_end(given, streaming),
        later_than_all=_strategy(given),
        isolation=_isolation(client),
        include_headers=read_boolean(given, "includeHeaders", False),
        fail_on_data_loss=read_boolean(given, "failOnDataLoss", True),
        min_partitions=_positive(given, "minPartitions"),
        max_records_per_partition=_positive(given, "maxRecordsPerPartition"),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=fewest,
        max_trigger_delay_ms=_duration_ms(triggers, "maxTriggerDelay", _MAX_DELAY_MS),
        fetch_bytes=_fetch_bytes(client),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The topics of the rows, and how they are written."""

    connection: Connection
    topic: str | None
    """The topic of all rows; None if each row names its topic."""
    exactly_once: bool
    transactional_id_prefix: str | None
    """The prefix of the tasks' transactional ids; None to write without transactions."""
    writing: Writing
    typed: tuple[TypedColumn, ...] = ()
    """The columns to write with a schema."""


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Read the options of a sink. Raises ``OptionError``."""
    given = {key.lower(): value for key, value in options.items()}
    _warn_of_misspelled(given, _OF_SINK)
    client = _client_settings(given, _REFUSED_OF_SINK)
    guarantee = given.get("deliveryguarantee", "exactly-once").strip().lower()
    if guarantee not in ("at-least-once", "exactly-once"):
        raise OptionError(f"'deliveryGuarantee' is {guarantee!r}; it must be at-least-once or exactly-once")
    topic = given.get("topic")
    if topic is not None and not topic.strip():
        raise OptionError("'topic' is empty; name the topic, or leave the option out and have a column 'topic'")
    return SinkOptions(
        connection=connection(client, api_timeout_ms=_API_TIMEOUT_MS),
        topic=None if topic is None else topic.strip(),
        exactly_once=guarantee == "exactly-once",
        transactional_id_prefix=_transactional_id_prefix(given, guarantee),
        writing=_writing(client),
    )


def _transactional_id_prefix(given: Mapping[str, str], guarantee: str) -> str | None:
    prefix = given.get("transactionalidprefix")
    if prefix is None:
        return None
    if not prefix.strip():
        raise OptionError(
            "'transactionalIdPrefix' is empty; give a prefix for transactional ids, or leave the option out to write"
            " without transactions"
        )
    if guarantee != "exactly-once":
        raise OptionError(
            "'transactionalIdPrefix' needs 'deliveryGuarantee' exactly-once; leave one of the two options out"
        )
    return prefix.strip()


def _writing(client: Mapping[str, str]) -> Writing:
    text = client.get("compression.type", "none").strip().lower()
    if text.upper() not in Compression.__members__:
        kinds = ", ".join(name.lower() for name in Compression.__members__)
        raise OptionError(f"'kafka.compression.type' is {text!r}; it must be one of {kinds}")
    defaults = Writing()
    delivery_ms = _bounded(client, "delivery.timeout.ms", defaults.delivery_timeout_ms)
    return Writing(
        compression=Compression[text.upper()],
        batch_bytes=_bounded(client, "batch.size", defaults.batch_bytes),
        delivery_timeout_ms=delivery_ms,
        transaction_timeout_ms=_bounded(client, "transaction.timeout.ms", _TRANSACTION_TIMEOUT_MS, least=1),
    )


def _warn_of_misspelled(given: Mapping[str, str], names: tuple[str, ...]) -> None:
    known = {name.lower(): name for name in names}
    for name in given.keys() - known.keys():
        if meant := get_close_matches(name, known, 1, 0.8):
            _log.warning("The option '%s' is not known, and ignored: did you mean '%s'?", name, known[meant[0]])


# Topics and partitions.


def only_topic(options: Mapping[str, str]) -> str | None:
    """Return the only topic that the options select by name; None if they select several topics, or a pattern. Raises
    ``OptionError``.
    """
    given = {key.lower(): value for key, value in options.items()}
    topics = {one.strip() for one in given.get("subscribe", "").split(",") if one.strip()}
    if "assign" in given:
        topics = {one.topic for one in _assigned(given["assign"].strip())}
    return topics.pop() if len(topics) == 1 else None


def _chosen(given: Mapping[str, str]) -> Chosen:
    given_names = [name for name in _CHOICES if name.lower() in given]
    if len(given_names) != 1:
        raise OptionError(
            "exactly one of the options 'subscribe' (topics, with commas), 'subscribePattern' and 'assign' must be set;"
            f" {'none is set' if not given_names else ' and '.join(map(repr, given_names)) + ' are'}"
        )
    name, text = given_names[0], given[given_names[0].lower()].strip()
    if name == "assign":
        return Chosen(partitions=_assigned(text))
    if name == "subscribePattern":
        if not text:
            raise OptionError("'subscribePattern' is empty; give a regular expression of topics' names")
        try:
            with warnings.catch_warnings(action="error"):
                re.compile(text)
        except (re.error, FutureWarning) as error:
            raise OptionError(
                f"'subscribePattern' is {text!r}, which is not a valid regular expression in Python: {error}"
            ) from None
        return Chosen(pattern=text)
    topics = tuple(dict.fromkeys(filter(None, (topic.strip() for topic in text.split(",")))))
    if not topics:
        raise OptionError("'subscribe' names no topic; give their names with commas between them")
    return Chosen(topics=topics)


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    example = """{"topic": [0, 1]}"""
    found = _json(text, "assign", example)
    partitions: list[TopicPartition] = []
    for topic, numbers in found.items():
        if not isinstance(numbers, list) or not all(type(number) is int and number >= 0 for number in numbers):
            raise OptionError(
                f"'assign' must give each topic a list of partitions, as {example}; {topic} has {numbers!r}"
            )
        partitions.extend(TopicPartition(topic, number) for number in numbers)
    if not partitions:
        raise OptionError(f"'assign' names no partition; write {example}")
    return tuple(dict.fromkeys(partitions))


# Positions.


def _start(given: Mapping[str, str], streaming: bool) -> Position:
    position = _position(given, "starting")
    if position is None:
        return Extreme.LATEST if streaming else Extreme.EARLIEST
    if not streaming and _names(position, Extreme.LATEST):
        raise OptionError("'startingOffsets' of a batch query cannot be latest (-1): it would read nothing")
    return position


def _end(given: Mapping[str, str], streaming: bool) -> Position:
    if streaming:
        for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
            if name.lower() in given:
                raise OptionError(f"'{name}' is for batch queries; a streaming query has no end (see availableNow)")
    position = _position(given, "ending")
    if position is None:
        return Extreme.LATEST
    if _names(position, Extreme.EARLIEST):
        raise OptionError("'endingOffsets' cannot be earliest (-2): nothing would be read")
    return position


def _names(position: Position, extreme: Extreme) -> bool:
    if isinstance(position, Specific):
        return extreme.value in position.offsets.values()
    return position is extreme


def _position(given: Mapping[str, str], prefix: str) -> Position | None:
    """Read a position, or return None if none is given. Spark's order of precedence: one time for all, times by
    partition, offsets.

    Raises ``OptionError``.
    """
    if (name := f"{prefix}Timestamp").lower() in given:
        return AtTime(_no_less_than_0(read_integer(given, name, 0), name))
    if (name := f"{prefix}OffsetsByTimestamp").lower() in given:
        times = _by_partition(given[name.lower()], name)
        return TimesOf({partition: _no_less_than_0(time, name) for partition, time in times.items()})
    name = f"{prefix}Offsets"
    if name.lower() not in given:
        return None
    text = given[name.lower()].strip()
    if text.upper() in Extreme.__members__:
        return Extreme[text.upper()]
    offsets = _by_partition(text, name)
    for partition, offset in offsets.items():
        if offset < EARLIEST:
            raise OptionError(
                f"'{name}' has {offset} for {partition}; it must be an offset, -1 (latest) or -2 (earliest)"
            )
    return Specific(offsets)


def _by_partition(text: str, name: str) -> dict[TopicPartition, int]:
    example = """{"topic": {"0": 23, "1": 345}}"""
    if name.endswith("Offsets"):
        example = f"earliest, latest or {example}"
    numbers: dict[TopicPartition, int] = {}
    for topic, partitions in _json(text, name, example).items():
        if not isinstance(partitions, dict):
            raise OptionError(f"'{name}' must give each topic its partitions, as {example}; {topic} has {partitions!r}")
        for partition, number in partitions.items():
            if not str(partition).isdecimal() or type(number) is not int or number > INT64_MAX:
                raise OptionError(
                    f"'{name}' has {partition!r}: {number!r} for {topic}; both must be integers, as {example}"
                )
            numbers[TopicPartition(topic, int(partition))] = number
    return numbers


def _json(text: str, name: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise OptionError(f"'{name}' is {text!r}; write {example} ({error})") from None
    if not isinstance(found, dict):
        raise OptionError(f"'{name}' is {text!r}; write {example}")
    return found


def _strategy(given: Mapping[str, str]) -> Extreme | None:
    text = given.get("startingoffsetsbytimestampstrategy", "error").strip().lower()
    if text not in ("error", "latest"):
        raise OptionError(f"'startingOffsetsByTimestampStrategy' is {text!r}; it must be error or latest")
    return Extreme.LATEST if text == "latest" else None


# The settings of the Java client.


def connection(client: Mapping[str, str], *, api_timeout_ms: int) -> Connection:
    """Return the connection to the cluster, from the Java client's settings. ``api_timeout_ms`` is the default of
    ``default.api.timeout.ms``.

    Raises ``OptionError``.
    """
    bootstrap = client.get("bootstrap.servers", "").strip()
    if not bootstrap:
        raise OptionError(
            "'kafka.bootstrap.servers' is missing; set it to the cluster's addresses, as host:port,host:port"
        )
    try:
        return Connection(
            bootstrap=bootstrap,
            client_id=client.get("client.id") or "parley-pipeline",
            request_timeout_ms=_bounded(client, "request.timeout.ms", 30_000, least=1),
            connect_timeout_ms=_bounded(client, "socket.connection.setup.timeout.ms", 10_000, least=1),
            api_timeout_ms=_bounded(client, "default.api.timeout.ms", api_timeout_ms),
            security=_security(client),
        )
    except OptionError:
        raise
    except ValueError as error:
        raise OptionError(f"'kafka.bootstrap.servers' is {bootstrap!r}: {error}") from None


def _client_settings(given: Mapping[str, str], refused: Mapping[str, str]) -> dict[str, str]:
    """Return the ``kafka.*`` options without this prefix. Raises ``OptionError`` for those in ``refused``, which
    contains the reasons.
    """
    settings = {key.removeprefix("kafka."): value for key, value in given.items() if key.startswith("kafka.")}
    for key in settings:
        if key in refused:
            raise OptionError(f"'kafka.{key}' is not supported: {refused[key]}")
    return settings


def _security(client: Mapping[str, str]) -> SecurityProperties:
    """Return the settings for TLS and login. Reads their files once, so that an unusable file is reported early.

    Raises ``OptionError``.
    """
    security = SecurityProperties.of(client)
    try:
        security.read()
    except ValueError as error:
        raise OptionError(f"the options 'kafka.security.protocol', 'kafka.ssl.*' and 'kafka.sasl.*': {error}") from None
    return security


def _isolation(client: Mapping[str, str]) -> Isolation:
    text = client.get("isolation.level", "read_uncommitted").strip().lower()
    try:
        return Isolation[text.upper()]
    except KeyError:
        raise OptionError(
            f"'kafka.isolation.level' is {text!r}; it must be read_uncommitted or read_committed"
        ) from None


def _fetch_bytes(client: Mapping[str, str]) -> int:
    names = ("max.partition.fetch.bytes", "fetch.max.bytes")
    limits = [_bounded(client, name, FETCH_BYTES) for name in names if name in client]
    return min(limits, default=FETCH_BYTES)


# Values.


def read_integer(given: Mapping[str, str], name: str, default: int, *, prefix: str = "") -> int:
    """Return an integer option, or the default. Raises ``OptionError``.

    The names in ``given`` are in lower case. ``prefix`` precedes the option's name in the error.
    """
    text = given.get(name.lower())
    if text is None:
        return default
    try:
        return int(text.strip())
    except ValueError:
        raise OptionError(f"'{prefix}{name}' is {text!r}; it must be an integer, such as {default}") from None


def _bounded(given: Mapping[str, str], name: str, default: int, *, least: int = 0, prefix: str = "kafka.") -> int:
    """Return a 32-bit integer of at least ``least``, as in the Java client. Raises ``OptionError``."""
    number = read_integer(given, name, default, prefix=prefix)
    if not least <= number <= INT32_MAX:
        raise OptionError(f"'{prefix}{name}' is {number}; it must be {least} to {INT32_MAX}")
    return number


def read_boolean(given: Mapping[str, str], name: str, default: bool) -> bool:
    """Return a boolean option, or the default. The names in ``given`` are in lower case. Raises ``OptionError``."""
    text = given.get(name.lower(), str(default)).strip().lower()
    if text not in ("true", "false"):
        raise OptionError(f"'{name}' is {text!r}; it must be true or false")
    return text == "true"


def _positive(given: Mapping[str, str], name: str) -> int | None:
    if name.lower() not in given:
        return None
    number = read_integer(given, name, 1)
    if number <= 0:
        raise OptionError(f"'{name}' is {number}; it must be greater than 0")
    return number


def _no_less_than_0(number: int, name: str) -> int:
    if number < 0:
        raise OptionError(f"'{name}' has {number}; it must be milliseconds since 1970, not negative")
    return number


def _duration_ms(given: Mapping[str, str], name: str, default: int) -> int:
    """Return an option that is a duration, in ms. As in Spark, it is a number with a unit; without a unit, it is in ms.

    Raises ``OptionError``.
    """
    text = given.get(name.lower(), str(default)).strip().lower()
    found = re.fullmatch(r"(\d{1,15})([a-z]*)", text)
    if not found or (found[2] or "ms") not in _UNITS_MS:
        raise OptionError(f"'{name}' is {text!r}; write a number with one of the units {', '.join(_UNITS_MS)}, as 15m")
    return int(int(found[1]) * _UNITS_MS[found[2] or "ms"])
