"""Converts Avro values to rows of Arrow, and back, exactly.

Columns: a record is a struct, a union with null is nullable, int and long in a union are a long, float and double a
double. Other unions are a struct with a field ``member0``, ``member1``... for each type, one of which is not null.
Durations stay bytes. Times of day stay integers, and fixed bytes become bytes of any length, except in columns
``of_files``, because Spark has no such types. Decimals of more than 38 digits, recursive records and unions whose
members cannot be distinguished are rejected. Logical types are applied here, not by fastavro, which would truncate
times.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import re
from collections.abc import Callable, Mapping
from decimal import MAX_PREC, Context, Decimal
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from parley.pipeline.schemas.avro import NAMED, PRIMITIVES, expanded, without_logical
from parley.pipeline.schemas.avro_shape import AvroShape
from parley.pipeline.schemas.model import BadColumn, BadSchema, Loader, Schema, inside
from parley.pipeline.values.exact import DoesNotFit, kind_of

Convert = Callable[[Any], Any] | None
"""Converts a value from fastavro's form to the column's, or back; None if both are the same."""
_PLAIN: Final = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(),
}  # fmt: skip
_INSTANT: Final = pa.timestamp("us", tz="UTC")
_LOCAL: Final = pa.timestamp("us")
_TIMES: Final = {
    "timestamp-millis": (_INSTANT, 1000), "timestamp-micros": (_INSTANT, 1),
    "local-timestamp-millis": (_LOCAL, 1000), "local-timestamp-micros": (_LOCAL, 1),
}  # fmt: skip
_TIMES_OF_DAY: Final = {"time-millis": (pa.time32("ms"), 1000), "time-micros": (pa.time64("us"), 1)}
_DAY_0: Final = dt.date(1970, 1, 1).toordinal()
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC).replace(tzinfo=None)
_DECIMAL_MAX: Final = 38
_ALL_DIGITS: Final = Context(prec=MAX_PREC)
"""Keeps all digits of a decimal. The default context would round to 28 digits."""
_NUMBERS: Final = ({"int", "long"}, {"float", "double"})
_CLASSES: Final = {
    "boolean": bool, "int": int, "long": int, "float": float, "double": float, "bytes": bytes, "string": str,
    "array": list, "map": dict,
}  # fmt: skip
_TOP: Final = "topLevelRecord"
"""The name of the record, as in Spark's to_avro."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class _Tree:
    """A schema as fastavro parses it, without its logical types, which ``column`` applies."""

    def __init__(self, schema: Schema, load: Loader, *, of_files: bool = False) -> None:
        import fastavro

        self._of_files = of_files
        self.names: dict[str, Any] = {}
        self.root = expanded(schema, load, self.names)
        self._open: list[str] = []
        names: dict[str, dict[Any, Any]] = {}
        self.bare = fastavro.parse_schema(
            without_logical(self.root, self.names), named_schemas=names, _write_hint=False
        )

    def resolved(self, node: Any) -> Any:
        return self.names[node] if isinstance(node, str) and node not in PRIMITIVES else node

    def column(self, given: Any) -> tuple[pa.DataType, Convert, Convert]:
        """Return the column's type for a part of the schema, and the functions that convert a value for reading and for
        writing.

        Raises BadSchema if columns cannot represent it.
        """
        node = self.resolved(given)
        if isinstance(node, list):
            return self._union(node)
        kind = node if isinstance(node, str) else node["type"]
        logical = None if isinstance(node, str) else node.get("logicalType")
        if logical == "decimal" and kind in ("bytes", "fixed"):
            return _decimal(node)
        if logical == "date" and kind == "int":
            return pa.date32(), _read_date, _write_date
        if logical in _TIMES and kind == "long":
            return _time(*_TIMES[logical])
        if logical in _TIMES_OF_DAY and self._of_files:
            return _time_of_day(*_TIMES_OF_DAY[logical])
        if kind in _PLAIN:
            return _PLAIN[kind], None, None
        if kind == "fixed":
            return pa.binary(node["size"]) if self._of_files else pa.binary(), None, None
        if kind == "enum":
            return pa.string(), None, None
        if kind == "array":
            column, reads, writes = self.column(node["items"])
            return pa.list_(column), _each(reads), _each(writes)
        if kind == "map":
            column, reads, writes = self.column(node["values"])
            return pa.map_(pa.string(), column), _each_value(reads), _each_value(writes, is_written=True)
        if kind in ("record", "error"):
            return self._record(node)
        return self.column(kind)

    def _record(self, node: Mapping[str, Any]) -> tuple[pa.DataType, Convert, Convert]:
        if node["name"] in self._open:
            raise BadSchema(f"The record {node['name']} is recursive, which columns cannot represent")
        self._open.append(node["name"])
        fields = {one["name"]: self.column(one["type"]) for one in node["fields"]}
        self._open.pop()
        reads = {name: one[1] for name, one in fields.items() if one[1] is not None}
        writes = {name: one[2] for name, one in fields.items() if one[2] is not None}
        made = pa.struct([(name, one[0]) for name, one in fields.items()])
        return made, _fields(reads), _fields(writes)

    def _union(self, node: list[Any]) -> tuple[pa.DataType, Convert, Convert]:
        members = [one for one in node if one != "null"]
        if not members:
            return pa.null(), None, None
        if len(members) == 1:
            return self._optional(members[0])
        for numbers in _NUMBERS:
            if all(isinstance(one, str) and one in numbers for one in members):
                return _PLAIN["long" if "long" in members else "double"], None, None
        keys = [self._key(one) for one in members]
        if len(set(keys)) < len(keys):
            raise BadSchema("A union has indistinguishable members, which columns cannot represent")
        columns = [self.column(one) for one in members]
        names = [f"member{number}" for number in range(len(members))]
        made = pa.struct([(name, one[0]) for name, one in zip(names, columns, strict=True)])

        def reads(value: Any) -> Any:
            key = value[0] if isinstance(value, tuple) else type(value)
            at = keys.index(key)
            inner = value[1] if isinstance(value, tuple) else value
            convert = columns[at][1]
            return {names[at]: inner if convert is None else convert(inner)}

        def writes(value: Any) -> Any:
            given = [at for at, name in enumerate(names) if value.get(name) is not None]
            if len(given) != 1:
                raise DoesNotFit(f"a union with {len(given)} members that are not null", made)
            at = given[0]
            inner, convert = value[names[at]], columns[at][2]
            inner = inner if convert is None else convert(inner)
            return (keys[at], inner) if isinstance(keys[at], str) else inner

        return made, reads, writes

    def _optional(self, member: Any) -> tuple[pa.DataType, Convert, Convert]:
        column, reads, writes = self.column(member)
        is_named = isinstance(self._key(member), str)

        def read(value: Any) -> Any:
            inner = value[1] if isinstance(value, tuple) else value
            return inner if inner is None or reads is None else reads(inner)

        def write(value: Any) -> Any:
            return value if value is None or writes is None else writes(value)

        return column, read if is_named or reads else None, write if writes else None

    def _key(self, member: Any) -> Any:
        """Return what distinguishes the values of this member of a union: the member's name, or the Python class of its
        values.
        """
        node = self.resolved(member)
        kind = node if isinstance(node, str) else node["type"]
        return node["name"] if kind in NAMED else _CLASSES[kind]


