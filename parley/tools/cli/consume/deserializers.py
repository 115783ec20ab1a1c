"""Kafka's deserializers by their class names, for keys and values that are not text.

Each returns a value, which ``text`` formats as Java's ``toString`` does. Bytes are printed unchanged; Java would print
the address of an array.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, cast

from parley.protocol.uuids import UUID

Value = str | int | float | bool | bytes | None
Deserializer = Callable[[bytes], Value]

_PACKAGE: Final = "org.apache.kafka.common.serialization."


class WrongSize(ValueError):
    """Raised if a deserializer cannot read these bytes. The message is that of Kafka's deserializer."""


def _number(name: str, form: str) -> Deserializer:
    size = struct.calcsize(form)

    def read(data: bytes) -> Value:
        if len(data) != size:
            raise WrongSize(f"Size of data received by {name} is not {size}")
        return cast(int | float, struct.unpack(form, data)[0])

    return read


def _boolean(data: bytes) -> Value:
    if data not in (b"\0", b"\1"):
        raise WrongSize("Unexpected data received by BooleanDeserializer: it is not one byte of 0 or 1")
    return data == b"\1"


def _float(data: bytes) -> Value:
    """Decode a 4-byte float. Returns the shortest decimal number that is stored as these bytes, so that 0.1 is not
    shown as 0.10000000149011612. Raises ``WrongSize`` if there are not exactly 4 bytes."""
    value = cast(float, _number("FloatDeserializer", ">f")(data))
    shortest = (float(f"{value:.{digits}g}") for digits in range(1, 10))
    return next((one for one in shortest if _packed(one) == data), value)


def _packed(value: float) -> bytes:
    try:
        return struct.pack(">f", value)
    except OverflowError:  # rounding exceeded the largest float
        return b""


def _uuid(data: bytes) -> Value:
    try:
        return str(UUID(data.decode()))
    except ValueError as error:
        raise WrongSize(f"Error parsing data into UUID: {error}") from error


def _void(data: bytes) -> Value:
    if data:
        raise WrongSize("Data should be null for a VoidDeserializer.")
    return None


def _printable(data: bytes) -> Value:
    """Format bytes as ``Bytes.toString`` does, with hexadecimal escapes for everything except printable ASCII."""
    return "".join(chr(byte) if 32 <= byte < 127 and byte != 92 else f"\\x{byte:02X}" for byte in data)


_BY_NAME: Final[dict[str, Deserializer]] = {
    "StringDeserializer": lambda data: data.decode(errors="replace"),
    "ByteArrayDeserializer": lambda data: data,
    "ByteBufferDeserializer": lambda data: data,
    "BytesDeserializer": _printable,
    "BooleanDeserializer": _boolean,
    "ShortDeserializer": _number("ShortDeserializer", ">h"),
    "IntegerDeserializer": _number("IntegerDeserializer", ">i"),
    "LongDeserializer": _number("LongDeserializer", ">q"),
    "FloatDeserializer": _float,
    "DoubleDeserializer": _number("DoubleDeserializer", ">d"),
    "UUIDDeserializer": _uuid,
    "VoidDeserializer": _void,
}
NAMES: Final = tuple(_BY_NAME)


def deserializer(name: str) -> Deserializer | None:
    """Return the deserializer with this class name, with or without its package, or None if there is none."""
    return _BY_NAME.get(name.removeprefix(_PACKAGE))


def text(value: Value) -> bytes:
    """Format a value as Java prints it."""
    match value:
        case bytes():
            return value
        case bool():
            return b"true" if value else b"false"
        case float():
            return _java_float(value).encode()
        case _:
            return ("null" if value is None else str(value)).encode()


def _java_float(value: float) -> str:
    """Format as ``Double.toString`` does: always with a fraction, and with an exponent from 10^7 up and below 10^-3."""
    if value != value or value in (float("inf"), float("-inf")):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    exponent = int(f"{value:.16e}".partition("e")[2])
    digits = repr(abs(value)).partition("e")[0].replace(".", "").lstrip("0").rstrip("0")
    return f"{'-' if value < 0 else ''}{digits[:1]}.{digits[1:] or '0'}E{exponent}"
