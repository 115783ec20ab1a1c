"""Format records as lines: Kafka's formatters by their class names, and JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from parley.tools.cli.consume.deserializers import NAMES, Deserializer, Value, deserializer, text
from parley.tools.cli.invocation import CommandError

Formatter = Callable[[Any], bytes]
"""Formats a message as bytes, including its newline. Returns no bytes if the message is not to be shown. Raises
``CommandError`` if a deserializer cannot read the message."""

_PACKAGE: Final = "org.apache.kafka.tools.consumer."
_DEFAULT: Final = f"{_PACKAGE}DefaultMessageFormatter"
_FORMER: Final = {
    "kafka.tools.DefaultMessageFormatter": _DEFAULT,
    "kafka.tools.LoggingMessageFormatter": f"{_PACKAGE}LoggingMessageFormatter",
    "kafka.tools.NoOpMessageFormatter": f"{_PACKAGE}NoOpMessageFormatter",
    "kafka.coordinator.group.GroupMetadataManager$OffsetsMessageFormatter": f"{_PACKAGE}OffsetsMessageFormatter",
    "kafka.coordinator.group.GroupMetadataManager$GroupMetadataMessageFormatter": (
        f"{_PACKAGE}GroupMetadataMessageFormatter"
    ),
    "kafka.coordinator.transaction.TransactionLog$TransactionLogMessageFormatter": (
        f"{_PACKAGE}TransactionLogMessageFormatter"
    ),
}
"""The names that the formatters had before Kafka 4."""
_TIMESTAMP_TYPES: Final = {1: "CreateTime", 2: "LogAppendTime"}
_NOT_HELD: Final = "NOT_PRESENT"


@dataclass(frozen=True, slots=True)
class DefaultFormat:
    """The properties of Kafka's default formatter, with their defaults."""

    print_timestamp: bool = False
    print_key: bool = False
    print_offset: bool = False
    print_delivery: bool = False
    print_epoch: bool = False
    print_partition: bool = False
    print_headers: bool = False
    print_value: bool = True
    key_separator: bytes = b"\t"
    line_separator: bytes = b"\n"
    headers_separator: bytes = b","
    null_literal: bytes = b"null"
    deserializers: Mapping[str, Deserializer] = field(default_factory=dict)
    """The deserializers of key, value and headers. Bytes without a deserializer are shown unchanged."""

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> DefaultFormat:
        """Read properties such as ``print.key=true``. Ignores unknown ones with a warning."""
        values: dict[str, Any] = {}
        known = {one.name.replace("_", "."): one.name for one in fields(cls) if one.name != "deserializers"}
        for name, given in properties.items():
            if name in known:
                is_flag = name.startswith("print.")
                values[known[name]] = given.strip().lower() == "true" if is_flag else given.encode()
            elif ".deserializer" not in name:
                print(f"Warning: unknown formatter property '{name}'. Available: {', '.join(known)}, "
                      "key.deserializer, value.deserializer, headers.deserializer.", file=sys.stderr)  # fmt: skip
        return cls(**values, deserializers=deserializers_of(properties))

    def line(self, message: Any) -> bytes:
        """Format one record. Returns no bytes if all parts are switched off. Raises ``CommandError`` if a deserializer
        cannot read it."""
        parts = self._about(message)
        if self.print_headers:
            shown = [name.encode() + b":" + self._shown("headers", data) for name, data in message.headers() or []]
            parts.append(self.headers_separator.join(shown) or b"NO_HEADERS")
        if self.print_key:
            parts.append(self._shown("key", message.key()))
        if self.print_value:
            parts.append(self._shown("value", message.value()))
        return self.key_separator.join(parts) + self.line_separator if parts else b""

    def _about(self, message: Any) -> list[bytes]:
        epoch = message.leader_epoch()
        texts = (
            (self.print_timestamp, timestamp_text(message) or "NO_TIMESTAMP"),
            (self.print_partition, f"Partition:{message.partition()}"),
            (self.print_offset, f"Offset:{message.offset()}"),
            (self.print_delivery, f"Delivery:{delivery_count(message) or _NOT_HELD}"),
            (self.print_epoch, f"Epoch:{_NOT_HELD if epoch is None or epoch < 0 else epoch}"),
        )
        return [shown.encode() for is_wanted, shown in texts if is_wanted]

    def _shown(self, part: str, data: bytes | None) -> bytes:
        # Kafka passes the null literal to the deserializer, which fails or shows a number. Here null is shown as null.
        if data is None or part not in self.deserializers:
            return self.null_literal if data is None else data
        return text(read(self.deserializers[part], data))


def read(how: Deserializer, data: bytes) -> Value:
    """Read a value with its deserializer. Raises ``CommandError`` if the deserializer cannot read it."""
    try:
        return how(data)
    except ValueError as error:
        raise CommandError(f"{error}.") from error


