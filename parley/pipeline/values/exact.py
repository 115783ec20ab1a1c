"""Decides which values a column can store exactly, for all of Connect's sinks and ``parley load``.

Column types are Arrow types; a target with other types maps them. ``fitter`` returns a function that turns a value into
the stored value, which is equal to it: 5.0 may be stored as the integer 5, and 5 as the double 5.0. It raises
``DoesNotFit`` for all other values: 5.5 and ``true`` are not integers, 2**53 + 1 is not a double, 5 is not a string.
The error names the field, the kind of the value and the type of the column, never the value itself.

Pure decisions, no I/O. ``widening`` says how a column is widened; docs/values.md describes the whole rule.
"""

from __future__ import annotations

import base64
import datetime as dt
import math
import struct as packing
from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

UNKNOWN: Final = pa.null()
"""The type of a column, or of a part of it, that has contained only nulls and empty lists so far."""
JSON: Final = pa.json_()
"""The type of a column that stores nested values as JSON, in databases without nested types."""
_WHOLE_MAX: Final = 80
"""The maximum number of digits of a whole number in any column."""
_UNIT_MICROSECONDS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}
_NANOSECONDS_FROM: Final = dt.datetime(1677, 9, 22, tzinfo=dt.UTC)
_NANOSECONDS_TO: Final = dt.datetime(2262, 4, 11, tzinfo=dt.UTC)
"""The range of days that 64 bits of nanoseconds since 1970 can express completely."""
INTEGERS: Final[Mapping[Any, int]] = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
EXACT_DOUBLES: Final = 1 << 53
_OWN_CLASSES: Final[Mapping[Any, frozenset[type]]] = {
    **dict.fromkeys(INTEGERS, frozenset({int})),
    pa.float64(): frozenset({int, float}),
    pa.bool_(): frozenset({bool}),
    pa.string(): frozenset({str}),
    pa.binary(): frozenset({bytes}),
}
"""For each type, the Python classes whose values Arrow itself either stores exactly or refuses."""
_NONE: Final[frozenset[type]] = frozenset()
_ADJUSTED_MAX: Final = 400
"""A decimal with a greater exponent fits neither a double nor 38 digits. Writing out 1E+999999999 would take a
gigabyte."""

Fit = Callable[[Any], Any]


class DoesNotFit(ValueError):
    """Raised if a value cannot be stored exactly in a column. ``path`` is the field below the column; "" is the column
    itself.
    """

    def __init__(self, given: str, kind: Any, path: str = "") -> None:
        super().__init__(given, kind, path)
        self.given = given
        self.kind = kind
        self.path = path

    def below(self, name: str) -> DoesNotFit:
        """Return the same error for the value that contains this one as its field ``name``."""
        inner = self.path if not self.path or self.path.startswith("[") else f".{self.path}"
        return DoesNotFit(self.given, self.kind, f"{name}{inner}")

    def __str__(self) -> str:
        kind = "whose type is unknown" if self.kind == UNKNOWN else f"of type {self.kind}"
        where = f" in {self.path}" if self.path else ""
        return f"{self.given}{where} cannot be stored exactly in a column {kind}"


