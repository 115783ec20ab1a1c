"""Decode the keys and values of records, with Kafka's decoder classes or as records of internal topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from parley.protocol.records.record import Record
from parley.tools.cli.dump_log.internal_records import DECODERS
from parley.tools.cli.dump_log.output import DumpOptions
from parley.tools.cli.invocation import CommandError

_PACKAGES: Final = ("org.apache.kafka.tools.api.", "kafka.serializer.")
"""The packages of the classes, in current versions and before Kafka 4."""


def _number(size: int) -> Callable[[bytes], str]:
    """Return a decoder for a signed number in the first ``size`` bytes. Shorter data is shown in hexadecimal."""

    def read(data: bytes) -> str:
        if len(data) < size:
            return f"not a number of {size} bytes: {data.hex()}"
        return str(int.from_bytes(data[:size], "big", signed=True))

    return read


_CLASSES: Final[dict[str, Callable[[bytes], str]]] = {
    "StringDecoder": lambda data: data.decode(errors="replace"),
    "DefaultDecoder": lambda data: data.decode(errors="replace"),
    "LongDecoder": _number(8),
    "IntegerDecoder": _number(4),
}


def _short(name: str) -> str:
    for package in _PACKAGES:
        name = name.removeprefix(package)
    return name


def check(name: str) -> None:
    """Raise ``CommandError`` for an unknown decoder class."""
    if _short(name) not in _CLASSES:
        raise CommandError(f"Unknown decoder class '{name}'. Available: {', '.join(_CLASSES)}.")


def texts(record: Record, options: DumpOptions) -> tuple[str | None, str | None]:
    """Decode the key and value of a record to text. Each is None if it is null."""
    if options.decoder:
        return DECODERS[options.decoder](record)
    return _text(record.key, options.key_class), _text(record.value, options.value_class)


def _text(data: bytes | None, name: str) -> str | None:
    return None if data is None else _CLASSES[_short(name) if name else "StringDecoder"](data)