def deserializers_of(properties: Mapping[str, str]) -> dict[str, Deserializer]:
    """Return the deserializers that ``key.deserializer`` and similar properties name, by ``key``, ``value`` and
    ``headers``. Ignores unknown ones with a warning."""
    found = {}
    for part, names in (("key", ("key",)), ("value", ("value",)), ("headers", ("headers", "header"))):
        for name in (properties.get(f"{one}.deserializer") for one in names):
            if not name:
                continue
            how = deserializer(name)
            if how is None:
                print(f"Warning: unknown deserializer '{name}'; bytes are shown as they are. "
                      f"Available: {', '.join(NAMES)}.", file=sys.stderr)  # fmt: skip
            else:
                found[part] = how
    return found


def delivery_count(message: Any) -> int | None:
    """Return the number of times that a share group has delivered the record, or None if the consumer is not in a share
    group."""
    return message.delivery_count() if hasattr(message, "delivery_count") else None  # since confluent-kafka 2.16


def timestamp_text(message: Any) -> str:
    """Format the timestamp with its type. Returns an empty string for a record without a timestamp."""
    kind, timestamp = message.timestamp()
    return f"{_TIMESTAMP_TYPES[kind]}:{timestamp}" if kind in _TIMESTAMP_TYPES else ""


# --- The formatters ---


def _default(properties: Mapping[str, str]) -> Formatter:
    return DefaultFormat.from_properties(properties).line


def _logging(properties: Mapping[str, str]) -> Formatter:
    """Return a formatter that uses the default format, and also prints each record to standard error, because Kafka's
    formatter logs it."""
    line = _default(properties)

    def logged(message: Any) -> bytes:
        key, value = (None if data is None else data.decode(errors="replace") for data in _data(message))
        parts = [timestamp_text(message), "key:null" if key is None else f"key:{key}"]
        parts.append("value:null" if value is None else f"value:{value}")
        print(", ".join(filter(None, parts)), file=sys.stderr)
        return line(message)

    return logged


def _data(message: Any) -> tuple[bytes | None, bytes | None]:
    return message.key(), message.value()


def _nothing(_: Mapping[str, str]) -> Formatter:
    return lambda message: b""


def _stored(kinds: Sequence[int], topic: str) -> Callable[[Mapping[str, str]], Formatter]:
    """Return a factory of formatters for an internal topic. They print one line of JSON for each record whose key has
    one of these types, and nothing for others."""

    def make(_: Mapping[str, str]) -> Formatter:
        from parley.tools.cli.dump_log.internal_records import record_data

        def line(message: Any) -> bytes:
            data = record_data(topic, *_data(message), kinds)
            return b"" if data is None else json.dumps(data, separators=(",", ":")).encode() + b"\n"

        return line

    return make


FORMATTERS: Final[dict[str, Callable[[Mapping[str, str]], Formatter]]] = {
    _DEFAULT: _default,
    f"{_PACKAGE}LoggingMessageFormatter": _logging,
    f"{_PACKAGE}NoOpMessageFormatter": _nothing,
    f"{_PACKAGE}OffsetsMessageFormatter": _stored((0, 1), "__consumer_offsets"),
    f"{_PACKAGE}GroupMetadataMessageFormatter": _stored((2,), "__consumer_offsets"),
    f"{_PACKAGE}TransactionLogMessageFormatter": _stored((0,), "__transaction_state"),
}
"""The formatters by class name."""


def formatter(name: str, properties: Mapping[str, str]) -> Formatter:
    """Return the formatter with this class name, with or without its package. Raises ``CommandError`` if
    there is none."""
    known = _FORMER.get(name, name)
    if known != name:
        print(f"WARNING: {name} is deprecated; use {known} instead.", file=sys.stderr)
    make = FORMATTERS.get(known) or FORMATTERS.get(_PACKAGE + known)
    if make is None:
        raise CommandError(f"Unknown formatter '{name}'. Available: {', '.join(FORMATTERS)}.")
    return make(properties)


def json_formatter(properties: Mapping[str, str]) -> Formatter:
    """Return a formatter that prints one line of JSON per record. Bytes that are not valid UTF-8 are replaced by
    replacement characters."""
    how = deserializers_of(properties)

    def shown(part: str, data: bytes | None) -> Any:
        value = None if data is None else read(how[part], data) if part in how else data
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    def line(message: Any) -> bytes:
        deliveries = delivery_count(message)
        record = {
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            "timestamp": message.timestamp()[1],
            **({} if deliveries is None else {"deliveryCount": deliveries}),
            "key": shown("key", message.key()),
            "value": shown("value", message.value()),
            "headers": [{"key": name, "value": shown("headers", data)} for name, data in message.headers() or []],
        }
        return json.dumps(record, ensure_ascii=False).encode(errors="replace") + b"\n"

    return line
