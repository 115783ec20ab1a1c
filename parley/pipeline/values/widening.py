"""Widens a column for one more value, if that loses nothing.

- ``widened`` returns the type that the column needs: int8 -> ... -> int64 -> double or decimal, float32 -> float64,
  more digits of a decimal, finer units of times, more fields of a struct; the same inside lists, maps and structs.
- ``is_always_exact`` returns True if every value of the old type is a value of the new type. If not (int64 -> double),
  the caller must check the stored values.
- A column, or a part of it, that has contained only nulls has the type ``UNKNOWN``. ``settled`` decides what becomes of
  it.

Pure decisions, no I/O. ``exact`` says which values a type holds; docs/values.md contains the table.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from decimal import Context, Decimal
from enum import Enum
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from parley.pipeline.values.exact import (
    EXACT_DOUBLES,
    INTEGERS,
    UNKNOWN,
    DoesNotFit,
    fits,
    kind_of,
    number_of,
    whole_of,
)

DIGITS_MAX: Final = 38
"""The maximum number of decimal digits in Delta, Parquet's readers and Spark."""
_PRECISION: Final = 1200
"""A precision with more digits than any double."""
_UNITS: Final = ("s", "ms", "us", "ns")
_INTEGER_DIGITS: Final[Mapping[Any, int]] = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}


class Fractions(Enum):
    """The types that a column of integers can get if a value has a fraction."""

    DOUBLE = "double"
    DECIMAL = "decimal"


def type_of(value: Any, fractions: Fractions = Fractions.DOUBLE) -> Any:
    """Return the type of a new column for a value. Raises DoesNotFit if there is none. ``fractions`` is as in
    ``widened``.
    """
    match value:
        case None:
            return UNKNOWN
        case bool():
            return pa.bool_()
        case int():
            return pa.int64() if fits(value, pa.int64()) else _decimal_for(0, 0, value)
        case float():
            return pa.float64()
        case Decimal():
            return _decimal_for(DIGITS_MAX, max(0, -_exponent(value)), value)
        case str():
            return pa.string()
        case bytes() | bytearray() | memoryview():
            return pa.binary()
        case dt.datetime():
            return pa.timestamp("us", "UTC" if value.utcoffset() is not None else None)
        case dt.date():
            return pa.date32()
        case dt.time():
            return pa.time64("us")
        case list() | tuple():
            return _list_for(UNKNOWN, value, None, fractions)
        case dict():
            return _struct_for(pa.struct([]), value, None, fractions)
    raise DoesNotFit(kind_of(value), UNKNOWN)


def widened(kind: Any, value: Any, declared: Any = None, fractions: Fractions = Fractions.DOUBLE) -> Any:
    """Return the type that a column of ``kind`` needs for the value. It is ``kind`` if the value fits.

    ``declared`` is the type that the value's schema declares; None without a schema. ``fractions`` is the type that a
    column of integers gets for a double with a fraction. Raises DoesNotFit if there is no such type.
    """
    found = _widened(kind, value, declared, fractions)
    if not fits(value, found):
        raise DoesNotFit(kind_of(value), kind)
    return found


def _widened(kind: Any, value: Any, declared: Any, fractions: Fractions) -> Any:
    if kind == UNKNOWN:
        is_right = declared is not None and fits(value, declared)
        return declared if is_right else type_of(value, fractions)
    if value is None or fits(value, kind):
        return kind
    if types.is_struct(kind) and isinstance(value, dict):
        return _struct_for(kind, value, declared, fractions)
    if types.is_list(kind) and isinstance(value, list | tuple):
        return _list_for(kind.value_type, value, declared, fractions)
    if types.is_map(kind) and isinstance(value, dict):
        return _map_for(kind, value, declared, fractions)
    found = _wider(kind, value, declared, fractions)
    if found is None:
        raise DoesNotFit(kind_of(value), kind)
    return found


def _struct_for(kind: Any, value: Mapping[Any, Any], declared: Any, fractions: Fractions) -> Any:
    known = {field.name: field.type for field in kind}
    fields = (
        {field.name: field.type for field in declared} if declared is not None and types.is_struct(declared) else {}
    )
    for name, each in value.items():
        if not isinstance(name, str):
            raise DoesNotFit(f"an object with {kind_of(name)} for a name", kind)
        known[name] = _widened_inside(known.get(name, UNKNOWN), each, fields.get(name), fractions, name)
    return pa.struct(list(known.items()))


