"""A database: how it is reached, and which of its types goes with which of Connect's."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from parley.pipeline.connect.config import ConfigDef, ConfigType, Importance, Password, non_empty
from parley.pipeline.connect.connectors.columns import plain
from parley.pipeline.connect.data import (
    BOOLEAN,
    BYTES,
    DATE,
    FLOAT64,
    INT16,
    INT32,
    INT64,
    STRING,
    TIME,
    TIMESTAMP,
    LogicalType,
    Schema,
    SchemaType,
    decimal,
)
from parley.pipeline.connect.errors import ConfigError, ConnectError, RetriableError

__all__ = [
    "CONNECTION",
    "connect_schema",
    "connect_value",
    "failed",
    "open_engine",
    "sql_type",
    "sql_type_of",
    "sql_value",
]


def _database(name: str, value: Any) -> None:
    """A URL for which there is a driver; nothing is connected to."""
    non_empty(name, value)
    if value:
        open_engine(value, None, None).dispose()


CONNECTION: Final = (
    ConfigDef()
    .define(
        "connection.url",
        ConfigType.STRING,
        importance=Importance.HIGH,
        doc="The database: jdbc:postgresql://host/name, or a URL of SQLAlchemy's.",
        validator=_database,
    )
    .define("connection.user", ConfigType.STRING, None, Importance.HIGH, "Who connects, unless the URL says.")
    .define("connection.password", ConfigType.PASSWORD, None, Importance.HIGH, "With which password.")
)
_DRIVERS: Final = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg", "mysql": "mysql+pymysql"}
_DECIMAL_DIGITS: Final = 38
_SCALE_UNKNOWN: Final = 9


def open_engine(url: str, user: str | None, password: Password | None) -> sa.Engine:
    """The database at a URL; connected to when it is used. Raises ConfigError."""
    text = url.removeprefix("jdbc:")
    if text.startswith("sqlite:") and not text.startswith("sqlite://"):
        text = f"sqlite:///{text.removeprefix('sqlite:')}"
    scheme, mark, rest = text.partition("://")
    try:
        parsed = sa.make_url(f"{_DRIVERS.get(scheme, scheme)}{mark}{rest}")
        query = dict(parsed.query)
        user = user or _one(query.pop("user", None))
        secret = password.value if password is not None else _one(query.pop("password", None))
        parsed = parsed.set(query=query)
        if user is not None:
            parsed = parsed.set(username=user)
        if secret is not None:
            parsed = parsed.set(password=secret)
        return sa.create_engine(parsed, pool_pre_ping=True)
    except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError, ImportError) as error:
        raise ConfigError(f"Invalid value for configuration connection.url: {error}") from error


def _one(value: str | tuple[str, ...] | None) -> str | None:
    return value[0] if isinstance(value, tuple) else value


def failed(error: sa.exc.SQLAlchemyError, doing: str) -> ConnectError:
    """What to raise for an error of the database: it may pass where the connection is to blame."""
    text = f"{doing}: {getattr(error, 'orig', None) or error}"
    is_passing = isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError | sa.exc.TimeoutError)
    return RetriableError(text) if is_passing else ConnectError(text)


# From the database.


def connect_schema(kind: TypeEngine[Any], *, optional: bool) -> Schema:
    """The schema of values of a column; what has no type of its own in Connect is text."""
    schema = next((make(kind) for of, make in _SCHEMAS if isinstance(kind, of)), STRING)
    return schema.as_optional() if optional else schema


def _numeric(kind: Any) -> Schema:
    if not kind.asdecimal:
        return FLOAT64
    return decimal(_SCALE_UNKNOWN if kind.scale is None else kind.scale)


_SCHEMAS: Final[tuple[tuple[type[Any], Callable[[Any], Schema]], ...]] = (
    (sa.Boolean, lambda _: BOOLEAN),
    (sa.SmallInteger, lambda _: INT16),
    (sa.BigInteger, lambda _: INT64),
    (sa.Integer, lambda _: INT32),
    (sa.Float, lambda _: FLOAT64),
    (sa.Numeric, _numeric),
    (sa.DateTime, lambda _: TIMESTAMP),
    (sa.Date, lambda _: DATE),
    (sa.Time, lambda _: TIME),
    (sa.LargeBinary, lambda _: BYTES),
)


def connect_value(value: Any, schema: Schema | None) -> Any:
    """A value of a row as its schema has it."""
    if value is None:
        return None
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)
    if schema is not None and schema.name == LogicalType.DECIMAL:
        scale = int(schema.parameters[LogicalType.SCALE])
        return Decimal(value).quantize(Decimal(1).scaleb(-scale))
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    if schema is not None and schema.type is SchemaType.STRING and not isinstance(value, str):
        return json.dumps(value, default=str) if isinstance(value, dict | list) else str(value)
    if isinstance(value, UUID | Decimal):
        return str(value)
    return value


# To the database.

_TYPES: Final[Mapping[SchemaType, Callable[[], TypeEngine[Any]]]] = {
    SchemaType.INT8: sa.SmallInteger,
    SchemaType.INT16: sa.SmallInteger,
    SchemaType.INT32: sa.Integer,
    SchemaType.INT64: sa.BigInteger,
    SchemaType.FLOAT32: sa.Float,
    SchemaType.FLOAT64: sa.Double,
    SchemaType.BOOLEAN: sa.Boolean,
    SchemaType.STRING: sa.Text,
    SchemaType.BYTES: sa.LargeBinary,
}
_LOGICAL_TYPES: Final[Mapping[str, Callable[[Schema], TypeEngine[Any]]]] = {
    LogicalType.DECIMAL: lambda schema: sa.Numeric(_DECIMAL_DIGITS, int(schema.parameters[LogicalType.SCALE])),
    LogicalType.DATE: lambda _: sa.Date(),
    LogicalType.TIME: lambda _: sa.Time(),
    LogicalType.TIMESTAMP: lambda _: sa.DateTime(timezone=True),
}


def sql_type(schema: Schema) -> TypeEngine[Any]:
    """The type of a column for values of a schema; arrays, maps and structs are kept as JSON text."""
    logical = _LOGICAL_TYPES.get(schema.name or "")
    return logical(schema) if logical is not None else _TYPES.get(schema.type, sa.Text)()


def sql_type_of(value: Any) -> TypeEngine[Any]:
    """The type of a column for a value without schema."""
    match value:
        case bool():
            return sa.Boolean()
        case int():
            return sa.BigInteger()
        case float():
            return sa.Double()
        case bytes():
            return sa.LargeBinary()
        case _:
            return sa.Text()


def sql_value(value: Any) -> Any:
    """A value as a column takes it."""
    value = plain(value)
    return json.dumps(value, default=str, ensure_ascii=False) if isinstance(value, dict | list) else value