# --- Conversions ---


def _decimal(node: Mapping[str, Any]) -> tuple[pa.DataType, Convert, Convert]:
    precision, scale, size = node["precision"], node.get("scale", 0), node.get("size")
    if precision > _DECIMAL_MAX:
        raise BadSchema(f"A decimal of {precision} digits: a column holds {_DECIMAL_MAX} at most")

    def reads(value: bytes) -> Decimal:
        return Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-scale, _ALL_DIGITS)

    def writes(value: Decimal) -> bytes:
        whole = int(value.scaleb(scale, _ALL_DIGITS))
        return whole.to_bytes(size or (whole if whole >= 0 else ~whole).bit_length() // 8 + 1, "big", signed=True)

    return pa.decimal128(precision, scale), reads, writes


def _read_date(days: int) -> dt.date:
    try:
        return dt.date.fromordinal(days + _DAY_0)
    except (ValueError, OverflowError):
        raise DoesNotFit("a date outside the years 1 to 9999", pa.date32()) from None


def _write_date(value: dt.date) -> int:
    return value.toordinal() - _DAY_0


def _time(kind: pa.DataType, unit_us: int) -> tuple[pa.DataType, Convert, Convert]:
    zone = dt.UTC if kind.tz else None

    def reads(value: int) -> dt.datetime:
        try:
            return (_EPOCH + dt.timedelta(microseconds=value * unit_us)).replace(tzinfo=zone)
        except OverflowError:
            raise DoesNotFit("a timestamp outside the years 1 to 9999", kind) from None

    def writes(value: dt.datetime) -> int:
        own = value.astimezone(dt.UTC) if zone else value
        whole, rest = divmod((own.replace(tzinfo=None) - _EPOCH) // dt.timedelta(microseconds=1), unit_us)
        if rest:
            raise DoesNotFit("a timestamp with a finer fraction", kind)
        return whole

    return kind, reads, writes


def _time_of_day(kind: pa.DataType, unit_us: int) -> tuple[pa.DataType, Convert, Convert]:
    def reads(value: int) -> dt.time:
        moment = _EPOCH + dt.timedelta(microseconds=value * unit_us)
        if moment.date() != _EPOCH.date():
            raise DoesNotFit("a time outside the day", kind)
        return moment.time()

    return kind, reads, None


def _each(convert: Convert) -> Convert:
    return None if convert is None else lambda values: [convert(one) for one in values]


def _each_value(convert: Convert, *, is_written: bool = False) -> Convert:
    if is_written:
        return lambda pairs: {key: one if convert is None else convert(one) for key, one in dict(pairs).items()}
    return None if convert is None else lambda values: {key: convert(one) for key, one in values.items()}


def _fields(converts: Mapping[str, Callable[[Any], Any]]) -> Convert:
    if not converts:
        return None

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise DoesNotFit(kind_of(value), pa.struct([]))
        return {**value, **{name: one(value[name]) for name, one in converts.items() if name in value}}

    return convert


# --- Reading and writing ---


def column_type(schema: Schema, load: Loader, *, of_files: bool = False) -> pa.DataType:
    """Return the type of a column for values of the schema. Raises BadSchema."""
    tree = _Tree(schema, load, of_files=of_files)
    return tree.column(tree.root)[0]


def reader(written: Schema, wanted: Schema, load: Loader, *, of_files: bool = False) -> Callable[[bytes, int], Any]:
    """Return the function that reads data, from a position on, of the ``written`` schema as the ``wanted`` one (Avro's
    resolution).

    Raises BadSchema if a logical type differs, because Avro would take one for the other, or if data of the ``written``
    schema has no bound. The function raises ValueError.
    """
    theirs, ours = _Tree(written, load), _Tree(wanted, load, of_files=of_files)
    _check_logical(theirs, theirs.root, ours, ours.root, set())
    target = None if written == wanted else ours.bare
    decode = AvroShape(theirs.names).reader(theirs.root, theirs.bare, target, return_named_type=True)
    convert = ours.column(ours.root)[1]
    return decode if convert is None else lambda data, begin: convert(decode(data, begin))


def _check_logical(theirs: _Tree, their: Any, ours: _Tree, our: Any, seen: set[tuple[int, int]]) -> None:
    a, b = theirs.resolved(their), ours.resolved(our)
    if (id(a), id(b)) in seen:
        return
    seen.add((id(a), id(b)))
    a, b = _only(a), _only(b)
    if isinstance(a, list) or isinstance(b, list):
        return
    if _logical(a) != _logical(b):
        raise BadSchema(f"{_logical(a)} of the writer's schema is {_logical(b)} in the reader's: values would change")
    if not isinstance(a, dict) or not isinstance(b, dict):
        return
    fields = {one["name"]: one["type"] for one in a.get("fields", ())}
    for one in b.get("fields", ()):
        for name in (one["name"], *one.get("aliases", ())):
            if name in fields:
                _check_logical(theirs, fields[name], ours, one["type"], seen)
                break
    for key in ("items", "values"):
        if key in a and key in b:
            _check_logical(theirs, a[key], ours, b[key], seen)


def _only(node: Any) -> Any:
    members = [one for one in node if one != "null"] if isinstance(node, list) else []
    return members[0] if len(members) == 1 else node


def _logical(node: Any) -> str:
    if not isinstance(node, dict) or node.get("logicalType") not in ("decimal", "date", *_TIMES):
        return "a plain value"
    scale = f" of scale {node.get('scale', 0)}" if node["logicalType"] == "decimal" else ""
    return f"{node['logicalType']}{scale}"


def writer(schema: Schema, load: Loader) -> Callable[[Any], bytes]:
    """Return the function that encodes a value of the column. Raises BadSchema. The function raises ValueError if the
    value does not fit the schema.
    """
    import fastavro

    tree = _Tree(schema, load)
    convert = tree.column(tree.root)[2]

    def write(value: Any) -> bytes:
        out = io.BytesIO()
        try:
            fastavro.schemaless_writer(out, tree.bare, value if convert is None else convert(value), strict=True)
        except (TypeError, KeyError, AttributeError, OverflowError, ValueError) as error:
            if isinstance(error, DoesNotFit):
                raise
            raise ValueError(f"the value does not fit its Avro schema: {error}") from None
        return out.getvalue()

    return write


def schema_text(kind: pa.DataType, name: str, namespace: str = "") -> Any:
    """Return the Avro schema for a column, as parsed JSON. Every part may be null. Raises BadColumn if Avro has no type
    for it.
    """
    return _written(kind, name, namespace, set())


def _written(kind: pa.DataType, name: str, space: str, taken: set[str]) -> Any:
    plain = {one: text for text, one in _PLAIN.items()} | {pa.int8(): "int", pa.int16(): "int"}
    if kind in plain:
        return plain[kind]
    if kind == pa.date32():
        return {"type": "int", "logicalType": "date"}
    if types.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros" if kind.tz else "local-timestamp-micros"}
    if types.is_decimal128(kind) and kind.scale >= 0:
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if types.is_list(kind):
        return {"type": "array", "items": _nullable(kind.value_type, name, space, taken)}
    if types.is_map(kind) and kind.key_type == pa.string():
        return {"type": "map", "values": _nullable(kind.item_type, name, space, taken)}
    if types.is_struct(kind):
        if name in taken:
            name = f"{name}{len(taken)}"
        taken.add(name)
        fields = [_field(one, name, space, taken) for one in kind]
        return {"type": "record", "name": name, **({"namespace": space} if space else {}), "fields": fields}
    raise BadColumn.of_type(kind, "Avro")


def _field(field: pa.Field, record: str, space: str, taken: set[str]) -> dict[str, Any]:
    with inside(field.name):
        if not _NAME.fullmatch(field.name):
            raise BadColumn("has a name that Avro does not allow: rename it, with letters, digits and underscores")
        kind = _nullable(field.type, f"{record}_{field.name}", space, taken)
    return {"name": field.name, "type": kind, "default": None}


def _nullable(kind: pa.DataType, name: str, space: str, taken: set[str]) -> Any:
    made = _written(kind, name, space, taken)
    return made if made == "null" else ["null", made]


def derived_text(kind: pa.DataType, before: Schema | None, load: Loader) -> str:
    """Return the text of a schema for a column. Its record keeps the name that it has in ``before``, the earlier
    version.

    Raises BadColumn, and BadSchema for the earlier version.
    """
    root = None if before is None else expanded(before, load)
    full = root["name"] if isinstance(root, dict) and root.get("type") == "record" else _TOP
    space, _, name = full.rpartition(".")
    return json.dumps(schema_text(kind, name, space))