def _list_for(kind: Any, value: Iterable[Any], declared: Any, fractions: Fractions) -> Any:
    element = declared.value_type if declared is not None and types.is_list(declared) else None
    for index, each in enumerate(value):
        kind = _widened_inside(kind, each, element, fractions, f"[{index}]")
    return pa.list_(kind)


def _map_for(kind: Any, value: Mapping[Any, Any], declared: Any, fractions: Fractions) -> Any:
    keys, items = kind.key_type, kind.item_type
    is_said = declared is not None and types.is_map(declared)
    for key, each in value.items():
        keys = _widened_inside(keys, key, declared.key_type if is_said else None, fractions, "[key]")
        items = _widened_inside(items, each, declared.item_type if is_said else None, fractions, f"[{key}]")
    return pa.map_(keys, items)


def _widened_inside(kind: Any, value: Any, declared: Any, fractions: Fractions, name: str) -> Any:
    try:
        return _widened(kind, value, declared, fractions)
    except DoesNotFit as error:
        raise error.below(name) from None


def _wider(kind: Any, value: Any, declared: Any, fractions: Fractions) -> Any:
    """Return the wider type for a plain value; None if there is none. The caller must check that the value fits the
    wider type.
    """
    if types.is_timestamp(kind) and isinstance(value, dt.datetime):
        return pa.timestamp(_finer(kind, declared), kind.tz)
    if types.is_time(kind) and isinstance(value, dt.time):
        unit = _finer(kind, declared)
        return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
    if types.is_fixed_size_binary(kind) and not types.is_decimal(kind):
        return pa.binary()
    number = number_of(value)
    if kind == pa.float32():
        return pa.float64()
    if number is None:
        is_double = kind in INTEGERS and isinstance(value, float) and fractions is Fractions.DOUBLE
        return pa.float64() if is_double else None
    if kind in INTEGERS:
        return _wider_integer(kind, value, declared, fractions)
    if types.is_decimal(kind):
        return _decimal_for(kind.precision - kind.scale, kind.scale, value)
    return None


def _finer(kind: Any, declared: Any) -> str:
    """Return the finer of the column's unit and the declared unit. Without a declared unit, this is at least
    microseconds.
    """
    has_unit = declared is not None and (types.is_timestamp(declared) or types.is_time(declared))
    found: str = max((kind.unit, declared.unit if has_unit else "us"), key=_UNITS.index)
    return found


def _wider_integer(kind: Any, value: Any, declared: Any, fractions: Fractions) -> Any:
    if whole_of(value) is not None and not (isinstance(value, float) and abs(value) > EXACT_DOUBLES):
        first = [declared] if declared in INTEGERS else []
        wider = [one for one in (*first, *INTEGERS) if INTEGERS[one] > INTEGERS[kind] and fits(value, one)]
        if wider:
            return wider[0]
    elif isinstance(value, float) and fractions is Fractions.DOUBLE:
        return pa.float64()
    return _decimal_for(_INTEGER_DIGITS[kind], 0, value)


def _decimal_for(whole_digits: int, scale: int, value: Any) -> Any:
    """Return a decimal type for the number, with at least ``scale`` digits after the point.

    It has at least ``whole_digits`` digits before the point if they fit. Raises DoesNotFit if the number itself has
    more than ``DIGITS_MAX`` digits.
    """
    number = number_of(value)
    if number is not None:
        plain = number.normalize(Context(prec=_PRECISION))
        scale = max(scale, -_exponent(plain), 0)
        needed = max(plain.adjusted() + 1, 0) if plain else 0
        if needed + scale <= DIGITS_MAX:
            digits = min(max(whole_digits, needed), DIGITS_MAX - scale)
            return pa.decimal128(max(digits + scale, 1), scale)
    raise DoesNotFit(kind_of(value), UNKNOWN)


