"""Converts logical types to primitive values and back: unscaled bytes, days, milliseconds (KIP-26)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from parley.pipeline.connect.data import LogicalType, Schema
from parley.pipeline.connect.errors import DataError

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_DAY: Final = dt.date(1970, 1, 1)
_MS: Final = dt.timedelta(milliseconds=1)
_DAY_MS: Final = 86_400_000


def millis_of(moment: dt.datetime) -> int:
    """Return a time as milliseconds since 1970. A time without a time zone is in UTC."""
    return ((moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)) - _EPOCH) // _MS


def from_millis(ms: int) -> dt.datetime:
    """Return the time at these milliseconds since 1970. Raises DataError outside the years 1 to 9999."""
    try:
        return _EPOCH + dt.timedelta(milliseconds=ms)
    except OverflowError:
        raise DataError(f"{ms} ms after 1970 is outside the range of timestamps") from None


def _scale(schema: Schema) -> int:
    try:
        return int(schema.parameters[LogicalType.SCALE])
    except (KeyError, ValueError):
        raise DataError("Invalid Decimal schema: scale parameter not found or not an integer.") from None


def _unscaled(schema: Schema, value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or -exponent != _scale(schema):
        raise DataError(f"The scale of {value} is not {_scale(schema)}, which its schema requires.")
    number = int("".join(map(str, digits))) * (-1 if sign else 1)
    return number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)


def _scaled(schema: Schema, value: bytes) -> Decimal:
    number = int.from_bytes(value, "big", signed=True)
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -_scale(schema)))


def _day(schema: Schema, value: int) -> dt.date:
    try:
        return _EPOCH_DAY + dt.timedelta(days=value)
    except OverflowError:
        raise DataError(f"{value} days after 1970 is outside the range of dates") from None


def _time(schema: Schema, value: int) -> dt.time:
    if not 0 <= value < _DAY_MS:
        raise DataError("Time values must use number of milliseconds greater than 0 and less than 86400000")
    return (_EPOCH + dt.timedelta(milliseconds=value)).time()


def _time_ms(schema: Schema, value: dt.time) -> int:
    return (value.hour * 3600 + value.minute * 60 + value.second) * 1000 + value.microsecond // 1000


FROM_LOGICAL: Final[Mapping[str, Callable[[Schema, Any], Any]]] = {
    LogicalType.DECIMAL: _unscaled,
    LogicalType.DATE: lambda schema, value: (value - _EPOCH_DAY).days,
    LogicalType.TIME: _time_ms,
    LogicalType.TIMESTAMP: lambda schema, value: millis_of(value),
}
"""The functions from a logical value to the primitive value, by the schema's name."""

TO_LOGICAL: Final[Mapping[str, Callable[[Schema, Any], Any]]] = {
    LogicalType.DECIMAL: _scaled,
    LogicalType.DATE: _day,
    LogicalType.TIME: _time,
    LogicalType.TIMESTAMP: lambda schema, value: from_millis(value),
}
"""The functions from a primitive value to the logical value, by the schema's name."""