def kind_of(value: Any) -> str:
    """Return the kind of a value in words, for messages."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer" if abs(value) < 1 << 63 else "an integer of more than 64 bits"
        case float():
            return "a number with a fraction" if math.isfinite(value) and not value.is_integer() else _whole_kind(value)
        case Decimal():
            return "a decimal" if value.is_finite() else "a decimal that is not a number"
        case str():
            return "a text"
        case bytes() | bytearray() | memoryview():
            return "bytes"
        case dt.datetime():
            return "a timestamp" if value.utcoffset() is not None else "a timestamp without a time zone"
        case dt.date():
            return "a date"
        case dt.time():
            return "a time of day"
        case dict():
            return "an object" if value else "an empty object"
        case list() | tuple():
            return "a list"
    return f"a value of class {type(value).__name__}"


def _whole_kind(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "infinity" if math.isinf(value) else "a double"


# --- Storing a value ---


def fits(value: Any, kind: Any) -> bool:
    """Return True if a column of the type can store the value exactly."""
    try:
        fitter(kind)(value)
    except DoesNotFit:
        return False
    return True


@lru_cache(maxsize=1024)
def fitter(kind: Any) -> Fit:
    """Return a function that turns a value into the value that a column of this type stores.

    The function returns None for None, and raises DoesNotFit.
    """
    fit = _maker(kind)(kind)

    def fit_or_null(value: Any) -> Any:
        return None if value is None else fit(value)

    return fit_or_null


def exact_array(values: Sequence[Any], kind: Any, typed: Callable[[Sequence[Any], Any], Any] | None = None) -> Any:
    """Return an Arrow array of this type whose values equal the given ones. Converts whole columns at once if that is
    safe.

    ``typed`` receives values whose Python class is not that of the type, and the type. It returns the values that they
    stand for (a time in JSON is a string), or an exact array of them. Raises DoesNotFit, and what ``typed`` raises.
    """
    classes = set(map(type, values)) - {type(None)}
    if types.is_struct(kind) and classes == {dict}:
        columns = [_field_array(values, field, typed) for field in kind]
        if columns:
            nulls = pa.array([value is None for value in values])
            return pa.StructArray.from_arrays(columns, fields=list(kind), mask=nulls)
    if classes <= _OWN_CLASSES.get(kind, _NONE):
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, OverflowError, UnicodeEncodeError):
            pass  # the rule decides about each value, and names what does not fit
    meant = values if typed is None else typed(values, kind)
    return meant if isinstance(meant, pa.Array) else pa.array(map(fitter(kind), meant), kind)


def _field_array(values: Sequence[Any], field: Any, typed: Callable[[Sequence[Any], Any], Any] | None) -> Any:
    column = [None if value is None else value.get(field.name) for value in values]
    return _inside(lambda some: exact_array(some, field.type, typed), column, field.name)


def _maker(kind: Any) -> Callable[[Any], Fit]:
    return next((make for is_kind, make in _MAKERS if is_kind(kind)), _nothing)


def _nothing(kind: Any) -> Fit:
    def fit(value: Any) -> Any:
        raise DoesNotFit(kind_of(value), kind)

    return fit


def _boolean(kind: Any) -> Fit:
    def fit(value: Any) -> Any:
        if value is True or value is False:
            return value
        raise DoesNotFit(kind_of(value), kind)

    return fit


def _integer(kind: Any) -> Fit:
    limit = 1 << (INTEGERS[kind] - 1)

    def fit(value: Any) -> Any:
        number = value if type(value) is int else whole_of(value)
        if number is None or not -limit <= number < limit:
            raise DoesNotFit(kind_of(value), kind)
        return number

    return fit


def whole_of(value: Any) -> int | None:
    """Return the integer that equals a value; None if there is none, or if it has more digits than any
    column can hold."""
    number = number_of(value)
    if number is None or number.adjusted() > _WHOLE_MAX or number != number.to_integral_value():
        return None
    return int(number)


def number_of(value: Any) -> Decimal | None:
    """Return a finite number as a decimal; None for anything else, and for the double -0.0.

    A double with a fraction becomes the shortest decimal that reads as the same double, as in JSON: 2.7 is 2.7.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    if isinstance(value, float) and (not math.isfinite(value) or (value == 0 and math.copysign(1, value) < 0)):
        return None
    has_fraction = isinstance(value, float) and not value.is_integer()
    number = Decimal(repr(value)) if has_fraction else Decimal(value)
    return number if number.is_finite() and number.adjusted() <= _ADJUSTED_MAX else None


def _double(kind: Any) -> Fit:
    is_single = kind == pa.float32()

    def fit(value: Any) -> Any:
        number = value if type(value) is float else _as_double(value)
        if number is None or (is_single and not _is_single(number)):
            raise DoesNotFit(kind_of(value), kind)
        return number

    return fit


def _as_double(value: Any) -> float | None:
    """Return the double that equals an integer or a decimal; None if there is none."""
    if type(value) is int and -EXACT_DOUBLES <= value <= EXACT_DOUBLES:
        return float(value)
    number = number_of(value)
    if number is None:
        return None
    try:
        found = float(number)
    except OverflowError:
        return None
    return found if math.isfinite(found) and Decimal(found) == number else None


def _is_single(value: float) -> bool:
    try:
        found: float = packing.unpack("<f", packing.pack("<f", value))[0]
    except OverflowError:
        return False
    return found == value or math.isnan(value)


def _decimal(kind: Any) -> Fit:
    quantum = Decimal((0, (1,), -kind.scale))
    exactly = Context(prec=kind.precision, Emin=-999_999, Emax=999_999, traps=[Inexact, InvalidOperation])

    def fit(value: Any) -> Any:
        number = number_of(value)
        try:
            if number is not None:
                return exactly.quantize(number, quantum)
        except DecimalException:
            pass
        raise DoesNotFit(kind_of(value), kind)

    return fit


def _text(kind: Any) -> Fit:
    def fit(value: Any) -> Any:
        if isinstance(value, str):
            if value.isascii():
                return value
            try:
                value.encode()
            except UnicodeEncodeError:
                raise DoesNotFit("a text with a lone surrogate", kind) from None
            return value
        raise DoesNotFit(kind_of(value), kind)

    return fit


def _bytes(kind: Any) -> Fit:
    size = kind.byte_width if types.is_fixed_size_binary(kind) else None

    def fit(value: Any) -> Any:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise DoesNotFit(kind_of(value), kind)
        found = bytes(value)
        if size is not None and len(found) != size:
            raise DoesNotFit(f"{len(found)} bytes", kind)
        return found

    return fit


def _date(kind: Any) -> Fit:
    def fit(value: Any) -> Any:
        if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
            return value
        raise DoesNotFit(kind_of(value), kind)

    return fit