def _exponent(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    return exponent if isinstance(exponent, int) else 0


def is_always_exact(old: Any, new: Any) -> bool:
    """Return True if every value of the old type is a value of the new type."""
    if old in (new, UNKNOWN):
        return True
    if old in INTEGERS:
        if new in INTEGERS:
            return INTEGERS[old] <= INTEGERS[new]
        is_small = INTEGERS[old] <= (16 if new == pa.float32() else 32)
        if types.is_decimal(new):
            return bool(new.precision - new.scale >= _INTEGER_DIGITS[old])
        return types.is_floating(new) and is_small
    if types.is_decimal(old) and types.is_decimal(new):
        return bool(new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale)
    if types.is_timestamp(old) and types.is_timestamp(new) and (old.tz is None) == (new.tz is None):
        return new.unit != "ns" and _UNITS.index(old.unit) <= _UNITS.index(new.unit)
    if types.is_time(old) and types.is_time(new):
        return _UNITS.index(old.unit) <= _UNITS.index(new.unit)
    return _is_always_exact_inside(old, new) or (old == pa.float32() and new == pa.float64())


def _is_always_exact_inside(old: Any, new: Any) -> bool:
    if types.is_struct(old) and types.is_struct(new):
        found = {field.name: field.type for field in new}
        return all(field.name in found and is_always_exact(field.type, found[field.name]) for field in old)
    if types.is_list(old) and types.is_list(new):
        return is_always_exact(old.value_type, new.value_type)
    if types.is_map(old) and types.is_map(new):
        return is_always_exact(old.key_type, new.key_type) and is_always_exact(old.item_type, new.item_type)
    return bool(types.is_fixed_size_binary(old) and types.is_binary(new))


def only_adds_fields(old: Any, new: Any) -> bool:
    """Return True if the new type differs from the old type only by additional fields in its structs, if at all."""
    if old == new:
        return True
    if types.is_struct(old) and types.is_struct(new):
        found = {field.name: field.type for field in new}
        return all(field.name in found and only_adds_fields(field.type, found[field.name]) for field in old)
    is_list = types.is_list(old) and types.is_list(new)
    return bool(is_list and only_adds_fields(old.value_type, new.value_type))


def settled(kind: Any) -> Any:
    """Return a type without unknown parts: elements of lists and maps become text, fields of structs are left out.

    Returns ``UNKNOWN`` if nothing remains.
    """
    if types.is_list(kind):
        return pa.list_(_element(kind.value_type))
    if types.is_map(kind):
        return pa.map_(_element(kind.key_type), _element(kind.item_type))
    if types.is_struct(kind):
        fields = [(field.name, settled(field.type)) for field in kind]
        known = [(name, each) for name, each in fields if each != UNKNOWN]
        return pa.struct(known) if known else UNKNOWN
    return kind


def _element(kind: Any) -> Any:
    found = settled(kind)
    return pa.string() if found == UNKNOWN else found


def delta_type(kind: Any) -> Any:
    """Return the type that stores values of an Arrow type in Delta; None for times of day, which Delta lacks."""
    if types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if types.is_time(kind):
        return None
    if types.is_struct(kind):
        fields = [(each.name, delta_type(each.type)) for each in kind]
        return None if any(each is None for _, each in fields) else pa.struct(fields)
    if types.is_list(kind):
        element = delta_type(kind.value_type)
        return None if element is None else pa.list_(element)
    if types.is_map(kind):
        key, item = delta_type(kind.key_type), delta_type(kind.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    return pa.binary() if types.is_fixed_size_binary(kind) else kind


def iceberg_type(kind: Any) -> Any:
    """Return the type that stores values of an Arrow type in Iceberg. Arrow's large types become the plain ones."""
    if types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if types.is_time(kind):
        return pa.time64("us")
    if types.is_struct(kind):
        return pa.struct([(each.name, iceberg_type(each.type)) for each in kind])
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(iceberg_type(kind.value_type))
    if types.is_map(kind):
        return pa.map_(iceberg_type(kind.key_type), iceberg_type(kind.item_type))
    if types.is_large_string(kind):
        return pa.string()
    if types.is_large_binary(kind) or (types.is_fixed_size_binary(kind) and not types.is_decimal(kind)):
        return pa.binary()
    return pa.int32() if kind in (pa.int8(), pa.int16()) else kind


def iceberg_columns(columns: Any) -> Any:
    """Return the schema with Iceberg's types in place of Arrow's."""
    return pa.schema([(one.name, iceberg_type(one.type)) for one in columns])


def iceberg_widens(old: Any, new: Any) -> bool:
    """Return True if Iceberg can read a column of the old type as one of the new type, so that no file is rewritten."""
    if old == new:
        return True
    if types.is_struct(old) and types.is_struct(new):
        found = {field.name: field.type for field in new}
        return all(field.name in found and iceberg_widens(field.type, found[field.name]) for field in old)
    if types.is_list(old) and types.is_list(new):
        return iceberg_widens(old.value_type, new.value_type)
    if types.is_map(old) and types.is_map(new):
        return bool(old.key_type == new.key_type) and iceberg_widens(old.item_type, new.item_type)
    if types.is_decimal(old) and types.is_decimal(new):
        return bool(old.scale == new.scale and old.precision <= new.precision)
    return (old, new) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))
