"""Connects to a database, and maps its columns to Connect's schemas."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from decimal import MAX_PREC, Context, Decimal, Inexact, InvalidOperation
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from parley.pipeline.connect.config import HIGH, ConfigDef, ConfigType, Password, non_empty
from parley.pipeline.connect.connectors.sql.column_types import TextDecimal
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
from parley.pipeline.values.json_text import dumps


def _database(name: str, value: Any) -> None:
    """Check that there is a driver for the URL, without connecting. Raises ConfigError."""
    non_empty(name, value)
    if value:
        open_engine(value, None, None).dispose()


CONNECTION: Final = (
    ConfigDef()
    .define("connection.url", ConfigType.STRING, importance=HIGH, validator=_database)
    .doc("The database: jdbc:postgresql://host/name, or a URL of SQLAlchemy's.")
    .define("connection.user", ConfigType.STRING, None, HIGH)
    .doc("The database user, unless the URL names one.")
    .define("connection.password", ConfigType.PASSWORD, None, HIGH)
    .doc("The user's password.")
)
_DRIVERS: Final = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg", "mysql": "mysql+pymysql"}
_SCALE_UNKNOWN: Final = 9
_EXACTLY: Final = Context(prec=MAX_PREC, traps=[Inexact, InvalidOperation])


def open_engine(url: str, user: str | None, password: Password | None) -> sa.Engine:
    """Return the engine for the database at a URL. It connects on first use. Raises ConfigError."""
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
        engine = sa.create_engine(parsed, pool_pre_ping=True, json_serializer=dumps)
    except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError, ImportError) as error:
        raise ConfigError(f"Invalid value for configuration connection.url: {error}") from error
    if engine.dialect.name == "sqlite":
        names = getattr(engine.dialect, "ischema_names", {})
        engine.dialect.ischema_names = {**names, "DECIMAL_TEXT": TextDecimal}  # type: ignore[attr-defined]
    return engine


def _one(value: str | tuple[str, ...] | None) -> str | None:
    return value[0] if isinstance(value, tuple) else value


def failed(error: sa.exc.SQLAlchemyError, doing: str) -> ConnectError:
    """Return the error to raise for a database error: a RetriableError if the connection may be the cause, otherwise a
    ConnectError. ``doing`` is the beginning of its message.
    """
    text = f"{doing}: {getattr(error, 'orig', None) or error}"
    is_passing = isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError | sa.exc.TimeoutError)
    return RetriableError(text) if is_passing else ConnectError(text)


# Values from the database.


def connect_schema(kind: TypeEngine[Any], *, optional: bool) -> Schema:
    """Return the schema for the values of a column. Types that Connect lacks become text."""
    schema = next((make(kind) for of, make in _SCHEMAS if isinstance(kind, of)), STRING)
    return schema.as_optional() if optional else schema


def _numeric(kind: Any) -> Schema:
    if not kind.asdecimal:
        return FLOAT64
    return decimal(_SCALE_UNKNOWN if kind.scale is None else kind.scale)


_SCHEMAS: Final[tuple[tuple[type[Any], Callable[[Any], Schema]], ...]] = (
    (TextDecimal, lambda kind: decimal(kind.scale)),
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
    """Convert a value from a database row to the type that its schema requires. Raises ConnectError."""
    if value is None:
        return None
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)
    if schema is not None and schema.name == LogicalType.DECIMAL:
        scale = int(schema.parameters[LogicalType.SCALE])
        try:
            return Decimal(value).quantize(Decimal(1).scaleb(-scale), context=_EXACTLY)
        except (Inexact, InvalidOperation):
            raise ConnectError(f"a number cannot be stored exactly with {scale} decimal places") from None
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    if schema is not None and schema.type is SchemaType.STRING and not isinstance(value, str):
        return json.dumps(value, default=str) if isinstance(value, dict | list) else str(value)
    if isinstance(value, UUID | Decimal):
        return str(value)
    return value