def _time(kind: Any) -> Fit:
    step = _UNIT_MICROSECONDS[kind.unit]

    def fit(value: Any) -> Any:
        if not isinstance(value, dt.time) or value.tzinfo is not None:
            raise DoesNotFit(kind_of(value), kind)
        if value.microsecond % step:
            raise DoesNotFit("a time of day with a finer fraction", kind)
        return value

    return fit


def _timestamp(kind: Any) -> Fit:
    step, has_zone = _UNIT_MICROSECONDS[kind.unit], kind.tz is not None

    def fit(value: Any) -> Any:
        if not isinstance(value, dt.datetime) or (value.utcoffset() is not None) is not has_zone:
            raise DoesNotFit(kind_of(value), kind)
        if value.microsecond % step:
            raise DoesNotFit("a timestamp with a finer fraction", kind)
        try:
            found = value.astimezone(dt.UTC) if has_zone else value.replace(tzinfo=None)
        except OverflowError:
            raise DoesNotFit("a timestamp outside the years 1 to 9999", kind) from None
        if kind.unit == "ns" and not _NANOSECONDS_FROM <= found.replace(tzinfo=dt.UTC) <= _NANOSECONDS_TO:
            raise DoesNotFit("a timestamp outside the years 1677 to 2262", kind)
        return found

    return fit


def _list(kind: Any) -> Fit:
    fit_one = fitter(kind.value_type)

    def fit(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise DoesNotFit(kind_of(value), kind)
        return [_inside(fit_one, each, f"[{index}]") for index, each in enumerate(value)]

    return fit


def _map(kind: Any) -> Fit:
    fit_key, fit_item = fitter(kind.key_type), fitter(kind.item_type)

    def fit(value: Any) -> Any:
        if not isinstance(value, dict | list):
            raise DoesNotFit(kind_of(value), kind)
        found = []
        for pair in value.items() if isinstance(value, dict) else value:
            if not isinstance(pair, tuple) or len(pair) != 2 or pair[0] is None:
                raise DoesNotFit(kind_of(value), kind)
            found.append((_inside(fit_key, pair[0], "[key]"), _inside(fit_item, pair[1], f"[{pair[0]}]")))
        return found

    return fit


def _struct(kind: Any) -> Fit:
    fit_field = {field.name: fitter(field.type) for field in kind}

    def fit(value: Any) -> Any:
        if not isinstance(value, dict):
            raise DoesNotFit(kind_of(value), kind)
        for name in value.keys() - fit_field.keys():
            if value[name] is not None:
                raise DoesNotFit(kind_of(value[name]), UNKNOWN, str(name))
        return {name: _inside(fit_one, value.get(name), name) for name, fit_one in fit_field.items()}

    return fit


def _inside(fit: Fit, value: Any, name: str) -> Any:
    try:
        return fit(value)
    except DoesNotFit as error:
        raise error.below(name) from None


def _json(kind: Any) -> Fit:
    """Return the function that accepts lists and objects only. Plain values are refused, because as JSON they would
    look like texts.
    """

    def fit(value: Any) -> Any:
        if not isinstance(value, dict | list | tuple):
            raise DoesNotFit(kind_of(value), kind)
        return json_value(value)

    return fit


def json_value(value: Any) -> Any:
    """Convert a value to JSON: bytes to base64, times to ISO 8601, maps whose keys are not texts to lists of pairs.

    Raises DoesNotFit if JSON has no number or text for it.
    """
    match value:
        case None | bool() | int():
            return value
        case str():
            return fitter(pa.string())(value)
        case float() | Decimal() if math.isfinite(value):
            return value
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case dt.date() | dt.time():
            return value.isoformat()
        case dict() if _is_named(value):
            return {name: _inside(json_value, each, name) for name, each in value.items()}
        case dict():
            return [
                [_inside(json_value, key, "[key]"), _inside(json_value, each, f"[{key}]")]
                for key, each in value.items()
            ]
        case list() | tuple():
            return [_inside(json_value, each, f"[{index}]") for index, each in enumerate(value)]
    raise DoesNotFit(kind_of(value), JSON)


def _is_named(value: Mapping[Any, Any]) -> bool:
    return all(isinstance(name, str) and fits(name, pa.string()) for name in value)


_MAKERS: Final[tuple[tuple[Callable[[Any], bool], Callable[[Any], Fit]], ...]] = (
    (types.is_boolean, _boolean),
    (lambda kind: kind in INTEGERS, _integer),
    (lambda kind: kind in (pa.float32(), pa.float64()), _double),
    (types.is_decimal, _decimal),
    (lambda kind: types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind), _text),
    (lambda kind: types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind), _bytes),
    (types.is_fixed_size_binary, _bytes),
    (types.is_date32, _date),
    (types.is_time, _time),
    (types.is_timestamp, _timestamp),
    (lambda kind: types.is_list(kind) or types.is_large_list(kind), _list),
    (types.is_map, _map),
    (types.is_struct, _struct),
    (lambda kind: kind == JSON, _json),
)
