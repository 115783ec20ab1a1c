"""Maps the column types of a database to the Arrow types of the values that they store exactly.

Nested values are stored as JSON. SQLite has no decimals, so they are stored as text there. A timestamp is a moment in
UTC, even in a column without a time zone. Columns of other types (a UUID, an address) get texts unchanged, and the
database parses or refuses them.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from typing import Any, Final

import pyarrow as pa
import sqlalchemy as sa
from pyarrow import types
from sqlalchemy.types import TypeEngine

from parley.pipeline.values.exact import JSON, DoesNotFit, kind_of
from parley.pipeline.values.widening import DIGITS_MAX

_TYPES: Final[Mapping[Any, Callable[[], TypeEngine[Any]]]] = {
    pa.int8(): sa.SmallInteger,
    pa.int16(): sa.SmallInteger,
    pa.int32(): sa.Integer,
    pa.int64(): sa.BigInteger,
    pa.float32(): sa.Double,
    pa.float64(): sa.Double,
    pa.bool_(): sa.Boolean,
    pa.string(): sa.Text,
    pa.binary(): sa.LargeBinary,
    pa.date32(): sa.Date,
    JSON: lambda: sa.JSON(none_as_null=True),
}
_UNBOUNDED: Final = pa.decimal256(76, 38)
"""The type for a column of decimals without a precision. All its numbers fit."""
_SQLITE_DIGITS: Final = 15
"""The decimal digits that SQLite stores exactly: it stores numbers with a fraction as doubles."""


class TextDecimal(sa.types.UserDefinedType[Decimal]):
    """A decimal in SQLite, stored as text. The name of the type makes SQLite keep the text unchanged."""

    cache_ok = True

    def __init__(self, precision: int = DIGITS_MAX, scale: int = 0) -> None:
        self.precision = precision
        self.scale = scale

    def get_col_spec(self, **_: Any) -> str:
        return f"DECIMAL_TEXT({self.precision}, {self.scale})"

    def bind_processor(self, dialect: sa.Dialect) -> Callable[[Any], Any]:
        return lambda value: None if value is None else f"{value:f}"

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> Callable[[Any], Any]:
        return lambda value: None if value is None else Decimal(value)


def sql_kind(kind: Any) -> Any:
    """Return the Arrow type that a new column gets for values of the Arrow type ``kind``. Nested values are stored as
    JSON.
    """
    if types.is_nested(kind):
        return JSON
    if types.is_timestamp(kind):
        return pa.timestamp("us", "UTC")
    if types.is_time(kind):
        return pa.time64("us")
    return {pa.float32(): pa.float64(), pa.int8(): pa.int16()}.get(kind, kind)


def sql_type(kind: Any, dialect: sa.Dialect) -> TypeEngine[Any]:
    """Return the database's column type for an Arrow type that ``sql_kind`` returns."""
    if types.is_decimal(kind):
        is_sqlite = dialect.name == "sqlite"
        return TextDecimal(kind.precision, kind.scale) if is_sqlite else sa.Numeric(kind.precision, kind.scale)
    if types.is_timestamp(kind):
        return sa.DateTime(timezone=True)
    return sa.Time() if types.is_time(kind) else _TYPES[kind]()


def column_kind(kind: TypeEngine[Any], dialect: sa.Dialect) -> Any:
    """Return the Arrow type of the values that a column stores exactly; None if the column's type is unknown.

    A timestamp is a moment in UTC, even in a column without a time zone.
    """
    is_sqlite = dialect.name == "sqlite"
    if isinstance(kind, TextDecimal):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, sa.Integer) and is_sqlite:
        return pa.int64()
    if isinstance(kind, sa.Float):
        return pa.float32() if isinstance(kind, sa.REAL) and not is_sqlite else pa.float64()
    if isinstance(kind, sa.Numeric):
        return _decimal_kind(kind, is_sqlite=is_sqlite)
    if isinstance(kind, sa.DateTime):
        return pa.timestamp(_unit(kind), "UTC")
    if isinstance(kind, sa.Time):
        return pa.time64("us") if _unit(kind) == "us" else pa.time32(_unit(kind))
    return next((found for of, found in _KINDS if isinstance(kind, of)), None)


def _decimal_kind(kind: Any, *, is_sqlite: bool) -> Any:
    if is_sqlite:
        return pa.decimal128(
            min(kind.precision or _SQLITE_DIGITS, _SQLITE_DIGITS), min(kind.scale or 0, _SQLITE_DIGITS)
        )
    if kind.precision is None or kind.precision > _UNBOUNDED.precision or not 0 <= (kind.scale or 0) <= kind.precision:
        return _UNBOUNDED
    make = pa.decimal128 if kind.precision <= DIGITS_MAX else pa.decimal256
    return make(kind.precision, kind.scale or 0)


def _unit(kind: Any) -> Any:
    """Return the finest unit of time that a column with these digits of a second can express."""
    digits = getattr(kind, "precision", getattr(kind, "fsp", None))
    return "us" if digits is None or digits >= 6 else "ms" if digits >= 3 else "s"


_KINDS: Final[tuple[tuple[type[Any], Any], ...]] = (
    (sa.Boolean, pa.bool_()),
    (sa.SmallInteger, pa.int16()),
    (sa.BigInteger, pa.int64()),
    (sa.Integer, pa.int32()),
    (sa.Date, pa.date32()),
    (sa.JSON, JSON),
    (sa.LargeBinary, pa.binary()),
    (sa.Enum, None),
    (sa.String, pa.string()),
)


def sql_value(value: Any, column: sa.Column[Any], kind: Any, dialect: sa.Dialect) -> Any:
    """Return a value that fits the column's Arrow type, in the driver's form. Raises DoesNotFit.

    The database itself would truncate, pad or round, for example texts longer than the column, or numbers that SQLite
    cannot store.
    """
    if isinstance(value, str):
        _check_text(value, column, kind, dialect)
    elif isinstance(value, float) and dialect.name == "sqlite" and (math.isnan(value) or str(value) == "-0.0"):
        raise DoesNotFit(kind_of(value), kind)  # SQLite would store NULL and 0.0
    elif isinstance(value, Decimal) and kind == _UNBOUNDED:
        return value.normalize(_ALL_DIGITS)
    elif isinstance(value, dt.datetime) and not getattr(column.type, "timezone", False):
        return value.replace(tzinfo=None)
    return value


_ALL_DIGITS: Final = Context(prec=_UNBOUNDED.precision)


def _check_text(value: str, column: sa.Column[Any], kind: Any, dialect: sa.Dialect) -> None:
    if dialect.name == "postgresql" and "\0" in value:
        raise DoesNotFit("a text with the character U+0000", kind)
    length = None if dialect.name == "sqlite" else getattr(column.type, "length", None)
    if length is None:
        return
    if len(value) > length or (isinstance(column.type, sa.CHAR) and len(value) < length):
        raise DoesNotFit(f"a text of {len(value)} characters", f"{column.type}")
